//! Names of requests, and what clients and servers say of them.

use std::fmt;

use lotus_locks::word::{Claimant, Mode};

/// A client's slot: one slot of a lane of a node, in one life of that node. A slot has one request
/// outstanding at most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asker(u64);

impl Asker {
    /// A slot of a lane of a node in this life.
    pub const fn new(life: Claimant, lane: u16, slot: u16) -> Self {
        let life = (life.node() as u64) << 24 | life.incarnation() as u64;
        Self(life << 32 | (lane as u64) << 16 | slot as u64)
    }

    /// The asker of a number that was received; `None` if there is no such node.
    pub(crate) const fn of(raw: u64) -> Option<Self> {
        if raw >> 56 > Claimant::MAX_NODE as u64 { None } else { Some(Self(raw)) }
    }

    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    /// The node, in one life.
    pub const fn life(self) -> Claimant {
        Claimant::new((self.0 >> 56) as u8, (self.0 >> 32) as u32 & Claimant::MAX_INCARNATION)
    }

    /// The lane on that node.
    pub const fn lane(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The slot of that lane.
    pub const fn slot(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let life = self.life();
        let (node, incarnation) = (life.node(), life.incarnation());
        write!(f, "{node}.{}.{} of life {incarnation}", self.lane(), self.slot())
    }
}

/// Name of a request for one lock. A slot numbers its requests upwards, and begins one only when
/// the last one has ended everywhere: when it was refused, or its leave was answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestName {
    /// The slot that asks.
    pub asker: Asker,
    /// Number among the requests of that slot.
    pub number: u64,
    /// The lock.
    pub lock: u64,
}

/// What a client wants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ask {
    /// The lock in this mode. If it is another's, the request waits, or is refused.
    Acquire {
        /// Mode; an update lock is an exclusive one.
        mode: Mode,
        /// Whether the request waits.
        waits: bool,
    },
    /// The request to end: to release the lock if it holds it, and to leave the queue if it waits.
    Leave,
}

/// What a server answers to a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// It holds the lock.
    Granted,
    /// It waits.
    Queued,
    /// It has ended: the lock is another's, and the request does not wait.
    Refused,
    /// It has ended, because it was to leave.
    Left,
    /// Its node has been expelled in that life: nothing is held.
    Expelled,
}
