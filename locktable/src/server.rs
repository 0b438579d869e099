//! The lock server of one coordinator: answers the same-numbered coordinators of other nodes.
//!
//! # What it is
//! A state machine over bytes: a datagram of requests in, a datagram of replies out. The server
//! executes requests on the node's [`LockTable`] and keeps, for each coroutine slot that ever
//! asked, its finished attempts (as one number) and the locks of the current attempt.
//!
//! # What it is not
//! The server sends no messages and reads no clock; the asker repeats lost messages. The server
//! does not enumerate or release the locks of an expelled node: recovery does, through the table.
//!
//! # One number per slot
//! A slot runs one attempt at a time, so a server needs only one number about the past of a slot,
//! its *watermark*: attempts below the watermark are over (H9, H10).
//!
//! | attempt | lock request | end |
//! |---|---|---|
//! | below the watermark | stale | nothing to do, acknowledged |
//! | at the watermark | locks for the attempt that holds | releases, raises the watermark |
//! | above the watermark | earlier attempts are over: releases, raises, then locks | the same |
//!
//! So the first request of a slot's next attempt ends the previous attempt even if the end message
//! was lost. In return the asker must not *send* a request of an attempt before all writes of the
//! slot's earlier attempts under their locks are visible on the primaries (I42).
//!
//! A repeated request is executed again. After a grant, all locks are already held and the answer
//! is the same. After a refusal, the repeat may be granted: the asker either still waits for an
//! answer, and gets a correct answer, or has ended the attempt, and the end releases the locks or
//! has made the repeat stale.
//!
//! # Requests that wait
//! A request that may wait and meets a conflict takes its locks one by one, in ascending order, and
//! waits in the table for each conflicting lock (`parked`). The waiting request belongs to its
//! session: a repeat is answered *waiting*, and the end of the attempt ends the wait. An attempt
//! has one waiting request at a time. When a wait ends, [`LockServer::settle`] continues the
//! request.

use std::sync::Arc;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Endpoint, Epoch, Incarnation, NodeId, ShardId, TxnId};
use lotus_sabotage::{Rule, broken};

use crate::lock_key::{LockKey, LockMode, LockRequest};
use crate::queue::{WaitOutcome, Waiter};
use crate::slot::{Grant, Refusal};
use crate::table::LockTable;
use crate::wire::{
    self, DecodeError, LockAnswer, LockMessage, Locks, Question, Reply, ReplyWriter,
};

mod parked;

use parked::ParkedRequest;

/// Interface of a lock server to its node.
pub trait LockHost {
    /// Whether this node grants the locks of `shard` in exactly this shard epoch.
    ///
    /// Called *after* the locks were taken. A hand-over stops owning first and scans the holders
    /// second; so either the scan sees these locks or this call sees the stop, and the hand-over
    /// misses no granted lock (H19, I44). Code that locks in the table directly must call in the
    /// same order.
    fn owns(&self, shard: ShardId, shard_epoch: u32) -> bool;

    /// Returns the owner of `shard` as far as this node knows, and the shard epoch; sent with every
    /// refusal of a lock that this node does not own. [`crate::NO_OWNER`] if this node has stopped
    /// granting the shard's locks.
    fn owner_known(&self, shard: ShardId) -> (NodeId, u32);

    /// Configuration epoch of this node, sent with every reply (H23).
    fn configuration_epoch(&self) -> Epoch;

    /// Notifies the node that a remote transaction holds `name` to write, so that cached copies of
    /// the row become stale.
    ///
    /// Called after the lock is taken and before the asker learns of the grant (LOTUS §4.4, H11).
    fn write_granted(&self, name: &LockKey) {
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

    fn write_granted(&self, name: &LockKey) {
        (**self).write_granted(name);
    }
}

/// Sender and arrival time of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Endpoint that receives the outcomes of the datagram's requests.
    pub from: Endpoint,
    /// Arrival time, on this node's clock.
    pub at: Nanos,
}

