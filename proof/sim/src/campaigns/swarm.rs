//! Random scenarios from seeds: a seed draws sizes, workload, isolation, and kinds and rates of
//! faults. Omitting most kinds of faults from most runs finds more than a little of every kind in
//! all runs (Groce et al., "Swarm Testing", ISSTA 2012).

use std::time::Duration;

use lotus_benchmarks::config::{
    Inline, LockWait, Locks, ReadRule, Retention, Routing, Timestamps, Visible,
};
use lotus_benchmarks::engine::Isolation;
use lotus_benchmarks::tpcc::Critical;
use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::{Fault, MemoryFate, Rates, Scheduled, When};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::scenario::authority::{AuthorityDelays, Silence, Starts};
use crate::scenario::format::{Load, Network, Scenario, Topology, Workload};
use crate::scenario::lives::Lives;
use crate::scenario::memory_returns;
use crate::scenario::pairs::{Pairs, SHORTEST};
use crate::scenario::room::{FEWEST_SLABS, groups_used, loaded_slabs};

/// Maximum slowness of a node's NIC or cores where nodes have leases, in percent.
const SLOW_PERCENT: u32 = 300;

/// Share of seeds that try to fill memory; a third of these seeds cannot.
const FILLS_MEMORY: f64 = 0.15;

/// Bits of names where hundreds of rows fill memory: chains have room for about 200 rows of a name.
const FEWEST_BITS_OF_MANY: u32 = 10;
/// Share of seeds in which many rows share a name.
const SHARES_NAMES: f64 = 0.3;
/// Share of seeds in which extra tables are created and dropped.
const DROPS_TABLES: f64 = 0.25;
/// Share of seeds in which a cluster leads several lives.
const LEADS_LIVES: f64 = 0.2;
/// Share of seeds with snapshots and table scans, independent of writes and losses.
const TAKES_SNAPSHOTS: f64 = 0.25;
/// Share of seeds with endless transactions.
const NEVER_ENDS: f64 = 0.3;
/// Share of seeds in which two compute nodes do not reach each other for a while.
const CUTS_PATHS: f64 = 0.5;

/// The scenario of a seed.
pub fn scenario(seed: u64) -> Scenario {
    draw(seed, None)
}

/// The scenario of a seed with the given locks, without settings that conflict with them. Equal to
/// [`scenario`] if the seed draws the same locks.
pub fn with_locks(seed: u64, locks: Locks) -> Scenario {
    draw(seed, Some(locks))
}

/// The scenario of a seed, with the `given` locks, if any, in place of the drawn locks.
fn draw(seed: u64, given: Option<Locks>) -> Scenario {
    // A separate random stream; the world's streams of the seed are unchanged.
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x5157_A12D);
    let patient = rng.random_bool(0.15);
    let mut cluster = topology(&mut rng);
    // The kind of locks on memory nodes is drawn separately.
    cluster.locks = match given {
        None => cluster.locks,
        Some(Locks::Lotus) => Locks::Lotus,
        Some(_) => Locks::Cas,
    };
    let workload = workload(&mut rng);
    let load = load(&mut rng, patient, &workload);
    // Long pauses need long runs, which are affordable only with few transactions per second.
    let (storm_us, calm_us) = if patient {
        (rng.random_range(200_000..3_000_000), 500_000)
    } else {
        (rng.random_range(500..6_000), rng.random_range(4_000..8_000))
    };
    let network = Network {
        profile: pick(&mut rng, &["cx3-56g", "cx3-56g", "ideal"]).to_string(),
        verb_timeout_us: pick(&mut rng, &[100, 400, 1_500]),
    };
    let rates = rates(&mut rng);
    let mut scenario = Scenario {
        name: format!("swarm-{seed}"),
        story: String::new(),
        hazards: Vec::new(),
        storm_us,
        calm_us,
        cluster,
        workload,
        load,
        network,
        rates,
        schedule: Vec::new(),
        strikes: Vec::new(),
        steady: false,
        authority: AuthorityDelays::default(),
        lives: Lives::default(),
    };
    let drawn = schedule(&mut rng, &scenario);
    scenario.schedule = drawn.concat();
    scenario.cluster.shards = pick(&mut rng, &[1, 16, 500]);
    if matches!(scenario.workload, Workload::Tpcc { .. }) {
        // A delivery alone would fill the smaller lock tables.
        scenario.cluster.lock_table_bytes = 1 << 16;
    }
    scenario.cluster.retain_versions =
        pick(&mut rng, &[Retention::On, Retention::On, Retention::Off]);
    scenario.cluster.horizon_us = pick(&mut rng, &[10, 100, 1_000]);
    scenario.load.impatience = pick(&mut rng, &[0.0, 0.0, 0.0, 0.2]);
    scenario.cluster.version_table_cache = pick(&mut rng, &[0, 8, 64, 1_000]);
    // Losses with locks on memory nodes are drawn separately.
    let draws_losses = scenario.cluster.locks == Locks::Lotus;
    if rng.random_bool(0.4) && draws_losses {
        lose_nodes(&mut rng, &mut scenario);
    }
    if rng.random_bool(0.4) && scenario.cluster.locks == Locks::Lotus {
        scenario.cluster.moves_us = (storm_us / rng.random_range(2..=20)).max(50);
        scenario.cluster.balance_us = pick(&mut rng, &[0, 100, 400]);
        scenario.cluster.drain_us = pick(&mut rng, &[10, 100, 1_000]);
    }
    if rng.random_bool(0.4) && draws_losses {
        lose_memory(&mut rng, &mut scenario);
    }
    if rng.random_bool(0.5) && draws_losses {
        return_memory(&mut rng, &mut scenario);
    }
    draw_apart(seed, given, drawn, &mut scenario);
    scenario
}

