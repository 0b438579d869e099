//! Messages between client and server: frames, behind a length in 32 bits, little-endian.
//!
//! A frame is one message encoded by `postcard`. Lengths are checked against a limit before the
//! frame is read, and a frame with missing or surplus bytes is refused.
//!
//! The hello and a refusal stay the first variants of their enums, with these fields, in every
//! version, so that different versions recognise each other.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::{Version, Versioned};

/// Longest frame after the handshake, in bytes.
pub(super) const MAX_FRAME_BYTES: usize = MAX_VALUE_BYTES + MAX_KEY_BYTES + 32;
/// Longest frame during the handshake, in bytes.
pub(super) const MAX_GUEST_BYTES: usize = 256;

const MAGIC: u64 = u64::from_le_bytes(*b"lotusaut");

/// A nonce, or a proof.
pub(super) type Words4 = [u64; 4];

/// Reason why a server does not admit a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// The peer speaks a different protocol.
    #[error("it does not speak the authority's protocol")]
    Garbage,
    /// Versions differ; run one version on both ends.
    #[error("it speaks another version of the authority's protocol")]
    Version,
    /// Only one side demands a key or TLS; configure both alike.
    #[error("one side demands a shared key or TLS, and the other does not")]
    Security,
    /// The keys differ.
    #[error("the shared keys differ")]
    Proof,
    /// All connections are in use.
    #[error("it has as many connections as it may")]
    Full,
}

/// First message of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u16,
    /// Whether the client has a key.
    pub(super) secured: bool,
    pub(super) nonce: Words4,
}

impl Hello {
    /// Words that proofs sign.
    pub(super) fn words(&self) -> [u64; 6] {
        let [a, b, c, d] = self.nonce;
        [MAGIC, u64::from(self.version) << 8 | u64::from(self.secured), a, b, c, d]
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Hello(Hello),
    Proof(Words4),
    Read {
        key: String,
    },
    ChangedSince {
        key: String,
        seen: Version,
    },
    Swap {
        key: String,
        expected: Version,
        value: Vec<u8>,
    },
    /// The client belongs to an earlier authority, and hangs up.
    EarlierLife,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Refused(Refusal),
    Challenge {
        nonce: Words4,
        proof: Words4,
    },
    Welcome {
        /// Id of this server: a server that lost its values has a new id.
        life: u64,
    },
    /// No value exists, or no newer value.
    Nothing,
    Found(Versioned),
    Swapped(Version),
    Conflict(Version),
}

impl Request {
    /// Whether key and value are within their limits.
    pub(super) fn keeps_limits(&self) -> bool {
        let (key, value) = match self {
            Self::Hello(_) | Self::Proof(_) | Self::EarlierLife => return true,
            Self::Read { key } | Self::ChangedSince { key, .. } => (key, 0),
            Self::Swap { key, value, .. } => (key, value.len()),
        };
        key.len() <= MAX_KEY_BYTES && value <= MAX_VALUE_BYTES
    }
}

/// Encodes a message.
pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).expect("memory holds a message")
}

/// Decodes a message; `None` if it is malformed.
pub(super) fn decode<T: DeserializeOwned>(frame: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(frame) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}

/// Sends a message.
pub(super) fn send(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let frame = encode(message);
    let length = u32::try_from(frame.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    stream.write_all(&[&length.to_le_bytes(), &frame[..]].concat())
}

/// Receives a message in a frame of at most `limit` bytes; `None` if it is malformed.
pub(super) fn receive<T: DeserializeOwned>(
    stream: &mut impl Read,
    limit: usize,
) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > limit {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame)?;
    Ok(decode(&frame))
}
