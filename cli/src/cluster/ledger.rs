//! What benchmarks have done to the balances of a running cluster.
//!
//! Balances move from one benchmark to the next, so what all of them have done stands at the
//! authority, and every one changes it by compare-and-swap: several may run at a time. A benchmark
//! that runs, or was cut short, has an open entry: what it has done is not known then, and no other
//! one can judge the balances.

use lotus_benchmarks::audit::Effects;
use lotus_router::{Authority, AuthorityError};
use serde::{Deserialize, Serialize};

use super::records;

/// Where it is.
const LEDGER: &str = "benchmarks/effects";

/// All entries since the cluster was loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// What those have done that have ended.
    pub effects: Effects,
    /// How many have begun and not ended.
    pub open: u32,
}

/// What the ledger says.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub fn read(authority: &dyn Authority) -> Result<Ledger, AuthorityError> {
    records::read(authority, LEDGER).map(|(_, found)| found.unwrap_or_default())
}

/// The cluster begins with what these entries are about.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub fn restore(authority: &dyn Authority, entries: &Ledger) -> Result<(), AuthorityError> {
    records::write(authority, LEDGER, entries).map(drop)
}

/// A benchmark begins.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub fn open(authority: &dyn Authority) -> Result<Ledger, AuthorityError> {
    records::update(authority, LEDGER, |ledger: &mut Ledger| ledger.open += 1)
}

/// A benchmark that had begun has ended, and done this; what the ledger says now.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub fn close(authority: &dyn Authority, effects: &Effects) -> Result<Ledger, AuthorityError> {
    records::update(authority, LEDGER, |ledger: &mut Ledger| {
        ledger.effects.merge(effects);
        // Whoever has thrown the entries away does not want to hear of this one.
        ledger.open = ledger.open.saturating_sub(1);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_router::EmbeddedAuthority;

    fn effect(committed: i128) -> Effects {
        Effects { committed, ..Effects::default() }
    }

    #[test]
    fn benchmarks_that_overlap_lose_nothing_of_each_other() {
        let authority = EmbeddedAuthority::new();
        assert_eq!(open(&authority).unwrap().open, 1);
        assert_eq!(open(&authority).unwrap().open, 2);
        let first = close(&authority, &effect(5)).unwrap();
        assert_eq!(first, Ledger { effects: effect(5), open: 1 });
        // One that is cut short stays open.
        open(&authority).unwrap();
        let second = close(&authority, &effect(-2)).unwrap();
        assert_eq!(second, Ledger { effects: effect(3), open: 1 });
    }

    /// The benchmark that wrote last used to write what it had read first: whatever had been
    /// entered meanwhile was lost, and every later audit failed.
    #[test]
    fn an_entry_that_comes_between_reading_and_writing_stays() {
        let authority = EmbeddedAuthority::new();
        let mut rivals = [effect(10), effect(20)].into_iter();
        let ledger = records::update(&authority, LEDGER, |ledger: &mut Ledger| {
            if let Some(rival) = rivals.next() {
                open(&authority).unwrap();
                close(&authority, &rival).unwrap();
            }
            ledger.effects.merge(&effect(1));
        });
        assert_eq!(ledger.unwrap(), Ledger { effects: effect(31), open: 0 });
        let (_, found) = records::read::<Ledger>(&authority, LEDGER).unwrap();
        assert_eq!(found, Some(Ledger { effects: effect(31), open: 0 }));
    }
}
