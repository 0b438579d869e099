//! A batch under construction, in flight or complete: requests, buffers, failures.

use super::{Buffer, Buffers, Failure, Op, VerbError, VerbKind, WorkRequest};
use crate::contract::counters::VerbCounters;
use crate::contract::ids::{NodeId, NodeSet, RegionId, RemoteAddr};
use crate::contract::masked::{MaskedSwap, masked_sum};
use crate::contract::region::{Chunk, Words};
use crate::contract::wide::WideSwap;

/// A list of verbs and their buffers, with one owner at a time: the coordinator while building the
/// batch and after completion, the back end in between.
#[derive(Default)]
pub struct Work {
    requests: Vec<WorkRequest>,
    buffers: Buffers,
    failures: Vec<Failure>,
    /// Counts of the batch's verbs, kept up to date while the batch is built; every copy of a WRITE
    /// counts.
    counted: VerbCounters,
    /// Target nodes of the verbs, by the low bits of their numbers.
    nodes: NodeSet,
    /// Whether a request goes to several nodes.
    several_nodes: bool,
    /// Empty; receives the requests when they are split by node.
    spare: Vec<WorkRequest>,
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

    /// Operands of a masked compare-and-swap not yet carried out.
    #[inline]
    pub(crate) fn masked_swap(&self, buffer: Buffer) -> MaskedSwap {
        self.buffers.masked_swap(buffer)
    }

    /// Operands of a compare-and-swap of 16 bytes not yet carried out.
    pub(crate) fn wide_swap(&self, buffer: Buffer) -> WideSwap {
        self.buffers.wide_swap(buffer)
    }

    /// Summand and boundary of a fetch-and-add of 16 bytes not yet carried out.
    pub(crate) fn wide_summands(&self, buffer: Buffer) -> (u128, u128) {
        self.buffers.wide_summands(buffer)
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

    /// Finds the words that every verb moves, for a back end whose initiator carries verbs out
    /// itself. Appends the words to `found`, or [`Words::NONE`] if `find` refuses the verb. After
    /// refusing a verb, `find` must refuse every later verb to the same node.
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

    /// Carries out the verbs in order, on the words found by [`Work::resolve`].
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
                Op::WideCompareAndSwap | Op::WideFetchAndAdd => not_declared(request.op),
            }
        }
    }

    /// Verbs of the batch by kind, and one doorbell per connection; to be called only before
    /// posting.
    #[inline]
    pub(crate) fn count(&mut self) -> &VerbCounters {
        self.counted.doorbells = self.nodes.len() as u64;
        &self.counted
    }

    /// Number of verbs; every copy of a WRITE to several nodes counts.
    #[inline]
    pub fn verb_count(&self) -> usize {
        self.counted.verbs() as usize
    }

    /// Replaces every request for several nodes by one request per node. Afterwards the requests
    /// are grouped by node; requests to one node keep their order.
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
        // The remaining requests go to nodes beyond the limit of a set.
        let others = |request: &&WorkRequest| request.addr.node().0 >= NodeSet::LIMIT;
        apart.extend(self.requests.iter().filter(others));
        debug_assert_eq!(apart.len(), self.verb_count(), "every verb is there once");
        self.spare = std::mem::replace(&mut self.requests, apart);
        self.spare.clear();
        self.several_nodes = false;
    }

    /// Copies the results of READs and atomics into the buffers of the `verbs` verbs to `node` from
    /// request `first` on. `results` are contiguous, with the total length of the buffers.
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

    /// Failed verbs, at most one entry per node.
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

    /// Returns whether a verb of the batch to `node` has failed.
    #[inline]
    pub fn has_failed(&self, node: NodeId) -> bool {
        self.failures.iter().any(|failure| failure.node == node)
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, addr: RemoteAddr, op: Op, local: Buffer) {
        let staged = self.buffers.holds(local) || local.is_empty();
        assert!(staged, "the buffer belongs to another batch");
        let request = WorkRequest { addr, op, local, also: NodeSet::EMPTY };
        self.counted.count_verbs(request.kind(), 1, request.bytes());
        self.nodes = self.nodes.or(NodeSet::of_low_bits(addr.node()));
        self.requests.push(request);
    }

    /// Adds a WRITE to byte `offset` of `region` on every node of `nodes`.
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
        let staged = self.buffers.holds(local) || local.is_empty();
        assert!(staged, "the buffer belongs to another batch");
        let addr = RemoteAddr::new(first, region, offset);
        let request = WorkRequest { addr, op, local, also: nodes };
        debug_assert_eq!(request.kind(), VerbKind::Write, "only a WRITE has copies");
        self.counted.count_verbs(VerbKind::Write, copies as u64, copies * request.bytes());
        self.nodes = self.nodes.or(all);
        self.several_nodes |= copies > 1;
        self.requests.push(request);
    }

    /// Reserves a buffer of `words` words; calls `new_chunk` when the current chunk is used up.
    #[inline]
    pub(crate) fn reserve(&mut self, words: usize, new_chunk: impl FnOnce() -> Chunk) -> Buffer {
        let buffer = self.buffers.reserve(words);
        buffer.unwrap_or_else(|| self.buffers.reserve_in(new_chunk(), words))
    }

    /// An empty buffer, for requests that carry their data inline.
    #[inline]
    pub(crate) const fn no_buffer() -> Buffer {
        Buffer::EMPTY
    }

    /// Empties the batch for reuse. Returns whether `spare_chunks` has chunks to take out.
    #[inline]
    pub(crate) fn clear(&mut self) -> bool {
        self.requests.clear();
        self.failures.clear();
        self.counted = VerbCounters::default();
        self.nodes = NodeSet::EMPTY;
        self.several_nodes = false;
        self.buffers.clear()
    }

    /// Takes out the chunks beyond the first; to be called only after `clear`.
    pub(crate) fn spare_chunks(&mut self) -> impl Iterator<Item = Chunk> {
        self.buffers.spare_chunks()
    }
}

/// Panics: a lane has passed a verb to a back end without the capability for the verb.
#[cold]
pub(crate) fn not_declared(op: Op) -> ! {
    unreachable!("a batch refuses what a back end does not declare: {op:?}")
}

/// Adds a failure, unless an earlier verb to the node has failed.
#[cold]
fn add_first(failures: &mut Vec<Failure>, failure: Failure) {
    if !failures.iter().any(|earlier| earlier.node == failure.node) {
        failures.push(failure);
    }
}
