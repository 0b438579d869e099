//! The asking side's list of ends: finished attempts of which an owner may not know yet.
//!
//! # What it is
//! One tracker per coordinator and owner node. An attempt that asked an owner for locks must end at
//! this owner too, whether the attempt committed or aborted and whether an answer came or not
//! (H10): the engine calls [`EndTracker::end`], and the tracker adds the end to datagrams until the
//! owner acknowledges the end. Ends are cumulative per slot, so a slot has at most one pending end.
//!
//! # What it is not
//! The tracker sends no messages and reads no clock: the caller passes times in nanoseconds.
//!
//! # When to send
//! Other transactions may be waiting for the locks, so a fresh end goes out with the next datagram
//! to the owner; a datagram should be sent at the end of the current round of polling even if it
//! carries only ends. Afterwards the end is repeated every `resend_ns`.

use lotus_fabric::ids::TxnId;
use lotus_sabotage::{Rule, broken};

use crate::wire::{Reply, RequestWriter};

/// Unacknowledged ends between one coordinator and one owner.
#[derive(Debug)]
pub struct EndTracker {
    resend_ns: u64,
    /// At most one end per slot of the coordinator; searched linearly.
    pending: Vec<Pending>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    txn: TxnId,
    /// Time of the next transmission; 0 for at once.
    due_ns: u64,
}

impl EndTracker {
    /// Creates a tracker that repeats an end after `resend_ns` without an acknowledgement.
    pub fn new(resend_ns: u64) -> Self {
        Self { resend_ns, pending: Vec::new() }
    }

    /// Records that `txn`, which asked the owner for locks, has ended, like all earlier attempts of
    /// its slot.
    ///
    /// All writes of `txn` must be visible on the primaries.
    pub fn end(&mut self, txn: TxnId) {
        let end = Pending { txn, due_ns: 0 };
        match self.pending.iter_mut().find(|pending| same_slot(pending.txn, txn)) {
            Some(pending) if pending.txn.attempt() < txn.attempt() => *pending = end,
            Some(_) => {}
            None => self.pending.push(end),
        }
    }

    /// Drops the ends that a reply of the owner acknowledges.
    ///
    /// An answer to a later attempt of the slot is an implicit acknowledgement: the owner ends the
    /// earlier attempts before it handles the request.
    pub fn learn(&mut self, reply: &Reply) {
        let (txn, known_below) = match reply {
            Reply::Ended { txn } => (*txn, txn.attempt() + 1),
            Reply::Lock { question, .. } => (question.txn, question.txn.attempt()),
        };
        let known_below = if broken(Rule::AcksNameTheirAttempt) { u64::MAX } else { known_below };
        self.pending
            .retain(|pending| !same_slot(pending.txn, txn) || pending.txn.attempt() >= known_below);
    }

    /// Adds the ends due at `now_ns` to a datagram, at most `most` and as far as they fit. Returns
    /// the number of ends added.
    pub fn write_due(
        &mut self,
        now_ns: u64,
        most: usize,
        datagram: &mut RequestWriter<'_>,
    ) -> usize {
        let mut written = 0;
        let due = self.pending.iter_mut().filter(|pending| pending.due_ns <= now_ns);
        for pending in due.take(most) {
            if datagram.end(pending.txn).is_err() {
                break;
            }
            pending.due_ns = now_ns.saturating_add(self.resend_ns);
            written += 1;
        }
        if broken(Rule::EndsAreRepeated) {
            self.pending.retain(|pending| pending.due_ns == 0);
        }
        written
    }

    /// Time at which [`Self::write_due`] should next be called: 0 for at once, `None` for never.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.pending.iter().map(|pending| pending.due_ns).min()
    }

    /// Number of ends without an acknowledgement.
    pub fn unacknowledged(&self) -> usize {
        self.pending.len()
    }

    /// Whether `txn` was reported to [`Self::end`] and is not acknowledged yet.
    pub fn is_pending(&self, txn: TxnId) -> bool {
        self.pending
            .iter()
            .any(|pending| same_slot(pending.txn, txn) && txn.attempt() <= pending.txn.attempt())
    }

    /// Drops all ends: the owner has been expelled, and its lock table is gone.
    pub fn clear(&mut self) {
        self.pending.clear();
    }
}

