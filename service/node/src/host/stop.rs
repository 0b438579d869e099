//! Telling a node to end: by SIGTERM or SIGINT, at any moment of its life.
//!
//! A thread waits for the signals. A serving node finishes its transactions; a waiting node stops
//! waiting; a node that fills tables, for however long, exits at once, as if it had been killed. A
//! second signal ends the process at once at any time.
//!
//! No other signal of a user or of a limit ends a node silently (I340), as the system's default
//! would (`Meaning`). Signals of a fault of the program (`SIGSEGV`, `SIGABRT` and their like) and
//! `SIGQUIT` do, with a core dump where the system makes one; `SIGPIPE` is ignored by every Rust
//! program.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_fabric::env::{Env, Nanos};
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;
use tracing::info;

use super::polling::wait_until;

/// Interval of log lines about an ongoing wait.
const SAYING_AGAIN: Duration = Duration::from_secs(10);

/// Reason why a node ends before it serves.
#[derive(Debug)]
pub enum StartupEnd {
    /// A signal told the node to end.
    Told,
    /// The node cannot serve; a sentence.
    Failed(String),
}

impl From<String> for StartupEnd {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Result of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// The condition holds.
    Holds,
    /// The time is over.
    Late,
}

/// Meaning of a signal to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meaning {
    /// Ends the node; a second signal ends the node at once.
    End,
    /// Ends the node. The system sends the signal again and again: each second of processor time
    /// beyond a limit.
    EndSoon,
    /// Nothing: the signal is logged.
    Nothing,
    /// Nothing, and the signal is not logged, since the log may be the file in question: a write
    /// beyond the limit of a file's size fails with an error.
    FileTooLarge,
}

/// Signals that would end a process without a program fault, with their meanings.
const SIGNALS: [(i32, Meaning); 11] = [
    (SIGTERM, Meaning::End),
    (SIGINT, Meaning::End),
    (SIGXCPU, Meaning::EndSoon),
    (SIGHUP, Meaning::Nothing),
    (SIGUSR1, Meaning::Nothing),
    (SIGUSR2, Meaning::Nothing),
    (SIGALRM, Meaning::Nothing),
    (SIGVTALRM, Meaning::Nothing),
    (SIGPROF, Meaning::Nothing),
    (SIGIO, Meaning::Nothing),
    (SIGXFSZ, Meaning::FileTooLarge),
];

