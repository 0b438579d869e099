//! Clients of a server that stands still or cannot be reached: its connections stay open, and
//! nothing comes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{ACCOUNTS, Bank, INITIAL, balance, run};
use lotus::Cluster;
use lotus_client::{CallError, Client, Effect, Failure, Kind};
use lotus_fabric::env::Env;

/// Time limit of calls that meet the server that stands still.
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);

/// A way to a server, through which nothing comes while it is frozen.
struct Way {
    address: SocketAddr,
    state: Arc<WayState>,
}

#[derive(Default)]
struct WayState {
    frozen: AtomicBool,
    /// Bytes that have passed.
    passed: AtomicU64,
}

impl WayState {
    fn wait_while_frozen(&self) {
        while self.frozen.load(Ordering::Relaxed) {
            std::thread::park_timeout(LOOK);
        }
    }

    /// Passes bytes on until either side is closed.
    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 64 << 10];
        loop {
            self.wait_while_frozen();
            match from.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => {
                    self.wait_while_frozen();
                    if to.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                    self.passed.fetch_add(count as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    }
}

fn spawn(body: impl FnOnce() + Send + 'static) {
    Env::real(0).spawn("way", body).unwrap();
}

impl Way {
    fn to(server: SocketAddr) -> Self {
        Self::to_crowded(server, 0)
    }

    /// A way to a server that closes the first `refused` connections at once.
    fn to_crowded(server: SocketAddr, refused: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::new(WayState::default()));
        let shared = Arc::clone(&state);
        spawn(move || {
            for client in listener.incoming().flatten().skip(refused) {
                shared.wait_while_frozen();
                let Ok(server) = TcpStream::connect(server) else { continue };
                for socket in [&client, &server] {
                    socket.set_read_timeout(Some(LOOK)).unwrap();
                    socket.set_nodelay(true).unwrap();
                }
                let ways = [(client.try_clone(), server.try_clone()), (Ok(server), Ok(client))];
                for (from, to) in ways {
                    let shared = Arc::clone(&shared);
                    spawn(move || shared.pass(from.unwrap(), to.unwrap()));
                }
            }
        });
        Self { address, state }
    }

    fn freeze(&self, frozen: bool) {
        self.state.frozen.store(frozen, Ordering::Relaxed);
    }

    fn passed(&self) -> u64 {
        self.state.passed.load(Ordering::Relaxed)
    }
}

/// A bank with two servers, of which clients reach the second at `other`.
fn bank(other: impl Fn(SocketAddr) -> SocketAddr) -> Bank {
    let builder = Cluster::embedded().compute_nodes(2).memory_nodes(1).replicas(1);
    let cluster = builder.lock_table_bytes(1 << 16).start().unwrap();
    Bank::over(cluster, |config| {
        let own: SocketAddr = config.nodes[1].parse().unwrap();
        config.nodes[1] = other(own).to_string();
    })
}

/// Calls a deposit at each account, all at once; returns how many did not succeed.
async fn deposit_everywhere(client: &Client, timeout: Duration) -> Vec<CallError> {
    let table = client.table("accounts").unwrap();
    let mut calls = Vec::new();
    for account in 0..ACCOUNTS {
        let call = client.call::<_, u64>("deposit", &(account, 1_u64)).at(table, account);
        calls.push(tokio::spawn(call.timeout(timeout).send()));
    }
    let mut failed = Vec::new();
    for call in calls {
        failed.extend(call.await.unwrap().err());
    }
    failed
}

/// Clients kept calling a node that stood still for as long as their directory named it: of 64
/// calls 26 had an unknown outcome, round after round, while the cluster went on without it.
#[test]
fn a_server_that_stands_still_is_called_once_and_again_when_it_answers() {
    let way = std::cell::OnceCell::new();
    let bank = bank(|own| way.get_or_init(|| Way::to(own)).address);
    let way = way.get().unwrap();
    run(async {
        let client = bank.client().await;
        assert!(deposit_everywhere(&client, LONG).await.is_empty());
        assert!(way.passed() > 0);
        way.freeze(true);
        let failed = deposit_everywhere(&client, SHORT).await;
        assert!(!failed.is_empty() && failed.len() < ACCOUNTS as usize, "{}", failed.len());
        for error in failed {
            let told = matches!(error, CallError::Unknown | CallError::Failed(Failure::Timeout));
            assert!(told, "{error}");
        }
        // Rows that were locked there at the end of the first round are free again by now.
        for round in 0..4 {
            let failed = deposit_everywhere(&client, LONG).await;
            assert!(failed.is_empty(), "round {round}: {failed:?}");
            client.refresh().await.unwrap();
        }
        way.freeze(false);
        // Questions for the directory pass as well, but there are no five in a row.
        let mut in_a_row = 0;
        while in_a_row < 5 {
            let before = way.passed();
            assert!(deposit_everywhere(&client, LONG).await.is_empty());
            in_a_row = if way.passed() > before { in_a_row + 1 } else { 0 };
        }
    });
    bank.audit();
}

/// A listener that accepts no connection, and says nothing.
fn silent() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

