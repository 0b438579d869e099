//! Tells when all commits have ended that had begun before a certain moment.
//!
//! # What it is
//! Two counters of commits under way, used in turn. A commit counts in the one that is current
//! when it begins. [`Grace::begin`] makes the other one current; once the first has come down to
//! zero, nothing is left of what had begun before, however much has begun since.
//!
//! It costs a commit two additions to a number that its own thread alone looks at.
//!
//! # What it is not
//! It waits for nothing: whoever wants to know asks again.

use std::cell::Cell;

/// See the module's essay.
#[derive(Debug, Default)]
pub(crate) struct Grace {
    current: Cell<usize>,
    under_way: [Cell<u32>; 2],
}

/// Which counter a commit counts in.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entered(usize);

impl Grace {
    /// A commit begins.
    #[inline]
    pub(crate) fn enter(&self) -> Entered {
        let entered = Entered(self.current.get());
        let count = &self.under_way[entered.0];
        count.set(count.get() + 1);
        entered
    }

    /// A commit has ended.
    #[inline]
    pub(crate) fn leave(&self, entered: Entered) {
        let count = &self.under_way[entered.0];
        count.set(count.get() - 1);
    }

    /// Begins a period that is over when all commits have ended that are under way now. Not before
    /// the last one [is over](Self::is_over).
    pub(crate) fn begin(&self) {
        debug_assert!(self.is_over(), "one period at a time");
        self.current.set(1 - self.current.get());
    }

    /// Whether the last period that was begun is over.
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
