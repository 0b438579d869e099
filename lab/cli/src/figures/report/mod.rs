//! `lotus-lab figures report`: one page about experiments, from points stored in its folder.
//!
//! * `store`: the folder; `page`: the page.
//!
//! The page is written after each experiment, so that an interrupted run leaves a page too.

mod page;
mod store;

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use super::FigureError;
use super::catalogue::{Chosen, chosen, known};
use super::experiment::{Length, Task};
use super::parallel::{Job, workers};
use super::progress::ProgressDisplay;
use crate::args::FiguresReportArgs;
use lotus_benchmarks::stream::StandardOutput;
use lotus_runner::host::origin;
use lotus_runner::show::Verdict;
use page::{Content, Section, page};
pub use store::FolderError;
use store::{MeasuredPoint, Store};

/// Name that selects all experiments.
const ALL: &str = "all";

/// An experiment, with its stored results.
struct Chapter {
    chosen: Chosen,
    tasks: Vec<(Task, Option<MeasuredPoint>)>,
    /// Reason why the experiment cannot be measured.
    failed: Option<String>,
}

/// Runs the subcommand. The verdict is unsound if an audit failed, if a ratio has left its earlier
/// band, or if a point could not be measured.
///
/// # Errors
/// [`FigureError`] if there is no page.
pub(super) fn run(args: &FiguresReportArgs) -> Result<Verdict, FigureError> {
    let all = [ALL.to_owned()];
    let mut asked = chosen(if args.names.is_empty() { &all } else { &args.names })?;
    let length = if args.short { Length::Short } else { Length::Full };
    let mut store = Store::open(&args.out, origin::here(), length, args.again)?;
    let earlier = store.experiments().iter();
    let earlier: Vec<_> = earlier
        .filter(|name| asked.iter().all(|one| one.name != **name))
        .filter_map(|name| known(name))
        .collect();
    asked.extend(earlier.into_iter().filter(|one| one.experiment.is_possible()));
    let names = asked.iter().filter(|one| one.is_known).map(|one| one.name.as_str());
    store.ask_for(names)?;
    let mut chapters: Vec<_> =
        asked.into_iter().map(|one| Chapter::of(one, length, &store)).collect();
    let left = chapters.iter().map(Chapter::missing).collect();
    let progress = ProgressDisplay::start(left, workers(args.workers, length));
    let measured = measure(&mut chapters, &store, length, progress)?;
    let sections: Vec<_> = chapters.iter().map(|chapter| chapter.section(length)).collect();
    let path = store.write_page(&page(&sections, &origin::here(), args.short))?;
    let kept: usize = chapters.iter().map(|chapter| chapter.tasks.len() - chapter.missing()).sum();
    let text = format!(
        "{}: {} experiments, {measured} points measured now, {} earlier\n",
        path.display(),
        chapters.len(),
        kept - measured
    );
    StandardOutput.write_all(text.as_bytes())?;
    let is_sound = |section: &Section| match &section.content {
        Content::Whole(findings, _) => findings.fallen.is_empty() && findings.unsound.is_empty(),
        Content::Failed(_) | Content::Missing(..) => false,
    };
    Ok(if sections.iter().all(is_sound) { Verdict::Sound } else { Verdict::Unsound })
}

/// Measures missing points; returns their number. A failure ends only its own experiment.
fn measure(
    chapters: &mut [Chapter],
    store: &Store,
    length: Length,
    mut progress: ProgressDisplay,
) -> Result<usize, FigureError> {
    let short = length == Length::Short;
    let mut measured = 0;
    for index in 0..chapters.len() {
        if chapters[index].missing() == 0 {
            continue;
        }
        measured += chapters[index].measure(index, store, &mut progress)?;
        let sections: Vec<_> = chapters.iter().map(|chapter| chapter.section(length)).collect();
        store.write_page(&page(&sections, &origin::here(), short))?;
    }
    Ok(measured)
}

impl Chapter {
    fn of(chosen: Chosen, length: Length, store: &Store) -> Self {
        let tasks = chosen.experiment.tasks(length).into_iter().enumerate();
        let found = |(number, task): (usize, Task)| {
            let kept = store.find(&chosen.name, number, &task);
            (task, kept)
        };
        let tasks = tasks.map(found).collect();
        Self { chosen, tasks, failed: None }
    }

    /// Number of missing points.
    fn missing(&self) -> usize {
        self.tasks.iter().filter(|(_, kept)| kept.is_none()).count()
    }

    /// Measures the missing points; returns their number.
    fn measure(
        &mut self,
        index: usize,
        store: &Store,
        progress: &mut ProgressDisplay,
    ) -> Result<usize, FigureError> {
        let Chosen { name, experiment, .. } = &self.chosen;
        let mut new = BTreeMap::new();
        let missing = self.tasks.iter().enumerate().filter(|(_, (_, kept))| kept.is_none());
        let missing = missing.map(|(number, (task, _))| (number, task));
        let job = Job { experiment: &**experiment, name, index };
        let outcome = job.measure(missing, progress, |number, result, took_s| {
            let (task, _) = &self.tasks[number];
            let one = MeasuredPoint {
                experiment: name.clone(),
                label: task.label.clone(),
                command: task.command.clone(),
                without: task.without.clone(),
                origin: origin::here(),
                took_s,
                result,
            };
            store.keep(number, task, &one)?;
            new.insert(number, one);
            Ok(())
        });
        let measured = new.len();
        for (number, one) in new {
            self.tasks[number].1 = Some(one);
        }
        match outcome {
            Err(error @ FigureError::Bench { .. }) => {
                progress.aside(|| {
                    // A closed standard error is ignored.
                    let _ = writeln!(io::stderr(), "error: {name}: {error}");
                });
                progress.skip(index);
                self.failed = Some(error.to_string());
            }
            outcome => outcome?,
        }
        Ok(measured)
    }

    /// The experiment's section of the page.
    fn section(&self, length: Length) -> Section {
        let Chosen { name, experiment, is_known } = &self.chosen;
        let kept: Vec<MeasuredPoint> =
            self.tasks.iter().filter_map(|(_, kept)| kept.clone()).collect();
        let content = match (&self.failed, self.missing()) {
            (Some(why), _) => Content::Failed(why.clone()),
            (None, 0) => {
                let results: Vec<_> = kept.iter().map(|one| one.result.clone()).collect();
                match experiment.findings(length, &results) {
                    Ok(findings) => Content::Whole(findings, kept),
                    Err(error) => Content::Failed(format!("its results cannot be read: {error}")),
                }
            }
            (None, missing) => Content::Missing(missing, self.tasks.len()),
        };
        let (title, source) = (experiment.title().to_owned(), experiment.source().to_owned());
        Section { name: name.clone(), title, source, is_known: *is_known, content }
    }
}
