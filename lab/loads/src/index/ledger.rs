//! Notes of the clients of a load on the tree about each key, in words of this process.
//!
//! The value of a key is the number of its updates. An update that holds the lock counts itself
//! before it posts its WRITE, and again after the WRITE was answered. So a search finds at least
//! the updates answered when the search began, and at most the updates counted when the search
//! ended.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
struct Note {
    /// Updates that have begun.
    begun: AtomicU64,
    /// Number of the newest update that has been answered.
    ended: AtomicU64,
}

/// Notes shared by the clients of all lanes.
pub(super) struct Ledger {
    notes: Vec<Note>,
    /// Searches that found a value outside the allowed range.
    wrong: AtomicU64,
}

impl Ledger {
    /// Notes for `keys` keys, of which the keys that `is_loaded` accepts have a first value.
    pub(super) fn new(keys: u64, is_loaded: impl Fn(u64) -> bool) -> Self {
        let note = |key| {
            let first = u64::from(is_loaded(key));
            Note { begun: AtomicU64::new(first), ended: AtomicU64::new(first) }
        };
        Self { notes: (0..keys).map(note).collect(), wrong: AtomicU64::new(0) }
    }

    /// Begins an update of a key and returns the new value. The caller holds the lock of the key's
    /// leaf.
    pub(super) fn begin(&self, key: u64) -> u64 {
        self.notes[key as usize].begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Ends an update.
    pub(super) fn end(&self, key: u64, value: u64) {
        self.notes[key as usize].ended.fetch_max(value, Ordering::SeqCst);
    }

    /// The oldest value that a search beginning now may find; 0 for no value.
    pub(super) fn oldest(&self, key: u64) -> u64 {
        self.notes[key as usize].ended.load(Ordering::SeqCst)
    }

    /// Checks the result of a search that ends now.
    pub(super) fn found(&self, key: u64, oldest: u64, found: Option<u64>) {
        let newest = self.notes[key as usize].begun.load(Ordering::SeqCst);
        if !(oldest..=newest).contains(&found.unwrap_or(0)) {
            self.wrong.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of searches that found a value outside the allowed range.
    pub(super) fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    /// Whether a key may have a value when nothing runs: the key's last value, or, if a lane was
    /// lost, the value of an update that has not ended.
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
