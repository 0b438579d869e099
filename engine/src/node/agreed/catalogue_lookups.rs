//! Decides when this process looks into the catalogue for unknown tables.
//!
//! Any number of transactions may name unknown tables, or numbers of no table. A single lookup
//! serves all transactions that asked before its beginning, and lookups begin at intervals: numbers
//! of no table cost the authority a few reads per second, however many callers ask.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_fabric::env::Nanos;

/// Minimum time between the beginnings of two lookups.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time between two checks of a lookup under way.
const GLANCE: Duration = Duration::from_millis(1);

/// State of a process's lookups.
#[derive(Default)]
pub(crate) struct CatalogueLookups(Mutex<LookupState>);

#[derive(Default)]
struct LookupState {
    /// Number of lookups that have begun.
    begun: u64,
    under_way: bool,
    /// Beginning of the last lookup.
    last: Option<Nanos>,
    /// Whether the last completed lookup has read the catalogue.
    answered: bool,
}

/// Next step of a transaction that asks for a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LookupStep {
    /// Look now, and report the [end](CatalogueLookups::end).
    Look,
    /// Wait, then ask again.
    Wait(Duration),
    /// The lookup is over, with or without an answer.
    Over {
        /// False if the authority did not answer.
        answered: bool,
    },
}

impl CatalogueLookups {
    /// Asks for a lookup that begins after this call; returns the lookup's number.
    pub(crate) fn ask(&self) -> u64 {
        self.lock().begun + 1
    }

    /// Next step towards lookup `wanted`.
    pub(crate) fn turn(&self, wanted: u64, now: Nanos) -> LookupStep {
        let mut state = self.lock();
        if state.under_way {
            return LookupStep::Wait(GLANCE);
        }
        if state.begun >= wanted {
            return LookupStep::Over { answered: state.answered };
        }
        if let Some(due) = state.last.map(|last| last.after(INTERVAL))
            && now < due
        {
            return LookupStep::Wait(due.since(now));
        }
        (state.begun, state.under_way, state.last) = (state.begun + 1, true, Some(now));
        LookupStep::Look
    }

    /// Ends the lookup under way.
    pub(crate) fn end(&self, answered: bool) {
        let mut state = self.lock();
        (state.under_way, state.answered) = (false, answered);
    }

    fn lock(&self) -> MutexGuard<'_, LookupState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos(1_000_000_000);

    #[test]
    fn one_look_serves_all_that_asked_before_it_began() {
        let lookups = CatalogueLookups::default();
        let (first, second) = (lookups.ask(), lookups.ask());
        assert_eq!(lookups.turn(first, START), LookupStep::Look);
        // It may have read the catalogue already.
        let late = lookups.ask();
        assert!(late > first && second == first);
        assert_eq!(lookups.turn(second, START), LookupStep::Wait(GLANCE));
        lookups.end(true);
        for asked in [first, second] {
            assert_eq!(lookups.turn(asked, START), LookupStep::Over { answered: true });
        }
        assert_eq!(lookups.turn(late, START), LookupStep::Wait(INTERVAL));
        assert_eq!(lookups.turn(late, START.after(INTERVAL)), LookupStep::Look);
        lookups.end(false);
        assert_eq!(lookups.turn(late, START.after(INTERVAL)), LookupStep::Over { answered: false });
    }

    #[test]
    fn looks_begin_at_intervals_however_many_are_asked_for() {
        let lookups = CatalogueLookups::default();
        let (mut now, mut begun) = (START, 0);
        while now < START.after(Duration::from_secs(1)) {
            let wanted = lookups.ask();
            if lookups.turn(wanted, now) == LookupStep::Look {
                begun += 1;
                lookups.end(true);
            }
            now = now.after(Duration::from_micros(100));
        }
        assert_eq!(begun, 10);
    }
}
