//! Output of a check, for a person and for a program.
//!
//! [`Findings`] is the JSON, field by field; [`Findings::text`] is the same as text for a person.
//! This module does not judge.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use lotus_benchmarks::report::grouped;
use lotus_checker::{Anomaly, History, Report, Status, Violation};
use lotus_security::printable;
use serde::{Serialize, Serializer};

use lotus_runner::show::Verdict;

/// The result of a check.
#[derive(Debug, Serialize)]
pub struct Findings {
    /// The name of the history.
    history: String,
    /// Whether the check demanded real-time order.
    strict: bool,
    /// Whether transactions were judged, and no violation was found.
    passed: bool,
    #[serde(flatten)]
    size: Size,
    /// Number of transactions that took effect and were judged.
    transactions: usize,
    /// Duration of reading, in seconds.
    read_s: f64,
    /// Duration of checking, in seconds.
    check_s: f64,
    /// Number of violations of each kind, most basic kinds first; kinds without violations are
    /// omitted.
    #[serde(serialize_with = "as_object")]
    anomalies: Vec<(&'static str, u64)>,
    /// The first few violations of each kind.
    violations: Vec<Evidence>,
}

/// Size of a history.
#[derive(Debug, Serialize)]
struct Size {
    attempts: usize,
    committed: usize,
    aborted: usize,
    unknown: usize,
    sessions: usize,
    operations: usize,
    rows: usize,
}

/// A violation, for a program.
#[derive(Debug, Serialize)]
struct Evidence {
    anomaly: &'static str,
    /// Ids of the transactions involved.
    transactions: Vec<u64>,
    /// Order of the transactions, with a reason for each edge.
    edges: Vec<Edge>,
    /// The violation as text for a person.
    text: String,
}

#[derive(Debug, Serialize)]
struct Edge {
    from: u64,
    to: u64,
    dependency: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    row: Option<String>,
}

/// Durations of the parts of a check.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Reading the history.
    pub read: Duration,
    /// Judging the history.
    pub check: Duration,
}

impl Findings {
    /// Findings of `report` on `history`, named `name`.
    pub fn new(
        name: String,
        strict: bool,
        history: &History,
        report: &Report,
        times: Times,
    ) -> Self {
        let count = |anomaly: Anomaly| (anomaly.name(), report.count(anomaly));
        Self {
            history: name,
            strict,
            passed: report.is_clean() && report.transactions > 0,
            size: Size::of(history),
            transactions: report.transactions,
            read_s: times.read.as_secs_f64(),
            check_s: times.check.as_secs_f64(),
            anomalies: report.anomalies().map(count).collect(),
            violations: report.violations.iter().map(Evidence::of).collect(),
        }
    }

    /// The findings as text for a person: several lines, ending with the verdict and a line break.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (what, figures) in self.summary() {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "{what:<14}{figures}");
        }
        text.push('\n');
        for violation in &self.violations {
            let _ = writeln!(text, "{}", violation.text);
        }
        text.push_str(&self.last_line());
        text.push('\n');
        text
    }

    /// The verdict. A history without an effective transaction proves nothing.
    pub fn verdict(&self) -> Verdict {
        match (self.anomalies.is_empty(), self.passed) {
            (false, _) => Verdict::Unsound,
            (true, false) => Verdict::Unjudged,
            (true, true) => Verdict::Sound,
        }
    }

    fn summary(&self) -> [(&'static str, String); 5] {
        let Size { attempts, committed, aborted, unknown, sessions, operations, rows } = self.size;
        let [attempts, committed, aborted, unknown, sessions, operations, rows] =
            [attempts, committed, aborted, unknown, sessions, operations, rows]
                .map(|count| grouped(count as u64));
        let transactions = grouped(self.transactions as u64);
        let demands = if self.strict {
            "isolation, session order and real time"
        } else {
            "isolation and session order"
        };
        [
            ("history", printable(&self.history).into_owned()),
            (
                "attempts",
                format!(
                    "{attempts} in {sessions} sessions: {committed} committed, {aborted} aborted, \
                     {unknown} unknown"
                ),
            ),
            ("operations", format!("{operations} on {rows} rows")),
            ("judged", format!("{transactions} transactions, for {demands}")),
            ("time", format!("{:.3} s to read, {:.3} s to check", self.read_s, self.check_s)),
        ]
    }

    fn last_line(&self) -> String {
        match self.verdict() {
            Verdict::Sound => return "check passed".to_owned(),
            Verdict::Unjudged => {
                return "check judged nothing: no transaction took effect".to_owned();
            }
            Verdict::Unsound => {}
        }
        let count = |(name, count): &(&str, u64)| {
            let shown = self.violations.iter().filter(|shown| shown.anomaly == *name).count();
            let all_shown = *count == shown as u64;
            let note =
                if all_shown { String::new() } else { format!(" (the first {shown} shown)") };
            format!("{name} x {}{note}", grouped(*count))
        };
        let counts: Vec<String> = self.anomalies.iter().map(count).collect();
        format!("check FAILED: {}", counts.join(", "))
    }
}

fn as_object<S: Serializer>(
    pairs: &[(&'static str, u64)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().copied())
}

impl Size {
    fn of(history: &History) -> Self {
        let attempts = history.attempts();
        let with = |status| attempts.iter().filter(|attempt| attempt.status == status).count();
        let sessions: BTreeSet<u64> = attempts.iter().map(|attempt| attempt.session).collect();
        Self {
            attempts: attempts.len(),
            committed: with(Status::Committed),
            aborted: with(Status::Aborted),
            unknown: with(Status::Unknown),
            sessions: sessions.len(),
            operations: history.operation_count(),
            rows: history.row_count(),
        }
    }
}

impl Evidence {
    fn of(violation: &Violation) -> Self {
        let edge = |edge: &lotus_checker::Edge| Edge {
            from: edge.from,
            to: edge.to,
            dependency: edge.dependency.to_string(),
            row: edge.row.clone(),
        };
        Self {
            anomaly: violation.anomaly.name(),
            transactions: violation.transactions.clone(),
            edges: violation.edges.iter().map(edge).collect(),
            text: printable(&violation.to_string()).into_owned(),
        }
    }
}
