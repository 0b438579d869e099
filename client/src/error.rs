//! What a caller learns when a call has no result, and what he may do about it.

use serde::de::DeserializeOwned;

use crate::handshake::Refusal;
use crate::protocol::Failure;

/// Why a call or an interactive transaction has no result.
///
/// Only [`CallError::Unknown`] leaves open whether anything was changed; after all others nothing
/// was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The transaction's own code gave up. What it says about that is for its author to decode.
    #[error("the transaction was rejected by its own code")]
    Rejected(Rejection),
    /// The server says why. What could be cured by trying again was tried again, as long as there
    /// was time.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The transaction may or may not have committed: the connection was lost, or time ran out,
    /// while it might have been committing. Ask for the outcome if the call has an id, or repeat it
    /// with the same id; never repeat it without one.
    #[error("the outcome is unknown")]
    Unknown,
    /// No compute node could be reached in time. Nothing was begun.
    #[error("no compute node can be reached: {0}")]
    Unreachable(String),
    /// The arguments do not encode, or the key is not valid. Nothing was sent.
    #[error("the request cannot be sent: {0}")]
    Request(String),
    /// The transaction has committed, and its result does not decode as what was asked for.
    #[error("the result does not decode: {0}")]
    Result(String),
    /// The server's answer is none to what was asked. Client and server do not fit together.
    #[error("the server's answer makes no sense")]
    Protocol,
}

/// The error of a transaction's own code, encoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejection(pub(crate) Box<[u8]>);

impl Rejection {
    /// The error, if it is of this type.
    pub fn decode<E: DeserializeOwned>(&self) -> Option<E> {
        postcard::from_bytes(&self.0).ok()
    }
}

/// Why there is no connection to a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Name a server.
    #[error("no address of a server was given")]
    NoAddress,
    /// The last server that was tried does not take this client.
    #[error("{address} refuses: {refusal}")]
    Refused {
        /// Its address.
        address: String,
        /// Why.
        refusal: Refusal,
    },
    /// TLS has failed with the last server that was tried, or something else speaks there; correct
    /// the certificates.
    #[error("{address} and this application do not trust each other: {error}")]
    Untrusted {
        /// Its address.
        address: String,
        /// Why.
        error: std::io::Error,
    },
    /// The last server that was tried could not be reached.
    #[error("{address} cannot be reached: {error}")]
    Unreachable {
        /// Its address.
        address: String,
        /// What the system says.
        error: std::io::Error,
    },
}
