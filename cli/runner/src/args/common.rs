//! Flags common to all workloads of `lotus bench`: the cluster, the load, and the results.
//!
//! [`CommonArgs::check`] refuses combinations of flags that are invalid only together, and a fabric
//! that this build does not have.

use std::path::PathBuf;

use clap::Args;
use lotus_benchmarks::config::{
    Aborted, AddressCache, ClusterConfig, Engine, Fabric, Inline, LoadConfig, LockWait, Locks,
    ReadRule, Retention, Routing, Sharding, Timestamps, Visible,
};
use lotus_benchmarks::engine::Isolation;
use lotus_benchmarks::harness::Options;

use super::engine::EngineArgs;
use super::values::{
    count, lock_table_bytes, memory_bytes, one_of, positive_secs, rate, run_secs, secs, warmup_secs,
};

/// Coroutines that serve applications on each coordinator besides the coroutines that run their
/// calls: one for an interactive transaction and one for the engine's errands.
pub const SPARE_COROUTINES: usize = 2;

/// Maximum number of coroutines on one compute node: coroutine numbers have ten bits.
const MAX_COROUTINES_PER_CN: usize = 1024;
/// Default profile of a simulated cluster: the testbed of LOTUS.
const DEFAULT_PROFILE: &str = "cx3-56g";

/// Use of the machine's RDMA devices.
#[derive(Clone, PartialEq, Eq, Debug, Default, Args)]
pub struct RdmaArgs {
    /// RDMA devices, with the port behind a colon if it is not the first; nodes are assigned to the
    /// devices in turn, memory nodes first [default: all devices with an active port].
    #[arg(long, value_name = "NAME[:PORT]", value_delimiter = ',')]
    pub rdma_devices: Vec<String>,
    /// Entry of the ports' tables of addresses [default: the first of RoCE version 2].
    #[arg(long, value_name = "N")]
    pub rdma_gid_index: Option<u8>,
    /// Bytes of a packet: 256, 512, 1024, 2048 or 4096 [default: the port's].
    #[arg(long, value_name = "BYTES")]
    pub rdma_mtu: Option<u16>,
}

