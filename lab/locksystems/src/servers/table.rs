//! The locks of a server, as a pure state machine.

use std::collections::BTreeMap;

use lotus_locks::word::Claimant;

use super::name::{Answer, Ask, Asker, RequestName};
use super::queue::{Entry, LockQueue, Order};

/// The last request of a slot.
#[derive(Clone, Copy, Debug)]
struct Last {
    number: u64,
    lock: u64,
    state: LastState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LastState {
    /// Holds the lock or waits for it.
    Active,
    Refused,
    Left,
}

/// How an arriving request relates to the last request of its slot.
enum Known {
    New,
    /// The slot's last request.
    Same(LastState),
    /// Older than the slot's last request, and ended.
    Past,
}

/// The locks of a server: holders, waiters, and the last request of every slot.
///
/// Requests may be duplicated, late and reordered, and answers may be lost: a client repeats its
/// message until the server answers. Request numbers of a slot go up, so a single number per slot
/// tells new requests from ended requests. Nothing is forgotten until the slot's node is expelled.
#[derive(Clone, Debug)]
pub struct LockTable {
    order: Order,
    locks: BTreeMap<u64, LockQueue>,
    last: BTreeMap<Asker, Last>,
    /// The last expelled life of every node.
    expelled: BTreeMap<u8, u32>,
}

impl LockTable {
    /// Returns a table of free locks.
    pub fn new(order: Order) -> Self {
        let (locks, last, expelled) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { order, locks, last, expelled }
    }

    /// Number of locks that are held or waited for.
    pub fn used(&self) -> usize {
        self.locks.len()
    }

    /// Number of holders and waiters of a lock.
    pub fn queue_len(&self, lock: u64) -> usize {
        self.locks.get(&lock).map_or(0, LockQueue::len)
    }

    /// Whether a request would be new to the table, in a life that is not expelled.
    pub fn is_new(&self, attempt: RequestName) -> bool {
        !self.is_expelled(attempt.asker.life()) && matches!(self.known(attempt), Known::New)
    }

    /// Lives with a request in the table, each once.
    pub fn lives(&self) -> Vec<Claimant> {
        let mut lives: Vec<_> = self.last.keys().map(|asker| asker.life()).collect();
        // Askers are in the order of their lives.
        lives.dedup();
        lives
    }

    /// Handles a client's message. `answer` is called with the answers to affected requests.
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
            // A repetition from before the request's end: the client expects no answer.
            (Ask::Acquire { .. }, Known::Same(LastState::Left) | Known::Past) => {}
            (Ask::Leave, Known::Same(LastState::Active)) => {
                self.note(attempt, LastState::Left);
                answer(attempt, Answer::Left);
                self.take_out(attempt.asker, attempt.lock, answer);
            }
            // The acquisition may still arrive, and must then count as past.
            (Ask::Leave, Known::New) => {
                self.note(attempt, LastState::Left);
                answer(attempt, Answer::Left);
            }
            (Ask::Leave, Known::Same(_) | Known::Past) => answer(attempt, Answer::Left),
        }
    }

    /// Records the refusal of a new request.
    pub(super) fn refuse(&mut self, name: RequestName) {
        self.note(name, LastState::Refused);
    }

    /// Frees a node's locks and ends its waits, in this life and earlier lives. The node can no
    /// longer reach the memory, and its leftovers in memory are settled.
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
        // Forget the node's requests first: no removal may grant a lock to another request of the
        // node.
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
            // A client ends a slot's last request before the next, so no client sent this message.
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
