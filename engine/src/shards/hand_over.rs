//! Hand-over: an owner gives shards to another compute node while transactions run (LOTUS §4.3).
//!
//! # The steps, and their purpose
//! 1. The owner asks whether the receiver is there. If the receiver does not answer, or is a
//!    returned node still unknown to some member, nothing has changed.
//! 2. The owner *stops*: it grants no more locks of the shards; requesters have to try again,
//!    including waiting requesters. A grant under way checks for the stop after taking its lock,
//!    and a request checks after beginning to wait; the owner looks for both after stopping. So a
//!    race is always noticed on at least one side (H19).
//! 3. The owner waits until no lock of the shards is held. Most transactions end at once. Past its
//!    patience the owner asks the remaining holders to give up. Holders that are not committing do;
//!    only their answer, and no lapse of time, lets the owner release the locks (H19). The owner
//!    waits for commits; dead holders are recovered first.
//! 4. The owner forgets its cached rows of the shards (H11). The rows do not come back: rows read
//!    before the stop are not cached after the stop.
//! 5. The words in the memory pool are [swapped](Coordinator::give). From here on the receiver owns
//!    the shards, whether a node knows of the swap or not.
//! 6. The owner tells the receiver, which begins to grant. If the message is lost the receiver
//!    learns of the swap as all other nodes do.
//!
//! # If a node stops anywhere
//! Before step 5 the old owner still is the owner: if it has died, the shards find heirs like the
//! rest of its shards; if the owner gives up, it resumes granting. From step 5 on the receiver is
//! the owner, and if the receiver has died, its heirs take over. An owner that pauses before step 5
//! and is expelled meanwhile finds the words changed, or itself fenced.
//!
//! # What it is not
//! A mover of data, or the place of decisions: [`crate::shards::balance`], or an operator through
//! any node ([`crate::shards::orders`]), chooses the shards and their receivers. A node carries out
//! hand-overs sequentially, and moves the shards of a hand-over together.

use std::rc::{Rc, Weak};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Endpoint, LaneId, NodeId, ShardId, TxnId};
use lotus_fabric::rpc::{PendingCall, RetryPolicy, Service};
use lotus_locktable::{Holder, LockKey, WaitOutcome};
use lotus_points::point;
use lotus_router::Owner;
use lotus_sabotage::{Rule, broken};

use crate::api::moves::{MoveError, Moved};
use crate::node::coordinator::Coordinator;
use crate::node::messages::{ASK_AGAIN, decode, encode};
use crate::node::verbs::Fenced;
use crate::shards::ownership::Transfer;

/// RPC service by which nodes hand shards over.
const SERVICE: Service = Service(3);
/// Limit of the shards in one hand-over: the names fit in a datagram.
pub(crate) const MOST_AT_ONCE: usize = 128;
/// Pause between two checks of the locks still held.
const LOOK_AGAIN: Duration = Duration::from_micros(10);
/// First word of a message: the kind of request. Messages of this service are words.
const TAKE: u64 = 1;
const YIELD: u64 = 2;

impl From<Fenced> for MoveError {
    fn from(_: Fenced) -> Self {
        Self::Failed
    }
}

/// Owner's next action in draining the locks of the shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DrainStep {
    Publish,
    Wait,
    AskToYield,
    GiveUp,
}

/// Next step with `held` locks left after waiting for `waited`: asks the holders to yield after
/// `patience`, gives up after `limit`.
fn next_step(held: usize, waited: Duration, patience: Duration, limit: Duration) -> DrainStep {
    match held {
        0 => DrainStep::Publish,
        _ if waited >= limit => DrainStep::GiveUp,
        _ if waited >= patience => DrainStep::AskToYield,
        _ => DrainStep::Wait,
    }
}

