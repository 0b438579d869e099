//! The workloads of the paper's evaluation, with the distributions that they draw from.
//!
//! Imports from `contract` only. Workloads know no engine: each is written once against
//! `contract::engine`.

pub mod hotspot;
pub mod kvs;
pub mod smallbank;
pub mod tatp;
pub mod tpcc;
pub mod ycsb;
pub mod zipf;
