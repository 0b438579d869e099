//! The idealized lock of LOTUS §8.4 as the locks of a coordinator. Excludes nothing.

use std::cell::RefCell;
use std::future::{Future, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::ids::{Epoch, NodeId, RemoteAddr};
use lotus_fabric::region::WORD_BYTES;
use lotus_fabric::rpc::Rpc;
use lotus_locks::ideal::{Counters, IdealLocks};
use lotus_locktable::{HeldLocks, LockRequest, LockService};

use crate::node::locks::{Acquiring, Homes, LocksOnMemory, OnMemory, objects_of, region_bytes};
use crate::node::shared::{ComputeNode, Shared};

/// Begins to use the lock.
pub(super) fn begin(shared: &Arc<Shared>, node: &Arc<ComputeNode>, rpc: &Rpc) -> LocksOnMemory {
    let (homes, bytes) = (Homes::default(), WORD_BYTES as u64);
    let words = region_bytes(bytes) / bytes;
    let memory_nodes = shared.config.memory_nodes;
    let counters = || Arc::new(Counters::new(memory_nodes, words as usize));
    let counters = Arc::clone(node.ideal.get_or_init(counters));
    let object_of = objects_of(shared, Rc::clone(&homes), words, bytes);
    let exclusion = Arc::clone(&shared.exclusion);
    let locks = IdealLocks::new(rpc.lane().clone(), counters, exclusion, object_of);
    LocksOnMemory { system: Box::new(locks), homes, left: RefCell::default() }
}

impl OnMemory for IdealLocks {
    fn acquire<'a>(
        &'a self,
        held: &'a mut HeldLocks,
        round: u16,
        wanted: &'a [LockRequest],
        timeout: Duration,
    ) -> Acquiring<'a> {
        Box::pin(LockService::acquire(self, held, round, wanted, timeout))
    }

    fn release(&self, held: &mut HeldLocks) {
        LockService::release(self, held);
    }

    fn is_beside(&self, held: &HeldLocks) -> bool {
        Self::is_beside(held)
    }

    /// No lock to rely on.
    fn are_valid(&self, _: &HeldLocks) -> bool {
        true
    }

    /// No request waits there.
    fn abandon(&self, _: NodeId) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(ready(()))
    }

    fn resume(&self, _: NodeId, _: Epoch) {}

    fn is_settled(&self) -> bool {
        self.is_quiet()
    }

    /// The lock is granted at once, used or not.
    fn pass(&self, _: RemoteAddr, _: Duration) -> Pin<Box<dyn Future<Output = bool>>> {
        Box::pin(ready(true))
    }
}
