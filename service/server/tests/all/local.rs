//! Clients on the same host, which come through a Unix socket.

use std::cell::Cell;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use crate::common::{ACCOUNTS, Bank, INITIAL, balance, get, run};
use lotus_client::{Client, Kind};
use lotus_protocol::stream::LOCAL;
use lotus_server::{Config, Key, LocalDoor, Security};

/// A directory for the doors of two compute nodes.
struct Doors(PathBuf);

impl Doors {
    fn new(name: &str) -> Self {
        let directory = format!("lotus-doors-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    fn path(&self, node: usize) -> PathBuf {
        self.0.join(node.to_string())
    }

    fn address(&self, node: usize) -> String {
        format!("{LOCAL}{}", self.path(node).display())
    }

    /// A bank with both doors at each node, and the settings of `set`. The doors to the network
    /// send clients to unused addresses.
    fn bank(&self, set: impl Fn(usize, &mut Config)) -> Bank {
        let node = Cell::new(0);
        Bank::open_with(2, |config| {
            config.local = Some(LocalDoor {
                listener: UnixListener::bind(self.path(node.get())).unwrap(),
                nodes: vec![self.address(0), self.address(1)],
            });
            config.nodes = vec!["127.0.0.1:1".to_owned(); 2];
            set(node.get(), config);
            node.set(node.get() + 1);
        })
    }

    async fn client(&self, security: Security) -> Result<Client, String> {
        let mut config = lotus_client::Config::new(self.address(0));
        config.security = security;
        Client::connect(config).await.map_err(|error| error.to_string())
    }
}

impl Drop for Doors {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn who_comes_through_the_local_door_is_led_to_those_of_the_other_nodes() {
    let doors = Doors::new("led");
    let metrics = TcpListener::bind("127.0.0.1:0").unwrap();
    let of_second = metrics.local_addr().unwrap();
    let bank = doors.bank(|node, config| {
        if node == 1 {
            config.metrics = Some(metrics.try_clone().unwrap());
        }
    });
    run(async {
        let client = doors.client(Security::default()).await.unwrap();
        for account in 0..ACCOUNTS {
            let call = client.call("transfer", &(account, (account + 1) % ACCOUNTS, 1_u64));
            let _: u64 = call.at(bank.table, account).await.unwrap();
        }
        assert_eq!(balance(&client, 1).await.unwrap(), INITIAL);
        // More bytes than a socket takes at once.
        let blob = || async {
            let bytes: Vec<u8> = client.call("blob", &900_000_u64).await.unwrap();
            assert_eq!(bytes.len(), 900_000);
        };
        tokio::join!(blob(), blob(), blob(), blob());
        let mut txn = client.transaction(Kind::Serializable);
        let item = txn.add_rw(bank.table, 3_u64);
        txn.execute().await.unwrap();
        assert_eq!(txn.value(item), Some(&INITIAL.to_le_bytes()[..]));
        txn.commit().await.unwrap();
    });
    let shown = get(of_second, "/metrics");
    assert!(shown.contains("lotus_clients_total{fate=\"admitted\"} 1"), "{shown}");
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

/// The end of its socket is the only sign that such a client is gone.
#[test]
fn a_client_of_this_host_that_vanishes_leaves_no_lock() {
    let doors = Doors::new("vanishes");
    let bank = doors.bank(|_, config| config.limits.hold = Duration::from_secs(30));
    run(async {
        let gone = doors.client(Security::default()).await.unwrap();
        let mut txn = gone.transaction(Kind::Serializable);
        txn.add_rw(bank.table, 7_u64);
        txn.execute().await.unwrap();
        // Not dropped: that would tell the server that the transaction is given up.
        std::mem::forget(txn);
        let held = gone.call::<_, u64>("deposit", &(7_u64, 1_u64));
        held.timeout(Duration::from_millis(50)).await.unwrap_err();
    });
    // The runtime is gone, and with it the client's sockets.
    run(async {
        let client = doors.client(Security::default()).await.unwrap();
        let call = client.call::<_, u64>("deposit", &(7_u64, 1_u64));
        assert_eq!(call.timeout(Duration::from_secs(20)).await.unwrap(), INITIAL + 1);
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL + 1);
}

#[test]
fn the_shared_key_is_asked_for_at_the_local_door_as_well() {
    let doors = Doors::new("key");
    let key = Key::random().unwrap();
    let security = Security::SharedKey(key.clone());
    let _bank = doors.bank(|_, config| config.security = security.clone());
    run(async {
        let client = doors.client(Security::SharedKey(key)).await.unwrap();
        assert_eq!(balance(&client, 1).await.unwrap(), INITIAL);
        for other in [Security::default(), Security::SharedKey(Key::random().unwrap())] {
            assert!(doors.client(other).await.is_err());
        }
    });
    let mut stranger = UnixStream::connect(doors.path(1)).unwrap();
    stranger.write_all(&[0xff; 64]).unwrap();
    let mut told = Vec::new();
    stranger.read_to_end(&mut told).unwrap();
    assert!(told.len() < 64, "a refusal and the end, not {told:?}");
}
