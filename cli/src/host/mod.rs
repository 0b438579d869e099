//! The host of this process. `sockets`: a directory for the sockets of a benchmark's nodes;
//! `usage`: what a process uses. Clusters of processes have more in `lotus_node::host`.

pub mod sockets;
pub mod usage;
