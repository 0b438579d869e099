//! Instructions that a committed transaction executes, by layer, counted with callgrind.
//!
//! `cargo bench --bench instructions` runs each workload on one coordinator of a simulated cluster,
//! where time is virtual: nothing is polled in vain, and the same program executes the same
//! instructions. What the back end `local` adds, whose verbs are copies, is counted on real time,
//! over a fixed number of transactions: only what the clock causes differs between two runs.
//! Loading and start-up are left out, as what a longer run has in common with a shorter one.
//! Prints a table, and how the counts compare with those of `recorded.json`; `-- --record` writes
//! that file, and `-- --check` fails if a sum has grown by more than 3 %. Needs valgrind.

mod counts;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;

use lotus_benchmarks::callgrind::{self, Layers};
use lotus_benchmarks::config::{Aborted, ClusterConfig, Fabric, LoadConfig, Routing};
use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::engine::Isolation;
use lotus_benchmarks::harness::{self, Options};
use lotus_benchmarks::kvs::Kvs;
use lotus_benchmarks::lotus::{Embedded, builder};
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::smallbank::SmallBank;
use lotus_benchmarks::tatp::Tatp;
use lotus_benchmarks::tpcc::{Critical, Scale, Tpcc};
use lotus_benchmarks::workload::Workload;
use lotus_fabric::env::Env;
use lotus_fabric::machines::Threads;
use lotus_fabric::sim::{Config, Interleaving, Profile, SimMachines, World};
use lotus_loads::lanes::{Clients, ServerOptions};
use lotus_loads::locks::{self, ClientBehaviour, LockLoad};
use lotus_locksystems::systems::Choice;

use crate::counts::Counts;

type Error = Box<dyn std::error::Error>;

const SEED: u64 = 1;
/// Seconds of virtual time of the shorter and of the longer run.
const SIMULATED_SECS: [f64; 2] = [0.02, 0.12];
/// Commits of the shorter and of the longer run on `local`, or locks held.
const LOCAL_COMMITS: [u64; 2] = [5_000, 55_000];
/// Seconds that no run takes.
const NEVER_SECS: f64 = 1e6;
const WORKLOADS: [&str; 8] =
    ["smallbank", "kvs", "tatp", "tpcc", "smallbank/local", "kvs/local", "locks/cas", "locks/dslr"];
/// End of the names of workloads that run on `local`.
const LOCAL: &str = "/local";
/// Start of the names of lock systems: a lock of `local` that nobody else wants is acquired and
/// released.
const LOCKS: &str = "locks/";
/// Growth of a sum that a check accepts, of 1. Two runs differ by up to 0.004.
const TOLERANCE: f64 = 0.03;
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions/recorded.json");

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--bench"] => count(After::Compare),
        ["--record", "--bench"] => count(After::Record),
        ["--check", "--bench"] => count(After::Check),
        ["--run", workload, length] => {
            // The first clock of a process is calibrated, for as long as the machine needs.
            let _calibrated = Env::real(SEED);
            let committed = run(workload, length.parse()?)?;
            Ok(writeln!(io::stdout(), "{committed}")?)
        }
        // Tests of benchmarks ask only whether they run.
        [] => WORKLOADS.iter().try_for_each(|workload| run(workload, Length::Shorter).map(drop)),
        _ => Err("usage: cargo bench --bench instructions [-- --record | --check]".into()),
    }
}

/// What is done with the counts, besides showing how they compare with the recorded ones.
#[derive(Clone, Copy, PartialEq)]
enum After {
    Compare,
    /// They become the recorded ones.
    Record,
    /// It is an error if a sum has grown by more than [`TOLERANCE`].
    Check,
}

/// One of the two runs of a workload, whose difference is counted.
#[derive(Clone, Copy)]
enum Length {
    Shorter,
    Longer,
}

impl Length {
    const BOTH: [Self; 2] = [Self::Shorter, Self::Longer];

    /// Name on the command line.
    const fn name(self) -> &'static str {
        match self {
            Self::Shorter => "shorter",
            Self::Longer => "longer",
        }
    }
}

impl FromStr for Length {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::BOTH.into_iter().find(|length| length.name() == name);
        known.ok_or_else(|| format!("a run is shorter or longer, not {name:?}"))
    }
}

/// Counts all workloads and shows the table.
fn count(after: After) -> Result<(), Error> {
    let mut workloads = BTreeMap::new();
    for workload in WORKLOADS {
        let (shorter, fewer) = measure(workload, Length::Shorter)?;
        let (longer, more) = measure(workload, Length::Longer)?;
        let each = longer.beyond(&shorter, (more - fewer) as f64);
        let rounded = each.iter().map(|(layer, count)| (layer.to_owned(), count.round() as u64));
        workloads.insert(workload.to_owned(), rounded.collect());
    }
    let version = Command::new("rustc").arg("--version").output()?;
    let compiler = String::from_utf8(version.stdout)?.trim().to_owned();
    let counts = Counts { compiler, workloads };
    if after == After::Record {
        std::fs::write(RECORDED, serde_json::to_string_pretty(&counts)? + "\n")?;
    }
    let recorded: Counts = serde_json::from_slice(&std::fs::read(RECORDED)?)?;
    let mut out = io::stdout();
    writeln!(out, "{}", counts.table(&WORKLOADS, &recorded))?;
    if !counts.is_comparable(&recorded) {
        writeln!(out, "Not compared: {RECORDED} is of {}.", recorded.compiler)?;
    }
    if after == After::Check { counts.check(&recorded, TOLERANCE) } else { Ok(()) }
}

