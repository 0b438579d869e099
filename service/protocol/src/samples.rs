//! A sample of each failure, for tests of clients and servers.

use crate::messages::{Excess, Failure, ScarceResource};

impl Failure {
    /// Returns a sample of every variant in turn, for tests. A new variant does not compile before
    /// this list includes it.
    #[doc(hidden)]
    pub fn samples() -> impl Iterator<Item = Self> {
        let first = Self::WrongOwner { shard: 0, owner: None, epoch: 0 };
        std::iter::successors(Some(first), Self::after)
    }

    fn after(&self) -> Option<Self> {
        let words = String::new;
        Some(match self {
            Self::WrongOwner { .. } => Self::Leaving,
            Self::Leaving => Self::Busy(ScarceResource::Transactions),
            Self::Busy(ScarceResource::Transactions) => Self::Busy(ScarceResource::CallIds),
            Self::Busy(ScarceResource::CallIds) => Self::Busy(ScarceResource::Answers),
            Self::Busy(ScarceResource::Answers) => Self::Busy(ScarceResource::Tables),
            Self::Busy(ScarceResource::Tables) => Self::UnknownProcedure,
            Self::UnknownProcedure => Self::Arguments(words()),
            Self::Arguments(_) => Self::Result(words()),
            Self::Result(_) => Self::Timeout,
            Self::Timeout => Self::Conflict(words()),
            Self::Conflict(_) => Self::Unknown,
            Self::Unknown => Self::IdTaken,
            Self::IdTaken => Self::GivenUp,
            Self::GivenUp => Self::HeldTooLong { limit_ms: 1 },
            Self::HeldTooLong { .. } => Self::NoTransaction,
            Self::NoTransaction => Self::NotFound(words()),
            Self::NotFound(_) => Self::AlreadyExists(words()),
            Self::AlreadyExists(_) => Self::Refused(words()),
            Self::Refused(_) => Self::Panicked,
            Self::Panicked => Self::TooLarge { excess: Excess::Rows, limit: 1 },
            Self::TooLarge { excess: Excess::Rows, .. } => {
                Self::TooLarge { excess: Excess::AnswerBytes, limit: 1 }
            }
            Self::TooLarge { excess: Excess::AnswerBytes, .. } => Self::MayNotCreate,
            Self::MayNotCreate => Self::MayNotDrop,
            Self::MayNotDrop => Self::InvalidTable(words()),
            Self::InvalidTable(_) => Self::TableDiffers(words()),
            Self::TableDiffers(_) => Self::NoRoomForTable(words()),
            Self::NoRoomForTable(_) => Self::NoAuthority,
            Self::NoAuthority => Self::UnknownTable { table: 1 },
            Self::UnknownTable { .. } => Self::SnapshotTooOld,
            Self::SnapshotTooOld => Self::ScanTooLong { limit_ms: 1, pause_ms: 1 },
            Self::ScanTooLong { .. } => return None,
        })
    }
}