/// Flags common to all workloads.
#[derive(Clone, Debug, Args)]
pub struct CommonArgs {
    /// Fabric that connects the nodes.
    #[arg(long, default_value = "local", value_parser = one_of(FABRICS))]
    pub fabric: Fabric,
    /// Network cards, links and cores of the simulated fabric: a built-in profile, or a file
    /// [default: cx3-56g].
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<String>,
    /// Use of RDMA devices.
    #[command(flatten)]
    pub rdma: RdmaArgs,
    /// The engine under test.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Description of a running cluster, which applications drive through the client library; sizes
    /// and shapes are taken from it.
    #[arg(long, value_name = "FILE")]
    pub cluster: Option<PathBuf>,
    /// Compute nodes.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = count(64))]
    pub cns: usize,
    /// Coordinators on each compute node.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count(64))]
    pub threads: usize,
    /// Coroutines on each coordinator.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count(64))]
    pub coroutines: usize,
    /// Memory nodes.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count(64))]
    pub mns: usize,
    /// Copies of each record.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count(8))]
    pub replicas: usize,
    /// Time in which transactions count, in seconds [default: 10; 86400 with --txns].
    #[arg(long, value_name = "SECONDS", value_parser = positive_secs)]
    pub secs: Option<f64>,
    /// Ends the run of a closed loop once a coordinator has committed its equal share of so many
    /// transactions. There is no warm-up, and --secs is a bound.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(conflicts_with_all = ["warmup", "rate"])]
    pub txns: Option<u64>,
    /// Warm-up before the counted time, in seconds [default: a tenth of --secs, at most 1].
    #[arg(long, value_name = "SECONDS", value_parser = secs)]
    pub warmup: Option<f64>,
    /// Transactions a second in an open loop [default: a closed loop].
    #[arg(long, value_name = "TPS", value_parser = rate)]
    pub rate: Option<f64>,
    /// Lets applications outside of the compute nodes generate the load, through the client
    /// library, with this many requests in flight [default: 64].
    #[arg(long, value_name = "IN_FLIGHT", num_args = 0..=1, default_missing_value = "64")]
    #[arg(value_parser = count(4096))]
    pub through_client: Option<usize>,
    /// Seed of all randomness.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Runs the benchmark this often, with this seed and the next ones, and shows medians and
    /// quartiles.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Serializable or snapshot isolation.
    #[arg(long, default_value = "sr", value_parser = one_of(ISOLATIONS))]
    pub isolation: Isolation,
    /// Versions of each record.
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=8))]
    pub versions: u32,
    /// Whether small records lie beside their cells, so that one READ brings both.
    #[arg(long, default_value = "auto", value_parser = one_of(INLINES))]
    pub inline: Inline,
    /// Version that a serializable read-write transaction reads.
    #[arg(long, default_value = "latest", value_parser = one_of(READ_RULES))]
    pub read_rule: ReadRule,
    /// Lock table of each compute node, in bytes (K, M and G are understood).
    #[arg(long, value_name = "BYTES", default_value = "32M", value_parser = lock_table_bytes)]
    pub lock_table: u64,
    /// Rows whose version tables each compute node caches; 0 for none.
    #[arg(long, value_name = "ENTRIES", default_value_t = 64 << 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=1 << 30))]
    pub vt_cache: u32,
    /// Whether compute nodes know the places of all loaded rows at the start (warm), or learn them
    /// (cold). Each thread of the other engines learns places of its own (per-thread), unless warm
    /// is given.
    #[arg(long, default_value = "cold", value_parser = one_of(ADDRESS_CACHES))]
    pub address_cache: AddressCache,
    /// Whether shards follow the application's keys or a hash.
    #[arg(long, default_value = "app", value_parser = one_of(SHARDINGS))]
    pub sharding: Sharding,
    /// Whether writers go to the owner of their first record, or anywhere.
    #[arg(long, default_value = "hybrid", value_parser = one_of(ROUTINGS))]
    pub routing: Routing,
    /// Lock tables on the compute nodes, or locks in words of the memory nodes. ideal-rdma is a
    /// bound, not a lock: it excludes nothing, and needs a build with the feature sabotage.
    #[arg(long, default_value = "lotus", value_parser = one_of(LOCKS_AND_BOUND))]
    pub locks: Locks,
    /// Whether a request for a lock that is held waits, where that cannot end in a deadlock, or is
    /// refused, as in the paper.
    #[arg(long, default_value = "none", value_parser = one_of(LOCK_WAITS))]
    pub lock_wait: LockWait,
    /// Whether a client repeats an attempt that was aborted, after a random wait, or goes on with
    /// its next transaction at once, as the programs of Motor and FORD do.
    #[arg(long, default_value = "retry", value_parser = one_of(ABORTED))]
    pub aborted: Aborted,
    /// A clock that all coordinators share, or an oracle on one compute node.
    #[arg(long, default_value = "clock", value_parser = one_of(TIMESTAMPS))]
    pub timestamps: Timestamps,
    /// Order in which a commit becomes visible on the replicas.
    #[arg(long, default_value = "backups-first", value_parser = one_of(VISIBLES))]
    pub visible: Visible,
    /// Whether displaced versions are kept while a snapshot may need them.
    #[arg(long, default_value = "on", value_parser = one_of(ON_OFF))]
    pub retain_versions: Retention,
    /// Lets overloaded compute nodes give shards away, and compares loads at this interval, in
    /// milliseconds [default without a number: 100, as in LOTUS §4.3; without the flag: never].
    #[arg(long, value_name = "MS", num_args = 0..=1, default_missing_value = "100",
          value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub balance: Option<u64>,
    /// Goes on without a node that is silent for this long, in milliseconds [default: never].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub lease: Option<u64>,
    /// Gives the shard of some request to the next compute node at this interval, in milliseconds:
    /// to measure the cost of a move [default: never].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub move_shards: Option<u64>,
    /// Counts commits in steps of this many milliseconds as well [default: none].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub timeline: Option<u64>,
    /// Memory limit of each memory node, in bytes [default: as much as is needed].
    #[arg(long, value_name = "BYTES", value_parser = memory_bytes)]
    pub memory_limit: Option<u64>,
    /// Whether all data is checked after the run.
    #[arg(long, default_value = "yes", value_parser = one_of(YES_NO))]
    #[arg(action = clap::ArgAction::Set)]
    pub audit: bool,
    /// Measures the throughput of the fabric alone as well.
    #[arg(long)]
    pub floor: bool,
    /// Writes every attempt of a transaction to a file, for `lotus check`.
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Writes the result as JSON to a file; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Shows no progress: the caller shows its own.
    #[arg(skip)]
    pub quiet: bool,
    /// Serves the run's progress at a socket, for lotus top: a line of JSON four times a second.
    #[arg(long, value_name = "SOCKET")]
    pub live: Option<PathBuf>,
    /// Names of the flags on the command line.
    #[arg(skip)]
    pub given: Vec<String>,
}

