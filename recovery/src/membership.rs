//! Who takes part, who has been expelled, and how far the recovery of each of those has come.
//!
//! # What it is
//! One small value that all compute nodes agree on: [`Membership`], stored under one key of the
//! [`Authority`] and changed by compare-and-swap only. Every change is a pure function from the
//! value to the next one, or `None` if there is nothing (left) to change. So a change that was
//! decided on an old value never lands: whoever lost the race reads and decides again.
//!
//! # The life of a dead node
//! 1. Somebody [expels](Membership::expel) it: the epoch grows, and its log is cut into as many
//!    parts as there are survivors.
//! 2. Each survivor stops granting it anything, lets the commits end that it had begun before, and
//!    [acknowledges](Membership::acknowledge) the epoch.
//! 3. Survivors [claim](Membership::claim) parts, resolve their log slots and
//!    [finish](Membership::finish) them. A claim holds until its holder is expelled itself. So at
//!    most one member works on a part, and who takes it over has fenced its predecessor.
//! 4. When all parts are finished it [is resolved](Membership::is_resolved): its locks may go.
//! 5. When everybody who was expelled is resolved and every epoch acknowledged, shards without an
//!    owner [may be adopted](Membership::may_adopt) (H4).
//!
//! Steps 2 and 3 go on side by side. Any member may die at any of them: the others read here what
//! is left to do. When all is done another life may [take its place](Membership::rejoin).
//!
//! # The life of a lost memory node
//! 1. Whoever gets no answer from it [complains](Membership::complain). When half of those who take
//!    part do, it is lost, the epoch grows, and nobody uses it again. It is never lost if a group
//!    would be left without a copy: then data is [out of reach](Membership::out_of_reach).
//! 2. *Stop.* Everybody gives up what has not begun to commit, and says so
//!    ([`Membership::stop`]): from then on it reads nothing by the old placement.
//! 3. *Finish.* When [all have](Membership::all_have_stopped), commits under way end without the
//!    lost node, and the epoch is acknowledged as after any other loss.
//! 4. *Resume.* When all have acknowledged and all who are out are resolved, transactions
//!    [may begin](Membership::may_resume) by the new placement.
//!
//! Another loss meanwhile begins with step 2 anew, for both. What becomes of one that comes back is
//! in [`returns`].
//!
//! # What it is not
//! It judges nobody ([`crate::detector`] does), fences nobody and moves no shard; the engine does.

use lotus_fabric::ids::{Epoch, Incarnation, NodeId, ShardId};
use lotus_router::Placement;
use lotus_router::authority::{Authority, AuthorityError, Version, Versioned};
use lotus_sabotage::{Rule, broken};

use self::returns::Return;

/// Where the membership is stored.
pub const KEY: &str = "membership";
/// The format that this module reads and writes.
const FORMAT: u8 = 3;

/// The epoch of a cluster that has lost nobody yet.
pub const FIRST_EPOCH: Epoch = Epoch(1);

/// The compute nodes, each with its standing. See the module's essay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    epoch: Epoch,
    members: Vec<Member>,
    /// Memory nodes that are lost, in the order of their losses.
    lost: Vec<LostMemory>,
    /// Memory nodes that have been lost and come back.
    returns: Vec<Return>,
    /// The epoch that began with the last change of the memory nodes in use.
    changed: Epoch,
    complaints: Vec<Complaint>,
}

/// A memory node that nobody uses any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LostMemory {
    /// The node.
    pub node: NodeId,
    /// The epoch that began with its loss.
    pub since: Epoch,
}

/// A compute node gets no answer from a memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Complaint {
    by: NodeId,
    about: NodeId,
}

/// One life of a compute node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// Its life: whoever returns after an expulsion is somebody else.
    pub incarnation: Incarnation,
    /// The epoch in which this life was taken in; its verbs carry it.
    pub joined: Epoch,
    /// The last epoch whose losses it has taken note of: it serves none of the expelled, and no
    /// commit of its own is left that began before.
    pub acknowledged: Epoch,
    /// The last change of the memory nodes in use since which it reads and begins nothing by the
    /// placement of before.
    pub stopped: Epoch,
    /// Whether it takes part.
    pub standing: Standing,
}

/// Whether a member takes part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It does.
    Live,
    /// It does not. Who takes its place is another life.
    Expelled {
        /// The epoch that began with its expulsion: its verbs are refused below it.
        since: Epoch,
        /// Its log slots, dealt out in turn: slot `s` belongs to part `s % parts.len()`.
        parts: Vec<Part>,
    },
}

