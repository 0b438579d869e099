//! Submission of whole transactions to coordinators, from any thread.

use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use lotus_fabric::machines::Machines;

use crate::api::error::TxnError;
use crate::api::isolation::Isolation;
use crate::txn::session::Session;
use crate::txn::transaction::Transaction;

/// Fewest attempts of a transaction before its last error is reported; the time below must be over
/// too.
const MIN_ATTEMPTS: u32 = 256;
const MIN_PATIENCE: Duration = Duration::from_secs(1);

/// Pending outcome of a transaction or job. Await it, or call [`Submitted::wait`]; dropping it does
/// not affect the job.
#[must_use = "await it or wait for it to learn the outcome"]
pub struct Submitted<T> {
    reply: Receiver<Result<T, TxnError>>,
}

/// Sending end of a [`Submitted`].
pub(crate) struct Reply<T> {
    sender: Sender<Result<T, TxnError>>,
}

impl<T> Submitted<T> {
    pub(crate) fn channel() -> (Reply<T>, Self) {
        let (sender, reply) = async_channel::bounded(1);
        (Reply { sender }, Self { reply })
    }

    /// Blocks this thread until the outcome is known.
    ///
    /// # Errors
    /// The transaction's own; `Fenced` if its coordinator has failed.
    pub fn wait(self) -> Result<T, TxnError> {
        self.reply.recv_blocking().unwrap_or(Err(TxnError::Fenced))
    }

    /// Whether the outcome is known, so that waiting does not block.
    pub fn is_finished(&self) -> bool {
        !self.reply.is_empty() || self.reply.is_closed()
    }

    /// Waits like [`Submitted::wait`], while `machines` turn the cores.
    pub(crate) fn wait_on(self, machines: &impl Machines) -> Result<T, TxnError> {
        machines.wait(&self.reply).unwrap_or(Err(TxnError::Fenced))
    }
}

impl<T: Send + 'static> IntoFuture for Submitted<T> {
    type Output = Result<T, TxnError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.reply.recv().await.unwrap_or(Err(TxnError::Fenced)) })
    }
}

impl<T> Reply<T> {
    pub(crate) fn send(self, outcome: Result<T, TxnError>) {
        // The receiver may be gone.
        let _ = self.sender.try_send(outcome);
    }
}

/// Runs a job's own code; a panic in it ends only the job, with `Panicked`. (A panic of the
/// coordinator itself is not caught here: it drops the reply unsent.)
pub(crate) async fn catch_panics<T, Fut>(job: impl FnOnce() -> Fut) -> Result<T, TxnError>
where
    Fut: Future<Output = Result<T, TxnError>>,
{
    let Ok(running) = catch_unwind(AssertUnwindSafe(job)) else { return Err(TxnError::Panicked) };
    let mut running = pin!(running);
    // Beside the call, not its result: that would be moved out of the unwinding frame every time.
    let mut outcome = None;
    std::future::poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| match running.as_mut().poll(cx) {
            Poll::Ready(ended) => outcome = Some(ended),
            Poll::Pending => {}
        }));
        match polled {
            Ok(()) => outcome.take().map_or(Poll::Pending, Poll::Ready),
            Err(_) => Poll::Ready(Err(TxnError::Panicked)),
        }
    })
    .await
}

/// Kind of transaction to begin.
#[derive(Clone, Copy)]
pub(crate) enum TxnKind {
    Read,
    Write(Isolation),
}

/// Runs attempts of a transaction until one ends with anything but a retryable error.
pub(crate) async fn retry<T, F, Fut>(
    mut session: Session,
    kind: TxnKind,
    body: F,
) -> Result<T, TxnError>
where
    F: Fn(Transaction) -> Fut,
    Fut: Future<Output = Result<T, TxnError>>,
{
    let mut attempts = 0;
    let patient_until = session.now().after(MIN_PATIENCE);
    loop {
        let begun = match kind {
            TxnKind::Read => session.begin_read_only().await,
            TxnKind::Write(isolation) => session.begin(isolation).await,
        };
        // Beginning may fail too, where timestamps come over the network.
        let outcome = match begun {
            Ok(transaction) => body(transaction).await,
            Err(error) => Err(error),
        };
        match outcome {
            Err(error) if error.is_retryable() => {
                attempts += 1;
                if attempts >= MIN_ATTEMPTS && session.now() >= patient_until {
                    return Err(error);
                }
                session.back_off(attempts - 1).await;
            }
            outcome => return outcome,
        }
    }
}
