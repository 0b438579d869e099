//! Memory nodes that were lost and come back: the members' search for them, and their preparation
//! for use.
//!
//! # What it is
//! Now and then coordinator 0 of every node looks at the lost memory nodes. An answering node is in
//! one of the following states:
//!
//! | its memory | state | action |
//! |---|---|---|
//! | no regions | a new process | the first member makes it ready |
//! | blank regions | a new process, half-way ready | the first member goes on |
//! | a [`Life`] since its loss | ready | every member says so in the membership |
//! | anything else | the old memory | none, for ever: coordinators have written since |
//!
//! When all members have reported the life the memory node joins
//! ([`lotus_recovery::membership::returns`]), by the steps for leaving a lost memory node
//! ([`crate::memory_nodes::changes`]), and is filled ([`crate::memory_nodes::filling`]).
//!
//! # The order in which a memory node is made ready
//! The work begins only when no live member uses the memory node by the placement from before its
//! loss, and no transaction of an expelled node is in doubt. Expelled nodes are fenced at the
//! memory node first, then regions are registered, then the life is written: so a node unaware of
//! the loss never takes empty memory for data. If the preparing member is expelled, the next member
//! begins with the fence, so no late verb lands in the regions. A node expelled later, before the
//! memory node joins, never uses the memory node: a node learns no placement from a membership
//! without the node itself. Nevertheless the expelled node is fenced at the memory node before the
//! new placement is acknowledged ([`Coordinator::carry_over`]), and by its own recovery, which also
//! fences at joined memory nodes not used yet.
//!
//! # Owners' words of a late maker
//! The maker is the member that makes the memory node ready. It posts the words as WRITEs ahead of
//! the swap of the life, so a maker with a failed swap has replaced the successful maker's words,
//! perhaps by older ones. No node relies on the words yet. A member reports a found life only when
//! its own batch has ended, and the memory node does not join without the report; a maker that is
//! expelled meanwhile is fenced at the memory node before any member raises the words that are
//! behind ([`Coordinator::carry_over`]), and if its node has a new life by then, the fences for the
//! earlier life refuse the late verbs. No earlier verb of the looking member lands after a
//! reconnect (H22), which precedes every look. Every such replacement therefore precedes the
//! raising of the words.
//!
//! # Connections
//! A lane may still be connected to an earlier life. Before taking note of a joining memory node a
//! coordinator therefore reconnects and checks the life, as at every later reconnect
//! ([`Coordinator::reconnect`]).

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::ids::{Epoch, NodeId};
use lotus_fabric::region::Rights;
use lotus_fabric::transport::{Fabric, FabricError};
use lotus_mvcc::layout::region::{LIFE_OFFSET, RegionLayout};
use lotus_recovery::LogGeometry;
use lotus_recovery::membership::Membership;
use lotus_recovery::membership::returns::Life;
use lotus_router::placement::LOG_REGION;
use lotus_router::{GroupId, Placement};
use lotus_sabotage::{Rule, broken};
use rand::Rng;

use crate::node::coordinator::Coordinator;
use crate::node::locks::lock_region_bytes;
use crate::node::memory::memory_life::{MemoryState, life_at};
use crate::node::shared::{LOCK_REGION, Shared};
use crate::shards::ownership::{OWNERS_GROUP, write_owners};

