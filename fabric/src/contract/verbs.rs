//! One-sided verbs as plain data: the requests of a coordinator to a back end.
//!
//! A [`Work`] is a batch under construction or in flight: a list of [`WorkRequest`]s and the arena
//! chunks with their local buffers. A `Work` owns its buffers, so memory that a NIC may still touch
//! is never borrowed or freed. Building a batch allocates nothing once the lane's pool is warm. The
//! guarantees of verbs (order, atomicity, failure) are in docs/verbs.md.

mod buffers;
mod work;

pub use buffers::{Buffer, Buffers, CHUNK_WORDS, MAX_VERB_BYTES};
pub use work::Work;
#[cfg(any(feature = "tcp", feature = "rdma"))]
pub(crate) use work::not_declared;

use crate::contract::ids::{NodeId, NodeSet, RemoteAddr};
use crate::contract::region::{Rights, WORD_BYTES};
use crate::contract::wide::WIDE_BYTES;

/// Operation at the remote address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Copy remote memory into the buffer.
    Read,
    /// Like `Read`, but back ends whose reads can be torn between words copy until two passes agree
    /// (H14). On a NIC, a plain READ, so readers still check the data.
    ReadStable,
    /// Copy the buffer to remote memory.
    Write,
    /// Store one word that travels with the request.
    WriteWord {
        /// The word.
        value: u64,
    },
    /// Compare-and-swap one word; the buffer receives the word's previous value.
    CompareAndSwap {
        /// Expected value of the word; otherwise nothing is swapped.
        expected: u64,
        /// Value to store.
        new: u64,
    },
    /// Add to one word, wrapping; the buffer receives the word's previous value.
    FetchAndAdd {
        /// The summand.
        addend: u64,
    },
    /// Compare some bits of one word and swap others ([`MaskedSwap`]). The buffer holds the four
    /// operands; its first word receives the remote word's previous value. Only where
    /// [`Capabilities::masked_atomics`] is true.
    ///
    /// [`MaskedSwap`]: crate::contract::masked::MaskedSwap
    MaskedCompareAndSwap,
    /// Add to one word field by field ([`masked_sum`]); the buffer receives the word's previous
    /// value. Only where [`Capabilities::masked_atomics`] is true.
    ///
    /// [`masked_sum`]: crate::contract::masked::masked_sum
    MaskedFetchAndAdd {
        /// The summand.
        addend: u64,
        /// The highest bit of each field.
        boundary: u64,
    },
    /// Compare some bits of 16 bytes and swap others ([`WideSwap`]). The buffer holds the four
    /// operands, 64 bytes; its first 16 bytes receive the previous value. The address is a multiple
    /// of sixteen. Only where [`Capabilities::wide_atomics`] is true.
    ///
    /// [`WideSwap`]: crate::contract::wide::WideSwap
    WideCompareAndSwap,
    /// Add to 16 bytes field by field ([`wide_sum`]). The buffer holds the summand and the
    /// boundary, 32 bytes; its first 16 bytes receive the previous value. The address is a multiple
    /// of sixteen. Only where [`Capabilities::wide_atomics`] is true.
    ///
    /// [`wide_sum`]: crate::contract::wide::wide_sum
    WideFetchAndAdd,
}

// Operands of wide atomics are in the buffer, so requests do not grow.
const _: () = assert!(size_of::<Op>() == 3 * WORD_BYTES && align_of::<Op>() == WORD_BYTES);

/// The kind of a verb, for counting and costing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VerbKind {
    /// READ.
    Read,
    /// WRITE.
    Write,
    /// Compare-and-swap, masked or not, of 8 or 16 bytes.
    CompareAndSwap,
    /// Fetch-and-add, masked or not, of 8 or 16 bytes.
    FetchAndAdd,
}

impl VerbKind {
    /// All kinds, in the order of their values.
    pub(crate) const ALL: [Self; 4] =
        [Self::Read, Self::Write, Self::CompareAndSwap, Self::FetchAndAdd];
}

impl Rights {
    /// Returns whether the rights allow verbs of kind `kind`.
    #[inline]
    pub(crate) fn allow(self, kind: VerbKind) -> bool {
        match kind {
            VerbKind::Read => self.read,
            VerbKind::Write => self.write,
            VerbKind::CompareAndSwap | VerbKind::FetchAndAdd => self.atomic,
        }
    }
}

/// One verb of a batch.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest {
    /// Remote address of the first byte.
    pub addr: RemoteAddr,
    /// The operation.
    pub op: Op,
    /// The local side: source of a WRITE, destination of every other verb.
    pub local: Buffer,
    /// Further nodes of a WRITE, one verb per node, at the same region number and offset. Empty for
    /// back ends without [`Capabilities::several_nodes`], whose batches have one request per node.
    pub also: NodeSet,
}

impl WorkRequest {
    /// Bytes of remote memory that the verb touches; for a WRITE to several nodes, bytes per node.
    #[inline]
    pub fn bytes(&self) -> usize {
        match self.op {
            Op::Read | Op::ReadStable | Op::Write => self.local.bytes(),
            Op::WriteWord { .. }
            | Op::CompareAndSwap { .. }
            | Op::FetchAndAdd { .. }
            | Op::MaskedCompareAndSwap
            | Op::MaskedFetchAndAdd { .. } => WORD_BYTES,
            Op::WideCompareAndSwap | Op::WideFetchAndAdd => WIDE_BYTES,
        }
    }

