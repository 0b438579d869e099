//! What the clients of a load on the tree note of each key, in words of this process.
//!
//! The value of a key is the number of its updates. An update that holds the lock counts itself
//! before it posts its WRITE, and again when that was answered. So a search finds no less than what
//! was answered when it began, and no more than what was counted when it ended.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
struct Note {
    /// Updates that have begun.
    begun: AtomicU64,
    /// Updates of which one has been answered that is as late, or later.
    ended: AtomicU64,
}

/// What the clients of all lanes share.
pub(super) struct Ledger {
    notes: Vec<Note>,
    /// Searches that found another value than they may.
    wrong: AtomicU64,
}

impl Ledger {
    /// Notes of so many keys, of which those that `is_loaded` have a first value.
    pub(super) fn new(keys: u64, is_loaded: impl Fn(u64) -> bool) -> Self {
        let note = |key| {
            let first = u64::from(is_loaded(key));
            Note { begun: AtomicU64::new(first), ended: AtomicU64::new(first) }
        };
        Self { notes: (0..keys).map(note).collect(), wrong: AtomicU64::new(0) }
    }

    /// Begins an update of a key; returns its value. The caller holds the lock of its leaf.
    pub(super) fn begin(&self, key: u64) -> u64 {
        self.notes[key as usize].begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Ends an update.
    pub(super) fn end(&self, key: u64, value: u64) {
        self.notes[key as usize].ended.fetch_max(value, Ordering::SeqCst);
    }

    /// The oldest value that a search may find that begins now; 0 for none.
    pub(super) fn oldest(&self, key: u64) -> u64 {
        self.notes[key as usize].ended.load(Ordering::SeqCst)
    }

    /// Notes what a search has found that ends now.
    pub(super) fn found(&self, key: u64, oldest: u64, found: Option<u64>) {
        let newest = self.notes[key as usize].begun.load(Ordering::SeqCst);
        if !(oldest..=newest).contains(&found.unwrap_or(0)) {
            self.wrong.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Searches that found another value than they may.
    pub(super) fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    /// Whether a key may have a value when nothing runs: its last one, or, if a lane was lost, that
    /// of an update that has not ended.
    pub(super) fn may_have(&self, key: u64, value: Option<u64>) -> bool {
        let newest = self.notes[key as usize].begun.load(Ordering::SeqCst);
        (self.oldest(key)..=newest).contains(&value.unwrap_or(0))
    }

    /// Number of keys.
    pub(super) fn keys(&self) -> u64 {
        self.notes.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_may_find_what_was_there_while_it_ran() {
        // Before the search: one update has ended, one is under way. Another begins meanwhile.
        for (found, wrong) in
            [(None, 1), (Some(1), 1), (Some(2), 0), (Some(3), 0), (Some(4), 0), (Some(5), 1)]
        {
            let ledger = Ledger::new(2, |key| key == 1);
            let first = ledger.begin(1);
            ledger.end(1, first);
            ledger.begin(1);
            let oldest = ledger.oldest(1);
            ledger.begin(1);
            ledger.found(1, oldest, found);
            assert_eq!(ledger.wrong(), wrong, "{found:?}");
            assert!(ledger.may_have(1, found) == (2..=4).contains(&found.unwrap_or(0)));
            assert!(ledger.may_have(0, None) && !ledger.may_have(0, Some(1)));
        }
    }

    #[test]
    fn updates_that_end_late_hide_no_later_one() {
        let ledger = Ledger::new(1, |_| false);
        let (first, second) = (ledger.begin(0), ledger.begin(0));
        ledger.end(0, second);
        ledger.end(0, first);
        assert_eq!(ledger.oldest(0), second);
    }
}
