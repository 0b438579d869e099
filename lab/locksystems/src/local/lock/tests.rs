//! Orders of events of one lock of a node, and what its clients are told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Wake;
use std::time::Duration;

use lotus_fabric::ids::{NodeId, RegionId};

use super::*;

const HOME: Home = Home { lane: 1, key: 7 };
const REMOTE: u16 = 100;

#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A lock, its policy, and the tickets of its requests, which count up.
struct World {
    lock: LocalLock,
    policy: Policy,
    next: Ticket,
    woken: Arc<Woken>,
}

impl World {
    fn new(policy: Policy) -> Self {
        let lock = LocalLock::new(RemoteAddr::new(NodeId(0), RegionId(0), 64));
        Self { lock, policy, next: 0, woken: Arc::default() }
    }

    /// The answer to a request at this time.
    fn ask_at(&mut self, mode: Mode, time: u16) -> (Ticket, Answer) {
        self.next += 1;
        let wish = QueuedRequest { mode, time };
        let answer = self.lock.request(self.policy, self.next, wish, true, || Nanos(0));
        (self.next, answer)
    }

    fn ask(&mut self, mode: Mode) -> (Ticket, Answer) {
        self.ask_at(mode, 0)
    }

    /// The first client asks, and its node is given the lock.
    fn taken(policy: Policy, mode: Mode, remote: Option<u16>) -> Self {
        let mut world = Self::new(policy);
        assert_eq!(world.ask(mode).1, Answer::Asks);
        let won = world.lock.won(policy, mode, HOME, remote, Nanos(0));
        assert!(won.is_asker && won.gives_up.is_none());
        world
    }

    fn waits(&mut self, mode: Mode, time: u16) -> Ticket {
        let (ticket, answer) = self.ask_at(mode, time);
        assert!(matches!(answer, Answer::Waits { .. }), "{answer:?}");
        ticket
    }

    fn waiter_state(&mut self, ticket: Ticket) -> WaiterState {
        let waker = Waker::from(Arc::clone(&self.woken));
        self.lock.waiter_state(ticket, &waker)
    }

    fn leave(&mut self) -> Option<Home> {
        let outcome = self.lock.leave(self.policy);
        outcome.wakes.into_iter().for_each(Waker::wake);
        outcome.gives_up
    }

    fn released(&mut self) {
        self.lock.released(self.policy).wakes.into_iter().for_each(Waker::wake);
    }
}

const S: Mode = Mode::Shared;
const X: Mode = Mode::Exclusive;

#[test]
fn the_first_asks_and_a_neighbour_is_handed_the_lock() {
    let mut world = World::taken(Policy::LocalPrefer, X, None);
    let next = world.waits(X, 0);
    assert_eq!(world.waiter_state(next), WaiterState::Waits);
    assert_eq!(world.leave(), None);
    assert_eq!(world.woken.0.load(Ordering::Relaxed), 1);
    assert_eq!(world.waiter_state(next), WaiterState::Holds);
    assert_eq!(world.leave(), Some(HOME));
    world.released();
    assert!(world.lock.is_unused());
}

#[test]
fn a_lock_is_given_up_before_the_next_of_another_mode_asks() {
    let mut world = World::taken(Policy::LocalPrefer, X, None);
    let (reader, writer) = (world.waits(S, 0), world.waits(X, 0));
    assert_eq!(world.leave(), Some(HOME));
    // Not before it is given up.
    assert_eq!(world.waiter_state(reader), WaiterState::Waits);
    assert!(matches!(world.ask(S).1, Answer::Waits { .. }));
    world.released();
    assert_eq!(
        (world.waiter_state(reader), world.waiter_state(writer)),
        (WaiterState::Asks, WaiterState::Waits)
    );
}

#[test]
fn readers_join_until_a_writer_waits_or_the_lock_is_closed() {
    let mut world = World::taken(Policy::TsPf, S, None);
    assert_eq!(world.ask(S).1, Answer::Joins { looks: false });
    world.lock.close();
    let late = world.waits(S, 0);
    assert_eq!(world.leave(), None);
    assert_eq!(world.leave(), Some(HOME), "it is closed");
    world.released();
    assert_eq!(world.waiter_state(late), WaiterState::Asks);
    world.lock.won(world.policy, S, HOME, None, Nanos(0));
    assert_eq!(world.ask(S).1, Answer::Joins { looks: false }, "it is another time");
    world.waits(X, 0);
    world.waits(S, 0);
}

