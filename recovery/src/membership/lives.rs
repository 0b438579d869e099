//! Return of an expelled compute node, as a new life (H2, H4).
//!
//! # What it is
//! A node has *lives*. Each life has an [incarnation](Member::incarnation), larger than the
//! incarnations of all earlier lives, and an [epoch](Member::joined) that began when the life was
//! taken in. A life is taken in at its predecessor's place, by one compare-and-swap: of two
//! processes competing for a place, one succeeds.
//!
//! # When
//! A node [may rejoin](Membership::may_rejoin) only after all work left by expelled nodes is
//! settled, and all live nodes know of the expulsions. By then no relevant operation of the
//! previous life is under way, the log slots are free, and no node still drops the life's locks or
//! serves its requests.
//!
//! # After the return
//! The node is a [newcomer](Membership::is_newcomer) until all live nodes, itself included, have
//! acknowledged the epoch in which the life was taken in. Until then the node begins no
//! transactions and is given no shards: some node may still regard it as expelled.
//!
//! # Limits
//! No new places: the number of places stays as at the cluster's foundation.

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

    /// Result of `decide`, made on behalf of this life of a node; `None` once the life is over
    /// (I181), even if a later life has the place.
    pub fn decided_by(
        &self,
        (node, life): (NodeId, Incarnation),
        decide: impl FnOnce(&Self) -> Option<Self>,
    ) -> Option<Self> {
        if self.has_life(node, life) { decide(self) } else { None }
    }

    /// Nodes with an ended life, and the epoch below which their verbs must not take effect any
    /// more, at any memory node.
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

    /// Takes in a new life at every node of `nodes`, all expelled, and drops the nodes' old
    /// complaints. `None` if a node [may not return](Self::may_rejoin), or if incarnations are
    /// exhausted.
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
            // Starting with this membership, the new life knows all earlier losses.
            (member.acknowledged, member.stopped) = (self.epoch, self.epoch);
            member.standing = Standing::Live;
            next.complaints.retain(|one| one.by != *node);
        }
        Some(next)
    }

    /// Like [`expel`](Self::expel), but only for the life that was taken in at epoch `joined`: a
    /// suspicion may be older than the current life at the place.
    #[must_use]
    pub fn expel_life(&self, by: NodeId, suspect: NodeId, joined: Epoch) -> Option<Self> {
        let same = self.member(suspect).is_some_and(|member| member.joined == joined);
        self.expel(by, suspect).filter(|_| same || broken(Rule::SuspicionsNameALife))
    }

    /// Incarnation larger than all incarnations used until now: later lives have larger numbers.
    fn next_incarnation(&self) -> Option<Incarnation> {
        let last = self.members.iter().map(|member| member.incarnation.raw()).max()?;
        Incarnation::new(last + 1)
    }

    /// Whether a node is live, but not yet acknowledged by all live nodes.
    pub fn is_newcomer(&self, node: NodeId) -> bool {
        let joined = self.live().find(|member| member.node == node).map(|member| member.joined);
        joined.is_some_and(|joined| !self.live().all(|member| member.acknowledged >= joined))
    }

    /// Incarnations of ended lives, and whether all transactions of the life are settled; includes
    /// numbers that were never used.
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

    /// Live members by incarnation, in ascending order: the member taken in first comes first.
    pub fn by_age(&self) -> Vec<&Member> {
        let mut live: Vec<&Member> = self.live().collect();
        live.sort_unstable_by_key(|member| member.incarnation);
        live
    }
}

#[cfg(test)]
mod tests;