/// Draws settings added later, each from a separate random stream, so that the earlier draws of a
/// seed are unchanged.
fn draw_apart(
    seed: u64,
    given: Option<Locks>,
    drawn: Vec<Vec<Scheduled>>,
    scenario: &mut Scenario,
) {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x71C4_E7D5);
    if scenario.cluster.locks == Locks::Cas && rng.random() {
        scenario.cluster.locks = Locks::Dslr;
    }
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x5417_DEC0);
    if scenario.cluster.locks != Locks::Lotus {
        let drawn = scenario.cluster.locks;
        let drawn = pick(&mut rng, &[drawn, Locks::ShiftLock, Locks::Declock]);
        scenario.cluster.locks = given.unwrap_or(drawn);
        if rng.random_bool(0.5) {
            lose_nodes(&mut rng, scenario);
        }
        if rng.random_bool(0.3) {
            lose_memory(&mut rng, scenario);
        }
        if rng.random_bool(0.4) {
            return_memory(&mut rng, scenario);
        }
    }
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xD157_A9CE);
    // Without a lease no question is asked.
    if scenario.cluster.lease_us > 0 && rng.random_bool(0.6) {
        scenario.authority = delays(&mut rng, scenario);
    }
    if scenario.cluster.lease_us > 0 && rng.random_bool(0.6) {
        put_back(drawn, scenario);
    }
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x57A2_7ED5);
    if rng.random_bool(0.2) {
        scenario.authority.starts = starts(&mut rng);
    }
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x1A11_E0F5);
    scenario.cluster.inline = pick(&mut rng, &[Inline::Auto, Inline::Auto, Inline::Never]);
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x0DE2_4A17);
    if scenario.cluster.locks == Locks::Lotus {
        scenario.cluster.lock_wait = pick(&mut rng, &[LockWait::Ordered, LockWait::None]);
    }
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x7AB1_E5D0);
    if rng.random_bool(DROPS_TABLES) {
        scenario.cluster.drops_us = (scenario.storm_us / rng.random_range(4..40)).max(50);
        // Enough for the workload and for the slabs that each coordinator takes for two tables.
        scenario.cluster.group_slabs *= 2;
    }
    // Small enough for the integers of TOML.
    scenario.cluster.name_seed = seed & u64::from(u32::MAX);
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x7714_4A3E);
    if rng.random_bool(SHARES_NAMES) {
        // A chain has room for about 200 rows of a name. Half of the bits are the shard's.
        let bits = match scenario.workload {
            Workload::Tpcc { .. } => [16, 18],
            Workload::Tatp { .. } => [8, 10],
            _ => [4, 7],
        };
        scenario.cluster.name_bits = pick(&mut rng, &bits);
    }
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xC077_9A75);
    if rng.random_bool(CUTS_PATHS) {
        cut_a_path(&mut rng, scenario);
    }
    draw_company(seed, scenario);
}

