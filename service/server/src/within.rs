//! Runs foreign code in a coroutine slot, within a deadline and with panics caught.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use lotus::{Nanos, SessionView};

/// Interval at which a deadline is checked. Calls are many and deadlines far: one timer of a worker
/// serves all calls meanwhile, and no call leaves a timer behind.
const TICK: Duration = Duration::from_millis(10);

/// Reason for a missing output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoOutput {
    /// The deadline has passed.
    Late,
    /// The code panicked.
    Panicked,
}

/// Checks of deadlines for one slot.
pub(crate) struct Alarm {
    view: SessionView,
    /// Time at which the slot's task is woken to check the clock.
    due: Nanos,
}

impl Alarm {
    pub(crate) const fn new(view: SessionView) -> Self {
        Self { view, due: Nanos(0) }
    }

    /// Returns a recent reading of the clock.
    pub(crate) fn recent(&self) -> Nanos {
        self.view.executor().recent()
    }

    /// Whether `deadline` has passed. If not, the task is polled again when it may have passed.
    fn poll_late(&mut self, deadline: Nanos) -> bool {
        let executor = self.view.executor();
        if self.due <= deadline && executor.recent() < self.due {
            return false;
        }
        let now = executor.now();
        if now >= deadline {
            return true;
        }
        self.due = now.after(TICK).min(deadline);
        executor.wake_at(self.due, executor.current());
        false
    }
}

/// Runs `code` until it is done or panics.
pub(crate) async fn sheltered(code: impl Future<Output = ()>) {
    let mut code = pin!(code);
    poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| code.as_mut().poll(cx)));
        polled.unwrap_or(Poll::Ready(()))
    })
    .await;
}

/// Runs `code` until it is done, panics, or the deadline has passed; then drops `code`.
pub(crate) async fn within<T>(
    alarm: &mut Alarm,
    deadline: Nanos,
    code: impl Future<Output = T>,
) -> Result<T, NoOutput> {
    let mut code = pin!(code);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| code.as_mut().poll(cx))) {
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(_) => Poll::Ready(Err(NoOutput::Panicked)),
        Ok(Poll::Pending) if alarm.poll_late(deadline) => Poll::Ready(Err(NoOutput::Late)),
        Ok(Poll::Pending) => Poll::Pending,
    })
    .await
}
