//! Tickets, by which each request is answered exactly once, even if its job is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lotus_protocol::frame;
use lotus_protocol::link::{Budget, Outbox};
use lotus_protocol::messages::{self, Answer, Failure};

/// Bytes that a connection may hold when the budget that it shares is spent: enough to be served
/// on, so that clients that do not read keep no others waiting.
const HELD_IN_NEED: usize = 16 << 10;

/// A client's connection, as the jobs that answer it see it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) outbox: Outbox,
    in_flight: AtomicUsize,
    /// Bytes that it may hold while the budget is not spent.
    share: usize,
}

impl Peer {
    /// A connection that may hold `share` bytes of a budget.
    pub(crate) fn new(budget: &Arc<Budget>, share: usize) -> Self {
        let outbox = Outbox::within(Arc::clone(budget));
        Self { outbox, in_flight: AtomicUsize::new(0), share }
    }

    /// Whether it holds so little that more may be read from it.
    pub(crate) fn may_ask(&self) -> bool {
        self.outbox.held() < self.allowance()
    }

    /// Whether it has taken enough of its answers that another one may be made for it.
    pub(crate) fn may_be_answered(&self) -> bool {
        self.outbox.unsent() < self.allowance()
    }

    fn allowance(&self) -> usize {
        match self.outbox.budget().is_some_and(Budget::is_spent) {
            true => self.share.min(HELD_IN_NEED),
            false => self.share,
        }
    }

    /// Requests that are not answered.
    pub(crate) fn in_flight(&self) -> usize {
        // Acquire pairs with the release in `push`.
        self.in_flight.load(Ordering::Acquire)
    }
}

/// The duty to answer one request. If it is dropped, the answer is what can be said for certain:
/// nothing was done or, if the commit had begun, the outcome is unknown.
#[derive(Debug)]
pub(crate) struct Ticket {
    peer: Arc<Peer>,
    number: u32,
    /// Bytes of the request, which are held until it is answered.
    bytes: usize,
    answered: bool,
    dropped: Failure,
}

impl Ticket {
    /// A ticket for a request of `bytes` bytes.
    pub(crate) fn new(peer: &Arc<Peer>, number: u32, bytes: usize) -> Self {
        peer.in_flight.fetch_add(1, Ordering::Relaxed);
        peer.outbox.keep(bytes);
        Self { peer: Arc::clone(peer), number, bytes, answered: false, dropped: Failure::Leaving }
    }

    /// Same as [`Peer::may_be_answered`].
    pub(crate) fn may_be_answered(&self) -> bool {
        self.peer.may_be_answered()
    }

    /// Notes that the commit begins: from now on a dropped ticket's outcome is unknown.
    pub(crate) fn commits(&mut self) {
        self.dropped = Failure::Unknown;
    }

    /// Notes that the commit has failed for certain.
    pub(crate) fn failed(&mut self) {
        self.dropped = Failure::Leaving;
    }

    /// Answers.
    pub(crate) fn answer(mut self, answer: &Answer<'_>) {
        self.send(answer);
    }

    /// Answers with a failure.
    pub(crate) fn fail(self, failure: Failure) {
        self.answer(&Answer::Failed(failure));
    }

    /// Answers with a message that is encoded already.
    pub(crate) fn answer_encoded(mut self, answer: &[u8]) {
        self.push(|out, number| {
            frame::append(out, |out| {
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(answer);
            });
        });
    }

    fn send(&mut self, answer: &Answer<'_>) {
        self.push(|out, number| messages::send(out, number, answer));
    }

    fn push(&mut self, write: impl FnOnce(&mut Vec<u8>, u32)) {
        if std::mem::replace(&mut self.answered, true) {
            return;
        }
        // Before the push: the outbox's reader asks how much is in flight, and held.
        self.peer.outbox.release(self.bytes);
        self.peer.in_flight.fetch_sub(1, Ordering::Release);
        // A closed connection expects no answer.
        let _ = self.peer.outbox.push(|out| write(out, self.number));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let dropped = std::mem::replace(&mut self.dropped, Failure::Leaving);
        self.send(&Answer::Failed(dropped));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(budget: &Arc<Budget>) -> Arc<Peer> {
        Arc::new(Peer::new(budget, 1 << 20))
    }

    #[test]
    fn every_ticket_is_answered_once() {
        let budget = Arc::new(Budget::new(1 << 20));
        let peer = peer(&budget);
        Ticket::new(&peer, 1, 10).answer(&Answer::Ended);
        Ticket::new(&peer, 2, 10).fail(Failure::Timeout);
        drop(Ticket::new(&peer, 3, 10));
        let mut committing = Ticket::new(&peer, 4, 1000);
        committing.commits();
        assert_eq!(peer.in_flight(), 1);
        assert_eq!(peer.outbox.held() - peer.outbox.unsent(), 1000);
        drop(committing);
        assert_eq!(peer.in_flight(), 0);
        assert_eq!(peer.outbox.held(), peer.outbox.unsent());
        assert_eq!(budget.held(), peer.outbox.unsent());
    }

    #[test]
    fn who_reads_is_served_although_others_have_spent_the_budget() {
        let budget = Arc::new(Budget::new(3 << 20));
        let idlers: Vec<_> = (0..3).map(|_| peer(&budget)).collect();
        let reader = peer(&budget);
        for idler in &idlers {
            assert!(idler.may_ask() && idler.may_be_answered());
            Ticket::new(idler, 1, 100).answer_encoded(&[0; 1 << 20]);
            assert!(!idler.may_ask() && !idler.may_be_answered());
        }
        assert!(budget.is_spent() && reader.may_ask());
        let waiting = Ticket::new(&reader, 1, HELD_IN_NEED);
        assert!(!reader.may_ask(), "one request at a time, if it is as large");
        assert!(reader.may_be_answered());
        waiting.answer(&Answer::Ended);
        assert!(reader.may_ask());
        drop(idlers);
        let _more = Ticket::new(&reader, 2, HELD_IN_NEED);
        assert!(reader.may_ask());
    }
}
