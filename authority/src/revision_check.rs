//! Detection of a restored or replaced authority, by its revision count.
//!
//! # Why
//! An etcd restored from a backup gives the revisions of forgotten writes to new writes, and has
//! forgotten the decisions in between: expulsions, changes of owners. A process's version may then
//! name a write unknown to the process, and a compare-and-swap that must be refused succeeds.
//!
//! # What it is
//! Answers are linearizable, so an answer's revision is no smaller than any revision seen before
//! the question was asked. An answer with a smaller revision comes from a store that has gone back,
//! or from another store. From then on the process ignores the store's answers (I199); it may go on
//! without an authority, as during an outage of etcd.
//!
//! # What it is not
//! A cure: neither a process started after the restore nor a process that asks only when the count
//! has caught up notices the restore. A cluster must be ended before its etcd is restored
//! (docs/operations.md).

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Largest revision that a process has seen of a store, and whether the store can be trusted.
#[derive(Debug, Default)]
pub(crate) struct RevisionCheck(Mutex<KnownServer>);

#[derive(Clone, Copy, Debug, Default)]
struct KnownServer {
    /// Id of the store, once the store has answered.
    store: Option<u64>,
    revision: i64,
    broken: bool,
}

/// Smallest revision that an answer must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MinimumRevision(i64);

/// The store has gone back, or is another store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken;

impl RevisionCheck {
    /// Called before a question; returns the smallest valid revision of the answer.
    ///
    /// # Errors
    /// [`Broken`] if no answer of the store counts any more.
    pub(crate) fn ask(&self) -> Result<MinimumRevision, Broken> {
        let seen = self.lock();
        if seen.broken { Err(Broken) } else { Ok(MinimumRevision(seen.revision)) }
    }

    /// Called with an answer: checks the id of the store and the answer's revision.
    ///
    /// # Errors
    /// [`Broken`] if the answer does not count.
    pub(crate) fn heed(
        &self,
        MinimumRevision(least): MinimumRevision,
        store: u64,
        revision: i64,
    ) -> Result<(), Broken> {
        let mut seen = self.lock();
        seen.broken |= revision < least || seen.store.is_some_and(|known| known != store);
        if seen.broken {
            return Err(Broken);
        }
        // Answers to concurrent questions arrive in any order.
        (seen.store, seen.revision) = (Some(store), seen.revision.max(revision));
        Ok(())
    }

    /// Whether all further answers of the store are ignored.
    pub(crate) fn is_broken(&self) -> bool {
        self.lock().broken
    }

    fn lock(&self) -> MutexGuard<'_, KnownServer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the store was restored from a backup of revision 100 while this process knew of
    /// revision 105. The next writes were given 101 to 105 again, and the fifth passed for one that
    /// the process had seen.
    #[test]
    fn a_store_that_has_gone_back_is_not_believed_again() {
        let revision_check = RevisionCheck::default();
        for revision in [90, 105, 105] {
            let asked = revision_check.ask().expect("nothing is wrong");
            assert_eq!(revision_check.heed(asked, 7, revision), Ok(()));
        }
        let asked = revision_check.ask().expect("nothing is wrong yet");
        assert_eq!(revision_check.heed(asked, 7, 101), Err(Broken));
        assert_eq!(
            (revision_check.ask(), revision_check.is_broken()),
            (Err(Broken), true),
            "whatever comes"
        );
        assert_eq!(revision_check.heed(asked, 7, 200), Err(Broken));
    }

    #[test]
    fn questions_that_were_asked_together_may_be_answered_in_any_order() {
        let revision_check = RevisionCheck::default();
        let [one, other] = [(); 2].map(|()| revision_check.ask().expect("nothing is wrong"));
        assert_eq!(revision_check.heed(other, 7, 12), Ok(()));
        assert_eq!(revision_check.heed(one, 7, 11), Ok(()));
        let later = revision_check.ask().expect("nothing is wrong");
        assert_eq!(later, MinimumRevision(12));
        assert_eq!(revision_check.heed(later, 7, 11), Err(Broken));
    }

    #[test]
    fn another_store_is_not_believed() {
        let revision_check = RevisionCheck::default();
        let asked = revision_check.ask().expect("nothing is wrong");
        assert_eq!(revision_check.heed(asked, 7, 5), Ok(()));
        let asked = revision_check.ask().expect("nothing is wrong");
        assert_eq!(revision_check.heed(asked, 8, 500), Err(Broken));
    }
}
