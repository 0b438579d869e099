//! Changes of the memory nodes in use: when a memory node is lost, joins or becomes whole (H23);
//! and of the tables with memory in use, when a table is dropped
//! ([`crate::memory_nodes::clearing`]).
//!
//! # The steps, and their purpose
//! The membership says which memory nodes are lost, and how far every compute node has come with
//! the change ([`lotus_recovery::membership`]). On every node coordinator 0 follows the membership
//! ([`crate::membership::members`]) and publishes the progress here to the remaining coordinators,
//! which follow in turns of their own.
//!
//! 1. *Stop.* The coordinator begins no transactions, and gives up attempts that have not begun to
//!    commit: the reads of an attempt no longer count. Hence no transaction relies on a read from
//!    the lost node, which may already miss writes.
//! 2. *Finish.* When every node has stopped, the coordinator uses the remaining placement. Commits
//!    under way, slab allocations and hand-overs end without the lost node, and recoveries of dead
//!    nodes begin anew. Coordinator 0 carries over the words that were certain only on the lost
//!    node's copy, and fences every expelled node at memory nodes that have come back
//!    ([`Coordinator::carry_over`]). Then the coordinator acknowledges the epoch.
//! 3. *Resume.* When every node has acknowledged, and no expelled node's transaction is in doubt,
//!    transactions begin again. A promoted copy therefore shows no data that another copy may lack
//!    (H3).
//!
//! # Promotion
//! The first remaining copy of a group is its primary from step 2 on. Cells hold offsets within the
//! group, and no data moves. Only words that stood on the primary alone need care:
//!
//! | word | treatment |
//! |---|---|
//! | cursor of slabs | raised beyond the last slab in the directory, before a slab is taken |
//! | owners of shards | raised by every node to the owner that it knows, on all copies |
//! | floors | written by each node before it acknowledges; removed, for expelled nodes, when read |
//! | loads, rates, changes | written again |
//!
//! Locks in words of memory nodes are not copied: they lie on the primary in use. In step 1 the
//! coordinator [abandons](crate::node::locks) the locks on a lost memory node, and lock operations
//! already begun on that node end before the coordinator acknowledges.
//!
//! # Returns
//! A memory node that comes back ([`crate::memory_nodes::returning`]) joins by the three steps
//! above, as the last copy of its groups: when transactions begin again, the joining node gets
//! every write, too. When it has been [filled](crate::memory_nodes::filling) all nodes repeat the
//! steps, and the memory node gets its original place back. The returned copy counts as promoted,
//! because its header says no more than a backup's.
//!
//! # If a node stops at any step
//! The other nodes do not wait for an expelled node, except until its transactions are settled. The
//! loss of another memory node begins step 1 anew.
//!
//! # What this module does not do
//! The module does not decide which node is lost, and copies no data.

use std::rc::Rc;
use std::sync::Arc;

use lotus_fabric::ids::{NodeId, ShardId};
use lotus_fabric::lane::Batch;
use lotus_points::point;
use lotus_recovery::Membership;
use lotus_recovery::membership::returns::{Life, Return};
use lotus_recovery::membership::{self, FIRST_EPOCH, MembershipError};
use lotus_router::{Owner, Placement, Replica};
use lotus_sabotage::{Rule, broken};

use crate::memory_nodes::fence::{Stop, fence_at};
use crate::node::coordinator::Coordinator;
use crate::node::memory::configuration::{FLOORS_GROUP, NO_FLOOR, SlabAllocations, floor_word};
use crate::node::shared::{ComputeNode, Shared};
use crate::node::verbs::{Fenced, Halted};
use crate::shards::ownership::Transfer;

/// Number of times in a lease at which a member checks whether the eldest has raised the owner
/// words.
const LOOKS_PER_LEASE: u32 = 16;

impl Coordinator {
    /// Follows the node's progress with changes of memory nodes, as far as it has come.
    pub(crate) fn follow(self: &Rc<Self>) {
        let before = self.configuration.epoch();
        let joining = self.configuration.follow(&self.node.configuration);
        // No verb of a lock is posted to a lost memory node any more.
        self.locks.follow(&self.configuration, &self.executor);
        self.node.configuration.has_stopped(self.thread, self.configuration.epoch());
        joining.into_iter().for_each(|node| self.attach(node));
        if self.configuration.epoch() != before {
            // A table may have been dropped.
            self.forget_dropped();
        }
    }

    /// Whether no work besides commits is under way that uses the previous placement.
    pub(crate) fn has_finished(&self) -> bool {
        self.configuration.has_finished(&self.shared.slab_allocations)
            && self.locks.have_left_the_lost()
    }

