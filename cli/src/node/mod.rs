//! `lotus mn` and `lotus cn`: one node of a cluster of processes, and the requests that it answers.
//! Imports `apps`, `agree`, `host` and `config`.
//!
//! * `daemon`: the node, from its start to its end; `log`: its log lines; `memory`: memory that it
//!   lends; `turned_away`: connections that it refuses;
//! * `service`: its work for applications; `errands`, `operator`, `copier`: requests of benchmarks,
//!   of operators, and for snapshots, each with the asking side;
//! * `snapshots`: files of snapshots, which a cluster begins with.
//!
//! Not here: the protocol, which the engine carries out. A node that is started by hand, or by an
//! init system, is as good as one that `lotus cluster up` has started.

pub mod copier;
pub mod daemon;
pub mod errands;
mod log;
mod memory;
pub mod operator;
mod service;
pub mod snapshots;
mod turned_away;
