//! Connection of applications to a running cluster.

use lotus_benchmarks::harness::BenchError;
use lotus_benchmarks::workload::Workload;
use lotus_client::{Client, Config};
use lotus_fabric::ids::TableId;

use crate::config::shape;
use lotus_node::config::file::{ClusterFile, Net};
use lotus_node::host::sockets::local_address;
use lotus_runner::applications::load::failed;

/// Sets the table ids of a workload; returns the ids with the tables' names.
///
/// # Errors
/// The cluster lacks a table of the workload.
pub fn attach<W: Workload>(
    client: &Client,
    workload: &mut W,
    file: &ClusterFile,
) -> Result<Vec<(TableId, String)>, BenchError> {
    let specs = workload.tables(&shape(file)).into_iter();
    let missing = |name: &str| failed(&format!("the cluster has no table {name}"));
    let table = |name: &str| client.table(name).ok_or_else(|| missing(name));
    let tables = specs.map(|spec| Ok((table(&spec.name)?, spec.name.into_owned())));
    let tables: Vec<(TableId, String)> = tables.collect::<Result<_, BenchError>>()?;
    workload.attach(&tables.iter().map(|(table, _)| *table).collect::<Vec<_>>());
    Ok(tables)
}

/// Connects to a running cluster as an application.
///
/// # Errors
/// No compute node accepts the connection.
pub async fn connect(file: &ClusterFile) -> Result<Client, BenchError> {
    connect_with(file, |_| ()).await
}

/// Connects to a running cluster as an application with settings of its own.
///
/// # Errors
/// As [`connect`].
pub async fn connect_with(
    file: &ClusterFile,
    set: impl FnOnce(&mut Config),
) -> Result<Client, BenchError> {
    let mut config = Config::new("");
    config.servers = addresses(file);
    config.security = file.as_application().map_err(|error| failed(&error))?;
    set(&mut config);
    Client::connect(config).await.map_err(|error| failed(&error))
}

/// Addresses at which compute nodes serve applications; sockets of this host first.
pub fn addresses(file: &ClusterFile) -> Vec<String> {
    let here = match &file.net {
        Net::Shm { directory } => {
            (0..file.compute_nodes.len()).map(|node| local_address(directory, node)).collect()
        }
        Net::Tcp { .. } => Vec::new(),
    };
    let servers = file.compute_nodes.iter().filter_map(|node| node.client.as_ref());
    here.into_iter().chain(servers.map(|client| client.address.to_string())).collect()
}
