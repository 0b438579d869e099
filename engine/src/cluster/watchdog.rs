//! Watch for application code that holds up coordinators' threads.
//!
//! # What it is
//! A separate thread, if coordinators are threads. Periodically the watchdog looks at the
//! coordinators ([`crate::node::threads::poll_tracker`]). If a coordinator has been in the same
//! poll of a job's code for a second, the log names the job.
//!
//! Coordinator 0 also beats for its node ([`crate::membership::watch`]). While code of one job, or
//! of many jobs by turns, holds up coordinator 0, the watchdog beats instead: the node is alive,
//! and its promises hold. So neither a transaction that computes for seconds, or blocks on a file,
//! nor an overloaded processor costs the cluster a node.
//!
//! # What it is not
//! A way to seem healthy. A held-up coordinator answers no peer, and takes no note of lost nodes.
//! Requests to the coordinator end by their time-outs; but a change of the membership waits for
//! every member. So after [`Config::block_limit`](crate::Config::block_limit), or a few leases when
//! other members wait for this node, the watchdog gives the node up, as if the node had been
//! expelled: the other members then recover the node's transactions and take over the shards.
//! Without other members the node goes on as before. If no job's code is to blame, the watchdog
//! only stops beating at the limit, and leaves the rest to the other members: the whole process may
//! have stood still.
//!
//! Code cannot block a simulated core, so a simulation has no watchdog.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, mem};

use async_channel::{Receiver, Sender};
use lotus_fabric::env::Nanos;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::Incarnation;
use lotus_fabric::verbs::VerbError;
use lotus_recovery::Membership;
use lotus_recovery::membership::{self, Member};

use crate::api::coordinator_id::{CoordinatorId, HeldUp};
use crate::membership::members::beat_word;
use crate::node::shared::{ComputeNode, Shared};
use crate::node::threads::home::Name;
use crate::node::threads::poll_tracker::PollId;

/// Time between two looks: as many looks as beats in a lease, within the bounds of `LOOKS`.
const LOOKS_PER_LEASE: u32 = 8;
const LOOKS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
/// Time after which the log names code that holds up a thread.
const WARN: Duration = Duration::from_secs(1);
/// Part of a lease after which coordinator 0 misses beats.
const MISSED: u32 = 4;
/// Leases for which other members may wait for a held-up node.
const AWAITED_LEASES: u32 = 4;

/// Decision about a held-up node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WatchdogAction {
    Nothing,
    /// Beat in place of coordinator 0.
    Beat,
    /// Give the node up.
    GiveUp,
}

/// State of a held-up node that matters for its lease.
#[derive(Clone, Copy, Debug)]
struct HeldUpState {
    /// Longest time for which a coordinator is held up, and the time for coordinator 0.
    longest: Duration,
    of_first: Duration,
    /// Time since coordinator 0's last turn to beat, whatever the cause of the delay.
    late: Duration,
    /// Whether other members wait for this node, and whether other members exist.
    is_awaited: bool,
    has_others: bool,
}

/// Decides whether the watchdog beats for the node, or gives it up.
fn watchdog_action(state: HeldUpState, lease: Duration, limit: Duration) -> WatchdogAction {
    let HeldUpState { longest, of_first, late, is_awaited, has_others } = state;
    let limit = if is_awaited { limit.min(lease * AWAITED_LEASES) } else { limit };
    if has_others && longest >= limit {
        WatchdogAction::GiveUp
    } else if of_first >= lease / MISSED || (lease / MISSED..limit).contains(&late) {
        WatchdogAction::Beat
    } else {
        WatchdogAction::Nothing
    }
}

/// Handle of the watchdog's thread; see the module's documentation. Dropping the handle ends the
/// thread.
pub(super) struct Watchdog {
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
    cluster: Name,
}

impl Watchdog {
    pub(super) fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let (stop, stopped) = async_channel::bounded(1);
        let (cluster, of) = (Name::of(Arc::as_ptr(shared)), Arc::clone(shared));
        let env = shared.control.env();
        let thread = env.spawn("lotus-watchdog", move || Round::new(&of).go(&stopped))?;
        Ok(Self { stop, thread: Some(thread), cluster })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.close();
        if let Some(thread) = self.thread.take()
            && !self.cluster.is_forked()
        {
            // Nothing depends on a watchdog that has panicked.
            let _ = thread.join();
        }
    }
}

