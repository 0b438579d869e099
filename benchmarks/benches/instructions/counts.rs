//! Counts of instructions, and the table that shows them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

use comfy_table::{CellAlignment, Table, presets};
use lotus_benchmarks::callgrind::SIMULATOR;
use serde::{Deserialize, Serialize};

/// Counts of the code that one compiler makes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Counts {
    /// The compiler's name and version.
    pub compiler: String,
    /// Instructions of a committed transaction, by workload and layer.
    pub workloads: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Counts {
    /// Whether these counts differ from others by the code of the workspace alone.
    pub fn is_comparable(&self, other: &Self) -> bool {
        self.compiler == other.compiler
    }

    /// A row for each layer, the dearest first, and a column for each workload. The simulated
    /// network is shown below the sum and does not count: real transactions do not execute it.
    pub fn table(&self, workloads: &[&str], recorded: &Self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN);
        table.set_header(["instructions per commit"].iter().chain(workloads));
        let mut row = |name: &str, cell: &dyn Fn(&str) -> String| {
            let cells = workloads.iter().map(|workload| cell(workload));
            table.add_row([name.to_owned()].into_iter().chain(cells));
        };
        let names: BTreeSet<_> = self.workloads.values().flat_map(BTreeMap::keys).collect();
        let mut layers: Vec<_> = names.into_iter().filter(|layer| *layer != SIMULATOR).collect();
        let in_all =
            |layer| workloads.iter().map(|workload| self.layer(workload, layer)).sum::<u64>();
        layers.sort_by_key(|layer| Reverse(in_all(layer)));
        for layer in layers {
            row(layer, &|workload| self.layer(workload, layer).to_string());
        }
        row("sum", &|workload| self.sum(workload).to_string());
        if self.is_comparable(recorded) {
            row("against recorded", &|workload| {
                let [now, then] = [self, recorded].map(|counts| counts.sum(workload) as f64);
                format!("{:+.2} %", 100.0 * (now / then - 1.0))
            });
        }
        row(SIMULATOR, &|workload| self.layer(workload, SIMULATOR).to_string());
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// Compares the sums with the recorded ones.
    ///
    /// # Errors
    /// A sum has grown by more than `tolerance` (of 1), or the recorded ones are another
    /// compiler's.
    pub fn check(&self, recorded: &Self, tolerance: f64) -> Result<(), Box<dyn Error>> {
        if !self.is_comparable(recorded) {
            let (this, other) = (&self.compiler, &recorded.compiler);
            return Err(format!("the counts on record are of {other}, these of {this}").into());
        }
        let limit = |workload: &str| recorded.sum(workload) as f64 * (1.0 + tolerance);
        let grown: Vec<_> = self
            .workloads
            .keys()
            .filter(|workload| self.sum(workload) as f64 > limit(workload))
            .map(|workload| {
                let [now, then] = [self, recorded].map(|counts| counts.sum(workload));
                format!("{workload}: {now} instructions per commit, {then} on record")
            })
            .collect();
        if grown.is_empty() { Ok(()) } else { Err(grown.join("; ").into()) }
    }

    fn layer(&self, workload: &str, layer: &str) -> u64 {
        let layers = self.workloads.get(workload);
        layers.and_then(|layers| layers.get(layer)).copied().unwrap_or_default()
    }

    /// Instructions of all layers but the simulated network.
    fn sum(&self, workload: &str) -> u64 {
        let layers = self.workloads.get(workload).into_iter().flatten();
        layers.filter(|(layer, _)| *layer != SIMULATOR).map(|(_, count)| count).sum()
    }
}
