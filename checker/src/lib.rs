//! Judges what a database did by what its clients saw.
//!
//! A [`History`] lists attempts of transactions: what each read and wrote, when it began and
//! ended, and what it was told about its outcome. [`check`] says whether the isolation levels that
//! the attempts asked for can account for that, and if not, which transactions contradict each
//! other and how.
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
//! There is an order of the transactions that took effect in which each of them, run at one point
//! in time (`sr`) or with its reads at one and its writes at a later point (`si`), reads just what
//! it has read, and nobody writes a row between the two points of an `si` transaction that writes
//! it as well. The order keeps the sessions' order and, if asked for, that of real time. Besides:
//! - nobody read what was aborted, never written, replaced by its writer, or another row's;
//! - commit timestamps agree with the order that updates show;
//! - reads at a snapshot are what the commit timestamps say, and so are the writes over it.
//!
//! # What it does not prove
//! - That the database is right: only that this run was.
//! - Anything about transactions that nobody can tell to have happened: the write order is known
//!   from commit timestamps and from updates. A writer that reported neither has no place in it,
//!   and a dependency on that place is not seen. A history whose committed writers all report
//!   `cts`, as Lotus's do, is judged completely, but for writers of unknown outcome.
//! - Anything about absence. `null` means the initial state, so a scan that missed a row shows
//!   only if the history reports the index rows that it went through.
//! - That all was stored: compare the last versions with what is there.
//! - That values are right: versions stand for them.
//!
//! # How it works
//! [`trace`] finds out who wrote what was read and which attempts of unknown outcome took effect;
//! [`write_order`] in which order versions were written, from two sources that must agree;
//! [`graph`] is who comes before whom, and has the rule that judges both levels together;
//! [`components`] and [`search`] find cycles in it. What must hold is in `properties`, one file
//! each.
//!
//! # Who depends on what
//! On nothing but the standard library, so that the judge shares no code with the judged.
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