/// Registers a memory node's regions: the logs, the locks if locks lie in memory, then the groups.
/// The group whose first primary is on the node comes last.
pub(crate) fn register(
    fabric: &dyn Fabric,
    node: NodeId,
    placement: &Placement,
    region: &RegionLayout,
    log: &LogGeometry,
    lock_bytes: Option<u64>,
) -> Result<(), FabricError> {
    let own = life_at(placement, node).region;
    let others = placement.hosted_by(node).map(GroupId::region).filter(|region| *region != own);
    let groups = others.chain([own]).map(|number| (number, region.bytes()));
    let locks = lock_bytes.map(|bytes| (LOCK_REGION, bytes));
    let shared = [(LOG_REGION, log.region_bytes())].into_iter().chain(locks);
    for (number, bytes) in shared.chain(groups) {
        match fabric.register(node, number, bytes, Rights::ALL) {
            // An earlier maker registered the region, but did not finish.
            Ok(()) | Err(FabricError::RegionTaken(..)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Shared {
    /// Registers the regions of a new memory node, after fencing the nodes in `out` at it.
    fn make_ready(&self, node: NodeId, out: &[(NodeId, Epoch)]) -> bool {
        let mut out = out.iter().filter(|_| !broken(Rule::ReadyNodesFence));
        let fenced = out.all(|(other, since)| self.fabric.fence(node, *other, *since).is_ok());
        let locks = lock_region_bytes(&self.config);
        let register =
            || register(&*self.fabric, node, &self.placement, &self.region, &self.log, locks);
        fenced && register().is_ok()
    }
}

impl Coordinator {
    /// Looks for lost memory nodes in the background, and not again for half a lease.
    pub(crate) fn look_for_the_lost(self: &Rc<Self>, now: &Membership, lease: Duration) {
        let lost = now.lost_memory().iter().map(|lost| lost.node);
        let lost: Vec<NodeId> = lost.filter(|node| now.awaited(*node).is_some()).collect();
        if lost.is_empty() || self.looks.replace(true) {
            return;
        }
        let (of, now) = (Rc::clone(self), now.clone());
        self.executor.spawn(async move {
            for node in lost {
                if let Some(life) = of.look_at(node, &now).await {
                    of.say_found(node, life).await;
                }
            }
            of.executor.sleep(lease / 2).await;
            of.looks.set(false);
        });
    }

    /// Looks at a lost memory node, and makes it ready if this node is the first live member.
    /// Returns the life of a ready memory node.
    async fn look_at(&self, node: NodeId, now: &Membership) -> Option<Life> {
        let makes_ready = now.live().next()?.node == self.node.id;
        self.lane.reconnect(node).await.ok()?;
        let mut found = self.found(node).await?;
        if makes_ready && matches!(found, MemoryState::NoRegions | MemoryState::Blank) {
            let out: Vec<_> = now.refused().collect();
            let shared = Arc::clone(&self.shared);
            let work = move || shared.make_ready(node, &out);
            self.shared.async_authority.apart(work).await.ok().filter(|ready| *ready)?;
            self.lane.reconnect(node).await.ok()?;
            let life = Life::new(now.epoch(), self.rng.borrow_mut().random());
            self.begin_life(node, life).await?;
            found = self.found(node).await?;
        }
        match found {
            MemoryState::Ready(life) => {
                now.awaited(node).filter(|lost| life.is_since(*lost)).map(|_| life)
            }
            _ => None,
        }
    }

    /// Writes the owners' words and then a life into blank memory, unless it has a life: raising
    /// the words later would take many swaps for each node ([`crate::memory_nodes::changes`]).
    async fn begin_life(&self, node: NodeId, life: Life) -> Option<()> {
        let first = &self.shared.placement;
        let members = first.replicas(OWNERS_GROUP).members();
        let copy = members.iter().find(|replica| replica.node == node);
        let owners = self.read_owners_of(self.primary(OWNERS_GROUP)).await.ok()??;
        let mut batch = self.lane.batch();
        if let Some(copy) = copy {
            write_owners(&mut batch, *copy, &owners);
        }
        debug_assert!(life.word() != 0, "I134: the word of a life differs from blank memory");
        batch.compare_and_swap(life_at(first, node).at(LIFE_OFFSET), 0, life.word());
        batch.post().await.ok().map(drop)
    }

    async fn say_found(&self, node: NodeId, life: Life) {
        let me = self.node.id;
        // If the authority does not answer, a later look reports the life again.
        let _ = self.change(move |now| now.found(me, node, life)).await;
    }

    /// Connects to a joining memory node, and retries until it is lost again.
    pub(crate) fn attach(self: &Rc<Self>, node: NodeId) {
        let of = Rc::clone(self);
        self.configuration.attaches(1);
        self.executor.spawn(async move {
            while !of.configuration.has_left(node) && !of.node.has_failed() {
                if of.reconnect(node).await.is_ok() {
                    break;
                }
                of.executor.sleep(crate::node::verbs::RETRY_PAUSE).await;
            }
            of.configuration.attaches(-1);
        });
    }
}
