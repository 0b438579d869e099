//! The membership of the cluster: live nodes, expelled nodes, and the progress of each recovery.
//!
//! # What it is
//! A small value agreed on by all compute nodes: [`Membership`], stored under one key of the
//! [`Authority`] and changed by compare-and-swap only. Every change is a pure function from the
//! current value to the next value, or `None` if nothing is (left) to change. A change that was
//! decided on an outdated value never lands: the loser of the race reads and decides again.
//!
//! # The life of a dead node
//! 1. A live node [expels](Membership::expel) the dead node: the epoch grows, and the dead node's
//!    log is cut into as many parts as there are survivors.
//! 2. Each survivor stops granting locks to the dead node, lets earlier commits of its own end, and
//!    [acknowledges](Membership::acknowledge) the epoch.
//! 3. Survivors [claim](Membership::claim) parts, resolve their log slots and
//!    [finish](Membership::finish) them. A claim holds until the holder is expelled, so at most one
//!    member works on a part, and the next holder has fenced the previous holder.
//! 4. When all parts are finished, the dead node [is resolved](Membership::is_resolved): its locks
//!    may be released.
//! 5. When every expelled node is resolved and every live node has acknowledged the epoch, shards
//!    without an owner [may be adopted](Membership::may_adopt) (H4).
//!
//! Steps 2 and 3 run side by side. A member may die at any step: the survivors read the remaining
//! work here. Afterwards a new life of the node may [take its place](Membership::rejoin).
//!
//! # The life of a lost memory node
//! 1. A compute node that gets no answer from the memory node [complains](Membership::complain).
//!    When half of the live nodes complain, it is lost, the epoch grows, and no node uses it again.
//!    It is never lost if a group would be left without a copy: the group's data is then [out of
//!    reach](Membership::out_of_reach).
//! 2. *Stop.* Every live node gives up the transactions that have not begun to commit, reads
//!    nothing more by the old placement, and reports its stop ([`Membership::stop`]).
//! 3. *Finish.* When [all have stopped](Membership::all_have_stopped), commits under way end
//!    without the lost node, and the epoch is acknowledged as after an expulsion.
//! 4. *Resume.* When all have acknowledged and every expelled node is resolved, transactions [may
//!    begin](Membership::may_resume) by the new placement.
//!
//! A further loss in between restarts both at step 2. The return of a lost memory node is described
//! in [`returns`]. Memory of a dropped table is given back after the same steps, by [`clearing`].
//! [`cuts`] covers compute nodes with a cut path between them.
//!
//! # What it is not
//! This module detects no failures ([`crate::detector`] does), fences no node and moves no shard;
//! the engine does.

use lotus_authority::{Authority, AuthorityError, Version, Versioned};
use lotus_fabric::ids::{Epoch, Incarnation, NodeId, ShardId};
use lotus_router::Placement;
use lotus_sabotage::{Rule, broken};
use serde::{Deserialize, Serialize};

use self::clearing::Clearing;
use self::cuts::Cut;
use self::returns::Return;

/// Key of the authority that holds the membership.
pub const KEY: &str = "membership";
/// Version of the byte format that this module reads and writes.
const FORMAT: u8 = 6;

/// Epoch of a cluster that has not lost a node yet.
pub const FIRST_EPOCH: Epoch = Epoch(1);

/// The cluster's compute nodes with their standing, and its lost and returning memory nodes. See
/// the module's documentation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Membership {
    epoch: Epoch,
    members: Vec<Member>,
    /// Lost memory nodes, in the order of their losses.
    lost: Vec<LostMemory>,
    /// Memory nodes that were lost and have come back.
    returns: Vec<Return>,
    /// Epoch that began with the last change of the memory nodes in use.
    changed: Epoch,
    complaints: Vec<Complaint>,
    /// Cuts between members, as reported, in order.
    cuts: Vec<Cut>,
    /// Dropped table whose memory is being given back.
    clearing: Option<Clearing>,
    /// Number of tables whose memory has been given back.
    cleared: u32,
}

/// A memory node given up and out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LostMemory {
    /// The memory node.
    pub node: NodeId,
    /// Epoch that began with the loss.
    pub since: Epoch,
}

/// Report of compute node `by` that memory node `about` does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Complaint {
    by: NodeId,
    about: NodeId,
}

