//! The promise that a request is answered once, whatever becomes of whoever serves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lotus_client::link::Outbox;
use lotus_client::protocol::{self, Answer, Failure};

/// A client's connection, as those who answer see it.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub(crate) outbox: Outbox,
    in_flight: AtomicUsize,
}

impl Peer {
    /// Requests that are not answered.
    pub(crate) fn in_flight(&self) -> usize {
        // Acquire pairs with the release in `send`.
        self.in_flight.load(Ordering::Acquire)
    }
}

/// One request's right to be answered. If it is dropped, the request is answered by what can be
/// said for certain: nothing was done, or, if its commit had begun, nobody knows.
#[derive(Debug)]
pub(crate) struct Ticket {
    peer: Arc<Peer>,
    number: u32,
    answered: bool,
    dropped: Failure,
}

impl Ticket {
    pub(crate) fn new(peer: &Arc<Peer>, number: u32) -> Self {
        peer.in_flight.fetch_add(1, Ordering::Relaxed);
        Self { peer: Arc::clone(peer), number, answered: false, dropped: Failure::Leaving }
    }

    /// The commit begins: from now on it may have happened.
    pub(crate) fn commits(&mut self) {
        self.dropped = Failure::Unknown;
    }

    /// The commit has failed for certain.
    pub(crate) fn failed(&mut self) {
        self.dropped = Failure::Leaving;
    }

    /// Answers.
    pub(crate) fn answer(mut self, answer: &Answer<'_>) {
        self.send(answer);
    }

    /// Answers that it did not work out.
    pub(crate) fn fail(self, failure: Failure) {
        self.answer(&Answer::Failed(failure));
    }

    fn send(&mut self, answer: &Answer<'_>) {
        if std::mem::replace(&mut self.answered, true) {
            return;
        }
        // Not after the push: who reads the outbox asks how much is in flight.
        self.peer.in_flight.fetch_sub(1, Ordering::Release);
        // If the connection is closed nobody waits.
        let _ = self.peer.outbox.push(|out| protocol::send(out, self.number, answer));
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

    #[test]
    fn every_ticket_is_answered_once() {
        let peer = Arc::new(Peer::default());
        Ticket::new(&peer, 1).answer(&Answer::Ended);
        Ticket::new(&peer, 2).fail(Failure::Timeout);
        drop(Ticket::new(&peer, 3));
        let mut committing = Ticket::new(&peer, 4);
        committing.commits();
        assert_eq!(peer.in_flight(), 1);
        drop(committing);
        assert_eq!(peer.in_flight(), 0);
    }
}
