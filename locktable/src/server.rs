//! The lock server of one coordinator: answers the same-numbered coordinators of other nodes.
//!
//! # What it is
//! A state machine over bytes: a datagram of requests in, a datagram of replies out. It executes
//! requests on the node's [`LockTable`] and remembers, for each coroutine slot that ever asked,
//! which attempts are over and what the current one holds.
//!
//! # What it is not
//! It sends nothing and reads no clock; lost messages are sent again by the asker. It does not
//! enumerate or release the locks of an expelled node: recovery does, through the table.
//!
//! # One number per slot
//! A slot runs one attempt at a time, so all that a server needs to know about the past of a slot
//! is its *watermark*: attempts below it are over (H9, H10).
//!
//! | attempt | lock request | end |
//! |---|---|---|
//! | below the watermark | stale | nothing to do, acknowledged |
//! | at the watermark | locks for the attempt that holds | releases, raises the watermark |
//! | above the watermark | earlier attempts are over: releases, raises, then locks | the same |
//!
//! So the first request of a slot's next attempt ends the previous one even if its end was lost. In
//! return the asker promises not to *send* a request of an attempt before everything that the
//! slot's earlier attempts wrote under their locks is visible on the primaries.
//!
//! A request that is repeated is executed again. Where it was granted, everything is already held
//! and the answer is the same. Where it was refused, it may now be granted: the asker either still
//! waits for an answer, and gets one that is true, or has ended the attempt, and the end releases
//! the locks or has made the repeat stale.
//!
//! # Requests that wait
//! A request that may wait and meets a conflict takes its locks one by one, in ascending order, and
//! waits in the table for each that is held (`parked`). It belongs to its session: a repeat is
//! answered that it waits, and the end of the attempt ends the wait. An attempt has one such
//! request at a time. When a wait ends, [`LockServer::settle`] goes on with the request.

use std::sync::Arc;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Endpoint, Epoch, Incarnation, NodeId, ShardId, TxnId};
use lotus_sabotage::{Rule, broken};

use crate::name::{LockMode, LockName, LockRequest};
use crate::queue::{WaitOutcome, Waiter};
use crate::slot::{Grant, Refusal};
use crate::table::LockTable;
use crate::wire::{
    self, DecodeError, LockAnswer, LockMessage, Locks, Question, Reply, ReplyWriter,
};

mod parked;

use parked::ParkedRequest;

/// Interface of a lock server to the node that it runs on.
pub trait LockHost {
    /// Whether this node grants the locks of `shard`, in exactly this epoch of the shard.
    ///
    /// Called *after* the locks were taken. A hand-over stops owning first and scans the holders
    /// second; so either its scan sees these locks or this call sees the stop, and no lock is
    /// granted behind its back (H19). Code that locks in the table directly must do the same.
    fn owns(&self, shard: ShardId, shard_epoch: u32) -> bool;

    /// Owner of `shard` as far as this node knows, and its epoch; sent with every refusal of a lock
    /// that this node does not own. [`crate::NO_OWNER`] if this node has stopped granting them.
    fn owner_known(&self, shard: ShardId) -> (NodeId, u32);

    /// Configuration epoch of this node, sent with every reply (H23).
    fn configuration_epoch(&self) -> Epoch;

    /// A remote transaction now holds `name` to write: cached copies of the row go stale.
    ///
    /// Called after the lock is taken and before the asker learns of it (LOTUS §4.4, H11).
    fn write_granted(&self, name: &LockName) {
        let _ = name;
    }
}

impl<H: LockHost + ?Sized> LockHost for Arc<H> {
    fn owns(&self, shard: ShardId, shard_epoch: u32) -> bool {
        (**self).owns(shard, shard_epoch)
    }

    fn owner_known(&self, shard: ShardId) -> (NodeId, u32) {
        (**self).owner_known(shard)
    }

    fn configuration_epoch(&self) -> Epoch {
        (**self).configuration_epoch()
    }

    fn write_granted(&self, name: &LockName) {
        (**self).write_granted(name);
    }
}

/// Sender of a datagram, and the time at which it came, on this node's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Endpoint that outcomes of its requests go to.
    pub from: Endpoint,
    /// Time at which it came.
    pub at: Nanos,
}

