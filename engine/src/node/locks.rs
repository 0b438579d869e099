//! The locks that a cluster was configured with, as one coordinator uses them.
//!
//! Locks on memory nodes are those of `lotus-locks`, fenced. Nobody is expelled from a cluster that
//! uses them: it has no lease.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::ids::{Epoch, NodeId};
use lotus_fabric::rpc::{Rpc, Service};
use lotus_locks::systems::{Cas, Dslr};
use lotus_locks::word::Claimant;
use lotus_locks::{
    Client, Identity, LockSystem, Member, MemoryLocks, Pacing, Peers, PeersFuture, Recovery,
};
use lotus_locktable::{HeldLocks, LockError, LockName, LockRequest, LockService, LotusLocks};
use lotus_recovery::membership::FIRST_EPOCH;

use crate::api::config::LockKind;
use crate::node::shared::{ComputeNode, Peer, Shared};

/// Service by which coordinators tell one another of resets.
const SERVICE: Service = Service(7);

/// The locks of one coordinator.
pub(crate) enum Locks {
    Lotus(LotusLocks<ComputeNode>),
    Cas(MemoryLocks<Cas>),
    Dslr(MemoryLocks<Dslr>),
}

impl Locks {
    pub(crate) fn new(shared: &Arc<Shared>, node: &Arc<ComputeNode>, rpc: &Rpc) -> Self {
        match shared.config.locks {
            LockKind::Lotus => {
                let (table, lease) = (Arc::clone(&node.locks), shared.config.lease);
                let (node, wait) = (Arc::clone(node), shared.config.lock_wait);
                Self::Lotus(LotusLocks::new(table, node, rpc.clone(), lease, wait))
            }
            LockKind::Cas => {
                let cas = Cas { recovery: Recovery::Fenced, pacing: Pacing::NONE };
                Self::Cas(on_memory(shared, node, rpc, cas))
            }
            LockKind::Dslr => {
                Self::Dslr(on_memory(shared, node, rpc, Dslr::published(Recovery::Fenced)))
            }
        }
    }

    /// Whether nothing of what was released is under way.
    pub(crate) fn is_settled(&self) -> bool {
        match self {
            Self::Lotus(locks) => locks.unacknowledged_ends() == 0 && locks.suspects() == 0,
            Self::Cas(locks) => locks.client().is_quiet(),
            Self::Dslr(locks) => locks.client().is_quiet(),
        }
    }
}

fn on_memory<S: LockSystem>(
    shared: &Arc<Shared>,
    node: &Arc<ComputeNode>,
    rpc: &Rpc,
    system: S,
) -> MemoryLocks<S> {
    let peers = AllMembers::of(shared, node);
    let member = peers.members[node.index];
    let identity = Identity { member, peers: Rc::new(peers), service: SERVICE };
    let bytes = system.object_bytes();
    let client = Client::new(system, rpc.clone(), identity);
    let shared = Arc::clone(shared);
    let object_of = move |name: &LockName, hash| shared.lock_object(name.shard(), hash, bytes);
    MemoryLocks::new(client, rpc.lane().clone(), Rc::new(object_of))
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
            // In a box: their futures would make that of each transaction larger.
            Self::Cas(locks) => Box::pin(locks.acquire(held, round, wanted, timeout)).await,
            Self::Dslr(locks) => Box::pin(locks.acquire(held, round, wanted, timeout)).await,
        }
    }

    #[inline]
    fn release(&self, held: &mut HeldLocks) {
        match self {
            Self::Lotus(locks) => locks.release(held),
            Self::Cas(locks) => locks.release(held),
            Self::Dslr(locks) => locks.release(held),
        }
    }

    #[inline]
    fn prefetch(&self, name: &LockName) {
        match self {
            Self::Lotus(locks) => locks.prefetch(name),
            Self::Cas(locks) => locks.prefetch(name),
            Self::Dslr(locks) => locks.prefetch(name),
        }
    }
}