/// What has become of one part of a dead node's log slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Nobody has begun with it.
    Free,
    /// This member resolves it.
    Claimed(NodeId),
    /// Every transaction in it is settled on all replicas.
    Done,
}

/// Names a part: whose, and which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartId {
    /// The dead node.
    pub of: NodeId,
    /// Its place among the node's parts.
    pub index: usize,
}

/// The stored bytes are not a membership; another program writes to this authority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the stored membership is damaged")]
pub struct Damaged;

impl Membership {
    /// All of these take part.
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
        }
    }

    /// Grows with every expulsion, when a life is [taken in](Self::rejoin), and with every memory
    /// node that is lost, joins or is whole.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Everybody, in the order in which they were named at first.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Those who take part.
    pub fn live(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.standing == Standing::Live)
    }

    /// Those who do not, each with the epoch that began with its expulsion.
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

    /// `by` has found `suspect` dead. `None` if either does not take part (any more): who has been
    /// expelled expels nobody.
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
        Some(next)
    }

    /// The memory nodes that are lost, in the order of their losses.
    pub fn lost_memory(&self) -> &[LostMemory] {
        &self.lost
    }

    /// What is left of a placement without the memory nodes that are lost, those that join behind.
    ///
    /// # Panics
    /// If it is not the placement by which they were lost.
    #[must_use]
    pub fn surviving(&self, placement: &Placement) -> Placement {
        let joining: Vec<NodeId> = self.joining().map(|joining| joining.node).collect();
        self.kept(placement).with_joining(placement, &joining)
    }

    /// The same, of memory nodes that have all of what they are to have.
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

    /// The epoch that began with the last change of the memory nodes in use.
    pub fn reduced(&self) -> Epoch {
        self.changed
    }

    /// `by` gets no answer from these memory nodes, and does from all others. Those are lost then
    /// that half of the members complain of, as long as every group keeps a copy. `None` if that
    /// is nothing new.
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

    /// Whether `by` has said that it gets no answer from a memory node.
    pub fn complains(&self, by: NodeId, about: NodeId) -> bool {
        self.complaints.contains(&Complaint { by, about })
    }

    /// The memory nodes that have the last copies of some group, and that half of the members get
    /// no answer from: what they have is lost, unless they come back.
    pub fn out_of_reach(&self, placement: &Placement) -> Vec<NodeId> {
        let last = |node: &NodeId| !self.can_do_without(*node, placement);
        self.accused().into_iter().filter(last).collect()
    }

    /// Whether every group has a copy left without this memory node.
    pub fn can_do_without(&self, node: NodeId, placement: &Placement) -> bool {
        self.kept(placement).without(&[node]).is_some()
    }

    /// The first memory node that is to be lost.
    fn doomed(&self, placement: &Placement) -> Option<NodeId> {
        self.accused().into_iter().find(|node| self.can_do_without(*node, placement))
    }

    /// The memory nodes that half of the members complain of.
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

    /// `by` reads and begins nothing any more by the placement of before `epoch`.
    #[must_use]
    pub fn stop(&self, by: NodeId, epoch: Epoch) -> Option<Self> {
        let mut next = self.clone();
        let live = self.is_live(by);
        let member = next.member_mut(by).filter(|member| live && member.stopped < epoch)?;
        member.stopped = epoch;
        Some(next)
    }

    /// Whether nobody reads by the placement of before the last change of the memory nodes in use.
    pub fn all_have_stopped(&self) -> bool {
        self.live().all(|member| member.stopped >= self.reduced())
    }

    /// Whether transactions may begin by the placement of after the last change: nothing of before
    /// is under way, and of nobody who is out anything is in doubt.
    pub fn may_resume(&self) -> bool {
        let over = |member: &Member| member.acknowledged >= self.reduced();
        self.all_have_stopped() && self.live().all(over) && self.are_all_resolved()
    }

    /// `by` has taken note of everybody who was expelled up to `epoch`.
    #[must_use]
    pub fn acknowledge(&self, by: NodeId, epoch: Epoch) -> Option<Self> {
        let mut next = self.clone();
        let live = self.is_live(by);
        let member = next.member_mut(by).filter(|member| live && member.acknowledged < epoch)?;
        member.acknowledged = epoch;
        Some(next)
    }

    /// A part that `by` may work on: one that it has claimed already, else one of its own place
    /// among the survivors, else any that nobody who takes part has claimed.
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

    /// `by` begins to resolve a part, or goes on. `None` if somebody else who takes part does.
    #[must_use]
    pub fn claim(&self, by: NodeId, part: PartId) -> Option<Self> {
        let open = match *self.part(part)? {
            Part::Free => true,
            // Its own: the answer to its first claim was lost.
            Part::Claimed(holder) => holder == by || !self.is_live(holder),
            Part::Done => false,
        };
        self.set(by, part, Part::Claimed(by)).filter(|_| open)
    }

    /// `by` has resolved a part that it had claimed.
    #[must_use]
    pub fn finish(&self, by: NodeId, part: PartId) -> Option<Self> {
        let mine = *self.part(part)? == Part::Claimed(by);
        self.set(by, part, Part::Done).filter(|_| mine)
    }

    /// Into how many parts a node's log slots are cut; 0 while it takes part.
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

    /// Whether [that is so](Self::is_resolved) of everybody who is out: nothing is in doubt, and no
    /// verb of theirs takes effect any more.
    pub fn are_all_resolved(&self) -> bool {
        self.expelled().all(|(member, _)| self.is_resolved(member.node))
    }

    /// Whether a shard that nobody owns may get an owner, if it had none when this was read: all
    /// who could still act on one of its locks have ended, or have been expelled and resolved (H4).
    pub fn may_adopt(&self) -> bool {
        self.live().all(|member| member.acknowledged == self.epoch) && self.are_all_resolved()
    }

    /// Who gets a shard that nobody owns: the survivors in turn.
    ///
    /// # Panics
    /// If nobody takes part.
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

    /// An epoch begins in which other memory nodes are used.
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

