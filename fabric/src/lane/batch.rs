//! Batches from building to results: [`Batch`], [`Posted`], [`Completed`].

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::{Core, Waiting};
use crate::contract::ids::{NodeSet, RegionId, RemoteAddr};
use crate::contract::masked::MaskedSwap;
use crate::contract::region::WORD_BYTES;
use crate::contract::verbs::{Buffer, Failure, Op, Work};
use crate::contract::wide::{SUMMANDS_WORDS, WIDE_BYTES, WideSwap, words_of};

/// A batch owned by the coordinator. Returns to the lane's pool when dropped.
struct Owned {
    /// `None` after the batch was posted or put back.
    parts: Option<(Rc<Core>, Box<Work>)>,
}

impl Owned {
    #[inline]
    fn parts_mut(&mut self) -> (&Core, &mut Work) {
        let (core, work) = self.parts.as_mut().expect("taken only at the end");
        (core, work)
    }

    #[inline]
    fn work(&self) -> &Work {
        &self.parts.as_ref().expect("taken only at the end").1
    }
}

impl Drop for Owned {
    /// Not inlined: otherwise every `await` of a batch would contain a copy.
    #[inline(never)]
    fn drop(&mut self) {
        if let Some((core, work)) = self.parts.take() {
            core.put_back(work);
        }
    }
}

/// Verbs under construction, to one or more nodes.
pub struct Batch {
    owned: Owned,
}

impl Batch {
    #[inline]
    pub(super) fn new(core: Rc<Core>, work: Box<Work>) -> Self {
        Self { owned: Owned { parts: Some((core, work)) } }
    }

    /// Adds a READ of `bytes` at `addr`; the returned buffer holds the data after completion.
    ///
    /// # Panics
    /// If `bytes` is not a multiple of eight or exceeds [`crate::contract::verbs::MAX_VERB_BYTES`].
    #[inline]
    pub fn read(&mut self, addr: RemoteAddr, bytes: usize) -> Buffer {
        self.push_with_buffer(addr, Op::Read, bytes)
    }

    /// Like [`Batch::read`], but back ends whose reads can be torn copy until two passes agree
    /// (H14).
    ///
    /// # Panics
    /// See `read`.
    #[inline]
    pub fn read_stable(&mut self, addr: RemoteAddr, bytes: usize) -> Buffer {
        self.push_with_buffer(addr, Op::ReadStable, bytes)
    }

    /// Reserves a buffer to fill through [`Batch::words_mut`] and then write, possibly to several
    /// replicas. The initial contents are arbitrary.
    ///
    /// # Panics
    /// See `read`.
    #[inline]
    pub fn stage(&mut self, bytes: usize) -> Buffer {
        assert!(bytes.is_multiple_of(WORD_BYTES), "buffers are whole words");
        let (core, work) = self.owned.parts_mut();
        work.reserve(bytes / WORD_BYTES, || core.new_chunk())
    }

    /// The contents of a staged buffer.
    #[inline]
    pub fn words_mut(&mut self, buffer: Buffer) -> &mut [u64] {
        self.owned.parts_mut().1.words_mut(buffer)
    }

    /// Adds a WRITE of a staged buffer to `addr`.
    ///
    /// # Panics
    /// If the buffer was not staged in the batch.
    #[inline]
    pub fn write(&mut self, addr: RemoteAddr, from: Buffer) {
        self.owned.parts_mut().1.push(addr, Op::Write, from);
    }

    /// Adds a WRITE of a staged buffer to byte `offset` of `region` on every node of `nodes`: one
    /// verb per node, in posting order on its connection.
    ///
    /// # Panics
    /// If the buffer was not staged in the batch, or the offset exceeds [`RemoteAddr::MAX_OFFSET`].
    #[inline]
    pub fn write_all(&mut self, nodes: NodeSet, region: RegionId, offset: u64, from: Buffer) {
        self.owned.parts_mut().1.push_all(nodes, (region, offset), Op::Write, from);
    }

    /// Adds a WRITE of one word, carried inside the request.
    #[inline]
    pub fn write_word(&mut self, addr: RemoteAddr, value: u64) {
        self.owned.parts_mut().1.push(addr, Op::WriteWord { value }, Work::no_buffer());
    }

    /// Adds a WRITE of one word to byte `offset` of `region` on every node of `nodes`, like
    /// [`Batch::write_all`].
    ///
    /// # Panics
    /// If the offset exceeds [`RemoteAddr::MAX_OFFSET`].
    #[inline]
    pub fn write_word_all(&mut self, nodes: NodeSet, region: RegionId, offset: u64, value: u64) {
        let (op, at) = (Op::WriteWord { value }, (region, offset));
        self.owned.parts_mut().1.push_all(nodes, at, op, Work::no_buffer());
    }

    /// Adds a compare-and-swap; the buffer receives the remote word's previous value.
    #[inline]
    pub fn compare_and_swap(&mut self, addr: RemoteAddr, expected: u64, new: u64) -> Buffer {
        self.push_with_buffer(addr, Op::CompareAndSwap { expected, new }, WORD_BYTES)
    }

    /// Adds a fetch-and-add; the buffer receives the remote word's previous value.
    #[inline]
    pub fn fetch_and_add(&mut self, addr: RemoteAddr, addend: u64) -> Buffer {
        self.push_with_buffer(addr, Op::FetchAndAdd { addend }, WORD_BYTES)
    }

