//! The local side of a batch: buffers in chunks of the lane's arena.

use crate::contract::masked::MaskedSwap;
use crate::contract::region::{Chunk, LINE_BYTES, WORD_BYTES};
use crate::contract::wide::{WideSwap, value_of};

/// Words in one arena chunk.
pub const CHUNK_WORDS: usize = 2048;
/// Largest READ or WRITE in bytes: a buffer never spans chunks.
pub const MAX_VERB_BYTES: usize = CHUNK_WORDS * WORD_BYTES;

/// A buffer inside the chunks of one [`Work`](super::Work).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    chunk: u16,
    first: u16,
    words: u16,
}

impl Buffer {
    /// A buffer without words, for a verb without a result.
    pub const EMPTY: Self = Self { chunk: 0, first: 0, words: 0 };

    /// Length in bytes.
    #[inline]
    pub fn bytes(self) -> usize {
        usize::from(self.words) * WORD_BYTES
    }

    /// The first `bytes` of the buffer.
    ///
    /// # Panics
    /// If the buffer is shorter than `bytes`, or `bytes` is not a multiple of eight.
    #[inline]
    #[must_use]
    pub fn prefix(self, bytes: usize) -> Self {
        assert!(bytes <= self.bytes() && bytes.is_multiple_of(WORD_BYTES), "not a prefix");
        Self { words: (bytes / WORD_BYTES) as u16, ..self }
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.words == 0
    }
}

/// The local side of a batch: the source of WRITEs and the destination of other verbs.
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
    pub(super) fn masked_swap(&self, buffer: Buffer) -> MaskedSwap {
        let words = self.words(buffer).first_chunk().expect("they were staged together");
        MaskedSwap::of_words(*words)
    }

    /// Operands of a compare-and-swap of 16 bytes.
    pub(super) fn wide_swap(&self, buffer: Buffer) -> WideSwap {
        let words = self.words(buffer).first_chunk().expect("they were staged together");
        WideSwap::of_words(*words)
    }

    /// Summand and boundary of a fetch-and-add of 16 bytes.
    pub(super) fn wide_summands(&self, buffer: Buffer) -> (u128, u128) {
        let words = self.words(buffer).first_chunk().expect("they were staged together");
        let [low, high, boundary_low, boundary_high] = *words;
        (value_of([low, high]), value_of([boundary_low, boundary_high]))
    }

    /// Address of a buffer, and the mapping that contains it.
    #[cfg(feature = "rdma")]
    #[inline]
    pub(super) fn place(
        &self,
        buffer: Buffer,
    ) -> (&std::sync::Arc<crate::contract::region::Memory>, *const u64) {
        (self.chunks[usize::from(buffer.chunk)].memory(), self.words(buffer).as_ptr())
    }

    /// Reserves a buffer of `words` words; `None` if the current chunk has too few words left.
    #[inline]
    pub(super) fn reserve(&mut self, words: usize) -> Option<Buffer> {
        let end = self.used_words + words;
        if end > CHUNK_WORDS || self.chunks.is_empty() {
            return None;
        }
        let first = std::mem::replace(&mut self.used_words, end) as u16;
        Some(Buffer { chunk: (self.chunks.len() - 1) as u16, first, words: words as u16 })
    }

    /// Reserves a buffer of `words` words in a new chunk.
    #[cold]
    pub(super) fn reserve_in(&mut self, chunk: Chunk, words: usize) -> Buffer {
        assert!(words <= CHUNK_WORDS, "a buffer holds at most {MAX_VERB_BYTES} bytes");
        self.chunks.push(chunk);
        self.used_words = 0;
        self.reserve(words).expect("a chunk holds it")
    }

    /// Returns whether the buffer was reserved in these chunks.
    #[inline]
    pub(super) fn holds(&self, buffer: Buffer) -> bool {
        let (chunk, end) = (usize::from(buffer.chunk), usize::from(buffer.first + buffer.words));
        let in_last = chunk + 1 == self.chunks.len() && end <= self.used_words;
        in_last || chunk + 1 < self.chunks.len()
    }

    /// Releases every buffer. Returns whether `spare_chunks` has chunks to take out.
    #[inline]
    pub(super) fn clear(&mut self) -> bool {
        self.used_words = 0;
        self.chunks.len() > 1
    }

    /// Takes out the chunks beyond the first; to be called only after `clear`.
    pub(super) fn spare_chunks(&mut self) -> impl Iterator<Item = Chunk> {
        self.chunks.drain(1..)
    }
}

const _: () = assert!(CHUNK_WORDS <= u16::MAX as usize && LINE_BYTES.is_multiple_of(WORD_BYTES));
