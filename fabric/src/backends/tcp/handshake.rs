//! The start of a connection: the purpose, and proof that initiator and target hold the shared key.
//!
//! ```text
//! initiator → target   Hello       who, to whom, for what, a nonce
//! target → initiator   Challenge   a nonce, HMAC(key, "target" · hello · nonce)     only with keys
//! initiator → target   Proof       HMAC(key, "initiator" · hello · nonce)           only with keys
//! target → initiator   Welcome, or Refused with a reason
//! ```
//!
//! Initiator and target are pure state machines: frames in, words to send out. The initiator sends
//! no verb before the welcome, so a connection given up during the handshake has no effect.
//!
//! The proofs cover the whole hello and both nonces, and have different labels, so a proof can be
//! neither replayed nor reflected. The proofs authenticate the peers at the start of the
//! connection. They do not protect later bytes from an attacker who can change packets in transit
//! (docs/security.md).

use lotus_security::{Key, Words4, nonce};

use super::wire::{Frame, FrameKind, Header};
use crate::contract::ids::{Endpoint, Epoch, LaneId, NodeId};

/// The protocol's version. Initiator and target must have equal versions.
pub const VERSION: u16 = 2;

const MAGIC: u64 = u64::from_le_bytes(*b"lotustcp");
const HELLO_WORDS: usize = 9;
const TARGET: u64 = u64::from_le_bytes(*b"target\0\0");
const INITIATOR: u64 = u64::from_le_bytes(*b"initiate");

/// Purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Purpose {
    /// Verbs of one lane on the regions of one node.
    Verbs = 1,
    /// Datagrams from lane to lane.
    Messages,
    /// Registering and fencing.
    Control,
}

/// Reason why a target does not admit a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u8)]
#[non_exhaustive]
pub enum Refusal {
    /// The peer speaks a different protocol.
    #[error("the other side does not speak this protocol")]
    Garbage = 1,
    /// The versions differ. Run one version everywhere.
    #[error("the other side speaks another version, not {VERSION}")]
    Version,
    /// Only one side has a shared key or TLS. Configure both sides alike.
    #[error("one side demands a shared key or TLS, and the other does not")]
    Security,
    /// The keys differ.
    #[error("the shared keys differ")]
    Proof,
    /// Another node listens at this address.
    #[error("another node listens at this address")]
    Node,
    /// The node was expelled; a return needs a newer epoch.
    #[error("the node has been fenced")]
    Fenced,
    /// The lane is not open.
    #[error("that lane is not open")]
    NoLane,
    /// The lane has made a newer connection.
    #[error("the lane has a newer connection")]
    Stale,
    /// The target has reached its limit of connections.
    #[error("the target has as many connections as it may")]
    Full,
}

impl Refusal {
    const ALL: [Self; 9] = [
        Self::Garbage,
        Self::Version,
        Self::Security,
        Self::Proof,
        Self::Node,
        Self::Fenced,
        Self::NoLane,
        Self::Stale,
        Self::Full,
    ];

    fn of_status(status: u8) -> Self {
        let index = usize::from(status).wrapping_sub(1);
        Self::ALL.get(index).copied().unwrap_or(Self::Garbage)
    }
}

/// First message of a connection: initiator, target and purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub(super) purpose: Purpose,
    pub(super) from: Endpoint,
    /// The lane is used for messages only.
    pub(super) to: Endpoint,
    pub(super) epoch: Epoch,
    /// Identifies a life of the lane.
    pub(super) session: u64,
    /// Number of the connection among the session's connections to the target.
    pub(super) number: u64,
}

impl Hello {
    fn pack(self, secured: bool, nonce: Words4) -> [u64; HELLO_WORDS] {
        let Self { purpose, from, to, epoch, session, number } = self;
        let what = u64::from(VERSION) << 48
            | u64::from(secured) << 40
            | u64::from(purpose as u8) << 32
            | u64::from(epoch.0);
        let place = |at: Endpoint| u64::from(at.node.0) << 16 | u64::from(at.lane.0);
        let [a, b, c, d] = nonce;
        [MAGIC, what, place(from) << 32 | place(to), session, number, a, b, c, d]
    }

    /// Returns the hello, and whether the sender has a key.
    fn unpack(body: &[u64]) -> Result<(Self, bool), Refusal> {
        let [MAGIC, what, ..] = *body else { return Err(Refusal::Garbage) };
        if (what >> 48) as u16 != VERSION {
            return Err(Refusal::Version);
        }
        let &[_, _, places, session, number, ..] = body else { return Err(Refusal::Garbage) };
        if body.len() != HELLO_WORDS {
            return Err(Refusal::Garbage);
        }
        let purpose = match (what >> 32) as u8 {
            1 => Purpose::Verbs,
            2 => Purpose::Messages,
            3 => Purpose::Control,
            _ => return Err(Refusal::Garbage),
        };
        let place = |bits: u64| {
            let (node, lane) = (NodeId((bits >> 16) as u16), LaneId(bits as u16));
            Endpoint { node, lane }
        };
        let (from, to) = (place(places >> 32), place(places));
        let hello = Self { purpose, from, to, epoch: Epoch(what as u32), session, number };
        Ok((hello, (what >> 40) as u8 != 0))
    }
}

