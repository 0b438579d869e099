//! Return of a failed compute node to the cluster, as a new life (H2, H4, H8, H9).
//!
//! # The order, and what it is for
//! 1. By the membership, the node's previous life is expelled, everything that expelled nodes have
//!    left is settled, and every live member knows both ([`Membership::may_rejoin`]). From then on
//!    no member serves the previous life, gives it a shard, or drops locks, log entries or floors
//!    on its account: a member ends such work before it acknowledges.
//! 2. No word in the memory pool names the node as an owner. Words that named the node are changed
//!    by the heirs; no new ones appear after step 1. So the new life begins with the words as they
//!    are, and an earlier message that gives the node a shard carries an epoch that is over.
//! 3. The node's floor is zero, so the horizon stands still before the node reads anything (H13);
//!    and its beat moves: beats of a later life are larger than all beats of an earlier life.
//! 4. The node is admitted, by one compare-and-swap from the very epoch of step 1.
//! 5. The node starts with an empty lock table, without shards, and *suspended*: transactions
//!    begin, and shards are given to the node, when every live member, the node included, has
//!    acknowledged the epoch of step 4. A member that has acknowledged refuses all lives but the
//!    present ones, and asks the node again.
//!
//! # Paths to the others
//! A process does not begin step 1 while the path between one of its nodes and a beating member is
//! broken: the two nodes would wait for one another until one is expelled again
//! ([`lotus_recovery::membership::cuts`]). A member that does not beat is as good as dead, and the
//! process does not wait for it ([`RejoinPaths`]).
//!
//! # If it stops anywhere
//! Up to step 2 nothing has changed for other nodes. After step 3 the node's floor holds the
//! horizon back until a member reads the floor and removes it ([`crate::memory_nodes::changes`]).
//! After step 4 the node is a member that does not beat, and is expelled as usual.
//!
//! # What it is not
//! A rejoin gives the node no work: shards are balanced, or moved by an operator. Nor does it end
//! the previous life: the other nodes do so, after a lease of silence.

use std::collections::BTreeMap;
use std::time::Duration;

use lotus_authority::Authority;
use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Epoch, NodeId};
use lotus_fabric::lane::{BatchError, Lane};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_points::point_here;
use lotus_recovery::membership::{self, ChangeOutcome};
use lotus_recovery::{Beat, Membership};
use lotus_router::{Owner, Placement};
use lotus_sabotage::{Rule, broken};

use crate::api::error::{ClusterError, unreachable_nodes};
use crate::cluster::handle::Cluster;
use crate::cluster::plan::{Admission, lock_table};
use crate::membership::members;
use crate::node::control::Control;
use crate::node::memory::configuration::{FLOORS_GROUP, floor_word};
use crate::shards::ownership::read_owners;

/// Initial state of a life.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    /// Membership that includes the life.
    pub(crate) members: Membership,
    /// Owners of all shards.
    pub(crate) owners: Vec<Owner>,
}

/// Watches the paths between the members and the nodes that want to rejoin.
pub(crate) struct RejoinPaths {
    lease: Duration,
    /// Unreached members: the last beat, and the time since when the beat has not moved.
    unreached: BTreeMap<NodeId, (Beat, Nanos)>,
}

impl RejoinPaths {
    pub(crate) fn new(lease: Duration) -> Self {
        Self { lease, unreached: BTreeMap::new() }
    }

