//! Submission of whole transactions to coordinators, from any thread.

use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use lotus_fabric::env::Nanos;
use lotus_fabric::machines::{Machines, MachinesExt};

use crate::api::abort::Abort;
use crate::api::error::TxnError;
use crate::api::isolation::Isolation;
use crate::node::threads::home::Name;
use crate::node::threads::label::Label;
use crate::txn::body::Receipt;
use crate::txn::session::Session;
use crate::txn::slot::Slot;
use crate::txn::transaction::Transaction;

/// Minimum number of attempts before a transaction's last error is reported; the minimum time below
/// must also have passed.
const MIN_ATTEMPTS: u32 = 256;
const MIN_PATIENCE: Duration = Duration::from_secs(1);

/// Result of a transaction that has committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Committed<T> {
    /// Value that the body returned.
    pub value: T,
    /// Timestamps of the commit and of the reads.
    pub receipt: Receipt,
}

/// Pending outcome of a transaction or job. Await the outcome, or call [`Submitted::wait`];
/// dropping this future does not affect the job.
#[must_use = "await it or wait for it to learn the outcome"]
pub struct Submitted<T, E = TxnError> {
    reply: Receiver<Ended<T, E>>,
    cluster: Name,
}

/// End of a job: its outcome, or the reason why it has no outcome.
type Ended<T, E> = Result<Result<T, E>, TxnError>;

/// Sending end of a [`Submitted`].
pub(crate) struct Reply<T, E> {
    sender: Sender<Ended<T, E>>,
}

impl<T, E> Submitted<T, E> {
    pub(crate) fn channel(cluster: Name) -> (Reply<T, E>, Self) {
        let (sender, reply) = async_channel::bounded(1);
        (Reply { sender }, Self { reply, cluster })
    }

    /// Outcome of a job that was not submitted.
    pub(crate) fn refused(cluster: Name, error: TxnError) -> Self {
        debug_assert!(matches!(error, TxnError::Misuse(_)), "I330: what is refused has no effect");
        let (reply, refused) = Self::channel(cluster);
        reply.send(Err(error));
        refused
    }

    /// Checks that the outcome is known, or can arrive while the caller waits on this thread.
    fn check_wait(&self) -> Result<(), TxnError> {
        match self.cluster.check() {
            Err(error) if !self.is_finished() => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether the outcome is known, so that waiting does not block.
    pub fn is_finished(&self) -> bool {
        !self.reply.is_empty() || self.reply.is_closed()
    }
}

impl<T, E: From<TxnError>> Submitted<T, E> {
    /// Blocks this thread until the outcome is known.
    ///
    /// # Errors
    /// The job's own, as [`Cluster::run`](crate::Cluster::run) describes for a transaction;
    /// `Panicked`, converted, if the job's code panicked; `Fenced`, converted, if the job's
    /// coordinator has failed, or the cluster was stopped before the job had ended; `Misuse`,
    /// converted, on the thread of a coordinator of the cluster, or in a process that was forked
    /// from the cluster's: the job goes on without the caller.
    pub fn wait(self) -> Result<T, E> {
        self.check_wait()?;
        outcome(self.reply.recv_blocking().ok())
    }

    /// Waits like [`Submitted::wait`], while `machines` turn the cores.
    pub(crate) fn wait_on(self, machines: &dyn Machines) -> Result<T, E> {
        self.check_wait()?;
        outcome(machines.wait(&self.reply))
    }
}

impl<T: Send + 'static, E: From<TxnError> + Send + 'static> IntoFuture for Submitted<T, E> {
    type Output = Result<T, E>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            self.check_wait()?;
            outcome(self.reply.recv().await.ok())
        })
    }
}

/// Converts the end of a job to its outcome; `ended` is `None` if the coordinator dropped the job.
fn outcome<T, E: From<TxnError>>(ended: Option<Ended<T, E>>) -> Result<T, E> {
    let ended = ended.unwrap_or(Err(TxnError::Fenced));
    ended.unwrap_or_else(|error| Err(error.into()))
}

impl<T, E> Reply<T, E> {
    pub(crate) fn send(self, ended: Ended<T, E>) {
        // The receiver may be gone.
        let _ = self.sender.try_send(ended);
    }
}

