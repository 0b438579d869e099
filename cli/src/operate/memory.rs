//! Memory in use, and its rows: combined answers of the compute nodes.
//!
//! Any compute node can count slabs; the free space in slabs needs the answers of all compute
//! nodes.

use comfy_table::{CellAlignment, Table};
use lotus_authority::Authority;
use lotus_node::config::name::NodeName;
use lotus_node::requests::operator::{self, Memory, RowCount, TableBytes};
use serde::Serialize;

use super::bytes::written;
use lotus_runner::show::screen::or_dash;

/// Memory of a memory node, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct NodeUse {
    /// Bytes for rows and indexes.
    limit: u64,
    /// Allocated bytes.
    allocated: u64,
    /// Unallocated bytes.
    unallocated: u64,
}

impl NodeUse {
    /// The same, in words.
    pub fn in_words(&self) -> String {
        format!("{} of {}", size(self.allocated), size(self.limit))
    }
}

/// Memory of one copy of a replica group, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct GroupUse {
    limit: u64,
    /// Allocated bytes.
    allocated: u64,
    /// Unallocated bytes.
    unallocated: u64,
    /// Allocated bytes that are free at some compute node.
    free: u64,
}

/// Rows and memory of a table, counted in one copy of each group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TableUse {
    /// Name of the table.
    pub table: String,
    #[serde(flatten)]
    pub figures: TableFigures,
}

/// The numbers in [`TableUse`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct TableFigures {
    /// Number of rows, if known.
    pub rows: Option<u64>,
    /// Whether the number of rows is an estimate from a sample.
    pub rows_estimated: bool,
    /// Age of the number of rows, in milliseconds.
    pub rows_age_ms: Option<u64>,
    /// Bytes allocated to the table: the sum of the next three fields.
    pub bytes: u64,
    index_bytes: u64,
    overflow_bytes: u64,
    record_bytes: u64,
    /// Allocated bytes that are free at some compute node.
    free_bytes: u64,
}

impl TableUse {
    fn of(table: &TableBytes, free_bytes: u64) -> Self {
        let &TableBytes { index, overflow, records, rows, .. } = table;
        let figures = TableFigures {
            rows: rows.map(|count| count.rows),
            rows_estimated: rows.is_some_and(|count: RowCount| count.is_estimate),
            rows_age_ms: rows.map(|count| count.age_ms),
            bytes: index + overflow + records,
            index_bytes: index,
            overflow_bytes: overflow,
            record_bytes: records,
            free_bytes,
        };
        Self { table: table.table.clone(), figures }
    }
}

impl TableFigures {
    /// The number of rows in words: an estimate begins with a tilde.
    pub fn rows_in_words(&self) -> String {
        or_dash(self.rows, |rows| match self.rows_estimated {
            true => format!("~{rows}"),
            false => rows.to_string(),
        })
    }
}

/// Memory of the whole cluster.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Used {
    /// Share in use in the fullest group: allocated, and not free at any compute node.
    pub share: Option<f64>,
    /// Memory nodes, by their places; `None` for an unused memory node.
    pub nodes: Vec<Option<NodeUse>>,
    /// Replica groups, in order.
    pub groups: Vec<GroupUse>,
    /// Tables, in order.
    pub tables: Vec<TableUse>,
}

impl Used {
    /// Asks `nodes`, which are compute nodes; empty if none answers.
    pub fn ask(authority: &dyn Authority, nodes: &[NodeName]) -> Self {
        let said = operator::memory(authority, nodes);
        Self::of(&said.into_iter().flatten().collect::<Vec<_>>())
    }

    /// Combines the answers of compute nodes; empty without answers.
    pub fn of(said: &[Memory]) -> Self {
        let groups = groups(said);
        let share = groups.iter().map(|group| {
            group.allocated.saturating_sub(group.free) as f64 / group.limit.max(1) as f64
        });
        // A table not yet known to some nodes is shown too.
        let longest = said.iter().max_by_key(|one| one.tables.len());
        let table = |table: &TableBytes| {
            let all = said.iter().flat_map(|one| &one.tables);
            let same = || all.clone().filter(|other| other.table == table.table);
            let counted = same().find(|other| other.rows.is_some()).unwrap_or(table);
            TableUse::of(counted, same().map(|other| other.free).sum())
        };
        let node = |node: &operator::NodeBytes| NodeUse {
            limit: node.limit,
            allocated: node.allocated,
            unallocated: node.limit.saturating_sub(node.allocated),
        };
        Self {
            share: share.reduce(f64::max),
            nodes: said.first().map_or(Vec::new(), |one| {
                one.nodes.iter().map(|found| found.as_ref().map(node)).collect()
            }),
            groups,
            tables: longest.map_or(Vec::new(), |one| one.tables.iter().map(table).collect()),
        }
    }
}

