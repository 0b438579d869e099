//! The host of this process, as the kernel shows it: processes, signals, memory, sockets. Imports
//! `config`.
//!
//! * `processes`: the nodes running here, and the directory with their process ids; `usage`: memory
//!   of a process; `memory`: whether the memory nodes fit; `descriptors`: whether open files
//!   suffice; `sockets`: the nodes' sockets;
//! * `stop`: telling a process to end; `polling`: waiting for a condition; `fault_point`: steps at
//!   which the process kills or stops itself.
//!
//! Not in this folder: remote hosts, and agreement between nodes.

pub mod descriptors;
#[cfg(feature = "fault-points")]
pub mod fault_point;
pub mod memory;
pub mod polling;
pub mod processes;
pub mod sockets;
pub mod stop;
pub mod usage;
