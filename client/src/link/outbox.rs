//! What waits to be written to one connection, and the memory that connections share for it.
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
    /// A budget of so many bytes.
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

    /// Whether no more should be held.
    pub fn is_spent(&self) -> bool {
        self.held() >= self.limit
    }
}

/// What waits to be written. Any thread may append to it.
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
    /// How many messages they are.
    messages: usize,
    /// The loop, if it waits for bytes.
    waker: Option<Waker>,
    closed: bool,
    /// Nobody waits for what is queued to be written.
    cut: bool,
}

/// The connection is closed, or about to be; nothing was queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

impl Outbox {
    /// An outbox whose bytes are counted in `budget` as well.
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

    /// Bytes that the peer has not taken: those of messages, from their push to the socket.
    pub fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// The same, and the requests that are kept for it.
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

    /// Takes nothing more. The loop ends when what is queued has been written.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        wake(state);
    }

    /// The same, and the loop ends as soon as it is told, whatever has not been written.
    pub fn cut(&self) {
        let mut state = self.lock();
        (state.closed, state.cut) = (true, true);
        wake(state);
    }

    /// How many messages there are to take, once there are any; or nothing will come any more.
    pub(super) fn poll_ready(&self, cx: &Context<'_>) -> Poll<Result<usize, Closed>> {
        let mut state = self.lock();
        if !state.cut && !state.bytes.is_empty() {
            return Poll::Ready(Ok(state.messages));
        }
        if state.closed {
            return Poll::Ready(Err(Closed));
        }
        // Without regard to an older one: there is only one loop.
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Whether what is queued is given up; if not, the loop is woken when it is.
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

    /// The socket has taken so many of the bytes.
    pub(super) fn taken(&self, bytes: usize) {
        self.discount(&self.unsent, bytes);
    }

    /// Drops what was not written, and takes nothing more: the loop has ended.
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
