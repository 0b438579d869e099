//! Locks that a server frees, as published, when nothing happens to them for so long that a holder
//! counts as lost.

use std::time::Duration;

/// How the keeper of a lock frees it (ShiftLock §3.6). Its object has a second word: the *era*,
/// the number of times that this was done.
#[derive(Clone, Copy, Debug)]
pub struct Keeping {
    /// Time between two looks of a waiter.
    pub look: Duration,
    /// Time without a release, in one era, after which a waiter asks the keeper.
    pub patience: Duration,
    /// Time after which it asks again.
    pub again: Duration,
    /// Number of releases, of a head.
    pub count: fn(u64) -> u64,
    /// The head that takes the place of another.
    pub freed: fn(u64) -> u64,
}
