//! Limits log lines caused by strangers to one line a minute of each kind, with the number of
//! suppressed lines.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lotus_fabric::env::Nanos;

/// The shortest time between two lines of a kind.
const QUIET: Duration = Duration::from_secs(60);

/// Decides whether a log line may be written.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter(Mutex<BTreeMap<&'static str, State>>);

#[derive(Debug, Default)]
struct State {
    last: Option<Nanos>,
    kept_back: u64,
}

impl LogLimiter {
    /// Returns the number of lines of this kind suppressed since the last line, if a line may be
    /// written now; otherwise `None`.
    pub(crate) fn may_say(&self, kind: &'static str, now: Nanos) -> Option<u64> {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let state = states.entry(kind).or_default();
        if state.last.is_some_and(|last| now.since(last) < QUIET) {
            state.kept_back += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.kept_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_back_is_counted_and_told_with_the_next_line() {
        let limiter = LogLimiter::default();
        let at = |secs: u64| limiter.may_say("garbage", Nanos(secs * 1_000_000_000));
        assert_eq!(at(500), Some(0));
        assert_eq!((at(501), at(559)), (None, None));
        // A line of another kind is news.
        assert_eq!(limiter.may_say("sockets", Nanos(559_000_000_000)), Some(0));
        assert_eq!((at(560), at(561)), (Some(2), None));
        assert_eq!((at(900), at(1000)), (Some(1), Some(0)));
    }
}
