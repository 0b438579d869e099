//! What is learnt, and how: sockets, files and threads. Judges nothing.
//!
//! * `cluster`: the nodes of a cluster, each asked for itself, and the authority;
//! * `scrape`: the metrics of one node over HTTP;
//! * `bench`: the lines of a benchmark.

pub mod bench;
#[cfg(feature = "tcp")]
pub mod cluster;
#[cfg(feature = "tcp")]
mod scrape;
