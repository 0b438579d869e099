//! Applications and a server, in one process: the server's integration tests, as one program.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod bad_input;
mod bodies;
mod calls;
mod common;
mod crowds;
mod greedy;
mod interactive;
mod large_values;
mod local;
mod locks;
mod losses;
mod metrics;
mod ordered;
mod parts;
mod paths;
mod records;
mod scans;
mod stalled;
mod tables;
mod tls;
mod typed;
