//! Display of the progress of long work: a bar on a terminal, plain lines elsewhere.
//!
//! A bar draws itself on a thread of its own and only reads the progress. [`Watch`] is for
//! benchmarks, [`ReadWatch`] for histories.

use std::fmt;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use lotus_benchmarks::live::LiveTitle;
use lotus_benchmarks::progress::{Phase, Progress};

use super::live::{Live, LiveError, LiveSocket};

const REDRAW: Duration = Duration::from_millis(200);
/// Characters of the gauge.
const GAUGE: usize = 30;
/// Size of a history, in bytes, from which plain lines are worthwhile: reading it takes about a
/// second.
const LONG_HISTORY_BYTES: u64 = 64 << 20;

/// Shows the progress of a run; the bar disappears when the watch is dropped.
pub struct Watch {
    /// Progress that the harness reports to.
    pub progress: Arc<Progress>,
    bar: Option<ProgressBar>,
    live: Option<Live>,
}

impl Watch {
    /// Starts watching a run on `coordinators` coordinators, which ends at the latest at a count of
    /// `most`. `done` is the participle of the counted operation: committed, or released.
    ///
    /// # Errors
    /// [`LiveError`]: the socket for the display is refused.
    pub fn start(
        coordinators: usize,
        most: Option<u64>,
        done: &'static str,
        shown: Shown<'_>,
    ) -> Result<Self, LiveError> {
        let socket = shown.at.map(LiveSocket::open).transpose()?;
        let observed = |progress: Progress| {
            let progress = ending_after(progress, most);
            Arc::new(if socket.is_some() { progress.observed() } else { progress })
        };
        let (progress, bar) = if io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            let messages = bar.clone();
            let tell = move |phase: Phase| messages.set_message(phase.name());
            let progress = observed(Progress::new(coordinators, tell));
            bar.set_style(style(&progress, done));
            bar.enable_steady_tick(REDRAW);
            (progress, Some(bar))
        } else {
            // A closed standard error is ignored.
            let tell = |phase: Phase| drop(writeln!(io::stderr(), "{}", phase.name()));
            (observed(Progress::new(coordinators, tell)), None)
        };
        let Shown { bench, fabric, has_aborts, is_virtual, .. } = shown;
        let (bench, fabric) = (bench.to_owned(), fabric.to_owned());
        let title = LiveTitle { bench, fabric, counted: done, has_aborts };
        let live = socket
            .map(|socket| Live::start(socket, title, Arc::clone(&progress), is_virtual))
            .transpose()?;
        Ok(Self { progress, bar, live })
    }

    /// Watches a run without a display, for a caller that shows its own progress.
    pub fn unseen(coordinators: usize, most: Option<u64>) -> Self {
        let progress = ending_after(Progress::new(coordinators, |_| ()), most);
        Self { progress: Arc::new(progress), bar: None, live: None }
    }
}

fn ending_after(progress: Progress, most: Option<u64>) -> Progress {
    match most {
        Some(most) => progress.ending_after(most),
        None => progress,
    }
}

/// Display of a run at a socket.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Path of the socket, if any.
    pub at: Option<&'a Path>,
    /// Name of the benchmark.
    pub bench: &'a str,
    /// Name of the fabric.
    pub fabric: &'a str,
    /// Whether the run counts aborts.
    pub has_aborts: bool,
    /// Whether the run's time is simulated.
    pub is_virtual: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.live.take());
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(progress: &Arc<Progress>, done: &'static str) -> ProgressStyle {
    let (gauge, count) = (Arc::clone(progress), Arc::clone(progress));
    ProgressStyle::with_template("{spinner} {msg:20} [{gauge}] {done}")
        .expect("the template is a sound constant")
        .with_key("gauge", move |_: &ProgressState, out: &mut dyn fmt::Write| {
            let full = (gauge.fraction() * GAUGE as f64) as usize;
            // A failed draw is repeated at the next tick.
            let _ = write!(out, "{:<GAUGE$}", "=".repeat(full));
        })
        .with_key("done", move |_: &ProgressState, out: &mut dyn fmt::Write| {
            let _ = write!(out, "{} {done}", count.committed());
        })
}

/// Shows the progress of reading and checking a history; the bar disappears when the watch is
/// dropped.
pub struct ReadWatch {
    /// Counts the bytes, even without a display.
    bar: ProgressBar,
    is_drawn: bool,
}

impl ReadWatch {
    /// Starts watching a history of `bytes`, if known.
    pub fn start(bytes: Option<u64>) -> Self {
        let is_drawn = io::stderr().is_terminal();
        let bar = if is_drawn { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        let watch = Self { bar, is_drawn };
        if is_drawn {
            let template = "{spinner} {msg:20} [{bar:30}] {bytes}";
            let style = ProgressStyle::with_template(template)
                .expect("the template is a sound constant")
                .progress_chars("= ");
            watch.bar.set_style(style);
            watch.bar.enable_steady_tick(REDRAW);
        }
        if let Some(bytes) = bytes {
            watch.bar.set_length(bytes);
        }
        watch.enter("reading", bytes.unwrap_or(0));
        watch
    }

    /// Wraps `source` to count every byte read.
    pub fn over<R: Read>(&self, source: R) -> impl Read + use<R> {
        self.bar.wrap_read(source)
    }

    /// Switches from reading to checking.
    pub fn checking(&self) {
        self.enter("checking", self.bar.position());
    }

    fn enter(&self, stage: &'static str, bytes: u64) {
        self.bar.set_message(stage);
        if !self.is_drawn && bytes >= LONG_HISTORY_BYTES {
            // A closed standard error is ignored.
            let _ = writeln!(io::stderr(), "{stage}");
        }
    }
}

impl Drop for ReadWatch {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use indicatif::{ProgressDrawTarget, TermLike};

    use super::*;

    /// A terminal that keeps what is written.
    #[derive(Clone, Default, Debug)]
    struct Paper(Arc<Mutex<String>>);

    impl TermLike for Paper {
        fn width(&self) -> u16 {
            100
        }

        fn move_cursor_up(&self, _lines: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _lines: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _columns: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _columns: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().expect("no panic").push_str(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_bar_draws_what_the_progress_says() {
        let progress = Arc::new(Progress::new(2, |_| ()));
        progress.set_span(0, 100);
        progress.tick(0, 50, true);
        progress.tick(1, 20, true);
        let paper = Paper::default();
        let target = ProgressDrawTarget::term_like(Box::new(paper.clone()));
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(style(&progress, "released"));
        bar.set_message(Phase::Running.name());
        bar.tick();
        let drawn = paper.0.lock().expect("no panic").clone();
        let expected = format!("{:20} [{:30}] 2 released", "running", "=".repeat(15));
        assert!(drawn.contains(&expected), "{drawn:?}");
    }
}
