//! What a compute node and its server have counted, as Prometheus wants it.
//!
//! Everything is gathered when it is asked for, from counters that their owners keep for
//! themselves anyway. Coordinators answer between transactions; those of a node that has failed
//! answer nothing, and what they had counted is left out.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lotus::{CoordinatorFigures, Hits, MemoryStanding, MemoryStatus, NodeFigures, Seat};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::counters::{ABORT_REASONS, Ending, LATENCY_BOUNDS_US};
use crate::node::Node;

/// What is sent.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of a node, as text.
pub(crate) async fn scrape(node: Arc<Node>) -> Result<String, fmt::Error> {
    let mut coordinators = CoordinatorFigures::default();
    for thread in 0..node.queues.len() {
        let seat = Seat { compute_node: node.index, thread };
        let Ok(figures) = node.host().coordinator_figures(seat).await else { continue };
        coordinators.verbs += &figures.verbs;
        coordinators.caches += figures.caches;
        coordinators.begun += figures.begun;
    }
    let figures = node.host().node_figures(node.index);
    let mut registry = Registry::with_prefix("lotus");
    registry.register_collector(Box::new(Scrape { node, figures, coordinators }));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

struct Scrape {
    node: Arc<Node>,
    figures: NodeFigures,
    coordinators: CoordinatorFigures,
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").field("node", &self.node.index).finish_non_exhaustive()
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.transactions(&mut encoder)?;
        self.latency(&mut encoder)?;
        self.engine(&mut encoder)?;
        self.moves(&mut encoder)?;
        self.clients(&mut encoder)
    }
}

impl Scrape {
    fn transactions(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let sum = |count: &dyn Fn(&crate::counters::Counters) -> u64| {
            self.node.counters.iter().map(count).sum::<u64>()
        };
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let endings = Ending::ALL.map(|ending| {
            (ending.name(), sum(&|counters| load(&counters.endings[ending as usize])))
        });
        let help = "Transactions asked for by clients, by how they ended";
        counters(encoder, "transactions", help, "outcome", &endings)?;
        let mut aborts = [("", 0); ABORT_REASONS.len()];
        for (at, reason) in ABORT_REASONS.into_iter().enumerate() {
            aborts[at] = (reason, sum(&|counters| load(&counters.aborts[at])));
        }
        let help = "Attempts of calls that were aborted and tried again, by why";
        counters(encoder, "aborts", help, "reason", &aborts)
    }

