//! What a person sees while a run lasts: a bar on a terminal, plain lines anywhere else.
//!
//! The bar draws itself on a thread of its own and only ever reads the run's progress.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use lotus_benchmarks::progress::{Phase, Progress};

const REDRAW: Duration = Duration::from_millis(200);
/// Characters of the gauge.
const GAUGE: usize = 30;

/// Watches a run on that many coordinators; the bar goes when the watch is dropped.
pub struct Watch {
    /// For the harness to report to.
    pub progress: Arc<Progress>,
    bar: Option<ProgressBar>,
}

impl Watch {
    /// Starts watching.
    pub fn start(coordinators: usize) -> Self {
        if !io::stderr().is_terminal() {
            // Nobody listens if this fails.
            let tell = |phase: Phase| drop(writeln!(io::stderr(), "{}", phase.name()));
            return Self { progress: Arc::new(Progress::new(coordinators, tell)), bar: None };
        }
        let bar = ProgressBar::new_spinner();
        let messages = bar.clone();
        let tell = move |phase: Phase| messages.set_message(phase.name());
        let progress = Arc::new(Progress::new(coordinators, tell));
        bar.set_style(style(&progress));
        bar.enable_steady_tick(REDRAW);
        Self { progress, bar: Some(bar) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(progress: &Arc<Progress>) -> ProgressStyle {
    let (gauge, committed) = (Arc::clone(progress), Arc::clone(progress));
    ProgressStyle::with_template("{spinner} {msg:20} [{gauge}] {committed} committed")
        .expect("the template is a sound constant")
        .with_key("gauge", move |_: &ProgressState, out: &mut dyn fmt::Write| {
            let full = (gauge.fraction() * GAUGE as f64) as usize;
            // What cannot be drawn now is drawn at the next tick.
            let _ = write!(out, "{:<GAUGE$}", "=".repeat(full));
        })
        .with_key("committed", move |_: &ProgressState, out: &mut dyn fmt::Write| {
            let _ = write!(out, "{}", committed.committed());
        })
}
