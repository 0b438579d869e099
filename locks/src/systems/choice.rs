//! A lock system of transactions, chosen by value.

use super::{Cas, Declock, Dslr, DslrTimes, ShiftLock};
use crate::contract::{LockSystem, Pacing, Recovery};
use crate::word::DeclockFields;

/// Lock system of transactions on memory nodes: fenced, with the options of its paper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServiceLocks {
    /// [`Cas`].
    Cas,
    /// [`Dslr`].
    Dslr,
    /// [`ShiftLock`].
    ShiftLock,
    /// [`Declock`], with queues of this length; see [`DeclockFields::fits`].
    Declock {
        /// Entries of a queue.
        entries: u32,
    },
}

/// Operation on a lock system of any type.
pub trait Visitor {
    /// Result.
    type Output;

    /// Performs the operation with the systems that `make` creates, a system for each lane.
    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self::Output;
}

/// Visitor that returns the bytes of a lock object.
#[derive(Clone, Copy, Debug)]
pub struct ObjectBytes;

impl Visitor for ObjectBytes {
    type Output = u64;

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> u64 {
        make().object_bytes()
    }
}

impl ServiceLocks {
    /// Performs an operation with the chosen system.
    pub fn visit<V: Visitor>(self, visitor: V) -> V::Output {
        let recovery = Recovery::Fenced;
        match self {
            Self::Cas => visitor.visit(move || Cas { recovery, pacing: Pacing::NONE }),
            Self::Dslr => visitor.visit(move || Dslr::new(recovery, DslrTimes::PUBLISHED)),
            Self::ShiftLock => {
                visitor.visit(move || ShiftLock::new(recovery, ShiftLock::THRESHOLD))
            }
            Self::Declock { entries } => visitor.visit(move || Declock::new(recovery, entries)),
        }
    }

    /// Bytes of a lock object.
    pub fn object_bytes(self) -> u64 {
        self.visit(ObjectBytes)
    }

    /// Largest number of requests for one lock, each counted by its lease terms, that may be
    /// outstanding together; `None` if there is no bound below that of [`crate::Waiter`].
    pub const fn capacity(self) -> Option<u32> {
        match self {
            Self::Cas => None,
            Self::Dslr => Some(Dslr::published(Recovery::Fenced).capacity()),
            Self::ShiftLock => Some(ShiftLock::CAPACITY),
            Self::Declock { entries } => Some(DeclockFields::new(entries).most_requests()),
        }
    }
}
