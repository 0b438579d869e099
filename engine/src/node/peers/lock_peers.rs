//! The cluster's membership, from the view of locks on memory nodes (H2, H4).
//!
//! A lock of a lost node is freed once the node was expelled and fenced at every memory node, and
//! its log is settled: the node's writes under the lock are whole by then, or gone. This node
//! learns of the settlement in its turns ([`crate::membership::members`]); learning late only
//! delays lock requests.

use std::collections::BTreeSet;
use std::sync::Arc;

use lotus_authority::Authority;
use lotus_fabric::exec::Handle;
use lotus_fabric::ids::{Epoch, Incarnation, NodeId};
use lotus_locks::word::Claimant;
use lotus_locks::{Member, Peers, PeersFuture};
use lotus_recovery::membership::{self, ChangeStep, Membership};

use crate::node::shared::{ComputeNode, Shared};

/// The membership, as queried by a coordinator's locks.
pub(crate) struct LockPeers {
    shared: Arc<Shared>,
    node: Arc<ComputeNode>,
    executor: Handle,
}

impl LockPeers {
    pub(crate) fn new(shared: &Arc<Shared>, node: &Arc<ComputeNode>, executor: &Handle) -> Self {
        let (shared, node) = (Arc::clone(shared), Arc::clone(node));
        Self { shared, node, executor: executor.clone() }
    }

    /// The local node, in its present life.
    pub(crate) fn this(&self) -> Member {
        member(&self.shared, self.node.index, self.node.incarnation)
    }

    /// Nodes that may reach the memory: members, and expelled nodes that are not settled.
    fn reaching(&self, now: &Membership) -> Vec<Member> {
        let live = now.live();
        let unsettled = now.expelled().map(|(member, _)| member);
        let unsettled = unsettled.filter(|member| !now.is_resolved(member.node));
        let of = |member: &membership::Member| {
            let index = self.shared.index_of(member.node);
            let index = index.expect("every member is a compute node");
            self::member(&self.shared, index, member.incarnation)
        };
        let reaching: Vec<Member> = live.chain(unsettled).map(of).collect();
        debug_assert!(
            reaching.iter().map(|one| one.node).collect::<BTreeSet<_>>().len() == reaching.len(),
            "I310: one life of a node may reach the memory"
        );
        reaching
    }
}

/// The node at a place, in a given life. The place serves as the node's number in lock words.
fn member(shared: &Shared, index: usize, incarnation: Incarnation) -> Member {
    let life = Claimant::new(index as u8, u32::from(incarnation.raw()));
    Member { node: shared.peers[index].id, life, lanes: shared.config.threads as u16 }
}

impl Peers for LockPeers {
    fn members(&self) -> PeersFuture<'_, Option<(Epoch, Vec<Member>)>> {
        Box::pin(async {
            let read = |authority: &dyn Authority| authority.read(membership::KEY);
            let async_authority = &self.shared.async_authority;
            let stored = async_authority.consult(self.node.id, &self.executor, read).await.ok()?;
            match membership::step(stored, |_| None).ok()? {
                ChangeStep::Rest(now) => Some((now.epoch(), self.reaching(&now))),
                ChangeStep::Swap(_) => None,
            }
        })
    }

    fn last_loss(&self) -> Epoch {
        self.node.members.last_loss()
    }

    fn is_settled(&self, life: Claimant) -> bool {
        self.node.members.is_settled(life.incarnation())
    }

    fn node(&self, number: u8) -> Option<NodeId> {
        self.shared.peers.get(usize::from(number)).map(|peer| peer.id)
    }
}
