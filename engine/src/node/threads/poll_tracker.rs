//! View of a coordinator's thread from outside: the application code that holds the thread up, if
//! any.
//!
//! # What it is
//! A coordinator serves many slots by turns, so job code that blocks the thread, or computes for
//! long without an await, stops the remaining jobs, and the node's duties to its peers. The thread
//! itself cannot tell while held up. So each poll of a job's code is entered here, with two stores
//! to memory seldom read by other threads: [`crate::cluster::watchdog`] periodically checks whether
//! the poll is still the same.
//!
//! # What it is not
//! A measure: only polls longer than the time between two checks are seen.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::node::threads::label::Label;

/// Bits that hold the slot.
const SLOT_BITS: u32 = 16;

/// Current poll of application code by a coordinator's thread.
#[derive(Debug)]
pub(crate) struct CurrentPoll {
    /// 0 outside of application code. Inside, a count that identifies the poll, then the slot.
    inside: AtomicU64,
    /// Names of the slots' jobs.
    labels: Box<[Mutex<Option<Label>>]>,
}

/// One poll of application code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PollId(u64);

impl CurrentPoll {
    pub(crate) fn new(slots: usize) -> Arc<Self> {
        let labels = (0..slots).map(|_| Mutex::default()).collect();
        Arc::new(Self { inside: AtomicU64::new(0), labels })
    }

    /// The thread's current poll.
    pub(crate) fn inside(&self) -> Option<PollId> {
        // Relaxed: a hint, read again before anything follows from it.
        let inside = self.inside.load(Ordering::Relaxed);
        (inside != 0).then_some(PollId(inside))
    }

    /// Name of the job polled.
    pub(crate) fn label(&self, inside: PollId) -> String {
        let slot = inside.0 & ((1 << SLOT_BITS) - 1);
        self.label_of(slot as usize).unwrap_or_else(|| "a job".to_owned())
    }

    /// Name of the job in a slot; `None` without a name.
    pub(crate) fn label_of(&self, slot: usize) -> Option<String> {
        let label = self.labels.get(slot)?.lock().unwrap_or_else(PoisonError::into_inner);
        label.as_ref().map(Label::to_string)
    }

    /// Names the job in a slot.
    pub(crate) fn name(&self, slot: usize, name: Option<Label>) {
        if let Some(label) = self.labels.get(slot) {
            *label.lock().unwrap_or_else(PoisonError::into_inner) = name;
        }
    }
}

/// The coordinator's own end of a [`CurrentPoll`].
#[derive(Debug)]
pub(crate) struct PollTracker {
    pub(crate) current_poll: Arc<CurrentPoll>,
    polls: Cell<u64>,
}

impl PollTracker {
    pub(crate) fn new(current_poll: &Arc<CurrentPoll>) -> Self {
        Self { current_poll: Arc::clone(current_poll), polls: Cell::new(0) }
    }

    /// Enters a poll of the code of a slot's job, until the guard is dropped, also by a panic.
    #[inline]
    pub(crate) fn enter(&self, slot: usize) -> Entered<'_> {
        let polls = self.polls.get().wrapping_add(1 << SLOT_BITS) | 1 << SLOT_BITS;
        self.polls.set(polls.wrapping_add(1 << SLOT_BITS));
        self.current_poll.inside.store(polls | slot as u64, Ordering::Relaxed);
        Entered(&self.current_poll.inside)
    }
}

/// A poll of application code; dropped at its end.
pub(crate) struct Entered<'a>(&'a AtomicU64);

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_differ_from_one_another_and_name_their_job() {
        let current_poll = CurrentPoll::new(2);
        let poll_tracker = PollTracker::new(&current_poll);
        assert_eq!(current_poll.inside(), None);
        current_poll.name(1, Some(Label::Named("transfer".into())));
        let mut seen = Vec::new();
        for slot in [0, 1, 1] {
            let _inside = poll_tracker.enter(slot);
            let inside = current_poll.inside().expect("it is inside");
            assert!(!seen.contains(&inside));
            assert_eq!(current_poll.label(inside), ["a job", "\"transfer\""][slot]);
            seen.push(inside);
        }
        assert_eq!(current_poll.inside(), None, "the last poll has ended");
    }
}