/// One life of a compute node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The compute node.
    pub node: NodeId,
    /// Incarnation: a node returning after an expulsion has a new incarnation.
    pub incarnation: Incarnation,
    /// Epoch in which the life was taken in, carried by its verbs.
    pub joined: Epoch,
    /// Last epoch whose losses the member has taken note of: the member serves no node expelled by
    /// this epoch, and its commits begun earlier have ended.
    pub acknowledged: Epoch,
    /// Epoch of the last placement change for which the member has stopped: earlier placements are
    /// used for no read and no new work.
    pub stopped: Epoch,
    /// Live or expelled.
    pub standing: Standing,
}

/// Whether a member takes part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Standing {
    /// Takes part.
    Live,
    /// Out for good; the node's next life is a different member.
    Expelled {
        /// Epoch that began with the expulsion: verbs of earlier epochs are refused.
        since: Epoch,
        /// Recovery of the member's log slots, dealt out in turn: slot `s` belongs to part `s %
        /// parts.len()`.
        parts: Vec<Part>,
    },
}

/// Recovery state of one part of a dead node's log slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Part {
    /// Not claimed yet.
    Free,
    /// Being resolved by this member.
    Claimed(NodeId),
    /// Every transaction in the part is settled on all replicas.
    Done,
}

/// Identifies one part of a dead node's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartId {
    /// The dead node.
    pub of: NodeId,
    /// Index among the node's parts.
    pub index: usize,
}

/// The stored bytes are not a membership; another program writes to this authority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the stored membership is damaged")]
pub struct Damaged;

impl Membership {
    /// The stored bytes: the format, and the value in `postcard` encoding.
    fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(&(FORMAT, self)).expect("memory holds a membership")
    }

    fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        match postcard::take_from_bytes(bytes) {
            Ok(((FORMAT, membership), [])) => Ok(membership),
            _ => Err(Damaged),
        }
    }
}

impl Membership {
    /// Membership at [`FIRST_EPOCH`] with all of `nodes` live.
    pub fn new(nodes: impl IntoIterator<Item = (NodeId, Incarnation)>) -> Self {
        let member = |(node, incarnation)| Member {
            node,
            incarnation,
            joined: FIRST_EPOCH,
            acknowledged: FIRST_EPOCH,
            stopped: FIRST_EPOCH,
            standing: Standing::Live,
        };
        let members = nodes.into_iter().map(member).collect();
        Self {
            epoch: FIRST_EPOCH,
            members,
            lost: Vec::new(),
            returns: Vec::new(),
            changed: FIRST_EPOCH,
            complaints: Vec::new(),
            cuts: Vec::new(),
            clearing: None,
            cleared: 0,
        }
    }