/// Carries out the node's orders until the node ends.
pub(crate) async fn keep(coordinator: &Rc<Coordinator>) {
    if coordinator.thread != 0 {
        return;
    }
    while let Ok(order) = coordinator.node.orders.1.recv().await {
        if coordinator.is_for_another(&order) {
            // Both channels live as long as the node.
            let _ = coordinator.node.passed_on.0.try_send(order);
            continue;
        }
        let outcome = match coordinator.check_epochs(&order) {
            Ok(()) => coordinator.hand_over(&order.shards, order.to).await,
            Err(stale) => Err(stale),
        };
        match outcome {
            Ok(moved) if moved.interruption > Duration::ZERO => {
                let mut counters = coordinator.node.moves.lock();
                let counters = counters.as_mut().unwrap_or_else(|broken| broken.get_mut());
                counters.count(order.shards.len(), moved);
            }
            Err(MoveError::Failed) => coordinator.node.expel(),
            _ => {}
        }
        // The sender may not be waiting for the outcome.
        let _ = order.reply.try_send(outcome);
    }
}

/// Lets a coordinator answer the messages of this service.
pub(crate) fn serve(coordinator: &Rc<Coordinator>) {
    let serving = Rc::downgrade(coordinator);
    let answer = move |message: &[u8]| answer(&serving, message);
    coordinator.rpc.serve(
        SERVICE,
        Box::new(move |responder, message| {
            if let Some(words) = answer(message) {
                responder.respond(&encode(&words));
            }
        }),
    );
}

/// Answer to a message; `None` for an invalid message, or if this node has failed.
fn answer(coordinator: &Weak<Coordinator>, message: &[u8]) -> Option<Vec<u64>> {
    let coordinator = coordinator.upgrade().filter(|one| !one.node.has_failed())?;
    let words = decode(message)?;
    match words.split_first()? {
        (&TAKE, shards) => {
            for shard in shards.chunks_exact(2) {
                let [shard, owner] = *shard else { continue };
                coordinator.node.learn(ShardId::from_low_bits(shard), Owner::from_word(owner));
            }
            Some(vec![TAKE])
        }
        (&YIELD, txns) => {
            let yields = |raw: &u64| coordinator.yields(TxnId::from_raw(raw & !(1 << 63)));
            let yielded = txns.iter().map(|txn| u64::from(yields(txn)));
            Some([YIELD].into_iter().chain(yielded).collect())
        }
        _ => None,
    }
}

impl Coordinator {
    /// Gives all of `shards` to `to`, or none; see the module docs.
    async fn hand_over(&self, shards: &[ShardId], to: NodeId) -> Result<Moved, MoveError> {
        debug_assert!(
            shards.len() <= MOST_AT_ONCE,
            "I76: one message names all shards of a hand-over"
        );
        let owned = self.owned(shards)?;
        if to == self.node.id || owned.is_empty() {
            return Ok(Moved { interruption: Duration::ZERO, stragglers: 0 });
        }
        let transfers = owned.iter().map(|(shard, owner)| Transfer::new(*shard, *owner, to));
        let transfers: Vec<_> = transfers.collect::<Option<_>>().ok_or(MoveError::Exhausted)?;
        self.tell(to, &[], self.patience()).await.map_err(|()| MoveError::Unreachable)?;
        let me = self.node.id.0;
        point!(me, ReceiverAsked, with to.0);
        let since = self.executor.now();
        if !broken(Rule::OwnersStopFirst) {
            for (index, (shard, owner)) in owned.iter().enumerate() {
                if !self.node.shards.stop(*shard, *owner) {
                    self.resume(&owned[..index]);
                    return Err(MoveError::NotOwner(*shard));
                }
            }
        }
        self.end_waits(shards);
        point!(me, GrantsStopped, with to.0);
        let drained = self.drain(shards, since).await;
        if !broken(Rule::TheMovedAreForgotten) {
            // Also after a failure: writers that met the stop have not renewed their cached rows.
            shards.iter().for_each(|shard| self.node.versions.forget_shard(*shard));
        }
        let stragglers = match drained {
            Ok(stragglers) => stragglers,
            Err(error) => {
                self.resume(&owned);
                return Err(error);
            }
        };
        if !self.node.members.may_receive(to) {
            self.resume(&owned);
            return Err(MoveError::Unreachable);
        }
        point!(me, Drained, with to.0);
        debug_assert!(
            self.handover_target.get().is_none(),
            "I147: a node gives to one receiver at a time"
        );
        self.handover_target.set(Some(to));
        let given = self.give(&transfers).await;
        self.handover_target.set(None);
        let given = given?;
        point!(me, Given, with to.0);
        if let Some(lost) = given.iter().position(|given| !given) {
            return Err(MoveError::NotOwner(shards[lost]));
        }
        // Without an answer, the receiver learns from the words in the memory pool.
        let briefly = RetryPolicy::constant(ASK_AGAIN, 10);
        let _ = self.tell(to, &transfers, briefly).await;
        point!(me, ReceiverTold, with to.0);
        Ok(Moved { interruption: since_then(since, self.executor.now()), stragglers })
    }

