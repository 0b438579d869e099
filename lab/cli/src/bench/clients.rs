//! Code shared by benchmarks of lock systems: machines, clients, and the common part of the
//! results.

use std::fmt::{Display, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lotus_benchmarks::config::Fabric;
use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::harness::BenchError;
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::report::grouped;
use lotus_benchmarks::utilisation::NodeLoad;
use lotus_fabric::machines::{Machines, Threads};
use lotus_fabric::shm::MAX_LANES;
use lotus_fabric::sim::{Config, Interleaving, Profile, Report, Scheduled, SimMachines, World};
use lotus_fabric::verbs::Capabilities;
use lotus_loads::lanes::{Clients, Latencies, ServerOptions, Used};
use lotus_locks::Recovery;
use lotus_locks::systems::{Declock, DslrTimes, ShiftLock};
use lotus_locks::word::DeclockFields;
use lotus_locksystems::LockSpec;
use lotus_locksystems::fisslock::Preference;
use lotus_locksystems::local::Transfers;
use lotus_locksystems::servers::ServerLock;
use lotus_locksystems::systems::{Choice, Kind, Release};
use serde_json::json;

use super::deploy;
use crate::args::{LockRunArgs, SystemArgs};
use lotus_runner::show::Verdict;
use lotus_runner::show::watch::{Shown, Watch};

/// The node numbered 0 has the locks.
const MEMORY_NODES: usize = 1;

/// A benchmark of a lock system.
pub(super) trait LockBench {
    type Outcome;
    /// Past tense of an operation, for the progress bar.
    const DONE: &str;

    fn clients(&self) -> &Clients;

    /// Number of nodes on the machines.
    fn nodes(&self) -> u16 {
        self.clients().nodes()
    }

    /// Schedule of faults for simulated machines.
    fn schedule(&self) -> Vec<Scheduled> {
        Vec::new()
    }

    /// # Errors
    /// See [`lotus_loads::locks::run`].
    fn run(
        &self,
        machines: &dyn Machines,
        progress: &Arc<Progress>,
    ) -> Result<Self::Outcome, DeployError>;
}

/// Runs a load on the machines named by the flags.
///
/// # Errors
/// [`BenchError`] if there is no result.
pub(super) fn on_machines<L: LockBench>(
    args: &LockRunArgs,
    load: &L,
) -> Result<L::Outcome, BenchError> {
    let coordinators = args.cns * args.threads;
    let bench = format!("locks {}", load.clients().name());
    let shown = Shown {
        at: args.live.as_deref(),
        bench: &bench,
        fabric: args.fabric.name(),
        has_aborts: false,
        is_virtual: args.fabric == Fabric::Sim,
    };
    let watch = match args.quiet {
        true => Watch::unseen(coordinators, args.ops),
        false => Watch::start(coordinators, args.ops, L::DONE, shown)
            .map_err(|error| deploy::refused(&error))?,
    };
    let (nodes, progress) = (load.nodes(), &watch.progress);
    let outcome = match args.fabric {
        Fabric::Local => load.run(&Threads::new(nodes, args.seed), progress),
        Fabric::Shm => {
            return deploy::on_processes(nodes, 1, args.seed, progress, |machines, _| {
                Ok(load.run(&machines, progress)?)
            });
        }
        Fabric::Sim => {
            load.run(&simulated(args, load.clients(), nodes, load.schedule())?, progress)
        }
        #[cfg(feature = "tcp")]
        Fabric::Tcp => load.run(&deploy::tcp_machines(nodes, args.seed)?, progress),
        other => Err(DeployError::Refused(lotus_runner::args::common::lacks(other))),
    };
    Ok(outcome?)
}

/// Refuses options and machines that the lock system does not support, whether its locks are on
/// memory nodes or at servers; `what` names the load.
pub(super) fn check_locks(
    system: &SystemArgs,
    run: &LockRunArgs,
    what: &str,
) -> Result<(), String> {
    match system.lock {
        LockSpec::Words(kind) => check_fabric(run, what, kind),
        LockSpec::Server(server_lock) => check_server_lock(system, run, what, server_lock),
    }
}

/// Refuses options that a lock service does not have, and machines that it cannot run on.
pub(super) fn check_server_lock(
    system: &SystemArgs,
    run: &LockRunArgs,
    what: &str,
    server_lock: ServerLock,
) -> Result<(), String> {
    refuse_options(system, server_lock)?;
    if !system.redis.is_empty() && run.fabric == Fabric::Sim {
        return Err(
            "--redis is of fabrics in real time: simulated time is not that of redis".into()
        );
    }
    check_machines(run, what)
}

/// Refuses a fabric that is not available, or not for this number of lanes, or that lacks a feature
/// the lock system needs; `what` names the load.
pub(super) fn check_fabric(args: &LockRunArgs, what: &str, kind: Kind) -> Result<(), String> {
    check_machines(args, what)?;
    match args.fabric {
        Fabric::Sim if kind.needs_wide_atomics() => {
            let profile = profile(args, None).map_err(|error| error.to_string())?;
            fits(kind, profile.has_wide_atomics())
        }
        _ => fits(kind, false),
    }
}

/// Refuses a fabric that is not available, or not for this number of lanes; `what` names the load.
pub(super) fn check_machines(args: &LockRunArgs, what: &str) -> Result<(), String> {
    if (args.profile.is_some() || args.cn_cn_ns.is_some()) && args.fabric != Fabric::Sim {
        return Err("only the simulated fabric has a profile".to_owned());
    }
    if args.lose_ms.is_some() && args.fabric != Fabric::Sim {
        return Err("only simulated nodes are lost".to_owned());
    }
    let lanes = args.cns * args.threads;
    match args.fabric {
        Fabric::Shm if lanes > MAX_LANES => Err(format!(
            "{lanes} lanes are more than one process can have on shm: at most {MAX_LANES}"
        )),
        Fabric::Tcp if !cfg!(feature = "tcp") => {
            Err(lotus_runner::args::common::lacks(Fabric::Tcp))
        }
        Fabric::Rdma => Err(format!("{what} run on local, shm, tcp and sim, not on rdma")),
        _ => Ok(()),
    }
}

/// Refuses a lock system that needs 16-byte atomics on a fabric without them.
fn fits(kind: Kind, wide_atomics: bool) -> Result<(), String> {
    let fabric = Capabilities { wide_atomics, ..Capabilities::default() };
    kind.fits(&fabric).map_err(|error| error.to_string())
}

/// Profile of the simulated cards, and of the cores of servers.
fn profile(args: &LockRunArgs, server_lock: Option<ServerLock>) -> Result<Profile, DeployError> {
    let usual = if server_lock.is_some() { "tofino-cx5" } else { "cx3-56g" };
    deploy::profile(args.profile.as_deref().unwrap_or(usual))
}

/// Core time of a Redis server for two commands, a SET and the script that deletes.
///
/// Fitted to ShiftLock Figure 11: 5.56 K transactions of SmallBank a second. More clients do not
/// change the rate, so the server is always busy. A transaction has 1.85 locks (weights 15, 15, 15,
/// 25, 15 and 15 of 3, 2, 1, 2, 1 and 2 locks), so 1 / (5560 * 1.85) s for each. A Redis server
/// takes less in a benchmark without other requests: in this fit the server holds the balances as
/// well.
const REDIS_REQUEST: Duration = Duration::from_nanos(97_200);

/// The clients, with the core time of the servers that keep their locks: zero on fabrics in real
/// time.
pub(super) fn charged(clients: Clients, args: &LockRunArgs) -> Result<Clients, DeployError> {
    if args.fabric != Fabric::Sim || clients.server_lock.is_none() {
        return Ok(clients);
    }
    let profile = profile(args, clients.server_lock)?;
    let request = match clients.server_lock {
        Some(ServerLock::RedLock) => REDIS_REQUEST,
        _ => profile.server_request().unwrap_or_default(),
    };
    let server_options = ServerOptions { request, ..clients.server_options };
    Ok(Clients { server_options, ..clients })
}

/// Simulated machines with a schedule of faults.
fn simulated(
    args: &LockRunArgs,
    clients: &Clients,
    nodes: u16,
    schedule: Vec<Scheduled>,
) -> Result<SimMachines, DeployError> {
    let mut profile = profile(args, clients.server_lock)?;
    if let Some(ns) = args.cn_cn_ns {
        profile = profile.with_cn_cn_delay(Duration::from_nanos(ns));
    }
    let interleaving = Interleaving::PerBatch;
    let switches = clients.switches();
    let config =
        Config { interleaving, schedule, switches, ..Config::new(args.seed, nodes, profile) };
    let world = World::new(config).map_err(|error| deploy::refused(&error))?;
    Ok(SimMachines::new(world))
}

/// The clients named by the flags. The default queue of `declock` has room for all of them.
pub(super) fn clients(system: &SystemArgs, run: &LockRunArgs) -> Clients {
    let times = DslrTimes {
        poll: Duration::from_micros(system.poll_us),
        term: Duration::from_micros(system.lease_us),
        again_most: Duration::from_micros(system.again_us),
    };
    let each_node = if system.policy.is_some() { 1 } else { run.threads * run.coroutines };
    let requests = (run.cns * each_node).next_power_of_two() as u32;
    let room = requests.clamp(Declock::PUBLISHED_ENTRIES, DeclockFields::MAX_CAPACITY);
    let (kind, server_lock) = match system.lock {
        LockSpec::Words(kind) => (kind, None),
        // Not used.
        LockSpec::Server(server_lock) => (Kind::Dslr, Some(server_lock)),
    };
    let redis = (!system.redis.is_empty()).then(|| system.redis.as_slice().into());
    Clients {
        server_lock,
        server_options: ServerOptions {
            redis,
            ttl: system.ttl_ms.map(Duration::from_millis),
            prefer: system.prefer,
            racks: system.racks,
            ..ServerOptions::default()
        },
        choice: Choice {
            kind,
            recovery: if system.as_published { Recovery::Paper } else { Recovery::Fenced },
            backs_off: system.backoff,
            release: if system.release_by_swap { Release::Swap } else { Release::Add },
            times,
            threshold: system.threshold,
            entries: system.queue_entries.unwrap_or(room),
        },
        policy: system.policy,
        cns: run.cns as u16,
        threads: run.threads as u16,
        coroutines: run.coroutines as u16,
        warmup: run.warmup_secs(),
        secs: run.secs(),
    }
}

/// Lock system of a benchmark whose locks must be in words of memory nodes.
///
/// # Errors
/// A sentence: a service keeps the locks.
pub(super) fn in_words(system: &SystemArgs, what: &str) -> Result<Kind, String> {
    match system.lock {
        LockSpec::Words(kind) => Ok(kind),
        LockSpec::Server(server_lock) => {
            Err(format!("{what} have locks of memory nodes, which {server_lock} has not"))
        }
    }
}

/// Refuses options that a lock service does not have.
///
/// # Errors
/// A sentence with the option's name.
pub(super) fn refuse_options(system: &SystemArgs, server_lock: ServerLock) -> Result<(), String> {
    let times = DslrTimes::PUBLISHED;
    let changed = [
        ("--policy", system.policy.is_some()),
        ("--as-published", system.as_published),
        ("--backoff", system.backoff),
        ("--release-by-swap", system.release_by_swap),
        ("--poll-us", Duration::from_micros(system.poll_us) != times.poll),
        ("--lease-us", Duration::from_micros(system.lease_us) != times.term),
        ("--again-us", Duration::from_micros(system.again_us) != times.again_most),
        ("--threshold", system.threshold != ShiftLock::THRESHOLD),
        ("--queue-entries", system.queue_entries.is_some()),
    ];
    match changed.iter().find(|(_, is_changed)| *is_changed) {
        Some((flag, _)) => {
            let keep = if server_lock.is_switched() { "a switch grants" } else { "servers keep" };
            Err(format!("{flag} is of locks of memory nodes; {keep} those of {server_lock}"))
        }
        None => Ok(()),
    }
}

/// Name of a preference.
const fn preferred(preference: Preference) -> &'static str {
    match preference {
        Preference::Readers => "readers",
        Preference::Writers => "writers",
    }
}