    /// Carries over the words that were certain only on the former primary; see the module's
    /// documentation. Called by coordinator 0 before acknowledging the change.
    pub(crate) async fn carry_over(&self, now: &Membership) -> Result<(), Fenced> {
        debug_assert_eq!(self.thread, 0, "I106: one coordinator of a node carries words over");
        self.take_floors_out(now).await?;
        let placed = self.configuration.placed();
        // Only a membership as late as the placement names all nodes to fence at joining memory
        // nodes.
        if placed == FIRST_EPOCH || now.epoch() < placed {
            return Ok(());
        }
        if self.node.configuration.carried() < placed {
            match self.fence_at_the_returned(now).await {
                Ok(()) => {}
                Err(Stop::Halted(Halted::Fenced)) => return Err(Fenced),
                // The memory node is lost again: the whole change begins anew.
                Err(_) => return Ok(()),
            }
            // The floor word on the copy may be from this node's former life, which was expelled
            // (I166).
            if !broken(Rule::FloorsAreCarried) {
                self.write_floor(self.node.index, self.node.horizon.word()).await?;
            }
            self.raise_owners(now).await?;
            // If another memory node was lost meanwhile, `placed` has grown, and the steps are
            // repeated.
            self.node.configuration.set_carried(placed);
        }
        Ok(())
    }

    /// Fences all expelled nodes at joined memory nodes (H2): the joined nodes were made ready
    /// earlier, and nodes recovered since were fenced only at the memory nodes in use at that time.
    async fn fence_at_the_returned(&self, now: &Membership) -> Result<(), Stop> {
        if broken(Rule::JoiningNodesFence) {
            return Ok(());
        }
        let targets = self.configuration.returned();
        fence_at(self, now.refused(), &targets).await
    }

    /// Raises the owner words of all copies to the latest owner known to this node or a copy: the
    /// nodes that moved shards may have died. An owner shown by a copy is visible to all members;
    /// the eldest raises the older words, and after a lease the other members do.
    async fn raise_owners(&self, now: &Membership) -> Result<(), Fenced> {
        let lease = self.shared.config.lease.unwrap_or_default();
        let is_eldest = now.by_age().first().is_some_and(|eldest| eldest.node == self.node.id);
        let deadline = self.executor.now().after(lease);
        loop {
            let seen = self.read_all_owners().await?;
            let all = is_eldest || self.executor.now() >= deadline;
            let copies: Vec<&[Owner]> = seen.iter().map(|(_, owners)| &**owners).collect();
            let behind = behind(&copies, |shard| self.node.shards.owner(shard));
            let waits = !all && behind.iter().flatten().any(|late| late.shown);
            for (place, ((replica, _), late)) in seen.iter().zip(behind).enumerate() {
                point!(self.node.id.0, CarryOver, place, seen.len());
                let mine = late.into_iter().filter(|late| all || !late.shown);
                let mine: Vec<Transfer> = mine.map(|late| late.transfer).collect();
                for some in mine.chunks(crate::shards::ownership::ADOPTED_AT_ONCE) {
                    self.raise(*replica, some.to_vec()).await?;
                }
            }
            if !waits {
                return Ok(());
            }
            self.executor.sleep(lease / LOOKS_PER_LEASE).await;
        }
    }

    /// Reads the owners of all shards from every copy, and teaches them to the node.
    async fn read_all_owners(&self) -> Result<Vec<(Replica, Vec<Owner>)>, Fenced> {
        let mut seen = Vec::new();
        for replica in self.replicas(crate::shards::ownership::OWNERS_GROUP).members() {
            // A copy that has been lost needs no words.
            let Some(owners) = self.read_owners_of(*replica).await? else { continue };
            for (shard, owner) in ShardId::all().zip(&owners) {
                self.node.learn(shard, *owner);
            }
            seen.push((*replica, owners));
        }
        Ok(seen)
    }

    /// Removes the floors of expelled and resolved nodes, as last read: another copy may have been
    /// promoted, or a new process of the node may have announced itself and ended before it was
    /// admitted ([`crate::cluster::rejoin`]).
    ///
    /// A life admitted meanwhile may lose its announced floor. The new life reads nothing before
    /// writing a second floor, which happens only once no member uses a membership with the node
    /// expelled, and every expelled node is fenced ([`is_admitted`](crate::membership::members)).
    async fn take_floors_out(&self, now: &Membership) -> Result<(), Fenced> {
        let resolved = now.expelled().filter(|(member, _)| now.is_resolved(member.node));
        let floors = resolved.filter_map(|(member, _)| {
            let index = self.shared.index_of(member.node).expect("every member is a compute node");
            let floor = self.node.horizon.heard(index)?;
            (floor != NO_FLOOR).then_some((floor_word(index), floor))
        });
        let floors: Vec<(u64, u64)> = floors.collect();
        if floors.is_empty() {
            return Ok(());
        }
        let add = |batch: &mut Batch| {
            for (word, floor) in &floors {
                let at = self.primary(FLOORS_GROUP).at(*word);
                batch.compare_and_swap(at, *floor, NO_FLOOR);
            }
        };
        self.insist(add).await.map(drop)
    }

    async fn write_floor(&self, index: usize, floor: u64) -> Result<(), Fenced> {
        let word = floor_word(index);
        // The primary at the time of the write: the first primary may be lost meanwhile.
        let add = |batch: &mut Batch| batch.write_word(self.primary(FLOORS_GROUP).at(word), floor);
        self.insist(add).await.map(drop)
    }
}

