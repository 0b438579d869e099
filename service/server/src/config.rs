//! Settings of a server, and their checks.

use crate::exposition::Gauge;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use lotus::TableSpec;
use lotus_protocol::link::Patience;
use lotus_protocol::messages::REQUEST_BYTES;
use lotus_security::{Rules, Security};

/// Settings of a server: one for each compute node.
#[derive(Debug)]
pub struct Config {
    /// Socket for clients, bound already: so ports can be chosen by the system, and all addresses
    /// known, before the first server starts.
    pub listener: TcpListener,
    /// Addresses of the servers of all compute nodes, by index, as clients reach them.
    pub nodes: Vec<String>,
    /// A second door, for clients on this host; none by default.
    pub local: Option<LocalDoor>,
    /// Socket for metrics and health over HTTP; none by default.
    pub metrics: Option<TcpListener>,
    /// Figures of this process that are shown beside the server's own; none by default.
    pub gauges: Vec<Gauge>,
    /// Admission of clients, by a shared key or TLS; by default all are admitted, on loopback only.
    pub security: Security,
    /// Whether clients may create tables; by default they may not.
    pub create_tables: bool,
    /// Whether clients may drop tables, whoever created them; by default they may not.
    pub drop_tables: bool,
    /// Names of tables that clients may not drop; by default there are none.
    pub lasting_tables: Vec<String>,
    /// Coroutines that serve calls, on each coordinator; half of all it has by default.
    pub workers: Option<usize>,
    /// Bounds and patience.
    pub limits: Limits,
    /// Records of calls that have an id.
    pub call_records: CallRecords,
}

/// A door for clients on the same host: a Unix socket, which costs them and the server a fraction
/// of what TCP does. The path's permissions decide which users reach it; [`Config::security`] holds
/// there as well.
#[derive(Debug)]
pub struct LocalDoor {
    /// The socket, bound already. The program that has bound it removes it from its path.
    pub listener: UnixListener,
    /// Addresses of all compute nodes, by index, as clients on this host reach them: `unix:/path`
    /// for those that have such a door here, `host:port` for others.
    pub nodes: Vec<String>,
}

/// Bounds and patience of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections of clients; 1024.
    pub connections: usize,
    /// Connections that have not passed the handshake, at each door, those that wait for their turn
    /// included; beside the others, which they take no place of. 1,024, of which three quarters may
    /// be served at a time for one address, while further ones of it wait.
    pub guests: Rules,
    /// Time limit of a handshake; 2 s.
    pub greeting: Duration,
    /// Requests that one connection may have in flight; it is not read while it has; 256.
    pub in_flight: usize,
    /// Longest request, in bytes; 256 KiB.
    pub request_bytes: usize,
    /// Bytes that one connection may hold: requests that are not answered, and answers that the
    /// client has not taken; 1 MiB. It is not read while it holds more, and no call of it is begun
    /// while answers alone take as much
    /// ([`Failure::Busy`](lotus_protocol::messages::Failure::Busy)).
    pub held_bytes: usize,
    /// The same for all connections together. While they hold more, those that hold more than
    /// 16 KiB wait; 64 MiB.
    pub held_in_all_bytes: usize,
    /// Rows that one interactive transaction may have, with its changes of ordered tables and the
    /// nodes of these that it has read; 4096.
    pub rows: usize,
    /// Time in which a client has to read [`progress_bytes`](Self::progress_bytes) of what waits
    /// for it, or to send as much of a request that it has begun; 10 s.
    pub write_patience: Duration,
    /// Bytes that a client must read or send in that time, unless less is due; 64 KiB.
    pub progress_bytes: usize,
    /// Longest time for which a call is tried, whatever the client asks for; 60 s.
    pub longest_call: Duration,
    /// Time limit of an interactive transaction, and so of its locks; 1 s.
    pub hold: Duration,
    /// Time limit of a scan, and so of its snapshot; 60 s.
    pub scan: Duration,
    /// Longest time between a page of a scan and the request for the next; 5 s.
    pub scan_pause: Duration,
    /// Longest wait for requests in flight when the server stops; 5 s.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            guests: Rules::of(1024),
            greeting: Duration::from_secs(2),
            in_flight: 256,
            request_bytes: REQUEST_BYTES,
            held_bytes: 1 << 20,
            held_in_all_bytes: 64 << 20,
            rows: 4096,
            write_patience: Duration::from_secs(10),
            progress_bytes: Patience::BYTES,
            longest_call: Duration::from_secs(60),
            hold: Duration::from_secs(1),
            scan: Duration::from_secs(60),
            scan_pause: Duration::from_secs(5),
            drain: Duration::from_secs(5),
        }
    }
}

