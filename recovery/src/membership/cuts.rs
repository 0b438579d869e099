//! Compute nodes with a cut path between them, although both take part.
//!
//! # What it is
//! Beats go by memory nodes, so a path that is cut between two compute nodes silences neither: both
//! stay members, and each waits for the other's locks, transactions of all nodes among them. A node
//! therefore [reports](Membership::cut_off) members not reached by its messages, and when a cut has
//! [lasted](crate::detector::Standoff) the other members decide which node [gives
//! way](Membership::who_gives_way): the chosen node is expelled, and recovered like after any
//! expulsion.
//!
//! # Which node gives way
//! The node with most cuts: a node reaching few members is more likely at fault than the rest, and
//! the fewest nodes have to go. Among equals the youngest, because the eldest, which issues
//! timestamps, should stay. One node goes at a time, and all reports by and about the node are
//! dropped; the need for a further expulsion is decided anew. Of the last two nodes with a cut
//! between them one stays, and a node reaching all members never goes.
//!
//! # Limits
//! Safety does not need this module. A wrong report costs a recovery; it is never more than a
//! suspicion. An expelled node may return: a returning node first checks its paths to all members
//! (`engine/src/cluster/rejoin.rs`).

use lotus_fabric::ids::NodeId;
use serde::{Deserialize, Serialize};

use super::{Member, Membership};

/// Report of compute node `by` that its messages do not reach compute node `to`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Cut {
    /// The reporting node.
    pub by: NodeId,
    /// The unreached node.
    pub to: NodeId,
}

impl Cut {
    fn is_about(self, node: NodeId) -> bool {
        self.by == node || self.to == node
    }
}

impl Membership {
    /// Cuts between members, as reported.
    pub fn cuts(&self) -> &[Cut] {
        &self.cuts
    }

    /// Replaces the reports of `by`: its messages do not reach the nodes in `to`, and reach the
    /// rest. Nodes that are not members do not count. `None` if nothing changes.
    #[must_use]
    pub fn cut_off(&self, by: NodeId, to: &[NodeId]) -> Option<Self> {
        if !self.is_live(by) {
            return None;
        }
        let mut cuts: Vec<Cut> = self.cuts.iter().copied().filter(|cut| cut.by != by).collect();
        let members = to.iter().filter(|to| **to != by && self.is_live(**to));
        cuts.extend(members.map(|to| Cut { by, to: *to }));
        cuts.sort_unstable();
        cuts.dedup();
        (cuts != self.cuts).then(|| Self { cuts, ..self.clone() })
    }

    /// Member that is to give way, if cuts are reported.
    pub fn who_gives_way(&self) -> Option<NodeId> {
        let missed = |one: &&Member| {
            let is_cut = |other: &&Member| {
                let between = |cut: &Cut| cut.is_about(one.node) && cut.is_about(other.node);
                other.node != one.node && self.cuts.iter().any(between)
            };
            self.live().filter(is_cut).count()
        };
        let most = self.live().max_by_key(|one| (missed(one), one.incarnation))?;
        (missed(&most) > 0).then_some(most.node)
    }

    /// Expels the member that is to give way, on behalf of `by`, which has seen that the cuts in
    /// `lasting` persist. `None` if none of the cuts is still reported, or if `by` itself is to go:
    /// the rest decide on the expulsion.
    #[must_use]
    pub fn give_way(&self, by: NodeId, lasting: &[Cut]) -> Option<Self> {
        lasting.iter().find(|cut| self.cuts.contains(cut))?;
        self.expel(by, self.who_gives_way()?)
    }

    /// Drops all reports by and about a node.
    pub(super) fn forget_cuts(&mut self, node: NodeId) {
        self.cuts.retain(|cut| !cut.is_about(node));
    }
}

#[cfg(test)]
mod tests {
    use lotus_fabric::ids::Incarnation;

    use super::*;

    /// Members 1 to `count`; the larger number is the younger node.
    fn members(count: u16) -> Membership {
        let life = |number| Incarnation::new(number).expect("not zero");
        Membership::new((1..=count).map(|node| (NodeId(node), life(node))))
    }