#[test]
fn a_reader_looks_every_sixteenth_time_and_after_a_while() {
    let mut world = World::taken(Policy::TsPf, S, None);
    let looks: Vec<bool> =
        (0..32).map(|_| matches!(world.ask(S).1, Answer::Joins { looks: true })).collect();
    let expected: Vec<bool> = (1..=32).map(|number| number % 16 == 0).collect();
    assert_eq!(looks, expected);
    let wish = QueuedRequest { mode: S, time: 0 };
    let later = || Nanos(0).after(Duration::from_micros(20));
    let answer = world.lock.request(world.policy, 99, wish, true, later);
    assert_eq!(answer, Answer::Joins { looks: true });
}

#[test]
fn times_decide_between_neighbours_and_other_nodes() {
    for (time, keeps) in [(REMOTE - 1, true), (REMOTE + 1, false)] {
        let mut world = World::taken(Policy::TsTf, X, Some(REMOTE));
        let next = world.waits(X, time);
        assert_eq!(world.leave().is_none(), keeps);
        assert_eq!(world.waiter_state(next) == WaiterState::Holds, keeps);
    }
    // What was read while it waits counts, and the earlier of two.
    let mut world = World::taken(Policy::TsPf, X, None);
    let (_, answer) = world.ask_at(X, REMOTE);
    assert_eq!(answer, Answer::Waits { prefetches: true });
    assert_eq!(world.ask_at(X, REMOTE).1, Answer::Waits { prefetches: false });
    world.lock.note(Some(REMOTE - 1));
    world.lock.note(Some(REMOTE + 9));
    assert_eq!(world.leave(), Some(HOME));
}

#[test]
fn the_bound_is_kept() {
    for most in 1..5 {
        let mut world = World::taken(Policy::LocalBound(most), X, None);
        let waiters: Vec<Ticket> = (0..10).map(|_| world.waits(X, 0)).collect();
        let mut handed = 0;
        while world.leave().is_none() {
            assert_eq!(world.waiter_state(waiters[handed as usize]), WaiterState::Holds);
            handed += 1;
        }
        assert_eq!(handed, most);
        let mut world = World::taken(Policy::LocalBound(most), S, None);
        let joins = |answer| matches!(answer, Answer::Joins { .. });
        let joined = (0..10).filter(|_| joins(world.ask(S).1)).count();
        assert_eq!(joined, most as usize);
    }
}

/// A writer that waits is passed by one phase of readers at most, whichever come meanwhile.
#[test]
fn one_phase_of_readers_passes_a_writer() {
    let mut world = World::taken(Policy::TsPf, X, Some(REMOTE));
    let writers = [REMOTE + 1, REMOTE + 2].map(|time| world.waits(X, time));
    let readers = [REMOTE + 3, REMOTE + 4].map(|time| world.waits(S, time));
    for phase in 0..2 {
        // A writer leaves, for the sake of another node; the readers are next, if there are any.
        assert_eq!(world.leave(), Some(HOME));
        world.released();
        if phase == 0 {
            assert_eq!(world.waiter_state(readers[0]), WaiterState::Asks);
            let won = world.lock.won(world.policy, S, HOME, Some(REMOTE), Nanos(0));
            assert!(won.is_asker);
            assert_eq!(world.waiter_state(readers[1]), WaiterState::Holds);
            // More readers come, and wait for the next phase.
            world.waits(S, REMOTE + 5);
            assert_eq!(world.leave(), None);
            assert_eq!(world.leave(), Some(HOME));
            world.released();
        }
        if phase == 0 {
            assert_eq!(
                world.waiter_state(writers[0]),
                WaiterState::Asks,
                "a writer after the readers"
            );
            world.lock.won(world.policy, X, HOME, Some(REMOTE), Nanos(0));
        }
    }
    assert_eq!(
        world.waiter_state(writers[1]),
        WaiterState::Waits,
        "the readers that came meanwhile"
    );
}