/// Describes the lock system and its clients for a person.
pub(super) fn who(clients: &Clients, run: &LockRunArgs) -> String {
    let (name, fabric, count) = (clients.name(), run.fabric.name(), clients.count());
    let name = match clients.server_options.prefer.map(preferred) {
        Some(preferred) => format!("{name} ({preferred} preferred)"),
        None => name.to_owned(),
    };
    let name = match clients.server_options.racks {
        Some(racks) => format!("{name} in {racks} racks"),
        None => name,
    };
    match &clients.server_options.redis {
        None => format!("{name} on {fabric}, {count} clients"),
        Some(servers) => {
            let servers = servers.iter().map(SocketAddr::to_string).collect::<Vec<_>>();
            format!("{name} at {}, {count} clients on {fabric}", servers.join(", "))
        }
    }
}

/// Verdict from the findings of an audit.
pub(super) fn verdict(findings: Option<&Vec<String>>) -> Verdict {
    if findings.is_none_or(Vec::is_empty) { Verdict::Sound } else { Verdict::Unsound }
}

pub(super) fn rate(count: u64, secs: f64) -> String {
    grouped(per_second(count, secs) as u64)
}

/// Rate of `count` in `secs` seconds; zero if `secs` is zero.
fn per_second(count: u64, secs: f64) -> f64 {
    if secs > 0.0 { count as f64 / secs } else { 0.0 }
}

