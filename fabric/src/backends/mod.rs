//! The back ends: the ways to reach memory, and real threads and clocks (`threads`).
//!
//! Every back end's folder implements `contract::transport` and imports from no other back end.
//! Below them are `copies`, verbs as copies within mapped memory (`local` and `shm`), and the rooms
//! `rpc` (the size of its datagrams), `run` and `contract`. `threads` implements `run::machines` on
//! real threads, `sim` on simulated machines. No protocol is here: all back ends share lanes, calls
//! and properties.

pub(crate) mod copies;
pub mod local;
#[cfg(feature = "rdma")]
pub mod rdma;
pub mod shm;
pub mod sim;
#[cfg(feature = "tcp")]
pub mod tcp;
pub mod threads;