    /// Returns an unreached member: a member that takes part, and that one of `nodes`, given by id
    /// and place, does not reach. `None` if there is no such member, or if the nodes may not return
    /// yet anyhow. `placement` is the initial placement.
    pub(crate) fn blocked_by(
        &mut self,
        nodes: &[(NodeId, usize)],
        placement: &Placement,
        control: &Control,
        authority: &dyn Authority,
    ) -> Result<Option<NodeId>, ClusterError> {
        let now = membership::read(authority)?;
        if !nodes.iter().all(|(id, _)| now.may_rejoin(*id)) {
            return Ok(None);
        }
        let first = now.members().iter().map(|member| member.node).min();
        let mut blocked = None;
        for member in now.live().map(|member| member.node) {
            if nodes.iter().all(|(id, _)| control.reaches(*id, member)) {
                self.unreached.remove(&member);
                continue;
            }
            let index = usize::from(member.0 - first.unwrap_or(member).0);
            let beat = latest_beat(index, placement, control, &now)?;
            if self.takes_part(member, beat, control.now()) {
                blocked = blocked.or(Some(member));
            }
        }
        Ok(blocked)
    }

    /// Whether an unreached member may still live, given its latest beat: the beat has moved within
    /// two leases, as far as this process has looked.
    fn takes_part(&mut self, member: NodeId, beat: Beat, now: Nanos) -> bool {
        let (known, since) = self.unreached.entry(member).or_insert((beat, now));
        if *known != beat {
            (*known, *since) = (beat, now);
        }
        now.since(*since) < self.lease * 2
    }
}

/// Reads the latest beat of the compute node at place `index` from the memory nodes that are left.
fn latest_beat(
    index: usize,
    first: &Placement,
    control: &Control,
    now: &Membership,
) -> Result<Beat, ClusterError> {
    let kept = now.surviving(first).nodes();
    let places = || first.primaries().enumerate().filter(|(_, node)| kept.contains(*node));
    let read = control.under(now.epoch()).with_lane(|lane| async move {
        let mut batch = lane.batch();
        let word = |memory| members::beat_word(first, memory, index);
        let words: Vec<_> =
            places().map(|(memory, _)| batch.read(word(memory), WORD_BYTES)).collect();
        let done = batch.post().await?;
        let beats = words.into_iter().map(|word| Beat::from_word(done.words(word)[0]));
        Ok::<_, BatchError>(beats.fold(Beat::NONE, Beat::or_later))
    })?;
    read.map_err(unreachable_nodes)
}

/// Admits `nodes`, given by id and place, again, all or none; returns `None` while the membership
/// does not allow a rejoin. `placement` is the initial placement.
pub(crate) fn attempt(
    nodes: &[(NodeId, usize)],
    placement: &Placement,
    control: &Control,
    authority: &dyn Authority,
) -> Result<Option<Life>, ClusterError> {
    let now = membership::read(authority)?;
    let ids: Vec<NodeId> = nodes.iter().map(|(id, _)| *id).collect();
    if !ids.iter().all(|id| now.may_rejoin(*id)) {
        return Ok(None);
    }
    let Some(owners) = announce_at(nodes, placement, control, &now)? else { return Ok(None) };
    point_here!(ids[0].0, Announced);
    let decide = |then: &Membership| then.rejoin(&ids).filter(|_| then.epoch() == now.epoch());
    let taken_in = membership::change(authority, decide);
    match taken_in? {
        ChangeOutcome::Changed(members) => {
            debug_assert!(
                members.epoch() > now.epoch(),
                "I144: a life is taken in at a later epoch"
            );
            point_here!(ids[0].0, TakenIn);
            Ok(Some(Life { members, owners }))
        }
        ChangeOutcome::Unchanged(_) => Ok(None),
    }
}

/// Runs steps 2 and 3 under the membership `now`. Returns the owners of all shards; `None` if one
/// of `nodes` is an owner.
pub(crate) fn announce_at(
    nodes: &[(NodeId, usize)],
    placement: &Placement,
    control: &Control,
    now: &Membership,
) -> Result<Option<Vec<Owner>>, ClusterError> {
    let (left, epoch) = (&now.surviving(placement), now.epoch());
    let joined = Epoch(epoch.0 + 1);
    // No fence against an earlier life refuses this epoch.
    let announced = control.under(epoch).with_lane(|lane| async move {
        let owners = read_owners(&lane, left).await?;
        let owns = |owner: &Owner| nodes.iter().any(|(id, _)| *id == owner.node);
        if owners.iter().any(owns) && !broken(Rule::ReturnsWait) {
            return Ok(None);
        }
        announce(&lane, nodes, placement, left, Beat::first(joined)).await?;
        Ok(Some(owners))
    })?;
    announced.map_err(unreachable_nodes)
}

