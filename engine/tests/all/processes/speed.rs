//! Measures the outage after a process of compute nodes is killed, and the cost of filling a memory
//! node after its process was restarted, for `benches/processes.rs`. It only checks that nothing is
//! lost.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lotus::{
    Cluster, CoordinatorId, Isolation, MemoryStanding, PrimaryKey, Session, TableId, TableSpec,
    Threads, TxnError,
};
use lotus_authority::remote::{AuthorityServer, Security};
use lotus_fabric::env::Env;

use super::children::{Child, Role};
use super::{
    BALANCE, Kind, LEASE, MEMORY_NODES, Place, ROWS, assert_sound, poll_until, with_cluster,
};

/// Number of kills of a compute node's process.
const KILLS: usize = 15;
/// Number of kills and restarts of a memory node's process.
const RETURNS: usize = 7;
const LEASES_MS: &[u64] = &[20, 50, 200];
/// Lease while a memory node returns.
const FILLED_LEASE: Duration = Duration::from_millis(50);
const COROUTINES: u64 = 4;
const MANY: u64 = 100_000;
const ITEMS: TableSpec = TableSpec::new("items").record_bytes(64).capacity(MANY);
/// Length of a throughput measurement without any failure.
const WINDOW: Duration = Duration::from_millis(500);
/// Interval between checks for an event.
const PAUSE: Duration = Duration::from_millis(1);

/// Measures everything if `whole`; otherwise does one run of each, to see that it works.
pub fn measure(whole: bool) -> io::Result<()> {
    let (kills, returns) = if whole { (KILLS, RETURNS) } else { (1, 1) };
    let leases_ms = if whole { LEASES_MS } else { &[LEASE.as_millis() as u64] };
    let filled_lease = if whole { FILLED_LEASE } else { LEASE };
    let mut out = io::stdout();
    writeln!(out, "| a compute node is killed | median | least to most |\n|---|---|---|")?;
    for lease_ms in leases_ms {
        let lease = Duration::from_millis(*lease_ms);
        let took: Vec<f64> = (0..kills).map(|_| kill(lease)).collect();
        row(
            &mut out,
            &format!("lease of {lease_ms} ms: its rows are written again after, ms"),
            took,
        )?;
    }
    let all: Vec<Returned> = (0..returns).map(|_| fill(filled_lease)).collect();
    writeln!(out, "\n| a memory node is killed | median | least to most |\n|---|---|---|")?;
    let mut of = |what: &str, figure: fn(&Returned) -> f64| {
        row(&mut out, what, all.iter().map(figure).collect())
    };
    of("commits go on after, ms", |one| one.served_ms)?;
    of("started again, it gets every write after, ms", |one| one.joined_ms)?;
    of("it is filled after as many more, ms", |one| one.filled_ms)?;
    of("copied, MB", |one| one.bytes as f64 / 1e6)?;
    of("copied, MB/s", |one| one.bytes as f64 / one.filled_ms / 1e3)?;
    of("before, thousand txn/s", |one| one.before_tps / 1e3)?;
    of("without it, thousand txn/s", |one| one.without_tps / 1e3)?;
    of("while it is filled, thousand txn/s", |one| one.filling_tps / 1e3)?;
    of("afterwards, thousand txn/s", |one| one.after_tps / 1e3)
}

fn row(out: &mut impl Write, what: &str, mut values: Vec<f64>) -> io::Result<()> {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len() - 1;
    let [least, median, most] = [0, last / 2, last].map(|place| values[place]);
    writeln!(out, "| {what} | {median:.1} | {least:.1} to {most:.1} |")
}

/// Measures the time from the kill of a compute node's process until each of its rows has been
/// written again, detection included, in milliseconds.
fn kill(lease: Duration) -> f64 {
    let env = Env::real(0);
    let (place, _directory) = Place::new(Kind::Shm, Some(lease));
    let took_ms = Cell::new(0.0);
    with_cluster(&place, |transfer, other, total| {
        other.ask("transfer 20", "done");
        let killed_at = env.now();
        other.kill();
        for key in 0..ROWS {
            while transfer(key, (key + 1) % ROWS).is_err() {}
        }
        took_ms.set(env.now().since(killed_at).as_secs_f64() * 1e3);
        assert_eq!(total(), ROWS * BALANCE);
    });
    took_ms.get()
}

/// Measurements of a memory node's return.
struct Returned {
    served_ms: f64,
    joined_ms: f64,
    filled_ms: f64,
    bytes: u64,
    before_tps: f64,
    without_tps: f64,
    filling_tps: f64,
    after_tps: f64,
}

