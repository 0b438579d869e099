//! Locks that are left when no transaction runs: in lock tables, and in objects on memory nodes.

use lotus_fabric::ids::RemoteAddr;
use lotus_fabric::machines::Machines;
use lotus_fabric::verbs::MAX_VERB_BYTES;
use lotus_locks::LockSystem;
use lotus_locks::systems::Visitor;
use lotus_locktable::{Holder, LockMode};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_router::Placement;

use crate::api::error::{ClusterError, unreachable_nodes};
use crate::checks::audit::{Finding, Scan, Tally};
use crate::cluster::handle::Cluster;
use crate::node::locks::region_bytes;
use crate::node::shared::LOCK_REGION;

/// Judge of a lock object by its first word.
type IsFree = Box<dyn Fn(u64) -> bool>;

/// Makes the judge of a lock system's objects.
struct Judge;

impl Visitor for Judge {
    type Output = IsFree;

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> IsFree {
        let system = make();
        Box::new(move |head| system.is_free(head))
    }
}

impl<M: Machines> Cluster<M> {
    pub(crate) fn locks_left(&self) -> [Finding; 2] {
        let mut held = Tally::new("no lock is left held");
        let mut zeroed = Tally::new("a lock slot without a holder is all zeroes");
        let config = &self.shared.config;
        let fills = self.shared.nodes.iter().any(|node| node.configuration.placement().is_joined());
        // Filling a memory node holds read locks; neither transactions nor `settle` wait for it.
        let is_filling = |holder: &Holder| {
            let of_no_client = usize::from(holder.txn.slot()) >= config.threads * config.coroutines;
            fills && of_no_client && holder.mode == LockMode::Read
        };
        // The lock table of a failed node is gone with it.
        for node in self.shared.nodes.iter().filter(|node| !node.has_failed()) {
            held.seen += 1;
            zeroed.seen += 1;
            node.locks.for_each_holder(|holder| {
                if !is_filling(&holder) {
                    held.complain(|| format!("compute node {} keeps {holder:?}", node.index));
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

    /// Checks the lock objects on memory nodes, if locks are there: each is free, so that no
    /// request is in its queue and none resets it. A node that has failed keeps its locks if
    /// nothing is done about failures, and those that fill a memory node hold locks beside all.
    pub(crate) fn lock_objects_left(
        &self,
        placement: &Placement,
    ) -> Result<Option<Finding>, ClusterError> {
        let shared = &*self.shared;
        let Some(choice) = shared.config.memory_locks() else { return Ok(None) };
        let mut free = Tally::new("every lock object is free");
        let keeps = shared.config.lease.is_none() && shared.has_lost_a_node();
        if keeps || placement.is_joined() {
            return Ok(Some(free.finish()));
        }
        let (is_free, object) = (choice.visit(Judge), choice.object_bytes());
        let count = region_bytes(object) / object;
        let at_once = (MAX_VERB_BYTES as u64 / object).max(1);
        let scanned = shared.control.with_lane(|lane| async move {
            let scan = Scan { shared, placement, lane };
            for node in placement.nodes() {
                for first in (0..count).step_by(at_once as usize) {
                    let some = at_once.min(count - first);
                    let at = RemoteAddr::new(node, LOCK_REGION, first * object);
                    let words =
                        scan.read(at, ((some * object) as usize).min(MAX_VERB_BYTES)).await?;
                    for (number, words) in words.chunks(object as usize / WORD_BYTES).enumerate() {
                        free.seen += 1;
                        if !is_free(words[0]) {
                            let number = first + number as u64;
                            free.complain(|| format!("{number} on {node:?}: {:#x}", words[0]));
                        }
                    }
                }
            }
            Ok(free)
        })?;
        Ok(Some(scanned.map_err(unreachable_nodes)?.finish()))
    }
}
