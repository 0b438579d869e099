//! NetLock: a switch has queues of hot locks, and a server buffers the requests that do not fit.
//!
//! Only the switch grants a hot lock. The lock's server buffers requests that do not fit in the
//! switch's queue, and pushes them back when the queue is half empty; meanwhile new requests go
//! behind the buffered requests. Messages may be lost or duplicated. A client repeats the request
//! at the switch, which queues the request or sends it to the buffer again. A request pushed back
//! twice, or after its end, is known to the switch's table.

use std::collections::{BTreeMap, VecDeque};

use lotus_locks::word::{Claimant, Mode};

use super::name::{Answer, Ask, RequestName};
use super::queue::Order;
use super::table::LockTable;

/// Queue slots of a switch (public script of NetLock).
pub const SWITCH_SLOTS: u64 = 100_000;

/// A lock that could have a queue in the switch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Demand {
    /// The lock.
    pub lock: u64,
    /// Share of all requests.
    pub frequency: f64,
    /// Number of clients of the lock.
    pub contenders: u32,
}

/// Divides the switch's slots among locks, one slot per contender, in descending order of requests
/// per contender. Returns locks with slot counts.
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

/// A message of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FromSwitch {
    /// An answer to a client.
    Answer(RequestName, Answer),
    /// To the server: a request for a lock that is not hot.
    Forward(RequestName, Ask),
    /// To the server: a request to buffer, and how many buffered requests may be pushed back now.
    Buffer(RequestName, Ask, u32),
    /// To the server: how many requests for the lock may be pushed back.
    Room(u64, u32),
}

/// A message of a server to the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FromBuffer {
    /// A buffered request.
    Push(RequestName, Ask),
    /// The last request that fits has been pushed; whether the buffer is empty now.
    End(u64, bool),
}

/// A hot lock.
#[derive(Clone, Copy, Debug)]
struct Hot {
    slots: u32,
    /// Whether requests are buffered, so that new requests queue behind the buffer.
    overflows: bool,
}

/// The queues of a switch.
#[derive(Clone, Debug)]
pub struct HotQueues {
    table: LockTable,
    hot: BTreeMap<u64, Hot>,
}

impl HotQueues {
    /// Returns free queues for locks with these slot counts.
    pub fn new(slots: impl IntoIterator<Item = (u64, u32)>) -> Self {
        let hot = |(lock, slots)| (lock, Hot { slots, overflows: false });
        Self { table: LockTable::new(Order::Arrival), hot: slots.into_iter().map(hot).collect() }
    }

    /// Number of hot locks that are held or waited for.
    pub fn used(&self) -> usize {
        self.table.used()
    }

    /// Number of slots of a lock in use.
    pub fn queue_len(&self, lock: u64) -> usize {
        self.table.queue_len(lock)
    }

    /// Handles a client's message.
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

    /// Handles a server's message.
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
                    // Some of the pushed requests had ended before.
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

    /// Number of free slots of a lock.
    fn room(&self, lock: u64) -> u32 {
        let slots = self.hot.get(&lock).map_or(0, |hot| hot.slots);
        slots.saturating_sub(self.table.queue_len(lock) as u32)
    }

    /// Number of slots that the server may fill: zero until half of the slots are free.
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

    /// Tells the server to push requests back, if some are buffered and there is room.
    fn make_room(&self, lock: u64, send: &mut impl FnMut(FromSwitch)) {
        let overflows = self.hot.get(&lock).is_some_and(|hot| hot.overflows);
        let room = self.offered(lock);
        if overflows && room > 0 {
            send(FromSwitch::Room(lock, room));
        }
    }
}

/// Requests that a server buffers for a switch.
#[derive(Clone, Debug, Default)]
pub struct Buffers(BTreeMap<u64, VecDeque<(RequestName, Mode)>>);

impl Buffers {
    /// Number of buffered requests for a lock.
    pub fn len(&self, lock: u64) -> usize {
        self.0.get(&lock).map_or(0, VecDeque::len)
    }

    /// Buffers a request unless it is buffered already, and pushes back as many as there is room
    /// for.
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