pub(super) fn per(count: u64, operations: u64) -> f64 {
    count as f64 / operations.max(1) as f64
}

pub(super) fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// Mean and quantiles of latencies for a person, in microseconds.
pub(super) fn quantiles(histogram: &Latencies) -> String {
    let at = |quantile| micros(histogram.value_at_quantile(quantile));
    let mean = histogram.mean() / 1000.0;
    format!("{mean:.1} mean, {:.1} p50, {:.1} p99, {:.1} p99.9", at(0.5), at(0.99), at(0.999))
}

/// Mean and quantiles of latencies, in microseconds.
pub(super) fn latency(histogram: &Latencies) -> serde_json::Value {
    let at = |quantile| micros(histogram.value_at_quantile(quantile));
    json!({
        "mean_us": histogram.mean() / 1000.0,
        "p50_us": at(0.5),
        "p99_us": at(0.99),
        "p999_us": at(0.999),
    })
}

/// A result for a person: lines with a name and a value.
#[derive(Default)]
pub(super) struct Table(pub(super) String);

impl Table {
    pub(super) fn line(&mut self, name: &str, value: impl Display) {
        _ = writeln!(self.0, "{name:<22}{value}");
    }

    /// Adds the resources used by the operations.
    pub(super) fn used(&mut self, clients: &Clients, used: &Used, operations: u64) {
        let (verbs, of) = (&used.verbs, |count| per(count, operations));
        self.line(
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
        if let Some(policy) = clients.policy {
            let Transfers { local, remote } = used.transfers;
            let (here, there) = (grouped(local), grouped(remote));
            let value = format!("{policy}: {here} within nodes, {there} from the memory node");
            self.line("transfers", value);
        }
        let retries = per(used.counts.retries, used.counts.acquired);
        self.line("retries", format!("{retries:.3} an acquisition"));
    }

    /// Adds the utilisation of the machines, and the findings of the audit; `passed` names the
    /// properties that the audit checked.
    pub(super) fn end(
        &mut self,
        utilisation: Option<&Report>,
        findings: Option<&Vec<String>>,
        passed: &str,
    ) {
        if let Some(report) = utilisation {
            self.line("busiest", busiest(report));
            let memory = nodes(utilisation).into_iter().filter(NodeLoad::is_memory);
            memory.for_each(|node| self.line("served", node));
        }
        match findings {
            None => self.line("audit", "not made"),
            Some(findings) if findings.is_empty() => {
                self.line("audit", format!("passed: {passed}"))
            }
            Some(findings) => {
                findings.iter().for_each(|finding| self.line("AUDIT FAILED", finding));
            }
        }
    }
}

/// Fields common to the reports of all lock benchmarks.
pub(super) fn as_json(
    system: &SystemArgs,
    run: &LockRunArgs,
    clients: &Clients,
    operations: u64,
    used: &Used,
) -> serde_json::Value {
    let (verbs, counts) = (&used.verbs, &used.counts);
    let of = |count| per(count, operations);
    json!({
        "lock": clients.name(),
        "redis": clients.server_options.redis.as_ref().map(|servers| {
            servers.iter().map(SocketAddr::to_string).collect::<Vec<_>>()
        }),
        "prefer": clients.server_options.prefer.map(preferred),
        "racks": clients.server_options.racks,
        "fabric": run.fabric.name(),
        "as_published": system.as_published,
        "clients": clients.count(),
        "secs": used.secs,
        "operations": operations,
        "operations_per_s": per_second(operations, used.secs),
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
        "policy": clients.policy.map(|policy| policy.to_string()),
        "local_transfers": used.transfers.local,
        "remote_transfers": used.transfers.remote,
        "acquired": counts.acquired,
        "retries": counts.retries,
        "retries_per_acquisition": per(counts.retries, counts.acquired),
        "waited": counts.waited,
        "refetches": counts.refetches,
        "resets": counts.resets,
        "reset_us": micros(counts.reset_ns) / counts.resets.max(1) as f64,
        "ghosts": counts.ghosts,
    })
}

/// Adds the fields of the JSON object `with` to `json`.
pub(super) fn extend(json: &mut serde_json::Value, with: serde_json::Value) {
    if let (Some(json), serde_json::Value::Object(with)) = (json.as_object_mut(), with) {
        json.extend(with);
    }
}

/// Load on each node's NIC from requests of other nodes; empty unless the run was simulated.
pub fn nodes(utilisation: Option<&Report>) -> Vec<NodeLoad> {
    utilisation.into_iter().flat_map(|used| NodeLoad::all(used, MEMORY_NODES)).collect()
}

/// The bottleneck of a simulated run, and its share.
pub fn busiest(report: &Report) -> String {
    report.bound().map_or_else(
        || "nothing".to_owned(),
        |found| format!("{}: {:.0} %", found.resource, 100.0 * found.busy),
    )
}
