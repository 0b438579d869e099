//! Audit of ordered tables: their rows form trees.

use std::collections::BTreeMap;

use lotus_fabric::ids::TableId;
use lotus_mvcc::PrimaryKey;
use lotus_tree::{Node, ROOT, whole};

use crate::api::error::ClusterError;
use crate::checks::audit::Finding;
use crate::cluster::handle::Cluster;

impl Cluster {
    /// Checks that the nodes of each ordered table form a tree.
    pub(super) fn trees(&self) -> Result<Finding, ClusterError> {
        let (mut nodes, mut first) = (0, None);
        for (table, spec) in self.tables().into_iter().filter(|(_, spec)| spec.ordered) {
            match whole::check(&self.nodes(table)?) {
                Ok(summary) => nodes += summary.nodes,
                Err(defect) => _ = first.get_or_insert(format!("{}: {defect}", spec.name)),
            }
        }
        let name = "every key of an ordered table is in one leaf, in order";
        let detail = first.clone().unwrap_or_else(|| format!("{nodes} nodes"));
        Ok(Finding { name, passed: first.is_none(), detail })
    }

    /// Visits the rows of an ordered table in order, without a transaction. Let the cluster
    /// [settle](Cluster::settle) first.
    ///
    /// # Errors
    /// An unknown table, or unreadable memory nodes. A table that is not ordered, or whose nodes do
    /// not form a tree, is `Damaged`.
    pub fn audit_ordered(
        &self,
        table: TableId,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), ClusterError> {
        visit_in_order(&self.nodes(table)?, visit).ok_or(ClusterError::Damaged)
    }

    /// All nodes of an ordered table, by their numbers.
    fn nodes(&self, table: TableId) -> Result<BTreeMap<u64, Vec<u8>>, ClusterError> {
        let mut nodes = BTreeMap::new();
        self.audit_scan(table, &mut |key, bytes, _| {
            nodes.insert(number_of(key), bytes.to_vec());
        })?;
        Ok(nodes)
    }
}

/// Number of the node in a stored row with this key.
pub(crate) fn number_of(key: &PrimaryKey) -> u64 {
    key.as_bytes().try_into().map_or(u64::MAX, u64::from_be_bytes)
}

/// Visits the rows of a tree with these nodes, in order; `None` if they are no tree.
pub(crate) fn visit_in_order(
    nodes: &BTreeMap<u64, Vec<u8>>,
    visit: &mut dyn FnMut(&[u8], &[u8]),
) -> Option<()> {
    whole::check(nodes).ok()?;
    let mut left = vec![ROOT];
    while let Some(node) = left.pop().and_then(|id| Node::read(nodes.get(&id)?)) {
        match node.is_leaf() {
            true => node.entries().for_each(|(key, value)| visit(key, value)),
            false => left.extend((0..node.len()).rev().map(|index| node.child(index))),
        }
    }
    Some(())
}
