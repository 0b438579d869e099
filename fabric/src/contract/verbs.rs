//! One-sided verbs as plain data: what a coordinator asks a back end to do.
//!
//! A [`Work`] is a batch under construction or in flight: a list of [`WorkRequest`]s and the arena
//! chunks that they read from and write into. It owns its buffers, so nothing that a NIC may still
//! touch can be borrowed or freed meanwhile. Building a batch allocates nothing once the lane's
//! pool is warm. The guarantees of verbs (order, atomicity, failure) are in docs/verbs.md.

use crate::contract::counters::VerbCounters;
use crate::contract::ids::{NodeId, NodeSet, RegionId, RemoteAddr};
use crate::contract::masked::{MaskedSwap, masked_sum};
use crate::contract::region::{Chunk, LINE_BYTES, Rights, WORD_BYTES, Words};

/// Words in one arena chunk.
pub const CHUNK_WORDS: usize = 2048;
/// Largest READ or WRITE in bytes: a buffer never spans chunks.
pub const MAX_VERB_BYTES: usize = CHUNK_WORDS * WORD_BYTES;

/// A buffer inside the chunks of one [`Work`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    chunk: u16,
    first: u16,
    words: u16,
}

impl Buffer {
    /// Length in bytes.
    #[inline]
    pub fn bytes(self) -> usize {
        usize::from(self.words) * WORD_BYTES
    }

    /// The first `bytes` of the buffer.
    ///
    /// # Panics
    /// If the buffer is shorter, or `bytes` is not a multiple of eight.
    #[inline]
    #[must_use]
    pub fn prefix(self, bytes: usize) -> Self {
        assert!(bytes <= self.bytes() && bytes.is_multiple_of(WORD_BYTES), "not a prefix");
        Self { words: (bytes / WORD_BYTES) as u16, ..self }
    }
}

/// Operation at the remote address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Copy remote memory into the buffer.
    Read,
    /// Like `Read`; back ends whose reads can be torn between words copy until two passes agree
    /// (H14). On a NIC it is a plain READ, so readers still check the data.
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
        /// Value that the word must hold for the swap to happen.
        expected: u64,
        /// Value stored by the swap.
        new: u64,
    },
    /// Add to one word, wrapping; the buffer receives the word's previous value.
    FetchAndAdd {
        /// The summand.
        addend: u64,
    },
    /// Compare some bits of one word and swap others ([`MaskedSwap`]). The buffer has the four
    /// operands; its first word receives the word's previous value. Only where
    /// [`Capabilities::masked_atomics`] is true.
    MaskedCompareAndSwap,
    /// Add to one word field by field ([`masked_sum`]); the buffer receives the word's previous
    /// value. Only where [`Capabilities::masked_atomics`] is true.
    MaskedFetchAndAdd {
        /// The summand.
        addend: u64,
        /// The highest bit of each field.
        boundary: u64,
    },
}

/// The kind of a verb, for counting and costing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VerbKind {
    /// READ.
    Read,
    /// WRITE.
    Write,
    /// Compare-and-swap, masked or not.
    CompareAndSwap,
    /// Fetch-and-add, masked or not.
    FetchAndAdd,
}

impl VerbKind {
    /// All kinds, in the order of their values.
    pub(crate) const ALL: [Self; 4] =
        [Self::Read, Self::Write, Self::CompareAndSwap, Self::FetchAndAdd];
}

impl Rights {
    /// Whether verbs of this kind are allowed.
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
    /// The local side: source of a WRITE, destination of everything else.
    pub local: Buffer,
    /// Further nodes of a WRITE, each with the same offset of the region with the same number: a
    /// verb for each. Empty for back ends without [`Capabilities::several_nodes`], whose batches
    /// have a request for each node.
    pub also: NodeSet,
}

impl WorkRequest {
    /// Bytes of remote memory that the verb touches; of a WRITE to several nodes, on each.
    #[inline]
    pub fn bytes(&self) -> usize {
        match self.op {
            Op::Read | Op::ReadStable | Op::Write => self.local.bytes(),
            Op::WriteWord { .. }
            | Op::CompareAndSwap { .. }
            | Op::FetchAndAdd { .. }
            | Op::MaskedCompareAndSwap
            | Op::MaskedFetchAndAdd { .. } => WORD_BYTES,
        }
    }