    /// Shards with their owner entries; an error if a shard has a different owner.
    fn owned(&self, shards: &[ShardId]) -> Result<Vec<(ShardId, Owner)>, MoveError> {
        let owned = shards.iter().map(|shard| {
            let owner = self.node.shards.owner(*shard);
            let mine = owner.node == self.node.id;
            if mine { Ok((*shard, owner)) } else { Err(MoveError::NotOwner(*shard)) }
        });
        owned.collect()
    }

    fn resume(&self, owned: &[(ShardId, Owner)]) {
        for (shard, owner) in owned {
            self.node.shards.resume(*shard, *owner);
        }
    }

    /// Ends the waits for locks of the shards, after this node has stopped granting them: the
    /// waiting requests go to the receiver (I254).
    fn end_waits(&self, shards: &[ShardId]) {
        if !broken(Rule::HandOversAnswerTheParked) {
            let moves = |_, name: &LockKey| shards.contains(&name.shard());
            self.node.locks.dismiss(WaitOutcome::Moved, moves);
        }
    }

    /// Waits until no lock of the shards is held; returns the number of attempts asked to give up.
    async fn drain(&self, shards: &[ShardId], since: Nanos) -> Result<usize, MoveError> {
        let config = &self.shared.config;
        let mut asked: Vec<TxnId> = Vec::new();
        loop {
            let holders = self.node.locks.holders_in(shards);
            let waited = since_then(since, self.executor.now());
            let held = if broken(Rule::HandOversDrain) { 0 } else { holders.len() };
            match next_step(held, waited, config.drain_patience, config.lock_timeout) {
                DrainStep::Publish => return Ok(asked.len()),
                DrainStep::GiveUp => return Err(MoveError::Held),
                DrainStep::Wait => {}
                DrainStep::AskToYield => self.ask_to_yield(&holders, &mut asked).await,
            }
            if self.node.has_failed() {
                return Err(MoveError::Failed);
            }
            self.executor.sleep(LOOK_AGAIN).await;
        }
    }

    /// Asks the holders to give up, and releases the locks of holders that have given up.
    async fn ask_to_yield(&self, holders: &[Holder], asked: &mut Vec<TxnId>) {
        let mut calls: Vec<(Endpoint, Vec<TxnId>)> = Vec::new();
        for holder in holders {
            let Some(at) = self.endpoint_of(holder.txn) else { continue };
            match calls.iter_mut().find(|(known, _)| *known == at) {
                Some((_, txns)) if !txns.contains(&holder.txn) => txns.push(holder.txn),
                Some(_) => {}
                None => calls.push((at, vec![holder.txn])),
            }
        }
        let ask = |(at, txns): (Endpoint, Vec<TxnId>)| -> (Vec<TxnId>, PendingCall) {
            let names = txns.iter().map(|txn| txn.raw());
            let words: Vec<u64> = [YIELD].into_iter().chain(names).collect();
            let once = RetryPolicy::constant(ASK_AGAIN, 1);
            (txns, self.rpc.call(at, SERVICE, &encode(&words), once))
        };
        let calls: Vec<_> = calls.into_iter().map(ask).collect();
        for (txns, call) in calls {
            for txn in &txns {
                if !asked.contains(txn) {
                    asked.push(*txn);
                }
            }
            // Without an answer nothing is released; the next round asks again.
            let Some(yielded) = call.await.ok().and_then(|reply| decode(&reply)) else { continue };
            point!(self.node.id.0, AskedToYield);
            let yielded = yielded.iter().skip(1).zip(&txns).filter(|(said, _)| **said != 0);
            for (_, txn) in yielded {
                for held in holders.iter().filter(|holder| holder.txn == *txn) {
                    self.node.locks.unlock(*txn, &held.name);
                }
            }
        }
    }

