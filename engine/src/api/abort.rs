//! Reasons of a transaction's body not to commit, and the rule that decides whether an attempt
//! commits.

use lotus_mvcc::table::SizeError;
use lotus_rows::RowError;
use lotus_rows::path::PathError;
use serde::{Deserialize, Serialize};

use crate::api::error::TxnError;

/// Reason for a transaction's body not to commit. `E` is the error type of the body's author.
///
/// The error type for a body that runs both in this process ([`Cluster::run`]) and as a stored
/// transaction, and for any body that refuses by rules of its own.
///
/// [`Cluster::run`]: crate::Cluster::run
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Abort<E = Never> {
    /// An error of the engine; the transaction is retried if a retry may help.
    #[error(transparent)]
    Engine(#[from] TxnError),
    /// An error by the transaction's own rules. Never retried.
    #[error(transparent)]
    Application(E),
}

/// Error type, without values, of a body that refuses by no rule of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Never {}

impl<E> From<PathError> for Abort<E> {
    fn from(error: PathError) -> Self {
        Self::Engine(error.into())
    }
}

impl<E> From<SizeError> for Abort<E> {
    fn from(error: SizeError) -> Self {
        Self::Engine(error.into())
    }
}

impl<E> From<RowError> for Abort<E> {
    fn from(error: RowError) -> Self {
        Self::Engine(error.into())
    }
}

impl<E> Abort<E> {
    /// Decides whether an attempt commits, by the result of its body and the engine's error that
    /// had ended the attempt by then, if any ([`Transaction::ended_by`]). `Ok` means commit.
    ///
    /// A body may have converted or ignored the engine's error. So an attempt that has ended never
    /// commits, and a retryable error of the engine is returned whatever error the body returns.
    ///
    /// # Errors
    /// The reason not to commit. The caller retries after a retryable [`Abort::Engine`].
    ///
    /// [`Transaction::ended_by`]: crate::Transaction::ended_by
    #[inline]
    pub fn judge<T>(returned: Result<T, E>, ended_by: Option<TxnError>) -> Result<T, Self> {
        match (returned, ended_by) {
            (Ok(value), None) => Ok(value),
            (Ok(_), Some(error)) => Err(Self::Engine(error)),
            (Err(_), Some(error)) if error.is_retryable() => Err(Self::Engine(error)),
            (Err(error), _) => Err(Self::Application(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_commits_if_nothing_has_ended_it_and_its_body_is_content() {
        const CURABLE: TxnError = TxnError::LockTableFull;
        const FINAL: TxnError = TxnError::TooManyLocks;
        // (result of the body, error that had ended the attempt, verdict)
        let cases = [
            (Ok(7), None, Ok(7)),
            (Ok(7), Some(CURABLE), Err(Abort::Engine(CURABLE))),
            (Ok(7), Some(FINAL), Err(Abort::Engine(FINAL))),
            (Err("no"), None, Err(Abort::Application("no"))),
            (Err("no"), Some(CURABLE), Err(Abort::Engine(CURABLE))),
            (Err("no"), Some(FINAL), Err(Abort::Application("no"))),
        ];
        for (returned, ended_by, verdict) in cases {
            assert_eq!(Abort::judge(returned, ended_by.clone()), verdict, "{ended_by:?}");
        }
    }

    #[test]
    fn an_abort_says_what_its_reason_says() {
        let io = std::io::Error::other("no such account");
        assert_eq!(Abort::Application(io).to_string(), "no such account");
        let full = Abort::<std::io::Error>::from(TxnError::LockTableFull);
        assert_eq!(full.to_string(), TxnError::LockTableFull.to_string());
        let boxed: Box<dyn std::error::Error> = Abort::<Never>::from(TxnError::Timeout).into();
        assert_eq!(boxed.to_string(), TxnError::Timeout.to_string());
    }
}