    fn with(cuts: &[(u16, u16)], count: u16) -> Membership {
        let mut now = members(count);
        for by in 1..=count {
            let theirs = cuts.iter().filter(|cut| cut.0 == by).map(|cut| NodeId(cut.1));
            now = now.cut_off(NodeId(by), &theirs.collect::<Vec<_>>()).unwrap_or(now);
        }
        now
    }

    /// Lets members give way until none has to; returns them in order.
    fn settled(mut now: Membership) -> Vec<u16> {
        let mut gone = Vec::new();
        while let Some(node) = now.who_gives_way() {
            let by = now.live().map(|one| one.node).find(|one| *one != node).expect("another");
            let lasting = now.cuts().to_vec();
            now = now.give_way(by, &lasting).expect("somebody goes");
            gone.push(node.0);
        }
        gone
    }

    /// A case: its name, the number of members, the cuts as reported, and the nodes that go.
    type Case<'a> = (&'a str, u16, &'a [(u16, u16)], &'a [u16]);

    #[test]
    fn the_node_with_most_cuts_goes_then_the_youngest_and_no_more_than_must() {
        let cases: &[Case<'_>] = &[
            ("all is well", 3, &[], &[]),
            ("two nodes, both report", 2, &[(1, 2), (2, 1)], &[2]),
            ("two nodes, one reports", 2, &[(1, 2)], &[2]),
            ("one path of three", 3, &[(2, 3), (3, 2)], &[3]),
            ("one path of three, with the eldest", 3, &[(3, 1)], &[3]),
            ("the eldest reaches nobody", 3, &[(1, 2), (1, 3)], &[1]),
            ("nobody reaches the eldest", 4, &[(2, 1), (3, 1), (4, 1)], &[1]),
            ("the youngest reaches half", 5, &[(5, 1), (5, 2)], &[5]),
            ("two paths without a common node", 4, &[(1, 2), (3, 4)], &[4, 2]),
            ("a chain", 3, &[(1, 2), (2, 3)], &[2]),
            (
                "two and three: the smaller side goes",
                5,
                &[(1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5)],
                &[2, 1],
            ),
            ("two and two", 4, &[(1, 3), (1, 4), (2, 3), (2, 4)], &[4, 3]),
            ("nobody reaches anybody", 3, &[(1, 2), (2, 3), (3, 1)], &[3, 2]),
        ];
        for (what, count, cuts, gone) in cases {
            assert_eq!(settled(with(cuts, *count)), *gone, "{what}");
        }
    }

    #[test]
    fn reports_are_replaced_and_those_of_and_about_a_node_that_is_out_are_dropped() {
        let now = with(&[(1, 3), (2, 3), (2, 1)], 3);
        assert_eq!(now.cuts().len(), 3);
        assert_eq!(now.cut_off(NodeId(2), &[NodeId(1), NodeId(3)]), None, "nothing new");
        let mended = now.cut_off(NodeId(2), &[]).expect("two are gone");
        assert_eq!(mended.cuts(), [Cut { by: NodeId(1), to: NodeId(3) }]);
        let out = now.expel(NodeId(1), NodeId(3)).expect("both take part");
        assert_eq!(out.cuts(), [Cut { by: NodeId(2), to: NodeId(1) }]);
        assert_eq!(out.cut_off(NodeId(3), &[NodeId(1)]), None, "it has no say");
        assert_eq!(out.cut_off(NodeId(1), &[NodeId(3)]), None, "nobody waits for it");
        assert_eq!(out.cut_off(NodeId(1), &[NodeId(1)]), None, "itself");
    }

    #[test]
    fn a_decision_that_is_out_of_date_expels_nobody() {
        let now = with(&[(1, 2), (2, 1)], 3);
        let lasting = now.cuts().to_vec();
        assert_eq!(now.give_way(NodeId(2), &lasting), None, "the others decide");
        assert_eq!(now.give_way(NodeId(3), &[]), None, "none lasts");
        let mended = [NodeId(1), NodeId(2)]
            .into_iter()
            .fold(now.clone(), |now, by| now.cut_off(by, &[]).expect("it had one"));
        assert_eq!(mended.give_way(NodeId(3), &lasting), None, "the path was mended");
        let out = now.give_way(NodeId(3), &lasting).expect("the younger one goes");
        assert!(!out.is_live(NodeId(2)) && out.is_live(NodeId(1)));
        assert_eq!(out.give_way(NodeId(3), &lasting), None, "once");
    }
}
