//! Changes of the memory nodes in use: when one is lost, joins or becomes whole (H23); and of the
//! tables with memory in use, when one is dropped ([`crate::memory_nodes::clearing`]).
//!
//! # The steps, and their purpose
//! The membership says which memory nodes are lost, and how far every compute node has come with
//! that ([`lotus_recovery::membership`]). Coordinator 0 of each node follows it
//! ([`crate::membership::members`]) and publishes it here to the others, which follow in their own
//! turns.
//!
//! 1. *Stop.* The coordinator begins no transactions, and gives up those that have not begun to
//!    commit: an attempt's reads no longer count. So no transaction relies on a read from the lost
//!    node, where others do not write any more.
//! 2. *Finish.* When every node has stopped, the coordinator uses the placement that is left.
//!    Commits under way end without the lost node; so do slab allocations, hand-overs, and
//!    recoveries of dead nodes, which begin anew. Coordinator 0 carries over the words that were
//!    certain only on the lost node's copy, and fences every expelled node at memory nodes that
//!    have come back ([`Coordinator::carry_over`]). Then it acknowledges the epoch.
//! 3. *Resume.* When every node has acknowledged, and no expelled node's transaction is in doubt,
//!    transactions begin again. So a promoted copy shows nothing that another may lack (H3).
//!
//! # Promotion
//! The first copy of a group that is left is its primary from step 2 on. Cells hold offsets within
//! the group, so nothing moves. Only words that stood on the primary alone need care:
//!
//! | word | treatment |
//! |---|---|
//! | cursor of slabs | raised beyond the last slab in the directory, before a slab is taken |
//! | owners of shards | raised by every node to what it knows, on all copies |
//! | floors | written by each node before it acknowledges; removed, for expelled nodes, when read |
//! | loads, rates, changes | written again |
//!
//! Locks in words of memory nodes are not copied: they lie on the primary in use. In step 1 the
//! coordinator [abandons](crate::node::locks) those on a lost memory node, and what has begun there
//! is over before it acknowledges.
//!
//! # Returns
//! A memory node that comes back ([`crate::memory_nodes::returning`]) joins by the same three
//! steps, as the last copy of its groups: when transactions begin again, every write goes there,
//! too. When it has been
//! [filled](crate::memory_nodes::filling) all nodes go through the steps once more, and it gets its
//! original place back. It counts as promoted there, because its header says no more than a
//! backup's.
//!
//! # If a node stops anywhere
//! An expelled node is not waited for, except until its transactions are settled. The loss of
//! another memory node begins step 1 anew.
//!
//! # What it is not
//! It decides about no loss, and copies no data.

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
use crate::node::configuration::{FLOORS_GROUP, NO_FLOOR, Takers, floor_word};
use crate::node::coordinator::Coordinator;
use crate::node::shared::{ComputeNode, Shared};
use crate::node::verbs::{Fenced, Halted};
use crate::shards::ownership::Transfer;

