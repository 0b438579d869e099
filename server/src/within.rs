//! Running somebody else's code in a coroutine slot: not longer than it may, and without letting
//! a panic out of it.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use lotus::{Nanos, SessionView};

/// How often a deadline is looked at. Calls are many and deadlines far: one timer for a worker
/// does for all calls that it serves meanwhile, and none is left behind for each of them.
const TICK: Duration = Duration::from_millis(10);

/// Why there is no output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cut {
    /// The deadline is over.
    Late,
    /// The code panicked.
    Panicked,
}

/// A slot's sense of time.
pub(crate) struct Alarm {
    view: SessionView,
    due: Nanos,
    sleep: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Alarm {
    pub(crate) const fn new(view: SessionView) -> Self {
        Self { view, due: Nanos(0), sleep: None }
    }

    /// Whether `deadline` is over. If not, the task is polled again when it may be.
    fn poll_late(&mut self, cx: &mut std::task::Context<'_>, deadline: Nanos) -> bool {
        loop {
            if let Some(sleep) = &mut self.sleep
                && self.due <= deadline
                && sleep.as_mut().poll(cx).is_pending()
            {
                return false;
            }
            let now = self.view.now();
            if now >= deadline {
                return true;
            }
            self.due = now.after(TICK).min(deadline);
            let (view, due) = (self.view.clone(), self.due);
            self.sleep = Some(Box::pin(async move { view.sleep_until(due).await }));
        }
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

/// Runs `code` until it is done, panics, or the deadline is over; then it is dropped.
pub(crate) async fn within<T>(
    alarm: &mut Alarm,
    deadline: Nanos,
    code: impl Future<Output = T>,
) -> Result<T, Cut> {
    let mut code = pin!(code);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| code.as_mut().poll(cx))) {
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(_) => Poll::Ready(Err(Cut::Panicked)),
        Ok(Poll::Pending) if alarm.poll_late(cx, deadline) => Poll::Ready(Err(Cut::Late)),
        Ok(Poll::Pending) => Poll::Pending,
    })
    .await
}
