//! Bytes that wait to be written to one connection, and the budget that connections share for them.
//!
//! An [`Outbox`] counts the bytes that its peer has not taken, from the push to the socket. A
//! server also counts the requests that it keeps for the peer, and gives all connections of a
//! coordinator one [`Budget`]. Neither refuses anything: a connection that has used up its share is
//! not read until the peer has taken what is there (`Receiver::is_ready`).

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
    /// A budget of `limit` bytes.
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

/// Messages that wait to be written. Any thread may append to it.
#[derive(Debug, Default)]
pub struct Outbox {
    state: Mutex<Waiting>,
    /// Bytes pushed and not taken by the socket.
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
    /// The loop, if it waits for bytes.
    waker: Option<Waker>,
    closed: bool,
    /// Whether to end without writing what is queued.
    cut: bool,
}

/// The connection is closed, or about to be; nothing was queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

impl Outbox {
    /// An outbox that counts its bytes in `budget` as well.
    pub fn within(budget: Arc<Budget>) -> Self {
        let (state, unsent, kept) = Default::default();
        Self { state, unsent, kept, budget: Some(budget) }
    }

    /// Appends the message that `write` appends.
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
        // Under the lock, so that no byte is written before it is counted.
        self.count(&self.unsent, more);
        wake(state);
        Ok(())
    }

    /// Bytes of messages that the socket has not taken since they were pushed.
    pub fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Unsent bytes, and those of requests that are kept for the peer.
    pub fn held(&self) -> usize {
        self.unsent() + self.kept.load(Ordering::Relaxed)
    }

    /// Counts a request that is kept until it is answered, and then [released](Self::release).
    pub fn keep(&self, bytes: usize) {
        self.count(&self.kept, bytes);
    }

    /// Ends the count of a request.
    pub fn release(&self, bytes: usize) {
        self.discount(&self.kept, bytes);
    }

    /// The budget that this outbox is counted in.
    pub fn budget(&self) -> Option<&Budget> {
        self.budget.as_deref()
    }

    /// Refuses further messages. The loop ends when what is queued has been written.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        wake(state);
    }

    /// Refuses further messages, and ends the loop at once, whatever has not been written.
    pub fn cut(&self) {
        let mut state = self.lock();
        (state.closed, state.cut) = (true, true);
        wake(state);
    }

    /// Number of queued messages, once there are any.
    ///
    /// # Errors
    /// [`Closed`] if no more will come, or all is cut.
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

    /// Ready once the queue is cut; until then the loop is woken for that.
    pub(super) fn poll_cut(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.cut {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Exchanges what is queued for an empty buffer.
    pub(super) fn swap(&self, empty: &mut Vec<u8>) {
        let mut state = self.lock();
        std::mem::swap(&mut state.bytes, empty);
        state.messages = 0;
    }

    /// Counts bytes that the socket has taken.
    pub(super) fn taken(&self, bytes: usize) {
        self.discount(&self.unsent, bytes);
    }

    /// Drops what was not written and refuses further messages: the loop has ended.
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

/// Wakes the loop without holding the lock that it will want.
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
