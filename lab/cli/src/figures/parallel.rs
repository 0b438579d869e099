//! Measures the points of an experiment, several at a time.
//!
//! A simulated point runs on one thread and shares nothing with other points, so its result does
//! not depend on the number of points measured in parallel.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};

use lotus_fabric::env::Env;
use serde_json::Value;

use super::FigureError;
use super::experiment::{Experiment, Length, Task};
use super::progress::ProgressDisplay;

/// Number of measuring threads, as asked or by default. Points of full length are measured one
/// after the other by default: some take 6 GB of memory.
pub(super) fn workers(asked: Option<usize>, length: Length) -> NonZero<usize> {
    let asked = asked.unwrap_or_else(|| match length {
        Length::Full => 1,
        Length::Short => Env::real(0).parallelism(),
    });
    NonZero::new(asked).unwrap_or(NonZero::<usize>::MIN)
}

/// An experiment to measure.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub experiment: &'a dyn Experiment,
    pub name: &'a str,
    /// Number of the experiment in the progress display.
    pub index: usize,
}

/// State shared by the threads.
struct Shared<'a, K, T> {
    /// Tasks not begun yet.
    left: T,
    progress: &'a mut ProgressDisplay,
    keep: K,
    failed: Option<FigureError>,
}

impl Job<'_> {
    /// Measures tasks. As soon as a task is done, passes its number, its result and its duration in
    /// seconds to `keep`, in order of completion. After a failure no further task begins; results
    /// of tasks in progress are kept.
    ///
    /// # Errors
    /// The first failure: of the benchmark ([`FigureError::Bench`]) or of `keep`.
    ///
    /// # Panics
    /// If a benchmark panics, or a thread cannot be started.
    pub(super) fn measure<'t>(
        self,
        tasks: impl Iterator<Item = (usize, &'t Task)> + Send,
        progress: &mut ProgressDisplay,
        keep: impl FnMut(usize, Value, f64) -> Result<(), FigureError> + Send,
    ) -> Result<(), FigureError> {
        let workers = progress.workers().get();
        let shared = Mutex::new(Shared { left: tasks, progress, keep, failed: None });
        let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
        Env::real(0).in_parallel(workers, |_| {
            loop {
                let mut shared = lock();
                let next = shared.left.next().filter(|_| shared.failed.is_none());
                let Some((number, task)) = next else { return };
                let began = shared.progress.begin(self.name, &task.label);
                drop(shared);
                let result = self.experiment.measure(task);
                let mut shared = lock();
                let took_s = shared.progress.end(self.index, began);
                let kept = match result {
                    Ok(result) => (shared.keep)(number, result, took_s),
                    Err(error) => Err(FigureError::Bench { label: task.label.clone(), error }),
                };
                if let Err(failure) = kept {
                    shared.failed.get_or_insert(failure);
                }
            }
        });
        let Shared { failed, .. } = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Barrier;

    use super::*;
    use crate::bench;
    use crate::figures::experiment::Findings;

    /// An experiment with its tasks' names as results; one named "fails" fails.
    struct Echo {
        /// Tasks that measure wait for one another here.
        together: Barrier,
    }

    impl Experiment for Echo {
        fn title(&self) -> &str {
            "echo"
        }

        fn source(&self) -> &str {
            "nowhere"
        }

        fn tasks(&self, _: Length) -> Vec<Task> {
            Vec::new()
        }

        fn measure(&self, task: &Task) -> Result<Value, bench::Failure> {
            self.together.wait();
            match task.label.as_str() {
                "fails" => Err(bench::Failure::Arguments("refused".to_owned())),
                label => Ok(Value::from(label)),
            }
        }

        fn findings(&self, _: Length, _: &[Value]) -> Result<Findings, serde_json::Error> {
            Ok(Findings::default())
        }
    }

    fn tasks(labels: &[&str]) -> Vec<Task> {
        let task = |label: &&str| Task {
            label: (*label).to_owned(),
            command: String::new(),
            without: Vec::new(),
        };
        labels.iter().map(task).collect()
    }

    /// Measures tasks on so many threads that wait for one another.
    fn kept(labels: &[&str], workers: usize) -> (BTreeMap<usize, Value>, Result<(), FigureError>) {
        let workers = NonZero::new(workers).expect("not zero");
        let echo = Echo { together: Barrier::new(workers.get()) };
        let mut progress = ProgressDisplay::start(vec![labels.len()], workers);
        let job = Job { experiment: &echo, name: "echo", index: 0 };
        let (tasks, mut kept) = (tasks(labels), BTreeMap::new());
        let outcome = job.measure(tasks.iter().enumerate(), &mut progress, |number, result, _| {
            kept.insert(number, result);
            Ok(())
        });
        (kept, outcome)
    }

    #[test]
    fn tasks_are_measured_side_by_side_and_each_once() {
        let (kept, outcome) = kept(&["a", "b", "c", "d", "e", "f"], 3);
        outcome.expect("none fails");
        let all = ["a", "b", "c", "d", "e", "f"].map(Value::from);
        assert_eq!(kept, all.into_iter().enumerate().collect());
    }

    #[test]
    fn after_a_failure_no_task_begins() {
        let (kept, outcome) = kept(&["a", "fails", "c"], 1);
        let failure = outcome.expect_err("one fails").to_string();
        assert_eq!(failure, "fails: refused");
        assert_eq!(kept, BTreeMap::from([(0, Value::from("a"))]));
    }

    #[test]
    fn what_is_measured_beside_a_failure_is_kept() {
        let (kept, outcome) = kept(&["fails", "b"], 2);
        outcome.expect_err("one fails");
        assert_eq!(kept, BTreeMap::from([(1, Value::from("b"))]));
    }

    #[test]
    fn points_of_full_length_are_measured_one_at_a_time_unless_asked() {
        assert_eq!(workers(None, Length::Full).get(), 1);
        assert_eq!(workers(None, Length::Short).get(), Env::real(0).parallelism());
        assert_eq!(workers(Some(3), Length::Full).get(), 3);
    }
}