/// Runs a job's own code; a panic in the code ends only the job, with `Panicked`. (A panic of the
/// coordinator itself is not caught here: it drops the reply unsent.)
pub(crate) async fn catch_panics<Fut: Future>(
    job: impl FnOnce() -> Fut,
) -> Result<Fut::Output, TxnError> {
    let Ok(running) = catch_unwind(AssertUnwindSafe(job)) else { return Err(TxnError::Panicked) };
    let mut running = pin!(running);
    // Stored outside the call instead of returned: a result would be moved out of the unwinding
    // frame every time.
    let mut outcome = None;
    std::future::poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| match running.as_mut().poll(cx) {
            Poll::Ready(ended) => outcome = Some(ended),
            Poll::Pending => {}
        }));
        match polled {
            Ok(()) => outcome.take().map_or(Poll::Pending, |ended| Poll::Ready(Ok(ended))),
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

/// Transaction to begin, and its time limit.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) kind: TxnKind,
    /// Time until the commit must begin; `None` for ever.
    pub(crate) limit: Option<Duration>,
    /// Name for errors.
    pub(crate) label: Label,
}

/// Runs attempts of a transaction until an attempt commits or ends with anything but a retryable
/// error of the engine, or the time is up.
pub(crate) async fn retry<T, E, F>(
    mut session: Session,
    Terms { kind, limit, label }: Terms,
    body: F,
) -> Result<Committed<T>, E>
where
    E: From<TxnError>,
    F: AsyncFn(&mut Transaction) -> Result<T, E>,
{
    let mut attempts = 0;
    let slot = Rc::clone(session.slot());
    let began = session.now();
    let patient_until = began.after(MIN_PATIENCE);
    let deadline = limit.map_or(Nanos(u64::MAX), |limit| began.after(limit));
    loop {
        let tried = in_time(&slot, deadline, pin!(attempt(&mut session, kind, &body))).await;
        let error = match tried {
            Some(Ok(committed)) => return Ok(committed),
            Some(Err(Abort::Application(error))) => return Err(error),
            Some(Err(Abort::Engine(error))) => error,
            None => {
                debug_assert!(limit.is_some(), "I329: without a limit no time is up");
                let (what, limit) = (label.to_string().into(), limit.unwrap_or_default());
                return Err(TxnError::DeadlinePassed { what, limit }.into());
            }
        };
        attempts += 1;
        let now = session.now();
        let is_patient = (attempts < MIN_ATTEMPTS || now < patient_until) && now < deadline;
        if !(error.is_retryable() && is_patient) {
            return Err(error.into());
        }
        session.back_off(attempts - 1).await;
    }
}

/// Runs an attempt; `None` if the deadline has passed before the commit has begun. The attempt is
/// then aborted by dropping it. Once the commit has begun, the driver decides the outcome (H21),
/// and the deadline takes nothing back.
///
/// Takes the attempt pinned in place: the attempt is large, and a move would copy it.
fn in_time<T>(
    slot: &Slot,
    deadline: Nanos,
    mut attempt: Pin<&mut impl Future<Output = T>>,
) -> impl Future<Output = Option<T>> {
    std::future::poll_fn(move |cx| match attempt.as_mut().poll(cx) {
        Poll::Ready(ended) => Poll::Ready(Some(ended)),
        Poll::Pending if slot.is_late(deadline) && !slot.awaits_verdict() => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
}

/// Runs a transaction once.
async fn attempt<T, E, F>(
    session: &mut Session,
    kind: TxnKind,
    body: &F,
) -> Result<Committed<T>, Abort<E>>
where
    F: AsyncFn(&mut Transaction) -> Result<T, E>,
{
    // Beginning may fail too, if timestamps come over the network.
    let mut txn = match kind {
        TxnKind::Read => session.begin_read_only().await?,
        TxnKind::Write(isolation) => session.begin(isolation).await?,
    };
    let returned = body(&mut txn).await;
    let value = Abort::judge(returned, txn.ended_by())?;
    debug_assert!(txn.ended_by().is_none(), "I270: an attempt that has ended is not committed");
    let receipt = txn.commit().await?;
    Ok(Committed { value, receipt })
}