/// The lock server of one coordinator.
#[derive(Debug)]
pub struct LockServer<H> {
    table: Arc<LockTable>,
    host: H,
    /// Recipient of the outcomes of waiting requests; `None` if requests never wait.
    waiter: Option<Arc<dyn Waiter>>,
    /// Peers by incarnation; grows to the largest incarnation seen.
    peers: Vec<AskerState>,
    /// Scratch space for one request, kept for its capacity.
    requests: Vec<LockRequest>,
    unusual: Vec<(usize, Grant)>,
}

/// State of one life of a remote node.
#[derive(Debug)]
enum AskerState {
    /// Sessions by slot; grows to the largest slot seen.
    Member(Vec<Session>),
    /// Expelled for good: incarnations are not used twice.
    Expelled,
}

/// State of one coroutine slot of a remote node.
#[derive(Debug, Default)]
struct Session {
    /// Attempts below this number are over: a late request locks nothing (I40).
    watermark: u64,
    /// Locks of the attempt at the watermark.
    held: Vec<LockRequest>,
    /// Waiting request of the attempt.
    parked: Option<ParkedRequest>,
}

impl<H: LockHost> LockServer<H> {
    /// Creates a server without sessions.
    ///
    /// A restarted node must own no shard under an epoch from before its restart, and must be given
    /// the incarnations expelled so far by [`Self::refuse`]: its watermarks start from zero.
    pub fn new(table: Arc<LockTable>, host: H) -> Self {
        let (peers, requests, unusual) = (Vec::new(), Vec::new(), Vec::new());
        Self { table, host, waiter: None, peers, requests, unusual }
    }

    /// Allows requests to wait. `waiter` receives the outcomes and passes them to [`Self::settle`].
    #[must_use]
    pub fn waiting_with(mut self, waiter: Arc<dyn Waiter>) -> Self {
        self.waiter = Some(waiter);
        self
    }

    /// Executes the requests in `datagram` in order and writes the replies into `reply`; returns
    /// the length of the replies in bytes.
    ///
    /// # Errors
    /// If a part of the datagram is not a request; then no request was executed.
    ///
    /// # Panics
    /// If `reply` is shorter than `datagram`: the replies may be as long as the requests.
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

    /// Stops serving `incarnation`, which has been expelled (H4, H8): the incarnation is granted
    /// nothing any more (I43).
    ///
    /// Ends the waits of the incarnation's requests (I254). Its locks stay until recovery has
    /// settled its transactions and releases the locks through [`LockTable::holders_of`]; its ends
    /// are acknowledged without effect.
    pub fn refuse(&mut self, incarnation: Incarnation) {
        let state = peer(&mut self.peers, incarnation);
        if let AskerState::Member(sessions) = state {
            sessions.iter_mut().for_each(|session| session.stop_waiting(&self.table));
        }
        *state = AskerState::Expelled;
    }

    /// Continues the request of `txn` that waited for `name`. Returns the answer and its recipient,
    /// if the request has no further wait.
    pub fn settle(
        &mut self,
        txn: TxnId,
        name: &LockKey,
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
        // Checked last, for the reason given at `LockHost::owns`. The result overrides a refusal:
        // an asker with an outdated map must learn the owner, not retry for ever.
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
    /// Ends every attempt of `txn`'s slot below `watermark`; no effect if already ended.
    fn raise(&mut self, txn: TxnId, watermark: u64, table: &LockTable) {
        if watermark <= self.watermark {
            return;
        }
        self.release(txn, table);
        self.watermark = watermark;
    }

    /// Releases all locks of the current attempt of `txn`'s slot.
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

    /// Records the granted locks, and notifies the host of new writers.
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

/// Returns the state of `incarnation`, a member unless refused.
fn peer(peers: &mut Vec<AskerState>, incarnation: Incarnation) -> &mut AskerState {
    let index = usize::from(incarnation.raw());
    if peers.len() <= index {
        peers.resize_with(index + 1, || AskerState::Member(Vec::new()));
    }
    &mut peers[index]
}

/// Returns the session of `txn`'s slot, created if need be; `None` if its node is expelled.
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
