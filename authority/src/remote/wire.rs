//! Messages between client and server: frames of bytes, little-endian, each behind its length in 32
//! bits.
//!
//! A frame's first byte is its kind. Lengths are checked against a limit before anything is read,
//! and a frame with missing or surplus bytes is refused.

use std::io::{self, Read, Write};

use super::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Stream};
use crate::{Version, Versioned};

/// Longest frame after the handshake, in bytes.
pub(super) const MAX_FRAME_BYTES: usize = MAX_VALUE_BYTES + MAX_KEY_BYTES + 32;
/// Longest frame during the handshake, in bytes.
pub(super) const MAX_GUEST_BYTES: usize = 256;

const MAGIC: u64 = u64::from_le_bytes(*b"lotusaut");

/// A nonce, or a proof.
pub(super) type Words4 = [u64; 4];

/// Reason why a server does not admit a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u8)]
#[non_exhaustive]
pub enum Refusal {
    /// Something else speaks there.
    #[error("it does not speak the authority's protocol")]
    Garbage = 1,
    /// Versions differ; both ends must run the same.
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

impl Refusal {
    fn of(byte: u8) -> Self {
        let all = [Self::Garbage, Self::Version, Self::Security, Self::Proof, Self::Full];
        all.into_iter().find(|refusal| *refusal as u8 == byte).unwrap_or(Self::Garbage)
    }
}

/// First message of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub(super) version: u16,
    /// Whether it has a key.
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

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Request {
    Hello(Hello),
    Proof(Words4),
    Read { key: String },
    ChangedSince { key: String, seen: Version },
    Swap { key: String, expected: Version, value: Vec<u8> },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    Challenge {
        nonce: Words4,
        proof: Words4,
    },
    Welcome,
    Refused(Refusal),
    /// There is no value, or no newer one.
    Nothing,
    Found(Versioned),
    Swapped(Version),
    Conflict(Version),
}

impl Request {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello(hello) => Frame::new(1).words(&hello.words()).0,
            Self::Proof(proof) => Frame::new(2).words(proof).0,
            Self::Read { key } => Frame::new(3).key(key).0,
            Self::ChangedSince { key, seen } => Frame::new(4).words(&[seen.0]).key(key).0,
            Self::Swap { key, expected, value } => {
                Frame::new(5).words(&[expected.0]).key(key).bytes(value).0
            }
        }
    }

    /// Decodes a frame; `None` if it is malformed.
    pub(super) fn decode(frame: &[u8]) -> Option<Self> {
        let (kind, body) = frame.split_first()?;
        let mut rest = Rest(body);
        let request = match kind {
            1 => {
                let [magic, what] = [rest.word()?, rest.word()?];
                let (version, secured) = (u16::try_from(what >> 8).ok()?, what as u8 != 0);
                let hello = Hello { version, secured, nonce: rest.words()? };
                Self::Hello((magic == MAGIC).then_some(hello)?)
            }
            2 => Self::Proof(rest.words()?),
            3 => Self::Read { key: rest.key()? },
            4 => {
                let seen = Version(rest.word()?);
                Self::ChangedSince { key: rest.key()?, seen }
            }
            5 => {
                let expected = Version(rest.word()?);
                let key = rest.key()?;
                let value = std::mem::take(&mut rest.0).to_vec();
                (value.len() <= MAX_VALUE_BYTES).then_some(Self::Swap { key, expected, value })?
            }
            _ => return None,
        };
        rest.0.is_empty().then_some(request)
    }
}

impl Reply {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Challenge { nonce, proof } => Frame::new(1).words(nonce).words(proof).0,
            Self::Welcome => Frame::new(2).0,
            Self::Refused(why) => Frame::new(3).bytes(&[*why as u8]).0,
            Self::Nothing => Frame::new(4).0,
            Self::Found(found) => Frame::new(5).words(&[found.version.0]).bytes(&found.value).0,
            Self::Swapped(version) => Frame::new(6).words(&[version.0]).0,
            Self::Conflict(version) => Frame::new(7).words(&[version.0]).0,
        }
    }

    /// Decodes a frame; `None` if it is malformed.
    pub(super) fn decode(frame: &[u8]) -> Option<Self> {
        let (kind, body) = frame.split_first()?;
        let mut rest = Rest(body);
        let reply = match kind {
            1 => Self::Challenge { nonce: rest.words()?, proof: rest.words()? },
            2 => Self::Welcome,
            3 => Self::Refused(Refusal::of(rest.byte()?)),
            4 => Self::Nothing,
            5 => {
                let version = Version(rest.word()?);
                let value = std::mem::take(&mut rest.0).to_vec();
                Self::Found(Versioned { version, value })
            }
            6 => Self::Swapped(Version(rest.word()?)),
            7 => Self::Conflict(Version(rest.word()?)),
            _ => return None,
        };
        rest.0.is_empty().then_some(reply)
    }
}

/// A frame under construction.
struct Frame(Vec<u8>);

impl Frame {
    fn new(kind: u8) -> Self {
        Self(vec![kind])
    }

    fn words(mut self, words: &[u64]) -> Self {
        words.iter().for_each(|word| self.0.extend(word.to_le_bytes()));
        self
    }

    /// Appends a key; the client has checked its length.
    fn key(mut self, key: &str) -> Self {
        self.0.push(key.len() as u8);
        self.0.extend(key.as_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
}

/// Unread rest of a frame.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn words(&mut self) -> Option<Words4> {
        Some([self.word()?, self.word()?, self.word()?, self.word()?])
    }

    fn key(&mut self) -> Option<String> {
        let length = usize::from(self.byte()?);
        let (key, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(key.to_vec()).ok()
    }
}

/// Sends a frame.
pub(super) fn send(stream: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(frame);
    stream.write_all(&bytes)
}

/// Receives a frame of at most `limit` bytes.
pub(super) fn receive(stream: &mut Stream, limit: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > limit {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}
