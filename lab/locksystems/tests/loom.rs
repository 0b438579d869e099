//! The locks of a node under every interleaving of a few lanes, up to three preemptions.
//!
//! `RUSTFLAGS="--cfg lotus_loom" cargo test -p lotus-locksystems --test loom`
//!
//! The lock protects two words that are read and written without any ordering of their own, and
//! another one says whether the node has the lock: where a client holds it without its node, or
//! beside another, the model finds a run in which that shows. A lane that is not woken makes a run
//! without an end, which the model reports.
#![cfg(lotus_loom)]

use std::task::{Wake, Waker};

use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::sync::{Arc, Notify};
use loom::thread;
use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{NodeId, RegionId, RemoteAddr};
use lotus_locks::Mode;
use lotus_locksystems::local::{
    Answer, Home, LocalTable, LockEffects, Policy, QueuedRequest, WaiterState,
};

fn lock() -> RemoteAddr {
    RemoteAddr::new(NodeId(0), RegionId(0), 64)
}

struct World {
    table: LocalTable,
    /// Mode in which the node has the lock: 0 if it has not, 1 to read, 2 to write.
    remote: AtomicU32,
    data: [AtomicU32; 2],
}

struct Sleeper(Notify);

impl Wake for Sleeper {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.notify();
    }
}

/// One lane with one client.
struct Lane<'a> {
    world: &'a World,
    number: u16,
    sleeper: std::sync::Arc<Sleeper>,
}

impl<'a> Lane<'a> {
    fn new(world: &'a World, number: u16) -> Self {
        Self { world, number, sleeper: std::sync::Arc::new(Sleeper(Notify::new())) }
    }

    fn waker(&self) -> Waker {
        Waker::from(std::sync::Arc::clone(&self.sleeper))
    }

    /// Asks the memory node, which grants the lock to the node.
    fn take(&self, mode: Mode) {
        let held = self.world.remote.swap(if mode == Mode::Shared { 1 } else { 2 }, Relaxed);
        assert_eq!(held, 0, "a node asks for a lock once");
        let home = Home { lane: self.number, key: 0 };
        let won = self.world.table.won(lock(), mode, home, None, Nanos(0));
        assert!(won.is_asker);
    }

    fn give_up(&self) {
        assert_ne!(self.world.remote.swap(0, Relaxed), 0, "a lock is given up once");
        self.world.table.released(lock());
    }

    fn leave(&self) {
        match self.world.table.leave(lock()) {
            Some(home) if home.lane == self.number => self.give_up(),
            Some(home) => self.world.table.order(home),
            None => {}
        }
    }

    /// Does what other lanes ask for.
    fn obey(&self) {
        for _ in self.world.table.orders(self.number, &self.waker()) {
            self.give_up();
        }
    }

    fn acquire(&self, mode: Mode) {
        let (ticket, table) = (u64::from(self.number), &self.world.table);
        let wish = QueuedRequest { mode, time: 0 };
        match table.request(lock(), ticket, wish, true, || Nanos(0)) {
            Answer::Asks => return self.take(mode),
            Answer::Joins { .. } => return,
            Answer::Waits { .. } | Answer::Refused => {}
        }
        loop {
            self.obey();
            match table.waiter_state(lock(), ticket, &self.waker()) {
                WaiterState::Holds => return,
                WaiterState::Asks => return self.take(mode),
                WaiterState::Waits => self.sleeper.0.wait(),
                WaiterState::Failed(why) => panic!("{why}"),
            }
        }
    }

    fn read(&self) -> u32 {
        let [one, other] = [0, 1].map(|index: usize| self.world.data[index].load(Relaxed));
        assert_eq!(one, other, "a writer was seen at work");
        assert_ne!(self.world.remote.load(Relaxed), 0, "the node has not got the lock");
        one
    }

    fn write_once(&self) {
        self.acquire(Mode::Exclusive);
        let next = self.read() + 1;
        self.world.data.iter().for_each(|word| word.store(next, Relaxed));
        self.leave();
    }

    fn read_once(&self) {
        self.acquire(Mode::Shared);
        self.read();
        self.leave();
    }
}

fn writes(lane: &Lane<'_>) {
    lane.write_once();
}

fn reads(lane: &Lane<'_>) {
    lane.read_once();
}

/// Explores lanes that do this, each in a thread of its own. Afterwards each does what it was told.
fn explore(policy: Policy, lanes: &'static [fn(&Lane<'_>)]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let table = LocalTable::with_stripes(policy, lanes.len() as u16, 1);
        let data = [0, 0].map(AtomicU32::new);
        let world = Arc::new(World { table, remote: AtomicU32::new(0), data });
        let threads: Vec<_> = (0..lanes.len())
            .map(|number| {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    let lane = Lane::new(&world, number as u16);
                    lanes[number](&lane);
                    // A lane lives for as long as others may tell it something.
                    while world.table.count() > 0 {
                        lane.obey();
                        thread::yield_now();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(world.remote.load(Relaxed), 0, "the node has given it up");
    });
}

#[test]
fn two_writers_of_a_node_exclude_each_other() {
    for policy in [Policy::RemotePrefer, Policy::LocalPrefer] {
        explore(policy, &[writes, writes]);
    }
}

#[test]
fn readers_join_and_the_last_one_gives_the_lock_up() {
    explore(Policy::TsPf, &[reads, reads]);
    explore(Policy::TsTf, &[reads, writes]);
}

/// A waiter that gives up in the very moment in which it is handed the lock has to leave it.
#[test]
fn a_waiter_that_gives_up_leaves_what_it_was_handed() {
    fn gives_up(lane: &Lane<'_>) {
        let (ticket, table) = (u64::from(lane.number), &lane.world.table);
        let wish = QueuedRequest { mode: Mode::Exclusive, time: 0 };
        match table.request(lock(), ticket, wish, true, || Nanos(0)) {
            Answer::Asks => lane.take(Mode::Exclusive),
            Answer::Waits { .. } if !table.cancel(lock(), ticket) => return,
            _ => {}
        }
        lane.leave();
    }
    explore(Policy::LocalPrefer, &[gives_up, writes]);
}

/// A request that was deserted goes to another lane.
#[test]
fn a_request_that_is_deserted_goes_to_the_next() {
    fn deserts(lane: &Lane<'_>) {
        let (ticket, table) = (u64::from(lane.number), &lane.world.table);
        let wish = QueuedRequest { mode: Mode::Exclusive, time: 0 };
        match table.request(lock(), ticket, wish, true, || Nanos(0)) {
            Answer::Asks => {
                if table.desert(lock(), true) {
                    // It goes on, on behalf of another one.
                    lane.world.remote.store(2, Relaxed);
                    let home = Home { lane: lane.number, key: 0 };
                    let won = table.won(lock(), Mode::Exclusive, home, None, Nanos(0));
                    let LockEffects { gives_up, is_asker, .. } = won;
                    assert!(!is_asker);
                    if gives_up.is_some() {
                        lane.give_up();
                    }
                }
            }
            Answer::Waits { .. } if !table.cancel(lock(), ticket) => {}
            _ => lane.leave(),
        }
    }
    explore(Policy::LocalPrefer, &[deserts, writes]);
}
