//! The locks that a cluster was configured with, as one coordinator uses them.
//!
//! Locks on memory nodes are those of `lotus-locks`, fenced. Nobody is expelled from a cluster that
//! uses them: it has no lease.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::ids::{Epoch, NodeId, RemoteAddr};
use lotus_fabric::rpc::{Rpc, Service};
use lotus_locks::systems::Visitor;
use lotus_locks::word::Claimant;
use lotus_locks::{Client, Identity, LockSystem, Member, MemoryLocks, Peers, PeersFuture};
use lotus_locktable::{HeldLocks, LockError, LockName, LockRequest, LockService, LotusLocks};
use lotus_recovery::membership::FIRST_EPOCH;

use crate::node::shared::{ComputeNode, LOCK_REGION, Peer, Shared};

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

    /// Whether nothing of what was released is under way.
    fn is_settled(&self) -> bool;
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

    fn is_settled(&self) -> bool {
        self.client().is_quiet()
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
        let peers = AllMembers::of(shared, node);
        let member = peers.members[node.index];
        let identity = Identity { member, peers: Rc::new(peers), service: SERVICE };
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

/// The membership of a cluster without a lease: all of its compute nodes, from first to last.
struct AllMembers {
    /// By the place of their nodes.
    members: Vec<Member>,
}

impl AllMembers {
    fn of(shared: &Shared, node: &ComputeNode) -> Self {
        let live = node.members.at_seen().live;
        let lanes = shared.config.threads as u16;
        let member = |(number, peer): (usize, &Peer)| {
            let found = live.iter().find(|(node, _)| *node == peer.id);
            let (node, incarnation) = *found.expect("all nodes are members from the start");
            let life = Claimant::new(number as u8, u32::from(u16::from(incarnation)));
            Member { node, life, lanes }
        };
        Self { members: shared.peers.iter().enumerate().map(member).collect() }
    }
}

impl Peers for AllMembers {
    fn members(&self) -> PeersFuture<'_, Option<(Epoch, Vec<Member>)>> {
        Box::pin(async { Some((FIRST_EPOCH, self.members.clone())) })
    }

    fn last_loss(&self) -> Epoch {
        Epoch(0)
    }

    fn is_settled(&self, _: Claimant) -> bool {
        false
    }

    fn node(&self, number: u8) -> Option<NodeId> {
        self.members.get(usize::from(number)).map(|member| member.node)
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