/// Makes a write beyond the limit of a file's size an error of that write, in this process.
///
/// # Errors
/// Errors of the operating system.
pub fn survive_file_limits() -> io::Result<()> {
    // An unread flag: a handler without effect, not inherited by programs that this process starts.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}

#[derive(Default)]
struct StopCell {
    state: Mutex<StopState>,
    changed: Condvar,
}

#[derive(Default)]
struct StopState {
    told: bool,
    /// Whether a signal is to end the process at once: no code polls `told`, and nothing is lost.
    at_once: bool,
}

/// Whether the process was told to end; clones share the state.
#[derive(Clone, Default)]
pub struct Stop(Arc<StopCell>);

impl Stop {
    /// Starts the thread that waits for signals.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn listen(env: &Env) -> io::Result<Self> {
        let stop = Self::default();
        survive_file_limits()?;
        let heard = SIGNALS.iter().filter(|(_, meaning)| *meaning != Meaning::FileTooLarge);
        let mut signals = Signals::new(heard.map(|(signal, _)| signal))?;
        let listener = stop.clone();
        let listen = move || signals.forever().for_each(|signal| listener.tell(signal));
        env.spawn("lotus-signals", listen)?;
        Ok(stop)
    }

    /// Handles a signal.
    pub fn tell(&self, signal: i32) {
        let name = signal_name(signal).unwrap_or("a signal");
        let known = SIGNALS.iter().find(|(known, _)| *known == signal);
        let meaning = known.map_or(Meaning::Nothing, |(_, meaning)| *meaning);
        let mut state = self.lock();
        match meaning {
            Meaning::FileTooLarge => return,
            Meaning::Nothing => return info!("{name} means nothing to a node: ignored"),
            Meaning::EndSoon if state.told => return,
            Meaning::End | Meaning::EndSoon => info!(signal, "told to end, by {name}"),
        }
        if state.told || state.at_once {
            info!("ended on the spot");
            std::process::exit(0);
        }
        state.told = true;
        self.0.changed.notify_all();
    }

    /// Whether the process was told to end.
    pub fn is_told(&self) -> bool {
        self.lock().told
    }

    /// Blocks until the process is told to end, for at most `time`; returns true if told.
    pub fn is_told_within(&self, time: Duration) -> bool {
        let state = self.lock();
        let waited = self.0.changed.wait_timeout_while(state, time, |state| !state.told);
        waited.unwrap_or_else(PoisonError::into_inner).0.told
    }

    /// Runs work without polling and with worthless partial results: a signal during the work ends
    /// the process at once.
    ///
    /// # Errors
    /// [`StartupEnd::Told`], before the work begins.
    pub fn or_end_at_once<T>(&self, work: impl FnOnce() -> T) -> Result<T, StartupEnd> {
        let set = |at_once| {
            let mut state = self.lock();
            state.at_once = at_once;
            state.told
        };
        if set(true) {
            return Err(StartupEnd::Told);
        }
        let outcome = work();
        set(false);
        Ok(outcome)
    }

    /// Polls until `missing` returns `None`, for at most `patience`. The log tells what is still
    /// missing.
    ///
    /// # Errors
    /// [`StartupEnd::Told`].
    pub fn wait_until(
        &self,
        env: &Env,
        patience: Duration,
        mut missing: impl FnMut() -> Option<String>,
    ) -> Result<Waited, StartupEnd> {
        let mut wait = LoggedWait::new(self, env);
        let mut told = false;
        let holds = wait_until(env, patience, || match missing() {
            None => true,
            Some(what) => {
                told = wait.look(&what).is_break();
                told
            }
        });
        match (told, holds) {
            (true, _) => Err(StartupEnd::Told),
            (false, true) => Ok(Waited::Holds),
            (false, false) => Ok(Waited::Late),
        }
    }

    fn lock(&self) -> MutexGuard<'_, StopState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wait that logs its reason and duration, and notices the order to end.
pub struct LoggedWait {
    stop: Stop,
    env: Env,
    /// Reason for the wait, its start, and the time of the last log line.
    said: Option<(String, Nanos, Nanos)>,
}

impl LoggedWait {
    /// Creates a wait that has not begun.
    pub fn new(stop: &Stop, env: &Env) -> Self {
        Self { stop: stop.clone(), env: env.clone(), said: None }
    }

    /// Notes that the wait for `what` goes on; breaks if the process was told to end (I206).
    pub fn look(&mut self, what: &str) -> ControlFlow<()> {
        let now = self.env.now();
        match &mut self.said {
            Some((before, since, said)) if before == what => {
                if now >= said.after(SAYING_AGAIN) {
                    info!("still waiting for {what}, for {} s", now.since(*since).as_secs());
                    *said = now;
                }
            }
            said => {
                info!("waiting for {what}");
                *said = Some((what.to_owned(), now, now));
            }
        }
        if self.stop.is_told() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_mean_nothing_end_nothing_and_a_limit_may_be_named_again() {
        let stop = Stop::default();
        for signal in [SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGXFSZ] {
            stop.tell(signal);
            assert!(!stop.is_told(), "{signal}");
        }
        // A second of these would end this process.
        stop.tell(SIGXCPU);
        stop.tell(SIGXCPU);
        stop.tell(SIGHUP);
        assert!(stop.is_told());
    }

    /// Every signal that ends a process by default has a meaning, or says a fault of the program.
    #[test]
    fn no_signal_is_forgotten() {
        let default = [1, 2, 10, 12, 14, 15, 24, 25, 26, 27, 29];
        let mut known = SIGNALS.map(|(signal, _)| signal);
        known.sort_unstable();
        assert_eq!(known, default);
    }

    #[test]
    fn a_wait_ends_when_the_process_is_told_to() {
        let (env, stop) = (Env::real(0), Stop::default());
        let hour = Duration::from_secs(3600);
        let mut looks = 0;
        let waited = stop.wait_until(&env, hour, || {
            looks += 1;
            (looks < 3).then(|| "a third look".to_owned())
        });
        assert!(matches!(waited, Ok(Waited::Holds)) && looks == 3, "{waited:?}");
        let waited = stop.wait_until(&env, Duration::ZERO, || Some("nothing".to_owned()));
        assert!(matches!(waited, Ok(Waited::Late)), "{waited:?}");
        stop.tell(SIGTERM);
        assert!(stop.is_told_within(Duration::from_secs(600)));
        let waited = stop.wait_until(&env, hour, || Some("nothing".to_owned()));
        assert!(matches!(waited, Err(StartupEnd::Told)), "{waited:?}");
        assert!(matches!(stop.or_end_at_once(|| ()), Err(StartupEnd::Told)));
    }
}
