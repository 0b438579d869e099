//! Waiting for a transaction inside a coroutine of the `may` crate (feature `may`).
//!
//! # What it is
//! [`wait`] turns a future into a plain blocking call. In a `may` coroutine it parks only the
//! coroutine, and the thread runs other coroutines; elsewhere it parks the thread. Ten thousand
//! customers can be ten thousand straight-line functions, without a thread each.
//!
//! # What it is not
//! No executor, and no part of a coordinator: transactions run on the coordinators as usual. `may`
//! is unsound towards thread-locals, so it stays with the application, off the data path.
//!
//! # Ownership
//! A call of [`wait`] owns its `Caller`, shared with the wakers handed out. The call does not use
//! the coroutine's own park token: the application may use it, and a late waker must not disturb
//! that.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use ::may::sync::Blocker;

/// Blocks the calling coroutine or thread until `future` is ready: a [`Submitted`] transaction, or
/// any future that needs no executor of its own.
///
/// Never call this function in a job or transaction body: it would stop a coordinator. Await
/// instead.
///
/// # Panics
/// If the coroutine is cancelled during the wait, with `may`'s own payload. A submitted transaction
/// is carried out nevertheless.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lotus::{Cluster, Isolation, TableSpec, Transaction, TxnError, may::wait};
///
/// let cluster = Cluster::embedded().start()?;
/// let greetings = cluster.create_table(TableSpec::new("greetings").record_bytes(8).capacity(10))?;
/// let committed = may::coroutine::scope(|scope| {
///     let greeter = may::go!(scope, || {
///         wait(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
///             txn.insert(greetings, 42, b"hello")?;
///             Ok::<(), TxnError>(())
///         }))
///     });
///     greeter.join()
/// })?;
/// assert!(committed.receipt.commit_ts.is_some());
/// # Ok(())
/// # }
/// ```
///
/// [`Submitted`]: crate::Submitted
pub fn wait<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    let caller = Arc::new(Caller::current());
    let waker = Waker::from(Arc::clone(&caller));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        caller.sleep();
    }
}

/// The blocked caller of [`wait`].
struct Caller {
    /// Whether there was a wake since the last poll. The blocker holds a token too, but clears it
    /// by a load and then a store, and a wake in between would be lost.
    woken: AtomicBool,
    blocker: Blocker,
}

impl Caller {
    fn current() -> Self {
        let ignore_cancel = false;
        Self { woken: AtomicBool::new(false), blocker: Blocker::new(ignore_cancel) }
    }

    /// Returns after a wake, which may precede this call.
    fn sleep(&self) {
        // Acquire: the next poll sees all effects from before the wake. Release: a later wake finds
        // the blocker's token cleared.
        while !self.woken.swap(false, Ordering::AcqRel) {
            // Without a deadline the only error is a cancellation during unwinding, when `may`
            // cannot panic again; this loop then polls until the future is ready.
            let _ = self.blocker.park(None);
        }
    }
}

impl Wake for Caller {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Only the thread that sets the flag unparks. Ordering: see `sleep`.
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.blocker.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{poll_fn, ready};

    use super::*;
    use crate::{Cluster, Isolation, TableSpec, Transaction, TxnError};

    /// Runs `work` in a coroutine and on a thread, with `beside` on this thread meanwhile.
    fn in_both(work: impl Fn() + Clone + Send + 'static, beside: impl Fn()) {
        let coroutine = ::may::go!(work.clone());
        beside();
        coroutine.join().expect("the coroutine does not panic");
        std::thread::scope(|scope| {
            scope.spawn(work);
            beside();
        });
    }

    #[test]
    fn an_outcome_that_is_there_needs_no_wake() {
        in_both(|| assert_eq!(wait(ready(7)), 7), || {});
    }

    #[test]
    fn a_wake_before_the_park_is_not_lost() {
        let work = || {
            let mut left = 1_000;
            wait(poll_fn(|context| {
                left -= 1;
                context.waker().wake_by_ref();
                if left == 0 { Poll::Ready(()) } else { Poll::Pending }
            }));
        };
        in_both(work, || {});
    }

    #[test]
    fn a_wake_at_any_moment_is_not_lost() {
        const ROUNDS: u32 = 5_000;
        let (ping, pinged) = async_channel::bounded(1);
        let (pong, ponged) = async_channel::bounded(1);
        let work = move || {
            for round in 0..ROUNDS {
                assert_eq!(wait(pinged.recv()), Ok(round));
                assert_eq!(wait(pong.send(round)), Ok(()));
            }
        };
        in_both(work, || {
            for round in 0..ROUNDS {
                assert_eq!(ping.send_blocking(round), Ok(()));
                assert_eq!(ponged.recv_blocking(), Ok(round));
            }
        });
    }

    #[test]
    fn a_stray_unpark_of_the_coroutine_does_not_end_the_wait() {
        let (sender, receiver) = async_channel::bounded(1);
        let coroutine = ::may::go!(move || wait(receiver.recv()));
        for _ in 0..100 {
            coroutine.coroutine().unpark();
            std::thread::yield_now();
        }
        assert!(!coroutine.is_done(), "nothing was sent yet");
        assert_eq!(sender.send_blocking(7), Ok(()));
        assert_eq!(coroutine.join().expect("the coroutine does not panic"), Ok(7));
    }

    #[test]
    fn coroutines_learn_how_their_transactions_ended() {
        let cluster = Cluster::embedded().start().expect("the defaults are valid");
        let spec = TableSpec::new("rows").record_bytes(8).capacity(1_000);
        let rows = cluster.create_table(spec).expect("the specification is valid");
        let insert = |key: u64| {
            wait(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
                txn.insert(rows, key, b"value")?;
                Ok(())
            }))
        };
        ::may::coroutine::scope(|scope| {
            for key in 0..100 {
                ::may::go!(scope, move || {
                    insert(key).expect("nobody else inserts this row");
                    let again = insert(key);
                    assert!(matches!(again, Err(TxnError::AlreadyExists { .. })), "{again:?}");
                });
            }
        });
        cluster.stop().expect("no coordinator has failed");
    }
}
