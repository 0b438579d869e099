//! How a compute node that was expelled takes part again: as somebody else (H2, H4).
//!
//! # What it is
//! A node has *lives*. Each has an [incarnation](Member::incarnation), larger than those of all
//! lives before it, and an [epoch](Member::joined) that began when it was taken in. A life is taken
//! in where its predecessor was, by one compare-and-swap: of two processes that want the same place
//! one gets it.
//!
//! # When
//! [Not before](Membership::may_rejoin) everything is settled that anybody has left who is out, and
//! all who take part know of it. So nothing of the life before is under way anywhere that counts,
//! its log slots are free, and nobody drops locks or serves requests on its account any more.
//!
//! # What follows
//! It is a [newcomer](Membership::is_newcomer) until all who take part have acknowledged the epoch
//! in which it was taken in, itself included. Until then it begins no transactions and is given no
//! shards: somebody may still hold it for out.
//!
//! # What it is not
//! A new place: there are as many as the cluster was founded with.

use lotus_fabric::ids::{Epoch, Incarnation, NodeId};
use lotus_sabotage::{Rule, broken};

use super::{FIRST_EPOCH, Member, Membership, Standing};

impl Membership {
    /// The member at this node, whether it takes part or not.
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.node == node)
    }

    /// Whether this life of a node takes part.
    pub fn has_life(&self, node: NodeId, life: Incarnation) -> bool {
        self.live().any(|member| member.node == node && member.incarnation == life)
    }

    /// What `decide` makes of it on behalf of this life of a node: nothing once that takes part no
    /// more, whoever may have its place by then.
    pub fn decided_by(
        &self,
        (node, life): (NodeId, Incarnation),
        decide: impl FnOnce(&Self) -> Option<Self>,
    ) -> Option<Self> {
        if self.has_life(node, life) { decide(self) } else { None }
    }

    /// Nodes of which a life is over, each with an epoch: verbs of earlier ones may take effect
    /// nowhere any more.
    pub fn refused(&self) -> impl Iterator<Item = (NodeId, Epoch)> {
        self.members.iter().filter_map(|member| match member.standing {
            Standing::Expelled { since, .. } => Some((member.node, since)),
            Standing::Live if member.joined == FIRST_EPOCH => None,
            Standing::Live => Some((member.node, member.joined)),
        })
    }

    /// Whether a node that is out may take part again: everybody who is out is settled, and all
    /// who take part know who that is.
    pub fn may_rejoin(&self, node: NodeId) -> bool {
        let out = self.member(node).is_some_and(|member| member.standing != Standing::Live);
        let settled = self.may_adopt() && self.may_resume();
        out && (settled || broken(Rule::ReturnsWait))
    }

    /// Takes a new life in at each of these nodes, all of which are out; their complaints of
    /// before are void. `None` if one [may not](Self::may_rejoin), or if there are no more
    /// incarnations.
    #[must_use]
    pub fn rejoin(&self, nodes: &[NodeId]) -> Option<Self> {
        let mut next = self.clone();
        next.epoch = Epoch(self.epoch.0 + 1);
        for node in nodes {
            if !self.may_rejoin(*node) {
                return None;
            }
            let joined = next.epoch;
            let incarnation = next.next_incarnation()?;
            let member = next.member_mut(*node)?;
            if !broken(Rule::LivesDiffer) {
                member.incarnation = incarnation;
            }
            member.joined = joined;
            // It knows what this membership says.
            (member.acknowledged, member.stopped) = (self.epoch, self.epoch);
            member.standing = Standing::Live;
            next.complaints.retain(|one| one.by != *node);
        }
        Some(next)
    }

    /// As [`expel`](Self::expel), of the life that was taken in at this epoch: a suspicion may be
    /// older than whoever has that place by now.
    #[must_use]
    pub fn expel_life(&self, by: NodeId, suspect: NodeId, joined: Epoch) -> Option<Self> {
        let same = self.member(suspect).is_some_and(|member| member.joined == joined);
        self.expel(by, suspect).filter(|_| same || broken(Rule::SuspicionsNameALife))
    }

    /// Larger than that of every life so far: a member is replaced by a later one only.
    fn next_incarnation(&self) -> Option<Incarnation> {
        let last = self.members.iter().map(|member| member.incarnation.raw()).max()?;
        Incarnation::new(last + 1)
    }

    /// Whether a node takes part, and not all who do know of it yet.
    pub fn is_newcomer(&self, node: NodeId) -> bool {
        let joined = self.live().find(|member| member.node == node).map(|member| member.joined);
        joined.is_some_and(|joined| !self.live().all(|member| member.acknowledged >= joined))
    }

    /// The incarnations of lives that are over, each with whether all is settled that it has left;
    /// numbers among them that nobody had.
    pub fn over(&self) -> impl Iterator<Item = (Incarnation, bool)> {
        let last = self.members.iter().map(|member| member.incarnation.raw()).max().unwrap_or(0);
        (1..=last).filter_map(Incarnation::new).filter_map(|life| {
            match self.members.iter().find(|member| member.incarnation == life) {
                Some(member) if member.standing == Standing::Live => None,
                Some(member) => Some((life, self.is_resolved(member.node))),
                // Another life has been taken in since.
                None => Some((life, true)),
            }
        })
    }

    /// Who takes part, by incarnation: the one that was taken in first comes first.
    pub fn by_age(&self) -> Vec<&Member> {
        let mut live: Vec<&Member> = self.live().collect();
        live.sort_unstable_by_key(|member| member.incarnation);
        live
    }
}

#[cfg(test)]
mod tests;