/// State of one coordinator at the last look.
#[derive(Clone, Debug)]
struct SeenPoll {
    life: Incarnation,
    coordinator_id: CoordinatorId,
    inside: PollId,
    since: Nanos,
    told: bool,
}

/// Looks at all coordinators, round after round.
struct Round<'a> {
    shared: &'a Shared,
    seen: Vec<SeenPoll>,
}

impl<'a> Round<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self { shared, seen: Vec::new() }
    }

    fn go(mut self, stopped: &Receiver<()>) {
        let shared = self.shared;
        let lease = shared.config.lease;
        let look = lease.map_or(LOOKS.1, |lease| lease / LOOKS_PER_LEASE);
        let look = look.clamp(LOOKS.0, LOOKS.1);
        let mut executor = Executor::new(shared.control.env().clone());
        let handle = executor.handle().clone();
        while !stopped.is_closed() {
            executor.run(async {
                let (mut stop, mut pause) = (pin!(stopped.recv()), pin!(handle.sleep(look)));
                poll_fn(|cx| match stop.as_mut().poll(cx) {
                    Poll::Ready(_) => Poll::Ready(()),
                    Poll::Pending => pause.as_mut().poll(cx),
                })
                .await;
            });
            for node in &shared.nodes {
                let held_up = self.look_at(&node, handle.now());
                if let Some(lease) = lease
                    && !node.has_failed()
                {
                    self.keep(&node, &held_up, lease, handle.now());
                }
            }
        }
    }

    /// Returns the held-up coordinators of a node.
    fn look_at(&mut self, node: &Arc<ComputeNode>, now: Nanos) -> Vec<HeldUp> {
        let (before, others) = mem::take(&mut self.seen)
            .into_iter()
            .partition(|seen: &SeenPoll| seen.coordinator_id.compute_node == node.index);
        self.seen = others;
        let mut held_up = Vec::new();
        for (thread, current_poll) in node.current_polls.iter().enumerate() {
            let coordinator_id = CoordinatorId { compute_node: node.index, thread };
            let is_it = |seen: &&SeenPoll| {
                seen.coordinator_id == coordinator_id && seen.life == node.incarnation
            };
            let before: Option<&SeenPoll> = before.iter().find(is_it);
            let inside = current_poll.inside();
            let same = before.filter(|seen| Some(seen.inside) == inside);
            if let Some(over) = before.filter(|seen| seen.told && same.is_none()) {
                let held_for = now.since(over.since);
                tracing::warn!(compute_node = node.index, thread, ?held_for, "it goes on");
            }
            let Some(inside) = inside else { continue };
            let first = SeenPoll {
                life: node.incarnation,
                coordinator_id,
                inside,
                since: now,
                told: false,
            };
            let mut seen = same.cloned().unwrap_or(first);
            let since = now.since(seen.since);
            let what = current_poll.label(inside);
            if since >= WARN && !seen.told {
                seen.told = true;
                tracing::warn!(
                    compute_node = node.index,
                    thread,
                    ?since,
                    "{what} blocks the thread of a coordinator: all other transactions there wait"
                );
            }
            if same.is_some() {
                held_up.push(HeldUp { coordinator_id, what, since });
            }
            self.seen.push(seen);
        }
        let mut all = self.shared.held_up.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.coordinator_id.compute_node != node.index);
        all.extend(held_up.iter().cloned());
        held_up
    }

    /// Keeps a held-up node among the members, or gives the node up.
    fn keep(&self, node: &Arc<ComputeNode>, held_up: &[HeldUp], lease: Duration, at: Nanos) {
        let longest = held_up.iter().map(|one| one.since).max().unwrap_or_default();
        let first = held_up.iter().find(|one| one.coordinator_id.thread == 0);
        let of_first = first.map(|one| one.since).unwrap_or_default();
        let late = node.members.since_turn(at);
        if longest.max(late) < lease / MISSED {
            return;
        }
        // Without an answer the watchdog does not beat either.
        let Ok(now) = membership::read(self.shared.async_authority.authority()) else { return };
        if !node.takes_part_in(&now) {
            return node.expel();
        }
        let me = now.member(node.id);
        let behind = |me: &Member| me.acknowledged < now.epoch() || me.stopped < now.reduced();
        let state = HeldUpState {
            longest,
            of_first,
            late,
            is_awaited: me.is_some_and(behind),
            has_others: now.live().any(|other| other.node != node.id),
        };
        match watchdog_action(state, lease, self.shared.config.block_limit) {
            WatchdogAction::Nothing => {}
            WatchdogAction::Beat => self.beat(node, &now),
            WatchdogAction::GiveUp => {
                let what = held_up.iter().max_by_key(|one| one.since).map(|one| &*one.what);
                tracing::error!(
                    compute_node = node.index,
                    ?longest,
                    "{} has blocked the thread of a coordinator for too long: its compute node \
                     gives itself up, and the others take its place",
                    what.unwrap_or("a job")
                );
                node.expel();
            }
        }
    }

    /// Beats on all memory nodes in use, with the node's own access epoch, so that a fence stops
    /// these beats too.
    fn beat(&self, node: &Arc<ComputeNode>, now: &Membership) {
        debug_assert!(!node.has_failed(), "I332: a node that has given itself up beats no more");
        let shared = self.shared;
        let (beat, in_use) = (node.next_beat(), now.kept(&shared.placement).nodes());
        let asked = shared.control.now();
        let beaten = shared.control.with_lane_of(node.id, node.epoch, |lane| async move {
            let mut batch = lane.batch();
            let places = shared.placement.primaries().enumerate();
            for (memory, _) in places.filter(|(_, memory)| in_use.contains(*memory)) {
                batch.write_word(beat_word(&shared.placement, memory, node.index), beat.word());
            }
            batch.post().await.map(drop)
        });
        match beaten {
            Ok(Ok(())) => node.members.note_beat(asked),
            Ok(Err(error)) => {
                if error.failures().iter().any(|failure| failure.error == VerbError::Revoked) {
                    node.expel();
                }
            }
            // The next look comes soon.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_held_up_beats_until_others_could_do_better_without_it() {
        let ms = Duration::from_millis;
        let (lease, limit) = (ms(400), ms(10_000));
        // (longest, of coordinator 0, late, awaited, with others, what to do), in milliseconds
        let cases = [
            (50, 50, 50, false, true, WatchdogAction::Nothing),
            (100, 100, 100, false, true, WatchdogAction::Beat),
            (5_000, 0, 0, false, true, WatchdogAction::Nothing),
            (5_000, 5_000, 5_000, false, true, WatchdogAction::Beat),
            (10_000, 10_000, 10_000, false, true, WatchdogAction::GiveUp),
            (10_000, 0, 0, false, true, WatchdogAction::GiveUp),
            (1_500, 1_500, 1_500, true, true, WatchdogAction::Beat),
            (1_600, 0, 0, true, true, WatchdogAction::GiveUp),
            (60_000, 60_000, 60_000, true, false, WatchdogAction::Beat),
            (60_000, 0, 0, true, false, WatchdogAction::Nothing),
            // Nobody's code to blame.
            (0, 0, 99, false, true, WatchdogAction::Nothing),
            (0, 0, 100, false, true, WatchdogAction::Beat),
            (20, 20, 9_999, false, true, WatchdogAction::Beat),
            (0, 0, 10_000, false, true, WatchdogAction::Nothing),
            (0, 0, 1_600, true, true, WatchdogAction::Nothing),
        ];
        for (longest, of_first, late, is_awaited, has_others, expected) in cases {
            let [longest, of_first, late] = [longest, of_first, late].map(ms);
            let state = HeldUpState { longest, of_first, late, is_awaited, has_others };
            assert_eq!(watchdog_action(state, lease, limit), expected, "{state:?}");
        }
        let [longest, of_first, late] = [1; 3].map(ms);
        let state = HeldUpState { longest, of_first, late, is_awaited: true, has_others: true };
        assert_eq!(
            watchdog_action(state, lease, ms(1)),
            WatchdogAction::GiveUp,
            "a limit of its own"
        );
    }
}