    /// Adds a masked compare-and-swap; the buffer receives the remote word's previous value.
    ///
    /// # Panics
    /// If the back end has no masked atomics ([`Capabilities::masked_atomics`]).
    ///
    /// [`Capabilities::masked_atomics`]: crate::contract::verbs::Capabilities::masked_atomics
    pub fn masked_compare_and_swap(&mut self, addr: RemoteAddr, swap: MaskedSwap) -> Buffer {
        self.assert_masked();
        let staged = self.stage(MaskedSwap::WORDS * WORD_BYTES);
        self.words_mut(staged).copy_from_slice(&swap.to_words());
        self.owned.parts_mut().1.push(addr, Op::MaskedCompareAndSwap, staged);
        staged.prefix(WORD_BYTES)
    }

    /// Adds a masked fetch-and-add: nothing is carried beyond a bit of `boundary`. The buffer
    /// receives the remote word's previous value.
    ///
    /// # Panics
    /// As [`Batch::masked_compare_and_swap`].
    pub fn masked_fetch_and_add(&mut self, addr: RemoteAddr, addend: u64, boundary: u64) -> Buffer {
        self.assert_masked();
        self.push_with_buffer(addr, Op::MaskedFetchAndAdd { addend, boundary }, WORD_BYTES)
    }

    /// Adds a masked compare-and-swap of 16 bytes, at an address that is a multiple of sixteen. The
    /// buffer receives the previous 16 bytes, low word first ([`value_of`]).
    ///
    /// # Panics
    /// If the back end has no 16-byte atomics ([`Capabilities::wide_atomics`]).
    ///
    /// [`value_of`]: crate::contract::wide::value_of
    /// [`Capabilities::wide_atomics`]: crate::contract::verbs::Capabilities::wide_atomics
    pub fn wide_compare_and_swap(&mut self, addr: RemoteAddr, swap: WideSwap) -> Buffer {
        self.push_wide(addr, Op::WideCompareAndSwap, &swap.to_words())
    }

    /// Adds a masked fetch-and-add of 16 bytes, at an address that is a multiple of sixteen:
    /// nothing is carried beyond a bit of `boundary`. The buffer receives the previous 16 bytes,
    /// low word first.
    ///
    /// # Panics
    /// As [`Batch::wide_compare_and_swap`].
    pub fn wide_fetch_and_add(&mut self, addr: RemoteAddr, addend: u128, boundary: u128) -> Buffer {
        let ([a, b], [c, d]) = (words_of(addend), words_of(boundary));
        let summands: [u64; SUMMANDS_WORDS] = [a, b, c, d];
        self.push_wide(addr, Op::WideFetchAndAdd, &summands)
    }

    /// Adds a wide atomic with `operands`; the result overwrites the first 16 bytes of operands.
    fn push_wide(&mut self, addr: RemoteAddr, op: Op, operands: &[u64]) -> Buffer {
        let (core, _) = self.owned.parts_mut();
        assert!(core.capabilities.wide_atomics, "this fabric has no 16-byte atomics");
        let staged = self.stage(operands.len() * WORD_BYTES);
        self.words_mut(staged).copy_from_slice(operands);
        self.owned.parts_mut().1.push(addr, op, staged);
        staged.prefix(WIDE_BYTES)
    }

    fn assert_masked(&mut self) {
        let (core, _) = self.owned.parts_mut();
        assert!(core.capabilities.masked_atomics, "this fabric has no masked atomics");
    }

    /// Number of verbs in the batch.
    pub fn verb_count(&self) -> usize {
        self.owned.work().verb_count()
    }

    /// Posts the batch now; the future completes after the last verb. An empty batch completes at
    /// once.
    #[inline]
    pub fn post(mut self) -> Posted {
        let (core, work) = self.owned.parts.take().expect("taken only at the end");
        // `self` is empty now; forgetting it saves the call of `drop`.
        std::mem::forget(self);
        let token = core.post(work);
        Posted { waiting: Waiting::new(core, token) }
    }

    #[inline]
    fn push_with_buffer(&mut self, addr: RemoteAddr, op: Op, bytes: usize) -> Buffer {
        let buffer = self.stage(bytes);
        self.owned.parts_mut().1.push(addr, op, buffer);
        buffer
    }
}

/// A batch in flight, to be polled by a task of the lane's executor.
#[must_use = "a posted batch is in flight; await it to learn what became of it"]
pub struct Posted {
    waiting: Waiting,
}

impl Future for Posted {
    type Output = BatchResult;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<BatchResult> {
        let Some(work) = self.waiting.poll_batch() else { return Poll::Pending };
        let parts = self.waiting.core.take().map(|core| (core, work));
        Poll::Ready(Completed { owned: Owned { parts } }.into_result())
    }
}

/// Result of a batch: `Ok` when every verb completed.
pub type BatchResult = Result<Completed, BatchError>;

/// At least one verb of a batch did not complete; [`BatchError::failures`] has the details.
#[derive(Debug, thiserror::Error)]
#[error("verb {} to {:?}: {}", self.first().verb, self.first().node, self.first().error)]
pub struct BatchError {
    failures: Vec<Failure>,
}

impl BatchError {
    /// Failures, one entry per node with a failed verb.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// The first failure that the back end reported.
    pub fn first(&self) -> Failure {
        self.failures[0]
    }
}

/// A completed batch. Dropping it returns the buffers to the pool.
pub struct Completed {
    owned: Owned,
}

impl Completed {
    #[inline]
    fn into_result(self) -> BatchResult {
        if self.failures().is_empty() { Ok(self) } else { Err(self.into_error()) }
    }

    #[cold]
    fn into_error(self) -> BatchError {
        BatchError { failures: self.failures().to_vec() }
    }
}

impl Deref for Completed {
    type Target = Work;
    #[inline]
    fn deref(&self) -> &Work {
        self.owned.work()
    }
}

impl std::fmt::Debug for Completed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.requests()).finish()
    }
}
