//! The locks that a cluster was configured with, as one coordinator uses them.
//!
//! Locks on memory nodes are those of `lotus-locks`, fenced: what a lost node held or waited for is
//! taken from it once it is settled ([`crate::node::lock_peers`]).

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::ids::RemoteAddr;
use lotus_fabric::rpc::{Rpc, Service};
use lotus_locks::systems::Visitor;
use lotus_locks::{Client, Identity, Limits, LockSystem, MemoryLocks, Mode, Wait};
use lotus_locktable::{HeldLocks, LockError, LockName, LockRequest, LockService, LotusLocks};

use crate::node::lock_peers::LockPeers;
use crate::node::shared::{ComputeNode, LOCK_REGION, Shared};

/// Service by which coordinators tell one another of resets, and of their uses of locks.
const SERVICE: Service = Service(7);
/// Least number of lock objects on a memory node, so that two locks seldom share one.
const OBJECTS: u64 = 1 << 16;
/// Least size of the region that has them.
const REGION_BYTES: u64 = 8 << 20;

/// Size of the region of lock objects on each memory node, for objects of so many bytes. Backed
/// only as it is used.
pub(crate) const fn region_bytes(object_bytes: u64) -> u64 {
    let least = OBJECTS * object_bytes;
    if least > REGION_BYTES { least } else { REGION_BYTES }
}

/// The locks of one coordinator.
pub(crate) enum Locks {
    Lotus(LotusLocks<ComputeNode>),
    OnMemory(Box<dyn OnMemory>),
}

/// An acquisition, in a box: its future would make that of each transaction larger.
type Acquiring<'a> = Pin<Box<dyn Future<Output = Result<(), LockError>> + 'a>>;

/// Locks on memory nodes, of whichever system. See [`LockService`].
pub(crate) trait OnMemory {
    fn acquire<'a>(
        &'a self,
        held: &'a mut HeldLocks,
        round: u16,
        wanted: &'a [LockRequest],
        timeout: Duration,
    ) -> Acquiring<'a>;

    fn release(&self, held: &mut HeldLocks);

    /// Whether an attempt may rely on its locks.
    fn are_valid(&self, held: &HeldLocks) -> bool;

    /// Whether nothing of what was released is under way.
    fn is_settled(&self) -> bool;

    /// Takes a lock by its object, and releases it. Returns whether it was had within `patience`.
    fn pass(&self, at: RemoteAddr, patience: Duration) -> Pin<Box<dyn Future<Output = bool>>>;
}

impl<S: LockSystem> OnMemory for MemoryLocks<S> {
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

    fn are_valid(&self, held: &HeldLocks) -> bool {
        self.are_valid(held)
    }

    fn is_settled(&self) -> bool {
        self.client().is_quiet()
    }

    fn pass(&self, at: RemoteAddr, patience: Duration) -> Pin<Box<dyn Future<Output = bool>>> {
        let (client, deadline) = (self.client().clone(), self.deadline(patience));
        Box::pin(async move {
            let limits = Limits { wait: Wait::Until(deadline), terms: 1 };
            match client.acquire(at, Mode::Exclusive, limits).await {
                Ok(hold) => client.release(hold).await.is_ok(),
                Err(_) => false,
            }
        })
    }
}

impl Locks {
    pub(crate) fn new(shared: &Arc<Shared>, node: &Arc<ComputeNode>, rpc: &Rpc) -> Self {
        match shared.config.memory_locks() {
            None => {
                let (table, lease) = (Arc::clone(&node.locks), shared.config.lease);
                let (node, wait) = (Arc::clone(node), shared.config.lock_wait);
                Self::Lotus(LotusLocks::new(table, node, rpc.clone(), lease, wait))
            }
            Some(choice) => Self::OnMemory(choice.visit(Beginning { shared, node, rpc })),
        }
    }

    /// Whether an attempt may rely on its locks on memory nodes, as far as is known here: its node
    /// is not expelled, and none of those memory nodes has lost its memory (H4).
    #[inline]
    pub(crate) fn are_valid(&self, held: &HeldLocks) -> bool {
        match self {
            Self::Lotus(_) => true,
            Self::OnMemory(locks) => locks.are_valid(held),
        }
    }

    /// Whether nothing of what was released is under way.
    pub(crate) fn is_settled(&self) -> bool {
        match self {
            Self::Lotus(locks) => locks.unacknowledged_ends() == 0 && locks.suspects() == 0,
            Self::OnMemory(locks) => locks.is_settled(),
        }
    }
}

/// A coordinator that begins to use locks on memory nodes.
struct Beginning<'a> {
    shared: &'a Arc<Shared>,
    node: &'a Arc<ComputeNode>,
    rpc: &'a Rpc,
}

impl Visitor for Beginning<'_> {
    type Output = Box<dyn OnMemory>;

    fn visit<S: LockSystem>(
        self,
        make: impl Fn() -> S + Send + Sync + 'static,
    ) -> Box<dyn OnMemory> {
        let Self { shared, node, rpc } = self;
        let peers = LockPeers::new(shared, node, rpc.lane().executor());
        let identity = Identity { member: peers.this(), peers: Rc::new(peers), service: SERVICE };
        let system = make();
        let bytes = system.object_bytes();
        let objects = region_bytes(bytes) / bytes;
        let client = Client::new(system, rpc.clone(), identity);
        let shared = Arc::clone(shared);
        let object_of = move |name: &LockName, hash| {
            let group = shared.placement.group_of(name.shard());
            let node = shared.placement.replicas(group).primary().node;
            RemoteAddr::new(node, LOCK_REGION, hash % objects * bytes)
        };
        Box::new(MemoryLocks::new(client, rpc.lane().clone(), Rc::new(object_of)))
    }
}

impl LockService for Locks {
    #[inline]
    async fn acquire(
        &self,
        held: &mut HeldLocks,
        round: u16,
        wanted: &[LockRequest],
        timeout: Duration,
    ) -> Result<(), LockError> {
        match self {
            Self::Lotus(locks) => locks.acquire(held, round, wanted, timeout).await,
            Self::OnMemory(locks) => locks.acquire(held, round, wanted, timeout).await,
        }
    }

    #[inline]
    fn release(&self, held: &mut HeldLocks) {
        match self {
            Self::Lotus(locks) => locks.release(held),
            Self::OnMemory(locks) => locks.release(held),
        }
    }

    #[inline]
    fn prefetch(&self, name: &LockName) {
        match self {
            Self::Lotus(locks) => locks.prefetch(name),
            // Their objects are not in this node's memory.
            Self::OnMemory(_) => {}
        }
    }
}
