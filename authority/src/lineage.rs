//! Detection of an authority that was restored from a backup or replaced, by its revision count.
//!
//! # Why
//! An etcd that was restored from a backup repeats revisions that it had given to other writes, and
//! has forgotten the decisions in between: expulsions, changes of owners. A version that a process
//! holds may then name a write that it has never seen, and a compare-and-swap that must be refused
//! succeeds.
//!
//! # What it is
//! Answers are linearizable, so each is at a revision no smaller than any that was seen before the
//! question was asked. An answer that is not comes from a store that has gone back, or from another
//! one. From then on this process believes none of its answers; it may go on without an authority,
//! as it does when etcd is silent.
//!
//! # What it is not
//! A cure: a process that was not there before the restore sees nothing wrong, and neither does one
//! that asks only when the count has caught up. A cluster is ended before its etcd is restored
//! (docs/operations.md).

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Largest revision that a process has seen of a store, and whether the store can be believed.
#[derive(Debug, Default)]
pub(crate) struct Lineage(Mutex<KnownServer>);

#[derive(Clone, Copy, Debug, Default)]
struct KnownServer {
    /// Id of the store, once it has answered.
    store: Option<u64>,
    revision: i64,
    broken: bool,
}

/// Smallest revision that an answer must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked(i64);

/// The store has gone back, or is another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken;

impl Lineage {
    /// Called before a question; returns the revision that its answer must have reached.
    ///
    /// # Errors
    /// [`Broken`] if no answer of the store counts any more.
    pub(crate) fn ask(&self) -> Result<Asked, Broken> {
        let seen = self.lock();
        if seen.broken { Err(Broken) } else { Ok(Asked(seen.revision)) }
    }

    /// Called with an answer: the id of the store and its revision.
    ///
    /// # Errors
    /// [`Broken`] if the answer does not count.
    pub(crate) fn heed(
        &self,
        Asked(least): Asked,
        store: u64,
        revision: i64,
    ) -> Result<(), Broken> {
        let mut seen = self.lock();
        seen.broken |= revision < least || seen.store.is_some_and(|known| known != store);
        if seen.broken {
            return Err(Broken);
        }
        // Answers to concurrent questions come in any order.
        (seen.store, seen.revision) = (Some(store), seen.revision.max(revision));
        Ok(())
    }

    /// Whether no answer of the store is believed any more.
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
        let lineage = Lineage::default();
        for revision in [90, 105, 105] {
            let asked = lineage.ask().expect("nothing is wrong");
            assert_eq!(lineage.heed(asked, 7, revision), Ok(()));
        }
        let asked = lineage.ask().expect("nothing is wrong yet");
        assert_eq!(lineage.heed(asked, 7, 101), Err(Broken));
        assert_eq!((lineage.ask(), lineage.is_broken()), (Err(Broken), true), "whatever comes");
        assert_eq!(lineage.heed(asked, 7, 200), Err(Broken));
    }

    #[test]
    fn questions_that_were_asked_together_may_be_answered_in_any_order() {
        let lineage = Lineage::default();
        let [one, other] = [(); 2].map(|()| lineage.ask().expect("nothing is wrong"));
        assert_eq!(lineage.heed(other, 7, 12), Ok(()));
        assert_eq!(lineage.heed(one, 7, 11), Ok(()));
        let later = lineage.ask().expect("nothing is wrong");
        assert_eq!(later, Asked(12));
        assert_eq!(lineage.heed(later, 7, 11), Err(Broken));
    }

    #[test]
    fn another_store_is_not_believed() {
        let lineage = Lineage::default();
        let asked = lineage.ask().expect("nothing is wrong");
        assert_eq!(lineage.heed(asked, 7, 5), Ok(()));
        let asked = lineage.ask().expect("nothing is wrong");
        assert_eq!(lineage.heed(asked, 8, 500), Err(Broken));
    }
}
