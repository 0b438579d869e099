//! Flags of `lotus-lab bench locks` and `lotus-lab bench objects`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use lotus_benchmarks::config::Fabric;
use lotus_benchmarks::zipf::KeyChooser;
use lotus_locks::systems::ShiftLock;
use lotus_locks::word::DeclockFields;
use lotus_locksystems::LockSpec;
use lotus_locksystems::fisslock::Preference;
use lotus_locksystems::local::Policy;

use lotus_runner::args::common::FABRICS;
use lotus_runner::args::values::{
    count, millis, one_of, positive_secs, ratio, run_secs, secs, skew, warmup_secs,
};

/// Preferences of FissLock, by their names.
const PREFERENCES: &[(&str, Preference)] =
    &[("readers", Preference::Readers), ("writers", Preference::Writers)];

/// A lock system, and its options.
#[derive(Clone, Debug, Args)]
pub struct SystemArgs {
    /// Lock system: cas, cas-rw, dslr, dslr+, dslr-u, mcs, rma-rw, drtm, ncosed, shiftlock,
    /// shiftlock-wide, declock. For lotus-lab bench locks, lock-trace and bank also locks kept by
    /// servers: srvlock, parlock, parlock-local (each node keeps a block), rpc, traditional,
    /// traditional-ro, netlock, redlock; and locks granted by a switch: fisslock, fisslock-local
    /// (each machine is the home of a block), or fisslock+parlock, for more locks than fit in a
    /// switch.
    #[arg(long, value_name = "NAME", default_value = "dslr")]
    pub lock: LockSpec,
    /// Addresses of real Redis servers for redlock; a lock is held on a majority of the servers. On
    /// every fabric but sim [default: a node that acts as one server].
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', value_parser = address)]
    pub redis: Vec<SocketAddr>,
    /// Time to live of the keys of redlock, in milliseconds [default: 10000, or 10 in a bank].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(5..=600_000))]
    pub ttl_ms: Option<u64>,
    /// Requests that fisslock and fisslock-local prefer: readers, which join the holders of a lock
    /// although a writer waits, for 100 us; or writers, which no reader passes [default: readers].
    #[arg(long, value_name = "readers|writers", value_parser = one_of(PREFERENCES))]
    pub prefer: Option<Preference>,
    /// Racks of fisslock and fisslock-local, each with a switch that has a part of the locks, and
    /// of the compute nodes [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=255))]
    pub racks: Option<u16>,
    /// The clients of a node share its locks, and ask for them together: remote-prefer,
    /// local-prefer, local-bound:K, ts-tf, ts-pf (the last two with declock) [default: each client
    /// for itself].
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<Policy>,
    /// Locks as published: without resets, and without fencing.
    #[arg(long)]
    pub as_published: bool,
    /// Truncated exponential back-off, for cas, cas-rw and drtm.
    #[arg(long)]
    pub backoff: bool,
    /// Writers of cas-rw release by compare-and-swap.
    #[arg(long)]
    pub release_by_swap: bool,
    /// dslr: time between two looks for each ticket ahead, in microseconds; 0 for no pause.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub poll_us: u64,
    /// dslr and dslr+ as published: term of a lease, in microseconds.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub lease_us: u64,
    /// dslr and dslr+: bound of the random back-off while counters are set back, in microseconds.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub again_us: u64,
    /// shiftlock, shiftlock-wide: writers that hold a lock one after another before readers have
    /// it.
    #[arg(long, value_name = "N", default_value_t = ShiftLock::THRESHOLD)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4095))]
    pub threshold: u16,
    /// declock: entries of the queue of each lock, a power of two from 2 to 2048 [default: 8, or as
    /// many as there are clients, or with --policy compute nodes].
    #[arg(long, value_name = "N", value_parser = queue_entries)]
    pub queue_entries: Option<u32>,
}

