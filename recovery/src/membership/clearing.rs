//! Memory of dropped tables, and when it may serve other tables.
//!
//! # What it is
//! A table is first dropped in the list of tables; the list does not say which nodes still read or
//! write the table's memory. This part of the membership keeps track, for one table at a time:
//!
//! 1. Clearing [begins](Membership::begin_clearing). The epoch grows, and all live nodes stop,
//!    finish and resume as for a change of the memory nodes, though the memory nodes stay the same.
//!    A stopped node begins nothing more on the table; an acknowledged node has nothing under way
//!    on the table, neither reads nor writes nor slabs.
//! 2. When transactions [may resume](Membership::may_resume), no transaction of an expelled node is
//!    in doubt either, so recovery needs the table no more. One member
//!    [claims](Membership::claim_clearing) the work, and from then on the table's memory [is
//!    nobody's](Membership::is_released). The claim holds until the member is expelled and its work
//!    is settled; hence the member is fenced everywhere before a successor begins.
//! 3. When the slabs are zero and free on every replica, clearing
//!    [ends](Membership::finish_clearing).
//!
//! No memory node joins between 1 and 3, nor does clearing begin while a memory node joins: its
//! directory is being copied.
//!
//! # What it is not
//! This module zeroes nothing; the engine does. The list of tables records permanently that the
//! memory is gone.

use lotus_fabric::ids::{NodeId, TableId};
use lotus_sabotage::{Rule, broken};
use serde::{Deserialize, Serialize};

use super::Membership;

/// Dropped table whose memory is being given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Clearing {
    table: u16,
    by: Option<NodeId>,
}

impl Clearing {
    /// The table.
    pub const fn table(&self) -> TableId {
        TableId(self.table)
    }

    /// Member that gives the memory back; `None` while some node may still use the table.
    pub const fn by(&self) -> Option<NodeId> {
        self.by
    }
}

impl Membership {
    /// Dropped table whose memory is being given back.
    pub fn clearing(&self) -> Option<Clearing> {
        self.clearing
    }

    /// Number of tables whose memory has been given back.
    pub fn cleared(&self) -> u32 {
        self.cleared
    }

    /// Whether the memory of this table is released: being given back, and owned by no table any
    /// more. Recovery leaves the memory alone.
    pub fn is_released(&self, table: TableId) -> bool {
        self.clearing.is_some_and(|now| now.table() == table && now.by.is_some())
    }

    /// Begins to give back the memory of a dropped table. `None` if `by` is not live, while another
    /// table is being cleared, and while the memory nodes in use are changing.
    #[must_use]
    pub fn begin_clearing(&self, by: NodeId, table: TableId) -> Option<Self> {
        let at_rest = self.clearing.is_none() && self.joining().next().is_none();
        if !self.is_live(by) || !at_rest || !self.may_resume() {
            return None;
        }
        let mut next = self.clone();
        next.clearing = Some(Clearing { table: table.0, by: None });
        next.change_placement();
        Some(next)
    }

    /// Claims the work for `by`. `None` if no table is being cleared, if a live member has the
    /// claim already, or if some node may still use the table.
    #[must_use]
    pub fn claim_clearing(&self, by: NodeId) -> Option<Self> {
        let Clearing { table, by: holder } = self.clearing?;
        let open = holder.is_none_or(|holder| !self.is_live(holder));
        let unused = self.may_resume() || broken(Rule::AllLetGoFirst);
        if !self.is_live(by) || !open || !unused {
            return None;
        }
        let mut next = self.clone();
        next.clearing = Some(Clearing { table, by: Some(by) });
        Some(next)
    }

