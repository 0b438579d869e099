//! Initiator depth: the number of unanswered READs and atomics that a connection may have.
//!
//! The NIC keeps a context for every READ and atomic under way, and a queue pair has a fixed number
//! of contexts (`max_rd_atomic`). A further READ or atomic stays in the send queue until the oldest
//! has been answered, and holds up later WRITEs, since a send queue is in order. WRITEs need no
//! context, so any number may be under way.
//!
//! Verbs of one connection take effect in order, so when a verb is about to travel, the times of
//! all earlier answers are known. Posting has booked the time in the outbound server: a waiting
//! verb has passed the server, and only the verb's departure moves. For the way back only the usual
//! delay counts: a fault on the way back holds up the batch, but not later verbs.

use std::collections::VecDeque;

use super::connection::FlightKind;
use super::queue::Picos;
use super::state::State;
use super::verbs::gap_before;
use crate::contract::verbs::{VerbKind, WorkRequest};

/// READs and atomics of one connection that wait for their answers.
#[derive(Default)]
pub(super) struct Unanswered {
    /// Times of the latest answers, the oldest first, at most `depth`.
    answers: VecDeque<Picos>,
    /// Arrival at the target of the last verb that left late, because the verb or an earlier verb
    /// waited.
    late: Picos,
}

impl Unanswered {
    /// Returns the time of the answer that the next READ or atomic waits for, given `depth`.
    fn oldest(&self, depth: usize) -> Option<Picos> {
        if self.answers.len() < depth { None } else { self.answers.front().copied() }
    }

    /// Records the answer of a READ or atomic. Answers come in the order of the requests.
    fn answered(&mut self, at: Picos, depth: usize) {
        if self.answers.len() >= depth {
            self.answers.pop_front();
        }
        let last = self.answers.back().copied().unwrap_or(0);
        self.answers.push_back(at.max(last));
    }
}

impl State {
    /// Records when the answer of a verb reaches its initiator.
    #[inline]
    pub(super) fn note_answer(&mut self, id: u32, request: &WorkRequest, at: Picos) {
        if let Some(depth) = self.costs.initiator_depth
            && request.kind() != VerbKind::Write
        {
            self.connection(id).unanswered.get_or_insert_default().answered(at, depth);
        }
    }

    /// Moves the arrival of the first leg's next verb to the earliest possible time, if the verb
    /// must wait for an answer, or is behind a waiting verb. Returns whether the arrival moved.
    #[inline]
    pub(super) fn hold_back(&mut self, id: u32) -> bool {
        self.costs.initiator_depth.is_some_and(|depth| self.hold_back_at(id, depth))
    }

    #[inline(never)]
    fn hold_back_at(&mut self, id: u32, depth: usize) -> bool {
        let FlightKind::Verbs(batch) = self.head(id).kind else { return false };
        let request = self.current(id, batch);
        let nic = &self.nodes[usize::from(self.ends(id).initiator.0)].nic;
        let gap = gap_before(&request, nic, &self.costs);
        let (delay, timeout) = (self.costs.delay, self.timeout);
        let connection = &mut self.connections[id as usize];
        let unanswered = connection.unanswered.get_or_insert_default();
        let behind = if unanswered.late == 0 { 0 } else { unanswered.late + gap };
        let oldest = match request.kind() {
            VerbKind::Write => None,
            _ => unanswered.oldest(depth),
        };
        let earliest = oldest.map_or(behind, |oldest| behind.max(oldest + gap + delay));
        let leg = &mut self.legs[connection.head as usize];
        if earliest < leg.arrival {
            return false;
        }
        let waits = earliest > leg.arrival;
        unanswered.late = earliest;
        leg.arrival = earliest;
        // The initiator's time-out counts from the verb's departure.
        leg.deadline = leg.deadline.max(earliest.saturating_add(timeout));
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_as_many_answers_as_are_allowed_is_waited_for() {
        let mut unanswered = Unanswered::default();
        let waits = [30, 20, 50, 60].map(|at| {
            let oldest = unanswered.oldest(2);
            unanswered.answered(at, 2);
            oldest
        });
        // The answer at 20 is not seen before the one at 30.
        assert_eq!(waits, [None, None, Some(30), Some(30)]);
        assert_eq!(unanswered.oldest(2), Some(50));
    }
}