    /// Part of the buffer that receives the verb's result.
    #[inline]
    pub fn result(&self) -> Buffer {
        match self.op {
            Op::MaskedCompareAndSwap => self.local.prefix(WORD_BYTES),
            Op::WideCompareAndSwap | Op::WideFetchAndAdd => self.local.prefix(WIDE_BYTES),
            _ => self.local,
        }
    }

    /// The verb's kind.
    #[inline]
    pub fn kind(&self) -> VerbKind {
        match self.op {
            Op::Read | Op::ReadStable => VerbKind::Read,
            Op::Write | Op::WriteWord { .. } => VerbKind::Write,
            Op::CompareAndSwap { .. } | Op::MaskedCompareAndSwap | Op::WideCompareAndSwap => {
                VerbKind::CompareAndSwap
            }
            Op::FetchAndAdd { .. } | Op::MaskedFetchAndAdd { .. } | Op::WideFetchAndAdd => {
                VerbKind::FetchAndAdd
            }
        }
    }

    /// Returns whether the verb is an atomic on 16 bytes.
    #[inline]
    pub fn is_wide(&self) -> bool {
        matches!(self.op, Op::WideCompareAndSwap | Op::WideFetchAndAdd)
    }

    #[inline]
    fn goes_to(&self, node: NodeId) -> bool {
        self.addr.node() == node || self.also.contains(node)
    }

    /// The request for `node` alone.
    #[inline]
    fn on(&self, node: NodeId) -> Self {
        Self { addr: self.addr.on(node), also: NodeSet::EMPTY, ..*self }
    }

    /// Returns the index of the verb's first word in a region of `region_bytes` with rights
    /// `rights`.
    ///
    /// # Errors
    /// The target's error if the verb is misaligned, out of bounds or not allowed.
    #[inline]
    pub(crate) fn first_word(&self, region_bytes: u64, rights: Rights) -> Result<usize, VerbError> {
        let offset = self.addr.offset();
        if self.is_wide() && !offset.is_multiple_of(WIDE_BYTES as u64) {
            return Err(VerbError::Misaligned);
        }
        first_word(offset, self.bytes() as u64, self.kind(), region_bytes, rights)
    }
}

/// Returns the index of the first word that a verb touches in a region of `region_bytes` with
/// rights `rights`.
///
/// # Errors
/// The target's error if the verb is misaligned, out of bounds or not allowed.
#[inline]
pub(crate) fn first_word(
    offset: u64,
    bytes: u64,
    kind: VerbKind,
    region_bytes: u64,
    rights: Rights,
) -> Result<usize, VerbError> {
    if !offset.is_multiple_of(WORD_BYTES as u64) {
        return Err(VerbError::Misaligned);
    }
    if offset + bytes > region_bytes {
        return Err(VerbError::OutOfBounds);
    }
    if rights.allow(kind) { Ok(offset as usize / WORD_BYTES) } else { Err(VerbError::AccessDenied) }
}

/// Reason why a verb did not complete. The docs of a variant begin with the verb's effect: not
/// applied, or unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbError {
    /// Not applied: the address leaves the region, or no such region is registered.
    #[error("the access leaves every region of the node")]
    OutOfBounds,
    /// Not applied: address and length must be multiples of eight; the address of an atomic on 16
    /// bytes must be a multiple of sixteen.
    #[error("the access is not aligned to eight bytes, or a wide atomic not to sixteen")]
    Misaligned,
    /// Not applied: the region's rights do not grant the access.
    #[error("the region does not allow this access")]
    AccessDenied,
    /// Not applied, and never will be: the issuing node has been expelled and fenced (H2).
    #[error("this node has been fenced")]
    Revoked,
    /// Not applied: an earlier verb broke the connection, and the lane has not reconnected.
    #[error("the connection is broken")]
    Broken,
    /// Unknown: an earlier verb on the connection failed while the verb was in flight (H24).
    #[error("the verb was flushed after an earlier failure")]
    Flushed,
    /// Unknown: the node does not answer.
    #[error("the node is unreachable")]
    Unreachable,
    /// Unknown: no completion in time. The verb may still take effect until the lane has
    /// reconnected.
    #[error("the verb timed out")]
    TimedOut,
}

impl VerbError {
    /// Returns whether the verb may have taken effect, or may still take effect.
    pub fn outcome_unknown(self) -> bool {
        matches!(self, Self::Flushed | Self::Unreachable | Self::TimedOut)
    }
}

/// The first failure on one connection; no later verb of the batch to `node` completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The node at the other end.
    pub node: NodeId,
    /// Index of the verb's request in its batch.
    pub verb: usize,
    /// The error of the verb.
    pub error: VerbError,
}

/// Optional abilities of a back end beyond the common contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// [`Op::ReadStable`] returns a snapshot: words that were current at one moment. If false,
    /// `ReadStable` is a plain READ.
    pub stable_reads: bool,
    /// [`Op::MaskedCompareAndSwap`] and [`Op::MaskedFetchAndAdd`].
    pub masked_atomics: bool,
    /// [`Op::WideCompareAndSwap`] and [`Op::WideFetchAndAdd`]. Only NICs and the model of a NIC
    /// have wide atomics: no CPU instruction available on every machine changes 16 bytes in one
    /// step.
    pub wide_atomics: bool,
    /// The back end takes requests for several nodes ([`WorkRequest::also`]).
    pub several_nodes: bool,
}
