//! Requests to nodes, each with the asking side. Imports `snapshots`, `agree` and `config`.
//!
//! * `operator`: operators' requests: figures, owners, moves of shards; `copier`: snapshots, and
//!   rest.

pub mod copier;
pub mod operator;
