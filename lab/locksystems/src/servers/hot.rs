//! NetLock: queues of hot locks in a switch, and a server that buffers what they have no room for.
//!
//! The switch alone grants a hot lock. What does not fit in its queue is buffered by the server
//! of the lock, and pushed back when the queue is half empty; meanwhile all that comes goes behind
//! it. All of that may be lost or come twice: a client repeats its request at the switch, which
//! takes it in, or sends it to be buffered once more, and a request that is pushed back twice, or
//! after it has ended, is known to the table of the switch.

use std::collections::{BTreeMap, VecDeque};

use lotus_locks::word::{Claimant, Mode};

use super::name::{Answer, Ask, RequestName};
use super::queue::Order;
use super::table::LockTable;

/// Slots of the queues of a switch (public script of NetLock).
pub const SWITCH_SLOTS: u64 = 100_000;

/// A lock that is to have a queue in the switch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Demand {
    /// The lock.
    pub lock: u64,
    /// Share of all requests.
    pub frequency: f64,
    /// Number of clients that ask for it.
    pub contenders: u32,
}

/// Slots of the switch for the locks that are worth most: those of the most requests for each of
/// their contenders, a slot for each contender. Returns locks with their slots.
pub fn allot(mut demands: Vec<Demand>, slots: u64) -> Vec<(u64, u32)> {
    let worth = |demand: &Demand| demand.frequency / f64::from(demand.contenders.max(1));
    demands
        .sort_by(|one, other| worth(other).total_cmp(&worth(one)).then(one.lock.cmp(&other.lock)));
    let mut left = slots;
    let mut allotted = Vec::new();
    for Demand { lock, contenders, .. } in demands {
        let wanted = contenders.max(1);
        if u64::from(wanted) > left {
            break;
        }
        left -= u64::from(wanted);
        allotted.push((lock, wanted));
    }
    allotted
}

/// What a switch sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FromSwitch {
    /// An answer to a client.
    Answer(RequestName, Answer),
    /// To the server: a request for a lock that is not hot.
    Forward(RequestName, Ask),
    /// To the server: a request to be buffered. So many may be pushed back now.
    Buffer(RequestName, Ask, u32),
    /// To the server: so many requests for the lock may be pushed back.
    Room(u64, u32),
}

/// What a server sends to the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FromBuffer {
    /// A request that was buffered.
    Push(RequestName, Ask),
    /// The last one for which there was room was pushed; whether none is buffered any more.
    End(u64, bool),
}

/// A hot lock.
#[derive(Clone, Copy, Debug)]
struct Hot {
    slots: u32,
    /// Whether requests are buffered, so that new ones go behind them.
    overflows: bool,
}

/// The queues of a switch.
#[derive(Clone, Debug)]
pub struct HotQueues {
    table: LockTable,
    hot: BTreeMap<u64, Hot>,
}

impl HotQueues {
    /// Free queues of these locks, with their numbers of slots.
    pub fn new(slots: impl IntoIterator<Item = (u64, u32)>) -> Self {
        let hot = |(lock, slots)| (lock, Hot { slots, overflows: false });
        Self { table: LockTable::new(Order::Arrival), hot: slots.into_iter().map(hot).collect() }
    }

    /// Number of hot locks that are held or waited for.
    pub fn used(&self) -> usize {
        self.table.used()
    }

    /// Number of slots of a lock that are taken.
    pub fn queue_len(&self, lock: u64) -> usize {
        self.table.queue_len(lock)
    }

    /// Takes in what a client asks.
    pub fn ask(&mut self, name: RequestName, ask: Ask, mut send: impl FnMut(FromSwitch)) {
        let Some(hot) = self.hot.get(&name.lock).copied() else {
            return send(FromSwitch::Forward(name, ask));
        };
        match ask {
            Ask::Acquire { waits, .. } if self.table.is_new(name) => {
                if !hot.overflows && self.room(name.lock) > 0 {
                    self.table.ask(name, ask, |to, answer| send(FromSwitch::Answer(to, answer)));
                } else if waits {
                    self.buffer(name, ask, &mut send);
                } else {
                    self.table.refuse(name);
                    send(FromSwitch::Answer(name, Answer::Refused));
                }
            }
            _ => {
                let before = self.table.queue_len(name.lock);
                self.table.ask(name, ask, |to, answer| send(FromSwitch::Answer(to, answer)));
                if self.table.queue_len(name.lock) < before {
                    self.make_room(name.lock, &mut send);
                }
            }
        }
    }

