//! Client library: transactions from another process.
//!
//! # What it is
//! [`Client`], with which an application calls stored transactions by name and runs interactive
//! ones, over one connection to each compute node; and the protocol that both ends speak
//! ([`protocol`], [`handshake`], [`frame`], [`stream`], [`link`]), which `lotus-server` uses as
//! well.
//!
//! # What it is not
//! It runs no transaction, holds no lock and caches no data. It depends on none of the crates that
//! do: of the engine it knows how a key leads to a shard (LOTUS §4.2), and nothing else.
//!
//! # Ownership
//! A [`Client`] owns its connections, each driven by one task; a connection owns the table of
//! waiting requests; a [`Transaction`] owns what it has read. `map` and `retry` decide, `client`
//! sends.
//!
//! # Outcomes
//! Every error says what the request has changed ([`CallError::effect`]): nothing, everything, or
//! unknown which. A call with an id ([`Call::idempotent`]) can be repeated in any case, and
//! [`Client::outcome`] finds out for good whether it committed (H21).

#![forbid(unsafe_code)]

mod client;
mod config;
mod connection;
mod error;
pub mod frame;
pub mod handshake;
pub mod link;
mod map;
pub mod protocol;
mod retry;
pub mod stream;
mod transaction;

pub use client::{Call, Client};
pub use config::Config;
pub use error::{CallError, ConnectError, Effect, Rejection};
pub use lotus_fabric::ids::TableId;
pub use lotus_fabric::tcp::{Key, Security, WeakKey};
pub use lotus_mvcc::PrimaryKey;
pub use protocol::{CallId, Failure, Kind};
pub use transaction::{Item, Transaction};
