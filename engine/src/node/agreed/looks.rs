//! Decides when this process looks into the catalogue for unknown tables.
//!
//! Any number of transactions may name unknown tables, or numbers of no table. A single look serves
//! all transactions that asked before its beginning, and looks begin at intervals: numbers of no
//! table cost the authority a few reads per second, however many callers ask.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_fabric::env::Nanos;

/// Minimum time between the beginnings of two looks.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time between two checks of a look under way.
const GLANCE: Duration = Duration::from_millis(1);

/// State of a process's looks.
#[derive(Default)]
pub(crate) struct Looks(Mutex<LookState>);

#[derive(Default)]
struct LookState {
    /// Number of looks that have begun.
    begun: u64,
    under_way: bool,
    /// Beginning of the last look.
    last: Option<Nanos>,
    /// Whether the last completed look has read the catalogue.
    answered: bool,
}

/// Next step of a transaction that asks for a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Look now, and report the [end](Looks::end).
    Look,
    /// Wait, then ask again.
    Wait(Duration),
    /// The look is over, with or without an answer.
    Over {
        /// False if the authority did not answer.
        answered: bool,
    },
}

impl Looks {
    /// Asks for a look that begins after this call; returns the look's number.
    pub(crate) fn ask(&self) -> u64 {
        self.lock().begun + 1
    }

    /// Next step towards look `wanted`.
    pub(crate) fn turn(&self, wanted: u64, now: Nanos) -> Turn {
        let mut state = self.lock();
        if state.under_way {
            return Turn::Wait(GLANCE);
        }
        if state.begun >= wanted {
            return Turn::Over { answered: state.answered };
        }
        if let Some(due) = state.last.map(|last| last.after(INTERVAL))
            && now < due
        {
            return Turn::Wait(due.since(now));
        }
        (state.begun, state.under_way, state.last) = (state.begun + 1, true, Some(now));
        Turn::Look
    }

    /// Ends the look under way.
    pub(crate) fn end(&self, answered: bool) {
        let mut state = self.lock();
        (state.under_way, state.answered) = (false, answered);
    }

    fn lock(&self) -> MutexGuard<'_, LookState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos(1_000_000_000);

    #[test]
    fn one_look_serves_all_that_asked_before_it_began() {
        let looks = Looks::default();
        let (first, second) = (looks.ask(), looks.ask());
        assert_eq!(looks.turn(first, START), Turn::Look);
        // It may have read the catalogue already.
        let late = looks.ask();
        assert!(late > first && second == first);
        assert_eq!(looks.turn(second, START), Turn::Wait(GLANCE));
        looks.end(true);
        for asked in [first, second] {
            assert_eq!(looks.turn(asked, START), Turn::Over { answered: true });
        }
        assert_eq!(looks.turn(late, START), Turn::Wait(INTERVAL));
        assert_eq!(looks.turn(late, START.after(INTERVAL)), Turn::Look);
        looks.end(false);
        assert_eq!(looks.turn(late, START.after(INTERVAL)), Turn::Over { answered: false });
    }

    #[test]
    fn looks_begin_at_intervals_however_many_are_asked_for() {
        let looks = Looks::default();
        let (mut now, mut begun) = (START, 0);
        while now < START.after(Duration::from_secs(1)) {
            let wanted = looks.ask();
            if looks.turn(wanted, now) == Turn::Look {
                begun += 1;
                looks.end(true);
            }
            now = now.after(Duration::from_micros(100));
        }
        assert_eq!(begun, 10);
    }
}