/// Draws activities beside the clients of a seed: rows that fill memory, snapshots, endless
/// transactions, further clusters.
fn draw_company(seed: u64, scenario: &mut Scenario) {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xF177_0F01);
    let fills_memory = rng.random_bool(FILLS_MEMORY) && fill_memory(&mut rng, scenario);
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x5AA9_0741);
    // Versions kept for a snapshot would fill the memory before the rows do.
    if rng.random_bool(TAKES_SNAPSHOTS) && !fills_memory {
        scenario.cluster.snapshots_us = (scenario.storm_us / rng.random_range(10..60)).max(50);
        // A snapshot begins after about 16 intervals.
        scenario.cluster.horizon_us = pick(&mut rng, &[5, 10, scenario.cluster.horizon_us]);
        scenario.cluster.group_slabs *= 2;
    }
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xE2D1_E551);
    if rng.random_bool(NEVER_ENDS) {
        scenario.cluster.endless_us = (scenario.storm_us / rng.random_range(5..40)).max(50);
    }
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x11FE_D4A7);
    if rng.random_bool(LEADS_LIVES) {
        scenario.lives = lives(&mut rng);
    }
}

/// Successive lives, with tables that keep growing.
fn lives(rng: &mut SmallRng) -> Lives {
    Lives {
        lives: rng.random_range(2..=4),
        loaded: pick(rng, &[0, 0, 30]),
        rows: pick(rng, &[20, 60, 120]),
        value_bytes: pick(rng, &[8, 900, 900, 2_000]),
        clients: pick(rng, &[2, 4, 16, 64]),
        returns: pick(rng, &[0, 0, 1, 2]),
    }
}

/// The scenario of a seed, changed to fill memory; `None` if the scenario cannot.
pub fn with_full_memory(seed: u64) -> Option<Scenario> {
    let mut scenario = scenario(seed);
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xF177_0F02);
    fill_memory(&mut rng, &mut scenario).then_some(scenario)
}

/// Makes inserts fill the memory, beside everything else that was drawn; deletions and updates make
/// room again. False if the scenario cannot fill memory: other locks than the protocol's never free
/// slots, and few transactions fill nothing.
fn fill_memory(rng: &mut SmallRng, scenario: &mut Scenario) -> bool {
    let cluster = &mut scenario.cluster;
    if cluster.locks != Locks::Lotus || scenario.load.rate_tps.is_some() {
        return false;
    }
    // Rows for the same number of slabs; a slab holds 31 or 63 rows.
    let (record_bytes, scale) = pick(rng, &[(8192, 1), (8192, 1), (4096, 2)]);
    let pairs = pick(rng, &[60, 80, 120]) * scale * groups_used(cluster);
    // Deleted rows must be free long before the end of the run.
    cluster.horizon_us = cluster.horizon_us.min(100);
    if cluster.name_bits < u64::BITS {
        cluster.name_bits = cluster.name_bits.max(FEWEST_BITS_OF_MANY);
    }
    scenario.workload = Workload::Pairs { pairs, made_for: 0, record_bytes };
    scenario.load.isolation = Isolation::Serializable;
    scenario.load.other_isolation = 0.0;
    let spare = rng.random_range(0..=2);
    let workload = Pairs::new(pairs, 0, record_bytes);
    let loaded = loaded_slabs(&workload, &scenario.cluster_config(), scenario.cluster.shards);
    let most = loaded.into_iter().max().unwrap_or(0);
    scenario.cluster.group_slabs = (most + spare).max(FEWEST_SLABS);
    true
}

/// Adds the faults `drawn` before losses were, unless a node that must stay would lose its lease.
fn put_back(drawn: Vec<Vec<Scheduled>>, scenario: &mut Scenario) {
    for mut entries in drawn {
        for entry in &mut entries {
            if let Fault::SlowNic { percent, .. } | Fault::SlowCores { percent, .. } =
                &mut entry.fault
            {
                *percent = (*percent).min(SLOW_PERCENT);
            }
        }
        let before = scenario.schedule.len();
        scenario.schedule.extend(entries);
        if scenario.check().is_err() {
            scenario.schedule.truncate(before);
        }
    }
}

/// An authority that answers late, loses some questions and answers, and is silent now and then.
fn delays(rng: &mut SmallRng, scenario: &Scenario) -> AuthorityDelays {
    let silence = |rng: &mut SmallRng| Silence {
        at_us: rng.random_range(0..scenario.storm_us),
        lasting_us: rng.random_range(0..3 * scenario.cluster.lease_us),
    };
    let silences = (0..rng.random_range(0..=2)).map(|_| silence(rng)).collect();
    AuthorityDelays {
        delay_max_us: pick(rng, &[0, 5, 20, 60]),
        loss: pick(rng, &[0.0, 0.05, 0.3]),
        patience_us: pick(rng, &[50, 200]),
        silences,
        ..AuthorityDelays::default()
    }
}

