//! Client library: transactions from another process.
//!
//! # What it is
//! [`Client`], with which an application calls stored transactions by name, runs interactive
//! transactions, scans and creates tables, over one connection to each compute node. Client and
//! server speak `lotus-protocol`.
//!
//! # What it is not
//! The library runs no transaction, holds no lock and caches no data, and depends on no crate that
//! does. Of the engine, the library knows only how a key leads to a shard (LOTUS §4.2) and what a
//! table's specification is.
//!
//! # Ownership
//! A [`Client`] owns the connections, with a task per connection, and the list of doubted nodes; a
//! connection owns the table of waiting requests; a [`Transaction`] owns the values read. `map` and
//! `retry` decide, `client` sends.
//!
//! # Outcomes
//! A body given to [`Client::run`] commits by returning `Ok`, and is run again after conflicts.
//! Every error says what the request has changed ([`CallError::effect`]): nothing, everything, or
//! unknown. A call with an id ([`Call::idempotent`]) can be repeated in any case, and
//! [`Client::outcome`] finds out for good whether the call committed (H21).

#![forbid(unsafe_code)]

mod client;
mod config;
mod connection;
mod error;
mod map;
mod nodes;
mod ordered;
mod reach;
mod retry;
mod run;
mod scan;
mod transaction;
mod typed;

pub use client::{Call, Client};
pub use config::Config;
pub use error::{CallError, ConnectError, Rejection};
pub use lotus_fabric::ids::TableId;
pub use lotus_mvcc::{CriticalField, Inline, PrimaryKey, TableSpec};
pub use lotus_protocol::effect::Effect;
pub use lotus_protocol::messages::{CallId, Failure, Kind, Table};
pub use lotus_rows::path;
pub use lotus_security::{Key, Security, WeakKey};
pub use ordered::{OrderedTable, Range};
pub use run::Committed;
pub use scan::{Rows, Scan};
pub use transaction::{Item, Transaction};
