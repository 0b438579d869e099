//! Compute nodes in processes of their own: this test's program started again, as memory nodes and
//! as the second compute node. They share memory nodes, an authority in this process, and nothing
//! else.

mod authority;
pub(crate) mod children;
mod parts;
#[allow(dead_code, reason = "for `benches/processes.rs`")]
pub(crate) mod speed;
mod starts;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lotus::{
    Cluster, ClusterBuilder, ClusterError, Isolation, PrimaryKey, TableId, TableSpec, Threads,
    TimestampKind, Transaction, TxnError, Wait,
};
use lotus_authority::remote::{Address, AuthorityServer, RemoteAuthority, Security};
use lotus_authority::testing::TestAuthority;
use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::NodeId;
use lotus_fabric::shm::{Host, ShmFabric};
use lotus_fabric::tcp::{self, TcpFabric};
use lotus_recovery::membership;

use children::{Child, Role};

const MEMORY_NODES: u16 = 2;
const COMPUTE_NODES: u16 = 2;
const NODES: u16 = MEMORY_NODES + COMPUTE_NODES;
/// Limit of every wait.
const PATIENCE: Duration = Duration::from_secs(30);
/// Lease, long enough for a busy machine.
const LEASE: Duration = Duration::from_secs(3);

const ACCOUNTS: TableSpec = TableSpec::new("accounts").record_bytes(8).capacity(ROWS * 2);
const ROWS: u64 = 64;
const BALANCE: u64 = 1000;

/// Fabric of a test, and its files.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    fabric: Kind,
    /// Directory of the authority's socket, and those of `shm`.
    directory: PathBuf,
    lease: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Shm,
    Tcp,
}

impl Place {
    /// Creates a place with a directory of its own, which [`Directory`] removes.
    fn new(fabric: Kind, lease: Option<Duration>) -> (Self, Directory) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lotus-processes-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).expect("a fresh directory");
        (Self { fabric, directory: directory.clone(), lease }, Directory(directory))
    }

    fn authority(&self) -> Address {
        Address::Unix(self.directory.join("authority.sock"))
    }

    fn remote(&self) -> RemoteAuthority {
        RemoteAuthority::new(self.authority(), Security::default(), PATIENCE)
    }

    fn builder(&self, compute_node: usize) -> ClusterBuilder {
        Cluster::embedded()
            .memory_nodes(MEMORY_NODES.into())
            .compute_nodes(COMPUTE_NODES.into())
            .replicas(2)
            .memory_limit(64 << 20)
            .lock_table_bytes(1 << 20)
            .coroutines(4)
            .timestamps(TimestampKind::Oracle)
            .lease(self.lease)
            .part([compute_node], Arc::new(self.remote()), PATIENCE)
    }

    /// Returns TCP addresses that only this directory's test uses: all of 127/8 is this machine.
    fn tcp(&self, served: u16) -> tcp::Config {
        let digits: String = self.directory.to_string_lossy().chars().rev().collect();
        let parts: Vec<u32> = digits.split('-').take(2).map(reversed).collect();
        let (process, number) = (parts[1] % (1 << 20), parts[0] % 16);
        let host = Ipv4Addr::from(0x7f00_0000 | process << 4 | number);
        let address = |node: u16| SocketAddr::new(IpAddr::V4(host), 7300 + node);
        let addresses = (0..NODES).map(|node| (NodeId(node), address(node))).collect();
        tcp::Config { addresses, served: vec![NodeId(served)], ..tcp::Config::loopback(NODES) }
    }

    fn shm_fabric(&self, node: u16) -> ShmFabric {
        let fabric = ShmFabric::join(&self.directory, NODES, &Env::real(0)).expect("joins");
        fabric.host(NodeId(node)).expect("nobody else hosts it");
        fabric
    }

    fn tcp_fabric(&self, node: u16) -> TcpFabric {
        TcpFabric::start(self.tcp(node), Env::real(0)).expect("the port is free")
    }
}

fn reversed(digits: &str) -> u32 {
    digits.chars().rev().collect::<String>().parse().expect("a number")
}

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // It has the sockets of killed processes.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn owner_of(cluster: &Cluster, table: TableId, key: u64) -> usize {
    let coordinator_id = cluster.coordinators().next().expect("a coordinator");
    let owner = cluster.submit(coordinator_id, move |session| async move {
        session.view().owner_of(table, &PrimaryKey::from(key))
    });
    owner.wait().expect("the table exists")
}

/// Returns the first row with its lock at the compute node at place `owner`.
fn row_of(cluster: &Cluster, table: TableId, owner: usize) -> u64 {
    (0..ROWS).find(|key| owner_of(cluster, table, *key) == owner).expect("both own some")
}

