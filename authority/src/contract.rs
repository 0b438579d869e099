//! The cluster's agreed configuration: a few small versioned values, changed by compare-and-swap.
//!
//! # What it is
//! [`Authority`] is the contract of a coordination service; [`EmbeddedAuthority`] implements the
//! contract inside one process. Versions come from one counter for the whole store, as etcd's
//! revisions do: a later write has a larger version, even of another key. So a version is also an
//! *epoch*: of two processes, the holder of the larger version has seen the later state.
//!
//! # What it is not
//! Not a failure detector and not on the data path. A call may take a network round trip, so only
//! control threads make calls, never a coordinator between two polls. The authority knows nothing
//! of shards or nodes; keys and values are the caller's.
//!
//! # Watching
//! No callbacks: [`Authority::changed_since`] returns a value newer than the version seen by the
//! caller. A watcher that polls late skips intermediate values and never misses the last value,
//! which is enough for configuration.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lotus_fabric::ids::Incarnation;
use serde::{Deserialize, Serialize};

/// Point in the store's history; larger is later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Version(pub u64);

impl Version {
    /// Version of a missing key.
    pub const ABSENT: Self = Self(0);
}

/// A value and the version of its write.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Versioned {
    /// Version assigned by the write.
    pub version: Version,
    /// The stored bytes.
    pub value: Vec<u8>,
}

/// Failure of a question to the authority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// The key has a different version; the write was refused. Read the value and decide again.
    #[error("the value has changed: its version is {} now", current.0)]
    Conflict {
        /// Present version of the key.
        current: Version,
    },
    /// No answer came. A write may or may not have happened: read before repeating the write.
    #[error("the authority did not answer")]
    Unavailable,
}

/// A store of small versioned values shared by the nodes. Linearizable.
pub trait Authority: Send + Sync {
    /// Reads the value under `key`; `None` for a missing key.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    fn read(&self, key: &str) -> Result<Option<Versioned>, AuthorityError>;

    /// Writes `value` under `key` if the key's version is still `expected`
    /// ([`Version::ABSENT`] to create it); returns the new version.
    ///
    /// # Errors
    /// [`AuthorityError::Conflict`], or [`AuthorityError::Unavailable`] with the outcome unknown.
    fn compare_and_swap(
        &self,
        key: &str,
        expected: Version,
        value: &[u8],
    ) -> Result<Version, AuthorityError>;

    /// Reads the value under `key` if it was written after `seen`. Implementations with change
    /// notifications may answer from them.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    fn changed_since(&self, key: &str, seen: Version) -> Result<Option<Versioned>, AuthorityError> {
        Ok(self.read(key)?.filter(|found| found.version > seen))
    }

    /// Time for which an authority whose values end with a process may have been gone;
    /// `Duration::MAX` once the process is known to have ended, or the values belong to a life of
    /// the cluster that was ended. Otherwise zero if the values outlast every process of the
    /// cluster, or are in this process.
    fn silence(&self) -> Duration {
        Duration::ZERO
    }
}

/// The authority of a single-process cluster.
#[derive(Debug, Default)]
pub struct EmbeddedAuthority {
    store: Mutex<Store>,
}

#[derive(Debug, Default)]
struct Store {
    last: u64,
    values: BTreeMap<String, Versioned>,
}

impl EmbeddedAuthority {
    /// Creates an empty authority.
    pub fn new() -> Self {
        Self::default()
    }

