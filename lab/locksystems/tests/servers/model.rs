//! Random runs of clients and servers over a network that loses, repeats and reorders messages,
//! with nodes that die, are expelled and return.

use lotus_fabric::env::{Env, SmallRng};
use lotus_locks::Mode;
use lotus_locks::word::Claimant;
use lotus_locksystems::servers::{Answer, Ask, Asker, LockTable, Order, RequestName};
use rand::Rng;

const NODES: u8 = 3;
const SLOTS: u16 = 2;
const LOCKS: u64 = 3;
const SERVERS: u64 = 2;
const STEPS: u32 = 2_000;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Doing {
    Nothing,
    Asks(Mode, bool),
    Holds(Mode),
    Leaves,
}

#[derive(Clone, Debug)]
struct ModelSlot {
    attempt: RequestName,
    doing: Doing,
}

#[derive(Clone, Copy, Debug)]
enum Message {
    Asked(RequestName, Ask),
    Answered(RequestName, Answer),
}

/// Nodes, each with its slots; a network; servers.
struct World {
    rng: SmallRng,
    slots: Vec<ModelSlot>,
    lives: Vec<u32>,
    /// Nodes that are dead, and not expelled yet.
    dead: Vec<bool>,
    network: Vec<Message>,
    servers: Vec<LockTable>,
    granted: u32,
    order: Order,
    /// Share of messages that are lost, and of those that come twice.
    loss: f64,
    twice: f64,
}

impl World {
    fn new(seed: u64, order: Order) -> Self {
        let slot = |node, slot| {
            let asker = Asker::new(Claimant::new(node, 1), 0, slot);
            ModelSlot { attempt: RequestName { asker, number: 0, lock: 0 }, doing: Doing::Nothing }
        };
        Self {
            rng: Env::real(seed).rng(1),
            slots: (0..NODES).flat_map(|node| (0..SLOTS).map(move |s| slot(node, s))).collect(),
            lives: vec![1; usize::from(NODES)],
            dead: vec![false; usize::from(NODES)],
            network: Vec::new(),
            servers: (0..SERVERS).map(|_| LockTable::new(order)).collect(),
            granted: 0,
            order,
            loss: 0.2,
            twice: 0.2,
        }
    }

    fn send(&mut self, message: Message) {
        if !self.rng.random_bool(self.loss) {
            self.network.push(message);
        }
    }

    fn is_dead(&self, slot: usize) -> bool {
        self.dead[usize::from(self.slots[slot].attempt.asker.life().node())]
    }

    /// Sends what a slot wants, once more if it has done so.
    fn repeat(&mut self, index: usize) {
        let ModelSlot { attempt, doing } = self.slots[index];
        match doing {
            Doing::Asks(mode, waits) => {
                self.send(Message::Asked(attempt, Ask::Acquire { mode, waits }));
            }
            Doing::Leaves => self.send(Message::Asked(attempt, Ask::Leave)),
            Doing::Nothing | Doing::Holds(_) => {}
        }
    }

    /// A slot goes on: it asks, gives up, or releases.
    fn act(&mut self, index: usize, begins: bool) {
        if self.is_dead(index) {
            return;
        }
        let slot = &mut self.slots[index];
        slot.doing = match slot.doing {
            Doing::Nothing if begins => {
                slot.attempt.number += 1;
                slot.attempt.lock = self.rng.random_range(0..LOCKS);
                let mode = [Mode::Shared, Mode::Exclusive][self.rng.random_range(0..2)];
                Doing::Asks(mode, self.rng.random_bool(0.8))
            }
            Doing::Asks(..) if begins && self.rng.random_bool(0.8) => slot.doing,
            Doing::Asks(..) | Doing::Holds(_) => Doing::Leaves,
            same => same,
        };
        self.repeat(index);
    }

    fn deliver(&mut self) {
        if self.network.is_empty() {
            return;
        }
        let index = self.rng.random_range(0..self.network.len());
        let message = match self.rng.random_bool(self.twice) {
            true => self.network[index],
            false => self.network.swap_remove(index),
        };
        match message {
            Message::Asked(attempt, ask) => {
                let server = (attempt.lock % SERVERS) as usize;
                let mut said = Vec::new();
                self.servers[server].ask(attempt, ask, |to, answer| said.push((to, answer)));
                said.into_iter().for_each(|(to, answer)| self.send(Message::Answered(to, answer)));
            }
            Message::Answered(attempt, answer) => self.hear(attempt, answer),
        }
    }

