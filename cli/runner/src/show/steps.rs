//! Progress of a command that takes a while: its current step, and the duration of the step. On a
//! terminal, a line that redraws itself; elsewhere plain lines, for steps longer than a moment.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lotus_fabric::env::{Env, Nanos};

const REDRAW: Duration = Duration::from_millis(200);
/// Time before a command's first plain line.
const QUIET: Duration = Duration::from_secs(2);
/// Interval at which plain lines repeat a continuing step.
const SAYING_AGAIN: Duration = Duration::from_secs(10);

/// Display of a command's steps. Dropping the value ends the display.
pub struct Steps(Shown);

enum Shown {
    Bar(ProgressBar),
    Lines(Lines),
}

impl Steps {
    /// Begins on the standard error. Plain lines begin with `prefix`.
    pub fn start(prefix: &'static str) -> Self {
        if !io::stderr().is_terminal() {
            // A closed standard error is ignored.
            let write = move |line: &str| drop(writeln!(io::stderr(), "{prefix}{line}"));
            return Self(Shown::Lines(Lines::start(&Env::real(0), write)));
        }
        let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})");
        let bar = ProgressBar::new_spinner();
        bar.set_style(style.expect("the template is a sound constant"));
        bar.enable_steady_tick(REDRAW);
        Self(Shown::Bar(bar))
    }

    /// Shows `step` as the current step.
    pub fn say(&self, step: impl Into<String>) {
        self.say_how_far(step, String::new());
    }

    /// Shows `step` as the current step, and `far` as its progress, which may change with each
    /// call.
    pub fn say_how_far(&self, step: impl Into<String>, far: String) {
        let step = step.into();
        match &self.0 {
            Shown::Bar(bar) if far.is_empty() => bar.set_message(step),
            Shown::Bar(bar) => bar.set_message(format!("{step}, {far}")),
            Shown::Lines(lines) => lines.say(step, far),
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Plain lines, written by a separate thread.
struct Lines {
    shared: Arc<StepsState>,
    env: Env,
    /// `None` if the thread could not be started; then the display is empty.
    writer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct StepsState {
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Default)]
struct Now {
    step: String,
    far: String,
    since: Nanos,
    /// Time of the step's last line; `None` before the first.
    said: Option<Nanos>,
    ended: bool,
}

impl Now {
    /// The next line, if due, for a command that started at `began`.
    fn line(&mut self, now: Nanos, began: Nanos) -> Option<String> {
        let quiet = self.step.is_empty() || now < began.after(QUIET);
        match self.said {
            _ if self.ended || quiet => None,
            Some(said) if now < said.after(SAYING_AGAIN) => None,
            said => {
                self.said = Some(now);
                let seconds = now.since(self.since).as_secs();
                let Self { step, far, .. } = self;
                let far = if far.is_empty() { String::new() } else { format!(", {far}") };
                let lasts = said.map_or(String::new(), |_| format!(", for {seconds} s"));
                Some(format!("{step}{far}{lasts}"))
            }
        }
    }
}

impl Lines {
    fn start(env: &Env, write: impl Fn(&str) + Send + 'static) -> Self {
        let shared = Arc::<StepsState>::default();
        let (theirs, clock) = (Arc::clone(&shared), env.clone());
        let began = env.now();
        let writer = env.spawn("lotus-steps", move || {
            let mut now = theirs.lock();
            while !now.ended {
                if let Some(line) = now.line(clock.now(), began) {
                    write(&line);
                }
                let waited = theirs.changed.wait_timeout(now, REDRAW);
                now = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        });
        Self { shared, env: env.clone(), writer: writer.ok() }
    }

    fn say(&self, step: String, far: String) {
        let mut now = self.shared.lock();
        now.far = far;
        if now.step != step {
            (now.step, now.since, now.said) = (step, self.env.now(), None);
            self.shared.changed.notify_all();
        }
    }
}

impl StepsState {
    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        if let Some(writer) = self.writer.take() {
            // A panic in the thread only ends the display.
            let _ = writer.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_said_and_said_again() {
        let at = |ms: u64| Nanos(ms * 1_000_000);
        let step = |step: &str, since| Now { step: step.to_owned(), since, ..Now::default() };
        let mut now = step("looking", at(0));
        let said = |now: &mut Now, ms| now.line(at(ms), at(0));
        assert_eq!(said(&mut now, 1_000), None, "commands that are quick say nothing");
        assert_eq!(said(&mut now, 2_000).as_deref(), Some("looking"));
        assert_eq!(said(&mut now, 11_000), None);
        assert_eq!(said(&mut now, 12_500).as_deref(), Some("looking, for 12 s"));
        now.far = "7 rows".to_owned();
        assert_eq!(said(&mut now, 13_000), None, "how far it is changes all the time");
        assert_eq!(said(&mut now, 23_000).as_deref(), Some("looking, 7 rows, for 23 s"));
        let mut now = step("finding", at(23_000));
        assert_eq!(said(&mut now, 23_000).as_deref(), Some("finding"));
        now.ended = true;
        assert_eq!(said(&mut now, 90_000), None);
    }
}
