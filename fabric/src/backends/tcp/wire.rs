//! The protocol on a connection: frames of 8-byte words.
//!
//! A frame is a header word and a body. A frame's length is a multiple of eight bytes, so frames
//! are read in the receive buffer, and data is copied once, directly between the socket's buffer
//! and registered memory. [`decode`] is a pure function over the received words and trusts nothing.
//!
//! ```text
//! header     kind (8 bits) | status (8) | count (16) | words of the body (32)
//! verb       op (4 bits)   | words (12) | region (8) | offset (40)      then its operands:
//!            WRITE: the words · compare-and-swap: expected, new · fetch-and-add: addend ·
//!            masked ones: compare, compare mask, swap, swap mask · addend, boundary
//! Verbs      count verbs, back to back
//! Results    what the READs and atomics of one such frame brought, back to back; or a status
//!            that says why verb number `count` of it, and all behind, did not take effect
//! Message    count bytes, padded to words
//! ```
//!
//! The protocol has no 16-byte atomics: no verb number stands for them, and targets refuse unknown
//! numbers. Numbers are little-endian. The first frames of a connection are in `handshake`.

use zerocopy::IntoBytes;

use crate::contract::ids::{RegionId, RemoteAddr};
use crate::contract::masked::MaskedSwap;
use crate::contract::region::WORD_BYTES;
use crate::contract::transport::MAX_MESSAGE_BYTES;
use crate::contract::verbs::{MAX_VERB_BYTES, Op, VerbError, VerbKind, not_declared};

/// Largest number of words in the body of a frame.
pub(super) const MAX_BODY_WORDS: usize = 4095;
/// Largest number of words in a frame: 32 KiB. Initiator and target need room for a whole frame, so
/// this limit bounds their buffers.
pub(super) const MAX_FRAME_WORDS: usize = MAX_BODY_WORDS + 1;
/// Words in the frame of the longest message.
pub(super) const MAX_MESSAGE_WORDS: usize = 1 + MAX_MESSAGE_BYTES / WORD_BYTES;

// Words are copied without conversion, and the longest verb must fit, with the address.
const _: () = assert!(cfg!(target_endian = "little"));
const _: () = assert!(MAX_VERB_BYTES / WORD_BYTES < MAX_BODY_WORDS);
const _: () = assert!(MAX_VERB_BYTES / WORD_BYTES < 1 << WORDS_BITS);
const _: () = assert!(RemoteAddr::OFFSET_BITS + 8 + WORDS_BITS + 4 == u64::BITS);
const _: () = assert!(MAX_MESSAGE_BYTES <= u16::MAX as usize);

const WORDS_BITS: u32 = 12;

/// Kinds of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum FrameKind {
    /// First frame: the initiator, the target and the purpose.
    Hello = 1,
    /// The target's proof of having the key, and the request for the initiator's proof.
    Challenge,
    /// The initiator's proof.
    Proof,
    /// The connection is admitted.
    Welcome,
    /// The connection is not admitted; the status gives the reason.
    Refused,
    /// Verbs to carry out in order.
    Verbs,
    /// Results of a frame of verbs.
    Results,
    /// A datagram.
    Message,
    /// Control: register a region.
    Register,
    /// Control: fence a node.
    Fence,
    /// Result of a control request.
    Done,
}

impl FrameKind {
    const ALL: [Self; 11] = [
        Self::Hello,
        Self::Challenge,
        Self::Proof,
        Self::Welcome,
        Self::Refused,
        Self::Verbs,
        Self::Results,
        Self::Message,
        Self::Register,
        Self::Fence,
        Self::Done,
    ];
}

/// Reason why bytes are not a frame. The peer speaks a different protocol; the connection is
/// closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error("no frame begins with {0:#x}")]
    FrameKind(u8),
    #[error("a frame of {0} words is longer than any may be")]
    Long(usize),
    #[error("the body does not fit what its header says")]
    Body,
    #[error("there is no verb {0}")]
    Verb(u8),
    #[error("a frame of this kind has no place here")]
    Unexpected,
}

/// The first word of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) kind: FrameKind,
    pub(super) status: u8,
    pub(super) count: u16,
    pub(super) words: u32,
}

impl Header {
    /// Makes the header of a frame with `words` body words.
    pub(super) fn new(kind: FrameKind, count: usize, words: usize) -> Self {
        debug_assert!(words <= MAX_BODY_WORDS && count <= usize::from(u16::MAX));
        Self { kind, status: 0, count: count as u16, words: words as u32 }
    }

    #[inline]
    pub(super) fn pack(self) -> u64 {
        let Self { kind, status, count, words } = self;
        u64::from(kind as u8) << 56
            | u64::from(status) << 48
            | u64::from(count) << 32
            | u64::from(words)
    }

