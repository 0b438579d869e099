//! Interactive transactions as whole bodies, run again as long as a retry may help.

use std::sync::Arc;

use crate::client::Client;
use crate::error::CallError;
use crate::transaction::Transaction;
use lotus_protocol::messages::Kind;

/// Result of a transaction that has committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Committed<T> {
    /// Value that the body returned.
    pub value: T,
    /// Commit timestamp; `None` if nothing was written.
    pub commit_ts: Option<u64>,
}

/// Reason for an attempt not to commit.
#[derive(Debug)]
enum Miss<E> {
    /// The body's own error.
    Body(E),
    /// The error of a step.
    Step(CallError),
}

impl Client {
    /// Runs an interactive transaction. If the body returns `Ok`, its changes are committed; if it
    /// returns `Err`, no change is ever visible.
    ///
    /// The body is called anew for each attempt. An error of a step ends the attempt, and the
    /// transaction remembers the error: if it is [retryable](CallError::is_retryable), as after a
    /// conflict, a new attempt begins after a pause, whatever error the body has made of it, until
    /// the client's time-out (`Config::timeout`) is over; the last attempt is carried to its end.
    /// An attempt with an unknown outcome is never repeated, and an attempt ended by an error is
    /// not committed, although its body returned `Ok`.
    ///
    /// If this future is dropped, the transaction is aborted, unless its commit was under way: then
    /// its outcome is unknown. For the future to be `Send`, as a spawned task must be, the body has
    /// to own its captures: write `async move`.
    ///
    /// # Errors
    /// The error of the body, if no step has failed, or no retry can help; otherwise the error of
    /// the step, converted: the commit's error, or the last error when time has run out. After an
    /// error of the body nothing was changed; for other errors see [`CallError::effect`].
    ///
    /// ```no_run
    /// use lotus_client::{CallError, Client, Kind, TableId, Transaction};
    ///
    /// async fn count(client: &Client, table: TableId) -> Result<u64, CallError> {
    ///     let body = async |txn: &mut Transaction| {
    ///         let counter = txn.add_rw(table, 7);
    ///         txn.execute().await?;
    ///         let value = txn.value(counter).and_then(|value| value.try_into().ok());
    ///         let next = u64::from_le_bytes(value.unwrap_or_default()) + 1;
    ///         txn.upsert(counter, next.to_le_bytes());
    ///         Ok::<u64, CallError>(next)
    ///     };
    ///     Ok(client.run(Kind::Serializable, body).await?.value)
    /// }
    /// ```
    pub async fn run<T, E, F>(&self, kind: Kind, body: F) -> Result<Committed<T>, E>
    where
        E: From<CallError>,
        F: AsyncFn(&mut Transaction) -> Result<T, E>,
    {
        let shared = &self.shared;
        let deadline = shared.now().after(shared.timeout());
        let retry_identity = shared.retry_identity();
        let mut pauses = 0;
        loop {
            let left = deadline.since(shared.now());
            let txn = Transaction::new(Arc::clone(shared), kind, left).of(retry_identity);
            let error = match attempt(txn, &body).await {
                Ok(committed) => return Ok(committed),
                Err(Miss::Body(error)) => return Err(error),
                Err(Miss::Step(error)) => error,
            };
            if !error.is_retryable() {
                return Err(error.into());
            }
            shared.pause(&mut pauses).await;
            if shared.now() >= deadline {
                return Err(error.into());
            }
        }
    }
}

/// Runs a transaction once. Dropping the transaction without a commit aborts it.
async fn attempt<T, E, F>(mut txn: Transaction, body: &F) -> Result<Committed<T>, Miss<E>>
where
    F: AsyncFn(&mut Transaction) -> Result<T, E>,
{
    let returned = body(&mut txn).await;
    let value = judge(returned, txn.ended_by())?;
    let commit_ts = txn.commit().await.map_err(Miss::Step)?;
    Ok(Committed { value, commit_ts })
}

/// Decides whether an attempt commits, from the result of the body and the error of the step that
/// ended the attempt, if any. The rule is the engine's rule for transactions (`lotus::Abort`).
fn judge<T, E>(returned: Result<T, E>, ended_by: Option<CallError>) -> Result<T, Miss<E>> {
    match (returned, ended_by) {
        (Ok(value), None) => Ok(value),
        (Ok(_), Some(error)) => Err(Miss::Step(error)),
        (Err(_), Some(error)) if error.is_retryable() => Err(Miss::Step(error)),
        (Err(error), _) => Err(Miss::Body(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_protocol::messages::Failure;

    #[test]
    fn an_attempt_commits_if_nothing_has_ended_it_and_its_body_is_content() {
        let curable = || CallError::Failed(Failure::Conflict("a lock".to_owned()));
        let last = || CallError::Failed(Failure::Panicked);
        // (result of the body, error that had ended the attempt, verdict)
        let cases = [
            (Ok(7), None, "commit"),
            (Ok(7), Some(curable()), "step"),
            (Ok(7), Some(last()), "step"),
            (Err("no"), None, "body"),
            (Err("no"), Some(curable()), "step"),
            (Err("no"), Some(last()), "body"),
            (Err("no"), Some(CallError::Unknown), "body"),
        ];
        for (returned, ended_by, verdict) in cases {
            let judged = match judge(returned, ended_by.clone()) {
                Ok(7) => "commit",
                Err(Miss::Step(_)) => "step",
                Err(Miss::Body("no")) => "body",
                other => panic!("{other:?}"),
            };
            assert_eq!(judged, verdict, "{returned:?} {ended_by:?}");
        }
    }
}
