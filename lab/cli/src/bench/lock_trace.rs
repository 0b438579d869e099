//! `lotus-lab bench lock-trace`: transactions of a trace under two-phase locking (ShiftLock §4.4,
//! DSLR §6.2, FissLock §7.4).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::report::grouped;
use lotus_fabric::machines::Machines;
use lotus_loads::lanes::Clients;
use lotus_loads::traces::{FileTrace, LockGranularity, Scans, TatpTrace, TpccTrace, Trace};
use lotus_loads::two_phase::{self, TraceLoad, TraceOutcome};
use serde_json::json;

use super::Failure;
use super::clients::{
    self, LockBench, Table, check_locks, clients, extend, latency, nodes, on_machines, per,
    quantiles, rate, verdict, who,
};
use crate::args::LockTraceArgs;
use lotus_runner::show::outputs::Outputs;
use lotus_runner::show::{Verdict, screen};

/// Maximum size of a trace file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 30;

impl LockBench for TraceLoad {
    type Outcome = TraceOutcome;
    const DONE: &str = "ended";

    fn clients(&self) -> &Clients {
        &self.clients
    }

    fn nodes(&self) -> u16 {
        self.nodes()
    }

    fn run(
        &self,
        machines: &dyn Machines,
        progress: &Arc<Progress>,
    ) -> Result<TraceOutcome, DeployError> {
        two_phase::run(machines, self, progress)
    }
}

/// Runs the load and shows the result.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn run(args: &LockTraceArgs) -> Result<Verdict, Failure> {
    let (load, run) = (checked(args)?, &args.run);
    let outputs = Outputs::check(run.json.as_deref(), None)?;
    let outcome = on_machines(run, &load)?;
    if let Some(output) = &outputs.json {
        screen::write_json(output, &as_json(args, &load, &outcome))?;
    }
    screen::show(&text(args, &load, &outcome), &[&outputs.json])?;
    Ok(verdict(outcome.findings.as_ref()))
}

/// Refuses conflicting flags, and unreadable traces.
///
/// # Errors
/// [`Failure::Arguments`] with a sentence that says why.
pub fn check(args: &LockTraceArgs) -> Result<(), Failure> {
    checked(args).map(drop)
}

/// Runs the load, with flags that [`check`] accepts; returns the load and its outcome.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn measure(args: &LockTraceArgs) -> Result<(TraceLoad, TraceOutcome), Failure> {
    let load = checked(args)?;
    let outcome = on_machines(&args.run, &load)?;
    Ok((load, outcome))
}

/// Returns the load named by the flags.
fn checked(args: &LockTraceArgs) -> Result<TraceLoad, Failure> {
    let checked = load(args).and_then(|load| {
        check_locks(&args.system, &args.run, "traces")?;
        load.check()?;
        match args.run.lose_ms {
            None => Ok(load),
            Some(_) => Err("a trace loses no compute node: leave out --lose-ms".to_owned()),
        }
    });
    checked.map_err(Failure::Arguments)
}

fn load(args: &LockTraceArgs) -> Result<TraceLoad, String> {
    // Times as published (ShiftLock §4.4, FissLock Table 1).
    let (trace, published_us) = match args.trace.as_str() {
        "tatp" => {
            let (factor, seed) = (args.forwarding_factor, args.run.seed);
            (Trace::Tatp(TatpTrace::new(args.subscribers, factor, seed)), 2.8)
        }
        "tpcc" => {
            let rows = |divisor| LockGranularity::Rows { divisor };
            let granularity = args.row_locks.map_or(LockGranularity::Parts, rows);
            let warehouses = args.warehouses * args.run.cns as u32;
            let trace = TpccTrace::new(warehouses, granularity, args.run.seed);
            let time = Duration::from_micros(args.scan_us);
            let scans = args.scans.map(|share| Scans { share, time });
            let trace = match scans {
                Some(scans) => trace.with_scans(scans),
                None => trace,
            };
            (Trace::Tpcc(trace), 7.0)
        }
        path => (Trace::File(read(Path::new(path))?), 0.0),
    };
    let clients = clients::charged(clients(&args.system, &args.run), &args.run);
    let clients = clients.map_err(|error| error.to_string())?;
    Ok(TraceLoad {
        clients,
        mns: args.mns as u16,
        trace: Arc::new(trace),
        sorted: args.sorted,
        execution: Duration::from_secs_f64(args.exec_us.unwrap_or(published_us) / 1e6),
        busy: args.busy,
        patience: Duration::from_micros(args.timeout_us),
        audit: !args.run.no_audit,
    })
}

