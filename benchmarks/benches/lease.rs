//! Cost of leases, epochs and fencing while nothing fails: the same load with and without a lease,
//! in turns, so that other load on the machine affects both alike.
//!
//! Criterion is not used, as it measures one thing after the other.

use std::io::{self, Write};
use std::sync::Arc;

use lotus_benchmarks::config::{Aborted, ClusterConfig, LoadConfig, Routing};
use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::engine::Isolation;
use lotus_benchmarks::harness::{self, BenchError, Options};
use lotus_benchmarks::lotus::Embedded;
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::report::{Report, grouped};
use lotus_benchmarks::smallbank::SmallBank;

const ACCOUNTS: u64 = 100_000;
const HOT_ACCOUNTS: u64 = 4_000;
const HOT_RATIO: f64 = 0.9;
/// Short, and thus costly: a node beats eight times in it. A machine that stops a thread for longer
/// than that loses a node.
const LEASE_US: u64 = 50_000;
/// Lease for a run that only tests the benchmark itself, on a machine however busy.
const PATIENT_US: u64 = 3_000_000;
/// Number of rounds, each with one run with a lease and one without.
const ROUNDS: usize = 24;

fn options(lease_us: Option<u64>, seed: u64) -> Options {
    Options {
        cluster: ClusterConfig { lease_us, ..ClusterConfig::default() },
        load: LoadConfig {
            isolation: Isolation::Serializable,
            other_isolation: 0.0,
            routing: Routing::Hybrid,
            aborted: Aborted::Retry,
            secs: 1.0,
            warmup_secs: 0.2,
            rate_tps: None,
            seed,
            in_flight: None,
            move_us: None,
            timeline_us: None,
            txns: None,
        },
        audit: false,
        floor: false,
        history: false,
    }
}

/// Transactions a second of one run.
fn throughput(lease_us: Option<u64>, seed: u64) -> Result<f64, BenchError> {
    let options = options(lease_us, seed);
    let mut cluster = Embedded::start(&options.cluster, &options.load)?;
    let bank = SmallBank::new(ACCOUNTS, HOT_ACCOUNTS, HOT_RATIO, seed);
    let coordinators = options.cluster.cns * options.cluster.threads;
    let progress = Arc::new(Progress::new(coordinators, |_| ()));
    let outcome = harness::run(&mut cluster, bank, &options, &progress)?;
    if !(0..options.cluster.cns).all(|cn| cluster.cluster().takes_part(cn)) {
        let why = "a compute node was expelled: the machine was too busy to measure";
        return Err(DeployError::Failed(why.to_owned()).into());
    }
    Ok(Report::new(&options, &outcome).total.throughput_tps)
}

/// Minimum, lower quartile, median, upper quartile and maximum.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 5] {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    [0, 1, 2, 3, 4].map(|quarter| sorted[(sorted.len() - 1) * quarter / 4])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Without `--bench`, as in tests, only check that it runs.
    let whole = std::env::args().any(|arg| arg == "--bench");
    let (rounds, lease_us) = if whole { (ROUNDS, LEASE_US) } else { (1, PATIENT_US) };
    let mut pairs = Vec::new();
    for round in 0..rounds as u64 {
        // The order alternates as well.
        pairs.push(if round % 2 == 0 {
            let with = throughput(Some(lease_us), round)?;
            (with, throughput(None, round)?)
        } else {
            let without = throughput(None, round)?;
            (throughput(Some(lease_us), round)?, without)
        });
    }
    let mut out = io::stdout();
    let mut row = |what: &str, values: [f64; 5], show: &dyn Fn(f64) -> String| {
        let [least, lower, median, upper, most] = values.map(show);
        writeln!(out, "| {what} | {median} | {lower} to {upper} | {least} to {most} |")
    };
    let tps = |tps: f64| grouped(tps as u64);
    let with = format!("lease of {} ms, txn/s", lease_us / 1_000);
    row(&with, spread(pairs.iter().map(|(with, _)| *with)), &tps)?;
    row("no lease, txn/s", spread(pairs.iter().map(|(_, without)| *without)), &tps)?;
    let lost = pairs.iter().map(|(with, without)| (1.0 - with / without) * 100.0);
    row("lost in a round, %", spread(lost), &|percent| format!("{percent:+.1}"))?;
    Ok(())
}
