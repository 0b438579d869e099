//! Server of a compute node for applications in other processes.
//!
//! # What it is
//! A [`Server`] beside the engine of each compute node: it runs the stored transactions of a
//! [`Registry`] that `lotus-client` calls by name, holds interactive transactions, and shows
//! metrics and health over HTTP. A server needs only a handle on the cluster and a [`Config`].
//!
//! # What it is not
//! The server starts no node and owns no data. The server's work runs in the coordinators'
//! coroutine slots, like jobs of applications. Connections are tasks beside these slots; `tokio`
//! serves only connections within TLS, on the server's thread.
//!
//! # Ownership
//! The server's thread owns the listening sockets (`server`), connections that are not admitted yet
//! (`shared_guests`), and clients within TLS. A client outside TLS belongs to one coordinator, and
//! the coordinator's thread reads and writes the socket (`connection`). A coordinator's *workers*
//! take requests from the coordinator's queue (`queue`, `worker`) and answer by a `ticket`; a
//! ticket is answered exactly once, also when a job is dropped. Records of calls with an id live in
//! the cluster (`calls`). Tables are created by a separate thread (`table_admin`). Every counter
//! belongs to one thread (`counters`); a scrape adds the counters up (`metrics`), in the format
//! that the scraper asks for (`exposition`, `http`). A process without a server shows its figures
//! by [`Metrics`].

#![forbid(unsafe_code)]

mod call_time;
mod calls;
mod config;
mod connection;
mod counters;
mod exposition;
mod failure;
mod http;
mod interactive;
mod log_limiter;
mod metrics;
mod node;
mod numbered;
mod ordered;
mod queue;
mod registry;
mod retries;
mod scans;
mod server;
mod shared_guests;
mod shown;
mod table_admin;
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
