//! `lotus-lab bench tree`: searches and updates of a tree on memory nodes, under the locks of a
//! lock system (DecLock, Fig. 17).

use std::sync::Arc;

use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::report::grouped;
use lotus_fabric::machines::Machines;
use lotus_loads::index::{self, TreeCounts, TreeLoad, TreeOutcome};
use lotus_loads::lanes::Clients;
use serde_json::json;

use super::Failure;
use super::clients::{
    self, LockBench, Table, check_fabric, clients, extend, in_words, latency, nodes, on_machines,
    per, quantiles, rate, verdict, who,
};
use crate::args::TreeArgs;
use lotus_runner::show::outputs::Outputs;
use lotus_runner::show::{Verdict, screen};

impl LockBench for TreeLoad {
    type Outcome = TreeOutcome;
    const DONE: &str = "done";

    fn clients(&self) -> &Clients {
        &self.clients
    }

    fn run(
        &self,
        machines: &dyn Machines,
        progress: &Arc<Progress>,
    ) -> Result<TreeOutcome, DeployError> {
        index::run(machines, self, progress)
    }
}

/// Runs the load and shows the result.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn run(args: &TreeArgs) -> Result<Verdict, Failure> {
    check(args)?;
    let (load, run) = (load(args), &args.run);
    let outputs = Outputs::check(run.json.as_deref(), None)?;
    let outcome = on_machines(run, &load)?;
    if let Some(output) = &outputs.json {
        screen::write_json(output, &as_json(args, &load, &outcome))?;
    }
    screen::show(&text(args, &load, &outcome), &[&outputs.json])?;
    Ok(verdict(outcome.findings.as_ref()))
}

/// Refuses conflicting flags.
///
/// # Errors
/// [`Failure::Arguments`] with a sentence that names the conflict.
pub fn check(args: &TreeArgs) -> Result<(), Failure> {
    let load = load(args);
    let checked = in_words(&args.system, "trees").and_then(|kind| {
        load.check()?;
        check_fabric(&args.run, "trees", kind)
    });
    checked.map_err(Failure::Arguments)?;
    match args.run.lose_ms {
        None => Ok(()),
        Some(_) => {
            let why = "a tree loses no compute node: leave out --lose-ms";
            Err(Failure::Arguments(why.to_owned()))
        }
    }
}

/// Runs the load, with flags that [`check`] accepts.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn measure(args: &TreeArgs) -> Result<TreeOutcome, Failure> {
    Ok(on_machines(&args.run, &load(args))?)
}

fn load(args: &TreeArgs) -> TreeLoad {
    let TreeArgs { keys, loaded, zipf, update_ratio, .. } = *args;
    let (clients, audit) = (clients(&args.system, &args.run), !args.run.no_audit);
    TreeLoad { clients, keys, loaded, zipf, update_ratio, audit }
}

fn text(args: &TreeArgs, load: &TreeLoad, outcome: &TreeOutcome) -> String {
    let (tally, mut text) = (&outcome.tally, Table::default());
    text.line("lock", who(&load.clients, &args.run));
    text.line("operations a second", rate(tally.operations, outcome.used.secs));
    text.line("operation, µs", quantiles(&tally.operation_ns));
    for (name, latencies) in [("search, µs", &tally.search_ns), ("update, µs", &tally.update_ns)]
    {
        if !latencies.is_empty() {
            text.line(name, quantiles(latencies));
        }
    }
    text.used(&load.clients, &outcome.used, tally.operations);
    let counts = &outcome.used.counts;
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
    let passed =
        "searches found what was there; each key once, with its last value; all locks free";
    text.end(outcome.utilisation.as_ref(), outcome.findings.as_ref(), passed);
    text.0
}

fn as_json(args: &TreeArgs, load: &TreeLoad, outcome: &TreeOutcome) -> serde_json::Value {
    let TreeOutcome { tally, used, findings, shape, utilisation } = outcome;
    let tree = &tally.tree;
    let shape = shape
        .map(|shape| json!({ "keys": shape.keys, "pages": shape.pages, "levels": shape.levels }));
    let mut json = clients::as_json(&args.system, &args.run, &load.clients, tally.operations, used);
    let own = json!({
        "keys": load.keys,
        "loaded": load.loaded,
        "zipf": load.zipf,
        "update_ratio": load.update_ratio,
        "operation": latency(&tally.operation_ns),
        "searches": tally.search_ns.len(),
        "search": latency(&tally.search_ns),
        "updates": tally.update_ns.len(),
        "update": latency(&tally.update_ns),
        "torn_reads": tree.torn,
        "inner_reads": tree.inner_reads,
        "hops": tree.hops,
        "splits": tree.splits,
        "mended": tree.mended,
        "locks_lost": tree.lost,
        "tree": shape,
        "nodes": nodes(utilisation.as_ref()),
        "audit": findings,
    });
    extend(&mut json, own);
    json
}