    /// Current epoch. Grows with every expulsion, when a life is [taken in](Self::rejoin), when a
    /// memory node is lost, joins or becomes whole, and before the memory of a dropped table is
    /// given back.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// All members, live and expelled, in the order of the cluster's foundation.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Members that take part.
    pub fn live(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.standing == Standing::Live)
    }

    /// Expelled members, with the epochs that began with their expulsions.
    pub fn expelled(&self) -> impl Iterator<Item = (&Member, Epoch)> {
        self.members.iter().filter_map(|member| match member.standing {
            Standing::Expelled { since, .. } => Some((member, since)),
            Standing::Live => None,
        })
    }

    /// Whether this node takes part.
    pub fn is_live(&self, node: NodeId) -> bool {
        self.live().any(|member| member.node == node)
    }

    /// Expels `suspect`, which `by` has found dead. `None` if `by` or `suspect` is not live (any
    /// more): an expelled node expels no other node.
    #[must_use]
    pub fn expel(&self, by: NodeId, suspect: NodeId) -> Option<Self> {
        if by == suspect || !self.is_live(by) || !self.is_live(suspect) {
            return None;
        }
        let mut next = self.clone();
        next.epoch = Epoch(self.epoch.0 + 1);
        let parts = vec![Part::Free; self.live().count() - 1];
        let since = next.epoch;
        next.member_mut(suspect)?.standing = Standing::Expelled { since, parts };
        next.forget_cuts(suspect);
        Some(next)
    }

    /// Lost memory nodes, in the order of their losses.
    pub fn lost_memory(&self) -> &[LostMemory] {
        &self.lost
    }

    /// `placement` without the lost memory nodes, with joining memory nodes, which every commit
    /// writes (I136), listed behind the full replicas.
    ///
    /// # Panics
    /// If `placement` is not the placement by which the memory nodes were lost.
    #[must_use]
    pub fn surviving(&self, placement: &Placement) -> Placement {
        let joining: Vec<NodeId> = self.joining().map(|joining| joining.node).collect();
        self.kept(placement).with_joining(placement, &joining)
    }

    /// `placement` without the lost and the joining memory nodes: full replicas only.
    ///
    /// # Panics
    /// As [`Self::surviving`].
    #[must_use]
    pub fn kept(&self, placement: &Placement) -> Placement {
        let lost = self.lost.iter().map(|lost| lost.node);
        let absent: Vec<NodeId> = match broken(Rule::CopiesAreWhole) {
            true => lost.collect(),
            false => lost.chain(self.joining().map(|joining| joining.node)).collect(),
        };
        placement.without(&absent).expect("no memory node is lost that a group needs")
    }

    /// Epoch that began with the last change for which all nodes stop: of the memory nodes in use,
    /// or of the tables with memory in use.
    pub fn reduced(&self) -> Epoch {
        self.changed
    }

    /// Replaces the complaints of `by`: the memory nodes in `about` do not answer, and the rest do.
    /// A memory node is lost when half of the members complain of it (I100), as long as every group
    /// keeps a copy. `None` if nothing changes.
    #[must_use]
    pub fn complain(&self, by: NodeId, about: &[NodeId], placement: &Placement) -> Option<Self> {
        if !self.is_live(by) {
            return None;
        }
        let mut next = self.clone();
        next.complaints.retain(|one| one.by != by && self.is_live(one.by));
        let news = about.iter().filter(|about| self.lost.iter().all(|lost| lost.node != **about));
        next.complaints.extend(news.map(|about| Complaint { by, about: *about }));
        next.complaints.sort_unstable_by_key(|one| (one.about, one.by));
        while let Some(node) = next.doomed(placement) {
            next.change_placement();
            next.lost.push(LostMemory { node, since: next.epoch });
            next.returns.retain(|one| one.node != node);
            next.complaints.retain(|one| one.about != node);
        }
        (next != *self).then_some(next)
    }

    /// Whether `by` complains that memory node `about` does not answer.
    pub fn complains(&self, by: NodeId, about: NodeId) -> bool {
        self.complaints.contains(&Complaint { by, about })
    }

    /// Memory nodes that do not answer half of the members, but hold the last copies of some group:
    /// the group's data is unavailable unless they come back.
    pub fn out_of_reach(&self, placement: &Placement) -> Vec<NodeId> {
        let last = |node: &NodeId| !self.can_do_without(*node, placement);
        self.accused().into_iter().filter(last).collect()
    }

    /// Whether every group keeps a full copy without this memory node.
    pub fn can_do_without(&self, node: NodeId, placement: &Placement) -> bool {
        self.kept(placement).without(&[node]).is_some()
    }

    /// First memory node with enough complaints to be lost that can be spared.
    fn doomed(&self, placement: &Placement) -> Option<NodeId> {
        self.accused().into_iter().find(|node| self.can_do_without(*node, placement))
    }

    /// Memory nodes that at least half of the live members complain of.
    fn accused(&self) -> Vec<NodeId> {
        let members = self.live().count();
        let mut about: Vec<NodeId> = self.complaints.iter().map(|one| one.about).collect();
        about.dedup();
        about.retain(|about| {
            let theirs = self.complaints.iter().filter(|one| one.about == *about);
            let heard = theirs.filter(|one| self.is_live(one.by)).count();
            2 * heard >= members || broken(Rule::ComplaintsAreCounted)
        });
        about
    }

    /// Records that `by` reads and begins nothing any more by placements from before `epoch`.
    /// `None` if `by` is not live or has already stopped for `epoch`.
    #[must_use]
    pub fn stop(&self, by: NodeId, epoch: Epoch) -> Option<Self> {
        let mut next = self.clone();
        let live = self.is_live(by);
        let member = next.member_mut(by).filter(|member| live && member.stopped < epoch)?;
        member.stopped = epoch;
        Some(next)
    }

    /// Whether every live node has stopped using the placement from before the last change.
    pub fn all_have_stopped(&self) -> bool {
        self.live().all(|member| member.stopped >= self.reduced())
    }

    /// Whether transactions may begin by the new placement: no live node has work under way by an
    /// earlier placement, and every expelled node is resolved.
    pub fn may_resume(&self) -> bool {
        let over = |member: &Member| member.acknowledged >= self.reduced();
        self.all_have_stopped() && self.live().all(over) && self.are_all_resolved()
    }

    /// Records that `by` has taken note of all losses up to `epoch`. `None` if `by` is not live or
    /// has already acknowledged `epoch`.
    #[must_use]
    pub fn acknowledge(&self, by: NodeId, epoch: Epoch) -> Option<Self> {
        let mut next = self.clone();
        let live = self.is_live(by);
        let member = next.member_mut(by).filter(|member| live && member.acknowledged < epoch)?;
        member.acknowledged = epoch;
        Some(next)
    }

    /// A part that `by` may work on: first the part claimed by `by`, else an open part at the rank
    /// of `by` among the survivors, else any open part. A free part is open, and a part with an
    /// expelled holder.
    pub fn claimable(&self, by: NodeId) -> Option<PartId> {
        let rank = self.live().position(|member| member.node == by)?;
        let all = || {
            self.members.iter().flat_map(|member| {
                let parts = member.parts();
                parts.iter().enumerate().map(|(index, part)| {
                    (PartId { of: member.node, index }, *part, index == rank % parts.len())
                })
            })
        };
        let open = |part: Part| match part {
            Part::Free => true,
            Part::Claimed(holder) => !self.is_live(holder),
            Part::Done => false,
        };
        let mine = all().find(|(_, part, _)| *part == Part::Claimed(by));
        let own = || all().find(|(_, part, own)| *own && open(*part));
        let any = || all().find(|(_, part, _)| open(*part));
        mine.or_else(own).or_else(any).map(|(id, ..)| id)
    }

    /// Claims a part for `by`. `None` if the part is done or held by another live member.
    #[must_use]
    pub fn claim(&self, by: NodeId, part: PartId) -> Option<Self> {
        let open = match *self.part(part)? {
            Part::Free => true,
            // Held by `by` already: the answer to its first claim was lost (I108).
            Part::Claimed(holder) => holder == by || !self.is_live(holder),
            Part::Done => false,
        };
        self.set(by, part, Part::Claimed(by)).filter(|_| open)
    }

    /// Marks a part that `by` holds as resolved. `None` if `by` is not live or does not hold the
    /// part.
    #[must_use]
    pub fn finish(&self, by: NodeId, part: PartId) -> Option<Self> {
        let mine = *self.part(part)? == Part::Claimed(by);
        self.set(by, part, Part::Done).filter(|_| mine)
    }

    /// Number of parts into which a node's log slots are cut; 0 while the node is live.
    pub fn parts_of(&self, node: NodeId) -> usize {
        let member = self.members.iter().find(|member| member.node == node);
        member.map_or(0, |member| member.parts().len())
    }

    /// Whether every transaction of an expelled node is settled on all replicas.
    pub fn is_resolved(&self, node: NodeId) -> bool {
        let member = self.members.iter().find(|member| member.node == node);
        member.is_some_and(|member| {
            member.standing != Standing::Live
                && member.parts().iter().all(|part| *part == Part::Done)
        })
    }

    /// Whether every expelled node [is resolved](Self::is_resolved): no transaction of an expelled
    /// node is in doubt, and their verbs no longer take effect.
    pub fn are_all_resolved(&self) -> bool {
        self.expelled().all(|(member, _)| self.is_resolved(member.node))
    }

    /// Whether a shard without an owner in this membership may get an owner: every node that could
    /// still act on the shard's locks has acknowledged, or has been expelled and resolved (H4).
    pub fn may_adopt(&self) -> bool {
        self.live().all(|member| member.acknowledged == self.epoch) && self.are_all_resolved()
    }

    /// Live member that inherits a shard without an owner: the survivors take turns by shard
    /// number.
    ///
    /// # Panics
    /// If no member is live.
    pub fn heir(&self, shard: ShardId) -> NodeId {
        let live: Vec<NodeId> = self.live().map(|member| member.node).collect();
        live[usize::from(shard.raw()) % live.len()]
    }

    fn part(&self, id: PartId) -> Option<&Part> {
        self.members.iter().find(|member| member.node == id.of)?.parts().get(id.index)
    }

    fn set(&self, by: NodeId, id: PartId, to: Part) -> Option<Self> {
        let mut next = self.clone();
        let live = self.is_live(by);
        let Standing::Expelled { parts, .. } = &mut next.member_mut(id.of)?.standing else {
            return None;
        };
        *parts.get_mut(id.index).filter(|_| live)? = to;
        Some(next)
    }

    /// Begins an epoch for which all nodes stop.
    fn change_placement(&mut self) {
        self.epoch = Epoch(self.epoch.0 + 1);
        self.changed = self.epoch;
    }

    fn member_mut(&mut self, node: NodeId) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.node == node)
    }
}