/// Reads a trace from a file.
fn read(path: &Path) -> Result<FileTrace, String> {
    let shown = path.display();
    let cannot = |error: std::io::Error| format!("{shown} cannot be read: {error}");
    let bytes = std::fs::metadata(path).map_err(cannot)?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(format!("{shown} has {bytes} bytes, and may have {MAX_FILE_BYTES}"));
    }
    let text = std::fs::read_to_string(path).map_err(cannot)?;
    FileTrace::parse(&text).map_err(|error| format!("{shown}: {error}"))
}

fn text(args: &LockTraceArgs, load: &TraceLoad, outcome: &TraceOutcome) -> String {
    let (tally, mut text) = (&outcome.tally, Table::default());
    text.line("lock", who(&load.clients, &args.run));
    let locks = grouped(load.trace.locks());
    let each = per(tally.locks, tally.transactions);
    text.line("trace", format!("{}, {locks} locks, {each:.1} a transaction", args.trace));
    text.line("transactions a second", rate(tally.transactions, outcome.used.secs));
    let attempts = tally.transactions + tally.aborts + tally.lost;
    let aborted = 100.0 * per(tally.aborts + tally.lost, attempts);
    let (aborts, lost) = (grouped(tally.aborts), grouped(tally.lost));
    text.line("aborts", format!("{aborts} given up, {lost} lost a lock: {aborted:.2} %"));
    text.line("acquire, µs", quantiles(&tally.acquire_ns));
    text.line("all locks, µs", quantiles(&tally.growing_ns));
    text.line("transaction, µs", quantiles(&tally.transaction_ns));
    let kinds = load.trace.kinds();
    for (kind, latencies) in kinds.iter().zip(&tally.of_kind_ns) {
        if !latencies.is_empty() {
            text.line(kind, quantiles(latencies));
        }
    }
    text.used(&load.clients, &outcome.used, tally.transactions);
    let counts = &outcome.used.counts;
    let waited = 100.0 * per(counts.waited, counts.acquired);
    text.line("waited", format!("{waited:.1} % of acquisitions"));
    text.line("resets, ghosts", format!("{}, {}", counts.resets, grouped(counts.ghosts)));
    let passed = "nobody held two, all locks free";
    text.end(outcome.utilisation.as_ref(), outcome.findings.as_ref(), passed);
    text.0
}

fn as_json(args: &LockTraceArgs, load: &TraceLoad, outcome: &TraceOutcome) -> serde_json::Value {
    let TraceOutcome { tally, used, findings, utilisation } = outcome;
    let (system, run) = (&args.system, &args.run);
    let mut json = clients::as_json(system, run, &load.clients, tally.transactions, used);
    let kinds = load.trace.kinds();
    let kinds = kinds.iter().zip(&tally.of_kind_ns).map(|(kind, latencies)| {
        json!({ "kind": kind, "transactions": latencies.len(), "latency": latency(latencies) })
    });
    let own = json!({
        "trace": args.trace,
        "locks": load.trace.locks(),
        "memory_nodes": load.mns,
        "sorted": load.sorted,
        "execution_us": load.execution.as_secs_f64() * 1e6,
        "locks_per_transaction": per(tally.locks, tally.transactions),
        "aborts": tally.aborts,
        "lost": tally.lost,
        "acquire": latency(&tally.acquire_ns),
        "growing": latency(&tally.growing_ns),
        "transaction": latency(&tally.transaction_ns),
        "kinds": kinds.collect::<Vec<_>>(),
        "nodes": nodes(utilisation.as_ref()),
        "audit": findings,
    });
    extend(&mut json, own);
    json
}