    /// Part of the buffer that receives what the verb brings.
    #[inline]
    pub fn result(&self) -> Buffer {
        match self.op {
            Op::MaskedCompareAndSwap => self.local.prefix(WORD_BYTES),
            _ => self.local,
        }
    }

    /// The verb's kind.
    #[inline]
    pub fn kind(&self) -> VerbKind {
        match self.op {
            Op::Read | Op::ReadStable => VerbKind::Read,
            Op::Write | Op::WriteWord { .. } => VerbKind::Write,
            Op::CompareAndSwap { .. } | Op::MaskedCompareAndSwap => VerbKind::CompareAndSwap,
            Op::FetchAndAdd { .. } | Op::MaskedFetchAndAdd { .. } => VerbKind::FetchAndAdd,
        }
    }

    #[inline]
    fn goes_to(&self, node: NodeId) -> bool {
        self.addr.node() == node || self.also.contains(node)
    }

    /// The request as one of its nodes gets it.
    #[inline]
    fn on(&self, node: NodeId) -> Self {
        Self { addr: self.addr.on(node), also: NodeSet::EMPTY, ..*self }
    }

    /// Index of the verb's first word in a region of `region_bytes` with these rights.
    ///
    /// # Errors
    /// The error that a target answers if the verb is misaligned, out of bounds or not allowed.
    #[inline]
    pub(crate) fn first_word(&self, region_bytes: u64, rights: Rights) -> Result<usize, VerbError> {
        first_word(self.addr.offset(), self.bytes() as u64, self.kind(), region_bytes, rights)
    }
}

/// Index of the first word that a verb touches in a region of `region_bytes` with these rights.
///
/// # Errors
/// The error that a target answers if the verb is misaligned, out of bounds or not allowed.
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

/// Reason why a verb did not complete. Each variant's text begins with what is known of its effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbError {
    /// Not applied: the address leaves the region, or no such region is registered.
    #[error("the access leaves every region of the node")]
    OutOfBounds,
    /// Not applied: address and length must be multiples of eight.
    #[error("the access is not aligned to eight bytes")]
    Misaligned,
    /// Not applied: the region does not grant this kind of access.
    #[error("the region does not allow this access")]
    AccessDenied,
    /// Not applied, and never will be: the issuing node has been expelled and fenced (H2).
    #[error("this node has been fenced")]
    Revoked,
    /// Not applied: an earlier verb broke the connection, which has not been re-made.
    #[error("the connection is broken")]
    Broken,
    /// Unknown: an earlier verb on the same connection failed while this one was in flight (H24).
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
    /// Whether the verb may have taken effect, or may still do so.
    pub fn outcome_unknown(self) -> bool {
        matches!(self, Self::Flushed | Self::Unreachable | Self::TimedOut)
    }
}

/// The first failure on one connection; no later verb of the batch to that node completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The node at the other end.
    pub node: NodeId,
    /// Index of the verb's request in its batch.
    pub verb: usize,
    /// The error of that verb.
    pub error: VerbError,
}

/// Optional abilities of a back end beyond the common contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// [`Op::ReadStable`] returns words that were all current at one moment. Where this is false,
    /// it is a plain READ.
    pub stable_reads: bool,
    /// [`Op::MaskedCompareAndSwap`] and [`Op::MaskedFetchAndAdd`].
    pub masked_atomics: bool,
    /// Atomics on 16-byte operands.
    pub wide_atomics: bool,
    /// The back end takes requests for several nodes ([`WorkRequest::also`]).
    pub several_nodes: bool,
}

/// A list of verbs and the buffers that they use. It has one owner at a time: the coordinator while
/// building it and after completion, the back end in between.
#[derive(Default)]
pub struct Work {
    requests: Vec<WorkRequest>,
    buffers: Buffers,
    failures: Vec<Failure>,
    /// Verbs of the batch, counted while it is built; each copy of a WRITE counts.
    counted: VerbCounters,
    /// Nodes that the verbs go to, by the low bits of their numbers.
    nodes: NodeSet,
    /// Whether a request goes to several nodes.
    several_nodes: bool,
    /// Empty; the place for the requests once they are split by node.
    spare: Vec<WorkRequest>,
}

