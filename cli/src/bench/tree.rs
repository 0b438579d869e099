//! `lotus bench tree`: searches and updates of a tree on memory nodes, under the locks of a lock
//! system (DecLock, Fig. 17).

use lotus_benchmarks::config::Fabric;
use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::harness::BenchError;
use lotus_benchmarks::index::{self, TreeCounts, TreeLoad, TreeOutcome};
use lotus_benchmarks::locks::LockLoad;
use lotus_benchmarks::report::grouped;
use lotus_benchmarks::utilisation::NodeLoad;
use lotus_fabric::machines::Threads;
use serde_json::json;

use super::locks::{
    MEMORY_NODES, Table, busiest, check_fabric, clients, latency, per, plain, quantiles, rate,
    simulated,
};
use super::{Failure, deploy};
use crate::args::{LockRunArgs, TreeArgs};
use crate::show::outputs::Outputs;
use crate::show::watch::Watch;
use crate::show::{Verdict, screen};

/// Runs the load and shows what came of it.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn run(args: &TreeArgs) -> Result<Verdict, Failure> {
    let (load, run) = (load(args), &args.run);
    let checked = load.check().and_then(|()| check_fabric(run, "trees", load.choice.kind));
    checked.and_then(|()| check_habits(args)).map_err(Failure::Arguments)?;
    let outputs = Outputs::check(run.json.as_deref(), None)?;
    let outcome = on_machines(run, &load)?;
    if let Some(output) = &outputs.json {
        screen::write_json(output, &as_json(args, &load, &outcome))?;
    }
    screen::show(&text(args, &load, &outcome), &[&outputs.json])?;
    let is_sound = outcome.findings.as_ref().is_none_or(Vec::is_empty);
    Ok(if is_sound { Verdict::Sound } else { Verdict::Unsound })
}

/// Refuses what loads on locks alone can do.
fn check_habits(args: &TreeArgs) -> Result<(), String> {
    let why = match (args.system.policy, args.run.lose_ms) {
        (Some(_), _) => "the clients of a tree share no locks: leave out --policy",
        (_, Some(_)) => "a tree loses no compute node: leave out --lose-ms",
        (None, None) => return Ok(()),
    };
    Err(why.to_owned())
}

fn load(args: &TreeArgs) -> TreeLoad {
    let LockLoad { choice, cns, threads, coroutines, warmup, secs, audit, .. } =
        plain(&args.system, &args.run);
    let TreeArgs { keys, loaded, zipf, update_ratio, .. } = *args;
    TreeLoad {
        choice,
        keys,
        loaded,
        zipf,
        update_ratio,
        cns,
        threads,
        coroutines,
        warmup,
        secs,
        audit,
    }
}

fn on_machines(args: &LockRunArgs, load: &TreeLoad) -> Result<TreeOutcome, BenchError> {
    let watch = Watch::start(args.cns * args.threads, "done");
    let (nodes, progress) = (load.nodes(), &watch.progress);
    let outcome = match args.fabric {
        Fabric::Local => index::run(&Threads::new(nodes, args.seed), load, progress),
        Fabric::Shm => {
            return deploy::on_processes(nodes, 1, args.seed, progress, |machines, _| {
                Ok(index::run(&machines, load, progress)?)
            });
        }
        Fabric::Sim => index::run(&simulated(args, nodes, Vec::new())?, load, progress),
        #[cfg(feature = "tcp")]
        Fabric::Tcp => index::run(&deploy::tcp_machines(nodes, args.seed)?, load, progress),
        other => Err(DeployError::Refused(crate::args::common::lacks(other))),
    };
    Ok(outcome?)
}

