//! Locks that remain when no transaction runs: in lock tables, and in objects on memory nodes.

use std::task::Poll;
use std::time::Duration;

use lotus_fabric::ids::RemoteAddr;
use lotus_fabric::verbs::MAX_VERB_BYTES;
use lotus_locks::LockSystem;
use lotus_locks::systems::{ServiceLocks, Visitor};
use lotus_locktable::{Holder, LockMode};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_router::Placement;

use crate::api::coordinator_id::CoordinatorId;
use crate::api::error::{ClusterError, unreachable_nodes};
use crate::checks::audit::{Finding, Scan, Tally, whose};
use crate::cluster::handle::Cluster;
use crate::node::locks::{Locks, region_bytes};
use crate::node::shared::LOCK_REGION;

/// Least time to wait for a lock that a lost node may hold.
const PATIENCE: Duration = Duration::from_secs(1);

/// Predicate on a lock object's first word: whether the object is free.
type IsFree = Box<dyn Fn(u64) -> bool>;

/// Makes the predicate for a lock system's objects.
struct Judge;

impl Visitor for Judge {
    type Output = IsFree;

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> IsFree {
        let system = make();
        Box::new(move |head| system.is_free(head))
    }
}

impl Cluster {
    pub(crate) fn locks_left(&self) -> [Finding; 2] {
        let mut held = Tally::new("no lock is left held");
        let mut zeroed = Tally::new("a lock slot without a holder is all zeroes");
        let config = &self.shared.config;
        let fills = self.shared.nodes.iter().any(|node| node.configuration.placement().is_joined());
        // The filling of a memory node holds read locks; neither transactions nor `settle` wait for
        // it.
        let is_filling = |holder: &Holder| {
            fills && config.is_upkeep(holder.txn.slot()) && holder.mode == LockMode::Read
        };
        // The lock table of a failed node is gone with the node.
        for node in self.shared.nodes.iter().filter(|node| !node.has_failed()) {
            held.seen += 1;
            zeroed.seen += 1;
            node.locks.for_each_holder(|holder| {
                if !is_filling(&holder) {
                    let whose = whose(config, holder.txn);
                    held.complain(|| {
                        format!("compute node {} keeps {holder:?}, {whose}", node.index)
                    });
                }
            });
            let unsound = node.locks.unsound_slots();
            if unsound > 0 {
                let index = node.index;
                zeroed.complain(|| format!("{unsound} differ from their holders on node {index}"));
            }
        }
        [held.finish(), zeroed.finish()]
    }

    /// Checks the lock objects on memory nodes, if locks lie in memory: each object is free, with
    /// no request in the queue and no reset under way. A lock held or awaited by a lost node is
    /// freed only at the next request, so the check requests such locks itself. Not checked without
    /// a lease if a node was lost, because its locks stay for ever, and while a memory node is
    /// filled, because filling holds locks.
    pub(crate) fn lock_objects_left(
        &self,
        placement: &Placement,
    ) -> Result<Option<Finding>, ClusterError> {
        let shared = &*self.shared;
        let Some(choice) = shared.config.memory_locks() else { return Ok(None) };
        let mut free = Tally::new("every lock object is free");
        let has_lost = shared.has_lost_a_node();
        let fills = shared.nodes.iter().any(|node| node.configuration.placement().is_joined());
        if fills || has_lost && shared.config.lease.is_none() {
            return Ok(Some(free.finish()));
        }
        let mut used = self.used_objects(placement, choice, &mut free.seen)?;
        if has_lost && !used.is_empty() {
            self.pass(used.iter().map(|(at, _)| *at).collect());
            used = self.used_objects(placement, choice, &mut free.seen)?;
        }
        for (at, head) in used {
            free.complain(|| format!("{at:?}: {head:#x}"));
        }
        Ok(Some(free.finish()))
    }

    /// Returns the lock objects that are not free, with their first words. Adds the number of all
    /// objects to `seen`.
    fn used_objects(
        &self,
        placement: &Placement,
        choice: ServiceLocks,
        seen: &mut u64,
    ) -> Result<Vec<(RemoteAddr, u64)>, ClusterError> {
        let shared = &*self.shared;
        let (is_free, object) = (choice.visit(Judge), choice.object_bytes());
        let count = region_bytes(object) / object;
        let at_once = (MAX_VERB_BYTES as u64 / object).max(1);
        *seen += count * placement.nodes().into_iter().count() as u64;
        let scanned = shared.control.with_lane(|lane| async move {
            let scan = Scan { shared, placement, lane };
            let mut used = Vec::new();
            for node in placement.nodes() {
                for first in (0..count).step_by(at_once as usize) {
                    let at = |number| RemoteAddr::new(node, LOCK_REGION, number * object);
                    let bytes = at_once.min(count - first) * object;
                    let words = scan.read(at(first), (bytes as usize).min(MAX_VERB_BYTES)).await?;
                    let objects = words.chunks(object as usize / WORD_BYTES);
                    let heads = (first..).zip(objects.map(|object| object[0]));
                    used.extend(
                        heads
                            .filter(|(_, head)| !is_free(*head))
                            .map(|(number, head)| (at(number), head)),
                    );
                }
            }
            Ok(used)
        })?;
        scanned.map_err(unreachable_nodes)
    }

    /// Takes locks and releases them, all at once, on a node that serves.
    fn pass(&self, objects: Vec<RemoteAddr>) {
        let config = &self.shared.config;
        let patience = config.commit_timeout.max(PATIENCE);
        let coordinator_id = self.serving(CoordinatorId { compute_node: 0, thread: 0 });
        let passed = self.submit(coordinator_id, move |session| async move {
            let Locks::OnMemory(locks) = &session.coordinator().locks else { return Ok(()) };
            let pass = |at: &RemoteAddr| locks.system.pass(*at, patience);
            let mut passing: Vec<_> = objects.iter().map(pass).collect();
            std::future::poll_fn(|task| {
                passing.retain_mut(|one| one.as_mut().poll(task).is_pending());
                if passing.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            Ok(())
        });
        // A lock that was not taken is found to be in use.
        let _ = self.wait(passed);
    }
}
