//! Metrics of memory: the use of each memory node and each table, the slots that are free at this
//! compute node, and the number of rows.

use std::fmt;
use std::sync::PoisonError;
use std::time::Duration;

use lotus::{MemoryFigures, TableId, TableRows, TableSpec};
use lotus_fabric::env::Nanos;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::EncodeMetric as _;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::node::NodeServer;

/// Longest time for which counts of rows are reused: coordinator 0 reads up to 2 MiB for each table
/// and replica group to make them.
const ROWS_AGE: Duration = Duration::from_secs(10);

/// The rows of all tables, and when they were counted.
pub(crate) struct Counted {
    at: Nanos,
    rows: Vec<TableRows>,
}

/// Figures of memory in use.
pub(super) struct Memory {
    figures: MemoryFigures,
    rows: Vec<TableRows>,
}

/// Reads the figures; `None` if a memory node that is in use cannot be read now.
pub(super) async fn look(node: &NodeServer) -> Option<Memory> {
    let host = node.host();
    // A verb to such a node may take seconds to fail.
    if !host.silent_memory(node.index).is_empty() {
        return None;
    }
    let figures = host.memory_figures(node.index).await.ok()?;
    let rows = rows(node).await?;
    Some(Memory { figures, rows })
}

/// Rows of all tables, counted again if the last count is too old.
async fn rows(node: &NodeServer) -> Option<Vec<TableRows>> {
    let kept = || node.rows.lock().unwrap_or_else(PoisonError::into_inner);
    let now = node.env.now();
    if let Some(counted) = kept().as_ref().filter(|one| now.since(one.at) < ROWS_AGE) {
        return Some(counted.rows.clone());
    }
    let rows = node.host().row_counts(node.index).await.ok()?;
    *kept() = Some(Counted { at: now, rows: rows.clone() });
    Some(rows)
}

/// Encodes the figures.
pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    Memory { figures, rows }: &Memory,
    tables: &[(TableId, TableSpec)],
) -> fmt::Result {
    let in_use = || (0..).zip(&figures.nodes).filter_map(|(at, node)| Some((at, (*node)?)));
    let by_node = |bytes: &dyn Fn(lotus::NodeMemory) -> u64| -> Vec<(String, u64)> {
        in_use().map(|(at, node): (usize, _)| (format!("mn-{at}"), bytes(node))).collect()
    };
    let help = "Bytes of rows and indexes that a memory node has handed out, freed ones included";
    let allocated = by_node(&|node| node.allocated_bytes);
    bytes(encoder, "memory_allocated", help, "memory_node", &allocated)?;
    let help = "Bytes for rows and indexes that a memory node has";
    bytes(encoder, "memory_limit", help, "memory_node", &by_node(&|node| node.limit_bytes))?;
    let name = |table: TableId| {
        let (_, spec) = tables.iter().find(|(id, _)| *id == table)?;
        Some(spec.name.to_string())
    };
    let named = |of: &dyn Fn(&lotus::TableMemory) -> u64| -> Vec<(String, u64)> {
        let one = |table: &lotus::TableMemory| Some((name(table.table)?, of(table)));
        figures.tables.iter().filter_map(one).collect()
    };
    let help = "Bytes of one copy of a table that were handed out, freed ones included";
    let allocated = named(&|table| table.allocated_bytes);
    bytes(encoder, "table_allocated", help, "table", &allocated)?;
    let help = "Bytes of a table's slots that are free at this compute node";
    bytes(encoder, "table_free", help, "table", &named(&|table| table.free_here_bytes))?;
    let help = "Rows of a table, exact in small ones and counted in a sample of the others";
    let one = |count: &TableRows| Some((name(count.table)?, count.rows));
    let rows: Vec<_> = rows.iter().filter_map(one).collect();
    gauges(encoder, ("table_rows", None), help, "table", &rows)
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
        let labels = [(label, named.as_str())];
        let one = encoder.encode_family(&labels)?;
        ConstGauge::new(*value as i64).encode(one)?;
    }
    Ok(())
}
