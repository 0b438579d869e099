//! Report of `lotus chaos`: a table for people, JSON for programs.

use std::fmt::Write as _;

use comfy_table::Table;
use lotus_benchmarks::audit::Audit;
use serde::Serialize;

use super::schedule::Strike;
use lotus_node::config::name::NodeName;

/// Result of a run of `lotus chaos`.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Path of the cluster's file.
    pub file: String,
    /// Seed of random choices.
    pub seed: u64,
    /// Duration of the load, in seconds.
    pub secs: f64,
    /// Name of the workload.
    pub workload: &'static str,
    /// Strikes carried out.
    pub schedule: Vec<Strike>,
    /// Number of kills, pauses and cuts of the schedule left out for lack of time.
    pub strikes_left_out: usize,
    /// Number of starts of nodes struck before the node took part.
    pub starts_struck: usize,
    /// Number of snapshots reported as taken, including those of `down` and of checks.
    pub snapshots: usize,
    /// Number of snapshots requested but not taken.
    pub snapshots_failed: usize,
    /// Number of snapshots struck while in progress.
    pub snapshots_struck: usize,
    /// Number of times the cluster was ended with a snapshot and started from that snapshot.
    pub restores: usize,
    /// Number of restores that were struck.
    pub restores_struck: usize,
    /// Number of times that the whole cluster had to start anew before it served.
    pub begun_anew: usize,
    /// Epoch of the membership at the end.
    pub epoch: Option<u32>,
    /// Nodes that no longer take part.
    pub expelled: Vec<NodeName>,
    /// Calls that have committed.
    pub committed: u64,
    /// Calls rejected by the workload's own logic.
    pub refused: u64,
    /// Calls without an answer, or with an error.
    pub unanswered: u64,
    /// Number of unanswered calls found to be committed.
    pub found_committed: u64,
    /// Number of rows inserted into the ordered table; `None` if no table grows.
    pub grown: Option<usize>,
    /// Longest time without a commit, in milliseconds.
    pub longest_silence_ms: u64,
    /// Checks of the data and of the run.
    pub audit: Audit,
}

impl Report {
    /// Formats the report for people.
    pub fn table(&self) -> String {
        let mut strikes = Table::new();
        strikes.load_preset(comfy_table::presets::NOTHING);
        strikes.set_header(["at ms", "node", "fault"]);
        for Strike { at_ms, node, fault } in &self.schedule {
            let other = fault.other().map_or(String::new(), |other| format!(", to {other}"));
            let fault = format!("{}{other}", fault.name());
            strikes.add_row([at_ms.to_string(), node.to_string(), fault]);
        }
        let mut checks = Table::new();
        checks.load_preset(comfy_table::presets::NOTHING);
        for check in &self.audit.checks {
            checks.add_row([check.mark(), &check.name, &check.detail]);
        }
        let mut text = format!("{}\n\n", strikes.trim_fmt());
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{} on {}, {} s, seed {}: {} committed, {} refused, {} unanswered of which {} had \
             committed; {} ms without a commit at most; {}\n{}\n",
            self.workload,
            self.file,
            self.secs,
            self.seed,
            self.committed,
            self.refused,
            self.unanswered,
            self.found_committed,
            self.longest_silence_ms,
            self.out(),
            self.struck(),
        );
        let _ = writeln!(text, "{}\n\n{}", checks.trim_fmt(), self.audit.verdict());
        text
    }

    fn struck(&self) -> String {
        let grown = match self.grown {
            Some(rows) => format!("{rows} rows put into an ordered table"),
            None => "no table grows, since applications may not create any".to_owned(),
        };
        format!(
            "{grown}; {} strikes left out for want of time; {} starts struck; {} snapshots \
             reported, {} not, {} struck; {} restores, {} struck, {} begun anew",
            self.strikes_left_out,
            self.starts_struck,
            self.snapshots,
            self.snapshots_failed,
            self.snapshots_struck,
            self.restores,
            self.restores_struck,
            self.begun_anew,
        )
    }

    fn out(&self) -> String {
        let names = super::round_checks::names(&self.expelled);
        format!("expelled: {names}")
    }
}
