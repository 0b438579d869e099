//! The protocol between clients and servers, used by both ends: `lotus-client` and `lotus-server`.
//!
//! # What it is
//! * [`stream`]: a connection's bytes, over TCP, TLS or a Unix socket; [`frame`]: framing of the
//!   bytes;
//! * [`handshake`]: proof of the shared key, and the directory of a cluster;
//! * [`messages`]: requests and answers, and their limits; [`table_shape`]: the specification of a
//!   table; [`effect`]: possible changes by a request without an answer;
//! * [`link`]: a connection with many requests in flight, and bounds on the bytes held by either
//!   end.
//!
//! # What it is not
//! Routing and retries belong to the client; queues of calls belong to the server. The crate knows
//! nothing of memory nodes, verbs or locks.

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
