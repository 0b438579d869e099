//! Tables as known by the compute nodes of a process.
//!
//! # Dropped tables
//! A process learns of a dropped table from the catalogue, or from the membership, which names the
//! table while its memory is given back ([`lotus_recovery::membership::clearing`]). From then on
//! the table is unknown to transactions that begin. The process may learn of the drop first, and
//! meet the table later, in an outdated copy of the catalogue: so the process remembers the number.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLockReadGuard, RwLockWriteGuard};

use lotus_fabric::ids::TableId;
use lotus_mvcc::address_cache::AddressCache;
use lotus_mvcc::{Naming, TableDef, TableSpec, retention};
use lotus_recovery::Membership;

use crate::api::config::Addresses;
use crate::api::error::ClusterError;
use crate::node::agreed::catalogue::{Catalogue, TableState};
use crate::node::shared::{ComputeNode, NodeTable, Shared};

/// Divisor of memory for the displaced versions of one table while a coordinator reads all rows.
const PATIENT_SHARE: u64 = 16;

/// Tables of the cluster as known by a process.
#[derive(Default)]
pub(crate) struct KnownTables {
    /// By table number.
    all: Vec<TableState<Arc<TableDef>>>,
    /// Tables named as dropped by the membership.
    dropped: BTreeSet<TableId>,
}

impl KnownTables {
    /// Tables in use.
    pub(crate) fn serving(&self) -> impl Iterator<Item = &Arc<TableDef>> {
        self.all.iter().filter_map(TableState::serving)
    }
}

impl Shared {
    /// Tables of the cluster, as known by this process.
    pub(crate) fn known_tables(&self) -> RwLockReadGuard<'_, KnownTables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_tables_mut(&self) -> RwLockWriteGuard<'_, KnownTables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Table with this number, if in use.
    pub(crate) fn table(&self, id: TableId) -> Option<Arc<TableDef>> {
        self.known_tables().all.get(usize::from(id.0))?.serving().cloned()
    }

    /// Table with this number, if its memory is not given back; may be dropped.
    pub(crate) fn table_with_memory(&self, id: TableId) -> Option<Arc<TableDef>> {
        self.known_tables().all.get(usize::from(id.0))?.with_memory().cloned()
    }

    /// All tables in use.
    pub(crate) fn all_tables(&self) -> Vec<Arc<TableDef>> {
        self.known_tables().serving().cloned().collect()
    }

    /// All tables with memory not given back, including dropped tables.
    pub(crate) fn all_tables_with_memory(&self) -> Vec<Arc<TableDef>> {
        self.known_tables().all.iter().filter_map(TableState::with_memory).cloned().collect()
    }

    /// All tables in use, and the number of all tables so far, including dropped tables.
    pub(crate) fn tables_and_numbers(&self) -> (Vec<Arc<TableDef>>, u32) {
        let known = self.known_tables();
        (known.serving().cloned().collect(), known.all.len() as u32)
    }

    /// First dropped table with memory not yet given back.
    pub(crate) fn dropped_table(&self) -> Option<TableId> {
        let known = self.known_tables();
        let mut dropped = known.all.iter().filter(|table| table.serving().is_none());
        dropped.find_map(TableState::with_memory).map(|table| table.id())
    }

    /// Adopts the changes in the catalogue.
    pub(crate) fn install(&self, catalogue: &Catalogue) -> Result<(), ClusterError> {
        if let Some(naming) = catalogue.decided() {
            self.names.decide(naming)?;
        }
        let mut known = self.known_tables_mut();
        for (index, entry) in catalogue.tables.iter().enumerate() {
            let id = TableId(index as u16);
            let Some(before) = known.all.get(index) else {
                self.add_table(&mut known, id, entry)?;
                continue;
            };
            if before.stage() < entry.stage() {
                let def = before.with_memory().cloned();
                known.all[index] = match (entry, def) {
                    (TableState::Dropped(_), Some(def)) => TableState::Dropped(def),
                    _ => TableState::Gone,
                };
                self.nodes.iter().for_each(|node| node.forget_table(id));
                debug_assert!(
                    known.all[index].serving().is_none(),
                    "I292: a table that was dropped is not in use again"
                );
            }
        }
        Ok(())
    }

    fn add_table(
        &self,
        known: &mut KnownTables,
        id: TableId,
        entry: &TableState<TableDef>,
    ) -> Result<(), ClusterError> {
        let entry = match entry {
            TableState::Serving(def) if known.dropped.contains(&id) => TableState::Dropped(def),
            TableState::Serving(def) => TableState::Serving(def),
            TableState::Dropped(def) => TableState::Dropped(def),
            TableState::Gone => TableState::Gone,
        };
        debug_assert!(
            entry.with_memory().is_none_or(|def| def.id() == id),
            "I87: a table has one number everywhere"
        );
        debug_assert!(
            entry.with_memory().is_none_or(|def| Some(def.naming()) == self.names.decided()),
            "I325: all tables of a cluster name their rows by its one secret"
        );
        let entry = match entry {
            TableState::Serving(def) => TableState::Serving(Arc::new(def.clone())),
            TableState::Dropped(def) => TableState::Dropped(Arc::new(def.clone())),
            TableState::Gone => TableState::Gone,
        };
        let of_nodes = self.nodes.iter().map(|_| self.node_table(id, &entry));
        let of_nodes = of_nodes.collect::<Result<Vec<_>, _>>()?;
        for (node, table) in self.nodes.iter().zip(of_nodes) {
            let mut tables = node.tables.write().unwrap_or_else(PoisonError::into_inner);
            tables.push(Arc::new(table));
        }
        known.all.push(entry);
        Ok(())
    }

