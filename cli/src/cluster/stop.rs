//! How a node is told to end: SIGTERM or SIGINT, at any moment of its life.
//!
//! A thread waits for the signals. A node that serves finishes its transactions; one that waits for
//! others stops waiting; one that fills tables, which takes as long as it takes, ends on the spot,
//! as if it had been killed. A second signal ends the process on the spot at any time.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_fabric::env::{Env, Nanos};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::info;

use super::processes::wait_until;

/// How often the log says that a wait goes on.
const SAYING_AGAIN: Duration = Duration::from_secs(10);

/// Why a node ends before it serves.
#[derive(Debug)]
pub enum Early {
    /// It was told to.
    Told,
    /// It cannot serve; a sentence.
    Failed(String),
}

impl From<String> for Early {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// How a wait has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// What was waited for has come to be.
    Holds,
    /// It has not, in the time that there was.
    Late,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    told: bool,
    /// Nothing looks whether it was told, and nothing is lost by ending.
    at_once: bool,
}

/// Whether this process was told to end.
#[derive(Clone, Default)]
pub struct Stop(Arc<Shared>);

impl Stop {
    /// Begins to listen for signals.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn listen(env: &Env) -> io::Result<Self> {
        let stop = Self::default();
        let mut signals = Signals::new([SIGTERM, SIGINT])?;
        let listener = stop.clone();
        let listen = move || signals.forever().for_each(|signal| listener.tell(signal));
        env.spawn("lotus-signals", listen)?;
        Ok(stop)
    }

    /// A signal has come.
    pub(super) fn tell(&self, signal: i32) {
        let mut state = self.lock();
        info!(signal, "told to end");
        if state.told || state.at_once {
            info!("ended on the spot");
            std::process::exit(0);
        }
        state.told = true;
        self.0.changed.notify_all();
    }

    /// Whether it was told to end.
    pub fn is_told(&self) -> bool {
        self.lock().told
    }

    /// Whether it is told to end before so much time has passed; blocks until one or the other.
    pub fn is_told_within(&self, time: Duration) -> bool {
        let state = self.lock();
        let waited = self.0.changed.wait_timeout_while(state, time, |state| !state.told);
        waited.unwrap_or_else(PoisonError::into_inner).0.told
    }

    /// Runs work that looks at nothing else, and of which nothing is worth keeping before it is
    /// whole: a signal ends the process meanwhile.
    ///
    /// # Errors
    /// [`Early::Told`], before the work begins.
    pub fn or_end_at_once<T>(&self, work: impl FnOnce() -> T) -> Result<T, Early> {
        let set = |at_once| {
            let mut state = self.lock();
            state.at_once = at_once;
            state.told
        };
        if set(true) {
            return Err(Early::Told);
        }
        let outcome = work();
        set(false);
        Ok(outcome)
    }

    /// Looks until something is so, for at most `patience`: `missing` names what is still waited
    /// for, of which the log tells.
    ///
    /// # Errors
    /// [`Early::Told`].
    pub fn wait_until(
        &self,
        env: &Env,
        patience: Duration,
        mut missing: impl FnMut() -> Option<String>,
    ) -> Result<Waited, Early> {
        let mut vigil = Vigil::new(self, env);
        let mut told = false;
        let holds = wait_until(env, patience, || match missing() {
            None => true,
            Some(what) => {
                told = vigil.look(&what).is_break();
                told
            }
        });
        match (told, holds) {
            (true, _) => Err(Early::Told),
            (false, true) => Ok(Waited::Holds),
            (false, false) => Ok(Waited::Late),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wait: says in the log what for, and since when, and looks whether it is to end.
pub struct Vigil {
    stop: Stop,
    env: Env,
    /// What is waited for, since when, and when that was said last.
    said: Option<(String, Nanos, Nanos)>,
}

impl Vigil {
    /// One that has not begun.
    pub fn new(stop: &Stop, env: &Env) -> Self {
        Self { stop: stop.clone(), env: env.clone(), said: None }
    }

    /// Still waits for `what`.
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
        assert!(matches!(waited, Err(Early::Told)), "{waited:?}");
        assert!(matches!(stop.or_end_at_once(|| ()), Err(Early::Told)));
    }
}
