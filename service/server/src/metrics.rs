//! Metrics of a compute node and its server, for Prometheus.
//!
//! Figures are gathered on request, from counters kept by their owners anyway. Coordinators answer
//! between transactions; coordinators of a failed node do not answer, and their counts are left
//! out.

mod memory;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lotus::{CoordinatorFigures, CoordinatorId, Hits, MemoryStanding, MemoryStatus, NodeFigures};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::counters::{ABORT_REASONS, Counters, Ending, LATENCY_BOUNDS_US, Latencies};
use crate::exposition::{self, LabelValue, gauge};
use crate::metrics::memory::Memory;
use crate::node::NodeServer;

/// Gathers all metrics of a node.
pub(crate) async fn gather(node: Arc<NodeServer>) -> Registry {
    let mut coordinators = CoordinatorFigures::default();
    for thread in 0..node.queues.len() {
        let coordinator_id = CoordinatorId { compute_node: node.index, thread };
        let Ok(figures) = node.cluster().coordinator_figures(coordinator_id).await else {
            continue;
        };
        coordinators.verbs += &figures.verbs;
        coordinators.caches += figures.caches;
        coordinators.begun += figures.begun;
    }
    let figures = node.cluster().node_figures(node.index);
    let memory = memory::look(&node).await;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(node.process.shown()));
    let own = registry.sub_registry_with_prefix("lotus");
    own.register_collector(Box::new(Scrape { node, figures, coordinators, memory }));
    registry
}