fn text(args: &TreeArgs, load: &TreeLoad, outcome: &TreeOutcome) -> String {
    let (tally, mut text) = (&outcome.tally, Table::default());
    let (kind, fabric) = (load.choice.kind, args.run.fabric.name());
    text.line("lock", format!("{kind} on {fabric}, {} clients", clients(&args.run)));
    text.line("operations a second", grouped(rate(tally.operations, load.secs)));
    text.line("operation, µs", quantiles(&tally.operation_ns));
    for (name, latencies) in [("search, µs", &tally.search_ns), ("update, µs", &tally.update_ns)]
    {
        if !latencies.is_empty() {
            text.line(name, quantiles(latencies));
        }
    }
    let verbs = &tally.verbs;
    let of = |count| per(count, tally.operations);
    text.line(
        "an operation",
        format!(
            "{:.2} READ, {:.2} WRITE, {:.2} CAS, {:.2} FAA, {:.3} messages",
            of(verbs.reads),
            of(verbs.writes),
            of(verbs.compare_and_swaps),
            of(verbs.fetch_and_adds),
            of(verbs.messages)
        ),
    );
    let counts = &tally.counts;
    text.line("retries", format!("{:.3} an acquisition", per(counts.retries, counts.acquired)));
    let waited = 100.0 * per(counts.waited, counts.acquired);
    text.line("waited", format!("{waited:.1} %, {} locks lost", grouped(tally.tree.lost)));
    text.line("resets", counts.resets);
    let TreeCounts { torn, inner_reads, hops, splits, mended, .. } = tally.tree;
    let [torn, inner_reads] = [torn, inner_reads].map(grouped);
    text.line("READ again", format!("{torn} pages in pieces, {inner_reads} inner nodes"));
    let [splits, hops, mended] = [splits, hops, mended].map(grouped);
    text.line("pages", format!("{splits} split, {hops} ways to the right, {mended} mended"));
    if let Some(shape) = outcome.shape {
        let (keys, pages) = (grouped(shape.keys), grouped(shape.pages));
        text.line("tree", format!("{keys} keys, {pages} pages, {} levels", shape.levels));
    }
    if let Some(report) = &outcome.utilisation {
        text.line("busiest", busiest(report));
        let memory = nodes(outcome).into_iter().filter(NodeLoad::is_memory);
        memory.for_each(|node| text.line("served", node));
    }
    match &outcome.findings {
        None => text.line("audit", "not made"),
        Some(findings) if findings.is_empty() => {
            let searches = "searches found what was there";
            let tree = "each key once, with its last value; all locks free";
            text.line("audit", format!("passed: {searches}; {tree}"));
        }
        Some(findings) => {
            findings.iter().for_each(|finding| text.line("AUDIT FAILED", finding));
        }
    }
    text.0
}

/// What each node's NIC did for others, warm-up included; nothing unless that was simulated.
fn nodes(outcome: &TreeOutcome) -> Vec<NodeLoad> {
    outcome.utilisation.iter().flat_map(|used| NodeLoad::all(used, MEMORY_NODES)).collect()
}

fn as_json(args: &TreeArgs, load: &TreeLoad, outcome: &TreeOutcome) -> serde_json::Value {
    let TreeOutcome { tally, findings, shape, .. } = outcome;
    let (verbs, counts, tree) = (&tally.verbs, &tally.counts, &tally.tree);
    let of = |count| per(count, tally.operations);
    let shape = shape
        .map(|shape| json!({ "keys": shape.keys, "pages": shape.pages, "levels": shape.levels }));
    json!({
        "lock": load.choice.kind.name(),
        "fabric": args.run.fabric.name(),
        "as_published": args.system.as_published,
        "keys": load.keys,
        "loaded": load.loaded,
        "zipf": load.zipf,
        "update_ratio": load.update_ratio,
        "clients": clients(&args.run),
        "secs": load.secs,
        "operations": tally.operations,
        "operations_per_s": tally.operations as f64 / load.secs,
        "operation": latency(&tally.operation_ns),
        "searches": tally.search_ns.len(),
        "search": latency(&tally.search_ns),
        "updates": tally.update_ns.len(),
        "update": latency(&tally.update_ns),
        "reads": verbs.reads,
        "writes": verbs.writes,
        "compare_and_swaps": verbs.compare_and_swaps,
        "fetch_and_adds": verbs.fetch_and_adds,
        "messages": verbs.messages,
        "per_operation": {
            "read": of(verbs.reads),
            "write": of(verbs.writes),
            "compare_and_swap": of(verbs.compare_and_swaps),
            "fetch_and_add": of(verbs.fetch_and_adds),
            "messages": of(verbs.messages),
        },
        "acquired": counts.acquired,
        "retries": counts.retries,
        "retries_per_acquisition": per(counts.retries, counts.acquired),
        "waited": counts.waited,
        "resets": counts.resets,
        "torn_reads": tree.torn,
        "inner_reads": tree.inner_reads,
        "hops": tree.hops,
        "splits": tree.splits,
        "mended": tree.mended,
        "locks_lost": tree.lost,
        "tree": shape,
        "nodes": nodes(outcome),
        "audit": findings,
    })
}
