//! `lotus-lab bench objects`: an object store on the locks of memory nodes (DecLock, Fig. 17).
//!
//! Objects and their locks are an array on the memory node. A get takes the lock shared and READs
//! the object, a set takes it exclusively and WRITEs the object. The audit of locks checks more
//! here: a get must find the whole of the object that was set last.

use lotus_benchmarks::report::grouped;
use lotus_loads::locks::{LockLoad, LockOutcome, LockTally};
use serde_json::json;

use super::Failure;
use super::clients::{Table, extend, in_words, latency, on_machines, quantiles, rate, verdict};
use super::locks::{details, details_as_json, plain, refuse};
use crate::args::ObjectsArgs;
use lotus_runner::show::outputs::Outputs;
use lotus_runner::show::{Verdict, screen};

/// Runs the store and shows the result.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn run(args: &ObjectsArgs) -> Result<Verdict, Failure> {
    let (load, run) = (load(args), &args.run);
    in_words(&args.system, "objects").map_err(Failure::Arguments)?;
    refuse(&args.system, run, &load)?;
    let outputs = Outputs::check(run.json.as_deref(), None)?;
    let outcome = on_machines(run, &load)?;
    if let Some(output) = &outputs.json {
        screen::write_json(output, &as_json(args, &load, &outcome))?;
    }
    screen::show(&text(args, &load, &outcome), &[&outputs.json])?;
    Ok(verdict(outcome.findings.as_ref()))
}

fn load(args: &ObjectsArgs) -> LockLoad {
    LockLoad {
        count: args.objects,
        zipf: args.zipf,
        read_ratio: args.gets.unwrap_or(args.trace.gets),
        object_bytes: args.bytes.unwrap_or(args.trace.bytes),
        ..plain(&args.system, &args.run)
    }
}

fn text(args: &ObjectsArgs, load: &LockLoad, outcome: &LockOutcome) -> String {
    let mut text = Table::default();
    let (objects, bytes) = (grouped(load.count), grouped(load.object_bytes));
    let (kind, fabric) = (load.clients.choice.kind, args.run.fabric.name());
    text.line("objects", format!("{objects} of {bytes} bytes, {kind} on {fabric}"));
    text.line("clients", load.clients.count());
    text.line("operations a second", rate(outcome.tally.operations, outcome.used.secs));
    let LockTally { reader_ns, writer_ns, .. } = &outcome.tally;
    for (name, latencies) in [("get", reader_ns), ("set", writer_ns)] {
        text.line(&format!("{name}s a second"), rate(latencies.len(), outcome.used.secs));
        text.line(&format!("{name}, µs"), quantiles(latencies));
    }
    details(&mut text, load, outcome);
    text.0
}

fn as_json(args: &ObjectsArgs, load: &LockLoad, outcome: &LockOutcome) -> serde_json::Value {
    let mut json = details_as_json(&args.system, &args.run, load, outcome);
    let LockTally { reader_ns, writer_ns, .. } = &outcome.tally;
    let own = json!({
        "objects": load.count,
        "get_ratio": load.read_ratio,
        "gets": reader_ns.len(),
        "get": latency(reader_ns),
        "sets": writer_ns.len(),
        "set": latency(writer_ns),
    });
    extend(&mut json, own);
    json
}
