//! Grace periods: tell when all commits begun before a certain moment have ended.
//!
//! # What it is
//! Two counters of commits under way, used in turn. A commit is counted in the current counter when
//! it begins. [`Grace::begin`] switches the current counter; once the old counter has come down to
//! zero, all earlier commits have ended, however many have begun since.
//!
//! A commit pays two additions to a number used by its own thread only.
//!
//! # What it is not
//! A wait: callers poll [`Grace::is_over`].

use std::cell::Cell;

/// Counters of commits under way; see the module docs.
#[derive(Debug, Default)]
pub(crate) struct Grace {
    current: Cell<usize>,
    under_way: [Cell<u32>; 2],
}

/// Index of the counter in which a commit was counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entered(usize);

impl Grace {
    /// Counts a commit that begins.
    #[inline]
    pub(crate) fn enter(&self) -> Entered {
        let entered = Entered(self.current.get());
        let count = &self.under_way[entered.0];
        count.set(count.get() + 1);
        entered
    }

    /// Counts a commit that has ended.
    #[inline]
    pub(crate) fn leave(&self, entered: Entered) {
        let count = &self.under_way[entered.0];
        debug_assert!(count.get() > 0, "I71: a commit leaves the period that it has entered, once");
        count.set(count.get() - 1);
    }

    /// Begins a period that covers the commits under way now. The last period must be
    /// [over](Self::is_over).
    pub(crate) fn begin(&self) {
        debug_assert!(self.is_over(), "I71: one period at a time");
        self.current.set(1 - self.current.get());
    }

    /// Whether the last period is over.
    pub(crate) fn is_over(&self) -> bool {
        self.under_way[1 - self.current.get()].get() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_over_when_what_had_begun_before_has_ended() {
        let grace = Grace::default();
        assert!(grace.is_over());
        let [early, late] = [grace.enter(), grace.enter()];
        grace.begin();
        assert!(!grace.is_over());
        let during = grace.enter();
        grace.leave(early);
        assert!(!grace.is_over());
        grace.leave(late);
        assert!(grace.is_over(), "what began meanwhile does not count");
        grace.begin();
        assert!(!grace.is_over());
        grace.leave(during);
        assert!(grace.is_over());
    }
}