    #[inline]
    fn unpack(word: u64) -> Result<Self, WireError> {
        let number = (word >> 56) as u8;
        let index = usize::from(number).wrapping_sub(1);
        let kind = *FrameKind::ALL.get(index).ok_or(WireError::FrameKind(number))?;
        let words = word as u32;
        if words as usize > MAX_BODY_WORDS {
            return Err(WireError::Long(words as usize));
        }
        Ok(Self { kind, status: (word >> 48) as u8, count: (word >> 32) as u16, words })
    }
}

/// A whole frame, in the receive buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Frame<'a> {
    pub(super) header: Header,
    pub(super) body: &'a [u64],
}

impl Frame<'_> {
    /// Returns the length in words, header included.
    #[inline]
    pub(super) fn words(&self) -> usize {
        1 + self.body.len()
    }
}

/// Returns the first frame of `input`; `None` if the frame is incomplete.
///
/// # Errors
/// `input` does not begin with a frame, whatever follows.
#[inline]
pub(super) fn decode(input: &[u64]) -> Result<Option<Frame<'_>>, WireError> {
    let Some((first, rest)) = input.split_first() else { return Ok(None) };
    let header = Header::unpack(*first)?;
    Ok(rest.get(..header.words as usize).map(|body| Frame { header, body }))
}

/// One verb of a frame, in the receive buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Verb<'a> {
    pub(super) region: RegionId,
    pub(super) offset: u64,
    pub(super) words: usize,
    pub(super) act: Act<'a>,
}

/// Operation of a verb, with its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act<'a> {
    Read,
    ReadStable,
    Write(&'a [u64]),
    CompareAndSwap { expected: u64, new: u64 },
    FetchAndAdd { addend: u64 },
    MaskedCompareAndSwap(MaskedSwap),
    MaskedFetchAndAdd { addend: u64, boundary: u64 },
}

impl Act<'_> {
    #[inline]
    pub(super) fn kind(self) -> VerbKind {
        match self {
            Self::Read | Self::ReadStable => VerbKind::Read,
            Self::Write(_) => VerbKind::Write,
            Self::CompareAndSwap { .. } | Self::MaskedCompareAndSwap(_) => VerbKind::CompareAndSwap,
            Self::FetchAndAdd { .. } | Self::MaskedFetchAndAdd { .. } => VerbKind::FetchAndAdd,
        }
    }
}

impl Verb<'_> {
    /// Number of words that the verb adds to the results.
    #[inline]
    pub(super) fn result_words(&self) -> usize {
        if matches!(self.act, Act::Write(_)) { 0 } else { self.words }
    }
}

const READ: u8 = 1;
const READ_STABLE: u8 = 2;
const WRITE: u8 = 3;
const COMPARE_AND_SWAP: u8 = 4;
const FETCH_AND_ADD: u8 = 5;
const MASKED_COMPARE_AND_SWAP: u8 = 6;
const MASKED_FETCH_AND_ADD: u8 = 7;

/// Returns the first verb of `body`, and the rest of `body`.
///
/// # Errors
/// `body` does not begin with a verb.
#[inline]
pub(super) fn decode_verb(body: &[u64]) -> Result<(Verb<'_>, &[u64]), WireError> {
    let (first, rest) = body.split_first().ok_or(WireError::Body)?;
    let op = (first >> 60) as u8;
    let words = (first >> 48) as usize & ((1 << WORDS_BITS) - 1);
    if words > MAX_VERB_BYTES / WORD_BYTES {
        return Err(WireError::Body);
    }
    let operands = match op {
        READ | READ_STABLE => 0,
        WRITE => words,
        COMPARE_AND_SWAP if words == 1 => 2,
        FETCH_AND_ADD if words == 1 => 1,
        MASKED_COMPARE_AND_SWAP if words == 1 => MaskedSwap::WORDS,
        MASKED_FETCH_AND_ADD if words == 1 => 2,
        COMPARE_AND_SWAP..=MASKED_FETCH_AND_ADD => return Err(WireError::Body),
        other => return Err(WireError::Verb(other)),
    };
    let (operands, rest) = rest.split_at_checked(operands).ok_or(WireError::Body)?;
    let act = match op {
        READ => Act::Read,
        READ_STABLE => Act::ReadStable,
        WRITE => Act::Write(operands),
        COMPARE_AND_SWAP => Act::CompareAndSwap { expected: operands[0], new: operands[1] },
        FETCH_AND_ADD => Act::FetchAndAdd { addend: operands[0] },
        MASKED_COMPARE_AND_SWAP => {
            let words = operands.first_chunk().expect("so many were split off");
            Act::MaskedCompareAndSwap(MaskedSwap::of_words(*words))
        }
        _ => Act::MaskedFetchAndAdd { addend: operands[0], boundary: operands[1] },
    };
    let region = RegionId((first >> RemoteAddr::OFFSET_BITS) as u8);
    Ok((Verb { region, offset: first & RemoteAddr::MAX_OFFSET, words, act }, rest))
}

