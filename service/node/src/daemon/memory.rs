//! Memory lent by a memory node, and its metrics.

use std::net::TcpListener;
use std::sync::Arc;

use lotus_fabric::counters::LentResources;
use lotus_fabric::env::Env;
use lotus_fabric::ids::NodeId;
use lotus_fabric::shm::Host;
use lotus_fabric::tcp::{TargetCounters, TcpFabric};
use lotus_server::{Gauge, Metrics};

use super::standing::SharedState;
use crate::config::address::HostPort;
use crate::config::file::{ClusterFile, Net};
use crate::config::name::NodeName;
use crate::host::usage::anonymous_bytes;

/// A node's lent memory; dropping it ends the loan.
pub enum Memory {
    /// Memory mapped by the compute nodes of this host.
    Shm(Host),
    /// Memory reached over sockets, under this node id.
    Tcp(TcpFabric, NodeId),
}

impl Memory {
    /// Starts to lend memory.
    ///
    /// # Errors
    /// A sentence: the address or the socket is taken, or a key is unusable.
    pub fn start(file: &ClusterFile, node: NodeName, env: &Env) -> Result<Arc<Self>, String> {
        let sentence = |error: &dyn std::fmt::Display| error.to_string();
        let id = node.id(file);
        let memory = match (&file.net, file.tcp(id.0).map_err(|error| sentence(&error))?) {
            (Net::Shm { directory }, _) => {
                let host = Host::start(directory, id, file.node_count(), env);
                Self::Shm(host.map_err(|error| sentence(&error))?)
            }
            (_, config) => {
                let config = config.expect("there are two fabrics");
                let fabric = TcpFabric::start(config, env.clone());
                Self::Tcp(fabric.map_err(|error| sentence(&error))?, id)
            }
        };
        Ok(Arc::new(memory))
    }

    /// Whether a compute node has put memory to use here.
    pub fn is_in_use(&self) -> bool {
        let registered = match self {
            Self::Shm(host) => host.lent().registered_bytes,
            Self::Tcp(fabric, id) => fabric.lent(*id).map_or(0, |lent| lent.registered_bytes),
        };
        registered > 0
    }

    fn lent(&self) -> LentResources {
        match self {
            Self::Shm(host) => host.lent(),
            Self::Tcp(fabric, id) => {
                // The process has next to no other memory.
                let used_bytes = anonymous_bytes(std::process::id());
                LentResources { used_bytes, ..fabric.lent(*id).unwrap_or_default() }
            }
        }
    }

    /// Counters of the node's port; `None` over `shm`, which has no port.
    pub fn counters(&self) -> Option<TargetCounters> {
        match self {
            Self::Shm(_) => None,
            Self::Tcp(fabric, id) => fabric.counters(*id),
        }
    }

    /// Serves metrics and health at the file's address, if the file names an address.
    ///
    /// # Errors
    /// A sentence: the address is taken.
    pub fn show(
        self: &Arc<Self>,
        file: &ClusterFile,
        node: NodeName,
        standing: &SharedState,
        env: &Env,
    ) -> Result<Option<Metrics>, String> {
        let Some(address) = &file.memory_nodes[usize::from(node.index)].metrics else {
            return Ok(None);
        };
        let limit = file.settings.memory_bytes as f64;
        let lent =
            |of: fn(LentResources) -> Option<f64>| -> Box<dyn Fn() -> Option<f64> + Send + Sync> {
                let memory = Arc::clone(self);
                Box::new(move || of(memory.lent()))
            };
        let gauge = |name, help, read| Gauge { name, help, label: None, read };
        let gauges = vec![
            gauge(
                "region_bytes",
                "Memory that the node lends to the cluster",
                lent(|lent| Some(lent.registered_bytes as f64)),
            ),
            gauge(
                "region_used_bytes",
                "How much of that is in use: touched, and so taken from the host",
                lent(|lent| lent.used_bytes.map(|bytes| bytes as f64)),
            ),
            gauge(
                "region_limit_bytes",
                "What the cluster's file lets the node lend",
                Box::new(move || Some(limit)),
            ),
            gauge(
                "connections",
                "Connections that are let in, or processes that have the memory mapped",
                lent(|lent| Some(lent.connections as f64)),
            ),
        ];
        let standing = standing.clone();
        let health = Box::new(move || standing.health());
        let listener = bind(address, "metrics")?;
        let shown = Metrics::start(listener, node.to_string(), gauges, health, env);
        shown.map(Some).map_err(|error| format!("metrics cannot be served: {error}"))
    }
}

/// Binds a listener to an address of the file.
///
/// # Errors
/// A sentence with the address and its purpose.
pub fn bind(address: &HostPort, what: &str) -> Result<TcpListener, String> {
    let failed =
        |error: &dyn std::fmt::Display| format!("cannot listen at {address} for {what}: {error}");
    let found = address.look_up().map_err(|error| failed(&error))?;
    TcpListener::bind(found).map_err(|error| failed(&error))
}
