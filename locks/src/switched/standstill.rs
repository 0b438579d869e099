//! A machine that stands still for a recovery: its report, and the pages of what it is told.

use super::control::Progress;
use super::pages::{Added, Assembly, MOST_BYTES, Page};
use crate::fisslock::report::{Locks, decode_locks};

/// State of a machine from its stop in an epoch on. Nothing of it outlasts that stop, so no page of
/// an earlier epoch is taken for one of this.
#[derive(Debug)]
pub(super) struct Standstill {
    epoch: u32,
    report: Vec<u8>,
    told: Assembly,
}

impl Standstill {
    /// A stop, with what the machine reports.
    pub(super) const fn of(epoch: u32, report: Vec<u8>) -> Self {
        Self { epoch, report, told: Assembly::of_at_most(MOST_BYTES) }
    }

    /// Epoch of the recovery.
    pub(super) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// A page of the report, if it has so many.
    pub(super) fn page(&self, number: u32) -> Option<Page> {
        Page::of(&self.report, number)
    }

    /// Takes in a page of what the machine is told: the locks, with the last one.
    pub(super) fn tell(&mut self, page: Page) -> Result<Locks, Progress> {
        match self.told.add(page) {
            Added::Kept => Err(Progress::Kept),
            Added::Refused => Err(Progress::Refused),
            Added::Whole(bytes) => decode_locks(&bytes).ok_or(Progress::Refused),
        }
    }
}