/// Moves one from one account to another.
fn transfer(cluster: &Cluster, table: TableId, from: u64, to: u64) -> Result<(), TxnError> {
    let transfer = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        let (a, b) = (txn.add_rw(table, from)?, txn.add_rw(table, to)?);
        txn.execute().await?;
        let read = |value: Option<&[u8]>| {
            u64::from_le_bytes(value.expect("loaded").try_into().expect("eight bytes"))
        };
        let (a_has, b_has) = (read(txn.value(a)), read(txn.value(b)));
        txn.put(a, &(a_has - 1).to_le_bytes())?;
        txn.put(b, &(b_has + 1).to_le_bytes())?;
        Ok(())
    });
    transfer.wait().map(drop)
}

/// Checks that a cluster's memory passes the audit.
fn assert_sound(cluster: &Cluster) {
    cluster.settle().expect("nobody has failed here");
    for finding in cluster.audit().expect("memory nodes answer") {
        assert!(finding.passed, "{}: {}", finding.name, finding.detail);
    }
}

/// Returns the sum of all accounts, once the audit passes.
fn sound_total(cluster: &Cluster, table: TableId) -> u64 {
    assert_sound(cluster);
    let mut total = 0;
    cluster
        .audit_scan(table, &mut |_, value, _| {
            total += u64::from_le_bytes(value.try_into().expect("eight bytes"));
        })
        .expect("memory nodes answer");
    total
}

/// Makes and fills the table, and marks the data as complete.
fn load(cluster: &Cluster) -> TableId {
    cluster.fill(|| Ok(load_rows(cluster))).expect("nobody is lost")
}

fn load_rows(cluster: &Cluster) -> TableId {
    let table = cluster.create_table(ACCOUNTS).expect("there is room");
    let row = |row: u64, value: &mut Vec<u8>| {
        value.extend(BALANCE.to_le_bytes());
        PrimaryKey::from(row)
    };
    cluster.load(table, ROWS, &row, &AtomicU64::new(0)).expect("there is room");
    table
}

/// Starts memory nodes and the second compute node; this process has the first.
fn with_cluster(place: &Place, test: impl Fn(Transfer<'_>, &mut Child, Total<'_>)) {
    let security = Security::default();
    let server = AuthorityServer::start(place.authority(), &security, &Env::real(0));
    let _server = server.expect("serves");
    let _memory: Vec<Child> =
        (0..MEMORY_NODES).map(|node| Child::start(Role::Memory, place, node)).collect();
    match place.fabric {
        Kind::Shm => in_cluster(place, place.shm_fabric(MEMORY_NODES), test),
        Kind::Tcp => in_cluster(place, place.tcp_fabric(MEMORY_NODES), test),
    }
}

/// Moves one from one account to another, as [`transfer`].
type Transfer<'a> = &'a dyn Fn(u64, u64) -> Result<(), TxnError>;
/// Returns the sum of all accounts, after the audit has passed.
type Total<'a> = &'a dyn Fn() -> u64;

fn in_cluster<F: lotus_fabric::transport::Fabric + Clone + 'static>(
    place: &Place,
    fabric: F,
    test: impl Fn(Transfer<'_>, &mut Child, Total<'_>),
) {
    let machines = Threads::over(fabric, Env::real(0));
    let cluster = place.builder(0).start_on(machines).expect("the settings are sound");
    let table = load(&cluster);
    let mut other = Child::start(Role::Compute, place, MEMORY_NODES + 1);
    let theirs = row_of(&cluster, table, 1);
    let ours = row_of(&cluster, table, 0);
    let transfer = |from, to| transfer(&cluster, table, from, to);
    transfer(theirs, ours).expect("the other process grants the lock");
    test(&transfer, &mut other, &|| sound_total(&cluster, table));
}

/// Two processes lock each other's rows.
fn transfers_across(fabric: Kind) {
    let (place, _directory) = Place::new(fabric, None);
    with_cluster(&place, |transfer, other, total| {
        other.ask("transfer 20", "done");
        for turn in 0..20 {
            transfer(turn % ROWS, (turn * 7 + 1) % ROWS).expect("conflicts pass");
        }
        other.ask("table elsewhere", "done");
        assert_eq!(total(), ROWS * BALANCE);
        other.ask("audit", "sound");
    });
}

#[test]
fn transfers_across_processes_over_shm() {
    transfers_across(Kind::Shm);
}

#[test]
fn transfers_across_processes_over_tcp() {
    transfers_across(Kind::Tcp);
}

