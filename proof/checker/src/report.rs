//! The findings of a check, and their text.
//!
//! This module decides nothing. The number of violations with details is limited for each kind of
//! anomaly, so that a frequent kind does not hide the others; every violation is counted.

use std::collections::BTreeSet;
use std::fmt;

use crate::history::{AttemptIndex, History, RowIndex};

/// Kinds of anomalies. Names without a reference are this project's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Anomaly {
    /// Two transactions wrote the same version of a row.
    DuplicateVersion,
    /// A transaction disagreed with its own earlier reads and writes.
    Internal,
    /// A read returned a version that was never written.
    UnwrittenRead,
    /// A read returned a version of another row.
    RecycledRead,
    /// G1a, aborted read (Adya, thesis, chapter 3).
    G1a,
    /// G1b, intermediate read (Adya, thesis, chapter 3).
    G1b,
    /// Commit timestamps contradict the order that updates show.
    VersionOrder,
    /// Two transactions updated the same version of a row.
    LostUpdate,
    /// A read from a snapshot did not return the newest version at that time.
    SnapshotRead,
    /// G-SIa, interference (Adya, thesis, chapter 4): a transaction under snapshot isolation
    /// overwrote a version that its snapshot does not show.
    GSIa,
    /// G0, write cycle (Adya, thesis, chapter 3).
    G0,
    /// G1c, circular information flow (Adya, thesis, chapter 3).
    G1c,
    /// G-single, a cycle with one anti-dependency (Adya, thesis, chapter 4).
    GSingle,
    /// A cycle with several anti-dependencies, no two of them adjacent.
    GNonadjacent,
    /// G2, a cycle with adjacent anti-dependencies, such as write skew (Adya, thesis, chapter 3).
    G2,
    /// A cycle that exists only with the session order.
    SessionOrder,
    /// A cycle that exists only with the real-time order.
    RealTime,
}

impl Anomaly {
    /// All kinds, in the order of a report.
    pub const ALL: [Self; 17] = [
        Self::DuplicateVersion,
        Self::Internal,
        Self::UnwrittenRead,
        Self::RecycledRead,
        Self::G1a,
        Self::G1b,
        Self::VersionOrder,
        Self::LostUpdate,
        Self::SnapshotRead,
        Self::GSIa,
        Self::G0,
        Self::G1c,
        Self::GSingle,
        Self::GNonadjacent,
        Self::G2,
        Self::SessionOrder,
        Self::RealTime,
    ];

    /// Short name, such as `G-single`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DuplicateVersion => "duplicate-version",
            Self::Internal => "internal",
            Self::UnwrittenRead => "unwritten-read",
            Self::RecycledRead => "recycled-read",
            Self::G1a => "G1a",
            Self::G1b => "G1b",
            Self::VersionOrder => "version-order",
            Self::LostUpdate => "lost-update",
            Self::SnapshotRead => "snapshot-read",
            Self::GSIa => "G-SIa",
            Self::G0 => "G0",
            Self::G1c => "G1c",
            Self::GSingle => "G-single",
            Self::GNonadjacent => "G-nonadjacent",
            Self::G2 => "G2",
            Self::SessionOrder => "session-order",
            Self::RealTime => "real-time",
        }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reason why one transaction comes before another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dependency {
    /// Wrote the version of a row directly before the other's version.
    WriteWrite,
    /// Wrote the version read by the other.
    WriteRead,
    /// Read the version replaced by the other: an anti-dependency.
    ReadWrite,
    /// Came before the other in the session.
    Session,
    /// Ended before the other started.
    RealTime,
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriteWrite => "ww",
            Self::WriteRead => "wr",
            Self::ReadWrite => "rw",
            Self::Session => "session",
            Self::RealTime => "real time",
        })
    }
}

/// A step of a violation's evidence: `T17 --rw(acct/9)--> T23`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edge {
    /// Id of the earlier transaction.
    pub from: u64,
    /// Id of the later transaction.
    pub to: u64,
    /// Reason for this order.
    pub dependency: Dependency,
    /// Row of the dependency, as `table/key`.
    pub row: Option<String>,
}

