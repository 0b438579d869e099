//! Whether an authority that counts revisions is still the one that it was.
//!
//! # Why
//! An etcd that was restored from a backup counts revisions again that it had given before, for
//! other writes, and has forgotten what was decided in between: who was expelled, who owns what. A
//! version that a process holds may then name a write that it has never seen, and a
//! compare-and-swap that must be refused succeeds.
//!
//! # What it is
//! Answers are linearizable, so each is at a revision no smaller than any that was seen before the
//! question was asked. One that is not comes from a store that has gone back, or from another. From
//! then on nothing of it is believed by this process; it may go on without an authority, as it does
//! when etcd is silent.
//!
//! # What it is not
//! A cure: a process that was not there before the restore sees nothing wrong, and one that asks
//! only when the count has caught up does not either. A cluster is ended before its etcd is
//! restored (docs/operations.md).

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a process has seen of a store.
#[derive(Debug, Default)]
pub(crate) struct Lineage(Mutex<Seen>);

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Id of the store, once it has answered.
    store: Option<u64>,
    revision: i64,
    broken: bool,
}

/// Revision that an answer must have reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked(i64);

/// The store is not what it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken;

impl Lineage {
    /// A question is about to be asked.
    ///
    /// # Errors
    /// No answer would count.
    pub(crate) fn ask(&self) -> Result<Asked, Broken> {
        let seen = self.lock();
        if seen.broken { Err(Broken) } else { Ok(Asked(seen.revision)) }
    }

    /// The store of this id has answered, and was at this revision.
    ///
    /// # Errors
    /// The answer does not count.
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
        // Answers to questions that were asked together come in any order.
        (seen.store, seen.revision) = (Some(store), seen.revision.max(revision));
        Ok(())
    }

    /// Whether nothing of the store is believed any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.lock().broken
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The store was restored from a backup of revision 100 while this process knew of revision
    /// 105: the next writes were given 101 to 105 again, and the fifth passed for what it had seen.
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