/// Start of processes, with faults at their questions.
fn starts(rng: &mut SmallRng) -> Starts {
    Starts {
        processes: rng.random_range(2..=4),
        loss: pick(rng, &[0.0, 0.05, 0.2]),
        pauses: pick(rng, &[0.0, 0.1, 0.3]),
        pause_max_us: pick(rng, &[1_000, 30_000, 150_000]),
        kills: pick(rng, &[0.0, 0.02, 0.1]),
        // Drawn last; earlier draws are unchanged.
        memory_loss: pick(rng, &[0.0, 0.0, 0.01, 0.05]),
    }
}

/// Adds crashes of memory nodes, or times in which memory nodes are out of reach, as long as every
/// row keeps a copy. Now and then a single compute node does not reach a memory node.
fn lose_memory(rng: &mut SmallRng, scenario: &mut Scenario) {
    let Topology { memory_nodes, compute_nodes, lease_us, .. } = scenario.cluster;
    if lease_us == 0 {
        expect_losses(rng, scenario);
    }
    for _ in 0..rng.random_range(1..=2) {
        let when = When::At(Duration::from_micros(rng.random_range(0..scenario.storm_us)));
        let node = NodeId(rng.random_range(0..memory_nodes) as u16);
        let fault = match rng.random_range(0..4) {
            0 => Fault::Isolate { node },
            1 => {
                let compute = NodeId((memory_nodes + rng.random_range(0..compute_nodes)) as u16);
                Fault::Cut { from: compute, to: node }
            }
            _ => Fault::Crash { node, memory: MemoryFate::Lost },
        };
        scenario.schedule.push(Scheduled { when, fault });
        if scenario.check().is_err() {
            scenario.schedule.pop();
        }
    }
}

/// Restarts memory nodes that lose all data, for refilling while load and other faults go on: nodes
/// with a planned crash, and others, now and then more than once, or in turn.
fn return_memory(rng: &mut SmallRng, scenario: &mut Scenario) {
    if scenario.cluster.lease_us == 0 {
        expect_losses(rng, scenario);
    }
    if let Workload::Tpcc { warehouses, customers_per_district, items, .. } = &mut scenario.workload
    {
        // Filling all data of a larger scale takes longer than the run.
        (*warehouses, *customers_per_district, *items) = (1, 1, 3);
    }
    // Filling takes several leases, and a second loss several more.
    scenario.storm_us += rng.random_range(0..12_000);
    for node in (0..scenario.first_compute_node().0).map(NodeId) {
        for _ in 0..rng.random_range(0..=2) {
            let away = memory_returns::stays_away(scenario, node);
            let random = Duration::from_micros(rng.random_range(0..scenario.storm_us));
            let at = away.unwrap_or(random);
            let back = at + (scenario.storm() - at).mul_f64(rng.random());
            let crash = (at, Fault::Crash { node, memory: MemoryFate::Lost });
            let faults = away.is_none().then_some(crash);
            let before = scenario.schedule.len();
            for (at, fault) in faults.into_iter().chain([(back, Fault::Restart { node })]) {
                scenario.schedule.push(Scheduled { when: When::At(at), fault });
            }
            if scenario.check().is_err() {
                scenario.schedule.truncate(before);
            }
        }
    }
}

/// Adds crashes of compute nodes and pauses longer than their lease, sparing at least one node.
/// Faults that might cost other nodes their leases are omitted.
fn lose_nodes(rng: &mut SmallRng, scenario: &mut Scenario) {
    let Topology { compute_nodes, .. } = scenario.cluster;
    if compute_nodes < 2 {
        return;
    }
    expect_losses(rng, scenario);
    let first = scenario.first_compute_node().0;
    let spared = rng.random_range(0..compute_nodes as u16);
    for node in (0..compute_nodes as u16).filter(|node| *node != spared) {
        if rng.random_bool(0.3) {
            continue;
        }
        let node = NodeId(first + node);
        let when = match rng.random_range(0..3) {
            0 => When::AfterVerbs { node, count: rng.random_range(1..3_000) },
            1 => When::AfterMessages { node, count: rng.random_range(1..500) },
            _ => When::At(Duration::from_micros(rng.random_range(0..scenario.storm_us))),
        };
        let fault = if rng.random_bool(0.4) {
            Fault::Pause { node, lasting: Duration::from_micros(rng.random_range(100..4_000)) }
        } else {
            Fault::Crash { node, memory: MemoryFate::Kept }
        };
        let crashes = matches!(fault, Fault::Crash { .. });
        scenario.schedule.push(Scheduled { when, fault });
        if (crashes && rng.random_bool(0.6)) || rng.random_bool(0.1) {
            // Before the crash, within the lease or after it: the node's running process then ends.
            let at = Duration::from_micros(rng.random_range(0..scenario.storm_us));
            let fault = Fault::Restart { node };
            scenario.schedule.push(Scheduled { when: When::At(at), fault });
        }
    }
}