    /// Coordinator that runs an attempt.
    fn endpoint_of(&self, txn: TxnId) -> Option<Endpoint> {
        let config = &self.shared.config;
        let node = self.node.members.node_of(txn.incarnation())?;
        let slot = usize::from(txn.slot());
        // Each coordinator has a private slot, numbered after the application slots.
        let own = slot.checked_sub(config.threads * config.coroutines);
        let thread = own.unwrap_or(slot / config.coroutines);
        Some(Endpoint { node, lane: LaneId(thread as u16) })
    }

    /// Whether an attempt has finished writing under its locks: it is over, or will not commit.
    fn yields(&self, txn: TxnId) -> bool {
        if txn.incarnation() != self.node.incarnation {
            return false;
        }
        let attempts = self.attempts.borrow();
        let of = attempts.iter().filter_map(Weak::upgrade).find(|one| one.slot == txn.slot());
        of.is_some_and(|attempts| attempts.yields(txn))
    }

    /// Patience for messages awaited by this coordinator only: the receiver may be in a process
    /// waiting for a core.
    pub(crate) fn patience(&self) -> RetryPolicy {
        let tries = self.shared.config.lock_timeout.as_nanos() / ASK_AGAIN.as_nanos();
        RetryPolicy::constant(ASK_AGAIN, (tries as u32).max(10))
    }

    /// Tells a node of the shards given to it; without transfers, only asks whether the node is
    /// there.
    async fn tell(
        &self,
        to: NodeId,
        transfers: &[Transfer],
        patience: RetryPolicy,
    ) -> Result<(), ()> {
        debug_assert!(
            transfers.iter().all(|one| one.to.node == to),
            "I76: a receiver is told of its own shards"
        );
        let pair = |one: &Transfer| [u64::from(one.shard.raw()), one.to.to_word()];
        let words: Vec<u64> = [TAKE].into_iter().chain(transfers.iter().flat_map(pair)).collect();
        let at = Endpoint { node: to, lane: LaneId(0) };
        let once = RetryPolicy { tries: 1, ..patience };
        for _ in 0..patience.tries {
            if !self.node.members.may_receive(to) {
                break;
            }
            if self.rpc.call(at, SERVICE, &encode(&words), once).await.is_ok() {
                return Ok(());
            }
        }
        Err(())
    }
}

/// Time since `since`; zero if the clock was set back.
fn since_then(since: Nanos, now: Nanos) -> Duration {
    Duration::from_nanos(now.0.saturating_sub(since.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stragglers_are_asked_and_nothing_is_taken_from_anybody() {
        let ms = Duration::from_millis;
        // (locks held, waited, what next)
        let cases = [
            (0, ms(0), DrainStep::Publish),
            (0, ms(99), DrainStep::Publish),
            (1, ms(0), DrainStep::Wait),
            (1, ms(9), DrainStep::Wait),
            (1, ms(10), DrainStep::AskToYield),
            (7, ms(49), DrainStep::AskToYield),
            (1, ms(50), DrainStep::GiveUp),
        ];
        for (held, waited, step) in cases {
            assert_eq!(next_step(held, waited, ms(10), ms(50)), step, "{held} for {waited:?}");
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        assert_eq!(decode(&encode(&[TAKE, 7])), Some(vec![TAKE, 7]));
        assert_eq!(decode(&[1, 2, 3]), None);
        assert_eq!(answer(&Weak::new(), &encode(&[TAKE])), None);
    }
}
