//! Progress of a run of many measurements: their number, the number done, and an estimate of the
//! remaining time. A bar on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal, Write as _};
use std::num::NonZero;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lotus_fabric::env::{Env, Nanos};

const REDRAW: Duration = Duration::from_millis(200);

/// Durations of completed measurements, and numbers of remaining measurements.
#[derive(Clone, PartialEq, Debug, Default)]
struct Pace {
    /// Experiment and seconds of each completed measurement.
    done: Vec<(usize, f64)>,
    /// Number of remaining measurements of each experiment.
    left: Vec<usize>,
}

impl Pace {
    /// Estimated remaining seconds; `None` before the first completed measurement. A measurement is
    /// expected to take the mean time of its experiment, or the mean of all experiments if its own
    /// has not begun.
    fn left_s(&self) -> Option<f64> {
        let mean = |of: &dyn Fn(usize) -> bool| {
            let some = self.done.iter().filter(|(experiment, _)| of(*experiment));
            let (sum, count) = some.fold((0.0, 0), |(sum, count), (_, s)| (sum + s, count + 1));
            (count > 0).then(|| sum / f64::from(count))
        };
        let any = mean(&|_| true)?;
        let of = |(experiment, left): (usize, &usize)| {
            *left as f64 * mean(&|other| other == experiment).unwrap_or(any)
        };
        Some(self.left.iter().enumerate().map(of).sum())
    }
}

/// A duration in words, rounded.
fn in_words(s: f64) -> String {
    match s {
        s if s < 90.0 => format!("{:.0} s", s.max(1.0)),
        s if s < 90.0 * 60.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// Shows progress on the standard error.
pub(super) struct ProgressDisplay {
    bar: Option<ProgressBar>,
    env: Env,
    pace: Pace,
    /// Number of all measurements, of begun measurements, and of measurements at a time.
    all: usize,
    begun: usize,
    workers: NonZero<usize>,
}

impl ProgressDisplay {
    /// Begins; `left` is the number of measurements of each experiment, and `workers` measurements
    /// run at a time.
    pub(super) fn start(left: Vec<usize>, workers: NonZero<usize>) -> Self {
        let all = left.iter().sum();
        let bar = (io::stderr().is_terminal() && all > 0).then(|| {
            let template = "{spinner} [{bar:30}] {pos} of {len} {msg}";
            let style = ProgressStyle::with_template(template)
                .expect("the template is a sound constant")
                .progress_chars("= ");
            let bar = ProgressBar::new(all as u64).with_style(style);
            bar.enable_steady_tick(REDRAW);
            bar
        });
        let pace = Pace { done: Vec::new(), left };
        Self { bar, env: Env::real(0), pace, all, begun: 0, workers }
    }

    /// Number of measurements at a time.
    pub(super) const fn workers(&self) -> NonZero<usize> {
        self.workers
    }

    /// Shows the start of a measurement; returns its time.
    pub(super) fn begin(&mut self, name: &str, label: &str) -> Nanos {
        self.begun += 1;
        let left = self.pace.left_s().map(|s| s / self.workers.get() as f64);
        let left = left.map_or_else(String::new, |s| format!(", about {} left", in_words(s)));
        match &self.bar {
            Some(bar) => bar.set_message(format!("{name}: {label}{left}")),
            None => {
                // A closed standard error is ignored.
                let line = format!("{name}: {label} ({} of {}){left}", self.begun, self.all);
                let _ = writeln!(io::stderr(), "{line}");
            }
        }
        self.env.now()
    }

    /// Records the end of a measurement that started at `began`; returns its duration in seconds.
    pub(super) fn end(&mut self, experiment: usize, began: Nanos) -> f64 {
        let took_s = self.env.now().since(began).as_secs_f64();
        self.pace.done.push((experiment, took_s));
        self.pace.left[experiment] = self.pace.left[experiment].saturating_sub(1);
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
        took_s
    }

    /// Gives up the remaining measurements of an experiment.
    pub(super) fn skip(&mut self, experiment: usize) {
        self.pace.left[experiment] = 0;
    }

    /// Runs `show` without the bar drawing over its output.
    pub(super) fn aside<T>(&self, show: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(show),
            None => show(),
        }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_what_is_like_it() {
        let pace =
            |done: &[(usize, f64)], left: &[usize]| Pace { done: done.into(), left: left.into() };
        assert_eq!(pace(&[], &[3, 4]).left_s(), None);
        assert_eq!(pace(&[(0, 2.0)], &[3, 0]).left_s(), Some(6.0));
        assert_eq!(
            pace(&[(0, 2.0), (1, 6.0), (1, 4.0)], &[1, 2, 1]).left_s(),
            Some(2.0 + 10.0 + 4.0)
        );
        assert_eq!(pace(&[(0, 2.0)], &[0]).left_s(), Some(0.0));
    }

    #[test]
    fn a_duration_is_told_roughly() {
        let cases = [
            (0.0, "1 s"),
            (89.0, "89 s"),
            (100.0, "2 min"),
            (3_600.0, "60 min"),
            (9_000.0, "2.5 h"),
        ];
        for (s, words) in cases {
            assert_eq!(in_words(s), words);
        }
    }
}