/// Cuts a path between two compute nodes for a while, one way or both, as long as a node without
/// any fault is left.
fn cut_a_path(rng: &mut SmallRng, scenario: &mut Scenario) {
    let Topology { memory_nodes, compute_nodes, .. } = scenario.cluster;
    if compute_nodes < 2 {
        return;
    }
    let place = |number: usize| NodeId((memory_nodes + number) as u16);
    let one = rng.random_range(0..compute_nodes);
    let other = (one + rng.random_range(1..compute_nodes)) % compute_nodes;
    let at = Duration::from_micros(rng.random_range(0..scenario.storm_us));
    let mended = at + (scenario.storm() - at).mul_f64(rng.random());
    let mut ways = vec![(place(one), place(other))];
    if rng.random() {
        ways.push((place(other), place(one)));
    }
    let before = scenario.schedule.len();
    for (from, to) in ways {
        let mut add = |at, fault| scenario.schedule.push(Scheduled { when: When::At(at), fault });
        add(at, Fault::Cut { from, to });
        add(mended, Fault::Mend { from, to });
    }
    if scenario.check().is_err() {
        scenario.schedule.truncate(before);
    }
}

/// Gives the nodes a lease, and removes for now the faults that might let too many nodes lose their
/// leases.
fn expect_losses(rng: &mut SmallRng, scenario: &mut Scenario) {
    scenario.cluster.lease_us = pick(rng, &[500, 800]);
    scenario.network.verb_timeout_us = 100;
    scenario.rates.verb_delay_max = scenario.rates.verb_delay_max.min(Duration::from_micros(50));
    // A batch of many torn READs would delay beats for longer than a lease.
    scenario.rates.tear_span = scenario.rates.tear_span.min(Duration::from_micros(1));
    scenario.schedule.clear();
}

fn pick<T: Copy>(rng: &mut SmallRng, from: &[T]) -> T {
    from[rng.random_range(0..from.len())]
}

fn topology(rng: &mut SmallRng) -> Topology {
    let memory_nodes = rng.random_range(1..=4);
    Topology {
        compute_nodes: rng.random_range(1..=4),
        threads: rng.random_range(1..=2),
        coroutines: rng.random_range(1..=4),
        memory_nodes,
        replicas: rng.random_range(1..=memory_nodes.min(3)),
        versions: rng.random_range(2..=4),
        shards: 16,
        lock_table_bytes: pick(rng, &[1 << 10, 1 << 14, 1 << 16]),
        version_table_cache: 64,
        locks: pick(rng, &[Locks::Lotus, Locks::Lotus, Locks::Lotus, Locks::Cas]),
        timestamps: pick(rng, &[Timestamps::Clock, Timestamps::Oracle]),
        visible: pick(rng, &[Visible::BackupsFirst, Visible::BackupsFirst, Visible::AllAtOnce]),
        read_rule: pick(rng, &[ReadRule::Latest, ReadRule::Latest, ReadRule::Snapshot]),
        commit_timeout_us: pick(rng, &[1_000, 5_000, 20_000]),
        lock_timeout_us: pick(rng, &[500, 2_000]),
        ..Topology::default()
    }
}