/// Runs a workload under callgrind. Returns its instructions by layer, and the number of
/// transactions that committed.
fn measure(workload: &str, length: Length) -> Result<(Layers, u64), Error> {
    let folder = tempfile::tempdir()?;
    let profile = folder.path().join("profile");
    let run = Command::new("valgrind")
        // Threads take turns. Otherwise a coordinator that never blocks may keep the processor for
        // the whole run, and the thread that gives its coroutines their work never does.
        .args([
            "--tool=callgrind",
            "--quiet",
            "--fair-sched=yes",
            "--zero-before=instructions::run",
        ])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(std::env::current_exe()?)
        .args(["--run", workload, length.name()])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("valgrind, which counts instructions, does not run: {error}"))?;
    if !run.status.success() {
        return Err(format!("{workload} under valgrind: {}", run.status).into());
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in a workspace");
    let layers = callgrind::layers(&std::fs::read_to_string(profile)?, workspace)?;
    Ok((layers, String::from_utf8(run.stdout)?.trim().parse()?))
}

/// Runs a workload: number of transactions that committed. Counting begins here, which [`measure`]
/// asks for by name.
#[inline(never)]
fn run(workload: &str, length: Length) -> Result<u64, Error> {
    if let Some(system) = workload.strip_prefix(LOCKS) {
        return run_locks(system, LOCAL_COMMITS[length as usize]);
    }
    let progress = Progress::new(1, |_| ());
    let (name, fabric, secs, progress) = match workload.strip_suffix(LOCAL) {
        Some(name) => {
            let commits = LOCAL_COMMITS[length as usize];
            (name, Fabric::Local, NEVER_SECS, progress.ending_after(commits))
        }
        None => (workload, Fabric::Sim, SIMULATED_SECS[length as usize], progress),
    };
    let (options, progress) = (options(fabric, secs), Arc::new(progress));
    let scale = Scale { warehouses: 8, customers: 60, items: 1_000 };
    match name {
        "smallbank" => run_on_one(SmallBank::new(20_000, 800, 0.9, SEED), &options, &progress),
        "kvs" => run_on_one(Kvs::new(20_000, 0.5, 0.99), &options, &progress),
        "tatp" => run_on_one(Tatp::new(5_000, SEED), &options, &progress),
        "tpcc" => run_on_one(Tpcc::new(scale, Critical::Warehouse, SEED), &options, &progress),
        other => Err(format!("there is no workload {other:?}").into()),
    }
}

/// Runs a lock system on one lane of `local`, with a million locks. Returns the number of locks
/// that were held.
fn run_locks(system: &str, count: u64) -> Result<u64, Error> {
    let load = LockLoad {
        clients: Clients {
            choice: Choice::of(system.parse()?),
            server_lock: None,
            server_options: ServerOptions::default(),
            policy: None,
            cns: 1,
            threads: 1,
            coroutines: 1,
            warmup: 0.0,
            secs: NEVER_SECS,
        },
        count: 1_000_000,
        zipf: 0.99,
        hot: None,
        read_ratio: 0.5,
        update_ratio: 0.0,
        section: 0,
        object_bytes: 8,
        patience: None,
        behaviour: ClientBehaviour::default(),
        loses: None,
        audit: false,
    };
    let progress = Progress::new(1, |_| ()).ending_after(count);
    let machines = Threads::new(load.clients.nodes(), SEED);
    // Alone, without the services that keep locks: what else a program has in it moves which layer
    // the inlined code of the standard library counts for.
    Ok(locks::run_in_words(&machines, &load, &Arc::new(progress))?.tally.operations)
}

/// Runs a workload on one coordinator.
fn run_on_one<W: Workload>(
    workload: W,
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<u64, Error> {
    if options.cluster.fabric == Fabric::Local {
        let mut cluster = Embedded::start(&options.cluster, &options.load)?;
        return Ok(harness::run(&mut cluster, workload, options, progress)?.tally.all_committed);
    }
    let world = |nodes| {
        let profile = Profile::named("cx3-56g").map_err(refused)?;
        let interleaving = Interleaving::PerBatch;
        let config = Config { interleaving, ..Config::new(SEED, nodes, profile) };
        Ok(SimMachines::new(World::new(config).map_err(refused)?))
    };
    let mut cluster = Embedded::start_on(builder(&options.cluster, &options.load), world)?;
    Ok(harness::run(&mut cluster, workload, options, progress)?.tally.all_committed)
}

fn refused(error: impl std::fmt::Display) -> DeployError {
    DeployError::Refused(error.to_string())
}

fn options(fabric: Fabric, secs: f64) -> Options {
    Options {
        cluster: ClusterConfig { fabric, cns: 1, ..ClusterConfig::default() },
        load: LoadConfig {
            isolation: Isolation::Serializable,
            other_isolation: 0.0,
            routing: Routing::Hybrid,
            aborted: Aborted::Retry,
            secs,
            warmup_secs: 0.0,
            rate_tps: None,
            seed: SEED,
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
