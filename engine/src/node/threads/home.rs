//! Detects code that runs on a coordinator's thread, or in a process forked from the cluster's.
//!
//! Waiting for a transaction on a coordinator's own thread would never end: the thread serves the
//! transaction. A forked child has none of the cluster's threads. The two errors are detected at
//! the beginning of the wait or the job.

use std::cell::Cell;
use std::process;

use crate::api::coordinator_id::CoordinatorId;
use crate::api::error::TxnError;

/// Error of waiting on a coordinator's thread.
pub(crate) const INSIDE: &str = "a transaction's code cannot run or await another one of its \
     cluster: do it in one transaction, or one after the other";
/// Error of a forked process.
pub(crate) const FORKED: &str = "a process that was forked has none of the cluster's threads: \
     start the cluster after the fork, or connect to a server";

thread_local! {
    /// Cluster and id of the coordinator run by this thread.
    static HOME: Cell<Option<(Name, CoordinatorId)>> = const { Cell::new(None) };
}

/// Names a cluster within this process, and the process that started it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    /// Address of the state shared by the cluster's coordinators.
    cluster: usize,
    process: u32,
}

impl Name {
    /// Name of the cluster whose coordinators share this state; of the calling process.
    pub(crate) fn of<T>(shared: *const T) -> Self {
        Self { cluster: shared.addr(), process: process::id() }
    }

    /// Id of this cluster's coordinator run by the calling thread.
    pub(crate) fn coordinator_here(self) -> Option<CoordinatorId> {
        HOME.get().filter(|(name, _)| *name == self).map(|(_, coordinator_id)| coordinator_id)
    }

    /// Whether the calling process was forked from the process that started the cluster.
    pub(crate) fn is_forked(self) -> bool {
        process::id() != self.process
    }

    /// Checks that the calling thread may wait for this cluster's coordinators.
    pub(crate) fn check(self) -> Result<(), TxnError> {
        match self.coordinator_here() {
            Some(_) => Err(TxnError::Misuse(INSIDE)),
            None if self.is_forked() => Err(TxnError::Misuse(FORKED)),
            None => Ok(()),
        }
    }

    /// Marks the calling thread as a coordinator thread of this cluster, for the rest of its life.
    pub(crate) fn settle_here(self, coordinator_id: CoordinatorId) {
        HOME.set(Some((self, coordinator_id)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_process_is_told_from_the_one_that_has_started_the_cluster() {
        let shared = 7;
        let here = Name::of(&raw const shared);
        assert!(!here.is_forked() && here.check().is_ok());
        let parents = Name { process: here.process + 1, ..here };
        assert!(parents.is_forked());
        assert_eq!(parents.check(), Err(TxnError::Misuse(FORKED)));
    }

    #[test]
    fn a_coordinators_thread_knows_its_cluster_and_no_other() {
        let clusters = [1, 2];
        let [one, other] = [&raw const clusters[0], &raw const clusters[1]].map(Name::of);
        let coordinator_id = CoordinatorId { compute_node: 1, thread: 2 };
        one.settle_here(coordinator_id);
        assert_eq!(one.coordinator_here(), Some(coordinator_id));
        assert_eq!(one.check(), Err(TxnError::Misuse(INSIDE)));
        assert_eq!((other.coordinator_here(), other.check()), (None, Ok(())));
    }
}
