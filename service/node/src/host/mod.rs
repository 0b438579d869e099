//! The host of this process, as the kernel shows it: processes, signals, memory, sockets. Imports
//! `config`.
//!
//! * `processes`: the nodes that run here, and the directory that remembers them; `usage`: what a
//!   process uses; `memory`: whether the memory nodes fit; `descriptors`: whether open files do;
//!   `sockets`: the nodes' sockets;
//! * `stop`: how a process is told to end; `polling`: waiting for a condition; `fault_point`: steps
//!   at which this process strikes itself.
//!
//! Not here: other hosts, and what the nodes agree on.

pub mod descriptors;
#[cfg(feature = "fault-points")]
pub mod fault_point;
pub mod memory;
pub mod polling;
pub mod processes;
pub mod sockets;
pub mod stop;
pub mod usage;
