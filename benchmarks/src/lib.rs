//! Workloads, load generation, audits and reports for transaction engines.
//!
//! # What this crate is
//! The workloads of the paper's evaluation ([`kvs`], [`smallbank`], [`tatp`], [`tpcc`]; LOTUS §8),
//! The workloads of the paper's evaluation ([`kvs`], [`smallbank`], [`tatp`], [`tpcc`]; LOTUS §8),
//! the clients that issue their requests, and everything that judges a run: counts and latencies
//! ([`stats`]), invariants of the data ([`audit`]), histories for an isolation checker
//! ([`history`]), and the report ([`report`]). [`harness::run`] puts it together.
//!
//! # What it is not
//! It knows no particular engine. Workloads are written once against [`engine::TxnEngine`] and the
//! harness against [`deployment::Deployment`], so that a baseline can take the place of Lotus. It
//! owns neither time nor threads; both come from the deployment.
//!
//! # Ownership
//! A worker owns its tally and log, a client its randomness, and clients move between workers by
//! value. Shared state is read-only during a run except for queues and a stop flag ([`harness`]).

#![forbid(unsafe_code)]

pub mod audit;
pub mod callgrind;
mod clients;
pub mod config;
pub mod deployment;
#[cfg(test)]
mod end_to_end;
pub mod engine;
pub mod harness;
pub mod history;
pub mod hotspot;
pub mod kvs;
pub mod lotus;
pub mod output;
pub mod progress;
#[cfg(test)]
mod reference;
pub mod report;
pub mod smallbank;
pub mod stats;
pub mod tatp;
pub mod tpcc;
pub mod utilisation;
mod worker;
pub mod workload;
pub mod wrapper;
pub mod zipf;

pub use engine::{AbortReason, TxnError};
