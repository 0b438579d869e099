//! The host of this process. `sockets`: a directory for the sockets of a benchmark's nodes;
//! `usage`: resources used by a process; `origin`: the program, the machine and the time of a
//! result. Clusters of processes have more in `lotus_node::host`.

pub mod origin;
pub mod sockets;
pub mod usage;
