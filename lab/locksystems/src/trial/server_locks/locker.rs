//! A lane's client of a keeper's locks, for every kind of keeper.

use lotus_locks::word::Mode;
use lotus_locks::{Counts, NotHeld, Wait};

use crate::locker::{Locker, Split, SplitHeld};
use crate::redlock::{RedLockClient, RedLockHeld};
use crate::servers::{ServerClient, ServerHeld};
use crate::switched::{SwitchedHold, SwitchedLocker};

/// The locks of a switch, of servers, of both, or of a Redis.
#[derive(Clone)]
pub(super) enum AnyLocker {
    Switched(SwitchedLocker),
    Served(ServerClient),
    Both(Split<SwitchedLocker, ServerClient>),
    Redis(RedLockClient),
}

/// A held lock. Dropping it releases the lock.
pub(super) enum AnyHeld {
    Switched(SwitchedHold),
    Served(ServerHeld),
    Both(SplitHeld<SwitchedHold, ServerHeld>),
    Redis(RedLockHeld),
}

impl Locker for AnyLocker {
    type Held = AnyHeld;

    async fn acquire(&self, lock: u64, mode: Mode, wait: Wait) -> Result<AnyHeld, NotHeld> {
        match self {
            Self::Switched(locker) => locker.acquire(lock, mode, wait).await.map(AnyHeld::Switched),
            Self::Served(locker) => locker.acquire(lock, mode, wait).await.map(AnyHeld::Served),
            Self::Both(locker) => locker.acquire(lock, mode, wait).await.map(AnyHeld::Both),
            Self::Redis(locker) => locker.acquire(lock, mode, wait).await.map(AnyHeld::Redis),
        }
    }

    /// # Panics
    /// If the lock belongs to another locker.
    async fn release(&self, held: AnyHeld) -> Result<(), NotHeld> {
        match (self, held) {
            (Self::Switched(locker), AnyHeld::Switched(held)) => locker.release(held).await,
            (Self::Served(locker), AnyHeld::Served(held)) => locker.release(held).await,
            (Self::Both(locker), AnyHeld::Both(held)) => locker.release(held).await,
            (Self::Redis(locker), AnyHeld::Redis(held)) => locker.release(held).await,
            _ => panic!("the lock is of another locker"),
        }
    }

    fn counts(&self) -> Counts {
        match self {
            Self::Switched(locker) => locker.counts(),
            Self::Served(locker) => locker.counts(),
            Self::Both(locker) => locker.counts(),
            Self::Redis(locker) => locker.counts(),
        }
    }

    async fn quiet(&self) {
        match self {
            Self::Switched(locker) => locker.quiet().await,
            Self::Served(locker) => locker.quiet().await,
            Self::Both(locker) => locker.quiet().await,
            Self::Redis(locker) => locker.quiet().await,
        }
    }
}
