//! A node's clock for the order of requests: microseconds since the last synchronisation, in 16
//! bits (DecLock §5.3).
//!
//! Nodes set their clocks together, by a counter on a memory node: a node adds one, and reads until
//! all members have added. The counter is never set back. The round follows from the count that a
//! node has found, so joining nodes and zeroed memory need no agreement. Wrong times only cost
//! fairness.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Epoch, RemoteAddr};
use lotus_locks::{Client, LockSystem};

use super::LocalClient;

/// Time between the ends of two rounds (DecLock §5.3).
const PERIOD: Duration = Duration::from_secs(1);
/// Time for which a node polls without a pause.
const SPIN: Duration = Duration::from_micros(100);
/// Time between two reads after [`SPIN`]: the precision with which a late round is noticed.
const LOOK: Duration = Duration::from_micros(50);
/// Time after which a node that waits for a round asks who the members are, and after which a node
/// tries again when the memory node does not answer.
const DOUBT: Duration = Duration::from_millis(10);

/// A node's clock.
#[derive(Debug, Default)]
pub struct Clock {
    /// Reading of the executor's clock when the node's clock was zero.
    zero: AtomicU64,
}

impl Clock {
    /// Returns the time when the executor's clock shows `now`.
    pub fn time(&self, now: Nanos) -> u16 {
        let since = now.0.wrapping_sub(self.zero.load(Ordering::Relaxed));
        (since / 1000) as u16
    }

    /// Sets the clock to zero when the executor's clock shows `now`.
    pub fn set(&self, now: Nanos) {
        self.zero.store(now.0, Ordering::Relaxed);
    }
}

/// The counters of a cluster, side by side. Every epoch of the membership has a separate counter;
/// after `count` epochs a counter is reused, with rounds that may end early.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    /// The first counter.
    pub base: RemoteAddr,
    /// Number of counters.
    pub count: u32,
}

impl Counters {
    /// Total size in bytes.
    pub const fn bytes(self) -> u64 {
        8 * self.count as u64
    }

    fn of(self, epoch: Epoch) -> RemoteAddr {
        self.base.plus(8 * u64::from(epoch.0 % self.count))
    }
}

/// Count at the end of a round, for a node that found `count` before adding one.
const fn end_of_round(count: u64, members: u64) -> u64 {
    (count / members + 1) * members
}

/// Sets a node's clock together with the other members' clocks, again and again; runs on a single
/// lane of the node. Ends when the node is expelled.
pub async fn synchronise<S: LockSystem>(client: LocalClient<S>, counters: Counters) {
    let flat = client.client();
    while !flat.is_expelled() {
        let pause = match flat.peers().members().await {
            None => DOUBT,
            Some((epoch, members)) => {
                let members = members.len().max(1) as u64;
                let round = Round { client: flat, word: counters.of(epoch), epoch, members };
                if round.take_part(client.table().clock()).await { PERIOD } else { DOUBT }
            }
        };
        flat.executor().sleep(pause).await;
    }
}

/// A node's part in a round.
struct Round<'a, S: LockSystem> {
    client: &'a Client<S>,
    word: RemoteAddr,
    epoch: Epoch,
    members: u64,
}

impl<S: LockSystem> Round<'_, S> {
    /// Takes part in a round. Returns whether the clock was set: not if the membership changes, or
    /// the memory node does not answer.
    async fn take_part(&self, clock: &Clock) -> bool {
        let executor = self.client.executor();
        let Some(found) = self.client.add_word(self.word).await else { return false };
        let end = end_of_round(found, self.members);
        let (mut count, began) = (found + 1, executor.now());
        let mut asked = began;
        while count < end {
            let now = executor.now();
            if now.since(began) >= SPIN {
                executor.sleep(LOOK).await;
            }
            if now.since(asked) >= DOUBT {
                asked = now;
                let members = self.client.peers().members().await;
                if members.is_some_and(|(epoch, _)| epoch != self.epoch) {
                    return false;
                }
            }
            match self.client.read_word(self.word).await {
                // The memory was zeroed.
                Some(less) if less < count => return false,
                Some(now) => count = now,
                None => return false,
            }
        }
        clock.set(executor.now());
        true
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;

    #[test]
    fn times_are_microseconds_and_come_round() {
        let clock = Clock::default();
        assert_eq!(clock.time(Nanos(1_999)), 1);
        clock.set(Nanos(5_000));
        assert_eq!(clock.time(Nanos(7_000)), 2);
        assert_eq!(clock.time(Nanos(5_000 + 65_536_000)), 0);
        // A clock that is set back.
        assert!(!lotus_locks::word::is_earlier(3, clock.time(Nanos(4_000))));
    }

    #[test]
    fn a_round_ends_when_all_have_come() {
        for (found, members, expected) in [(0, 3, 3), (2, 3, 3), (3, 3, 6), (7, 3, 9), (5, 1, 6)] {
            assert_eq!(end_of_round(found, members), expected, "{found} of {members}");
        }
    }
}
