//! What the uses of one lock tell one another.

use super::Waiter;

/// One use of a lock, from one enqueue on.
///
/// The number is never given twice by one lane, also not in a later life of its node; after a reset
/// a use has another one. So nothing that was said to a use, or by it, is taken for what concerns
/// the next one of that slot, however late it comes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Peer {
    /// Name of the request.
    pub who: Waiter,
    /// Number of the enqueue. In the addressee of [`Said::Successor`] only what the word has: the
    /// low 32 bits, which say which use of the slot is meant, as long as a notice is not under way
    /// for as long as a lane takes for 2³² requests; or nothing, where what is said has to tell
    /// ([`super::LockSystem::LATER`]).
    pub number: u64,
}

/// What is said.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Said {
    /// "I come after you."
    Successor,
    /// "The lock is yours."
    Handover,
    /// "The lock is yours when the readers have left that have it now."
    ModeChanged,
    /// "I am a reader, and have come after you."
    Joins,
    /// To the home of the lock, naming a use that waits: "The lock is its own when so many readers
    /// have left."
    Awaits,
    /// To the home: "I was a reader that is waited for, and have left."
    Left,
}

impl Said {
    /// Whether it is said to the home of a lock, not to a use ([`super::LockSystem::HAS_HOMES`]).
    pub const fn is_for_home(self) -> bool {
        matches!(self, Self::Awaits | Self::Left)
    }
}

/// A notice, to a use or from one. Its parts are side by side, because it is part of each
/// [`super::Step`], which every verb has one of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Notice {
    said: Said,
    who: Waiter,
    number: u64,
}

const _: () = assert!(size_of::<Notice>() == 16);

impl Notice {
    /// A notice to `peer`, in [`super::Step::Tell`], or from it, in [`super::LockSystem::hear`]; to
    /// the home of the lock, about it.
    pub const fn new(said: Said, peer: Peer) -> Self {
        Self { said, who: peer.who, number: peer.number }
    }

    /// What is said.
    pub const fn said(self) -> Said {
        self.said
    }

    /// The use that is told, or the one that tells.
    pub const fn peer(self) -> Peer {
        Peer { who: self.who, number: self.number }
    }
}
