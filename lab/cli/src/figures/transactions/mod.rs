//! Figures of transactions, each a file in `lab/cli/figures`.
//!
//! * `file`: the format, and the command line of each point;
//! * `rows`: pure, from reports to rows: the best load of each point, ratios, bands;
//! * `table`: columns; `drawn`: plots.

mod drawn;
mod file;
mod rows;
mod table;

use serde_json::Value;

use super::experiment::{Experiment, Findings, Length, Tally, Task};
use super::observed::Observed;
use super::without;
use crate::bench;
use file::Figure;
pub(crate) use file::{TESTBED, of_toml, parse};
use rows::{Multiple, SeriesRow};

macro_rules! files {
    ($($name:literal)*) => {
        /// Names of the figures, and contents of their files.
        pub(super) const FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../figures/", $name, ".toml"))),)*];
    };
}

files! {
    "fig2"
    "fig3"
    "fig12a"
    "fig12c"
    "fig13"
    "fig14"
    "fig16"
    "fig17"
    "fig18"
    "fig19"
    "fig20"
    "fig21"
    "fig22"
    "fig23"
    "version-table-cache"
    "spin-locks"
    "visible-order"
    "routing"
    "moves"
    "hotspot"
    "log-and-visible"
    "engine-locks"
}

/// A figure, with its name.
pub(super) struct Transactions {
    name: String,
    figure: Figure,
}

impl Transactions {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// One sentence about the error.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self, String> {
        Ok(Self { name: name.to_owned(), figure: Figure::parse(text)? })
    }
}

impl Experiment for Transactions {
    fn title(&self) -> &str {
        &self.figure.title
    }

    fn source(&self) -> &str {
        &self.figure.source
    }

    fn tasks(&self, length: Length) -> Vec<Task> {
        let task = |(series, point): (&file::Series, &file::Point)| {
            let at = |load: Option<file::ClosedLoops>| Task {
                label: rows::label(series, point, load),
                command: self.figure.command(series, point, load, length),
                without: point.without.clone(),
            };
            self.figure.loads(series, length).into_iter().map(at).collect::<Vec<_>>()
        };
        self.figure.points().flat_map(task).collect()
    }

    fn is_possible(&self) -> bool {
        let breaks = |(_, point): (_, &file::Point)| !point.without.is_empty();
        let needs = self.figure.needs_sabotage || self.figure.points().any(breaks);
        without::can_be_broken() || !needs
    }

    fn measure(&self, task: &Task) -> Result<Value, bench::Failure> {
        let mut args = parse(&task.command).map_err(bench::Failure::Arguments)?;
        args.workload.common_mut().quiet = true;
        let _broken = without::broken(&task.without);
        let report = bench::report(&args)?;
        // A report has only string keys, and only values that JSON can represent.
        serde_json::to_value(report).map_err(|error| bench::Failure::Arguments(error.to_string()))
    }

    fn findings(&self, length: Length, results: &[Value]) -> Result<Findings, serde_json::Error> {
        let observed = results.iter().map(Observed::of).collect::<Result<Vec<_>, _>>()?;
        let rows = rows::rows(&self.figure, length, &observed);
        let multiples = rows::multiples(&self.figure, &rows);
        let unsound = rows.iter().filter(|row| !row.is_sound());
        let fallen = rows.iter().filter(|row| row.has_fallen()).map(SeriesRow::label);
        let multiples_fallen = multiples.iter().filter(|one| one.has_fallen());
        let fallen = fallen.chain(multiples_fallen.map(Multiple::label));
        let in_band = rows.iter().filter_map(SeriesRow::in_band);
        let json = rows.iter().map(|row| row.json(&self.name, results));
        Ok(Findings {
            blocks: table::blocks(&self.figure, &rows, &multiples),
            plots: drawn::plots(&self.name, &self.figure, &rows),
            remarks: self.figure.remarks.clone().unwrap_or_default(),
            busiest: observed.iter().map(Observed::busiest).collect(),
            tally: Tally::of(in_band.chain(multiples.iter().map(|one| one.judged.in_band))),
            // In short mode, ratios are only orders of magnitude.
            fallen: fallen.filter(|_| length == Length::Full).collect(),
            unsound: unsound.map(SeriesRow::label).collect(),
            json: json.chain(multiples.iter().map(|one| one.json(&self.name))).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_sound_and_every_point_of_it_can_be_run() {
        for (name, file) in FILES {
            let figure = Transactions::parse(name, file).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(!figure.title().is_empty() && !figure.source().is_empty(), "{name}");
            for series in &figure.figure.series {
                let measured =
                    series.points.len() * figure.figure.loads(series, Length::Full).len();
                assert!(measured > 1, "{name}: nothing to compare");
            }
            let [full, short] = [Length::Full, Length::Short].map(|length| figure.tasks(length));
            assert!(short.len() <= full.len(), "{name}");
        }
    }
}
