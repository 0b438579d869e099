//! Locks that a server frees, as published, when no activity for a long time makes a holder count
//! as lost.

use std::time::Duration;

/// How the keeper of a lock frees it (ShiftLock §3.6). The lock object has a word behind the words
/// of the lock: the *era*, the number of times that the keeper has freed the lock.
#[derive(Clone, Copy, Debug)]
pub struct KeeperRules {
    /// Time between two looks of a waiter.
    pub look: Duration,
    /// Time without a release, in one era, after which a waiter asks the keeper.
    pub patience: Duration,
    /// Time after which the waiter asks again.
    pub again: Duration,
    /// Extracts the number of releases from the words of a lock. The second word is 0 unless the
    /// lock has two ([`super::LockSystem::WIDE`]).
    pub count: fn([u64; 2]) -> u64,
    /// Computes the words of the freed lock from its present words.
    pub freed: fn([u64; 2]) -> [u64; 2],
}
