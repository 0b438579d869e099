//! What a compute node does for applications in other processes.
//!
//! # What it is
//! A [`Server`] beside the engine of each compute node: it runs the stored transactions of a
//! [`Registry`] that `lotus-client` calls by name, holds interactive transactions, and shows
//! metrics and health over HTTP. It needs a handle on the cluster and a [`Config`], nothing else.
//!
//! # What it is not
//! It starts no node and owns no data. What runs, runs in the coordinators' coroutine slots like
//! any other job, and connections are tasks beside them; `tokio` never reaches either.
//!
//! # Who owns what
//! The server's thread owns the door (`server`). A client that was let in belongs to one
//! coordinator, whose thread reads and writes its socket (`connection`). A coordinator's *workers*
//! take requests from its queue (`queue`, `worker`) and answer by a `ticket`, which is answered
//! exactly once whatever becomes of them. What is remembered of calls with an id lives in the
//! cluster (`calls`). Counters belong to one thread each (`counters`) and meet when somebody
//! scrapes them (`metrics`), in the words that the scraper knows (`exposition`, `http`). A process
//! without a server shows what it has to show by [`Metrics`].

#![forbid(unsafe_code)]

mod calls;
mod config;
mod connection;
mod counters;
mod exposition;
mod failure;
mod host;
mod http;
mod interactive;
mod metrics;
mod node;
mod queue;
mod registry;
mod server;
mod shown;
mod sparing;
mod ticket;
mod within;
mod worker;

pub use config::{CallRecords, Config, Limits, LocalDoor, StartError};
pub use exposition::Gauge;
pub use lotus_client::protocol::Kind;
pub use lotus_fabric::tcp::{Key, Security};
pub use registry::{Abort, Registry};
pub use server::Server;
pub use shown::Metrics;