/// Settings of the records of calls that have an id. Records are rows of a table of the cluster, as
/// durable as the calls' effects.
///
/// The first server of a cluster makes that table. From then on its shape decides, in later lives
/// of the cluster as well: a call's row follows from the number of rows, so another number would
/// hide the records that are there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallRecords {
    /// Number of rows of a new table; an id belongs to one of them. Calls with ids in the same row
    /// conflict, so there should be many times more rows than calls in flight; 16,384.
    pub rows: u64,
    /// Bytes of a row of a new table, which hold the records of several calls; 2048. One sixteenth,
    /// from 40 to 240, is kept for calls that are given up.
    pub row_bytes: u32,
    /// Time for which a record is kept; then it makes room for others. It passes by the time on
    /// which all servers agree, and no clock of one node; 10 minutes. Must be the same on all
    /// servers of a cluster.
    pub retention: Duration,
    /// Shape without which the server does not start; none by default, so that it takes the table
    /// as it is.
    pub required: RequiredShape,
}

/// Shape that a table of call records must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequiredShape {
    /// Number of rows; `None` for any.
    pub rows: Option<u64>,
    /// Bytes of a row; `None` for any.
    pub row_bytes: Option<u32>,
}

impl CallRecords {
    /// The settings with the shape of the table `found`.
    ///
    /// # Errors
    /// [`StartError::CallRecords`]: it has not the shape that is required.
    pub(crate) fn of(self, found: &TableSpec) -> Result<Self, StartError> {
        let Self { required, .. } = self;
        let (rows, row_bytes) = (found.capacity, found.record_bytes);
        let differ =
            |setting, required, found| Err(StartError::CallRecords { setting, required, found });
        match required {
            RequiredShape { rows: Some(other), .. } if other != rows => differ("rows", other, rows),
            RequiredShape { row_bytes: Some(other), .. } if other != row_bytes => {
                differ("row_bytes", other.into(), row_bytes.into())
            }
            _ => Ok(Self { rows, row_bytes, ..self }),
        }
    }
}

impl Default for CallRecords {
    fn default() -> Self {
        let (retention, required) = (Duration::from_secs(600), RequiredShape::default());
        Self { rows: 16_384, row_bytes: 2048, retention, required }
    }
}

