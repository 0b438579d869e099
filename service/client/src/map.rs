//! A client's view of the cluster, and the routing of requests (LOTUS §4.3).
//!
//! Pure, except for one word per shard that is updated from servers' reports. An old view does no
//! harm: the server asked reports the right owner, and the request takes a detour.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::AHasher;
use lotus_fabric::ids::TableId;
use lotus_mvcc::{Naming, PrimaryKey};

use lotus_protocol::messages::{Directory, Kind, NameSecret, Owner, Table};

/// Hasher of names and numbers that every request looks up.
type Fixed = BuildHasherDefault<AHasher>;

/// Node number of a shard that has no owner.
const NOBODY: u16 = u16::MAX;

/// Nodes, tables, stored transactions and shard owners, as last reported.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) nodes: Vec<String>,
    tables: HashMap<u16, Table, Fixed>,
    procedures: HashMap<String, Kind, Fixed>,
    /// One word per shard: epoch above, owner in the low 16 bits, so that the larger word is newer.
    owners: Box<[AtomicU64]>,
    /// Naming of rows; `None` as long as the cluster has no table.
    naming: Option<Naming>,
}

impl Map {
    pub(crate) fn new(directory: Directory) -> Self {
        let word = |owner: &Owner| AtomicU64::new(pack(owner.node, owner.epoch));
        Self {
            nodes: directory.nodes,
            owners: directory.owners.iter().map(word).collect(),
            tables: directory.tables.into_iter().map(|table| (table.id, table)).collect(),
            procedures: directory.procedures.into_iter().map(|p| (p.name, p.kind)).collect(),
            naming: directory.names.map(NameSecret::naming),
        }
    }

    /// Returns this map with one more table.
    pub(crate) fn with(&self, table: Table) -> Self {
        let mut map = self.copy();
        map.tables.insert(table.id, table);
        map
    }

    /// Returns this map without a table.
    pub(crate) fn without(&self, table: TableId) -> Self {
        let mut map = self.copy();
        map.tables.remove(&table.0);
        map
    }

    fn copy(&self) -> Self {
        // Relaxed: a word is complete by itself.
        let word = |owner: &AtomicU64| AtomicU64::new(owner.load(Ordering::Relaxed));
        Self {
            nodes: self.nodes.clone(),
            tables: self.tables.clone(),
            procedures: self.procedures.clone(),
            owners: self.owners.iter().map(word).collect(),
            naming: self.naming,
        }
    }

    /// Returns the table of this name.
    pub(crate) fn table(&self, name: &str) -> Option<TableId> {
        let mut tables = self.tables.values();
        tables.find(|table| table.name == name).map(|table| TableId(table.id))
    }

    /// Returns the name of a table; `None` if the table is unknown.
    pub(crate) fn name_of(&self, table: TableId) -> Option<String> {
        Some(self.tables.get(&table.0)?.name.clone())
    }

    /// Returns all tables, sorted by name.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = self.tables.values().cloned().collect();
        tables.sort_by(|one, other| one.name.cmp(&other.name));
        tables
    }

    /// Returns the isolation of a stored transaction, and whether it may write; `None` if the name
    /// is unknown.
    pub(crate) fn kind(&self, procedure: &str) -> Option<Kind> {
        self.procedures.get(procedure).copied()
    }

    /// Returns the largest value of a table, in bytes; `None` if the table is unknown.
    pub(crate) fn record_bytes(&self, table: TableId) -> Option<usize> {
        Some(self.tables.get(&table.0)?.record_bytes as usize)
    }

    /// Returns the shard of a row; `None` if the table is unknown, or if it is the cluster's first
    /// table and newer than the directory.
    pub(crate) fn shard(&self, table: TableId, key: &PrimaryKey) -> Option<u16> {
        let table = self.tables.get(&table.0)?;
        let name = self.naming?.name(key, table.critical_field(), table.shards.max(1));
        Some(name.key.shard().raw())
    }

    /// Returns the index of a shard's owner, as far as known.
    pub(crate) fn owner(&self, shard: u16) -> Option<usize> {
        // Relaxed: the word is complete by itself.
        let word = self.owners.get(usize::from(shard))?.load(Ordering::Relaxed);
        let node = word as u16;
        (usize::from(node) < self.nodes.len()).then_some(usize::from(node))
    }

    /// Takes in a server's report of a shard's owner. The newest epoch wins.
    pub(crate) fn learn(&self, shard: u16, node: Option<u16>, epoch: u32) {
        if let Some(word) = self.owners.get(usize::from(shard)) {
            word.fetch_max(pack(node, epoch), Ordering::Relaxed);
        }
    }
}

fn pack(node: Option<u16>, epoch: u32) -> u64 {
    u64::from(epoch) << 16 | u64::from(node.unwrap_or(NOBODY))
}