impl Member {
    fn parts(&self) -> &[Part] {
        match &self.standing {
            Standing::Live => &[],
            Standing::Expelled { parts, .. } => parts,
        }
    }
}

/// Result of a change of the membership.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeOutcome {
    /// The change landed; the new membership.
    Changed(Membership),
    /// Nothing was to change; the current membership.
    Unchanged(Membership),
}

impl ChangeOutcome {
    /// The membership, changed or not.
    pub fn membership(self) -> Membership {
        match self {
            Self::Changed(membership) | Self::Unchanged(membership) => membership,
        }
    }
}

/// Error of reading or changing the membership.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// The authority did not answer; a change may or may not have been made. Ask again.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The membership was never written, or was written by another program.
    #[error(transparent)]
    Damaged(#[from] Damaged),
}

/// Stores the first membership of a cluster.
///
/// # Errors
/// [`AuthorityError::Conflict`] if a membership is already stored.
pub fn found(authority: &dyn Authority, membership: &Membership) -> Result<(), AuthorityError> {
    authority.compare_and_swap(KEY, Version::ABSENT, &membership.encode()).map(drop)
}

/// Reads the membership.
///
/// # Errors
/// [`MembershipError`].
pub fn read(authority: &dyn Authority) -> Result<Membership, MembershipError> {
    change(authority, |_| None).map(ChangeOutcome::membership)
}

