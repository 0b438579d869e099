//! Hazards of `docs/fault-tolerance.md` by number, and the hazards that a run has met.

use std::fmt;
use std::str::FromStr;

use lotus_benchmarks::AbortReason;
use lotus_benchmarks::config::{Locks, Timestamps, Visible};
use serde::{Deserialize, Serialize};

use crate::scenario::format::{Scenario, Workload};
use crate::verdict::Figures;

/// A hazard: H1 to H24.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hazard(u8);

impl Hazard {
    /// Number of hazards.
    pub const COUNT: u8 = 24;

    /// Hazard `number`; `None` unless it is in 1..=24.
    pub const fn new(number: u8) -> Option<Self> {
        if number >= 1 && number <= Self::COUNT { Some(Self(number)) } else { None }
    }

    /// Number of the hazard, from 1.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "H{}", self.0)
    }
}

impl From<Hazard> for String {
    fn from(hazard: Hazard) -> Self {
        hazard.to_string()
    }
}

impl FromStr for Hazard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix('H').and_then(|digits| digits.parse().ok());
        number
            .and_then(Self::new)
            .ok_or_else(|| format!("{text:?} is no hazard; they are H1 to H24"))
    }
}

impl TryFrom<String> for Hazard {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Hazards that a run has met: the events of the hazard have happened at least once.
pub fn met(scenario: &Scenario, figures: &Figures) -> Vec<Hazard> {
    let aborts = |reason: AbortReason| figures.aborted[reason.index()] > 0;
    let faults = &figures.faults;
    let cluster = &scenario.cluster;
    let slots = (cluster.compute_nodes * cluster.threads * cluster.coroutines) as u64;
    let contended = aborts(AbortReason::Conflict) && cluster.locks == Locks::Lotus;
    let replicated = cluster.replicas > 1 && cluster.visible == Visible::BackupsFirst;
    let oracle = cluster.timestamps == Timestamps::Oracle;
    [
        (1, aborts(AbortReason::InDoubt) || faults.verbs_delayed > 0),
        (2, figures.returned > 0),
        (3, replicated && figures.committed > 0),
        (5, contended),
        (6, contended),
        (7, contended || aborts(AbortReason::LockTableFull)),
        (9, faults.messages_duplicated + faults.messages_delayed > 0),
        (10, faults.messages_lost + faults.messages_cut_off > 0),
        (11, figures.version_table_hits > 0 && aborts(AbortReason::Conflict)),
        (12, faults.connections_timed_out > 0),
        (13, aborts(AbortReason::SnapshotTooOld)),
        (14, faults.writes_torn + faults.reads_torn > 0),
        (16, figures.committed > slots),
        (18, oracle || faults.clock_jumps > 0),
        (19, figures.moves.done > 0),
        (20, !matches!(scenario.workload, Workload::Kvs { .. } | Workload::Smallbank { .. })),
        (21, figures.unknown > 0),
        (22, faults.stragglers_landed + faults.stragglers_refused > 0),
        (23, figures.memory_lost + figures.memory_filled > 0),
        (24, faults.flushed_landed > 0),
    ]
    .into_iter()
    .filter(|(_, met)| *met)
    .filter_map(|(number, _)| Hazard::new(number))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hazards_are_read_as_they_are_written() {
        for number in 1..=Hazard::COUNT {
            let hazard = Hazard::new(number).expect("it exists");
            assert_eq!(hazard.to_string().parse(), Ok(hazard));
        }
        for text in ["H0", "H25", "h1", "1", "H", "H1x", "H300"] {
            assert!(text.parse::<Hazard>().is_err(), "{text}");
        }
    }
}