    /// Takes in what a server sends.
    pub fn hear(&mut self, said: FromBuffer, mut send: impl FnMut(FromSwitch)) {
        match said {
            FromBuffer::Push(name, ask) if self.room(name.lock) == 0 && self.table.is_new(name) => {
                self.buffer(name, ask, &mut send);
            }
            FromBuffer::Push(name, ask) => {
                self.table.ask(name, ask, |to, answer| send(FromSwitch::Answer(to, answer)));
            }
            FromBuffer::End(lock, is_empty) => {
                let Some(hot) = self.hot.get_mut(&lock) else { return };
                match is_empty {
                    true => hot.overflows = false,
                    // Some of those that were pushed have ended before.
                    false => self.make_room(lock, &mut send),
                }
            }
        }
    }

    /// See [`LockTable::expel`].
    pub fn expel(&mut self, life: Claimant, mut send: impl FnMut(FromSwitch)) {
        self.table.expel(life, |to, answer| send(FromSwitch::Answer(to, answer)));
        let overflowing = self.hot.iter().filter(|(_, hot)| hot.overflows);
        let overflowing: Vec<_> = overflowing.map(|(lock, _)| *lock).collect();
        overflowing.into_iter().for_each(|lock| self.make_room(lock, &mut send));
    }

    /// Slots of a lock that are free.
    fn room(&self, lock: u64) -> u32 {
        let slots = self.hot.get(&lock).map_or(0, |hot| hot.slots);
        slots.saturating_sub(self.table.queue_len(lock) as u32)
    }

    /// Slots that a server may fill: none before half of them are free.
    fn offered(&self, lock: u64) -> u32 {
        let slots = self.hot.get(&lock).map_or(0, |hot| hot.slots);
        let room = self.room(lock);
        if 2 * room >= slots { room } else { 0 }
    }

    fn buffer(&mut self, name: RequestName, ask: Ask, send: &mut impl FnMut(FromSwitch)) {
        if let Some(hot) = self.hot.get_mut(&name.lock) {
            hot.overflows = true;
        }
        send(FromSwitch::Buffer(name, ask, self.offered(name.lock)));
        send(FromSwitch::Answer(name, Answer::Queued));
    }

    /// Has the server push requests back, if some are buffered and there is room.
    fn make_room(&self, lock: u64, send: &mut impl FnMut(FromSwitch)) {
        let overflows = self.hot.get(&lock).is_some_and(|hot| hot.overflows);
        let room = self.offered(lock);
        if overflows && room > 0 {
            send(FromSwitch::Room(lock, room));
        }
    }
}

/// Requests that a server has for a switch.
#[derive(Clone, Debug, Default)]
pub struct Buffers(BTreeMap<u64, VecDeque<(RequestName, Mode)>>);

impl Buffers {
    /// Number of requests for a lock.
    pub fn len(&self, lock: u64) -> usize {
        self.0.get(&lock).map_or(0, VecDeque::len)
    }

    /// Takes in a request, if it is not here, and pushes back as many as there is room for.
    pub fn buffer(&mut self, name: RequestName, ask: Ask, room: u32, send: impl FnMut(FromBuffer)) {
        let buffer = self.0.entry(name.lock).or_default();
        let is_here = buffer.iter().any(|(known, _)| *known == name);
        match ask {
            Ask::Acquire { mode, .. } if !is_here => buffer.push_back((name, mode)),
            _ => {}
        }
        if room > 0 {
            self.push(name.lock, room, send);
        }
    }

    /// Pushes back the first requests for a lock, as many as there is room for.
    pub fn push(&mut self, lock: u64, room: u32, mut send: impl FnMut(FromBuffer)) {
        let buffer = self.0.entry(lock).or_default();
        for (name, mode) in buffer.drain(..buffer.len().min(room as usize)) {
            send(FromBuffer::Push(name, Ask::Acquire { mode, waits: true }));
        }
        let is_empty = buffer.is_empty();
        if is_empty {
            self.0.remove(&lock);
        }
        send(FromBuffer::End(lock, is_empty));
    }
}
