//! `lotus-lab figures run`: measures experiments in sequence; shows the tables and draws the plots
//! of an experiment as soon as it is done.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use lotus_benchmarks::output::Output;

use super::FigureError;
use super::catalogue::{Chosen, chosen};
use super::experiment::{Findings, Length, Tally};
use super::parallel::{Job, workers};
use super::progress::ProgressDisplay;
use crate::args::FiguresRunArgs;
use lotus_runner::show::{Verdict, screen};

/// Runs the subcommand. The verdict is unsound if an audit failed, or if a ratio has left its
/// earlier band.
///
/// # Errors
/// [`FigureError`] if there is no result.
pub(super) fn run(args: &FiguresRunArgs) -> Result<Verdict, FigureError> {
    let chosen = chosen(&args.names)?;
    let output = args.json.as_deref().map(Output::check).transpose()?;
    let length = if args.short { Length::Short } else { Length::Full };
    let left = chosen.iter().map(|one| one.experiment.tasks(length).len()).collect();
    let mut progress = ProgressDisplay::start(left, workers(args.workers, length));
    let (mut json, mut verdict) = (Vec::new(), Verdict::Sound);
    for (index, one) in chosen.iter().enumerate() {
        let findings = measure(one, index, length, &mut progress)?;
        let text = text(one, &findings, &args.plots)?;
        progress.aside(|| screen::show(&text, &[&output]))?;
        if !findings.fallen.is_empty() || !findings.unsound.is_empty() {
            verdict = Verdict::Unsound;
        }
        json.extend(findings.json);
    }
    if let Some(output) = &output {
        screen::write_json(output, &json)?;
    }
    Ok(verdict)
}

/// Measures all points of an experiment.
fn measure(
    one: &Chosen,
    index: usize,
    length: Length,
    progress: &mut ProgressDisplay,
) -> Result<Findings, FigureError> {
    let Chosen { name, experiment, .. } = one;
    let (tasks, mut results) = (experiment.tasks(length), BTreeMap::new());
    let job = Job { experiment: &**experiment, name, index };
    job.measure(tasks.iter().enumerate(), progress, |number, result, _| {
        results.insert(number, result);
        Ok(())
    })?;
    let results: Vec<_> = results.into_values().collect();
    let findings = experiment.findings(length, &results);
    findings.map_err(|error| FigureError::Result(name.clone(), error))
}

/// Text of an experiment's findings; draws the plots, and includes their paths.
fn text(one: &Chosen, findings: &Findings, plots: &Path) -> Result<String, FigureError> {
    let headline = format!("{} ({})", one.experiment.title(), one.experiment.source());
    let mut text = findings.text(&headline);
    // Writing into a string cannot fail.
    if findings.tally != Tally::default() {
        let Tally { inside, outside } = findings.tally;
        let _ = writeln!(text, "in band: {inside} of {} published values", inside + outside);
    }
    for label in &findings.unsound {
        let _ = writeln!(text, "AUDIT FAILED: {label}");
    }
    for label in &findings.fallen {
        let _ = writeln!(text, "OUT OF ITS BAND, in which it was: {label}");
    }
    for plot in &findings.plots {
        let _ = writeln!(text, "drawn: {}", plot.write(plots)?.display());
    }
    text.push('\n');
    Ok(text)
}