/// A process that is killed in the middle of its transactions is expelled; its transactions are
/// settled, its rows can be used, and nothing is lost.
#[test]
fn a_killed_process_is_recovered_by_another() {
    let (place, _directory) = Place::new(Kind::Shm, Some(LEASE));
    with_cluster(&place, |transfer, other, total| {
        other.ask("spin", "spinning");
        for turn in 0..20 {
            transfer(turn % ROWS, (turn * 7 + 1) % ROWS).expect("conflicts pass");
        }
        other.kill();
        let authority = place.remote();
        let node = NodeId(MEMORY_NODES + 1);
        wait_until("the dead node is resolved and its shards are adopted", || {
            let now = membership::read(&authority).expect("the authority answers");
            now.is_resolved(node) && now.may_adopt()
        });
        // This process gives the dead one's shards new owners soon after.
        for key in 0..ROWS {
            wait_until("its rows can be used", || transfer(key, (key + 1) % ROWS).is_ok());
        }
        assert_eq!(total(), ROWS * BALANCE);
    });
}

/// Polls until `holds`, for a limited time.
fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    poll_until(Duration::from_millis(20), what, holds);
}

/// Polls at intervals of `pause` until `holds`, for a limited time.
fn poll_until(pause: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let mut executor = Executor::new(Env::real(0));
    let handle = executor.handle().clone();
    executor.run(async move {
        let deadline = handle.now().after(PATIENCE);
        while !holds() {
            assert!(handle.now() < deadline, "not within {PATIENCE:?}: {what}");
            handle.sleep(pause).await;
        }
    });
}

/// A second compute node is refused if its settings differ, or if it comes twice.
#[test]
fn who_does_not_fit_is_told_why() {
    let (place, _directory) = Place::new(Kind::Shm, None);
    let env = Env::real(0);
    let server = AuthorityServer::start(place.authority(), &Security::default(), &env);
    let _server = server.expect("serves");
    let host = |node| Host::start(&place.directory, NodeId(node), NODES, &env).expect("hosts");
    let _memory: Vec<Host> = (0..MEMORY_NODES).map(host).collect();
    let threads = |node| Threads::over(place.shm_fabric(node), env.clone());

    let impatient = place.builder(1).part([1], Arc::new(place.remote()), Duration::ZERO);
    let refused = impatient.start_on(threads(3)).err().expect("nobody has founded it");
    assert!(matches!(refused, ClusterError::NotFounded { .. }), "{refused}");
    let told = place.builder(1).while_waiting(|wait| {
        assert_eq!(wait, Wait::Founding);
        ControlFlow::Break(())
    });
    let refused = told.start_on(threads(3)).err().expect("it was told to end");
    assert!(matches!(refused, ClusterError::Interrupted), "{refused}");

    let _first = place.builder(0).start_on(threads(2)).expect("founds");
    let refused = place.builder(1).coroutines(5).start_on(threads(3)).err().expect("it differs");
    assert!(refused.to_string().contains("\"coroutines 5\""), "{refused}");

    let second = place.builder(1).start_on(threads(3)).expect("joins");
    assert!(matches!(second.open_table("none"), Err(ClusterError::NoSuchTable(_))));
    second.stop().expect("ends");
    let refused = place.builder(1).start_on(threads(3)).err().expect("it was here before");
    assert!(matches!(refused, ClusterError::JoinedBefore { node: 1 }), "{refused}");
}

/// Another process makes a table while this one does; both exist, and neither is damaged.
#[test]
fn a_table_that_is_outrun_is_entered_again() {
    let (authority, happened) = authority::outrun();
    let cluster = authority::alone(Arc::new(authority)).start().expect("founds");
    let table = load(&cluster);
    assert!(happened.load(Ordering::SeqCst), "nobody was faster");
    transfer(&cluster, table, 1, 2).expect("it ends well");
    assert_eq!(sound_total(&cluster, table), ROWS * BALANCE);
}

/// A coordinator asks the authority beside its transactions, and beats meanwhile.
#[test]
fn an_authority_that_does_not_answer_stops_no_transaction() {
    let authority = Arc::new(TestAuthority::default());
    let builder = authority::alone(Arc::clone(&authority) as _).lease(Some(LEASE));
    let cluster = builder.start().expect("founds");
    let table = load(&cluster);
    authority.hold();
    wait_until("a coordinator asks", || authority.is_waited_for());
    (0..50).for_each(|_| transfer(&cluster, table, 1, 2).expect("it ends well"));
    authority.release();
    assert_eq!(sound_total(&cluster, table), ROWS * BALANCE);
}

/// Resources that a memory node's process holds until it ends.
enum Memory {
    Shm(#[expect(dead_code, reason = "held")] Host),
    Tcp(#[expect(dead_code, reason = "held")] TcpFabric),
}

fn memory(place: &Place, node: u16) -> Memory {
    let directory: &Path = &place.directory;
    match place.fabric {
        Kind::Shm => {
            let host = Host::start(directory, NodeId(node), NODES, &Env::real(0));
            Memory::Shm(host.expect("hosts"))
        }
        Kind::Tcp => Memory::Tcp(place.tcp_fabric(node)),
    }
}