    fn with_store<T>(&self, body: impl FnOnce(&mut Store) -> T) -> T {
        // A poisoned lock is harmless: the store is consistent before and after its only insertion.
        body(&mut self.store.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Authority for EmbeddedAuthority {
    fn read(&self, key: &str) -> Result<Option<Versioned>, AuthorityError> {
        Ok(self.with_store(|store| store.values.get(key).cloned()))
    }

    fn compare_and_swap(
        &self,
        key: &str,
        expected: Version,
        value: &[u8],
    ) -> Result<Version, AuthorityError> {
        self.with_store(|store| {
            let current = store.values.get(key).map_or(Version::ABSENT, |found| found.version);
            if current != expected {
                return Err(AuthorityError::Conflict { current });
            }
            store.last += 1;
            let version = Version(store.last);
            store.values.insert(key.to_owned(), Versioned { version, value: value.to_vec() });
            Ok(version)
        })
    }
}

/// Key of the last incarnation given out, as two little-endian bytes.
const INCARNATION_KEY: &str = "incarnation/last";

/// Reason why a starting compute node got no incarnation. The node must not join.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IncarnationError {
    /// The authority did not answer; start again later. At worst a number is left unused.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The numbers are used up; the cluster must be re-created to start more nodes.
    #[error("all {} incarnations have been used", (1 << Incarnation::BITS) - 1)]
    Exhausted,
    /// The stored value is not a counter; a foreign program writes to the authority.
    #[error("the stored incarnation counter is damaged")]
    Damaged,
}

/// Allocates a fresh incarnation for a compute node that starts: every start gets its own, so
/// remains of an earlier life cannot be mistaken for the new life's (H2, H4).
///
/// Numbers begin at 1. Zero is left out so that no transaction id is ever zero, which means "no
/// writer" in a record and "empty" in a log slot.
///
/// # Errors
/// See [`IncarnationError`].
pub fn allocate_incarnation(authority: &dyn Authority) -> Result<Incarnation, IncarnationError> {
    loop {
        let found = authority.read(INCARNATION_KEY)?;
        let (version, last) = match found {
            None => (Version::ABSENT, 0),
            Some(Versioned { version, value }) => {
                let bytes = value.try_into().map_err(|_| IncarnationError::Damaged)?;
                (version, u16::from_le_bytes(bytes))
            }
        };
        let next = last.checked_add(1).and_then(Incarnation::new);
        let next = next.ok_or(IncarnationError::Exhausted)?;
        let stored = next.raw().to_le_bytes();
        match authority.compare_and_swap(INCARNATION_KEY, version, &stored) {
            Ok(_) => return Ok(next),
            // A node that started concurrently took the number.
            Err(AuthorityError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Question, QuestionOutcome, TestAuthority};

    #[test]
    fn keeps_the_contract() {
        crate::conformance::run(&EmbeddedAuthority::new());
    }

    #[test]
    fn incarnations_begin_at_one_and_end_with_the_last_that_fits() {
        let authority = EmbeddedAuthority::new();
        for expected in 1..1_u16 << Incarnation::BITS {
            assert_eq!(allocate_incarnation(&authority).unwrap().raw(), expected);
        }
        assert_eq!(allocate_incarnation(&authority), Err(IncarnationError::Exhausted));
    }

    #[test]
    fn a_damaged_counter_is_refused() {
        let authority = EmbeddedAuthority::new();
        authority.compare_and_swap(INCARNATION_KEY, Version::ABSENT, b"lots").unwrap();
        assert_eq!(allocate_incarnation(&authority), Err(IncarnationError::Damaged));
    }

    #[test]
    fn lost_answers_and_rivals_waste_numbers_but_never_repeat_one() {
        let mut turn = 0_u32;
        // Every third answer is lost, and before every second write a rival is let in.
        let authority = TestAuthority::following(move |question, values| {
            if !matches!(question, Question::Swap { .. }) {
                return QuestionOutcome::Answered;
            }
            turn += 1;
            if !turn.is_multiple_of(2) {
                allocate_incarnation(values).expect("the rival finds a free number");
            }
            if turn % 3 == 1 { QuestionOutcome::AnswerLost } else { QuestionOutcome::Answered }
        });
        let taken: Vec<u16> = (0..300)
            .filter_map(|_| allocate_incarnation(&authority).ok())
            .map(Incarnation::raw)
            .collect();
        assert!(taken.len() > 100);
        assert!(taken.is_sorted_by(|earlier, later| earlier < later));
    }
}
