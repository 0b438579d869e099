//! Placement of rows: the memory node that is a row's primary, and the nodes that keep backups.
//!
//! Motor and FORD give each *table* a primary, so the locks of the table with most writes are all
//! on one node. By *bucket*, primaries are distributed like the shards of LOTUS: the difference
//! shows how much of a comparison is due to placement. Backups are the nodes that follow the
//! primary, and a row has the same offset on all its nodes.

use lotus_fabric::ids::{NodeId, NodeSet};

/// Rule that decides the primary of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Primaries {
    /// The number of the row's table, as in Motor and FORD.
    #[default]
    ByTable,
    /// The number of the row's bucket.
    ByBucket,
}

/// The memory nodes, numbered from zero, and the replicas of each row.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    primaries: Primaries,
    /// Replicas of the rows with their primary on each memory node.
    by_primary: Vec<Homes>,
}

/// The nodes of one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Homes {
    pub(crate) primary: NodeId,
    /// The primary and all backups.
    pub(crate) all: NodeSet,
}

impl Placement {
    pub(crate) fn new(memory_nodes: u16, replicas: u16, primaries: Primaries) -> Self {
        let homes = |first: u16| {
            let copy = |copy: u16| NodeId((first + copy) % memory_nodes);
            Homes { primary: copy(0), all: (0..replicas).map(copy).collect() }
        };
        Self { primaries, by_primary: (0..memory_nodes).map(homes).collect() }
    }

    /// Nodes of the rows in bucket `bucket` of table number `table`.
    #[inline]
    pub(crate) fn homes(&self, table: usize, bucket: u64) -> Homes {
        let number = match self.primaries {
            Primaries::ByTable => table as u64,
            Primaries::ByBucket => bucket,
        };
        self.by_primary[(number % self.by_primary.len() as u64) as usize]
    }

    /// All memory nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.by_primary.len() as u16).map(NodeId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_one_primary_and_its_backups_follow() {
        let placement = Placement::new(3, 2, Primaries::ByTable);
        for (table, nodes) in [(0, [0, 1]), (1, [1, 2]), (2, [2, 0]), (3, [0, 1])] {
            let homes = placement.homes(table, 17);
            assert_eq!(homes.primary, NodeId(nodes[0]));
            assert_eq!(homes.all, nodes.into_iter().map(NodeId).collect());
        }
    }

    #[test]
    fn by_bucket_all_nodes_are_primaries_of_a_table() {
        let placement = Placement::new(3, 3, Primaries::ByBucket);
        let primary = |bucket| placement.homes(1, bucket).primary;
        assert_eq!([0, 1, 2, 3].map(primary), [0, 1, 2, 0].map(NodeId));
    }
}
