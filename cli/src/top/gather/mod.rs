//! Gathers data from sockets, files and threads, without judging it.
//!
//! * `cluster`: the nodes of a cluster, each asked separately, and the authority;
//! * `scrape`: the metrics of one node over HTTP;
//! * `bench`: the lines of a benchmark.

pub mod bench;
#[cfg(feature = "tcp")]
pub mod cluster;
#[cfg(feature = "tcp")]
mod scrape;
