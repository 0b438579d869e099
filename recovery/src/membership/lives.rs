//! Return of an expelled compute node, as a new life (H2, H4).
//!
//! # What it is
//! A node has *lives*. Each has an [incarnation](Member::incarnation), larger than those of all
//! earlier lives, and an [epoch](Member::joined) that began when it was taken in. A life is taken
//! in at its predecessor's place, by one compare-and-swap: of two processes that want the same
//! place, one gets it.
//!
//! # When
//! A node [may rejoin](Membership::may_rejoin) only after everything that expelled nodes left
//! behind is settled, and all live nodes know of the expulsions. So nothing of the previous life is
//! under way anywhere that counts, its log slots are free, and no node still drops its locks or
//! serves its requests.
//!
//! # What follows
//! It is a [newcomer](Membership::is_newcomer) until all live nodes, itself included, have
//! acknowledged the epoch in which it was taken in. Until then it begins no transactions and is
//! given no shards: some node may still regard it as expelled.
//!
//! # What it is not
//! A new place: the cluster keeps the number of places that it was founded with.

use lotus_fabric::ids::{Epoch, Incarnation, NodeId};
use lotus_sabotage::{Rule, broken};

use super::{FIRST_EPOCH, Member, Membership, Standing};

impl Membership {
    /// The member at this node, live or expelled; `None` if the cluster has no such node.
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.node == node)
    }

    /// Whether this life of a node takes part.
    pub fn has_life(&self, node: NodeId, life: Incarnation) -> bool {
        self.live().any(|member| member.node == node && member.incarnation == life)
    }

    /// Result of `decide`, made on behalf of this life of a node; `None` once this life is over,
    /// even if another life has its place by then.
    pub fn decided_by(
        &self,
        (node, life): (NodeId, Incarnation),
        decide: impl FnOnce(&Self) -> Option<Self>,
    ) -> Option<Self> {
        if self.has_life(node, life) { decide(self) } else { None }
    }

    /// Nodes with a life that is over, each with an epoch: verbs of earlier epochs must not take
    /// effect anywhere any more.
    pub fn refused(&self) -> impl Iterator<Item = (NodeId, Epoch)> {
        self.members.iter().filter_map(|member| match member.standing {
            Standing::Expelled { since, .. } => Some((member.node, since)),
            Standing::Live if member.joined == FIRST_EPOCH => None,
            Standing::Live => Some((member.node, member.joined)),
        })
    }

    /// Whether an expelled node may take part again: every expelled node is resolved, and all live
    /// nodes know of the expulsions.
    pub fn may_rejoin(&self, node: NodeId) -> bool {
        let out = self.member(node).is_some_and(|member| member.standing != Standing::Live);
        let settled = self.may_adopt() && self.may_resume();
        out && (settled || broken(Rule::ReturnsWait))
    }

    /// Takes in a new life at each of these expelled nodes and drops their old complaints. `None`
    /// if any of them [may not return](Self::may_rejoin), or if there are no more incarnations.
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
            // It starts with this membership, so it knows all earlier losses.
            (member.acknowledged, member.stopped) = (self.epoch, self.epoch);
            member.standing = Standing::Live;
            next.complaints.retain(|one| one.by != *node);
        }
        Some(next)
    }

    /// Like [`expel`](Self::expel), but only for the life that was taken in at epoch `joined`: a
    /// suspicion may be older than the life that has the place by now.
    #[must_use]
    pub fn expel_life(&self, by: NodeId, suspect: NodeId, joined: Epoch) -> Option<Self> {
        let same = self.member(suspect).is_some_and(|member| member.joined == joined);
        self.expel(by, suspect).filter(|_| same || broken(Rule::SuspicionsNameALife))
    }

    /// Incarnation larger than that of every life so far, so that later lives have larger numbers.
    fn next_incarnation(&self) -> Option<Incarnation> {
        let last = self.members.iter().map(|member| member.incarnation.raw()).max()?;
        Incarnation::new(last + 1)
    }

    /// Whether a node is live, but not all live nodes have acknowledged it yet.
    pub fn is_newcomer(&self, node: NodeId) -> bool {
        let joined = self.live().find(|member| member.node == node).map(|member| member.joined);
        joined.is_some_and(|joined| !self.live().all(|member| member.acknowledged >= joined))
    }

    /// Incarnations of lives that are over, each with whether all its transactions are settled;
    /// includes numbers that were never used.
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

    /// Live members by incarnation: the one that was taken in first comes first.
    pub fn by_age(&self) -> Vec<&Member> {
        let mut live: Vec<&Member> = self.live().collect();
        live.sort_unstable_by_key(|member| member.incarnation);
        live
    }
}

#[cfg(test)]
mod tests;
