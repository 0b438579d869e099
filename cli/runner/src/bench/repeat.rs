//! `lotus bench --repeat`: runs one benchmark several times, each time with the next seed, and
//! summarizes the results.

use std::io::{self, Write};

use lotus_benchmarks::audit::AuditOutcome;
use lotus_benchmarks::report::{Report, grouped};
use lotus_benchmarks::spread::Repeated;
use serde::Serialize;

use super::{Failure, Options, Place, measure};
use crate::args::BenchArgs;
use crate::host::origin;
use crate::show::outputs::Outputs;
use crate::show::{Verdict, screen};

/// The JSON of all runs.
#[derive(Serialize)]
struct Runs<'a> {
    repeated: &'a Repeated,
    runs: &'a [Report],
}

/// Runs a benchmark `--repeat` times, and shows all results and their summary. Completed runs are
/// shown even if a later run is cut short.
///
/// # Errors
/// [`Failure`] if there is no result, or if a run was stopped.
pub(super) fn run<P: Place>(
    args: &BenchArgs,
    first: &Options,
    place: &P,
    outputs: &Outputs,
) -> Result<Verdict, Failure> {
    let common = args.common();
    let mut runs = Vec::new();
    let mut stopped = None;
    for number in 0..common.repeat {
        let mut options = first.clone();
        options.load.seed += u64::from(number);
        let origin = Some(origin::here());
        let outcome = measure(args, &options, place)?;
        stopped = outcome.stopped.clone();
        let report = Report { origin, ..Report::new(&options, &outcome) };
        // A closed standard error is ignored.
        let line = line(&report, options.load.seed, number + 1, common.repeat);
        let _ = writeln!(io::stderr(), "{line}");
        runs.push(report);
        if stopped.is_some() {
            break;
        }
    }
    let repeated = Repeated::new(&runs);
    if let Some(output) = &outputs.json {
        screen::write_json(output, &Runs { repeated: &repeated, runs: &runs })?;
    }
    let audits = || runs.iter().filter_map(|run| run.audit.as_ref());
    let of = |outcome| audits().filter(|audit| audit.outcome == outcome).count();
    let (failed, open) = (of(AuditOutcome::Failed), of(AuditOutcome::Incomplete));
    let mut text = repeated.table();
    match (failed, open) {
        (0, 0) if audits().count() > 0 => text.push_str("\nall audits passed\n"),
        (0, 0) => (),
        (0, some) => text.push_str(&format!("\naudits of {some} runs INCOMPLETE\n")),
        (some, _) => text.push_str(&format!("\naudits of {some} runs FAILED\n")),
    }
    screen::show(&text, &[&outputs.json])?;
    match stopped {
        Some(why) => Err(Failure::Stopped(why)),
        None if failed > 0 => Ok(Verdict::Unsound),
        None if open > 0 => Ok(Verdict::Unjudged),
        None => Ok(Verdict::Sound),
    }
}

/// A run in one line.
fn line(report: &Report, seed: u64, number: u32, all: u32) -> String {
    let total = &report.total;
    let (tps, aborts) = (grouped(total.throughput_tps as u64), total.abort_rate * 100.0);
    let (p50, p99) = (total.latency_us.p50, total.latency_us.p99);
    let audit = match report.audit.as_ref().map(|audit| audit.outcome) {
        Some(AuditOutcome::Failed) => ", AUDIT FAILED",
        Some(AuditOutcome::Incomplete) => ", AUDIT INCOMPLETE",
        Some(AuditOutcome::Passed) | None => "",
    };
    format!(
        "run {number} of {all}, seed {seed}: {tps} txn/s, {aborts:.2} % aborts, p50 {p50:.1} us, \
         p99 {p99:.1} us{audit}"
    )
}