/// The local side of a batch: the source of WRITEs and the destination of all other verbs.
#[derive(Default)]
pub struct Buffers {
    chunks: Vec<Chunk>,
    /// Words used in the last chunk.
    used_words: usize,
}

impl Buffers {
    /// The contents of a buffer.
    #[inline]
    pub fn words(&self, buffer: Buffer) -> &[u64] {
        let first = usize::from(buffer.first);
        &self.chunks[usize::from(buffer.chunk)][first..first + usize::from(buffer.words)]
    }

    /// The contents of a buffer, to be filled.
    #[inline]
    pub fn words_mut(&mut self, buffer: Buffer) -> &mut [u64] {
        let first = usize::from(buffer.first);
        &mut self.chunks[usize::from(buffer.chunk)][first..first + usize::from(buffer.words)]
    }

    /// Operands of a masked compare-and-swap.
    #[inline]
    fn masked_swap(&self, buffer: Buffer) -> MaskedSwap {
        let words = self.words(buffer).first_chunk().expect("they were staged together");
        MaskedSwap::of_words(*words)
    }

    /// Address of a buffer, and the mapping that contains it.
    #[cfg(feature = "rdma")]
    #[inline]
    fn place(
        &self,
        buffer: Buffer,
    ) -> (&std::sync::Arc<crate::contract::region::Memory>, *const u64) {
        (self.chunks[usize::from(buffer.chunk)].memory(), self.words(buffer).as_ptr())
    }

    /// A buffer of `words` words, unless the current chunk has too few left.
    #[inline]
    fn reserve(&mut self, words: usize) -> Option<Buffer> {
        let end = self.used_words + words;
        if end > CHUNK_WORDS || self.chunks.is_empty() {
            return None;
        }
        let first = std::mem::replace(&mut self.used_words, end) as u16;
        Some(Buffer { chunk: (self.chunks.len() - 1) as u16, first, words: words as u16 })
    }

    /// A buffer of `words` words in the next chunk.
    #[cold]
    fn reserve_in(&mut self, chunk: Chunk, words: usize) -> Buffer {
        assert!(words <= CHUNK_WORDS, "a buffer holds at most {MAX_VERB_BYTES} bytes");
        self.chunks.push(chunk);
        self.used_words = 0;
        self.reserve(words).expect("a chunk holds it")
    }

    /// Whether the buffer was reserved here.
    #[inline]
    fn holds(&self, buffer: Buffer) -> bool {
        let (chunk, end) = (usize::from(buffer.chunk), usize::from(buffer.first + buffer.words));
        let in_last = chunk + 1 == self.chunks.len() && end <= self.used_words;
        in_last || chunk + 1 < self.chunks.len()
    }
}

impl Work {
    /// The verbs in posting order.
    #[inline]
    pub fn requests(&self) -> &[WorkRequest] {
        &self.requests
    }

    /// The contents of a buffer.
    #[inline]
    pub fn words(&self, buffer: Buffer) -> &[u64] {
        self.buffers.words(buffer)
    }

    /// The contents of a buffer, to be filled.
    #[inline]
    pub fn words_mut(&mut self, buffer: Buffer) -> &mut [u64] {
        self.buffers.words_mut(buffer)
    }

    /// Operands of a masked compare-and-swap that has not been carried out.
    #[inline]
    pub(crate) fn masked_swap(&self, buffer: Buffer) -> MaskedSwap {
        self.buffers.masked_swap(buffer)
    }

    /// Address of a buffer, and the mapping that contains it, for a NIC.
    #[cfg(feature = "rdma")]
    #[inline]
    pub(crate) fn place(
        &self,
        buffer: Buffer,
    ) -> (&std::sync::Arc<crate::contract::region::Memory>, *const u64) {
        self.buffers.place(buffer)
    }

