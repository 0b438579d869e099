//! Servers of a cluster with compute nodes in different processes: each process has a part, and
//! knows as little of the others' nodes as if they were not in this program.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{ACCOUNTS, INITIAL, balance, get, load, procedures, run};
use lotus::{Authority, Cluster, Threads, TimestampKind};
use lotus_authority::EmbeddedAuthority;
use lotus_client::Client;
use lotus_fabric::env::Env;
use lotus_fabric::local::LocalFabric;
use lotus_server::{Config, Registry, Server, StartError};

const MEMORY_NODES: u16 = 1;
const COMPUTE_NODES: u16 = 3;
const PATIENCE: Duration = Duration::from_secs(30);

/// Two parts of a cluster: compute nodes 0 and 2, and compute node 1.
fn parts() -> [Arc<Cluster>; 2] {
    parts_over(&(Arc::new(EmbeddedAuthority::new()) as Arc<dyn Authority>))
}

/// The same, which agree by this authority.
pub fn parts_over(authority: &Arc<dyn Authority>) -> [Arc<Cluster>; 2] {
    let fabric = LocalFabric::new(MEMORY_NODES + COMPUTE_NODES);
    let nodes: [&[usize]; 2] = [&[0, 2], &[1]];
    nodes.map(|nodes| {
        let builder = Cluster::embedded()
            .memory_nodes(MEMORY_NODES.into())
            .compute_nodes(COMPUTE_NODES.into())
            .replicas(1)
            .lock_table_bytes(1 << 16)
            .timestamps(TimestampKind::Oracle)
            .part(nodes.iter().copied(), Arc::clone(authority), PATIENCE);
        let machines = Threads::over(fabric.clone(), Env::real(0));
        Arc::new(builder.start_on(machines).unwrap())
    })
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

#[test]
fn every_part_serves_its_own_nodes() {
    let [most, one] = parts();
    let table = load(&most);
    assert_eq!(one.open_table("accounts").unwrap(), table);
    let listeners = [(); COMPUTE_NODES as usize].map(|()| listen());
    let addresses: Vec<String> =
        listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    let parts = [&most, &one, &most];
    let servers: Vec<Server> = (0..)
        .zip(listeners.into_iter().zip(parts))
        .map(|(node, (listener, part))| {
            let mut config = Config::new(listener, addresses.clone());
            config.metrics = Some(listen());
            Server::start(Arc::clone(part), node, procedures(table), config).unwrap()
        })
        .collect();
    run(async {
        let mut deposited = 0;
        for address in &addresses {
            // The node that is asked first knows the owner of every shard, in any part.
            let client = Client::connect(lotus_client::Config::new(address)).await.unwrap();
            for account in 0..ACCOUNTS {
                let call = client.call::<_, u64>("deposit", &(account, 1_u64)).at(table, account);
                call.await.unwrap();
            }
            deposited += 1;
            for account in 0..ACCOUNTS {
                assert_eq!(balance(&client, account).await.unwrap(), INITIAL + deposited);
            }
        }
    });
    for server in &servers {
        let at = server.metrics_address().unwrap();
        assert!(get(at, "/health").starts_with("HTTP/1.1 200"));
        let metrics = get(at, "/metrics");
        assert!(metrics.contains("lotus_takes_part 1"), "{metrics}");
        assert!(!metrics.contains("lotus_shards_owned 0"), "{metrics}");
    }
}

#[test]
fn a_node_of_another_process_is_not_served() {
    let [most, one] = parts();
    let nodes: Vec<String> = (0..COMPUTE_NODES).map(|_| String::new()).collect();
    let config = || Config::new(listen(), nodes.clone());
    for (part, node) in [(&most, 1), (&one, 0), (&one, 2)] {
        let registry = Registry::new();
        let refused = Server::start(Arc::clone(part), node, registry, config()).err();
        assert!(matches!(refused, Some(StartError::Elsewhere { .. })), "{node}: {refused:?}");
    }
}