    /// Ends the clearing of `table`, which `by` has done. `None` if `by` does not hold the claim on
    /// it.
    #[must_use]
    pub fn finish_clearing(&self, by: NodeId, table: TableId) -> Option<Self> {
        let mine = Some(Clearing { table: table.0, by: Some(by) });
        if !self.is_live(by) || self.clearing != mine {
            return None;
        }
        let mut next = self.clone();
        (next.clearing, next.cleared) = (None, self.cleared + 1);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use lotus_fabric::ids::Incarnation;

    use super::super::{Membership, PartId};
    use super::*;

    const T: TableId = TableId(7);

    fn three() -> Membership {
        let life = |number| Incarnation::new(number).expect("small");
        Membership::new((0..3).map(|node| (NodeId(node), life(node + 1))))
    }

    /// All live nodes stop and acknowledge.
    fn let_go(mut now: Membership) -> Membership {
        let live: Vec<NodeId> = now.live().map(|member| member.node).collect();
        for step in [Membership::stop, Membership::acknowledge] {
            for node in &live {
                now = step(&now, *node, now.epoch()).unwrap_or(now);
            }
        }
        now
    }

    /// Recovers a dead node.
    fn settle(mut now: Membership, dead: NodeId, by: NodeId) -> Membership {
        for index in 0..now.parts_of(dead) {
            let part = PartId { of: dead, index };
            now = now.claim(by, part).and_then(|now| now.finish(by, part)).expect("it is open");
        }
        now
    }

    #[test]
    fn memory_is_nobodys_once_every_node_has_let_go_of_the_table() {
        let [a, b, c] = [0, 1, 2].map(NodeId);
        let begun = three().begin_clearing(a, T).expect("at rest");
        assert!(begun.epoch() > three().epoch() && !begun.may_resume());
        assert_eq!(begun.begin_clearing(b, TableId(8)), None, "one after the other");
        assert_eq!(begun.claim_clearing(a), None, "nobody has stopped");
        let mut now = begun.clone();
        for node in [a, b, c] {
            assert_eq!(now.claim_clearing(a), None, "{node:?} has not stopped");
            now = now.stop(node, now.epoch()).expect("it is live");
        }
        for node in [a, b, c] {
            assert_eq!(now.claim_clearing(a), None, "{node:?} has work under way");
            assert!(!now.is_released(T));
            now = now.acknowledge(node, now.epoch()).expect("it is live");
        }
        let claimed = now.claim_clearing(b).expect("all have let go");
        assert!(claimed.is_released(T) && !claimed.is_released(TableId(8)));
        assert_eq!(claimed.claim_clearing(c), None, "it is another's");
        assert_eq!(claimed.finish_clearing(c, T), None);
        assert_eq!(claimed.finish_clearing(b, TableId(8)), None);
        let done = claimed.finish_clearing(b, T).expect("its own");
        assert_eq!((done.clearing(), done.cleared()), (None, 1));
        assert!(done.begin_clearing(c, TableId(8)).is_some());
    }

    #[test]
    fn memory_waits_for_the_transactions_of_a_node_that_dies() {
        let [a, b, c] = [0, 1, 2].map(NodeId);
        let begun = three().begin_clearing(a, T).expect("at rest");
        let lost = let_go(begun.expel(a, c).expect("both are live"));
        assert_eq!(lost.claim_clearing(a), None, "its transactions are in doubt");
        assert!(settle(lost, c, b).claim_clearing(a).is_some());
    }

    #[test]
    fn work_of_a_dead_member_is_anothers_once_nothing_of_it_can_land() {
        let [a, b, c] = [0, 1, 2].map(NodeId);
        let begun = three().begin_clearing(a, T).expect("at rest");
        let claimed = let_go(begun).claim_clearing(c).expect("all have let go");
        assert_eq!(claimed.claim_clearing(a), None);
        let lost = let_go(claimed.expel(a, c).expect("both are live"));
        assert_eq!(lost.finish_clearing(c, T), None, "it is out");
        assert_eq!(lost.claim_clearing(a), None, "it may not be fenced yet");
        let now = settle(lost, c, b).claim_clearing(a).expect("it is settled");
        assert_eq!(now.clearing().and_then(|clearing| clearing.by()), Some(a));
    }
}
