//! Futures side by side.

use std::future::{Future, poll_fn};
use std::pin::pin;

/// Runs `work` until `end` completes. If `work` ends first, keeps waiting for `end`.
pub(crate) async fn beside(work: impl Future<Output = ()>, end: impl Future<Output = ()>) {
    let (mut work, mut end) = (pin!(work), pin!(end));
    let mut over = false;
    poll_fn(|cx| {
        over = over || work.as_mut().poll(cx).is_ready();
        end.as_mut().poll(cx)
    })
    .await;
}
