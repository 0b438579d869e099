//! An index bucket: seven CVTs and the offset of the next bucket in the chain.
//!
//! ```text
//! CVT 0 | CVT 1 | ... | CVT 6 | zero padding to a multiple of 64 bytes, less 8 | overflow word
//! ```
//! The overflow word is the bucket's last, so that it stands at the same place from the end
//! however many cells a CVT has. It is written once, from 0 to an offset, under the lock of the
//! chain's first bucket; a bucket never leaves its chain, and a CVT never moves (H13).

use super::cvt::cvt_words;
use super::{LINE_BYTES, WORD_BYTES};

/// Number of CVTs in a bucket.
pub const BUCKET_SLOTS: usize = 7;

/// Number of words of a bucket of CVTs with `cells` cells.
#[inline]
pub const fn bucket_words(cells: usize) -> usize {
    let used = (BUCKET_SLOTS * cvt_words(cells) + 1) * WORD_BYTES;
    used.next_multiple_of(LINE_BYTES) / WORD_BYTES
}

/// Bytes from the start of a bucket to its CVT `slot`.
#[inline]
pub const fn slot_offset(cells: usize, slot: usize) -> u64 {
    (slot * cvt_words(cells) * WORD_BYTES) as u64
}

/// Bytes from the start of a bucket to its overflow word.
#[inline]
pub const fn overflow_offset(cells: usize) -> u64 {
    ((bucket_words(cells) - 1) * WORD_BYTES) as u64
}

const _: () = assert!(bucket_words(2) * WORD_BYTES == 512, "no padding at N = 2");
const _: () = assert!(bucket_words(3) * WORD_BYTES == 704);
const _: () = assert!(bucket_words(8) * WORD_BYTES == 1536);
const _: () = assert!(overflow_offset(2) == slot_offset(2, BUCKET_SLOTS));

/// A bucket as it was read: a view of its words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket<'a> {
    words: &'a [u64],
    cells: usize,
}

impl<'a> Bucket<'a> {
    /// Bucket in `words`, with CVTs of `cells` cells.
    ///
    /// # Panics
    /// If there are not [`bucket_words`] of them.
    #[inline]
    pub fn new(words: &'a [u64], cells: usize) -> Self {
        assert_eq!(words.len(), bucket_words(cells), "a bucket of {cells}-cell CVTs");
        Self { words, cells }
    }

    /// Words of every slot, in order.
    #[inline]
    pub fn slots(self) -> impl Iterator<Item = &'a [u64]> {
        self.words.chunks_exact(cvt_words(self.cells)).take(BUCKET_SLOTS)
    }

    /// Offset of the next bucket in the chain, in the group's region; `None` at the end.
    #[inline]
    pub fn overflow(self) -> Option<u64> {
        let offset = self.words[self.words.len() - 1];
        (offset != 0).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::cvt::{MAX_CELLS, MIN_CELLS};

    #[test]
    fn slots_and_overflow_lie_where_the_offsets_say() {
        for cells in MIN_CELLS..=MAX_CELLS {
            let mut words: Vec<u64> = (0..bucket_words(cells) as u64).collect();
            let bucket = Bucket::new(&words, cells);
            assert_eq!(bucket.slots().count(), BUCKET_SLOTS);
            for (slot, found) in bucket.slots().enumerate() {
                assert_eq!(found[0] * WORD_BYTES as u64, slot_offset(cells, slot));
            }
            let overflow = overflow_offset(cells);
            assert_eq!(bucket.overflow(), Some(overflow / WORD_BYTES as u64));
            assert!(overflow >= slot_offset(cells, BUCKET_SLOTS));
            let last = words.len() - 1;
            words[last] = 0;
            assert_eq!(Bucket::new(&words, cells).overflow(), None);
        }
    }
}
