//! Settings of a client.

use std::time::Duration;

use lotus_protocol::messages::REQUEST_BYTES;
use lotus_security::Security;

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses of some compute nodes; the first that answers names all of them. `host:port`, or
    /// `unix:/path` for the door that a server on this host may have.
    pub servers: Vec<String>,
    /// The shared key that the servers demand, or TLS with a certificate of this application's own.
    /// The default is neither, for servers that admit every client.
    pub security: Security,
    /// Time limit of a call that sets none of its own; 5 s.
    pub timeout: Duration,
    /// Time limit for connecting, handshake included; 2 s.
    pub connect_timeout: Duration,
    /// Time in which a server has to read 64 KiB of the requests that wait for it, or to send as
    /// much of an answer that it has begun; 10 s.
    pub write_patience: Duration,
    /// Longest request that is sent, in bytes; 256 KiB, which every server takes. A longer one
    /// fails with [`CallError::Request`](crate::CallError::Request).
    pub request_bytes: usize,
    /// Seed for the choice of nodes for read-only transactions and for the length of pauses; give
    /// each client its own.
    pub seed: u64,
}

impl Config {
    /// Settings for a cluster of which this server is part.
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