/// Groups for which all nodes have answered.
fn groups(said: &[Memory]) -> Vec<GroupUse> {
    let count = said.iter().map(|one| one.groups.len()).min().unwrap_or(0);
    let group = |at: usize| {
        let all = || said.iter().map(|one| one.groups[at]);
        let most = |of: fn(operator::Group) -> u64| all().map(of).max().unwrap_or(0);
        let (limit, allocated) = (most(|group| group.limit), most(|group| group.allocated));
        let free = all().map(|group| group.free).sum();
        GroupUse { limit, allocated, unallocated: limit.saturating_sub(allocated), free }
    };
    (0..count).map(group).collect()
}

/// A table of tables; empty without tables.
pub fn listed(tables: &[TableUse]) -> String {
    if tables.is_empty() {
        return String::new();
    }
    let mut text = Table::new();
    text.load_preset(comfy_table::presets::NOTHING);
    text.set_header(["table", "rows", "bytes", "index", "overflow", "records", "free"]);
    for TableUse { table, figures } in tables {
        let TableFigures { bytes, index_bytes, overflow_bytes, record_bytes, free_bytes, .. } =
            *figures;
        let parts = [index_bytes, overflow_bytes, record_bytes, free_bytes];
        let cells = [written(table), figures.rows_in_words(), size(bytes)];
        text.add_row(cells.into_iter().chain(parts.map(size)));
    }
    for column in text.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{}\n", text.trim_fmt())
}

/// Bytes in words, with one decimal.
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] =
        [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_node::requests::operator::{Group, NodeBytes};

    const fn group(allocated: u64, free: u64) -> Group {
        Group { limit: 100, allocated, free }
    }

    fn table(name: &str, free: u64, rows: Option<RowCount>) -> TableBytes {
        TableBytes { table: name.to_owned(), index: 3, overflow: 2, records: 1, free, rows }
    }

    #[test]
    fn memory_in_use_is_what_is_allocated_and_free_nowhere_in_the_fullest_group() {
        let memory = |groups: [Group; 2]| Memory { groups: groups.to_vec(), ..Memory::default() };
        let one = memory([group(100, 10), group(80, 0)]);
        let other = memory([group(100, 25), group(80, 0)]);
        let cases = [
            (vec![], None),
            (vec![one.clone()], Some(0.9)),
            (vec![one.clone(), Memory::default()], None),
            (vec![one, other], Some(0.8)),
        ];
        for (said, expected) in cases {
            assert_eq!(Used::of(&said).share, expected, "{said:?}");
        }
    }

    #[test]
    fn free_slots_of_all_nodes_and_rows_of_one_are_put_together() {
        let rows = Some(RowCount { rows: 1_234, is_estimate: true, age_ms: 5 });
        let nodes = vec![Some(NodeBytes { limit: 100, allocated: 60 }), None];
        let counted = vec![table("one", 10, rows)];
        let more = vec![table("one", 5, None), table("new", 7, None)];
        let one = Memory { groups: vec![group(60, 10)], nodes: nodes.clone(), tables: counted };
        let other = Memory { groups: vec![group(60, 5)], nodes, tables: more };
        let used = Used::of(&[one, other]);
        let node = NodeUse { limit: 100, allocated: 60, unallocated: 40 };
        assert_eq!(used.nodes, [Some(node), None]);
        let group = GroupUse { limit: 100, allocated: 60, unallocated: 40, free: 15 };
        assert_eq!(used.groups, [group]);
        let [first, second] = &used.tables[..] else { panic!("two tables") };
        let figures = first.figures;
        assert_eq!((figures.rows, figures.bytes, figures.free_bytes), (Some(1_234), 6, 15));
        let rows = [first, second].map(|table| table.figures.rows_in_words());
        assert_eq!(rows, ["~1234", "-"]);
        assert_eq!((&*second.table, second.figures.free_bytes), ("new", 7));
        let text = listed(&used.tables);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert_eq!(listed(&[]), "");
    }

    #[test]
    fn sizes_have_units() {
        let cases = [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (64 << 20, "64.0 MiB")];
        for (bytes, said) in cases {
            assert_eq!(size(bytes), said);
        }
    }
}