/// Runs step 3.
async fn announce(
    lane: &Lane,
    nodes: &[(NodeId, usize)],
    first: &Placement,
    left: &Placement,
    beat: Beat,
) -> Result<(), BatchError> {
    let mut batch = lane.batch();
    let kept = left.nodes();
    let floors = left.replicas(FLOORS_GROUP).primary();
    for (_, index) in nodes {
        batch.write_word(floors.at(floor_word(*index)), 0);
        let places = first.primaries().enumerate().filter(|(_, node)| kept.contains(*node));
        for (memory, _) in places {
            batch.write_word(members::beat_word(first, memory, *index), beat.word());
        }
    }
    batch.post().await.map(drop)
}

impl Cluster {
    /// Ends a compute node of this process, unless the node has failed already, and starts it again
    /// as a new life, with an empty lock table and without shards. Returns `false` if a restart is
    /// not possible yet, because the other nodes have not settled the work of the previous life;
    /// call again later.
    ///
    /// # Errors
    /// The cluster has no [lease](crate::ClusterBuilder::lease), the memory nodes do not answer, or
    /// a thread cannot be started.
    ///
    /// # Panics
    /// If the compute node is not in this process.
    pub fn restart(&self, compute_node: usize) -> Result<bool, ClusterError> {
        let shared = &self.shared;
        let before = shared.hosted(compute_node).expect("a compute node of this process");
        if shared.config.lease.is_none() {
            let sentence = "without a lease a compute node that has failed stays a member";
            return Err(ClusterError::Setting(sentence.to_owned()));
        }
        before.kill();
        self.join_coordinators(compute_node);
        let place = [(before.id, before.index)];
        let locks = lock_table(&shared.config)?;
        let authority = shared.async_authority.reached_by(before.id);
        let Some(life) = attempt(&place, &shared.placement, &shared.control, &authority)? else {
            return Ok(false);
        };
        let ids: Vec<NodeId> = shared.peers.iter().map(|peer| peer.id).collect();
        let admission = Admission {
            config: &shared.config,
            compute_nodes: &ids,
            placement: &shared.placement,
            routes: &shared.shards,
            members: &life.members,
            owners: &life.owners,
        };
        let node = admission.admit(compute_node, self.machines().env(before.id), locks)?;
        shared.learn_membership(&node, &life.members);
        if !shared.is_whole() {
            // The membership no longer names a table that was dropped while no node of this process
            // took part.
            shared.ask(|| shared.learn_tables())?;
        }
        shared.replace_node(&node)?;
        // Without coordinators the node gets no work. The other nodes expel the silent node.
        self.start_coordinators(&node).inspect_err(|_| node.expel())?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use lotus_recovery::membership::FIRST_EPOCH;

    use super::*;

    #[test]
    fn a_member_that_is_not_reached_holds_nobody_up_once_it_does_not_beat() {
        let lease = Duration::from_secs(1);
        let at = |leases: u32| Nanos(1).after(lease * leases);
        let (mut gate, member) = (RejoinPaths::new(lease), NodeId(4));
        let first = Beat::first(FIRST_EPOCH);
        assert!(gate.takes_part(member, first, at(0)));
        assert!(gate.takes_part(member, first.next(), at(1)));
        assert!(gate.takes_part(member, first.next(), at(2)));
        assert!(!gate.takes_part(member, first.next(), at(3)), "for two leases");
        assert!(gate.takes_part(member, first.next().next(), at(4)), "it was only slow");
    }
}
