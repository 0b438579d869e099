//! Effects of benchmarks on the balances of a running cluster.
//!
//! Balances carry over from one benchmark to the next, so the authority keeps the sum of all
//! effects. Each benchmark updates the sum by compare-and-swap, since several benchmarks may run at
//! a time. A benchmark that is running, or was cut short, has an open entry: its effects are
//! unknown, and no other benchmark can judge the balances. The same holds after a benchmark with
//! calls of unknown outcome: the entry counts these calls.
//!
//! Calls of benchmarks have ids, and the table of remembered ids has room for a limited number in a
//! period ([`CallRecords`]): the ledger records the ids in use as well.

use lotus_authority::{Authority, AuthorityError};
use lotus_benchmarks::audit::Effects;
use lotus_fabric::env::Nanos;
use lotus_server::CallRecords;
use serde::{Deserialize, Serialize};

use lotus_node::agree::records;

/// Key of the ledger.
const LEDGER: &str = "benchmarks/effects";
/// Key of the list of ids given to calls by benchmarks, with times.
const IDS: &str = "benchmarks/ids";
/// Bytes remembered for a call with an id and a small result.
const CALL_BYTES: u64 = 48;

/// All entries since the cluster was loaded, summed up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// Effects of completed benchmarks.
    pub effects: Effects,
    /// Number of benchmarks that have begun and not ended.
    pub open: u32,
}

impl Ledger {
    /// Effects to judge balances by. An open benchmark counts as unjudged, since it may have
    /// changed balances.
    pub fn to_judge(self) -> Effects {
        Effects { unjudged: self.effects.unjudged + u64::from(self.open), ..self.effects }
    }
}

/// Number of ids given to calls until a time, in milliseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Given {
    by_ms: u64,
    ids: u64,
}

/// Number of calls with ids that the table has room for. Ids spread unevenly over rows, so only
/// half of the rows' capacity counts.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub fn room_for_ids(
    authority: &dyn Authority,
    records: &CallRecords,
    now: Nanos,
) -> Result<u64, AuthorityError> {
    let (_, given) = records::read::<Vec<Given>>(authority, IDS)?;
    let kept = given.unwrap_or_default().into_iter().filter(|one| one.is_kept(records, now));
    let used: u64 = kept.map(|one| one.ids).sum();
    let holds = records.rows * u64::from(records.row_bytes) / CALL_BYTES;
    Ok((holds / 2).saturating_sub(used))
}

/// Records that `ids` ids were given to calls until now.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub fn use_ids(
    authority: &dyn Authority,
    records: &CallRecords,
    now: Nanos,
    ids: u64,
) -> Result<(), AuthorityError> {
    let change = |given: &mut Vec<Given>| {
        given.retain(|one| one.is_kept(records, now));
        given.push(Given { by_ms: now.0 / 1_000_000, ids });
    };
    records::update(authority, IDS, change).map(drop)
}

impl Given {
    /// Whether the calls are still remembered.
    fn is_kept(&self, records: &CallRecords, now: Nanos) -> bool {
        self.by_ms + records.retention.as_millis() as u64 > now.0 / 1_000_000
    }
}

/// Reads the ledger.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub fn read(authority: &dyn Authority) -> Result<Ledger, AuthorityError> {
    records::read(authority, LEDGER).map(|(_, found)| found.unwrap_or_default())
}

/// Sets the ledger of a cluster that starts from a snapshot to the snapshot's entries.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub fn restore(authority: &dyn Authority, entries: &Ledger) -> Result<(), AuthorityError> {
    records::write(authority, LEDGER, entries).map(drop)
}

/// Opens an entry for a starting benchmark; returns the ledger.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub fn open(authority: &dyn Authority) -> Result<Ledger, AuthorityError> {
    records::update(authority, LEDGER, |ledger: &mut Ledger| ledger.open += 1)
}

/// Closes a benchmark's entry and adds its effects; returns the ledger.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub fn close(authority: &dyn Authority, effects: &Effects) -> Result<Ledger, AuthorityError> {
    records::update(authority, LEDGER, |ledger: &mut Ledger| {
        ledger.effects.merge(effects);
        // No entry is open if the ledger was reset meanwhile.
        ledger.open = ledger.open.saturating_sub(1);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_authority::EmbeddedAuthority;

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

    #[test]
    fn ids_are_given_as_long_as_what_is_remembered_has_room() {
        let authority = EmbeddedAuthority::new();
        let records = CallRecords::default();
        let second = |second: u64| Nanos(second * 1_000_000_000);
        let room = |now| room_for_ids(&authority, &records, now).unwrap();
        let all = room(second(1000));
        assert!((300_000..500_000).contains(&all), "{all}");
        use_ids(&authority, &records, second(1000), 100).unwrap();
        use_ids(&authority, &records, second(1300), all).unwrap();
        assert_eq!((room(second(1599)), room(second(1601)), room(second(1901))), (0, 0, all));
    }

    #[test]
    fn nobody_judges_by_what_is_not_known() {
        let effects = Effects { unjudged: 2, ..effect(5) };
        let ledger = Ledger { effects, open: 1 };
        assert_eq!(ledger.to_judge(), Effects { unjudged: 3, ..effect(5) });
    }

    /// The benchmark that wrote last used to write what it had read first: entries made meanwhile
    /// were lost, and every later audit failed.
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
