//! A small bank behind servers, for tests: one table of accounts with eight bytes each.

pub mod raw;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use lotus::{Cluster, TableId, TableSpec, Transaction, TxnError};
use lotus_client::{CallError, Client};
use lotus_server::{Abort, Config, Registry, Server};

/// Initial balance of every account.
pub const INITIAL: u64 = 1_000;
pub const ACCOUNTS: u64 = 64;
/// Longest time for a test; after that it waits for ever.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Bank {
    pub cluster: Arc<Cluster>,
    pub table: TableId,
    pub servers: Vec<Server>,
}

impl Bank {
    /// A bank with a server at each of `nodes` compute nodes.
    pub fn open(nodes: usize) -> Self {
        Self::open_with(nodes, |_| {})
    }

    /// The same, with other settings of the servers.
    pub fn open_with(nodes: usize, set: impl Fn(&mut Config)) -> Self {
        let builder = Cluster::embedded().compute_nodes(nodes).memory_nodes(1).replicas(1);
        Self::over(builder.lock_table_bytes(1 << 16).start().unwrap(), set)
    }

    pub fn over(cluster: Cluster, set: impl Fn(&mut Config)) -> Self {
        let table = load(&cluster);
        let nodes = cluster.config().compute_nodes;
        let address = SocketAddr::from((own_address(), 0));
        let listeners = (0..nodes).map(|_| TcpListener::bind(address).unwrap()).collect();
        Self::at(listeners, cluster, table, set)
    }

    /// A bank of this table, with servers at these addresses.
    fn at(
        listeners: Vec<TcpListener>,
        cluster: Cluster,
        table: TableId,
        set: impl Fn(&mut Config),
    ) -> Self {
        let cluster = Arc::new(cluster);
        let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        let addresses: Vec<String> = listeners.iter().map(address).collect();
        let mut servers = Vec::new();
        for (node, listener) in listeners.into_iter().enumerate() {
            let mut config = Config::new(listener, addresses.clone());
            set(&mut config);
            let cluster = Arc::clone(&cluster);
            servers.push(Server::start(cluster, node, procedures(table), config).unwrap());
        }
        Self { cluster, table, servers }
    }

    /// Ends this bank, and opens another one with the same addresses.
    pub fn open_anew(self) -> Self {
        let addresses: Vec<SocketAddr> = self.servers.iter().map(Server::address).collect();
        drop(self);
        let builder =
            Cluster::embedded().compute_nodes(addresses.len()).memory_nodes(1).replicas(1);
        let cluster = builder.lock_table_bytes(1 << 16).start().unwrap();
        let table = load(&cluster);
        let listeners = addresses.iter().map(|address| TcpListener::bind(address).unwrap());
        Self::at(listeners.collect(), cluster, table, |_| {})
    }

    pub async fn client(&self) -> Client {
        let first = self.servers[0].address().to_string();
        Client::connect(lotus_client::Config::new(first)).await.unwrap()
    }

    /// The sum of all accounts; asserts that nothing was left behind.
    pub fn audit(&self) -> u64 {
        self.cluster.settle().unwrap();
        for finding in self.cluster.audit().unwrap() {
            assert!(finding.passed, "{}: {}", finding.name, finding.detail);
        }
        let mut sum = 0;
        self.cluster
            .audit_scan(self.table, &mut |_, value, _| {
                sum += u64::from_le_bytes(value.try_into().unwrap());
            })
            .unwrap();
        sum
    }
}