struct Scrape {
    node: Arc<NodeServer>,
    figures: NodeFigures,
    coordinators: CoordinatorFigures,
    /// `None` if the memory cannot be read.
    memory: Option<Memory>,
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
        if let Some(memory) = &self.memory {
            memory::encode(&mut encoder, memory, &self.node.cluster().tables())?;
        }
        self.moves(&mut encoder)?;
        self.clients(&mut encoder)?;
        exposition::gauges(&mut encoder, &self.node.gauges)
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
        let help = "From a request's arrival to its answer, retries included";
        let (unit, kind) = (Some(&Unit::Seconds), MetricType::Histogram);
        let mut all = encoder.encode_descriptor("transaction_duration", help, unit, kind)?;
        self.histogram(&mut all, |counters| &counters.latencies)?;
        let help = "The same, of calls of one stored transaction";
        let mut by = encoder.encode_descriptor("procedure_duration", help, unit, kind)?;
        for (name, stored) in self.node.registry.all() {
            let label = [("procedure", LabelValue(name))];
            let mut one = by.encode_family(&label)?;
            self.histogram(&mut one, |counters| &counters.by_procedure[stored.place])?;
        }
        Ok(())
    }

    /// Encodes the histogram of the latencies, added up over all coordinators.
    fn histogram(
        &self,
        encoder: &mut MetricEncoder<'_>,
        of: impl Fn(&Counters) -> &Latencies,
    ) -> fmt::Result {
        // Divided, not multiplied, to print a hundredth of a second as 0.01.
        const US_PER_SECOND: f64 = 1e6;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let sum = |count: &dyn Fn(&Latencies) -> u64| {
            self.node.counters.iter().map(|counters| count(of(counters))).sum::<u64>()
        };
        let bounds = LATENCY_BOUNDS_US.iter().map(|us| *us as f64 / US_PER_SECOND);
        let buckets: Vec<(f64, u64)> = bounds
            .chain([f64::MAX])
            .enumerate()
            .map(|(at, bound)| (bound, sum(&|latencies| load(&latencies.buckets[at]))))
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let seconds = sum(&|latencies| load(&latencies.sum_us)) as f64 / US_PER_SECOND;
        encoder.encode_histogram::<NoLabelSet>(seconds, count, &buckets, None)
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
        self.membership(encoder)
    }

    /// Encodes locks, shards and membership, as known to the node.
    fn membership(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauge =
            |name: &str, help: &str, value: usize| gauge(encoder, name, help, value as i64);
        let NodeFigures {
            shards_owned, locks_held, lock_slots, epoch, expelled, unreached, ..
        } = self.figures;
        gauge("locks_held", "Locks in the node's table, by holder", locks_held)?;
        gauge("lock_slots", "Slots of the node's lock table", lock_slots)?;
        gauge("shards_owned", "Shards whose locks the node grants", shards_owned)?;
        gauge("configuration_epoch", "The epoch that the node has seen", epoch as usize)?;
        gauge("nodes_expelled", "Nodes that were expelled and fenced", expelled)?;
        let help = "Compute nodes that the node's messages have not reached for a lease";
        gauge("nodes_unreached", help, unreached)?;
        let takes_part = usize::from(self.figures.takes_part);
        gauge("takes_part", "1 while the node takes part in the cluster", takes_part)?;
        let silent = self.node.cluster().silent_memory(self.node.index);
        gauge("memory_nodes_silent", "Memory nodes that do not answer the node", silent.len())?;
        let MemoryStatus { nodes, copies, .. } = self.node.cluster().memory_known(self.node.index);
        let count = |what| nodes.iter().filter(|node| **node == what).count();
        let help = "Memory nodes that were lost and are not used any more";
        gauge("memory_nodes_lost", help, count(MemoryStanding::Lost))?;
        let help = "Memory nodes that are back and are given what they missed";
        gauge("memory_nodes_joining", help, count(MemoryStanding::Joining))?;
        let help = "Memory nodes that have last copies and do not answer half of the compute nodes";
        gauge("memory_nodes_out_of_reach", help, count(MemoryStanding::OutOfReach))?;
        let fewest = copies.into_iter().min().unwrap_or(0);
        gauge("copies", "Copies of each row that are in use, at least", fewest)?;
        memory::encode_answers(encoder, nodes.len(), &silent)?;
        self.lease(encoder)
    }

    /// Encodes the time left until the node is taken for dead.
    fn lease(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(lease) = self.node.cluster().config().lease else { return Ok(()) };
        let help = "How long the node may be silent before it is expelled";
        gauge(encoder, "lease_seconds", help, lease.as_secs_f64())?;
        let Some(left) = self.figures.lease_left else { return Ok(()) };
        let help = "How much of that is left since the last beat that has landed";
        gauge(encoder, "lease_margin_seconds", help, left.as_secs_f64())
    }

    /// Encodes the shards handed over by the node (LOTUS §4.3).
    fn moves(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let moves = self.figures.moves;
        let help = "Times that the node gave shards to another";
        counter(encoder, "hand_overs", help, moves.hand_overs)?;
        counter(encoder, "shards_moved", "Shards that the node gave to others", moves.shards)?;
        let help = "Attempts that were asked to give up because a shard was to move";
        counter(encoder, "hand_over_stragglers", help, moves.stragglers)?;
        let help = "Time for which no node granted locks of shards that the node gave away";
        let (name, unit) = ("hand_over_interruption", Some(&Unit::Seconds));
        let mut encoder = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
        encoder.encode_counter::<NoLabelSet, _, u64>(&moves.interrupted.as_secs_f64(), None)
    }

    fn clients(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let node = &self.node;
        gauge(encoder, "connections", "Clients that are connected", node.connections() as i64)?;
        let help = "Interactive transactions that are open";
        gauge(encoder, "open_transactions", help, node.open_transactions() as i64)?;
        let held: usize = node.budgets.iter().map(|budget| budget.held()).sum();
        let help = "Bytes of requests and answers that are held for clients";
        gauge(encoder, "client_bytes_held", help, held as i64)?;
        let limit: usize = node.budgets.iter().map(|budget| budget.limit()).sum();
        let help = "Bytes at which connections wait that hold more than a little of them";
        gauge(encoder, "client_bytes_limit", help, limit as i64)?;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let connection_counters = [
            ("admitted", load(&node.connection_counters.admitted)),
            ("refused", load(&node.connection_counters.refused)),
            ("turned_away", load(&node.connection_counters.turned_away)),
            ("misbehaved", load(&node.connection_counters.misbehaved)),
        ];
        counters(
            encoder,
            "clients",
            "Connections, by what became of them",
            "fate",
            &connection_counters,
        )
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