/// Appends a frame with a status and a body.
pub(super) fn push_frame(out: &mut Vec<u64>, kind: FrameKind, status: u8, body: &[u64]) {
    out.push(Header { status, ..Header::new(kind, 0, body.len()) }.pack());
    out.extend_from_slice(body);
}

/// Appends a refusal.
pub(super) fn push_refusal(out: &mut Vec<u64>, refusal: Refusal) {
    push_frame(out, FrameKind::Refused, refusal as u8, &[]);
}

/// The initiator's state.
pub(super) struct Initiator {
    key: Option<Key>,
    hello: [u64; HELLO_WORDS],
    /// Whether the target has proved that it has the key, or no proof is needed.
    trusted: bool,
}

impl Initiator {
    /// Starts a handshake; `out` receives the first frame to send.
    ///
    /// # Errors
    /// The system provides no randomness.
    pub(super) fn start(
        hello: Hello,
        key: Option<&Key>,
        out: &mut Vec<u64>,
    ) -> std::io::Result<Self> {
        let hello = hello.pack(key.is_some(), nonce()?);
        push_frame(out, FrameKind::Hello, 0, &hello);
        Ok(Self { trusted: key.is_none(), key: key.cloned(), hello })
    }

    /// Processes a frame. Returns whether the connection is now admitted.
    ///
    /// # Errors
    /// Refusal by the target or by the initiator.
    pub(super) fn step(&mut self, frame: &Frame<'_>, out: &mut Vec<u64>) -> Result<bool, Refusal> {
        match (frame.header.kind, &self.key, frame.body) {
            (FrameKind::Refused, _, _) => Err(Refusal::of_status(frame.header.status)),
            (FrameKind::Challenge, Some(key), [a, b, c, d, proof @ ..]) if !self.trusted => {
                let nonce = [*a, *b, *c, *d];
                if !key.verify(TARGET, &self.hello, nonce, proof) {
                    return Err(Refusal::Proof);
                }
                self.trusted = true;
                push_frame(out, FrameKind::Proof, 0, &key.sign(INITIATOR, &self.hello, nonce));
                Ok(false)
            }
            (FrameKind::Welcome, _, []) if self.trusted => Ok(true),
            // A target without a key welcomes at once; an initiator with a key rejects such a
            // welcome.
            (FrameKind::Welcome, ..) => Err(Refusal::Security),
            _ => Err(Refusal::Garbage),
        }
    }
}

/// The target's state.
#[derive(Default)]
pub(super) enum TargetHandshake {
    /// No frame has arrived yet.
    #[default]
    Silent,
    /// The initiator has been challenged.
    Challenged { hello: [u64; HELLO_WORDS], nonce: Words4 },
    /// The handshake is over; no further frame is allowed.
    Done,
}

impl TargetHandshake {
    /// Processes a frame. Returns the initiator's hello once authenticated.
    ///
    /// # Errors
    /// Reason for refusing the connection.
    pub(super) fn step(
        &mut self,
        frame: &Frame<'_>,
        key: Option<&Key>,
        out: &mut Vec<u64>,
    ) -> Result<Option<Hello>, Refusal> {
        match (std::mem::replace(self, Self::Done), frame.header.kind) {
            (Self::Silent, FrameKind::Hello) => {
                let (hello, secured) = Hello::unpack(frame.body)?;
                if secured != key.is_some() {
                    return Err(Refusal::Security);
                }
                let Some(key) = key else { return Ok(Some(hello)) };
                let nonce = nonce().map_err(|_| Refusal::Full)?;
                let hello: [u64; HELLO_WORDS] =
                    frame.body.try_into().map_err(|_| Refusal::Garbage)?;
                let mut body = nonce.to_vec();
                body.extend_from_slice(&key.sign(TARGET, &hello, nonce));
                push_frame(out, FrameKind::Challenge, 0, &body);
                *self = Self::Challenged { hello, nonce };
                Ok(None)
            }
            (Self::Challenged { hello, nonce }, FrameKind::Proof) => {
                let proven = |key: &Key| key.verify(INITIATOR, &hello, nonce, frame.body);
                if !key.is_some_and(proven) {
                    return Err(Refusal::Proof);
                }
                Hello::unpack(&hello).map(|(hello, _)| Some(hello))
            }
            _ => Err(Refusal::Garbage),
        }
    }
}
