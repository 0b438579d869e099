//! Notices between the uses of one lock.

use super::Waiter;

/// Name of one use of a lock, from one enqueue on.
///
/// A lane never gives a number twice, also not in a later life of its node; after a reset a use
/// gets a new number. So a notice to or from a use is never taken for a notice of the next use of
/// the slot, however late it arrives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Peer {
    /// Name of the request.
    pub who: Waiter,
    /// Number of the enqueue. The addressee of [`NoticeKind::Successor`] has only the part that the
    /// word stores. Either the low 32 bits: they identify the use of the slot, unless a notice is
    /// under way for as long as a lane takes for 2³² requests. Or nothing: the payload of the
    /// notice identifies the use ([`super::LockSystem::LATER`]).
    pub number: u64,
}

/// Kind of a notice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NoticeKind {
    /// "I come after you."
    Successor,
    /// "The lock is yours."
    Handover,
    /// "The lock is yours when its present readers have left."
    ModeChanged,
    /// "I am a reader, and have come after you."
    Joins,
    /// To the home of the lock, naming a waiting use: "This use has the lock when so many readers
    /// have left."
    Awaits,
    /// To the home: "I was a reader that a writer waits for, and have left."
    Left,
}

impl NoticeKind {
    /// Whether the notice goes to the home of a lock, not to a use
    /// ([`super::LockSystem::HAS_HOMES`]).
    pub const fn is_for_home(self) -> bool {
        matches!(self, Self::Awaits | Self::Left)
    }
}

/// A notice to or from a use. The fields are side by side, because a notice is part of each
/// [`super::Step`], and every verb has a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Notice {
    kind: NoticeKind,
    who: Waiter,
    number: u64,
}

const _: () = assert!(size_of::<Notice>() == 16);

impl Notice {
    /// Creates a notice: in [`super::Step::Tell`] to `peer`, in [`super::LockSystem::hear`] from
    /// `peer`. A notice to the home of a lock is about `peer`.
    pub const fn new(kind: NoticeKind, peer: Peer) -> Self {
        Self { kind, who: peer.who, number: peer.number }
    }

    /// Kind of the notice.
    pub const fn kind(self) -> NoticeKind {
        self.kind
    }

    /// The addressee of the notice, or its sender.
    pub const fn peer(self) -> Peer {
        Peer { who: self.who, number: self.number }
    }
}