/// Times in a lease that a member checks whether another one has raised the words of owners.
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
        self.configuration.has_finished(&self.shared.takers) && self.locks.have_left_the_lost()
    }

    /// Carries over the words that were certain only on the former primary; see the module's
    /// documentation. Done by coordinator 0, before it acknowledges the change.
    pub(crate) async fn carry_over(&self, now: &Membership) -> Result<(), Fenced> {
        debug_assert_eq!(self.thread, 0, "I106: one coordinator of a node carries words over");
        self.take_floors_out(now).await?;
        let placed = self.configuration.placed();
        // Only a membership as late as the placement names all nodes to fence at joining ones.
        if placed == FIRST_EPOCH || now.epoch() < placed {
            return Ok(());
        }
        if self.node.configuration.carried() < placed {
            match self.fence_at_the_returned(now).await {
                Ok(()) => {}
                Err(Stop::Halted(Halted::Fenced)) => return Err(Fenced),
                // The memory node is lost again: all this begins anew.
                Err(_) => return Ok(()),
            }
            // The word there may be from this node's former life, which was expelled.
            if !broken(Rule::FloorsAreCarried) {
                self.write_floor(self.node.index, self.node.horizon.word()).await?;
            }
            self.raise_owners(now).await?;
            // If another memory node was lost meanwhile, all this is done again.
            self.node.configuration.set_carried(placed);
        }
        Ok(())
    }

    /// Fences all expelled nodes at memory nodes that have joined (H2): those were made ready
    /// earlier, and nodes recovered since were fenced only at the memory nodes in use then.
    async fn fence_at_the_returned(&self, now: &Membership) -> Result<(), Stop> {
        if broken(Rule::JoiningNodesFence) {
            return Ok(());
        }
        let targets = self.configuration.returned();
        fence_at(self, now.refused(), &targets).await
    }

    /// Raises the owner words of all copies to the latest owner that this node or a copy knows: the
    /// nodes that moved shards may have died. All members see what a copy shows; the eldest raises
    /// those words, and the others do it themselves after a lease.
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

    /// Reads the owners of all shards from each copy; the node learns them.
    async fn read_all_owners(&self) -> Result<Vec<(Replica, Vec<Owner>)>, Fenced> {
        let mut seen = Vec::new();
        for replica in self.replicas(crate::shards::ownership::OWNERS_GROUP).members() {
            // A copy that is lost by now needs no words.
            let Some(owners) = self.read_owners_of(*replica).await? else { continue };
            for (shard, owner) in ShardId::all().zip(&owners) {
                self.node.learn(shard, *owner);
            }
            seen.push((*replica, owners));
        }
        Ok(seen)
    }

    /// Removes the floors of expelled and resolved nodes that were there when last read: another
    /// copy may have been promoted, or a new process of the node may have announced itself and
    /// ended before it was taken in ([`crate::cluster::rejoin`]).
    ///
    /// A life that is taken in meanwhile may lose the floor that it was announced with. It reads
    /// nothing before it has written another one, which it does only once no member uses a
    /// membership any more in which it was out, and every expelled node is fenced
    /// ([`is_admitted`](crate::membership::members)).
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
        // The primary at the time of the write: the first one may be lost meanwhile.
        let add = |batch: &mut Batch| batch.write_word(self.primary(FLOORS_GROUP).at(word), floor);
        self.insist(add).await.map(drop)
    }
}

/// Word of a copy that names an earlier owner of its shard than the latest known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Late {
    transfer: Transfer,
    /// Whether another copy shows the latest known owner.
    shown: bool,
}

/// Words of each copy that are behind what is `known`.
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

/// Guard of a control thread that takes slabs; no memory node is removed meanwhile, nor does one
/// join, nor is the memory of a table given back. Held for a moment at a time.
pub(crate) struct ControlTaking<'a> {
    takers: &'a Takers,
    pub(crate) placement: Placement,
    /// Lives of the memory nodes that are not in their first life.
    pub(crate) lives: Vec<(NodeId, Life)>,
}

impl Drop for ControlTaking<'_> {
    fn drop(&mut self) {
        self.takers.end();
    }
}

impl Shared {
    /// Lets a control thread take slabs; `None` while a memory node is being removed or filled,
    /// because control threads fill tables without locks.
    pub(crate) fn take_by_control(&self) -> Option<ControlTaking<'_>> {
        // Counted before the look: a coordinator that stops after it finds this thread counted.
        self.takers.begin();
        let (placement, lives) = (self.placement.clone(), Vec::new());
        let mut taking = ControlTaking { takers: &self.takers, placement, lives };
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

    /// Compute nodes of this process that have not failed: the others follow no change any more.
    fn serving(&self) -> impl Iterator<Item = Arc<ComputeNode>> {
        self.nodes.iter().filter(|node| !node.has_failed())
    }

    /// Lets this process's nodes learn the losses from before their start.
    ///
    /// # Errors
    /// The authority does not answer.
    pub(crate) fn learn_losses(&self) -> Result<(), MembershipError> {
        let now = membership::read(self.council.authority())?;
        for node in &self.nodes {
            self.learn_membership(&node, &now);
        }
        Ok(())
    }

    /// Placement without memory nodes that are lost or not whole, as far as the authority, or else
    /// this process, knows.
    pub(crate) fn surviving(&self) -> Placement {
        self.surviving_lives().0
    }

    /// The same, and the lives of memory nodes that are not in their first.
    fn surviving_lives(&self) -> (Placement, Vec<(NodeId, Life)>) {
        let lives = |returns: &[Return]| returns.iter().map(|one| (one.node, one.life)).collect();
        match membership::read(self.council.authority()) {
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