/// Flags allowed for a benchmark of a running cluster. The cluster's file and its loaded data
/// determine everything else.
const OF_RUNNING_CLUSTERS: &[&str] = &[
    "cluster",
    "secs",
    "txns",
    "warmup",
    "through-client",
    "isolation",
    "routing",
    "audit",
    "json",
    "live",
    // The shape of requests.
    "update-ratio",
    "zipf",
    "hot-shards",
    "hot-ratio",
    "jump",
    "hot-accounts",
];

/// Fabrics by their names.
pub const FABRICS: &[(&str, Fabric)] = &[
    ("local", Fabric::Local),
    ("shm", Fabric::Shm),
    ("tcp", Fabric::Tcp),
    ("rdma", Fabric::Rdma),
    ("sim", Fabric::Sim),
];
const ISOLATIONS: &[(&str, Isolation)] =
    &[("sr", Isolation::Serializable), ("si", Isolation::Snapshot)];
const READ_RULES: &[(&str, ReadRule)] =
    &[("latest", ReadRule::Latest), ("snapshot", ReadRule::Snapshot)];
const ADDRESS_CACHES: &[(&str, AddressCache)] = &[
    ("warm", AddressCache::Warm),
    ("cold", AddressCache::Cold),
    ("per-thread", AddressCache::PerThread),
];
const SHARDINGS: &[(&str, Sharding)] = &[("app", Sharding::App), ("hash", Sharding::Hash)];
const ROUTINGS: &[(&str, Routing)] = &[("hybrid", Routing::Hybrid), ("random", Routing::Random)];
/// Locks of transactions by their names, and the bound of locks on memory nodes.
const LOCKS_AND_BOUND: &[(&str, Locks)] = &[
    ("lotus", Locks::Lotus),
    ("cas", Locks::Cas),
    ("dslr", Locks::Dslr),
    ("shiftlock", Locks::ShiftLock),
    ("declock", Locks::Declock),
    ("ideal-rdma", Locks::IdealRdma),
];
/// Locks of transactions by their names: `LOCKS_AND_BOUND` without its last entry.
pub const LOCKS: &[(&str, Locks)] = LOCKS_AND_BOUND.split_at(LOCKS_AND_BOUND.len() - 1).0;
const LOCK_WAITS: &[(&str, LockWait)] = &[("ordered", LockWait::Ordered), ("none", LockWait::None)];
const TIMESTAMPS: &[(&str, Timestamps)] =
    &[("clock", Timestamps::Clock), ("oracle", Timestamps::Oracle)];
const VISIBLES: &[(&str, Visible)] =
    &[("backups-first", Visible::BackupsFirst), ("all-at-once", Visible::AllAtOnce)];
