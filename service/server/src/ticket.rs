//! Tickets, by which every request is answered exactly once, even if its job is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lotus_protocol::frame;
use lotus_protocol::link::{Budget, Outbox};
use lotus_protocol::messages::{self, Answer, Failure};

/// Bytes that a connection may hold after the shared budget is spent: enough for continued service,
/// so clients that do not read never keep the rest waiting.
const HELD_IN_NEED: usize = 16 << 10;

/// A client's connection, from the view of the answering jobs.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) outbox: Outbox,
    in_flight: AtomicUsize,
    /// Bytes that the connection may hold while the budget is not spent.
    share: usize,
}

impl Peer {
    /// Creates a connection that may hold `share` bytes of a budget.
    pub(crate) fn new(budget: &Arc<Budget>, share: usize) -> Self {
        let outbox = Outbox::within(Arc::clone(budget));
        Self { outbox, in_flight: AtomicUsize::new(0), share }
    }

    /// Whether the connection holds few enough bytes for the server to read more (I190).
    pub(crate) fn may_ask(&self) -> bool {
        self.outbox.held() < self.allowance()
    }

    /// Whether the client has taken enough answers for a further answer to be made (I190).
    pub(crate) fn may_be_answered(&self) -> bool {
        self.outbox.unsent() < self.allowance()
    }

    fn allowance(&self) -> usize {
        match self.outbox.budget().is_some_and(Budget::is_spent) {
            true => self.share.min(HELD_IN_NEED),
            false => self.share,
        }
    }

    /// Returns the number of unanswered requests.
    pub(crate) fn in_flight(&self) -> usize {
        // Acquire pairs with the release in `Pending`.
        self.in_flight.load(Ordering::Acquire)
    }
}

/// The duty to answer one request, once. A dropped ticket answers with the certain outcome: nothing
/// was done or, if the commit had begun, the outcome is unknown (I81).
#[derive(Debug)]
pub(crate) struct Ticket {
    peer: Arc<Peer>,
    number: u32,
    /// Bytes of the request, held until it is answered.
    bytes: usize,
    answered: bool,
    dropped: Failure,
}

impl Ticket {
    /// Creates a ticket for a request of `bytes` bytes.
    pub(crate) fn new(peer: &Arc<Peer>, number: u32, bytes: usize) -> Self {
        peer.in_flight.fetch_add(1, Ordering::Relaxed);
        peer.outbox.keep(bytes);
        Self { peer: Arc::clone(peer), number, bytes, answered: false, dropped: Failure::Leaving }
    }

    /// Same as [`Peer::may_be_answered`].
    pub(crate) fn may_be_answered(&self) -> bool {
        self.peer.may_be_answered()
    }

    /// Records that the commit begins: from now on a dropped ticket's outcome is unknown.
    pub(crate) fn commits(&mut self) {
        self.dropped = Failure::Unknown;
    }

    /// Records that the commit has failed for certain.
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

    /// Answers with an encoded message.
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
        let (number, pending) = (self.number, Pending { peer: &self.peer, bytes: self.bytes });
        // A closed connection expects no answer; then `pending` is dropped with the closure.
        let _ = self.peer.outbox.push(move |out| {
            write(out, number);
            // Dropped after the answer is written: a stopping server closes the outbox when nothing
            // is in flight, and the close comes after this push, because the push has the outbox's
            // lock. Dropped before the push ends, which wakes the outbox's reader: the reader asks
            // how much is in flight and held.
            drop(pending);
        });
    }
}

/// A request that counts as unanswered until this value is dropped, also by a panic.
struct Pending<'p> {
    peer: &'p Peer,
    bytes: usize,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.peer.outbox.release(self.bytes);
        self.peer.in_flight.fetch_sub(1, Ordering::Release);
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
    use std::io;
    use std::pin::pin;
    use std::sync::Mutex;
    use std::task::{Context, Poll, Wake, Waker};
    use std::time::Duration;

    use lotus_protocol::frame::Incoming;
    use lotus_protocol::link::{self, Bounds, MinimumProgress, Receiver, Wire};
    use lotus_protocol::messages::Garbage;

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

    /// A server that stops once closed the outbox between the two steps: a call had committed, and
    /// its answer was gone.
    #[test]
    fn a_request_is_in_flight_until_its_answer_is_in_the_outbox() {
        let peer = peer(&Arc::new(Budget::new(1 << 20)));
        Ticket::new(&peer, 1, 10).push(|out, _| {
            out.push(1);
            assert_eq!(peer.in_flight(), 1, "the answer may still be closed out");
        });
        assert_eq!((peer.in_flight(), peer.outbox.held()), (0, 1));
        let late = Ticket::new(&peer, 2, 10);
        peer.outbox.close();
        late.answer(&Answer::Ended);
        assert_eq!((peer.in_flight(), peer.outbox.held()), (0, 1));
    }

    /// A connection without a word.
    struct Quiet;

    impl Wire for Quiet {
        type Timer = std::future::Pending<()>;

        fn poll_read(&mut self, _: &mut Context<'_>, _: &mut Vec<u8>) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_write(&mut self, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn timer(&self, _: Duration) -> Self::Timer {
            std::future::pending()
        }
    }

    impl Receiver for Quiet {
        fn receive(&mut self, _: &[u8]) -> Result<(), Garbage> {
            Ok(())
        }
    }

    /// What is in flight, and kept, when the loop of a connection is woken.
    struct Seen(Arc<Peer>, Mutex<Option<(usize, usize)>>);

    impl Wake for Seen {
        fn wake(self: Arc<Self>) {
            let kept = self.0.outbox.held() - self.0.outbox.unsent();
            *self.1.lock().unwrap() = Some((self.0.in_flight(), kept));
        }
    }

    /// A loop that is woken for an answer, and still finds too much in flight, would not be woken
    /// again.
    #[test]
    fn the_loop_that_an_answer_wakes_finds_its_request_done() {
        let peer = peer(&Arc::new(Budget::new(1 << 20)));
        let ticket = Ticket::new(&peer, 1, 10);
        let seen = Arc::new(Seen(Arc::clone(&peer), Mutex::default()));
        let (mut wire, mut incoming, mut desk) = (Quiet, Incoming::new(100), Quiet);
        let patience = MinimumProgress { interval: Duration::from_secs(1), bytes: 1 };
        let bounds = Bounds { frame_bytes: 100, patience };
        let mut serve = pin!(link::run(&mut wire, &peer.outbox, &mut incoming, &mut desk, bounds));
        let waker = Waker::from(Arc::clone(&seen));
        assert!(serve.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        ticket.answer(&Answer::Ended);
        assert_eq!(*seen.1.lock().unwrap(), Some((0, 0)));
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
