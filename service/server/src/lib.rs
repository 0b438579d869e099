//! Server of a compute node for applications in other processes.
//!
//! # What it is
//! A [`Server`] beside the engine of each compute node: it runs the stored transactions of a
//! [`Registry`] that `lotus-client` calls by name, holds interactive transactions, and shows
//! metrics and health over HTTP. It needs a handle on the cluster and a [`Config`], nothing else.
//!
//! # What it is not
//! It starts no node and owns no data. Its work runs in the coordinators' coroutine slots like any
//! other job. Connections are tasks beside them; only those within TLS are served by `tokio`, on
//! the server's thread.
//!
//! # Ownership
//! The server's thread owns the door (`server`), connections that are not admitted yet (`hall`),
//! and clients within TLS. Any other client belongs to one coordinator, and its thread reads and
//! writes the socket (`connection`). A coordinator's
//! *workers* take requests from its queue (`queue`, `worker`) and answer by a `ticket`, which is
//! answered exactly once whatever becomes of them. Records of calls with an id live in the cluster
//! (`calls`). Tables are created by a thread of their own (`clerk`). Counters belong to one thread
//! each (`counters`) and are added up by a scrape (`metrics`), in the format that the scraper asks
//! for (`exposition`, `http`). A process without a server shows its figures by [`Metrics`].

#![forbid(unsafe_code)]

mod call_time;
mod calls;
mod clerk;
mod config;
mod connection;
mod counters;
mod exposition;
mod failure;
mod hall;
mod host;
mod http;
mod interactive;
mod metrics;
mod node;
mod numbered;
mod ordered;
mod queue;
mod registry;
mod retries;
mod scans;
mod server;
mod shown;
mod sparing;
mod ticket;
mod within;
mod worker;

pub use call_time::is_call_time;
pub use config::{CallRecords, Config, Limits, LocalDoor, RequiredShape, StartError};
pub use exposition::Gauge;
pub use http::CONNECTIONS as METRICS_CONNECTIONS;
pub use lotus::Abort;
pub use lotus_protocol::messages::Kind;
pub use lotus_security::{Key, Rules, Security};
pub use registry::Registry;
pub use server::Server;
pub use shown::{Health, Metrics};
