//! Checks a database's isolation from the history that its clients recorded.
//!
//! A [`History`] lists attempts of transactions: their reads and writes, begin and end, and the
//! outcome reported to the client. [`check`] decides whether the requested isolation levels allow
//! the history, and if not, which transactions conflict and how.
//!
//! ```
//! use lotus_checker::{Anomaly, History, Options, check};
//!
//! // Both read what the other is about to overwrite: write skew.
//! let lines = concat!(
//!     r#"{"id":1,"session":1,"start":0,"end":9,"iso":"sr","status":"ok","cts":5,"#,
//!     r#""ops":[["r","acct",1,null],["w","acct",2,50]]}"#,
//!     "\n",
//!     r#"{"id":2,"session":2,"start":1,"end":8,"iso":"sr","status":"ok","cts":6,"#,
//!     r#""ops":[["r","acct",2,null],["w","acct",1,60]]}"#,
//! );
//! let history = History::read(lines.as_bytes())?;
//! let report = check(&history, &Options::default());
//! assert_eq!(report.count(Anomaly::G2), 1);
//! assert_eq!(
//!     report.violations[0].to_string(),
//!     "G2: T1 --rw(acct/1)--> T2 --rw(acct/2)--> T1",
//! );
//! # Ok::<(), lotus_checker::HistoryError>(())
//! ```
//!
//! # What a clean report proves
//! All reads are explained by an order of the effective transactions: a transaction runs at one
//! point in time (`sr`), or reads at one point and writes at a later point (`si`), and between the
//! two points of an `si` transaction no other transaction writes a row of its write set. The order
//! keeps the sessions' order and, if requested, the real-time order. Besides:
//! - no read returned an aborted, unwritten or intermediate version, or a version of another row;
//! - commit timestamps agree with the order that updates show;
//! - reads at a snapshot, and writes over it, are as the commit timestamps require.
//!
//! # What it does not prove
//! - That the database is right: only that this run was.
//! - Anything about writers without a place in the write order. Commit timestamps and updates show
//!   the write order; dependencies on a writer that reported neither are not seen. A history whose
//!   committed writers all report `cts`, as Lotus's do, is judged completely, except for writers of
//!   unknown outcome.
//! - Anything about absence. `null` means the initial state, so a scan that missed a row shows only
//!   if the history reports the index rows that the scan read.
//! - That every write was stored: compare the last versions with the stored versions.
//! - That values are right: the history has only their versions.
//!
//! # How it works
//! [`trace`] finds the writer of every version read, and the attempts of unknown outcome that took
//! effect. [`write_order`] finds the order in which versions were written, from two sources that
//! must agree. [`graph`] is the dependency graph, with the rule for judging both levels together.
//! [`components`] and [`search`] find cycles in the graph. Each property has a file in
//! `properties`.
//!
//! # Dependencies
//! Only the standard library: the checker shares no code with the checked database.
#![forbid(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links, reason = "the essay is for readers of the code as well")]

mod check;
mod components;
mod error;
mod graph;
mod history;
mod json;
mod properties;
mod read;
mod report;
mod search;
mod trace;
mod write_order;

pub use check::{Options, RealTime, SessionOrder, check};
pub use error::{HistoryError, Problem};
pub use history::{Access, Attempt, Builder, History, Isolation, Key, Operation, Status};
pub use report::{Anomaly, Dependency, Edge, Report, Violation};