/// Returns the number of words that a request adds to a frame, and to the frame's results.
#[inline]
pub(super) fn sizes(op: Op, bytes: usize) -> (usize, usize) {
    let words = bytes / WORD_BYTES;
    match op {
        Op::Read | Op::ReadStable => (1, words),
        Op::Write => (1 + words, 0),
        Op::WriteWord { .. } => (2, 0),
        Op::CompareAndSwap { .. } | Op::MaskedFetchAndAdd { .. } => (3, 1),
        Op::FetchAndAdd { .. } => (2, 1),
        Op::MaskedCompareAndSwap => (1 + MaskedSwap::WORDS, 1),
        Op::WideCompareAndSwap | Op::WideFetchAndAdd => not_declared(op),
    }
}

/// Appends a request; `data` is the payload of a WRITE, or the operands of a masked
/// compare-and-swap.
#[inline]
pub(super) fn encode_verb(
    out: &mut Vec<u64>,
    addr: RemoteAddr,
    op: Op,
    bytes: usize,
    data: &[u64],
) {
    let number = match op {
        Op::Read => READ,
        Op::ReadStable => READ_STABLE,
        Op::Write | Op::WriteWord { .. } => WRITE,
        Op::CompareAndSwap { .. } => COMPARE_AND_SWAP,
        Op::FetchAndAdd { .. } => FETCH_AND_ADD,
        Op::MaskedCompareAndSwap => MASKED_COMPARE_AND_SWAP,
        Op::MaskedFetchAndAdd { .. } => MASKED_FETCH_AND_ADD,
        Op::WideCompareAndSwap | Op::WideFetchAndAdd => not_declared(op),
    };
    let place = u64::from(addr.region().0) << RemoteAddr::OFFSET_BITS | addr.offset();
    out.push(u64::from(number) << 60 | ((bytes / WORD_BYTES) as u64) << 48 | place);
    match op {
        Op::Read | Op::ReadStable => {}
        Op::Write | Op::MaskedCompareAndSwap => out.extend_from_slice(data),
        Op::WriteWord { value } => out.push(value),
        Op::CompareAndSwap { expected, new } => out.extend_from_slice(&[expected, new]),
        Op::FetchAndAdd { addend } => out.push(addend),
        Op::MaskedFetchAndAdd { addend, boundary } => out.extend_from_slice(&[addend, boundary]),
        Op::WideCompareAndSwap | Op::WideFetchAndAdd => not_declared(op),
    }
}

/// Appends a message.
pub(super) fn encode_message(out: &mut Vec<u64>, bytes: &[u8]) {
    let words = bytes.len().div_ceil(WORD_BYTES);
    out.push(Header::new(FrameKind::Message, bytes.len(), words).pack());
    let start = out.len();
    out.resize(start + words, 0);
    out[start..].as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
}

/// Returns the bytes of a message.
///
/// # Errors
/// The frame is not a message, or the length contradicts the header.
pub(super) fn message<'a>(frame: &Frame<'a>) -> Result<&'a [u8], WireError> {
    let bytes = usize::from(frame.header.count);
    if frame.header.kind != FrameKind::Message {
        return Err(WireError::Unexpected);
    }
    if bytes > MAX_MESSAGE_BYTES || frame.body.len() != bytes.div_ceil(WORD_BYTES) {
        return Err(WireError::Body);
    }
    Ok(&frame.body.as_bytes()[..bytes])
}

/// Errors in a target's answers, by status minus one; status zero is success.
const STATUSES: [VerbError; 4] =
    [VerbError::OutOfBounds, VerbError::Misaligned, VerbError::AccessDenied, VerbError::Revoked];

/// Returns the status of an error.
pub(super) fn status_of(error: VerbError) -> u8 {
    let index = STATUSES.iter().position(|known| *known == error);
    index.expect("a target answers with these errors only") as u8 + 1
}

/// Returns the error of a status.
///
/// # Errors
/// The status is unknown.
pub(super) fn error_of(status: u8) -> Result<VerbError, WireError> {
    let index = usize::from(status).wrapping_sub(1);
    STATUSES.get(index).copied().ok_or(WireError::Body)
}
