//! Metrics of memory: the use of memory nodes, replica groups and tables, the slots free at this
//! compute node, and the number of rows.

use std::fmt;
use std::time::Duration;

use lotus::{MemoryFigures, NodeMemory, RowCounts, TableId, TableMemory, TableRows, TableSpec};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::EncodeMetric as _;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::exposition::{LabelValue, gauge};
use crate::node::NodeServer;

/// Longest time for which counts of rows are reused: to count rows, coordinator 0 reads up to 2 MiB
/// for each table and replica group.
const ROWS_AGE: Duration = Duration::from_secs(10);

/// Figures of memory in use, and of rows.
pub(super) struct Memory {
    figures: MemoryFigures,
    rows: RowCounts,
}

/// A figure of a table.
type OfTable = fn(&TableMemory) -> u64;

/// Reads the figures; `None` if a memory node in use cannot be read now.
pub(super) async fn look(node: &NodeServer) -> Option<Memory> {
    let cluster = node.cluster();
    // A verb to a silent node may take seconds to fail.
    if !cluster.silent_memory(node.index).is_empty() {
        return None;
    }
    let figures = cluster.memory_figures(node.index).await.ok()?;
    let rows = cluster.recent_row_counts(node.index, ROWS_AGE).await.ok()?;
    Some(Memory { figures, rows })
}

/// Encodes the figures.
pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    Memory { figures, rows }: &Memory,
    tables: &[(TableId, TableSpec)],
) -> fmt::Result {
    pool(encoder, figures)?;
    let name = |table: TableId| {
        let (_, spec) = tables.iter().find(|(id, _)| *id == table)?;
        Some(spec.name.to_string())
    };
    let parts: [(&str, &str, OfTable); 5] = [
        (
            "table_allocated",
            "Bytes of one copy of a table that were handed out, freed ones included",
            |table| table.allocated_bytes,
        ),
        ("table_index", "The part that is its index", |table| table.index_bytes),
        ("table_overflow", "The part for further buckets of its index", |table| {
            table.overflow_bytes
        }),
        ("table_record", "The part for records that do not lie in the index", |table| {
            table.record_bytes
        }),
        ("table_free", "Bytes of a table's slots that are free at this compute node", |table| {
            table.free_here_bytes
        }),
    ];
    for (metric, help, of) in parts {
        let one = |table: &TableMemory| Some((name(table.table)?, of(table)));
        let values: Vec<_> = figures.tables.iter().filter_map(one).collect();
        bytes(encoder, metric, help, "table", &values)?;
    }
    let help = "Rows of a table, exact in small ones and counted in a sample of the others";
    let one = |count: &TableRows| Some((name(count.table)?, count.rows));
    let counts: Vec<_> = rows.tables.iter().filter_map(one).collect();
    gauges(encoder, ("table_rows", None), help, "table", &counts)?;
    let help = "Time since the rows were counted";
    gauge(encoder, "table_rows_age_seconds", help, rows.age.as_secs_f64())
}

/// Encodes for each of `nodes` memory nodes whether the memory node answers the compute node.
pub(super) fn encode_answers(
    encoder: &mut DescriptorEncoder<'_>,
    nodes: usize,
    silent: &[usize],
) -> fmt::Result {
    let help = "1 for a memory node that answers the node or was given up, 0 for a silent one";
    let answers = |at: usize| (format!("mn-{at}"), u64::from(!silent.contains(&at)));
    let values: Vec<_> = (0..nodes).map(answers).collect();
    gauges(encoder, ("memory_node_answers", None), help, "memory_node", &values)
}

/// Encodes the memory of memory nodes and replica groups.
fn pool(encoder: &mut DescriptorEncoder<'_>, figures: &MemoryFigures) -> fmt::Result {
    let nodes = |of: fn(&NodeMemory) -> u64| -> Vec<(String, u64)> {
        let in_use = (0..).zip(&figures.nodes);
        let one = |(at, node): (usize, &Option<NodeMemory>)| {
            Some((format!("mn-{at}"), of(node.as_ref()?)))
        };
        in_use.filter_map(one).collect()
    };
    let help = "Bytes of rows and indexes that a memory node has handed out, freed ones included";
    bytes(encoder, "memory_allocated", help, "memory_node", &nodes(|node| node.allocated_bytes))?;
    let help = "Bytes for rows and indexes that a memory node has";
    bytes(encoder, "memory_limit", help, "memory_node", &nodes(|node| node.limit_bytes))?;
    let help = "Bytes of these that it has not handed out";
    bytes(encoder, "memory_unallocated", help, "memory_node", &nodes(NodeMemory::free_bytes))?;
    let groups = |of: fn(&lotus::GroupMemory) -> u64| -> Vec<(String, u64)> {
        (0..)
            .zip(&figures.groups)
            .map(|(at, group): (usize, _)| (at.to_string(), of(group)))
            .collect()
    };
    let help = "Bytes of one copy of a replica group that were handed out, freed ones included";
    bytes(encoder, "group_allocated", help, "group", &groups(|group| group.allocated_bytes))?;
    let help = "Bytes of one copy of a replica group that were not handed out";
    bytes(encoder, "group_unallocated", help, "group", &groups(lotus::GroupMemory::free_bytes))?;
    let help = "Bytes of a group's slots that are free at this compute node";
    bytes(encoder, "group_free", help, "group", &groups(|group| group.free_here_bytes))
}

fn bytes(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    values: &[(String, u64)],
) -> fmt::Result {
    gauges(encoder, (name, Some(&Unit::Bytes)), help, label, values)
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    (name, unit): (&str, Option<&Unit>),
    help: &str,
    label: &'static str,
    values: &[(String, u64)],
) -> fmt::Result {
    let mut encoder = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
    for (named, value) in values {
        let labels = [(label, LabelValue(named))];
        let one = encoder.encode_family(&labels)?;
        ConstGauge::new(*value as i64).encode(one)?;
    }
    Ok(())
}