    /// Finds the words that each verb moves, for a back end whose initiator carries verbs out
    /// itself: appends them to `found`, or [`Words::NONE`] where `find` refuses the verb. Once it
    /// has refused one, it must refuse all to that node.
    #[inline]
    pub(crate) fn resolve<'m>(
        &mut self,
        found: &mut Vec<Words<'m>>,
        mut find: impl FnMut(RemoteAddr, usize, VerbKind) -> Result<Words<'m>, VerbError>,
    ) {
        let Self { requests, failures, .. } = self;
        for (verb, request) in requests.iter().enumerate() {
            let (bytes, kind) = (request.bytes(), request.kind());
            let (mut addr, mut further) = (request.addr, request.also);
            loop {
                found.push(find(addr, bytes, kind).unwrap_or_else(|error| {
                    add_first(failures, Failure { node: addr.node(), verb, error });
                    Words::NONE
                }));
                let Some(node) = further.take_first() else { break };
                addr = addr.on(node);
            }
        }
    }

    /// Carries out all verbs in order, each on the words that [`Work::resolve`] has found for it.
    #[inline]
    pub(crate) fn carry_out<'m>(&mut self, mut found: impl Iterator<Item = Words<'m>>) {
        let Self { requests, buffers, .. } = self;
        let mut next = || found.next().expect("each verb was resolved");
        for request in requests {
            let local = request.local;
            match request.op {
                Op::Read => next().read(buffers.words_mut(local)),
                Op::ReadStable => next().read_stable(buffers.words_mut(local)),
                Op::Write => {
                    let words = buffers.words(local);
                    next().write(words);
                    request.also.into_iter().for_each(|_| next().write(words));
                }
                Op::WriteWord { value } => {
                    next().write_one(value);
                    request.also.into_iter().for_each(|_| next().write_one(value));
                }
                Op::CompareAndSwap { expected, new } => {
                    let held = &mut buffers.words_mut(local)[0];
                    next().compare_and_swap(expected, new, held);
                }
                Op::FetchAndAdd { addend } => {
                    next().fetch_and_add(addend, &mut buffers.words_mut(local)[0]);
                }
                Op::MaskedCompareAndSwap => {
                    let swap = buffers.masked_swap(local);
                    let held = &mut buffers.words_mut(local)[0];
                    next().update(|old| swap.applied_to(old), held);
                }
                Op::MaskedFetchAndAdd { addend, boundary } => {
                    let held = &mut buffers.words_mut(local)[0];
                    next().update(|old| Some(masked_sum(old, addend, boundary)), held);
                }
            }
        }
    }

    /// Verbs of the batch by kind, and a doorbell for each connection; only before it is posted.
    #[inline]
    pub(crate) fn count(&mut self) -> &VerbCounters {
        self.counted.doorbells = self.nodes.len() as u64;
        &self.counted
    }

    /// Number of verbs; each copy of a WRITE to several nodes counts.
    #[inline]
    pub fn verb_count(&self) -> usize {
        self.counted.verbs() as usize
    }

    /// Replaces each request for several nodes by one for each of them. All requests are grouped by
    /// node then; those to one node keep their order.
    pub(crate) fn split_by_node(&mut self) {
        if !self.several_nodes {
            return;
        }
        let mut apart = std::mem::take(&mut self.spare);
        for node in self.nodes {
            for request in &self.requests {
                if request.goes_to(node) {
                    apart.push(request.on(node));
                }
            }
        }
        // What is left goes to nodes that no set holds.
        let others = |request: &&WorkRequest| request.addr.node().0 >= NodeSet::LIMIT;
        apart.extend(self.requests.iter().filter(others));
        debug_assert_eq!(apart.len(), self.verb_count(), "every verb is there once");
        self.spare = std::mem::replace(&mut self.requests, apart);
        self.spare.clear();
        self.several_nodes = false;
    }

    /// Copies the results of READs and atomics into the buffers of the `verbs` verbs to `node` from
    /// request `first` on. `results` are back to back, and as long as the buffers together.
    #[cfg(feature = "tcp")]
    #[inline]
    pub(crate) fn scatter(
        &mut self,
        node: NodeId,
        first: usize,
        verbs: usize,
        mut results: &[u64],
    ) {
        let Self { requests, buffers, .. } = self;
        let of_node = requests[first..].iter().filter(|request| request.addr.node() == node);
        for request in of_node.take(verbs).filter(|request| request.kind() != VerbKind::Write) {
            let into = buffers.words_mut(request.result());
            let (mine, rest) = results.split_at(into.len());
            into.copy_from_slice(mine);
            results = rest;
        }
    }

    /// Failed verbs, at most one entry a node.
    #[inline]
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// Records that `verb` was the first to fail on its connection.
    pub fn fail(&mut self, verb: usize, error: VerbError) {
        let node = self.requests[verb].addr.node();
        debug_assert!(!self.has_failed(node), "one failure a node");
        self.failures.push(Failure { node, verb, error });
    }

    /// Whether a verb of this batch to `node` has failed.
    #[inline]
    pub fn has_failed(&self, node: NodeId) -> bool {
        self.failures.iter().any(|failure| failure.node == node)
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, addr: RemoteAddr, op: Op, local: Buffer) {
        let staged = self.buffers.holds(local) || local.words == 0;
        assert!(staged, "the buffer belongs to another batch");
        let request = WorkRequest { addr, op, local, also: NodeSet::EMPTY };
        self.counted.count_verbs(request.kind(), 1, request.bytes());
        self.nodes = self.nodes.or(NodeSet::of_low_bits(addr.node()));
        self.requests.push(request);
    }

    /// Adds a WRITE to byte `offset` of `region` on each of `nodes`.
    #[inline]
    pub(crate) fn push_all(
        &mut self,
        mut nodes: NodeSet,
        (region, offset): (RegionId, u64),
        op: Op,
        local: Buffer,
    ) {
        let all = nodes;
        let Some(first) = nodes.take_first() else { return };
        let copies = 1 + nodes.len();
        let staged = self.buffers.holds(local) || local.words == 0;
        assert!(staged, "the buffer belongs to another batch");
        let addr = RemoteAddr::new(first, region, offset);
        let request = WorkRequest { addr, op, local, also: nodes };
        debug_assert_eq!(request.kind(), VerbKind::Write, "only a WRITE has copies");
        self.counted.count_verbs(VerbKind::Write, copies as u64, copies * request.bytes());
        self.nodes = self.nodes.or(all);
        self.several_nodes |= copies > 1;
        self.requests.push(request);
    }

    /// A buffer of `words` words; asks `new_chunk` when the current chunk is used up.
    #[inline]
    pub(crate) fn reserve(&mut self, words: usize, new_chunk: impl FnOnce() -> Chunk) -> Buffer {
        let buffer = self.buffers.reserve(words);
        buffer.unwrap_or_else(|| self.buffers.reserve_in(new_chunk(), words))
    }

    /// An empty buffer, for requests that carry their data themselves.
    #[inline]
    pub(crate) const fn no_buffer() -> Buffer {
        Buffer { chunk: 0, first: 0, words: 0 }
    }

    /// Empties the list for reuse. Returns whether it has more chunks than the one that it keeps.
    #[inline]
    pub(crate) fn clear(&mut self) -> bool {
        self.requests.clear();
        self.failures.clear();
        self.counted = VerbCounters::default();
        self.nodes = NodeSet::EMPTY;
        self.several_nodes = false;
        self.buffers.used_words = 0;
        self.buffers.chunks.len() > 1
    }

    /// Takes out the chunks beyond the first; only after `clear`.
    pub(crate) fn spare_chunks(&mut self) -> impl Iterator<Item = Chunk> {
        self.buffers.chunks.drain(1..)
    }
}

/// Adds a failure, unless an earlier verb to its node has failed.
#[cold]
fn add_first(failures: &mut Vec<Failure>, failure: Failure) {
    if !failures.iter().any(|earlier| earlier.node == failure.node) {
        failures.push(failure);
    }
}

const _: () = assert!(CHUNK_WORDS <= u16::MAX as usize && LINE_BYTES.is_multiple_of(WORD_BYTES));
