//! Holders of locks, noted in words of this process.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lotus_locks::Mode;

/// Weight of a writer; a reader has weight one.
const WRITER: u32 = 1 << 16;

/// Holders of all locks.
pub(crate) struct Holders {
    held: Vec<AtomicU32>,
    /// Number of times that two clients held a lock in conflicting modes.
    clashes: AtomicU64,
}

impl Holders {
    pub(crate) fn new(locks: u64) -> Self {
        let held = (0..locks).map(|_| AtomicU32::new(0)).collect();
        Self { held, clashes: AtomicU64::new(0) }
    }

    const fn weight(mode: Mode) -> u32 {
        match mode {
            Mode::Shared => 1,
            Mode::Update | Mode::Exclusive => WRITER,
        }
    }

    /// Notes that a client holds a lock.
    pub(crate) fn enter(&self, lock: u64, mode: Mode) {
        // The modification order of a single word suffices.
        let before = self.held[lock as usize].fetch_add(Self::weight(mode), Ordering::AcqRel);
        let clashes = match mode {
            Mode::Shared => before >= WRITER,
            Mode::Update | Mode::Exclusive => before > 0,
        };
        if clashes {
            self.clashes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that a client no longer holds a lock.
    pub(crate) fn leave(&self, lock: u64, mode: Mode) {
        self.held[lock as usize].fetch_sub(Self::weight(mode), Ordering::AcqRel);
    }

    /// Findings when nothing runs, in sentences.
    pub(crate) fn findings(&self) -> Vec<String> {
        let clashes = self.clashes.load(Ordering::Relaxed);
        let kept = self.held.iter().filter(|held| held.load(Ordering::Acquire) != 0).count();
        let clashes =
            (clashes > 0).then(|| format!("{clashes} times two held a lock who must not"));
        let kept = (kept > 0).then(|| format!("{kept} locks were not released"));
        clashes.into_iter().chain(kept).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Exclusive, Shared};

    #[test]
    fn two_holders_who_must_not_are_seen() {
        for (first, second, clash) in [
            (Shared, Shared, false),
            (Shared, Exclusive, true),
            (Exclusive, Shared, true),
            (Exclusive, Exclusive, true),
        ] {
            let holders = Holders::new(3);
            holders.enter(1, first);
            holders.enter(2, Exclusive);
            holders.enter(1, second);
            holders.leave(2, Exclusive);
            holders.leave(1, first);
            let kept = "1 locks were not released".to_owned();
            let clashes = "1 times two held a lock who must not".to_owned();
            let all = clash.then_some(clashes).into_iter();
            assert_eq!(holders.findings(), all.clone().chain([kept]).collect::<Vec<_>>());
            holders.leave(1, second);
            assert_eq!(holders.findings(), all.collect::<Vec<_>>());
        }
    }
}
