//! Tally of one use of a lock, for every way of keeping locks.

use lotus_fabric::env::Nanos;
use lotus_fabric::lane::{Batch, Completed};
use lotus_fabric::verbs::VerbError;
use lotus_locks::{Mode, NotHeld};

use super::ledger::Arrival;
use super::{Fairness, LockTally, Shared};
use crate::lanes::nanos;

/// A use of a lock, from the request to the end of the release.
pub(super) struct Operation {
    pub(super) lock: u64,
    pub(super) wanted: Mode,
    pub(super) began: Nanos,
    pub(super) held: Nanos,
    /// Beginning of the release.
    pub(super) leaves: Nanos,
    pub(super) ended: Nanos,
}

impl Shared {
    /// Tallies a request that was refused.
    ///
    /// # Errors
    /// The reason, if clients do not go on after it.
    pub(super) fn tally_refusal(
        &self,
        tally: &mut LockTally,
        lock: u64,
        arrival: Option<Arrival>,
        counts: bool,
        why: NotHeld,
    ) -> Result<(), NotHeld> {
        if let Some((ledger, arrival)) = self.ledger.as_ref().zip(arrival) {
            tally.fairness = tally.fairness.max(ledger.give_up(lock, arrival));
        }
        match why {
            NotHeld::TimedOut | NotHeld::Reset => {
                tally.refused += u64::from(counts);
                Ok(())
            }
            other => Err(other),
        }
    }

    /// Tallies a use that has ended.
    ///
    /// # Errors
    /// The reason why the release failed, unless the lock was lost.
    #[inline]
    pub(super) fn tally(
        &self,
        tally: &mut LockTally,
        operation: &Operation,
        counts: bool,
        fairness: Option<Fairness>,
        released: Result<(), NotHeld>,
    ) -> Result<(), NotHeld> {
        let &Operation { lock, wanted, began, held, leaves, ended } = operation;
        tally.fairness = tally.fairness.max(fairness.unwrap_or_default());
        let was_lost = released == Err(NotHeld::Reset);
        if counts && was_lost {
            tally.refused += 1;
        } else if counts {
            let acquire_ns = nanos(began, held);
            tally.operations += 1;
            tally.acquire_ns.saturating_record(acquire_ns);
            tally.released.record(nanos(leaves, ended));
            let (acquire, of_kind) = match wanted {
                Mode::Shared => (&mut tally.reader_acquire, &mut tally.reader_ns),
                _ => (&mut tally.writer_acquire, &mut tally.writer_ns),
            };
            acquire.record(acquire_ns);
            of_kind.saturating_record(nanos(began, ended));
            if self.hottest == Some(lock) {
                tally.hottest_ns.saturating_record(acquire_ns);
            }
        }
        if was_lost { Ok(()) } else { released }
    }
}

/// Posts the verbs of a holder.
pub(super) async fn post(batch: Batch) -> Result<Completed, NotHeld> {
    batch.post().await.map_err(|failed| match failed.first().error {
        VerbError::Revoked => NotHeld::Expelled,
        _ => NotHeld::Unavailable,
    })
}