/// Clients of locks, and the machines that they run on.
#[derive(Clone, Debug, Args)]
pub struct LockRunArgs {
    /// Fabric that connects the nodes: local, shm (the memory node is a process), tcp or sim.
    #[arg(long, default_value = "local", value_parser = one_of(FABRICS))]
    pub fabric: Fabric,
    /// Network cards, links and cores of the simulated fabric: a built-in profile, or a file
    /// [default: cx3-56g, or tofino-cx5 where servers keep the locks].
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<String>,
    /// Simulated delay of messages between compute nodes, in nanoseconds [default: the profile's].
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub cn_cn_ns: Option<u64>,
    /// Loses the last compute node this long after the start of the clients, in milliseconds; on
    /// sim.
    #[arg(long, value_name = "N", value_parser = millis)]
    pub lose_ms: Option<f64>,
    /// Compute nodes.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = count(64))]
    pub cns: usize,
    /// Lanes of each compute node.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count(64))]
    pub threads: usize,
    /// Clients of each lane.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count(256))]
    pub coroutines: usize,
    /// Time in which requests count, in seconds [default: 5; 86400 with --ops].
    #[arg(long, value_name = "SECONDS", value_parser = positive_secs)]
    pub secs: Option<f64>,
    /// Ends the run after about this many operations (of traces and banks: transactions): each lane
    /// does an equal share. There is no warm-up, and --secs is a bound.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(conflicts_with = "warmup")]
    pub ops: Option<u64>,
    /// Warm-up before the counted time, in seconds [default: a tenth of --secs, at most 1].
    #[arg(long, value_name = "SECONDS", value_parser = secs)]
    pub warmup: Option<f64>,
    /// Seed of all randomness.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Makes no audit: that nobody held two, that no update was lost, that all locks are free.
    #[arg(long)]
    pub no_audit: bool,
    /// Writes the result as JSON to a file; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Shows no progress: the caller shows its own.
    #[arg(skip)]
    pub quiet: bool,
    /// Serves the run's progress at a socket, for lotus top: a line of JSON four times a second.
    #[arg(long, value_name = "SOCKET")]
    pub live: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct LocksArgs {
    #[command(flatten)]
    pub system: SystemArgs,
    /// Locks.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=KeyChooser::MAX_KEYS))]
    pub count: u64,
    /// Skew of the locks' popularity; 0 is uniform.
    #[arg(long, value_name = "THETA", default_value_t = 0.99, value_parser = skew)]
    pub zipf: f64,
    /// Number of hot locks at a time, instead of that skew; all other locks are equally popular.
    #[arg(long, value_name = "N", conflicts_with = "zipf")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub hot_locks: Option<u64>,
    /// Share of requests for hot locks.
    #[arg(long, value_name = "RATIO", default_value_t = 0.5, value_parser = ratio)]
    #[arg(requires = "hot_locks")]
    pub hot_share: f64,
    /// Interval after which the next locks are hot, in microseconds; 0 for never.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "hot_locks")]
    pub hot_every_us: u64,
    /// Share of requests that read.
    #[arg(long, value_name = "RATIO", default_value_t = 0.5, value_parser = ratio)]
    pub read_ratio: f64,
    /// Share of the other requests that take an update lock, and upgrade it in the middle.
    #[arg(long, value_name = "RATIO", default_value_t = 0.0, value_parser = ratio)]
    pub update_ratio: f64,
    /// Verbs while a lock is held: READs of a reader, WRITEs of a writer.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=1000))]
    pub critical_section: u32,
    /// Bytes of each verb; a multiple of 8.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = object_bytes)]
    pub object_bytes: u64,
    /// Time after which a request is given up, in microseconds [default: never].
    #[arg(long, value_name = "N")]
    pub patience_us: Option<u64>,
    /// Time between a release and a client's next request, in microseconds.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub think_us: u64,
    /// Share of holders that fail, and release nothing; dslr, dslr+, shiftlock and shiftlock-wide
    /// as published continue.
    #[arg(long, value_name = "RATIO", default_value_t = 0.0, value_parser = ratio)]
    pub failing: f64,
    /// Share of requests that read for long.
    #[arg(long, value_name = "RATIO", default_value_t = 0.0, value_parser = ratio)]
    pub long_reads: f64,
    /// Time for which long reads hold the lock, in microseconds.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub long_us: u64,
    /// Number of locks, from the end, that clients acquire at the start and hold to the end;
    /// requests are for the other locks. For locks kept by servers or granted by a switch, without
    /// an audit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub held_locks: u64,
    /// Lease terms that long reads ask for.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub long_terms: u16,
    #[command(flatten)]
    pub run: LockRunArgs,
}

impl LockRunArgs {
    /// Time in which requests count, in seconds.
    pub fn secs(&self) -> f64 {
        run_secs(self.secs, 5.0, self.ops)
    }