    fn hear(&mut self, to: RequestName, answer: Answer) {
        let found = self.slots.iter().position(|slot| slot.attempt == to);
        let Some(index) = found.filter(|index| !self.is_dead(*index)) else { return };
        let slot = &mut self.slots[index];
        match (slot.doing, answer) {
            (Doing::Asks(mode, _), Answer::Granted) => {
                slot.doing = Doing::Holds(mode);
                self.granted += 1;
                self.judge(to.lock);
            }
            (Doing::Asks(_, waits), Answer::Refused) => {
                assert!(!waits || self.order == Order::NoQueue, "{to:?} waits");
                slot.doing = Doing::Nothing;
            }
            (Doing::Leaves, Answer::Left) => slot.doing = Doing::Nothing,
            (_, Answer::Expelled) => panic!("{to:?} lives"),
            _ => {}
        }
    }

    /// No two slots hold a lock beside each other, as they themselves believe, dead nodes included.
    fn judge(&self, lock: u64) {
        let held = self.slots.iter().filter(|slot| slot.attempt.lock == lock);
        let modes: Vec<_> = held
            .filter_map(|slot| match slot.doing {
                Doing::Holds(mode) => Some(mode),
                _ => None,
            })
            .collect();
        let writers = modes.iter().filter(|mode| **mode == Mode::Exclusive).count();
        assert!(writers == 0 || modes.len() == 1, "lock {lock}: {:?}", self.slots);
    }

    /// A dead node is fenced, each server learns so at once or later, and it returns.
    fn expel(&mut self, node: u8) {
        let life = Claimant::new(node, self.lives[usize::from(node)]);
        self.lives[usize::from(node)] += 1;
        self.dead[usize::from(node)] = false;
        for slot in &mut self.slots {
            if slot.attempt.asker.life() == life {
                let next = Claimant::new(node, life.incarnation() + 1);
                let asker = Asker::new(next, 0, slot.attempt.asker.slot());
                *slot = ModelSlot {
                    attempt: RequestName { asker, number: 0, lock: 0 },
                    doing: Doing::Nothing,
                };
            }
        }
        for server in 0..self.servers.len() {
            let mut said = Vec::new();
            self.servers[server].expel(life, |to, answer| said.push((to, answer)));
            said.into_iter().for_each(|(to, answer)| self.send(Message::Answered(to, answer)));
        }
    }

    fn step(&mut self, mortal: bool) {
        let slot = self.rng.random_range(0..self.slots.len());
        let node = self.rng.random_range(0..NODES);
        match self.rng.random_range(0..100) {
            0 if mortal => self.dead[usize::from(node)] = true,
            1..4 if self.dead[usize::from(node)] => self.expel(node),
            4..16 => self.act(slot, true),
            16..28 if !self.is_dead(slot) => self.repeat(slot),
            _ => self.deliver(),
        }
    }

    /// All leave, nothing is lost any more, and all locks are free.
    fn end(&mut self) {
        (0..NODES).for_each(|node| {
            if self.dead[usize::from(node)] {
                self.expel(node);
            }
        });
        (self.loss, self.twice) = (0.0, 0.0);
        for _ in 0..3 {
            (0..self.slots.len()).for_each(|slot| self.act(slot, false));
            while !self.network.is_empty() {
                self.deliver();
            }
        }
        let used: Vec<_> = self.servers.iter().map(LockTable::used).collect();
        assert_eq!(used, [0; SERVERS as usize], "{:?}", self.slots);
        assert!(self.slots.iter().all(|slot| slot.doing == Doing::Nothing), "{:?}", self.slots);
    }
}

/// Runs of one kind of lock, and the number of grants.
fn runs(order: Order, mortal: bool) -> u32 {
    let mut granted = 0;
    for seed in 0..200 {
        let mut world = World::new(seed, order);
        (0..STEPS).for_each(|_| world.step(mortal));
        world.end();
        granted += world.granted;
    }
    granted
}

#[test]
fn loss_repetition_and_reordering_break_no_promise() {
    for order in [Order::Arrival, Order::ReadersPass(10), Order::NoQueue] {
        let granted = runs(order, false);
        assert!(granted > 5_000, "{order:?}: {granted}");
    }
}

#[test]
fn nodes_that_die_keep_their_locks_until_they_are_expelled() {
    for order in [Order::Arrival, Order::ReadersPass(10), Order::NoQueue] {
        let granted = runs(order, true);
        assert!(granted > 5_000, "{order:?}: {granted}");
    }
}