const INLINES: &[(&str, Inline)] = &[("auto", Inline::Auto), ("never", Inline::Never)];
const ABORTED: &[(&str, Aborted)] = &[("retry", Aborted::Retry), ("drop", Aborted::Drop)];
const ON_OFF: &[(&str, Retention)] = &[("on", Retention::On), ("off", Retention::Off)];
const YES_NO: &[(&str, bool)] = &[("yes", true), ("no", false)];

impl CommonArgs {
    /// Time in which transactions count, in seconds.
    fn secs(&self) -> f64 {
        run_secs(self.secs, 10.0, self.txns)
    }

    /// Checks for flags that are invalid only together; the error names the conflict.
    pub fn check(&self) -> Result<(), String> {
        if self.replicas > self.mns {
            return Err(format!(
                "{} replicas do not fit on {} memory nodes",
                self.replicas, self.mns
            ));
        }
        // The pacer of an open loop takes one coroutine slot of its coordinator, and so does the
        // task that moves shards.
        let helpers = usize::from(self.rate.is_some()) + usize::from(self.move_shards.is_some());
        let per_cn = self.threads * (self.coroutines + helpers);
        if per_cn > MAX_COROUTINES_PER_CN {
            return Err(format!(
                "{} threads of {} coroutines are more than the {MAX_COROUTINES_PER_CN} that one \
                 compute node can have (pacers of an open loop and movers of shards included)",
                self.threads, self.coroutines
            ));
        }
        self.engine.check((self.fabric, self.audit), &self.given)?;
        if self.profile.is_some() && self.fabric != Fabric::Sim {
            return Err("--profile makes sense with --fabric sim only".to_owned());
        }
        if self.floor && self.fabric == Fabric::Sim {
            return Err("--floor measures a real fabric, not --fabric sim".to_owned());
        }
        if self.move_shards.is_some() && self.locks != Locks::Lotus {
            return Err(
                "--move-shards makes no sense with locks on memory nodes (--locks), which \
                 have no owners"
                    .to_owned(),
            );
        }
        self.engine.check_addresses(self.address_cache, &self.given)?;
        if self.locks == Locks::IdealRdma {
            self.check_ideal()?;
        }
        if self.repeat > 1 {
            self.check_repeated()?;
        }
        if self.cluster.is_some() {
            self.check_running_cluster()?;
        }
        if self.rdma != RdmaArgs::default() && self.fabric != Fabric::Rdma {
            return Err("--rdma-devices, --rdma-gid-index and --rdma-mtu make sense with \
                        --fabric rdma only"
                .to_owned());
        }
        if self.through_client.is_some() {
            self.check_applications()?;
        }
        if !has(self.fabric) {
            return Err(lacks(self.fabric));
        }
        Ok(())
    }

    /// Checks the flags for the idealized lock.
    fn check_ideal(&self) -> Result<(), String> {
        if !cfg!(feature = "sabotage") {
            return Err("ideal-rdma takes a build with the feature sabotage".to_owned());
        }
        if self.lease.is_some() {
            return Err("--lease makes no sense with --locks ideal-rdma, which is a bound, not a \
                        lock, and recovers nothing"
                .to_owned());
        }
        Ok(())
    }

    /// Checks the flags for a benchmark that runs several times.
    fn check_repeated(&self) -> Result<(), String> {
        if self.history.is_some() {
            return Err(
                "--repeat makes no sense with --history: a history is of one run".to_owned()
            );
        }
        match self.seed.checked_add(u64::from(self.repeat)) {
            Some(_) => Ok(()),
            None => Err(format!("--repeat needs {} seeds from --seed on", self.repeat)),
        }
    }

    /// Checks the flags for a cluster that runs already.
    fn check_running_cluster(&self) -> Result<(), String> {
        if !cfg!(feature = "tcp") {
            return Err("--cluster is not available in this build".to_owned());
        }
        let is_said = |flag: &&String| !OF_RUNNING_CLUSTERS.contains(&flag.as_str());
        match self.given.iter().find(is_said) {
            None => Ok(()),
            Some(flag) => Err(format!(
                "--{flag} makes no sense with --cluster: a running cluster is as its file says, \
                 and has the data that it was loaded with"
            )),
        }
    }

