//! One benchmark of transactions, from its flags to a report, and the screens of a program: the
//! code that the programs `lotus` and `lotus-lab` share.
//!
//! A program chooses where a workload runs ([`bench::Place`]): on a cluster of the benchmark's own
//! ([`bench::deploy::OwnCluster`]), a running cluster (`lotus bench --cluster`), or another engine
//! (`lotus-lab bench --engine`).
//!
//! # Floors
//! A room imports only from rooms on lower floors:
//! * `documents`: helpers of tests that compare documents with a program;
//! * `bench`: from checked flags to a report;
//! * `applications`: load from outside of the compute nodes;
//! * `args`, `host`, `show`: flags, this host, and the output.

#![forbid(unsafe_code)]

#[cfg(feature = "tcp")]
pub mod applications;
pub mod args;
pub mod bench;
#[doc(hidden)]
pub mod documents;
pub mod host;
pub mod show;
