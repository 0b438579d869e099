//! Bytes queued for writing to one connection, and the budget that connections share for them.
//!
//! An [`Outbox`] counts the bytes that its peer has not taken, from the push to the socket. A
//! server also counts the requests that it keeps for the peer, and gives all connections of a
//! coordinator one [`Budget`]. Neither the outbox nor the budget refuses anything: the loop stops
//! reading from a connection that has used up its share until the peer has taken the queued bytes
//! (`Receiver::is_ready`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Bytes that several connections may hold together.
#[derive(Debug)]
#[repr(align(128))]
pub struct Budget {
    held: AtomicUsize,
    limit: usize,
}

impl Budget {
    /// Creates a budget of `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self { held: AtomicUsize::new(0), limit }
    }

    /// Bytes that are held now.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes that may be held.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Whether the limit is reached.
    pub fn is_spent(&self) -> bool {
        self.held() >= self.limit
    }
}

/// Queue of messages to be written. Any thread may append messages.
#[derive(Debug, Default)]
pub struct Outbox {
    state: Mutex<Waiting>,
    /// Bytes pushed and not yet taken by the socket.
    unsent: AtomicUsize,
    /// Bytes of requests that are kept for the peer.
    kept: AtomicUsize,
    budget: Option<Arc<Budget>>,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// Number of messages in `bytes`.
    messages: usize,
    /// Waker of the loop while the loop waits for bytes.
    waker: Option<Waker>,
    closed: bool,
    /// Whether the loop ends without writing the queued bytes.
    cut: bool,
}

/// The connection is closed, or about to be; nothing was queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

impl Outbox {
    /// Creates an outbox whose bytes also count in `budget`.
    pub fn within(budget: Arc<Budget>) -> Self {
        let (state, unsent, kept) = Default::default();
        Self { state, unsent, kept, budget: Some(budget) }
    }

    /// Appends the message that `write` writes.
    ///
    /// # Errors
    /// [`Closed`]; `write` is then not called.
    pub fn push(&self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), Closed> {
        let mut state = self.lock();
        if state.closed {
            return Err(Closed);
        }
        let before = state.bytes.len();
        write(&mut state.bytes);
        let more = state.bytes.len() - before;
        state.messages += 1;
        // Under the lock, so that every byte is counted before it is written.
        self.count(&self.unsent, more);
        wake(state);
        Ok(())
    }

    /// Returns the number of bytes pushed but not yet taken by the socket.
    pub fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Returns the number of unsent bytes, plus the bytes of requests kept for the peer.
    pub fn held(&self) -> usize {
        self.unsent() + self.kept.load(Ordering::Relaxed)
    }

    /// Counts the bytes of a request; [release](Self::release) ends the count once the request is
    /// answered.
    pub fn keep(&self, bytes: usize) {
        self.count(&self.kept, bytes);
    }

    /// Ends the count of a request.
    pub fn release(&self, bytes: usize) {
        self.discount(&self.kept, bytes);
    }

    /// The budget in which this outbox is counted.
    pub fn budget(&self) -> Option<&Budget> {
        self.budget.as_deref()
    }

    /// Refuses further messages. The loop ends once the queued messages are written.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        wake(state);
    }

    /// Refuses further messages, and ends the loop at once, without writing the rest of the queue.
    pub fn cut(&self) {
        let mut state = self.lock();
        (state.closed, state.cut) = (true, true);
        wake(state);
    }

    /// Waits for queued messages and returns their number.
    ///
    /// # Errors
    /// [`Closed`] if the outbox is closed and empty, or cut.
    pub(super) fn poll_ready(&self, cx: &Context<'_>) -> Poll<Result<usize, Closed>> {
        let mut state = self.lock();
        if !state.cut && !state.bytes.is_empty() {
            return Poll::Ready(Ok(state.messages));
        }
        if state.closed {
            return Poll::Ready(Err(Closed));
        }
        // Replaces an older waker: there is only one loop.
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ready once the queue is cut; until then the cut wakes the loop.
    pub(super) fn poll_cut(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.cut {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Exchanges the queued bytes for an empty buffer.
    pub(super) fn swap(&self, empty: &mut Vec<u8>) {
        let mut state = self.lock();
        std::mem::swap(&mut state.bytes, empty);
        state.messages = 0;
    }

    /// Counts bytes that the socket has taken.
    pub(super) fn taken(&self, bytes: usize) {
        self.discount(&self.unsent, bytes);
    }

    /// Drops the unwritten bytes and refuses further messages: the loop has ended.
    pub(super) fn give_up(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.bytes = Vec::new();
        let unsent = self.unsent.swap(0, Ordering::Relaxed);
        drop(state);
        if let Some(budget) = &self.budget {
            budget.held.fetch_sub(unsent, Ordering::Relaxed);
        }
    }

    fn count(&self, what: &AtomicUsize, bytes: usize) {
        what.fetch_add(bytes, Ordering::Relaxed);
        if let Some(budget) = &self.budget {
            budget.held.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn discount(&self, what: &AtomicUsize, bytes: usize) {
        what.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(budget) = &self.budget {
            budget.held.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let held = self.held();
        if let Some(budget) = &self.budget {
            budget.held.fetch_sub(held, Ordering::Relaxed);
        }
    }
}

/// Wakes the loop after releasing the lock, because the loop takes the same lock.
fn wake(mut state: MutexGuard<'_, Waiting>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_is_held_is_counted_until_it_is_taken_or_given_up() {
        let budget = Arc::new(Budget::new(100));
        let outbox = Outbox::within(Arc::clone(&budget));
        let other = Outbox::within(Arc::clone(&budget));
        outbox.push(|out| out.extend_from_slice(&[0; 60])).unwrap();
        outbox.keep(30);
        other.push(|out| out.extend_from_slice(&[0; 20])).unwrap();
        assert_eq!((outbox.unsent(), outbox.held(), budget.held()), (60, 90, 110));
        assert!(budget.is_spent());
        outbox.taken(15);
        outbox.release(30);
        assert_eq!((outbox.held(), budget.held(), budget.is_spent()), (45, 65, false));
        outbox.give_up();
        assert_eq!(outbox.push(|_| panic!("nothing is written any more")), Err(Closed));
        assert_eq!((outbox.held(), budget.held()), (0, 20));
        drop(other);
        assert_eq!(budget.held(), 0);
    }
}
