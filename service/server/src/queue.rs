//! The queue of one coordinator's workers: requests, mostly from connections read by the same
//! thread, and connections admitted by the server's thread.
//!
//! Many items are handed over at once, and a busy worker takes the next item without a wake: the
//! fuller the queue, the fewer wakes. Workers at an empty queue wait with the waker of their task
//! and are woken latest first; under little load the same few workers stay warm.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A queue of the workers of one coordinator.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    items: VecDeque<T>,
    idle: Vec<Waker>,
    closed: bool,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        let state = State { items: VecDeque::new(), idle: Vec::new(), closed: false };
        Self { state: Mutex::new(state) }
    }

    /// Moves all of `items` to the queue; drops them if the queue is closed.
    pub(crate) fn push_all(&self, items: &mut Vec<T>) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            return items.clear();
        }
        let wakes = items.len().min(state.idle.len());
        state.items.extend(items.drain(..));
        let first = state.idle.len() - wakes;
        let woken: Vec<Waker> = state.idle.drain(first..).collect();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Returns the number of workers that wait for an item.
    pub(crate) fn idle(&self) -> usize {
        self.lock().idle.len()
    }

    /// Takes the next item; `None` once the queue is closed and empty.
    pub(crate) fn pop(&self) -> impl Future<Output = Option<T>> {
        poll_fn(|cx| self.poll_pop(cx))
    }

    fn poll_pop(&self, cx: &Context<'_>) -> Poll<Option<T>> {
        let mut state = self.lock();
        // A polled worker is not idle, or is listed once: a stale waker would take another worker's
        // wake.
        state.idle.retain(|waker| !waker.will_wake(cx.waker()));
        if let Some(item) = state.items.pop_front() {
            return Poll::Ready(Some(item));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        state.idle.push(cx.waker().clone());
        Poll::Pending
    }

    /// Refuses further items; queued items are still served.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let woken = std::mem::take(&mut state.idle);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Refuses further items and drops the queued items: no worker is left to serve them.
    pub(crate) fn abandon(&self) {
        self.close();
        let dropped = std::mem::take(&mut self.lock().items);
        drop(dropped);
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    struct Counts(AtomicUsize);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn worker() -> (Arc<Counts>, Waker) {
        let counts = Arc::new(Counts(AtomicUsize::new(0)));
        (Arc::clone(&counts), Waker::from(counts))
    }

    #[test]
    fn as_many_are_woken_as_there_is_work_for() {
        let queue = Queue::new();
        let workers = [worker(), worker(), worker()];
        let poll = |(_, waker): &(Arc<Counts>, Waker)| {
            pin!(queue.pop()).poll(&mut Context::from_waker(waker))
        };
        for worker in &workers {
            assert_eq!(poll(worker), Poll::Pending);
            // Polled for another reason: still one place in the list.
            assert_eq!(poll(worker), Poll::Pending);
        }
        queue.push_all(&mut vec![1, 2]);
        let woken = || workers.each_ref().map(|(counts, _)| counts.0.load(Ordering::Relaxed));
        assert_eq!(woken(), [0, 1, 1]);
        assert_eq!(poll(&workers[2]), Poll::Ready(Some(1)));
        // It takes the second as well; the other one, woken for nothing, waits again.
        assert_eq!(poll(&workers[2]), Poll::Ready(Some(2)));
        assert_eq!(poll(&workers[1]), Poll::Pending);
        queue.push_all(&mut vec![3]);
        assert_eq!(woken(), [0, 2, 1]);
        queue.close();
        assert_eq!(poll(&workers[0]), Poll::Ready(Some(3)));
        assert_eq!(poll(&workers[0]), Poll::Ready(None));
    }

    #[test]
    fn what_nobody_will_serve_is_dropped() {
        let queue = Queue::new();
        let item = Arc::new(());
        queue.push_all(&mut vec![Arc::clone(&item)]);
        queue.abandon();
        queue.push_all(&mut vec![Arc::clone(&item)]);
        assert_eq!(Arc::strong_count(&item), 1);
    }
}