    fn latency(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        const SECONDS_PER_US: f64 = 1e-6;
        let mut buckets = Vec::new();
        let mut sum_us = 0;
        for counters in &self.node.counters {
            sum_us += counters.latency_sum_us.load(Ordering::Relaxed);
        }
        for at in 0..=LATENCY_BOUNDS_US.len() {
            let counted = self.node.counters.iter();
            let count = counted.map(|c| c.latencies[at].load(Ordering::Relaxed)).sum::<u64>();
            let bound =
                LATENCY_BOUNDS_US.get(at).map_or(f64::MAX, |us| *us as f64 * SECONDS_PER_US);
            buckets.push((bound, count));
        }
        let count = buckets.iter().map(|(_, count)| count).sum();
        let help = "From a request's arrival to its answer, retries included";
        let mut histogram = encoder.encode_descriptor(
            "transaction_duration",
            help,
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        let sum = sum_us as f64 * SECONDS_PER_US;
        histogram.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn engine(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let CoordinatorFigures { verbs, caches, begun } = &self.coordinators;
        let help = "Attempts of transactions that have begun, the engine's own errands included";
        counter(encoder, "attempts", help, *begun)?;
        let verbs_by_kind = [
            ("read", verbs.reads),
            ("write", verbs.writes),
            ("compare_and_swap", verbs.compare_and_swaps),
            ("fetch_and_add", verbs.fetch_and_adds),
        ];
        counters(encoder, "verbs", "One-sided verbs", "kind", &verbs_by_kind)?;
        counter(encoder, "doorbells", "Postings of a batch on one connection", verbs.doorbells)?;
        counter(encoder, "messages", "Messages to other compute nodes", verbs.messages)?;
        let (tables, addresses) = (caches.version_tables, caches.addresses);
        let help = "Look-ups in the node's caches";
        let lookups = [("version_tables", tables.lookups), ("addresses", addresses.lookups)];
        counters(encoder, "cache_lookups", help, "cache", &lookups)?;
        let hits = [("version_tables", tables.hits), ("addresses", addresses.hits)];
        counters(encoder, "cache_hits", "Look-ups that found something", "cache", &hits)?;
        let locks = [("here", caches.locks.hits), ("elsewhere", remote(caches.locks))];
        let help = "Locks that transactions asked for, by where their keeper was";
        counters(encoder, "locks_asked", help, "keeper", &locks)?;
        let NodeFigures { shards_owned, locks_held, lock_slots, epoch, expelled, .. } =
            self.figures;
        gauge(encoder, "locks_held", "Locks in the node's table, by holder", locks_held)?;
        gauge(encoder, "lock_slots", "Slots of the node's lock table", lock_slots)?;
        gauge(encoder, "shards_owned", "Shards whose locks the node grants", shards_owned)?;
        gauge(encoder, "configuration_epoch", "The epoch that the node has seen", epoch as usize)?;
        gauge(encoder, "nodes_expelled", "Nodes that were expelled and fenced", expelled)?;
        let takes_part = usize::from(self.figures.takes_part);
        gauge(encoder, "takes_part", "1 while the node takes part in the cluster", takes_part)?;
        let silent = self.node.host().silent_memory(self.node.index).len();
        gauge(encoder, "memory_nodes_silent", "Memory nodes that do not answer the node", silent)?;
        let MemoryStatus { nodes, copies, .. } = self.node.host().memory_known(self.node.index);
        let count = |what| nodes.iter().filter(|node| **node == what).count();
        let help = "Memory nodes that were lost and are not used any more";
        gauge(encoder, "memory_nodes_lost", help, count(MemoryStanding::Lost))?;
        let help = "Memory nodes that are back and are given what they missed";
        gauge(encoder, "memory_nodes_joining", help, count(MemoryStanding::Joining))?;
        let help = "Memory nodes that have last copies and do not answer half of the compute nodes";
        gauge(encoder, "memory_nodes_out_of_reach", help, count(MemoryStanding::OutOfReach))?;
        let fewest = copies.into_iter().min().unwrap_or(0);
        gauge(encoder, "copies", "Copies of each row that are in use, at least", fewest)
    }

    /// What the node gave to others (LOTUS §4.3).
    fn moves(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let moves = self.figures.moves;
        let help = "Times that the node gave shards to another";
        counter(encoder, "hand_overs", help, moves.hand_overs)?;
        counter(encoder, "shards_moved", "Shards that the node gave to others", moves.shards)?;
        let help = "Attempts that were asked to give up because a shard was to move";
        counter(encoder, "hand_over_stragglers", help, moves.stragglers)?;
        let help = "For how long nobody granted locks of shards that the node gave away";
        let (name, unit) = ("hand_over_interruption", Some(&Unit::Seconds));
        let mut encoder = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
        encoder.encode_counter::<NoLabelSet, _, u64>(&moves.interrupted.as_secs_f64(), None)
    }

    fn clients(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let node = &self.node;
        gauge(encoder, "connections", "Clients that are connected", node.connections())?;
        let help = "Interactive transactions that are open";
        gauge(encoder, "open_transactions", help, node.open_transactions())?;
        let held = node.budgets.iter().map(|budget| budget.held()).sum();
        let help = "Bytes of requests and answers that are held for clients";
        gauge(encoder, "client_bytes_held", help, held)?;
        let limit = node.budgets.iter().map(|budget| budget.limit()).sum();
        let help = "Bytes at which connections wait that hold more than a little of them";
        gauge(encoder, "client_bytes_limit", help, limit)?;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let doors = [
            ("admitted", load(&node.doors.admitted)),
            ("refused", load(&node.doors.refused)),
            ("turned_away", load(&node.doors.turned_away)),
            ("misbehaved", load(&node.doors.misbehaved)),
        ];
        counters(encoder, "clients", "Connections, by what became of them", "fate", &doors)
    }
}

fn remote(locks: Hits) -> u64 {
    locks.lookups - locks.hits
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
}

fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    values: &[(&'static str, u64)],
) -> fmt::Result {
    let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (name, value) in values {
        let labels = [(label, *name)];
        let mut one = encoder.encode_family(&labels)?;
        one.encode_counter::<NoLabelSet, _, u64>(value, None)?;
    }
    Ok(())
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: usize) -> fmt::Result {
    let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    encoder.encode_gauge(&(value as i64))
}