#[test]
fn a_request_of_the_node_outlives_the_one_that_made_it() {
    let mut world = World::new(Policy::TsPf);
    assert_eq!(world.ask(X).1, Answer::Asks);
    let (reader, next) = (world.waits(S, 0), world.waits(X, 0));
    let (goes_on, _) = world.lock.desert(world.policy, true);
    assert!(goes_on, "another wants it in that mode");
    let won = world.lock.won(world.policy, X, HOME, None, Nanos(0));
    assert!(!won.is_asker && won.gives_up.is_none());
    assert_eq!(
        (world.waiter_state(next), world.waiter_state(reader)),
        (WaiterState::Holds, WaiterState::Waits)
    );
}

#[test]
fn a_request_that_none_wants_ends_or_is_a_ghost() {
    let mut world = World::new(Policy::TsPf);
    world.ask(X);
    let reader = world.waits(S, 0);
    let (goes_on, _) = world.lock.desert(world.policy, false);
    assert!(goes_on, "it has a place in a queue");
    let won = world.lock.won(world.policy, X, HOME, None, Nanos(0));
    assert_eq!(won.gives_up, Some(HOME));
    world.released();
    assert_eq!(world.waiter_state(reader), WaiterState::Asks);
    let (goes_on, _) = world.lock.desert(world.policy, true);
    assert!(!goes_on && world.lock.is_unused());
}

#[test]
fn waiters_give_up_wherever_they_are() {
    let mut world = World::taken(Policy::LocalPrefer, X, None);
    let tickets: Vec<Ticket> = (0..4).map(|_| world.waits(X, 0)).collect();
    assert_eq!(world.lock.cancel(world.policy, tickets[0]).0, WaiterState::Waits);
    assert_eq!(world.leave(), None);
    assert_eq!(world.lock.cancel(world.policy, tickets[1]).0, WaiterState::Holds);
    // It has to leave.
    assert_eq!(world.leave(), None);
    world.lock.close();
    assert_eq!(world.waiter_state(tickets[2]), WaiterState::Holds);
    assert_eq!(world.leave(), Some(HOME));
    world.released();
    let (waiter_state, _) = world.lock.cancel(world.policy, tickets[3]);
    assert_eq!(waiter_state, WaiterState::Asks);
    assert!(world.lock.is_unused());
}

#[test]
fn what_ends_a_node_is_told_to_all_and_what_ends_a_lane_to_one() {
    let mut world = World::new(Policy::TsPf);
    world.ask(X);
    let next = world.waits(X, 0);
    world.lock.lost(world.policy, NotHeld::TooMany);
    assert_eq!(world.waiter_state(next), WaiterState::Asks);
    let other = world.waits(X, 0);
    world.lock.lost(world.policy, NotHeld::Unavailable);
    assert!(!world.lock.is_unused(), "it is not told yet");
    assert_eq!(world.ask(X).1, Answer::Asks, "a new request tries");
    world.lock.lost(world.policy, NotHeld::Unavailable);
    assert_eq!(world.waiter_state(other), WaiterState::Failed(NotHeld::Unavailable));
    assert!(world.lock.is_unused());
}

#[test]
fn a_stronger_lock_than_was_asked_for_is_of_one() {
    let mut world = World::new(Policy::TsPf);
    world.ask(S);
    let other = world.waits(S, 0);
    let won = world.lock.won(world.policy, X, HOME, None, Nanos(0));
    assert!(won.is_asker);
    assert_eq!(world.waiter_state(other), WaiterState::Waits);
    assert_eq!(world.leave(), Some(HOME));
    world.released();
    assert_eq!(world.waiter_state(other), WaiterState::Asks);
}

#[test]
fn who_does_not_wait_is_refused() {
    let mut world = World::taken(Policy::TsPf, X, None);
    let wish = QueuedRequest { mode: X, time: 0 };
    let answer = world.lock.request(world.policy, 9, wish, false, || Nanos(0));
    assert_eq!(answer, Answer::Refused);
    assert_eq!(world.leave(), Some(HOME));
}
