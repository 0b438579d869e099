//! Settings of a client.

use std::time::Duration;

use lotus_protocol::messages::REQUEST_BYTES;
use lotus_security::Security;

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses of some compute nodes; the first node that answers names all compute nodes.
    /// `host:port`, or `unix:/path` for the Unix socket of a server on this host.
    pub servers: Vec<String>,
    /// The shared key that the servers demand, or TLS with this application's own certificate. The
    /// default is neither, for servers that admit every client.
    pub security: Security,
    /// Time limit of a call without a limit of its own; 5 s.
    pub timeout: Duration,
    /// Time limit for connecting, handshake included; 2 s.
    pub connect_timeout: Duration,
    /// Time in which a server has to read 64 KiB of the queued requests, or to send as much of an
    /// answer that it has begun; 10 s.
    pub write_patience: Duration,
    /// Longest request that is sent, in bytes; 256 KiB, which every server takes. A longer request
    /// fails with [`CallError::Request`](crate::CallError::Request).
    pub request_bytes: usize,
    /// Seed for the choice of nodes for read-only transactions and for the length of pauses; give
    /// each client a different seed.
    pub seed: u64,
}

impl Config {
    /// Settings for the cluster to which this server belongs.
    pub fn new(server: impl Into<String>) -> Self {
        Self {
            servers: vec![server.into()],
            security: Security::default(),
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            write_patience: Duration::from_secs(10),
            request_bytes: REQUEST_BYTES,
            // Clients that start at different times choose differently.
            seed: lotus_fabric::env::Env::real(0).now().0,
        }
    }
}
