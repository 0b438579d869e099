//! The back ends: the ways to reach memory, and real threads and clocks (`threads`).
//!
//! Each folder implements `contract::transport` by itself; none imports from another one. Below
//! them are `copies`, verbs as copies within mapped memory (`local` and `shm`), and the rooms `rpc`
//! (the size of its datagrams), `run` and `contract`. `threads` is the real `run::machines`, `sim`
//! has the simulated ones. No protocol is here: lanes, calls and properties are the same for all.

pub(crate) mod copies;
pub mod local;
#[cfg(feature = "rdma")]
pub mod rdma;
pub mod shm;
pub mod sim;
#[cfg(feature = "tcp")]
pub mod tcp;
pub mod threads;