/// Kills a memory node's process beside transactions, and restarts it.
fn fill(lease: Duration) -> Returned {
    let (place, _directory) = Place::new(Kind::Shm, Some(lease));
    let env = Env::real(0);
    let server = AuthorityServer::start(place.authority(), &Security::default(), &env);
    let _server = server.expect("serves");
    let start = |node| Child::start(Role::Memory, &place, node);
    let mut memory: Vec<Child> = (0..MEMORY_NODES).map(start).collect();
    let machines = Threads::over(place.shm_fabric(MEMORY_NODES), env.clone());
    let cluster = place.builder(0).start_on(machines).expect("the settings are sound");
    let table = load(&cluster);
    let _other = Child::start(Role::Compute, &place, MEMORY_NODES + 1);
    let clients = Clients::start(&cluster, table, env);
    clients.throughput(WINDOW);
    let before_tps = clients.throughput(WINDOW);

    let lost = usize::from(MEMORY_NODES) - 1;
    let status = || cluster.memory_status().expect("the authority is in this process").nodes[lost];
    let killed_at = clients.env.now();
    memory[lost].kill();
    poll_until(PAUSE, "it is lost", || status() == MemoryStanding::Lost);
    let committed = clients.committed();
    poll_until(PAUSE, "commits go on", || clients.committed() > committed);
    let served_ms = clients.ms_since(killed_at);
    let without_tps = clients.throughput(WINDOW);

    let started_at = clients.env.now();
    memory[lost] = start(lost as u16);
    poll_until(PAUSE, "it joins", || status() != MemoryStanding::Lost);
    let (joined_ms, joined_at) = (clients.ms_since(started_at), clients.env.now());
    let committed = clients.committed();
    poll_until(PAUSE, "it is filled", || status() == MemoryStanding::Serving);
    let filled_ms = clients.ms_since(joined_at);
    let filling_tps = (clients.committed() - committed) as f64 / filled_ms * 1e3;
    let after_tps = clients.throughput(WINDOW);
    clients.stop();
    assert_sound(&cluster);
    // Each of them has a copy of everything.
    let bytes = cluster.memory_use().expect("memory nodes answer").replica_bytes;
    Returned {
        served_ms,
        joined_ms,
        filled_ms,
        bytes,
        before_tps,
        without_tps,
        filling_tps,
        after_tps,
    }
}

fn load(cluster: &Cluster) -> TableId {
    let table = cluster.create_table(ITEMS).expect("there is room");
    let row = |row: u64, value: &mut Vec<u8>| {
        value.extend([0; 64]);
        PrimaryKey::from(row)
    };
    cluster.load(table, MANY, &row, &AtomicU64::new(0)).expect("there is room");
    table
}

/// Load that keeps all coroutines of this process's compute node busy.
struct Clients {
    committed: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    running: Vec<lotus::Submitted<()>>,
    env: Env,
}

impl Clients {
    fn start(cluster: &Cluster, table: TableId, env: Env) -> Self {
        let (committed, over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let coordinator_id = CoordinatorId { compute_node: 0, thread: 0 };
        let client = |first: u64| {
            let (committed, over) = (Arc::clone(&committed), Arc::clone(&over));
            cluster.submit(coordinator_id, move |mut session| async move {
                let mut key = first;
                while !over.load(Ordering::Relaxed) {
                    // Steps of a prime meet every row, and no two coroutines at once.
                    key = (key + COROUTINES * 7_919) % MANY;
                    // Lost or in doubt: not counted.
                    match update(&mut session, table, key).await {
                        Ok(()) => _ = committed.fetch_add(1, Ordering::Relaxed),
                        // It may succeed again after a while.
                        Err(_) => {
                            let view = session.view();
                            view.sleep_until(view.now().after(PAUSE)).await;
                        }
                    }
                }
                Ok(())
            })
        };
        let running = (0..COROUTINES).map(client).collect();
        Self { committed, over, running, env }
    }

    fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Measures the commits per second from now on, for `window`.
    fn throughput(&self, window: Duration) -> f64 {
        let (before, since) = (self.committed(), self.env.now());
        poll_until(PAUSE, "time passes", || self.env.now().since(since) >= window);
        (self.committed() - before) as f64 / self.ms_since(since) * 1e3
    }

    fn ms_since(&self, since: lotus_fabric::env::Nanos) -> f64 {
        self.env.now().since(since).as_secs_f64() * 1e3
    }

    fn stop(self) {
        self.over.store(true, Ordering::Relaxed);
        for client in self.running {
            client.wait().expect("its node takes part");
        }
    }
}

async fn update(session: &mut Session, table: TableId, key: u64) -> Result<(), TxnError> {
    let mut txn = session.begin(Isolation::Serializable).await?;
    let item = txn.add_rw(table, key)?;
    txn.execute().await?;
    let mut value = txn.value(item).expect("loaded").to_vec();
    value[0] = value[0].wrapping_add(1);
    txn.put(item, &value)?;
    txn.commit().await.map(drop)
}
