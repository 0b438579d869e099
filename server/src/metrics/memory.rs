//! Memory in use, as metrics: of each memory node and each table, and what is free at this
//! compute node.

use std::fmt;

use lotus::{MemoryFigures, TableId, TableSpec};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::EncodeMetric as _;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::node::Node;

/// Memory in use; `None` if a memory node that is in use cannot be read now.
pub(super) async fn figures(node: &Node) -> Option<MemoryFigures> {
    let host = node.host();
    // A verb to such a node may take seconds to fail.
    if !host.silent_memory(node.index).is_empty() {
        return None;
    }
    host.memory_figures(node.index).await.ok()
}

/// Encodes them.
pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    figures: &MemoryFigures,
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
    let named = |of: &dyn Fn(&lotus::TableMemory) -> u64| -> Vec<(String, u64)> {
        let name = |table: TableId| tables.iter().find(|(id, _)| *id == table);
        let one =
            |table: &lotus::TableMemory| Some((name(table.table)?.1.name.to_string(), of(table)));
        figures.tables.iter().filter_map(one).collect()
    };
    let help = "Bytes of one copy of a table that were handed out, freed ones included";
    let allocated = named(&|table| table.allocated_bytes);
    bytes(encoder, "table_allocated", help, "table", &allocated)?;
    let help = "Bytes of a table's slots that are free at this compute node";
    bytes(encoder, "table_free", help, "table", &named(&|table| table.free_here_bytes))
}

fn bytes(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    values: &[(String, u64)],
) -> fmt::Result {
    let mut encoder =
        encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Gauge)?;
    for (named, value) in values {
        let labels = [(label, named.as_str())];
        let one = encoder.encode_family(&labels)?;
        ConstGauge::new(*value as i64).encode(one)?;
    }
    Ok(())
}