/// Failure to start a server. Change what the sentence names.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is no such compute node, or not as many addresses as compute nodes.
    #[error("compute node {node} of {nodes}, with {addresses} addresses, makes no sense")]
    Nodes {
        /// The node that was to be served.
        node: usize,
        /// Number of compute nodes.
        nodes: usize,
        /// Number of addresses that were given.
        addresses: usize,
    },
    /// Another process has that compute node.
    #[error("compute node {node} is not one of this process's")]
    Elsewhere {
        /// The node that was to be served.
        node: usize,
    },
    /// Any client on the network would be admitted.
    #[error(
        "{0} is not a loopback address: a shared key or TLS is needed, or an explicit word that \
             all may come in"
    )]
    Exposed(std::net::SocketAddr),
    /// TLS is not spoken through Unix sockets.
    #[error("a local door has no TLS: let clients of this host come over the network, too")]
    SealedDoor,
    /// Workers, an interactive transaction and the engine's own errands need a coroutine each.
    #[error("{workers} workers do not fit beside others on {coroutines} coroutines")]
    Workers {
        /// Number of workers asked for.
        workers: usize,
        /// Number of coroutines on each coordinator.
        coroutines: usize,
    },
    /// A record must outlive every call that it might be about.
    #[error("records are kept for {retention:?}, and a call may take {longest_call:?}")]
    Retention {
        /// Time for which records are kept.
        retention: Duration,
        /// Time limit of a call.
        longest_call: Duration,
    },
    /// The table of call records has another shape than the settings require, which say so for a
    /// new one.
    #[error(
        "calls: {setting} = {required}, but the cluster's table of call records was made with \
         {found}, and remembers calls by that: write {setting} = {found}, or leave it out"
    )]
    CallRecords {
        /// The setting that differs.
        setting: &'static str,
        /// Its value in the settings.
        required: u64,
        /// Its value in the table.
        found: u64,
    },
    /// The table of call records cannot be made.
    #[error("the table of call records: {0}")]
    Records(#[from] lotus::ClusterError),
    /// The system refuses a socket or a thread.
    #[error(transparent)]
    System(#[from] std::io::Error),
}

impl Config {
    /// A server at this listener; `nodes` as in [`Config::nodes`].
    pub fn new(listener: TcpListener, nodes: Vec<String>) -> Self {
        Self {
            listener,
            nodes,
            local: None,
            metrics: None,
            gauges: Vec::new(),
            security: Security::default(),
            create_tables: false,
            drop_tables: false,
            lasting_tables: Vec::new(),
            workers: None,
            limits: Limits::default(),
            call_records: CallRecords::default(),
        }
    }

    /// Checks that the settings fit compute node `node` of this cluster.
    pub(crate) fn check(&self, node: usize, cluster: &lotus::Config) -> Result<(), StartError> {
        let nodes = cluster.compute_nodes;
        if node >= nodes || self.nodes.len() != nodes {
            return Err(StartError::Nodes { node, nodes, addresses: self.nodes.len() });
        }
        let address = self.listener.local_addr()?;
        if !self.security.allows(address.ip()) {
            return Err(StartError::Exposed(address));
        }
        if let Some(local) = &self.local {
            if local.nodes.len() != nodes {
                return Err(StartError::Nodes { node, nodes, addresses: local.nodes.len() });
            }
            if self.security.seals() {
                return Err(StartError::SealedDoor);
            }
        }
        let (workers, coroutines) = (self.workers(cluster), cluster.coroutines);
        if workers == 0 || workers + 2 > coroutines {
            return Err(StartError::Workers { workers, coroutines });
        }
        let (retention, longest_call) = (self.call_records.retention, self.limits.longest_call);
        if retention <= longest_call {
            return Err(StartError::Retention { retention, longest_call });
        }
        Ok(())
    }

    pub(crate) fn workers(&self, cluster: &lotus::Config) -> usize {
        self.workers.unwrap_or(cluster.coroutines / 2)
    }

    /// Interactive transactions that may be open on each coordinator: the coroutines that workers
    /// leave, less one for the engine's own errands.
    pub(crate) fn interactive(&self, cluster: &lotus::Config) -> usize {
        cluster.coroutines - self.workers(cluster) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_that_is_there_decides_unless_its_shape_is_required_to_be_another() {
        let found = TableSpec::new("lotus.calls").record_bytes(256).capacity(16);
        let wanted = |rows, row_bytes| CallRecords {
            required: RequiredShape { rows, row_bytes },
            ..CallRecords::default()
        };
        for (rows, row_bytes, refused) in [
            (None, None, None),
            (Some(16), None, None),
            (None, Some(256), None),
            (Some(64), None, Some("rows = 64, but")),
            (Some(16), Some(2048), Some("row_bytes = 2048, but")),
            (Some(64), Some(256), Some("made with 16")),
        ] {
            let taken = wanted(rows, row_bytes).of(&found);
            match (taken, refused) {
                (Ok(taken), None) => assert_eq!((taken.rows, taken.row_bytes), (16, 256)),
                (Err(error), Some(said)) => {
                    assert!(error.to_string().contains(said), "{error}");
                }
                (taken, _) => panic!("{rows:?} {row_bytes:?}: {taken:?}"),
            }
        }
    }
}
