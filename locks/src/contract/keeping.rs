//! Locks that a server frees, as published, when nothing happens to them for so long that a holder
//! counts as lost.

use std::time::Duration;

/// How the keeper of a lock frees it (ShiftLock §3.6). Its object has a word behind those of the
/// lock: the *era*, the number of times that this was done.
#[derive(Clone, Copy, Debug)]
pub struct Keeping {
    /// Time between two looks of a waiter.
    pub look: Duration,
    /// Time without a release, in one era, after which a waiter asks the keeper.
    pub patience: Duration,
    /// Time after which it asks again.
    pub again: Duration,
    /// Number of releases, of the words of a lock; the second is 0 unless the lock has it
    /// ([`super::LockSystem::WIDE`]).
    pub count: fn([u64; 2]) -> u64,
    /// The words that take the place of others.
    pub freed: fn([u64; 2]) -> [u64; 2],
}