fn workload(rng: &mut SmallRng) -> Workload {
    match rng.random_range(0..6) {
        0 => Workload::Kvs {
            keys: pick(rng, &[1, 4, 30, 200]),
            update_ratio: pick(rng, &[0.2, 0.5, 0.9]),
            zipf: pick(rng, &[0.0, 0.99]),
            hotspot: None,
        },
        1 => Workload::Smallbank {
            accounts: pick(rng, &[2, 6, 40]),
            hot_accounts: pick(rng, &[0, 2]),
            hot_ratio: 0.5,
        },
        2 => Workload::Tatp { subscribers: pick(rng, &[1, 3, 20, 200]) },
        3 => Workload::Tpcc {
            warehouses: pick(rng, &[1, 3]),
            customers_per_district: pick(rng, &[1, 5, 20]),
            items: pick(rng, &[3, 50]),
            critical_field: pick(
                rng,
                &[Critical::Warehouse, Critical::District, Critical::Customer],
            ),
            ordered: rng.random(),
        },
        4 => Workload::Bins { bins: pick(rng, &[1, 5, 20, 60]) },
        _ => {
            let (pairs, made_for) = pick(rng, &[(1, 0), (3, 0), (20, 0), (100, 3)]);
            Workload::Pairs { pairs, made_for, record_bytes: SHORTEST }
        }
    }
}

fn load(rng: &mut SmallRng, patient: bool, workload: &Workload) -> Load {
    let pure = matches!(workload, Workload::Pairs { .. } | Workload::Bins { .. });
    let isolation = pick(rng, &[Isolation::Serializable, Isolation::Snapshot]);
    Load {
        isolation: if pure { Isolation::Serializable } else { isolation },
        other_isolation: if pure { 0.0 } else { pick(rng, &[0.0, 0.0, 0.3]) },
        impatience: 0.0,
        routing: pick(rng, &[Routing::Hybrid, Routing::Random]),
        rate_tps: patient.then(|| pick(rng, &[300.0, 1_000.0])),
    }
}

fn rates(rng: &mut SmallRng) -> Rates {
    let share =
        |rng: &mut SmallRng, of: &[f64]| if rng.random_bool(0.4) { pick(rng, of) } else { 0.0 };
    let micros = |rng: &mut SmallRng, of: &[u64]| Duration::from_micros(pick(rng, of));
    Rates {
        message_loss: share(rng, &[0.01, 0.1, 0.3]),
        message_duplication: share(rng, &[0.01, 0.1, 0.3]),
        message_delay: share(rng, &[0.05, 0.3]),
        message_delay_max: micros(rng, &[20, 300, 3_000]),
        verb_delay: share(rng, &[0.002, 0.02]),
        verb_delay_max: micros(rng, &[50, 1_000, 4_000]),
        torn_writes: share(rng, &[0.1, 1.0]),
        torn_reads: share(rng, &[0.1, 1.0]),
        tear_span: micros(rng, &[1, 10, 40]),
    }
}

/// Up to four faults at random times of the storm, each with its end, if any.
fn schedule(rng: &mut SmallRng, scenario: &Scenario) -> Vec<Vec<Scheduled>> {
    let count = rng.random_range(0..=4);
    let (memory, compute) = (scenario.cluster.memory_nodes, scenario.cluster.compute_nodes);
    let mut schedule = Vec::new();
    for _ in 0..count {
        let at = Duration::from_micros(rng.random_range(0..scenario.storm_us));
        let lasting = (scenario.storm() - at).mul_f64(rng.random::<f64>());
        let any = NodeId(rng.random_range(0..memory + compute) as u16);
        let other = NodeId(rng.random_range(0..memory + compute) as u16);
        let node = NodeId((memory + rng.random_range(0..compute)) as u16);
        let fault = match rng.random_range(0..8) {
            0 => Fault::Cut { from: any, to: other },
            1 => Fault::Isolate { node: any },
            2 => Fault::Stall { from: node, to: any, lasting },
            3 | 4 => Fault::Pause { node, lasting },
            5 => Fault::SlowNic { node: any, percent: pick(rng, &[300, 3_000]) },
            6 => Fault::SlowCores { node, percent: pick(rng, &[300, 3_000]) },
            _ => {
                let nanos = pick(rng, &[1_000, 1_000_000, 10_000_000_000]);
                Fault::ClockJump { node, nanos: if rng.random() { nanos } else { -nanos } }
            }
        };
        let end = match fault {
            Fault::Cut { from, to } => Some(Fault::Mend { from, to }),
            Fault::Isolate { node } => Some(Fault::Rejoin { node }),
            _ => None,
        };
        let begins = Scheduled { when: When::At(at), fault };
        let when = When::At(at + lasting);
        let ends = end.map(|fault| Scheduled { when, fault });
        schedule.push([Some(begins), ends].into_iter().flatten().collect());
    }
    schedule
}

#[cfg(test)]
mod tests;
