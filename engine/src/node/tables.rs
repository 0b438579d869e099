//! Tables as the compute nodes of a process know them.

use crate::api::error::ClusterError;
use crate::node::shared::{ComputeNode, NodeTable, Shared};
use lotus_mvcc::address_cache::AddressCache;
use lotus_mvcc::{TableDef, retention};
use std::sync::{Arc, PoisonError};

/// Divisor of memory for the displaced versions of one table while a coordinator reads all rows.
const PATIENT_SHARE: u64 = 16;

impl Shared {
    /// Adds those of `all` tables that this process's nodes do not know yet.
    pub(crate) fn install(&self, all: &[TableDef]) -> Result<(), ClusterError> {
        let mut known = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        for def in all.iter().skip(known.len()) {
            debug_assert_eq!(
                usize::from(def.id().0),
                known.len(),
                "I87: a table has one number everywhere"
            );
            let table = Arc::new(def.clone());
            let entries = self.nodes.iter().map(|_| self.node_table(&table));
            let entries = entries.collect::<Result<Vec<_>, _>>()?;
            for (node, entry) in self.nodes.iter().zip(entries) {
                let mut tables = node.tables.write().unwrap_or_else(PoisonError::into_inner);
                tables.push(Arc::new(entry));
            }
            known.push(table);
        }
        Ok(())
    }

    /// Puts the next life of a node in its place in this process, with all known tables.
    pub(crate) fn replace_node(&self, node: &Arc<ComputeNode>) -> Result<(), ClusterError> {
        // Holding this lock keeps new tables from being added.
        let known = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        let entries = known.iter().map(|table| self.node_table(table).map(Arc::new));
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        node.tables.write().unwrap_or_else(PoisonError::into_inner).extend(entries);
        self.nodes.replace(node);
        Ok(())
    }

    /// A table's state on one node, before the node has used the table.
    fn node_table(&self, table: &Arc<TableDef>) -> Result<NodeTable, ClusterError> {
        let capacity = table.stored().rows;
        let coordinators = (self.config.compute_nodes * self.config.threads) as u64;
        let sharers = coordinators * self.placement.group_count() as u64;
        let retired_limit = retention::limit(capacity, sharers, table.slot_bytes());
        let share = self.region.bytes() / PATIENT_SHARE / coordinators;
        let patient_limit = retired_limit.max((share / table.slot_bytes()) as usize);
        // A quarter more entries than rows, so that few rows compete for a line.
        let addresses = AddressCache::with_entries((capacity + capacity / 4) as usize)?;
        Ok(NodeTable { def: Arc::clone(table), addresses, retired_limit, patient_limit })
    }
}