    /// Adopts a membership: the memory nodes in use, and the table being dropped. Returns whether
    /// the node is still a member.
    pub(crate) fn learn_membership(&self, node: &ComputeNode, now: &Membership) -> bool {
        // Before the epoch: transactions that begin in that epoch find the table dropped.
        if let Some(clearing) = now.clearing() {
            self.learn_dropped(clearing.table());
        }
        node.slots.learn_cleared(now.cleared());
        node.learn_placement(now, &self.placement)
    }

    /// Notes a table as dropped, whether this process has met the table yet or not.
    fn learn_dropped(&self, id: TableId) {
        let mut known = self.known_tables_mut();
        if !known.dropped.insert(id) {
            return;
        }
        if let Some(table) = known.all.get_mut(usize::from(id.0))
            && let TableState::Serving(def) = table
        {
            *table = TableState::Dropped(Arc::clone(def));
            self.nodes.iter().for_each(|node| node.forget_table(id));
        }
    }

    /// Puts the next life of a node in the node's place in this process, with all known tables.
    pub(crate) fn replace_node(&self, node: &Arc<ComputeNode>) -> Result<(), ClusterError> {
        // This lock keeps tables from being added or dropped.
        let known = self.known_tables();
        let numbered = known.all.iter().zip(0..);
        let tables = numbered.map(|(table, id)| self.node_table(TableId(id), table).map(Arc::new));
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        node.tables.write().unwrap_or_else(PoisonError::into_inner).extend(tables);
        self.nodes.replace(node);
        Ok(())
    }

    /// A table's state on a node, before the node has used the table.
    fn node_table(
        &self,
        id: TableId,
        table: &TableState<Arc<TableDef>>,
    ) -> Result<NodeTable, ClusterError> {
        let table = match table {
            TableState::Serving(table) => table,
            TableState::Dropped(table) => return NodeTable::dropped(table),
            TableState::Gone => return NodeTable::dropped(&Arc::new(self.stand_in(id))),
        };
        let capacity = table.stored().rows;
        let coordinators = (self.config.compute_nodes * self.config.threads) as u64;
        let sharers = coordinators * self.placement.group_count() as u64;
        let retired_limit = retention::limit(capacity, sharers, table.slot_bytes());
        let share = self.region.bytes() / PATIENT_SHARE / coordinators;
        let patient_limit = retired_limit.max((share / table.slot_bytes()) as usize);
        let entries = match self.config.addresses {
            // A quarter more entries than rows, so that few rows compete for a line.
            Addresses::Cold => capacity + capacity / 4,
            // A row in a thousand is displaced.
            Addresses::Warm => 3 * capacity,
        };
        let addresses = AddressCache::with_entries(entries as usize)?;
        let (def, is_dropped) = (Arc::clone(table), AtomicBool::new(false));
        let root_is_leaf = AtomicBool::new(true);
        Ok(NodeTable { def, addresses, retired_limit, patient_limit, is_dropped, root_is_leaf })
    }

    /// A table on the compute nodes of this process that learn the addresses of its rows at
    /// loading.
    pub(crate) fn told_of_rows(&self, id: TableId) -> Vec<Arc<NodeTable>> {
        let of = |node: Arc<ComputeNode>| {
            let tables = node.tables.read().unwrap_or_else(PoisonError::into_inner);
            tables.get(usize::from(id.0)).cloned()
        };
        match self.config.addresses {
            Addresses::Cold => Vec::new(),
            Addresses::Warm => self.nodes.iter().filter_map(of).collect(),
        }
    }

    /// Notes on this process's compute nodes that an ordered table was loaded with `count` tree
    /// nodes.
    pub(crate) fn note_nodes(&self, id: TableId, count: u64) {
        for node in self.nodes.iter() {
            let tables = node.tables.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(table) = tables.get(usize::from(id.0)) {
                table.root_is_leaf.store(count <= 1, Ordering::Relaxed);
            }
        }
    }

    /// Placeholder for the definition of a gone table, which is no longer known.
    fn stand_in(&self, id: TableId) -> TableDef {
        let spec = TableSpec::new("dropped").record_bytes(8).capacity(1);
        let bases = vec![self.region.first_slab(); self.placement.group_count()];
        TableDef::new(id, spec, bases, Naming::KNOWN).expect("the specification is valid")
    }
}

impl NodeTable {
    /// A dropped table: its number stays taken.
    fn dropped(def: &Arc<TableDef>) -> Result<Self, ClusterError> {
        let (def, addresses) = (Arc::clone(def), AddressCache::with_entries(1)?);
        let (retired_limit, patient_limit) = (0, 0);
        let (is_dropped, root_is_leaf) = (AtomicBool::new(true), AtomicBool::new(true));
        Ok(Self { def, addresses, retired_limit, patient_limit, is_dropped, root_is_leaf })
    }

    /// Whether the table was dropped.
    #[inline]
    pub(crate) fn is_dropped(&self) -> bool {
        // Relaxed: a coordinator looks again after stopping, which synchronises.
        self.is_dropped.load(Ordering::Relaxed)
    }
}

impl ComputeNode {
    /// Lets no further transaction begin on a table, and gives up the table's addresses.
    fn forget_table(&self, id: TableId) {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let Some(table) = tables.get_mut(usize::from(id.0)) else { return };
        table.is_dropped.store(true, Ordering::Relaxed);
        // Without address space for a smaller cache, the old cache stays.
        if let Ok(dropped) = NodeTable::dropped(&table.def) {
            *table = Arc::new(dropped);
        }
    }
}