/// What came of an attempt to change the membership.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is this now.
    Changed(Membership),
    /// There was nothing to change; it is this.
    Unchanged(Membership),
}

impl Outcome {
    /// The membership, changed or not.
    pub fn membership(self) -> Membership {
        match self {
            Self::Changed(membership) | Self::Unchanged(membership) => membership,
        }
    }
}

/// Why the membership is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// The authority did not answer; a change may or may not have been made. Ask again.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// It was never written, or by somebody else.
    #[error(transparent)]
    Damaged(#[from] Damaged),
}

/// Stores the first membership of a cluster.
///
/// # Errors
/// [`AuthorityError::Conflict`] if there is one already.
pub fn found(authority: &dyn Authority, membership: &Membership) -> Result<(), AuthorityError> {
    authority.compare_and_swap(KEY, Version::ABSENT, &membership.encode()).map(drop)
}

/// Reads the membership.
///
/// # Errors
/// [`MembershipError`].
pub fn read(authority: &dyn Authority) -> Result<Membership, MembershipError> {
    change(authority, |_| None).map(Outcome::membership)
}

/// Changes the membership as `decide` says, which is asked again as long as somebody else is
/// faster.
///
/// # Errors
/// [`MembershipError`].
pub fn change(
    authority: &dyn Authority,
    mut decide: impl FnMut(&Membership) -> Option<Membership>,
) -> Result<Outcome, MembershipError> {
    loop {
        let swap = match step(authority.read(KEY)?, &mut decide)? {
            Step::Rest(now) => return Ok(Outcome::Unchanged(now)),
            Step::Swap(swap) => swap,
        };
        match authority.compare_and_swap(KEY, swap.expected, &swap.value) {
            Ok(_) => return Ok(Outcome::Changed(swap.next)),
            Err(AuthorityError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What follows from what is stored under [`KEY`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// There is nothing to change.
    Rest(Membership),
    /// This is to be stored.
    Swap(Swap),
}

/// A change of the membership.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Swap {
    /// The version that it was decided on.
    pub expected: Version,
    /// What the membership is afterwards.
    pub next: Membership,
    /// The same, as it is stored.
    pub value: Vec<u8>,
}

/// What `decide` makes of the stored membership: one round of [`change`], for whoever asks the
/// authority by other means.
///
/// # Errors
/// [`Damaged`], also if there is none.
pub fn step(
    stored: Option<Versioned>,
    decide: impl FnOnce(&Membership) -> Option<Membership>,
) -> Result<Step, Damaged> {
    let stored = stored.ok_or(Damaged)?;
    let now = Membership::decode(&stored.value)?;
    let Some(next) = decide(&now) else { return Ok(Step::Rest(now)) };
    let value = next.encode();
    Ok(Step::Swap(Swap { expected: stored.version, next, value }))
}

mod bytes;
mod lives;
pub mod returns;
#[cfg(test)]
mod tests;