/// Word of a copy that names an earlier owner of its shard than the latest known owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Late {
    transfer: Transfer,
    /// Whether another copy shows the latest known owner.
    shown: bool,
}

/// Words of each copy with an owner earlier than `known`.
fn behind(copies: &[&[Owner]], known: impl Fn(ShardId) -> Owner) -> Vec<Vec<Late>> {
    debug_assert!(
        copies.iter().all(|owners| owners.len() == usize::from(ShardId::COUNT)),
        "I106: each copy has a word for every shard"
    );
    let mut behind = vec![Vec::new(); copies.len()];
    for (place, shard) in ShardId::all().enumerate() {
        let to = known(shard);
        let shown = copies.iter().any(|owners| owners[place].epoch >= to.epoch);
        for (late, owners) in behind.iter_mut().zip(copies) {
            let from = owners[place];
            if from.epoch < to.epoch {
                late.push(Late { transfer: Transfer { shard, from, to }, shown });
            }
        }
    }
    behind
}

/// Guard of a control thread that takes slabs. While it is held, no memory node is removed or
/// joins, and no table's memory is given back. Held for a moment at a time.
pub(crate) struct ControlAllocation<'a> {
    slab_allocations: &'a SlabAllocations,
    pub(crate) placement: Placement,
    /// Lives of memory nodes after the first life.
    pub(crate) lives: Vec<(NodeId, Life)>,
}

impl Drop for ControlAllocation<'_> {
    fn drop(&mut self) {
        self.slab_allocations.end();
    }
}

impl Shared {
    /// Lets a control thread take slabs; `None` while a memory node is being removed or filled,
    /// because control threads fill tables without locks.
    pub(crate) fn take_by_control(&self) -> Option<ControlAllocation<'_>> {
        // Counted before the check: a coordinator stopping after the check finds this thread
        // counted.
        self.slab_allocations.begin();
        let (placement, lives) = (self.placement.clone(), Vec::new());
        let mut taking =
            ControlAllocation { slab_allocations: &self.slab_allocations, placement, lives };
        (taking.placement, taking.lives) = self.surviving_lives();
        let open = self.serving().all(|node| {
            let filling = node.configuration.placement().is_joined();
            node.configuration.is_open() && !filling
        });
        open.then_some(taking)
    }
}

impl Shared {
    /// Whether a dropped table is being cleared, as far as a node of this process knows.
    pub(crate) fn is_clearing(&self) -> bool {
        self.serving().any(|node| node.configuration.is_clearing())
    }

    /// Serving compute nodes of this process: failed nodes follow no change any more.
    fn serving(&self) -> impl Iterator<Item = Arc<ComputeNode>> {
        self.nodes.iter().filter(|node| !node.has_failed())
    }

    /// Lets the nodes of this process learn the losses from before their start.
    ///
    /// # Errors
    /// The authority does not answer.
    pub(crate) fn learn_losses(&self) -> Result<(), MembershipError> {
        let now = membership::read(self.async_authority.authority())?;
        for node in &self.nodes {
            self.learn_membership(&node, &now);
        }
        Ok(())
    }

    /// Placement without memory nodes that are lost or not whole, as known to the authority, or to
    /// this process if the authority does not answer.
    pub(crate) fn surviving(&self) -> Placement {
        self.surviving_lives().0
    }

    /// As [`Self::surviving`], with the lives of memory nodes after the first life.
    fn surviving_lives(&self) -> (Placement, Vec<(NodeId, Life)>) {
        let lives = |returns: &[Return]| returns.iter().map(|one| (one.node, one.life)).collect();
        match membership::read(self.async_authority.authority()) {
            Ok(now) => (now.kept(&self.placement), lives(now.returns())),
            Err(_) => {
                let known = &self.nodes.first().configuration;
                (known.placement().of_whole(), lives(&known.returns()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lotus_router::ShardEpoch;

    use super::*;

    #[test]
    fn words_that_are_behind_are_told_from_those_that_no_copy_shows() {
        let owner = |node, epoch| Owner { node: NodeId(node), epoch: ShardEpoch(epoch) };
        let first = vec![owner(1, 0); usize::from(ShardId::COUNT)];
        let (mut fresh, mut known) = (first.clone(), first.clone());
        // One shard has moved, and a copy says so; only this node knows of another move.
        (fresh[3], known[3]) = (owner(2, 1), owner(2, 1));
        known[5] = owner(4, 7);
        let behind = behind(&[&fresh, &first], |shard| known[usize::from(shard.raw())]);
        let named = |late: &Vec<Late>| -> Vec<(u16, bool)> {
            late.iter().map(|late| (late.transfer.shard.raw(), late.shown)).collect()
        };
        assert_eq!(named(&behind[0]), [(5, false)]);
        assert_eq!(named(&behind[1]), [(3, true), (5, false)]);
        assert_eq!(behind[1][0].transfer.to, owner(2, 1));
    }
}
