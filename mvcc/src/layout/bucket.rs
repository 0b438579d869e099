//! An index bucket: seven CVTs and the offset of the next bucket in the chain.
//!
//! ```text
//! CVT 0 | CVT 1 | ... | CVT 6 | zero padding to a multiple of 64 bytes, less 8 | overflow word
//! ```
//! The overflow word is the bucket's last, so that it stands at the same place from the end
//! however many cells a CVT has. It is written once, from 0 to an offset, under the lock of the
//! chain's first bucket; a bucket never leaves its chain, and a CVT never moves (H13).

use super::cvt::{Cvt, CvtShape};
use super::{LINE_BYTES, WORD_BYTES};

/// Number of CVTs in a bucket.
pub const BUCKET_SLOTS: usize = 7;

/// Number of words of a bucket of CVTs of this shape.
#[inline]
pub const fn bucket_words(cvt: CvtShape) -> usize {
    let used = (BUCKET_SLOTS * cvt.words() + 1) * WORD_BYTES;
    used.next_multiple_of(LINE_BYTES) / WORD_BYTES
}

/// Bytes from the start of a bucket to its CVT `slot`.
#[inline]
pub const fn slot_offset(cvt: CvtShape, slot: usize) -> u64 {
    (slot * cvt.words() * WORD_BYTES) as u64
}

/// Bytes from the start of a bucket to its overflow word.
#[inline]
pub const fn overflow_offset(cvt: CvtShape) -> u64 {
    ((bucket_words(cvt) - 1) * WORD_BYTES) as u64
}

const _: () = {
    let two = CvtShape::new(2, 0);
    assert!(bucket_words(two) * WORD_BYTES == 512, "no padding at N = 2");
    assert!(bucket_words(CvtShape::new(3, 0)) * WORD_BYTES == 704);
    assert!(bucket_words(CvtShape::new(8, 0)) * WORD_BYTES == 1536);
    assert!(overflow_offset(two) == slot_offset(two, BUCKET_SLOTS));
    assert!(bucket_words(CvtShape::new(2, 8)) * WORD_BYTES == 1408, "with homes of a line");
};

/// A bucket as it was read: a view of its words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket<'a> {
    words: &'a [u64],
    cvt: CvtShape,
}

impl<'a> Bucket<'a> {
    /// Bucket in `words`, with CVTs of this shape.
    ///
    /// # Panics
    /// If there are not [`bucket_words`] of them.
    #[inline]
    pub fn new(words: &'a [u64], cvt: CvtShape) -> Self {
        assert_eq!(words.len(), bucket_words(cvt), "a bucket of {}-cell CVTs", cvt.cells());
        Self { words, cvt }
    }

    /// Words of every slot, in order.
    #[inline]
    pub fn slots(self) -> impl Iterator<Item = &'a [u64]> {
        self.words.chunks_exact(self.cvt.words()).take(BUCKET_SLOTS)
    }

    /// CVT in every slot, used or not, in order.
    #[inline]
    pub fn cvts(self) -> impl Iterator<Item = Cvt<'a>> {
        self.slots().map(move |words| Cvt::new(words, self.cvt))
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
        for (cells, home_words) in (MIN_CELLS..=MAX_CELLS).flat_map(|n| [(n, 0), (n, 11)]) {
            let shape = CvtShape::new(cells, home_words);
            let mut words: Vec<u64> = (0..bucket_words(shape) as u64).collect();
            let bucket = Bucket::new(&words, shape);
            assert_eq!(bucket.cvts().count(), BUCKET_SLOTS);
            for (slot, found) in bucket.cvts().enumerate() {
                assert_eq!(found.words()[0] * WORD_BYTES as u64, slot_offset(shape, slot));
            }
            let overflow = overflow_offset(shape);
            assert_eq!(bucket.overflow(), Some(overflow / WORD_BYTES as u64));
            assert!(overflow >= slot_offset(shape, BUCKET_SLOTS));
            let last = words.len() - 1;
            words[last] = 0;
            assert_eq!(Bucket::new(&words, shape).overflow(), None);
        }
    }
}
