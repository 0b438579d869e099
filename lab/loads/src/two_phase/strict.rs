//! The two phases of a transaction, for any locks: all locks are taken before the first is
//! released.

use std::time::Duration;

use lotus_fabric::exec::Handle;
use lotus_locks::{NotHeld, Wait};
use lotus_locksystems::Locker;

use super::holders::Holders;
use crate::lanes::nanos;
use crate::traces::WantedLock;

/// A failed attempt is followed by a pause of up to this part of the patience: clients that have
/// waited for one another, and given up together, then do not do so again.
pub(crate) const PAUSES: u64 = 10;

/// Reason why a transaction does not have its locks. The transaction then holds no lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failed {
    /// An acquisition was given up, or met a reset. The transaction may begin again.
    Aborted,
    /// Locks are no longer available.
    Ended(NotHeld),
}

impl From<NotHeld> for Failed {
    fn from(why: NotHeld) -> Self {
        match why {
            NotHeld::TimedOut | NotHeld::Reset | NotHeld::Conflict => Self::Aborted,
            other => Self::Ended(other),
        }
    }
}

/// Locks that a transaction holds.
pub(crate) struct Held<L: Locker> {
    all: Vec<(WantedLock, L::Held)>,
}

/// A lane that runs transactions.
pub(crate) struct Phases<'a, L> {
    pub(crate) locker: &'a L,
    pub(crate) executor: &'a Handle,
    /// Notes of the holders, if holders are noted.
    pub(crate) holders: Option<&'a Holders>,
    /// Time after which an acquisition is given up.
    pub(crate) patience: Duration,
}

impl<L: Locker> Phases<'_, L> {
    /// Takes the locks in the given order. Calls `took` with the time of each acquisition, in
    /// nanoseconds.
    ///
    /// # Errors
    /// [`Failed`]: the locks already taken are released.
    pub(crate) async fn grow(
        &self,
        wants: &[WantedLock],
        mut took: impl FnMut(u64),
    ) -> Result<Held<L>, Failed> {
        let mut held = Held { all: Vec::with_capacity(wants.len()) };
        for want in wants {
            let began = self.executor.now();
            let wait = Wait::Until(began.after(self.patience));
            match self.locker.acquire(want.lock, want.mode, wait).await {
                Ok(lock) => {
                    took(nanos(began, self.executor.now()));
                    if let Some(holders) = self.holders {
                        holders.enter(want.lock, want.mode);
                    }
                    held.all.push((*want, lock));
                }
                Err(why) => {
                    self.shrink(held).await?;
                    return Err(why.into());
                }
            }
        }
        Ok(held)
    }

    /// Whether all locks are still held: a lock with a lease may have been lost.
    pub(crate) fn is_valid(&self, held: &Held<L>) -> bool {
        held.all.iter().all(|(_, lock)| self.locker.is_valid(lock))
    }

    /// Releases all locks. The releases begin together, if the locks allow that.
    ///
    /// # Errors
    /// [`Failed::Aborted`] if a lock was no longer held.
    pub(crate) async fn shrink(&self, held: Held<L>) -> Result<(), Failed> {
        if let Some(holders) = self.holders {
            held.all.iter().for_each(|(want, _)| holders.leave(want.lock, want.mode));
        }
        let releases: Vec<_> =
            held.all.into_iter().map(|(_, lock)| self.locker.release(lock)).collect();
        let mut result = Ok(());
        for release in releases {
            result = result.and(release.await);
        }
        result.map_err(Failed::from)
    }
}
