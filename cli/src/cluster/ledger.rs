//! What benchmarks have done to the balances of a running cluster.
//!
//! Balances move from one benchmark to the next, so what all of them have done stands at the
//! authority, and every one changes it by compare-and-swap: several may run at a time. A benchmark
//! that runs, or was cut short, has an open entry: what it has done is not known then, and no other
//! one can judge the balances. Nor can any after a benchmark of whose calls some have an unknown
//! outcome: the entry says of how many.
//!
//! Calls of benchmarks have ids, for which there is room for so many in some time
//! ([`CallRecords`]): who has used how many stands there as well.

use lotus_benchmarks::audit::Effects;
use lotus_fabric::env::Nanos;
use lotus_router::{Authority, AuthorityError};
use lotus_server::CallRecords;
use serde::{Deserialize, Serialize};

use super::records;

/// Where it is.
const LEDGER: &str = "benchmarks/effects";
/// Where it is written how many ids benchmarks have given to calls, and when.
const IDS: &str = "benchmarks/ids";
/// What is remembered of a call with an id and a small result, in bytes.
const CALL_BYTES: u64 = 48;

/// All entries since the cluster was loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// What those have done that have ended.
    pub effects: Effects,
    /// How many have begun and not ended.
    pub open: u32,
}

impl Ledger {
    /// What balances are judged by: whoever has not ended may have moved them.
    pub fn to_judge(self) -> Effects {
        Effects { unjudged: self.effects.unjudged + u64::from(self.open), ..self.effects }
    }
}

/// Ids that were given to calls by a time, in milliseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Given {
    by_ms: u64,
    ids: u64,
}

/// For how many calls with ids there is room. Some rows get more of them than others, so half of
/// what the rows hold is counted upon.
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

/// So many ids were given to calls until now.
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