/// An anomaly with evidence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Kind of the anomaly.
    pub anomaly: Anomaly,
    /// Ids of the transactions involved, without duplicates.
    pub transactions: Vec<u64>,
    /// Dependencies between the transactions: a cycle if the anomaly is a cycle, otherwise at most
    /// one edge.
    pub edges: Vec<Edge>,
    /// A sentence on the course of events; empty if the edges suffice.
    pub story: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.anomaly)?;
        if !self.story.is_empty() {
            return f.write_str(&self.story);
        }
        for edge in &self.edges {
            write!(f, "T{} --{}", edge.from, edge.dependency)?;
            if let Some(row) = &edge.row {
                write!(f, "({row})")?;
            }
            f.write_str("--> ")?;
        }
        self.edges.last().map_or(Ok(()), |edge| write!(f, "T{}", edge.to))
    }
}

/// The outcome of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Violations, most basic anomalies first, within the limit for each kind.
    pub violations: Vec<Violation>,
    /// Number of attempts that took effect.
    pub transactions: usize,
    /// Number of violations of each anomaly.
    counts: [u64; Anomaly::ALL.len()],
}

impl Report {
    /// Whether there are no violations.
    pub fn is_clean(&self) -> bool {
        self.counts.iter().all(|count| *count == 0)
    }

    /// Number of violations of one kind, with or without details. A tangle of transactions may have
    /// more cycles: the search is limited to a few.
    pub fn count(&self, anomaly: Anomaly) -> u64 {
        self.counts[anomaly as usize]
    }

    /// Kinds with violations, most basic first.
    pub fn anomalies(&self) -> impl Iterator<Item = Anomaly> {
        Anomaly::ALL.into_iter().filter(|anomaly| self.count(*anomaly) > 0)
    }
}

/// A line for each violation, then the counts, or `no violation`.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        write!(f, "{} transactions, ", self.transactions)?;
        if self.is_clean() {
            return f.write_str("no violation");
        }
        for (nth, anomaly) in self.anomalies().enumerate() {
            let comma = if nth == 0 { "" } else { ", " };
            write!(f, "{comma}{anomaly} × {}", self.count(anomaly))?;
        }
        Ok(())
    }
}

/// Collects violations while a check runs.
pub(crate) struct Findings<'h> {
    history: &'h History,
    limit: u64,
    violations: Vec<Violation>,
    counts: [u64; Anomaly::ALL.len()],
}

/// An [`Edge`] by index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CycleStep {
    pub(crate) from: AttemptIndex,
    pub(crate) to: AttemptIndex,
    pub(crate) dependency: Dependency,
    pub(crate) row: Option<RowIndex>,
}

impl<'h> Findings<'h> {
    pub(crate) fn new(history: &'h History, limit: usize) -> Self {
        let counts = [0; Anomaly::ALL.len()];
        Self { history, limit: limit as u64, violations: Vec::new(), counts }
    }

    /// Name of an attempt such as `T17`, for the text of a violation.
    pub(crate) fn name(&self, attempt: AttemptIndex) -> String {
        format!("T{}", self.history.attempt(attempt).id)
    }

    /// Counts a violation. Records the violation with the text of `story` if the limit allows.
    pub(crate) fn add(
        &mut self,
        anomaly: Anomaly,
        attempts: &[AttemptIndex],
        steps: &[CycleStep],
        story: impl FnOnce(&Self) -> String,
    ) {
        let count = self.counts[anomaly as usize];
        self.counts[anomaly as usize] += 1;
        if count >= self.limit {
            return;
        }
        let id = |attempt: AttemptIndex| self.history.attempt(attempt).id;
        let mut seen = BTreeSet::new();
        let involved = attempts.iter().copied().chain(steps.iter().map(|step| step.from));
        let transactions = involved.map(id).filter(|id| seen.insert(*id)).collect();
        let edge = |step: &CycleStep| Edge {
            from: id(step.from),
            to: id(step.to),
            dependency: step.dependency,
            row: step.row.map(|row| self.history.row(row).to_string()),
        };
        let edges = steps.iter().map(edge).collect();
        let story = story(self);
        self.violations.push(Violation { anomaly, transactions, edges, story });
    }

    pub(crate) fn report(mut self, transactions: usize) -> Report {
        self.violations.sort_by_key(|violation| violation.anomaly);
        Report { violations: self.violations, transactions, counts: self.counts }
    }
}