/// The lock server of one coordinator.
#[derive(Debug)]
pub struct LockServer<H> {
    table: Arc<LockTable>,
    host: H,
    /// Recipient of the outcomes of requests that wait; without one, none waits.
    waiter: Option<Arc<dyn Waiter>>,
    /// Peers by incarnation; grows to the largest that was seen.
    peers: Vec<AskerState>,
    /// Scratch space for one request, kept for its capacity.
    requests: Vec<LockRequest>,
    unusual: Vec<(usize, Grant)>,
}

/// State of one life of another node.
#[derive(Debug)]
enum AskerState {
    /// Its sessions by slot; grows to the largest that was seen.
    Member(Vec<Session>),
    /// Out for good: incarnations are not used twice.
    Expelled,
}

/// State of one coroutine slot of another node.
#[derive(Debug, Default)]
struct Session {
    /// Attempts below this one are over.
    watermark: u64,
    /// Locks that the attempt at the watermark holds.
    held: Vec<LockRequest>,
    /// Its request that waits.
    parked: Option<ParkedRequest>,
}

impl<H: LockHost> LockServer<H> {
    /// Server without any sessions.
    ///
    /// A restarted node must own nothing under an epoch from before its restart, and must be given
    /// the incarnations expelled so far by [`Self::refuse`]: its watermarks start from zero.
    pub fn new(table: Arc<LockTable>, host: H) -> Self {
        let (peers, requests, unusual) = (Vec::new(), Vec::new(), Vec::new());
        Self { table, host, waiter: None, peers, requests, unusual }
    }

    /// Lets requests wait that ask to; their outcomes go to `waiter`, which passes them to
    /// [`Self::settle`].
    #[must_use]
    pub fn waiting_with(mut self, waiter: Arc<dyn Waiter>) -> Self {
        self.waiter = Some(waiter);
        self
    }

    /// Carries out the requests in `datagram` in order and writes the replies into `reply`; returns
    /// their length in bytes.
    ///
    /// # Errors
    /// If any part of the datagram is not a request; then none of it was carried out.
    ///
    /// # Panics
    /// If `reply` is shorter than `datagram`, which is as long as the replies can get.
    pub fn handle(
        &mut self,
        arrival: Arrival,
        datagram: &[u8],
        reply: &mut [u8],
    ) -> Result<usize, DecodeError> {
        assert!(reply.len() >= datagram.len(), "replies need as much room as their requests");
        wire::requests(datagram).try_for_each(|request| request.map(drop))?;
        let mut replies = ReplyWriter::new(reply);
        for request in wire::requests(datagram) {
            let reply = match request? {
                LockMessage::Lock { question, locks, age_us } => {
                    let answer = self.lock(question, locks, age_us, arrival);
                    Reply::Lock { question, answer }
                }
                LockMessage::End { txn } => {
                    self.end(txn);
                    Reply::Ended { txn }
                }
            };
            replies.push(reply).expect("a reply is no longer than its request");
        }
        Ok(replies.finish(self.host.configuration_epoch()))
    }

    /// Stops serving `incarnation`, which has been expelled (H4, H8).
    ///
    /// Its requests wait no more. Its locks stay until recovery has settled its transactions and
    /// releases them through [`LockTable::holders_of`]; its ends are acknowledged and change
    /// nothing.
    pub fn refuse(&mut self, incarnation: Incarnation) {
        let state = peer(&mut self.peers, incarnation);
        if let AskerState::Member(sessions) = state {
            sessions.iter_mut().for_each(|session| session.stop_waiting(&self.table));
        }
        *state = AskerState::Expelled;
    }

    /// Goes on with the request of `txn` that waited for `name`. Returns the answer, if that was
    /// the last wait, and the endpoint that it is for.
    pub fn settle(
        &mut self,
        txn: TxnId,
        name: &LockName,
        outcome: WaitOutcome,
    ) -> Option<(Endpoint, Reply)> {
        let Self { table, host, waiter, peers, .. } = self;
        let session = session(peers, txn)?;
        let (from, question, answer) =
            session.settle(txn, name, outcome, &*host, table, waiter.as_ref()?)?;
        Some((from, Reply::Lock { question, answer }))
    }

