//! Loads on lock systems, their audits and their results.
//!
//! # What it is
//! Clients on the lanes of a machine, which take and release locks of any
//! [`Locker`](lotus_locksystems::Locker) or lock system on memory nodes, and what they find out:
//! who held what at a time, how long it took, and whether every lock is free at the end.
//!
//! # What it is not
//! Transactions of Lotus: their workloads and clients are in `lotus-benchmarks`, whose key
//! distributions, deployments' errors and progress this crate uses.
//!
//! # Rooms
//! Folders, top floor first; each imports only from lower floors: `index`, load on a tree under a
//! lock system; `bank`, a bank under a lock system; `two_phase`, transactions of a trace under a
//! lock system; `locks`, load on a lock system alone; `lanes`, the clients of these four loads;
//! `traces`, transactions as the locks that they take.

#![forbid(unsafe_code)]

pub mod bank;
pub mod index;
pub mod lanes;
pub mod locks;
pub mod traces;
pub mod two_phase;
