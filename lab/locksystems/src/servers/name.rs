//! Names of requests, and the messages of clients and servers about them.

use std::fmt;

use lotus_locks::word::{Claimant, Mode};

/// A client's slot: a slot of a lane of a node, in one life of the node. A slot has at most one
/// outstanding request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asker(u64);

impl Asker {
    /// Returns the name of a slot of a lane, in this life of its node.
    pub const fn new(life: Claimant, lane: u16, slot: u16) -> Self {
        let life = (life.node() as u64) << 24 | life.incarnation() as u64;
        Self(life << 32 | (lane as u64) << 16 | slot as u64)
    }

    /// Decodes a received number; `None` if its node number is out of range.
    pub(crate) const fn of(raw: u64) -> Option<Self> {
        if raw >> 56 > Claimant::MAX_NODE as u64 { None } else { Some(Self(raw)) }
    }

    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    /// The node and the life.
    pub const fn life(self) -> Claimant {
        Claimant::new((self.0 >> 56) as u8, (self.0 >> 32) as u32 & Claimant::MAX_INCARNATION)
    }

    /// The lane on the node.
    pub const fn lane(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The slot of the lane.
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

/// Name of a request for a lock. A slot numbers its requests upwards, and begins a new request only
/// once the last request has ended everywhere: by a refusal, or by an answered leave.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestName {
    /// The slot of the request.
    pub asker: Asker,
    /// Number among the slot's requests.
    pub number: u64,
    /// The lock.
    pub lock: u64,
}

/// A client's message to a server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ask {
    /// Asks for the lock in a mode. If the lock is taken, the request waits or is refused.
    Acquire {
        /// Lock mode; an update lock is treated as exclusive.
        mode: Mode,
        /// Whether the request waits.
        waits: bool,
    },
    /// Ends the request: releases the lock if held, and leaves the queue if waiting.
    Leave,
}

/// A server's answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// The request holds the lock.
    Granted,
    /// The request waits.
    Queued,
    /// The request has ended: the lock is taken, and the request does not wait.
    Refused,
    /// The request has ended by a leave.
    Left,
    /// The request's node has been expelled in its life: no lock is held.
    Expelled,
}