    /// Checks the flags for load from applications.
    fn check_applications(&self) -> Result<(), String> {
        if !cfg!(feature = "tcp") {
            return Err("--through-client is not available in this build".to_owned());
        }
        if self.fabric == Fabric::Sim {
            return Err("--through-client measures a real fabric, not --fabric sim".to_owned());
        }
        if self.rate.is_some() || self.history.is_some() {
            return Err("--through-client makes no sense with --rate or --history".to_owned());
        }
        if self.move_shards.or(self.timeline).is_some() {
            let flags = "--move-shards or --timeline";
            return Err(format!("--through-client makes no sense with {flags}"));
        }
        if self.aborted == Aborted::Drop {
            return Err("--through-client makes no sense with --aborted drop".to_owned());
        }
        let per_cn = self.threads * (self.coroutines + SPARE_COROUTINES);
        if per_cn > MAX_COROUTINES_PER_CN {
            return Err(format!(
                "{} threads of {} coroutines, and {} more for applications, are more than the \
                 {MAX_COROUTINES_PER_CN} that one compute node can have",
                self.threads, self.coroutines, SPARE_COROUTINES
            ));
        }
        Ok(())
    }

    /// The profile of a simulated cluster.
    fn profile(&self) -> Option<String> {
        let default = || DEFAULT_PROFILE.to_owned();
        (self.fabric == Fabric::Sim).then(|| self.profile.clone().unwrap_or_else(default))
    }

    /// Converts the flags to options of the harness.
    pub fn options(&self) -> Options {
        Options {
            cluster: ClusterConfig {
                engine: self.engine.engine,
                baseline: self.engine.config(),
                fabric: self.fabric,
                profile: self.profile(),
                cns: self.cns,
                threads: self.threads,
                coroutines: self.coroutines,
                mns: self.mns,
                replicas: self.replicas,
                versions: self.versions,
                inline: self.inline,
                read_rule: self.read_rule,
                lock_table_bytes: self.lock_table,
                vt_cache: self.vt_cache as usize,
                address_cache: self.engine.addresses(self.address_cache),
                sharding: self.sharding,
                locks: self.locks,
                lock_wait: self.lock_wait,
                timestamps: self.timestamps,
                visible: self.visible,
                retain_versions: self.retain_versions,
                balance_us: self.balance.map(|ms| ms * 1_000),
                horizon_us: ClusterConfig::default().horizon_us,
                name_bits: ClusterConfig::default().name_bits,
                name_seed: ClusterConfig::default().name_seed,
                lease_us: self.lease.map(|ms| ms * 1_000),
                memory_limit_bytes: self.memory_limit,
            },
            load: LoadConfig {
                isolation: self.isolation,
                other_isolation: 0.0,
                routing: match self.engine.engine {
                    Engine::Lotus => self.routing,
                    _ => Routing::Random,
                },
                aborted: self.aborted,
                secs: self.secs(),
                txns: self.txns,
                warmup_secs: warmup_secs(self.warmup, self.secs(), self.txns),
                rate_tps: self.rate,
                seed: self.seed,
                in_flight: self.through_client,
                move_us: self.move_shards.map(|ms| ms * 1_000),
                timeline_us: self.timeline.map(|ms| ms * 1_000),
            },
            audit: self.audit,
            floor: self.floor,
            history: self.history.is_some(),
        }
    }
}

/// Whether this build has a fabric.
pub const fn has(fabric: Fabric) -> bool {
    match fabric {
        Fabric::Local | Fabric::Shm | Fabric::Sim => true,
        Fabric::Tcp => cfg!(feature = "tcp"),
        Fabric::Rdma => cfg!(feature = "rdma"),
    }
}

/// Error message for a fabric that this build does not have.
pub fn lacks(fabric: Fabric) -> String {
    match fabric {
        Fabric::Rdma => "the rdma fabric is not available in this build; it needs the feature \
                         rdma: cargo build --release --features rdma"
            .to_owned(),
        other => format!("the {} fabric is not available in this build", other.name()),
    }
}
