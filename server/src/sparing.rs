//! Limits log lines that strangers cause to one a second, with the number of those left out.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lotus_fabric::env::Nanos;

/// The shortest time between two lines.
const QUIET: Duration = Duration::from_secs(1);

/// Decides whether a log line may be written.
#[derive(Debug, Default)]
pub(crate) struct Sparing(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Nanos>,
    kept_back: u64,
}

impl Sparing {
    /// Number of lines kept back since the last one, if there may be a line now; `None` if not.
    pub(crate) fn may_say(&self, now: Nanos) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        let sparing = Sparing::default();
        let at = |ms: u64| sparing.may_say(Nanos(ms * 1_000_000));
        assert_eq!(at(5000), Some(0));
        assert_eq!((at(5001), at(5999)), (None, None));
        assert_eq!((at(6000), at(6001)), (Some(2), None));
        assert_eq!((at(9000), at(11_000)), (Some(1), Some(0)));
    }
}