    /// Warm-up, in seconds.
    pub fn warmup_secs(&self) -> f64 {
        warmup_secs(self.warmup, self.secs(), self.ops)
    }

    /// Time from the start of the clients to the loss of the last compute node; `None` without a
    /// loss.
    pub fn loses(&self) -> Option<Duration> {
        self.lose_ms.map(|millis| Duration::from_secs_f64(millis / 1000.0))
    }
}

/// Parameters of a trace of Twitter's caches in DecLock's object stores (Fig. 17): bytes of an
/// object, rounded up to words, and share of gets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Trace {
    pub bytes: u64,
    pub gets: f64,
}

const TRACES: &[(&str, Trace)] =
    &[("small", Trace { bytes: 416, gets: 0.65 }), ("large", Trace { bytes: 9216, gets: 0.89 })];

#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct ObjectsArgs {
    #[command(flatten)]
    pub system: SystemArgs,
    /// Objects of the small kind (414 bytes, 65 % gets), or of the large one (9,213 bytes, 89 %).
    #[arg(long, default_value = "small", value_parser = one_of(TRACES))]
    pub trace: Trace,
    /// Objects.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=KeyChooser::MAX_KEYS))]
    pub objects: u64,
    /// Bytes of an object, in place of the trace's; a multiple of 8.
    #[arg(long, value_name = "N", value_parser = object_bytes)]
    pub bytes: Option<u64>,
    /// Share of gets, in place of the trace's.
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub gets: Option<f64>,
    /// Skew of the objects' popularity; 0 is uniform.
    #[arg(long, value_name = "THETA", default_value_t = 0.99, value_parser = skew)]
    pub zipf: f64,
    #[command(flatten)]
    pub run: LockRunArgs,
}

/// Parses a server's address. If a name has several addresses, the first IPv4 address is taken,
/// otherwise the first address.
fn address(text: &str) -> Result<SocketAddr, String> {
    let wrong = |error| format!("no address of a server, as 127.0.0.1:6379 is: {error}");
    let found: Vec<_> = text.to_socket_addrs().map_err(wrong)?.collect();
    let found = found.iter().find(|address| address.is_ipv4()).or(found.first());
    found.copied().ok_or_else(|| "the name has no address".to_owned())
}

/// Parses the number of entries of a queue of `declock`.
fn queue_entries(text: &str) -> Result<u32, String> {
    let entries = text.parse().map_err(|_| "not a number".to_owned())?;
    let (least, most) = (DeclockFields::MIN_CAPACITY, DeclockFields::MAX_CAPACITY);
    match DeclockFields::fits(entries) {
        true => Ok(entries),
        false => Err(format!("a power of two, from {least} to {most}")),
    }
}

/// Parses the size of a verb: whole words, at most the maximum of one verb.
fn object_bytes(text: &str) -> Result<u64, String> {
    const MOST: u64 = 16 << 10;
    let bytes: u64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match bytes.is_multiple_of(8) && (8..=MOST).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("a multiple of 8, from 8 to {MOST}")),
    }
}
