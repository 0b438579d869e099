//! Errors of a client's requests, and the effect of the failed request.

use serde::de::DeserializeOwned;

use lotus_protocol::effect::Effect;
use lotus_protocol::handshake::Refusal;
use lotus_protocol::messages::Failure;
use lotus_rows::RowError;
use lotus_rows::path::PathError;

/// Failure of a call or of an interactive transaction. [`CallError::effect`] says what the failed
/// request has changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The transaction's own code gave up, with an error that the application decodes.
    #[error("the transaction was rejected by its own code")]
    Rejected(Rejection),
    /// The server's failure. Retryable failures were retried as long as time allowed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The transaction may or may not have committed, and may commit yet: the connection was lost,
    /// or time ran out, while it might have been committing.
    #[error("the outcome is unknown")]
    Unknown,
    /// No compute node could be reached in time. No transaction was begun that might commit.
    #[error("no compute node can be reached: {0}")]
    Unreachable(String),
    /// The arguments do not encode, or the key is not valid. Nothing was sent.
    #[error("the request cannot be sent: {0}")]
    Request(String),
    /// A key or value does not fit the type or the table (`lotus_rows`). The operation changed
    /// nothing.
    #[error(transparent)]
    Row(#[from] RowError),
    /// A row of an access path cannot be read or changed in this way ([`path`](crate::path)). The
    /// operation changed nothing.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The transaction has committed, and its result does not decode as the type asked for.
    #[error("the result does not decode: {0}")]
    Result(String),
    /// The server's answer does not fit the request: client and server are not compatible. The
    /// effect of the request is unknown.
    #[error("the server's answer makes no sense")]
    Protocol,
    /// The outcome of a call, asked for with [`Client::outcome`](crate::Client::outcome), could not
    /// be found out. Ask again.
    #[error("what became of the call could not be found out: {0}")]
    Unsettled(Box<Self>),
}

impl CallError {
    /// Returns the effect of the failed request: a certain effect, or [`Effect::Unknown`] (I193).
    pub const fn effect(&self) -> Effect {
        match self {
            Self::Failed(failure) => failure.effect(),
            Self::Rejected(_)
            | Self::Unreachable(_)
            | Self::Request(_)
            | Self::Row(_)
            | Self::Path(_) => Effect::Nothing,
            Self::Result(_) => Effect::Committed,
            Self::Unknown | Self::Protocol | Self::Unsettled(_) => Effect::Unknown,
        }
    }

    /// Whether the request certainly had no effect, and may succeed if sent as a new request: after
    /// a conflict, or because a node was out of reach or had no room. Calls and
    /// [`Client::run`](crate::Client::run) have already retried while there was time; the steps of
    /// [`Client::transaction`](crate::Client::transaction) have not.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Failed(failure) => failure.is_retryable(),
            Self::Unreachable(_) => true,
            Self::Rejected(_)
            | Self::Unknown
            | Self::Request(_)
            | Self::Row(_)
            | Self::Path(_)
            | Self::Result(_)
            | Self::Protocol
            | Self::Unsettled(_) => false,
        }
    }
}

/// The error of a transaction's own code, encoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejection(pub(crate) Box<[u8]>);

impl Rejection {
    /// Decodes the error as type `E`; `None` if it does not decode.
    pub fn decode<E: DeserializeOwned>(&self) -> Option<E> {
        postcard::from_bytes(&self.0).ok()
    }
}

/// Failure to connect to a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// `Config::servers` is empty.
    #[error("no address of a server was given")]
    NoAddress,
    /// The last server tried does not admit this client.
    #[error("{address} refuses: {refusal}")]
    Refused {
        /// Address of the server.
        address: String,
        /// The server's reason.
        refusal: Refusal,
    },
    /// TLS failed with the last server tried, or the server speaks another protocol; correct the
    /// certificates.
    #[error("{address} and this application do not trust each other: {error}")]
    Untrusted {
        /// Address of the server.
        address: String,
        /// The error that TLS reports.
        error: std::io::Error,
    },
    /// The last server tried could not be reached.
    #[error("{address} cannot be reached: {error}")]
    Unreachable {
        /// Address of the server.
        address: String,
        /// The system's error.
        error: std::io::Error,
    },
}

impl ConnectError {
    /// Whether the server is running and had no room for this client among many newcomers: the
    /// server closed the connection before the handshake was over, or its queue of connections was
    /// full.
    pub(crate) fn is_for_a_crowd(&self) -> bool {
        use std::io::ErrorKind as Kind;
        let Self::Unreachable { error, .. } = self else { return false };
        matches!(
            error.kind(),
            Kind::ConnectionReset
                | Kind::ConnectionAborted
                | Kind::BrokenPipe
                | Kind::UnexpectedEof
                | Kind::WouldBlock
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn a_crowd_passes_and_nothing_else_does() {
        let unreachable = |kind: ErrorKind| ConnectError::Unreachable {
            address: String::new(),
            error: Error::from(kind),
        };
        let passes = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::WouldBlock];
        assert!(passes.into_iter().all(|kind| unreachable(kind).is_for_a_crowd()));
        // Nobody listens, or nobody answers: an operator wants to know it at once.
        let lasts = [ErrorKind::ConnectionRefused, ErrorKind::TimedOut, ErrorKind::NotFound];
        assert!(!lasts.into_iter().any(|kind| unreachable(kind).is_for_a_crowd()));
        let address = String::new();
        let refused = ConnectError::Refused { address, refusal: Refusal::Full };
        assert!(!refused.is_for_a_crowd() && !ConnectError::NoAddress.is_for_a_crowd());
    }

    fn row_error() -> RowError {
        let numbers: lotus_rows::Schema<u64, u64> = lotus_rows::Schema::new("numbers");
        numbers.decode_key(&[1]).expect_err("it is too short")
    }

    fn after(error: &CallError, failures: &mut impl Iterator<Item = Failure>) -> Option<CallError> {
        Some(match error {
            CallError::Rejected(_) => CallError::Unreachable(String::new()),
            CallError::Unreachable(_) => CallError::Request(String::new()),
            CallError::Request(_) => CallError::Row(row_error()),
            CallError::Row(_) => CallError::Path(PathError::Malformed),
            CallError::Path(_) => CallError::Result(String::new()),
            CallError::Result(_) => CallError::Unknown,
            CallError::Unknown => CallError::Protocol,
            CallError::Protocol => CallError::Unsettled(Box::new(CallError::Unknown)),
            CallError::Unsettled(_) | CallError::Failed(_) => CallError::Failed(failures.next()?),
        })
    }

    #[test]
    fn every_error_says_what_was_changed() {
        let first = CallError::Rejected(Rejection(Box::default()));
        let mut failures = Failure::samples();
        for error in std::iter::successors(Some(first), |error| after(error, &mut failures)) {
            let expected = match &error {
                // The server ran nothing, or aborted it before its commit could take effect.
                CallError::Rejected(_)
                | CallError::Unreachable(_)
                | CallError::Request(_)
                | CallError::Row(_)
                | CallError::Path(_) => Effect::Nothing,
                // There was a result: the answer to a commit.
                CallError::Result(_) => Effect::Committed,
                CallError::Unknown | CallError::Protocol | CallError::Unsettled(_) => {
                    Effect::Unknown
                }
                CallError::Failed(Failure::Unknown) => Effect::Unknown,
                CallError::Failed(_) => Effect::Nothing,
            };
            assert_eq!(error.effect(), expected, "{error:?}");
            assert!(!error.is_retryable() || expected == Effect::Nothing, "{error:?}");
        }
    }
}