/// Changes the membership to the value returned by `decide`, if any. `decide` is called again with
/// the new value whenever another node's change lands first.
///
/// # Errors
/// [`MembershipError`].
pub fn change(
    authority: &dyn Authority,
    mut decide: impl FnMut(&Membership) -> Option<Membership>,
) -> Result<ChangeOutcome, MembershipError> {
    loop {
        let swap = match step(authority.read(KEY)?, &mut decide)? {
            ChangeStep::Rest(now) => return Ok(ChangeOutcome::Unchanged(now)),
            ChangeStep::Swap(swap) => swap,
        };
        match authority.compare_and_swap(KEY, swap.expected, &swap.value) {
            Ok(_) => return Ok(ChangeOutcome::Changed(swap.next)),
            Err(AuthorityError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Next action of a change, given the value stored under [`KEY`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeStep {
    /// Nothing is to change.
    Rest(Membership),
    /// Store this change by compare-and-swap.
    Swap(Swap),
}

/// A change of the membership to be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Swap {
    /// Version on which the change was decided.
    pub expected: Version,
    /// Membership after the change.
    pub next: Membership,
    /// `next` in its stored form.
    pub value: Vec<u8>,
}

/// Applies `decide` to the stored membership: one round of [`change`], for callers that reach the
/// authority by other means.
///
/// # Errors
/// [`Damaged`], also if nothing is stored.
pub fn step(
    stored: Option<Versioned>,
    decide: impl FnOnce(&Membership) -> Option<Membership>,
) -> Result<ChangeStep, Damaged> {
    let stored = stored.ok_or(Damaged)?;
    let now = Membership::decode(&stored.value)?;
    let Some(next) = decide(&now) else { return Ok(ChangeStep::Rest(now)) };
    let value = next.encode();
    Ok(ChangeStep::Swap(Swap { expected: stored.version, next, value }))
}

pub mod clearing;
pub mod cuts;
mod lives;
pub mod returns;
#[cfg(test)]
mod tests;