/// Whether both attempts ran in the same coroutine slot of the same life of a node.
fn same_slot(one: TxnId, other: TxnId) -> bool {
    (one.incarnation(), one.slot()) == (other.incarnation(), other.slot())
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;
    use crate::wire::{self, ITEM_BYTES, LockAnswer, LockMessage, Question};
    use lotus_fabric::ids::{Epoch, Incarnation};

    const RESEND_NS: u64 = 100;

    fn txn(slot: u16, attempt: u64) -> TxnId {
        TxnId::new(Incarnation::new(1).expect("fits"), slot, attempt)
    }

    fn due(tracker: &mut EndTracker, now_ns: u64, room: usize) -> Vec<TxnId> {
        let mut buffer = vec![0; wire::HEAD_BYTES + room * ITEM_BYTES];
        let mut writer = RequestWriter::new(&mut buffer);
        let written = tracker.write_due(now_ns, usize::MAX, &mut writer);
        let length = writer.finish(Epoch(1));
        let ends: Vec<_> = wire::requests(&buffer[..length])
            .map(|request| match request.expect("well-formed") {
                LockMessage::End { txn } => txn,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ends.len(), written);
        ends
    }

    fn answered(txn: TxnId) -> Reply {
        let question = Question { txn, round: 0, fragment: 0 };
        Reply::Lock { question, answer: LockAnswer::Stale }
    }

    #[test]
    fn h10_an_end_is_repeated_until_it_is_acknowledged() {
        let mut tracker = EndTracker::new(RESEND_NS);
        assert_eq!(tracker.next_due_ns(), None);
        tracker.end(txn(0, 5));
        assert_eq!(tracker.next_due_ns(), Some(0));
        assert_eq!(due(&mut tracker, 1000, 9), [txn(0, 5)]);
        assert_eq!(tracker.next_due_ns(), Some(1100));
        assert_eq!(due(&mut tracker, 1099, 9), []);
        assert_eq!(due(&mut tracker, 1100, 9), [txn(0, 5)]);
        tracker.learn(&Reply::Ended { txn: txn(0, 5) });
        assert_eq!((tracker.unacknowledged(), tracker.next_due_ns()), (0, None));
    }

    #[test]
    fn a_slot_has_one_end_and_the_latest_wins() {
        let mut tracker = EndTracker::new(RESEND_NS);
        for attempt in [5, 7, 6] {
            tracker.end(txn(0, attempt));
        }
        tracker.end(txn(1, 2));
        assert_eq!(due(&mut tracker, 0, 9), [txn(0, 7), txn(1, 2)]);
        assert!(tracker.is_pending(txn(0, 6)) && !tracker.is_pending(txn(0, 8)));
    }

    #[test]
    fn only_what_covers_an_end_acknowledges_it() {
        // (reply about attempt 5's slot, still pending afterwards)
        let cases = [
            (Reply::Ended { txn: txn(0, 4) }, true),
            (Reply::Ended { txn: txn(0, 5) }, false),
            (Reply::Ended { txn: txn(0, 6) }, false),
            (Reply::Ended { txn: txn(1, 9) }, true),
            (answered(txn(0, 4)), true),
            (answered(txn(0, 5)), true),
            (answered(txn(0, 6)), false),
        ];
        for (reply, pending) in cases {
            let mut tracker = EndTracker::new(RESEND_NS);
            tracker.end(txn(0, 5));
            tracker.learn(&reply);
            assert_eq!(tracker.is_pending(txn(0, 5)), pending, "{reply:?}");
        }
    }

    #[test]
    fn what_does_not_fit_goes_with_the_next_datagram() {
        let mut tracker = EndTracker::new(RESEND_NS);
        (0..3).for_each(|slot| tracker.end(txn(slot, 1)));
        assert_eq!(due(&mut tracker, 10, 2), [txn(0, 1), txn(1, 1)]);
        assert_eq!(due(&mut tracker, 11, 2), [txn(2, 1)]);
        tracker.clear();
        assert_eq!(tracker.unacknowledged(), 0);
    }
}
