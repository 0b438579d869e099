//! Holds and futures of the users of a node's locks. A dropped hold or future counts as ended: the
//! node's verbs under way go on in the background.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::TaskId;
use lotus_fabric::ids::RemoteAddr;
use lotus_locks::word::Mode;
use lotus_locks::{Acquiring, LockSystem, NotHeld, Releasing, Wait};

use super::inner::Inner;
use super::lock::{Ticket, WaiterState};

/// A client's request.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalRequest {
    pub(super) at: RemoteAddr,
    pub(super) mode: Mode,
    pub(super) terms: u16,
    pub(super) ticket: Ticket,
    pub(super) time: u16,
}

/// A client's acquisition under way. A drop gives the request up.
///
/// # Errors
/// [`NotHeld`].
#[must_use = "dropped, the acquisition is given up"]
pub struct LocalAcquiring<S: LockSystem> {
    pub(super) inner: Rc<Inner<S>>,
    pub(super) asked: LocalRequest,
    pub(super) wait: Wait,
    pub(super) state: Progress<S>,
    /// Task that a timer wakes at the deadline.
    pub(super) timer: Option<TaskId>,
}

/// Progress of an acquisition.
pub(super) enum Progress<S: LockSystem> {
    Refused(NotHeld),
    /// Holds the lock in this mode, as one of several readers or as the asking client.
    Holds(Mode),
    /// Waits for another client of the node.
    Waits,
    /// Asks the memory node.
    Asks(Acquiring<S>),
    Over,
}

impl<S: LockSystem> LocalAcquiring<S> {
    /// The refusal of a waiting request, once its deadline has passed.
    fn expiry(&mut self) -> Option<NotHeld> {
        match self.wait {
            Wait::No => Some(NotHeld::Conflict),
            Wait::Until(Nanos::NEVER) => None,
            Wait::Until(until) => {
                let executor = self.inner.client.executor();
                if executor.now() >= until {
                    return Some(NotHeld::TimedOut);
                }
                let task = executor.current();
                if self.timer != Some(task) {
                    self.timer = Some(task);
                    executor.wake_at(until, task);
                }
                None
            }
        }
    }

    fn poll_asks(&mut self, task: &mut Context<'_>) -> Poll<()> {
        let Progress::Asks(acquiring) = &mut self.state else { unreachable!("it asks") };
        match Pin::new(&mut *acquiring).poll(task) {
            Poll::Ready(result) => {
                let error = result.as_ref().err().copied();
                self.state = Progress::Over;
                let mode = self.inner.answered(self.asked.at, result);
                self.state = match (mode, error) {
                    (Some(mode), _) => Progress::Holds(mode),
                    (None, error) => Progress::Refused(error.unwrap_or(NotHeld::Conflict)),
                };
                Poll::Ready(())
            }
            Poll::Pending if self.wait == Wait::No && !acquiring.is_waiting() => Poll::Pending,
            Poll::Pending => match self.expiry() {
                Some(why) => {
                    self.give_up();
                    self.state = Progress::Refused(why);
                    Poll::Ready(())
                }
                None => Poll::Pending,
            },
        }
    }

    fn poll_waits(&mut self, task: &mut Context<'_>) -> Poll<()> {
        let LocalRequest { at, mode, ticket, .. } = self.asked;
        self.state = match self.inner.table.waiter_state(at, ticket, task.waker()) {
            WaiterState::Holds => {
                self.inner.count_local();
                Progress::Holds(mode)
            }
            WaiterState::Asks => Progress::Asks(self.inner.ask(self.asked)),
            WaiterState::Failed(why) => Progress::Refused(why),
            WaiterState::Waits => match self.expiry() {
                None => return Poll::Pending,
                Some(why) => match self.inner.table.cancel(at, ticket) {
                    // The lock was granted at this very moment.
                    true => {
                        self.inner.count_local();
                        Progress::Holds(mode)
                    }
                    false => Progress::Refused(why),
                },
            },
        };
        Poll::Ready(())
    }

    /// Gives the request up, in any state.
    fn give_up(&mut self) {
        let at = self.asked.at;
        match std::mem::replace(&mut self.state, Progress::Over) {
            Progress::Holds(_) => Inner::leave(&self.inner, at),
            Progress::Waits => {
                if self.inner.table.cancel(at, self.asked.ticket) {
                    Inner::leave(&self.inner, at);
                }
            }
            Progress::Asks(acquiring) => {
                // A request given up belongs to the lane; a request carried on, to the node.
                if self.inner.table.desert(at, acquiring.can_leave()) {
                    Inner::carry_on(&self.inner, at, acquiring);
                }
            }
            Progress::Refused(_) | Progress::Over => {}
        }
    }
}

impl<S: LockSystem> Future for LocalAcquiring<S> {
    type Output = Result<LocalHold<S>, NotHeld>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            match this.state {
                Progress::Refused(why) => {
                    this.state = Progress::Over;
                    return Poll::Ready(Err(why));
                }
                Progress::Holds(mode) => {
                    this.state = Progress::Over;
                    let (inner, at) = (Rc::clone(&this.inner), this.asked.at);
                    return Poll::Ready(Ok(LocalHold { inner: Some(inner), at, mode }));
                }
                Progress::Waits => ready!(this.poll_waits(task)),
                Progress::Asks(_) => ready!(this.poll_asks(task)),
                Progress::Over => unreachable!("it has ended"),
            }
        }
    }
}

impl<S: LockSystem> Drop for LocalAcquiring<S> {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// A lock held by a client of the node. When dropped, the lock is released as soon as no verb that
/// the lane posted before can land any more.
pub struct LocalHold<S: LockSystem> {
    /// `None` once the release has begun.
    inner: Option<Rc<Inner<S>>>,
    at: RemoteAddr,
    mode: Mode,
}

impl<S: LockSystem> LocalHold<S> {
    /// The lock.
    pub const fn at(&self) -> RemoteAddr {
        self.at
    }

    /// Mode of the hold: shared or exclusive. An update lock is exclusive.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn release(mut self) -> LocalReleasing<S> {
        let at = self.at;
        let Some(inner) = self.inner.take() else { unreachable!("it is released once") };
        let releasing = inner.left(at).map(|hold| inner.client.release(hold));
        LocalReleasing { inner, at, releasing }
    }
}

impl<S: LockSystem> Drop for LocalHold<S> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            Inner::leave_later(&inner, self.at);
        }
    }
}

/// A release under way. Ends at once if the node keeps the lock, or another lane gives it up.
///
/// # Errors
/// See [`Releasing`].
#[must_use = "dropped, it goes on, and nobody learns whether the lock was lost before"]
pub struct LocalReleasing<S: LockSystem> {
    inner: Rc<Inner<S>>,
    at: RemoteAddr,
    releasing: Option<Releasing<S>>,
}

impl<S: LockSystem> Future for LocalReleasing<S> {
    type Output = Result<(), NotHeld>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Some(releasing) = &mut this.releasing else { return Poll::Ready(Ok(())) };
        let result = ready!(Pin::new(releasing).poll(task));
        this.releasing = None;
        this.inner.released(this.at, result);
        Poll::Ready(result)
    }
}

impl<S: LockSystem> Drop for LocalReleasing<S> {
    fn drop(&mut self) {
        if let Some(releasing) = self.releasing.take() {
            Inner::end_release(&self.inner, self.at, releasing);
        }
    }
}
