//! What `lotus chaos` says: a table for a person, JSON for a program.

use std::fmt::Write as _;

use comfy_table::Table;
use lotus_benchmarks::audit::Audit;
use serde::Serialize;

use super::schedule::Strike;
use crate::cluster::node::Node;

/// What came of an ordeal.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The description of the cluster.
    pub file: String,
    /// Where random choices started.
    pub seed: u64,
    /// How long there was load.
    pub secs: f64,
    /// What was called.
    pub workload: &'static str,
    /// What was done to the nodes.
    pub schedule: Vec<Strike>,
    /// How many starts of nodes were struck before the node took part.
    pub starts_struck: usize,
    /// How many snapshots were reported as taken, `down`'s and those of checks included.
    pub snapshots: usize,
    /// How many that were asked for were not.
    pub snapshots_failed: usize,
    /// How many were struck while they were taken.
    pub snapshots_struck: usize,
    /// How often the cluster was ended with a snapshot and started from it.
    pub restores: usize,
    /// How many of those were struck.
    pub restores_struck: usize,
    /// How often all was to be begun anew before it served.
    pub begun_anew: usize,
    /// The epoch of the membership afterwards.
    pub epoch: Option<u32>,
    /// Who does not take part any more.
    pub expelled: Vec<Node>,
    /// Calls that have committed.
    pub committed: u64,
    /// Calls that the workload itself refused.
    pub refused: u64,
    /// Calls that had no answer, or an error.
    pub unanswered: u64,
    /// How many of those turned out to be committed.
    pub found_committed: u64,
    /// The longest time in which nothing committed, in milliseconds.
    pub longest_silence_ms: u64,
    /// What was found.
    pub audit: Audit,
}

impl Report {
    /// For a person.
    pub fn table(&self) -> String {
        let mut strikes = Table::new();
        strikes.load_preset(comfy_table::presets::NOTHING);
        strikes.set_header(["at ms", "node", "fault"]);
        for Strike { at_ms, node, fault } in &self.schedule {
            strikes.add_row([at_ms.to_string(), node.to_string(), fault.name().to_owned()]);
        }
        let mut checks = Table::new();
        checks.load_preset(comfy_table::presets::NOTHING);
        for check in &self.audit.checks {
            checks.add_row([check.mark(), &check.name, &check.detail]);
        }
        let mut text = format!("{}\n\n", strikes.trim_fmt());
        // Strings take all that is written to them.
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
        format!(
            "{} starts struck; {} snapshots reported, {} not, {} struck; {} restores, {} struck, \
             {} begun anew",
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
        let names = super::aftermath::names(&self.expelled);
        format!("expelled: {names}")
    }
}