/// Choice of the node for the tries of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Route {
    /// Nodes that could not be reached, or are leaving.
    avoided: Vec<usize>,
}

/// One choice of a [`Route`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    /// The node.
    pub(crate) node: usize,
    /// Whether the node is the preferred node, the only node that may answer `WrongOwner`.
    pub(crate) preferred: bool,
}

impl Route {
    /// Returns the preferred node, or the next node of `nodes` that is neither avoided nor
    /// `doubted`; failing that, a node that is not avoided. `None` when all nodes are avoided.
    pub(crate) fn choose(
        &self,
        preferred: usize,
        nodes: usize,
        doubted: impl Fn(usize) -> bool,
    ) -> Option<Choice> {
        let turn = (0..nodes).map(|step| (preferred + step) % nodes);
        let mut left = turn.filter(|node| !self.avoided.contains(node));
        let first = left.clone().next();
        let node = left.find(|node| !doubted(*node)).or(first)?;
        Some(Choice { node, preferred: node == preferred })
    }

    /// Makes `choose` skip a node.
    pub(crate) fn avoid(&mut self, node: usize) {
        if !self.avoided.contains(&node) {
            self.avoided.push(node);
        }
    }

    /// Lets `choose` take every node again.
    pub(crate) fn forgive(&mut self) {
        self.avoided.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_mvcc::TableSpec;

    fn map() -> Map {
        Map::new(Directory {
            node: 0,
            nodes: ["a", "b", "c"].map(str::to_owned).into(),
            tables: vec![Table {
                name: "t".to_owned(),
                id: 4,
                critical_field: Some((0, 8)),
                shards: 4096,
                ordered: false,
                record_bytes: 8,
            }],
            procedures: Vec::new(),
            owners: (0..4096).map(|shard| Owner { node: Some(shard % 3), epoch: 1 }).collect(),
            in_flight: 1,
            names: Some(NameSecret::of(Naming::KNOWN)),
        })
    }

    #[test]
    fn a_row_leads_to_its_shard_and_owner() {
        let map = map();
        assert_eq!(map.table("t"), Some(TableId(4)));
        assert_eq!(map.shard(TableId(4), &4097.into()), Some(1));
        assert_eq!(map.shard(TableId(5), &4097.into()), None);
        assert_eq!(map.owner(1), Some(1));
    }

    #[test]
    fn a_table_that_is_added_changes_nothing_else() {
        let old = map();
        old.learn(1, Some(2), 3);
        let spec = TableSpec::new("u").record_bytes(8).capacity(1).shards(1);
        let map = old.with(Table::of(5, &spec));
        assert_eq!((map.table("t"), map.table("u")), (Some(TableId(4)), Some(TableId(5))));
        assert_eq!((map.owner(0), map.owner(1)), (Some(0), Some(2)));
        assert_eq!(map.shard(TableId(4), &4097.into()), Some(1));
        assert!(map.shard(TableId(5), &4097.into()).is_some());
        assert_eq!(old.table("u"), None);
    }

    #[test]
    fn the_newest_epoch_is_believed() {
        let map = map();
        let told =
            [(Some(2), 3, Some(2)), (Some(0), 2, Some(2)), (None, 4, None), (Some(9), 5, None)];
        for (node, epoch, expected) in told {
            map.learn(1, node, epoch);
            assert_eq!(map.owner(1), expected, "{node:?} in epoch {epoch}");
        }
        map.learn(9999, Some(0), 1);
    }

    #[test]
    fn others_stand_in_for_a_node_that_is_avoided() {
        let mut route = Route::default();
        let chosen = |route: &Route| route.choose(1, 3, |_| false).map(|c| (c.node, c.preferred));
        assert_eq!(chosen(&route), Some((1, true)));
        route.avoid(1);
        assert_eq!(chosen(&route), Some((2, false)));
        route.avoid(2);
        assert_eq!(chosen(&route), Some((0, false)));
        route.avoid(0);
        assert_eq!(chosen(&route), None);
        route.forgive();
        assert_eq!(chosen(&route), Some((1, true)));
    }

    #[test]
    fn others_stand_in_for_a_node_that_is_doubted_while_there_are_any() {
        let mut route = Route::default();
        for (avoided, doubted, expected) in [
            (None, &[1][..], Some((2, false))),
            (None, &[1, 2], Some((0, false))),
            (None, &[0, 1, 2], Some((1, true))),
            (Some(1), &[0, 1, 2], Some((2, false))),
            (Some(2), &[0], Some((0, false))),
            (Some(0), &[], None),
        ] {
            avoided.into_iter().for_each(|node| route.avoid(node));
            let choice = route.choose(1, 3, |node| doubted.contains(&node));
            assert_eq!(choice.map(|one| (one.node, one.preferred)), expected, "{doubted:?}");
        }
    }
}
