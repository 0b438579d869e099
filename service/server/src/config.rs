//! Settings of a server, and their checks.

use crate::exposition::Gauge;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use lotus::TableSpec;
use lotus_protocol::link::MinimumProgress;
use lotus_protocol::messages::REQUEST_BYTES;
use lotus_security::{Rules, Security};

/// Settings of the server of one compute node.
#[derive(Debug)]
pub struct Config {
    /// Socket for clients, bound already, so that ports can be chosen by the system, and all
    /// addresses are known, before the first server starts.
    pub listener: TcpListener,
    /// Addresses of the servers of all compute nodes, by index, as clients reach them.
    pub nodes: Vec<String>,
    /// A second door, for clients on this host; none by default.
    pub local: Option<LocalDoor>,
    /// Socket for metrics and health over HTTP; none by default.
    pub metrics: Option<TcpListener>,
    /// Figures of this process shown beside the server's figures; none by default.
    pub gauges: Vec<Gauge>,
    /// Admission of clients, by a shared key or TLS; by default all clients are admitted, on
    /// loopback only.
    pub security: Security,
    /// Whether clients may create tables; by default they may not.
    pub create_tables: bool,
    /// Whether clients may drop tables, including tables of other creators; by default they may
    /// not.
    pub drop_tables: bool,
    /// Names of tables that clients may not drop; none by default.
    pub lasting_tables: Vec<String>,
    /// Coroutines for serving calls, on each coordinator; by default half of the coordinator's
    /// coroutines.
    pub workers: Option<usize>,
    /// Bounds and patience.
    pub limits: Limits,
    /// Records of calls that have an id.
    pub call_records: CallRecords,
}

/// A door for clients on the same host: a Unix socket, which costs clients and server a fraction of
/// TCP's cost. The path's permissions decide which users reach the socket; [`Config::security`]
/// applies to it as well.
#[derive(Debug)]
pub struct LocalDoor {
    /// The socket, bound already. The program that has bound the socket removes the socket's path.
    pub listener: UnixListener,
    /// Addresses of all compute nodes, by index, as clients on this host reach them: `unix:/path`
    /// for nodes with a local door on this host, `host:port` for the remaining nodes.
    pub nodes: Vec<String>,
}

/// Bounds and patience of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections of clients; 1024.
    pub connections: usize,
    /// Connections before the end of the handshake, at each door, including connections waiting for
    /// a turn; admitted connections do not count. 1,024; three quarters of the places may be taken
    /// by one address, while further connections from the address wait.
    pub guests: Rules,
    /// Time limit of a handshake; 2 s.
    pub greeting: Duration,
    /// Requests in flight on one connection; at this number the connection is not read; 256.
    pub in_flight: usize,
    /// Longest request, in bytes; 256 KiB.
    pub request_bytes: usize,
    /// Bytes held by one connection at most: unanswered requests, and answers not taken by the
    /// client; 1 MiB. A connection above the limit is not read, and no call of the connection
    /// begins while answers alone take as much
    /// ([`Failure::Busy`](lotus_protocol::messages::Failure::Busy)).
    pub held_bytes: usize,
    /// Bytes held by all connections together. Above the limit, connections with more than 16 KiB
    /// wait; 64 MiB.
    pub held_in_all_bytes: usize,
    /// Rows of one interactive transaction, including changes of ordered tables and the nodes read
    /// of ordered tables; 4096.
    pub rows: usize,
    /// Time in which a client has to read [`progress_bytes`](Self::progress_bytes) of its queued
    /// answers, or to send as much of a begun request; 10 s.
    pub write_patience: Duration,
    /// Bytes that a client must read or send in this time, unless less is due; 64 KiB.
    pub progress_bytes: usize,
    /// Longest time for which a call is tried, even if the client asks for more; 60 s.
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
            progress_bytes: MinimumProgress::BYTES,
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
/// The first server of a cluster creates the table. From then on the table's shape decides, also
/// after a restart of the cluster: the number of rows determines a call's row, so another number
/// would hide the existing records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallRecords {
    /// Number of rows of a new table; an id belongs to one row. Calls with ids in the same row
    /// conflict, so the rows should outnumber the calls in flight many times; 16,384.
    pub rows: u64,
    /// Bytes of a row of a new table, which holds the records of several calls; 2048. One
    /// sixteenth, from 40 to 240 bytes, is reserved for calls given up.
    pub row_bytes: u32,
    /// Time for which a record is kept before making room for new records. The time is agreed on by
    /// all servers, independent of any node's clock; 10 minutes. Must be the same on all servers of
    /// a cluster.
    pub retention: Duration,
    /// Shape without which the server does not start; none by default: the server takes the table
    /// with any shape.
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
    /// Returns the settings with the shape of the table `found`. All servers derive a call's row
    /// from this shape (I334).
    ///
    /// # Errors
    /// [`StartError::CallRecords`]: the table does not have the required shape.
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

/// Failure to start a server. Change the setting named in the sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The compute node does not exist, or the number of addresses is not the number of compute
    /// nodes.
    #[error("compute node {node} of {nodes}, with {addresses} addresses, makes no sense")]
    Nodes {
        /// The node that was to be served.
        node: usize,
        /// Number of compute nodes.
        nodes: usize,
        /// Number of addresses given.
        addresses: usize,
    },
    /// Another process has the compute node.
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
    /// A record must outlive every call that may refer to the record.
    #[error("records are kept for {retention:?}, and a call may take {longest_call:?}")]
    Retention {
        /// Time for which records are kept.
        retention: Duration,
        /// Time limit of a call.
        longest_call: Duration,
    },
    /// The table of call records does not have the required shape, which the settings specify for a
    /// new table.
    #[error(
        "calls: {setting} = {required}, but the cluster's table of call records was made with \
         {found}, and remembers calls by that: write {setting} = {found}, or leave it out"
    )]
    CallRecords {
        /// The setting that differs.
        setting: &'static str,
        /// The setting's required value.
        required: u64,
        /// The value in the table.
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
    /// Returns the default settings for a server at this listener; `nodes` as in [`Config::nodes`].
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

    /// Checks the settings for compute node `node` of the cluster.
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

    /// Returns the limit of open interactive transactions per coordinator: the coroutines not taken
    /// by workers, less one for the engine's own errands.
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