/// Fourteen calls with a time limit of one second ended after 2, 4, … 28 seconds: each made an
/// attempt of its own to connect, after those of the others.
#[test]
fn an_attempt_to_connect_is_made_once_for_all_and_no_call_waits_longer_than_it_may() {
    let listener = silent();
    let address = listener.local_addr().unwrap();
    let bank = bank(|_| address);
    run(async {
        let client = bank.client().await;
        let failed = deposit_everywhere(&client, Duration::from_secs(4)).await;
        assert!(failed.is_empty(), "others stand in: {failed:?}");
        assert_eq!(balance(&client, 1).await.unwrap(), INITIAL + 1);
        listener.set_nonblocking(true).unwrap();
        let attempts = std::iter::from_fn(|| listener.accept().ok()).count();
        // The one of the calls, and at most one of the task that looks for the node.
        assert!((1..=2).contains(&attempts), "{attempts} attempts to connect");
        // An attempt that takes for ever holds no call up.
        let mut config = lotus_client::Config::new(bank.servers[0].address().to_string());
        config.connect_timeout = Duration::from_secs(3600);
        let patient = Client::connect(config).await.unwrap();
        let failed = deposit_everywhere(&patient, Duration::from_secs(2)).await;
        assert!(failed.is_empty(), "others stand in: {failed:?}");
    });
    assert_eq!(bank.audit(), ACCOUNTS * (INITIAL + 2));
}

/// A server that had no room at first was tried again only when a silent one had been given up.
#[test]
fn a_client_tries_a_crowded_server_again_beside_one_that_does_not_answer() {
    let listener = silent();
    let bank = Bank::open(1);
    let way = Way::to_crowded(bank.servers[0].address(), 3);
    run(async {
        let mut config = lotus_client::Config::new(way.address.to_string());
        config.servers.push(listener.local_addr().unwrap().to_string());
        (config.timeout, config.connect_timeout) = (LONG, Duration::from_secs(3600));
        let client = Client::connect(config).await.unwrap();
        assert_eq!(balance(&client, 1).await.unwrap(), INITIAL);
    });
    bank.audit();
}

/// In the next life of a cluster, shards have other owners in epochs that begin again. A client
/// that had not asked meanwhile believed the owners of the earlier life, in later epochs, and asked
/// the wrong node until its time was up, in every call.
#[test]
fn a_client_that_was_idle_while_its_cluster_began_anew_finds_the_owners() {
    let bank = Bank::open(2);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let shards = bank.cluster.shards().unwrap().into_iter();
    let shards: Vec<_> = shards.filter(|one| one.owner == Some(0)).map(|one| one.shard).collect();
    for some in shards.chunks(128) {
        bank.cluster.move_shards(some, 1).unwrap();
    }
    let client = runtime.block_on(async {
        let client = bank.client().await;
        assert!(deposit_everywhere(&client, LONG).await.is_empty());
        client
    });
    let bank = bank.open_anew();
    runtime.block_on(async {
        let table = client.table("accounts").unwrap();
        for account in 0..ACCOUNTS {
            let call = client.call::<_, u64>("deposit", &(account, 1_u64)).at(table, account);
            // It may meet a connection that ends, and is repeated then.
            let after = call.idempotent(u128::from(account)).timeout(LONG).await;
            assert_eq!(after.unwrap(), INITIAL + 1, "account {account}");
        }
    });
    drop(client);
    assert_eq!(bank.audit(), ACCOUNTS * (INITIAL + 1));
}

/// A request that is longer than servers take ended the connection, and with it all other calls of
/// the client.
#[test]
fn a_request_that_is_too_long_is_not_sent_and_harms_no_other() {
    let bank = Bank::open(1);
    run(async {
        let client = bank.client().await;
        let table = client.table("accounts").unwrap();
        let slow = tokio::spawn(client.call::<_, ()>("block", &300_u64).timeout(LONG).send());
        tokio::task::yield_now().await;
        let long = client.call::<_, u64>("deposit", &vec![0_u8; 300_000]).idempotent(16).await;
        assert!(matches!(long, Err(CallError::Request(_))), "{long:?}");
        let mut txn = client.transaction(Kind::Serializable);
        let long = txn.ordered(table).get(&vec![0; 300_000]).await;
        assert!(matches!(long, Err(CallError::Request(_))), "{long:?}");
        slow.await.unwrap().unwrap();
    });
    bank.audit();
}

/// A call that never had its turn on the connection was reported as one that may have committed.
#[test]
fn a_call_that_waits_for_its_turn_until_its_time_is_up_has_no_effect() {
    let bank = Bank::open_with(1, |config| config.limits.in_flight = 1);
    run(async {
        let client = bank.client().await;
        let slow = tokio::spawn(client.call::<_, ()>("block", &1_000_u64).timeout(LONG).send());
        tokio::task::yield_now().await;
        let late = client.call::<_, u64>("deposit", &(1_u64, 1_u64)).timeout(SHORT).await;
        assert!(late.as_ref().is_err_and(|error| error.effect() == Effect::Nothing), "{late:?}");
        slow.await.unwrap().unwrap();
        assert_eq!(balance(&client, 1).await.unwrap(), INITIAL);
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

/// The servers were tried one after another, each for the whole time-out.
#[test]
fn a_client_passes_by_a_server_that_does_not_answer() {
    let listener = silent();
    let bank = Bank::open(1);
    run(async {
        let mut config = lotus_client::Config::new(listener.local_addr().unwrap().to_string());
        config.servers.push(bank.servers[0].address().to_string());
        config.connect_timeout = Duration::from_secs(3600);
        let connecting = tokio::time::timeout(Duration::from_secs(300), Client::connect(config));
        let client = connecting.await.expect("the second answers").unwrap();
        assert_eq!(balance(&client, 1).await.unwrap(), INITIAL);
    });
    bank.audit();
}
