//! The locks of one server, as a pure state machine.

use std::collections::BTreeMap;

use lotus_locks::word::Claimant;

use super::name::{Answer, Ask, Asker, RequestName};
use super::queue::{Entry, LockQueue, Order};

/// What a slot has asked for last.
#[derive(Clone, Copy, Debug)]
struct Last {
    number: u64,
    lock: u64,
    state: LastState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LastState {
    /// It holds the lock, or waits for it.
    Active,
    Refused,
    Left,
}

/// What a server finds out about a request that comes.
enum Known {
    New,
    /// The last one of its slot.
    Same(LastState),
    /// One before that: it has ended.
    Past,
}

/// The locks of one server: holders, waiters, and what each slot has asked for last.
///
/// Requests may come twice, late and in any order, and answers may be lost: a client repeats what
/// it asks until it is answered. Numbers of a slot go upwards, so one number for each slot tells
/// what is new from what has ended; there is nothing to forget until the slot's node is expelled.
#[derive(Clone, Debug)]
pub struct LockTable {
    order: Order,
    locks: BTreeMap<u64, LockQueue>,
    last: BTreeMap<Asker, Last>,
    /// The last life of each node that was expelled.
    expelled: BTreeMap<u8, u32>,
}

impl LockTable {
    /// A table of free locks.
    pub fn new(order: Order) -> Self {
        let (locks, last, expelled) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { order, locks, last, expelled }
    }

    /// Number of locks that are held or waited for.
    pub fn used(&self) -> usize {
        self.locks.len()
    }

    /// Number of requests that hold a lock or wait for it.
    pub fn queue_len(&self, lock: u64) -> usize {
        self.locks.get(&lock).map_or(0, LockQueue::len)
    }

    /// Whether a request that comes would be a new one, in a life that is not expelled.
    pub fn is_new(&self, attempt: RequestName) -> bool {
        !self.is_expelled(attempt.asker.life()) && matches!(self.known(attempt), Known::New)
    }

    /// Lives of which the table knows a request, each once.
    pub fn lives(&self) -> Vec<Claimant> {
        let mut lives: Vec<_> = self.last.keys().map(|asker| asker.life()).collect();
        // Askers are in the order of their lives.
        lives.dedup();
        lives
    }

    /// Takes in what a client asks. `answer` is called with the answers to it and to others.
    pub fn ask(
        &mut self,
        attempt: RequestName,
        ask: Ask,
        mut answer: impl FnMut(RequestName, Answer),
    ) {
        if self.is_expelled(attempt.asker.life()) {
            return answer(attempt, Answer::Expelled);
        }
        match (ask, self.known(attempt)) {
            (Ask::Acquire { mode, waits }, Known::New) => {
                let queue = self.locks.entry(attempt.lock).or_default();
                let (state, said) = match queue.enter(attempt.asker, mode, waits, self.order) {
                    Entry::Held => (LastState::Active, Answer::Granted),
                    Entry::Waits => (LastState::Active, Answer::Queued),
                    Entry::Refused => (LastState::Refused, Answer::Refused),
                };
                self.note(attempt, state);
                answer(attempt, said);
            }
            (Ask::Acquire { .. }, Known::Same(LastState::Active)) => {
                let queue = self.locks.get(&attempt.lock);
                let is_held = queue.is_some_and(|queue| queue.is_held_by(attempt.asker));
                answer(attempt, if is_held { Answer::Granted } else { Answer::Queued });
            }
            (Ask::Acquire { .. }, Known::Same(LastState::Refused)) => {
                answer(attempt, Answer::Refused)
            }
            // It was repeated before it ended, and its client waits for no answer.
            (Ask::Acquire { .. }, Known::Same(LastState::Left) | Known::Past) => {}
            (Ask::Leave, Known::Same(LastState::Active)) => {
                self.note(attempt, LastState::Left);
                answer(attempt, Answer::Left);
                self.take_out(attempt.asker, attempt.lock, answer);
            }
            // Its acquisition may still come, and has to be known as past.
            (Ask::Leave, Known::New) => {
                self.note(attempt, LastState::Left);
                answer(attempt, Answer::Left);
            }
            (Ask::Leave, Known::Same(_) | Known::Past) => answer(attempt, Answer::Left),
        }
    }

    /// Notes that a new request was refused.
    pub(super) fn refuse(&mut self, name: RequestName) {
        self.note(name, LastState::Refused);
    }

    /// Frees what a node holds and ends what it waits for, in this life and earlier ones. The node
    /// can reach the memory no more, and what it has left behind was dealt with.
    pub fn expel(&mut self, life: Claimant, mut answer: impl FnMut(RequestName, Answer)) {
        let last = self.expelled.entry(life.node()).or_default();
        *last = (*last).max(life.incarnation());
        let expelled = &self.expelled;
        let is_gone = |asker: Asker| {
            expelled
                .get(&asker.life().node())
                .is_some_and(|last| asker.life().incarnation() <= *last)
        };
        let gone: Vec<_> =
            self.last.iter().filter(|(asker, _)| is_gone(**asker)).map(|(a, l)| (*a, *l)).collect();
        // First all are forgotten: no request of them is told that its turn has come while others
        // are taken out.
        self.last.retain(|asker, _| !is_gone(*asker));
        for (asker, last) in gone {
            if last.state == LastState::Active {
                self.take_out(asker, last.lock, &mut answer);
            }
        }
    }

    fn is_expelled(&self, life: Claimant) -> bool {
        self.expelled.get(&life.node()).is_some_and(|last| life.incarnation() <= *last)
    }

    fn known(&self, attempt: RequestName) -> Known {
        match self.last.get(&attempt.asker) {
            Some(last) if attempt.number < last.number => Known::Past,
            Some(last) if attempt.number == last.number => Known::Same(last.state),
            // A client ends the last request of a slot first, so this message is from no client.
            Some(last) if last.state == LastState::Active => Known::Past,
            _ => Known::New,
        }
    }

    fn note(&mut self, attempt: RequestName, state: LastState) {
        let RequestName { asker, number, lock } = attempt;
        self.last.insert(asker, Last { number, lock, state });
        if state == LastState::Refused && self.locks.get(&lock).is_some_and(LockQueue::is_free) {
            self.locks.remove(&lock);
        }
    }

    fn take_out(&mut self, asker: Asker, lock: u64, mut answer: impl FnMut(RequestName, Answer)) {
        let Some(queue) = self.locks.get_mut(&lock) else { return };
        let last = &self.last;
        queue.leave(asker, self.order, |granted| {
            let number = last.get(&granted).map(|last| last.number);
            if let Some(number) = number {
                answer(RequestName { asker: granted, number, lock }, Answer::Granted);
            }
        });
        if queue.is_free() {
            self.locks.remove(&lock);
        }
    }
}
