//! Workloads, load generation, audits and reports for transaction engines.
//!
//! # What this crate is
//! The workloads of the paper's evaluation ([`kvs`], [`smallbank`], [`tatp`], [`tpcc`]; LOTUS §8)
//! and [`ycsb`]; the clients that issue their requests; and the code that judges a run: counts and
//! latencies ([`stats`]), invariants of the data ([`audit`]), histories for an isolation checker
//! ([`history`]), and the report ([`report`]). [`harness::run`] puts the parts together.
//!
//! # What it is not
//! Workloads and the harness know no particular engine: they are written against
//! [`engine::TxnEngine`] and [`deployment::Deployment`], so that a baseline can take the place of
//! Lotus, which is the folder `engines` and [`on_lotus`]. The crate owns neither time nor threads;
//! both come from the deployment.
//!
//! # Ownership
//! A worker owns its tally and log, a client its randomness, and clients move between workers by
//! value. Shared state is read-only during a run except for queues and a stop flag ([`harness`]).
//!
//! # Rooms
//! Top floor first: `reports` and `on_lotus`, side by side; `drive`; `engines` and `workloads`,
//! side by side; `judge`; `contract`. Each imports only from lower floors.

#![forbid(unsafe_code)]

#[cfg(test)]
mod end_to_end;

mod contract;
mod drive;
mod engines;
mod judge;
pub mod on_lotus;
mod reports;
mod workloads;

pub use contract::engine::{AbortReason, TxnError};
pub use contract::{audit, config, deployment, engine, stats, workload};
pub use drive::{harness, live, progress};
pub use engines::{lotus, wrapper};
pub use judge::{history, utilisation};
pub use reports::{callgrind, origin, output, report, spread, stream};
pub use workloads::{hotspot, kvs, smallbank, tatp, tpcc, ycsb, zipf};
