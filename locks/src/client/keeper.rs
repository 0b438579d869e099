//! Locks as published that a keeper frees: the waiter's part, and the keeper's.
//!
//! In the paper, the keeper is the lock server. A memory node runs no code, so here the keeper is a
//! compute node: the member that comes first by a hash of memory node, epoch and member. The era is
//! in the word behind the lock, and an atomic raises it: the lock is freed once per era, also while
//! members do not agree on its keeper.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Endpoint, LaneId, RemoteAddr};
use lotus_fabric::rpc::{Responder, RetryPolicy};
use lotus_fabric::wide::{WIDE_BYTES, WideSwap, value_of};

use super::wire::{self, Message};
use super::{Core, GivenUp};
use crate::contract::{KeeperRules, LockSystem, NotHeld, Verb};

/// Patience with a keeper that is asked to free a lock.
const PATIENCE: RetryPolicy = RetryPolicy {
    retry_after: Duration::from_micros(200),
    retry_at_most: Duration::from_millis(1),
    tries: 4,
};

/// Last looks of the lane's waiters at locks, by slot.
#[derive(Default)]
pub(super) struct Watches(BTreeMap<u16, LastLook>);

struct LastLook {
    /// Number of releases, and era.
    seen: (u64, u64),
    /// Time at which the keeper is asked.
    due: Nanos,
}

impl Watches {
    /// Takes note of a look. Returns whether to ask the keeper.
    fn look(&mut self, slot: u16, seen: (u64, u64), now: Nanos, keeper_rules: KeeperRules) -> bool {
        let first = LastLook { seen, due: now.after(keeper_rules.patience) };
        let watch = self.0.entry(slot).or_insert(first);
        if watch.seen != seen {
            *watch = LastLook { seen, due: now.after(keeper_rules.patience) };
        }
        let is_due = now >= watch.due;
        if is_due {
            watch.due = now.after(keeper_rules.again);
        }
        is_due
    }

    /// Forgets the looks of a slot whose use has ended or begins.
    pub(super) fn forget(&mut self, slot: u16) {
        self.0.remove(&slot);
    }
}

impl<S: LockSystem> Core<S> {
    /// Looks at the lock of a waiter, and asks its keeper to free the lock if it is time. Returns
    /// the words of the lock.
    pub(super) async fn watch(
        self: &Rc<Self>,
        slot: u16,
        at: RemoteAddr,
        keeper_rules: KeeperRules,
    ) -> Result<[u64; 2], NotHeld> {
        // The era first: if the lock is of a later era, the lock has changed.
        let era = self.read_head(Self::era(at)).await?;
        let first = self.read_head(at).await?;
        let second = if S::WIDE { self.read_head(at.plus(8)).await? } else { 0 };
        let words = [first, second];
        let (seen, now) = (((keeper_rules.count)(words), era), self.lane.executor().now());
        if self.watches.borrow_mut().look(slot, seen, now, keeper_rules) {
            self.ask_keeper(at, era).await;
        }
        Ok(words)
    }

    /// The word of the era, behind the lock.
    fn era(at: RemoteAddr) -> RemoteAddr {
        at.plus(if S::WIDE { WIDE_BYTES as u64 } else { 8 })
    }

    /// Asks the keeper of a lock to free it, if `era` is the present era.
    async fn ask_keeper(self: &Rc<Self>, at: RemoteAddr, era: u64) {
        let Some((epoch, members)) = self.peers.members().await else { return };
        let keeper = members.into_iter().min_by_key(|member| {
            let mut hasher = DefaultHasher::new();
            (at.node().0, epoch.0, member.node.0).hash(&mut hasher);
            hasher.finish()
        });
        let Some(keeper) = keeper.map(|member| member.node) else { return };
        let to = Endpoint { node: keeper, lane: LaneId(0) };
        if to == self.lane.at() {
            self.keep(at, era as u32, None);
        } else {
            let request = wire::encode(Message::Suspected, at, era as u32);
            // The answer does not matter: the next look says whether the lock is free.
            let _ = self.rpc.call(to, self.service, &request, PATIENCE).await;
        }
    }

    /// The keeper's part: frees a lock, if `era` is the present era, and answers.
    pub(super) fn keep(self: &Rc<Self>, at: RemoteAddr, era: u32, request: Option<Responder>) {
        let Some(keeper_rules) = self.system.keeper_rules() else { return };
        let core = Rc::clone(self);
        self.lane.executor().spawn(async move {
            // An expelled node keeps no locks any more.
            let Ok(is_freed) = core.free_in(at, era, keeper_rules).await else { return };
            if let Some(request) = request {
                request.respond(&wire::encode_answer(u64::from(is_freed)));
            }
        });
    }

    async fn free_in(
        &self,
        at: RemoteAddr,
        era: u32,
        keeper_rules: KeeperRules,
    ) -> Result<bool, GivenUp> {
        let era = u64::from(era);
        let raise = Verb::Swap { expected: era, new: era + 1 };
        if self.verb(Self::era(at), raise).await? != Some(era) {
            return Ok(false);
        }
        loop {
            let first = self.read(at).await?;
            let second = if S::WIDE { self.read(at.plus(8)).await? } else { 0 };
            let found = [first, second];
            if self.replace(at, found, (keeper_rules.freed)(found)).await? {
                self.counts.borrow_mut().resets += 1;
                return Ok(true);
            }
        }
    }

    /// Replaces the words of a lock, if the words are as expected. Returns whether it has replaced
    /// the words.
    async fn replace(
        &self,
        at: RemoteAddr,
        expected: [u64; 2],
        new: [u64; 2],
    ) -> Result<bool, GivenUp> {
        if !S::WIDE {
            let swap = Verb::Swap { expected: expected[0], new: new[0] };
            return Ok(self.verb(at, swap).await? == Some(expected[0]));
        }
        let swap = WideSwap {
            compare: value_of(expected),
            compare_mask: u128::MAX,
            swap: value_of(new),
            swap_mask: u128::MAX,
        };
        let used = self.connections.current(at.node());
        let mut batch = self.lane.batch();
        let found = batch.wide_compare_and_swap(at, swap);
        match batch.post().await {
            Ok(done) => Ok(done.words(found) == expected),
            Err(_) => self.settle(at.node(), used).await.map(|()| false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: KeeperRules = KeeperRules {
        look: Duration::from_millis(5),
        patience: Duration::from_millis(30),
        again: Duration::from_millis(10),
        count: |[first, _]| first,
        freed: |words| words,
    };

    #[test]
    fn a_keeper_is_asked_when_nothing_happens_for_long_and_again_later() {
        let mut watches = Watches::default();
        let mut look = |seen, millis: u64| {
            watches.look(3, seen, Nanos(0).after(Duration::from_millis(millis)), RULES)
        };
        assert!(!look((7, 0), 0) && !look((7, 0), 29));
        assert!(!look((8, 0), 31), "a release");
        assert!(!look((8, 1), 60), "another era");
        assert!(!look((8, 1), 89) && look((8, 1), 90));
        assert!(!look((8, 1), 95) && look((8, 1), 100));
        watches.forget(3);
        let now = Nanos(0).after(Duration::from_millis(200));
        assert!(!watches.look(3, (8, 1), now, RULES), "another use");
    }
}
