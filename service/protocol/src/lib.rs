//! What clients and servers say to each other, for both ends: `lotus-client` and `lotus-server`.
//!
//! # What it is
//! * [`stream`]: a connection's bytes, over TCP, TLS or a Unix socket; [`frame`]: pieces of them;
//! * [`handshake`]: proof of the shared key, and the directory of a cluster;
//! * [`messages`]: requests and answers, and their limits; [`table_shape`]: the specification of a
//!   table; [`effect`]: what a request without an answer may have changed;
//! * [`link`]: a connection with many requests in flight, and bounds on what either end holds.
//!
//! # What it is not
//! Routing and retries, which are the client's, or queues of calls, which are the server's. It
//! knows nothing of memory nodes, verbs or locks.

#![forbid(unsafe_code)]

pub mod effect;
pub mod frame;
pub mod handshake;
pub mod link;
pub mod messages;
mod samples;
mod steps;
pub mod stream;
pub mod table_shape;