/// An address of this host for one bank. Where its servers have ended, no server of another test
/// answers, and no connection of another test takes a port while a bank is opened anew.
fn own_address() -> Ipv4Addr {
    static BANKS: AtomicU16 = AtomicU16::new(0);
    let [high, low] = BANKS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

/// Makes and fills the table of accounts.
pub fn load(cluster: &Cluster) -> TableId {
    let spec = TableSpec::new("accounts").record_bytes(8).capacity(4 * ACCOUNTS);
    let table = cluster.create_table(spec).unwrap();
    let row = |row: u64, value: &mut Vec<u8>| {
        value.extend_from_slice(&INITIAL.to_le_bytes());
        row.into()
    };
    cluster.load(table, ACCOUNTS, &row, &AtomicU64::new(0)).unwrap();
    table
}

/// Response at a server's metrics port, head included.
pub fn get(address: SocketAddr, path: &str) -> String {
    get_as(address, path, "*/*")
}

/// The same, with an `Accept` header.
pub fn get_as(address: SocketAddr, path: &str, accept: &str) -> String {
    try_get(address, path, accept).unwrap()
}

/// The same, at a port that may close the connection: then the answer is an error, or empty.
pub fn try_get(address: SocketAddr, path: &str, accept: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let head = format!("GET {path} HTTP/1.1\r\nHost: lotus\r\nAccept: {accept}\r\n");
    let request = format!("{head}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The value of a metric, by its whole name with labels.
pub fn value(metrics: &str, name: &str) -> f64 {
    let lines = metrics.lines();
    let found = lines.filter_map(|line| line.rsplit_once(' ')).find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no {name} in:\n{metrics}")).1.parse().unwrap()
}

/// Runs a test's client side, within [`PATIENCE`].
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let within = async { tokio::time::timeout(PATIENCE, test).await };
    runtime.block_on(within).expect("the test's client side waits for something that never comes")
}

fn amount(txn: &Transaction, item: lotus::Item) -> Result<u64, TxnError> {
    let value = txn.value(item).and_then(|value| value.try_into().ok());
    Ok(u64::from_le_bytes(value.ok_or(TxnError::Misuse("no such account"))?))
}

pub fn procedures(table: TableId) -> Registry {
    let mut registry = Registry::new();
    registry.register(
        "transfer",
        async move |txn: &mut Transaction, (from, to, sum): (u64, u64, u64)| {
            let (from, to) = (txn.add_rw(table, from)?, txn.add_rw(table, to)?);
            txn.execute().await?;
            let left = amount(txn, from)?;
            let left =
                left.checked_sub(sum).ok_or_else(|| Abort::Application(format!("has {left}")))?;
            let more = amount(txn, to)? + sum;
            txn.put(from, &left.to_le_bytes())?;
            txn.put(to, &more.to_le_bytes())?;
            Ok::<u64, Abort<String>>(left)
        },
    );
    registry.register("deposit", async move |txn: &mut Transaction, (account, sum): (u64, u64)| {
        let item = txn.add_rw(table, account)?;
        txn.execute().await?;
        let after = amount(txn, item)? + sum;
        txn.put(item, &after.to_le_bytes())?;
        Ok::<u64, Abort>(after)
    });
    registry.register(
        "read, then deposit",
        async move |txn: &mut Transaction, (account, sum): (u64, u64)| {
            let item = txn.add_ro(table, account)?;
            txn.execute().await?;
            let after = amount(txn, item)? + sum;
            let item = txn.add_rw(table, account)?;
            txn.put(item, &after.to_le_bytes())?;
            Ok::<u64, Abort>(after)
        },
    );
    registry.register(
        "deposit for bytes",
        async move |txn: &mut Transaction, (account, sum): (u64, u64)| {
            let item = txn.add_rw(table, account)?;
            txn.execute().await?;
            let after = amount(txn, item)? + sum;
            txn.put(item, &after.to_le_bytes())?;
            Ok::<Vec<u8>, Abort>(vec![7; 1000])
        },
    );
    registry.register_read_only("balance", async move |txn: &mut Transaction, account: u64| {
        let item = txn.add_ro(table, account)?;
        txn.execute().await?;
        Ok::<u64, Abort>(amount(txn, item)?)
    });
    registry.register("stall", async move |txn: &mut Transaction, account: u64| {
        txn.add_rw(table, account)?;
        txn.execute().await?;
        std::future::pending::<()>().await;
        Ok::<(), Abort>(())
    });
    registry.register("block", async move |_: &mut Transaction, millis: u64| {
        // As no stored transaction should.
        let env = lotus_fabric::env::Env::real(0);
        let until = env.now().after(Duration::from_millis(millis));
        while env.now() < until {
            std::thread::park_timeout(until.since(env.now()));
        }
        Ok::<(), Abort>(())
    });
    registry.register("panic", async move |txn: &mut Transaction, account: u64| {
        txn.add_rw(table, account)?;
        txn.execute().await?;
        assert!(account > u64::MAX - 1, "on purpose");
        Ok::<(), Abort>(())
    });
    registry.register_read_only("blob", async move |_: &mut Transaction, bytes: u64| {
        Ok::<Vec<u8>, Abort>(vec![7; bytes as usize])
    });
    registry
}

pub async fn balance(client: &Client, account: u64) -> Result<u64, CallError> {
    client.call("balance", &account).await
}