    fn lock(
        &mut self,
        question: Question,
        locks: Locks<'_>,
        age_us: Option<u32>,
        arrival: Arrival,
    ) -> LockAnswer {
        let txn = question.txn;
        let Self { table, host, waiter, peers, requests, unusual } = self;
        let Some(session) = session(peers, txn) else { return LockAnswer::Expelled };
        if txn.attempt() < session.watermark && !broken(Rule::StaleRequestsAreRefused) {
            return LockAnswer::Stale;
        }
        session.raise(txn, txn.attempt(), table);
        if session.parked.as_ref().is_some_and(|parked| parked.question == question) {
            return LockAnswer::Waiting;
        }
        requests.clear();
        requests.extend(locks.iter().map(|lock| lock.request));
        let outcome = table.lock_set(txn, requests, unusual);
        // Checked last, for the reason that `LockHost::owns` gives, and it overrides a refusal: an
        // asker with an old map must learn that, not retry for ever.
        let foreign =
            |lock: wire::RemoteLock| !host.owns(lock.request.name.shard(), lock.shard_epoch);
        let wrong = locks.iter().position(foreign);
        match (wrong, outcome) {
            (None, Ok(())) => {
                session.note(requests, unusual, host);
                LockAnswer::Granted
            }
            (None, Err((_, Refusal::Conflict)))
                if let (Some(age_us), Some(waiter)) = (age_us, waiter)
                    && session.parked.is_none() =>
            {
                let parked = ParkedRequest::new(question, arrival, age_us, locks.iter());
                session.wait(txn, parked, &*host, table, waiter)
            }
            (None, Err((index, refusal))) => LockAnswer::Refused { index: index as u16, refusal },
            (Some(index), outcome) => {
                if outcome.is_ok() {
                    table.undo_set(txn, requests, unusual);
                }
                let (owner, shard_epoch) = host.owner_known(requests[index].name.shard());
                LockAnswer::WrongOwner { index: index as u16, owner, shard_epoch }
            }
        }
    }

    fn end(&mut self, txn: TxnId) {
        if let Some(session) = session(&mut self.peers, txn) {
            if broken(Rule::EndsNameTheirAttempt) {
                session.release(txn, &self.table);
            }
            session.raise(txn, txn.attempt() + 1, &self.table);
        }
    }
}

impl Session {
    /// Ends every attempt of `txn`'s slot below `watermark`; nothing if they have ended.
    fn raise(&mut self, txn: TxnId, watermark: u64, table: &LockTable) {
        if watermark <= self.watermark {
            return;
        }
        self.release(txn, table);
        self.watermark = watermark;
    }

    /// Releases all that the current attempt of `txn`'s slot holds.
    fn release(&mut self, txn: TxnId, table: &LockTable) {
        if !broken(Rule::EndsRemoveTheParked) {
            self.stop_waiting(table);
        }
        self.parked = None;
        let holder = TxnId::new(txn.incarnation(), txn.slot(), self.watermark);
        for request in self.held.drain(..) {
            table.unlock(holder, &request.name);
        }
    }

    /// Records the locks that were granted, and tells the host of new writers.
    fn note(&mut self, requests: &[LockRequest], unusual: &[(usize, Grant)], host: &impl LockHost) {
        let mut unusual = unusual.iter().peekable();
        for (index, request) in requests.iter().enumerate() {
            match unusual.next_if(|(at, _)| *at == index) {
                None => self.held.push(*request),
                Some((_, Grant::Upgraded)) => self
                    .held
                    .iter_mut()
                    .filter(|held| held.name == request.name)
                    .for_each(|held| held.mode = LockMode::Write),
                Some(_) => continue,
            }
            if request.mode == LockMode::Write {
                host.write_granted(&request.name);
            }
        }
    }
}

/// State of `incarnation`, which is a member unless refused.
fn peer(peers: &mut Vec<AskerState>, incarnation: Incarnation) -> &mut AskerState {
    let index = usize::from(incarnation.raw());
    if peers.len() <= index {
        peers.resize_with(index + 1, || AskerState::Member(Vec::new()));
    }
    &mut peers[index]
}

/// Session of `txn`'s slot, created if need be; `None` if its node is expelled.
fn session(peers: &mut Vec<AskerState>, txn: TxnId) -> Option<&mut Session> {
    let AskerState::Member(sessions) = peer(peers, txn.incarnation()) else { return None };
    let index = usize::from(txn.slot());
    if sessions.len() <= index {
        sessions.resize_with(index + 1, Session::default);
    }
    Some(&mut sessions[index])
}

#[cfg(all(test, not(lotus_loom)))]
mod parked_tests;
#[cfg(all(test, not(lotus_loom)))]
mod tests;
