//! An index bucket: seven CVTs and a link to overflow buckets for further rows.
//!
//! ```text
//! CVT 0 | CVT 1 | ... | CVT 6 | zero padding to a multiple of 64 bytes, less 8 | overflow word
//! ```
//! The overflow word is the bucket's last word, so that its distance from the end does not depend
//! on the number of cells of a CVT. The word is written once, from 0 to an [`Overflow`], under the
//! lock of the chain's first bucket; a bucket never leaves its chain, and a CVT never moves (H13).
//!
//! # Chains and fans
//! A full home bucket continues in a single bucket, and each full bucket behind that bucket in a
//! *fan* of [`FAN_OUT`] adjacent buckets, from which a row's key selects one. So the buckets behind
//! a home bucket form a tree, and the chain of a row is one path through the tree: a table with a
//! hundred times its planned number of rows has paths of four or five buckets.

use lotus_fabric::ids::Key;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::cvt::{Cvt, CvtShape};
use super::{LINE_BYTES, WORD_BYTES};

/// Number of CVTs in a bucket.
pub const BUCKET_SLOTS: usize = 7;

/// Number of buckets in a fan.
pub const FAN_OUT: usize = 4;

/// Largest number of buckets behind a home bucket on one path. Each fan divides the rows of a
/// bucket by four, so a longer path takes more than 200 rows with the same name: further inserts
/// are refused. This limit is reached only in simulations of names with few bits.
pub const MAX_BEHIND: u8 = 31;

/// Buckets behind a full one: a single bucket, or a fan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overflow {
    /// Offset of the first bucket, in the group's region.
    first: u64,
    is_fan: bool,
}

impl Overflow {
    const FAN: u64 = 1;

    /// The single bucket at `first`.
    ///
    /// # Panics
    /// If `first` is 0, which ends a chain, or not the offset of a cache line.
    pub const fn bucket(first: u64) -> Self {
        Self::new(first, false)
    }

    /// The fan whose first bucket is at `first`.
    ///
    /// # Panics
    /// As [`Self::bucket`].
    pub const fn fan(first: u64) -> Self {
        Self::new(first, true)
    }

    const fn new(first: u64, is_fan: bool) -> Self {
        assert!(first != 0, "offset 0 ends a chain");
        assert!(first.is_multiple_of(LINE_BYTES as u64), "buckets begin with a cache line");
        Self { first, is_fan }
    }

    /// Reads an overflow word; `None` at the end of a chain.
    #[inline]
    pub const fn decode(word: u64) -> Option<Self> {
        let first = word & !(LINE_BYTES as u64 - 1);
        if first == 0 { None } else { Some(Self { first, is_fan: word & Self::FAN != 0 }) }
    }

    /// Returns the overflow word for these buckets: `fan:1 | zero:5 | offset ÷ 64:34`.
    #[inline]
    pub const fn encode(self) -> u64 {
        self.first | if self.is_fan { Self::FAN } else { 0 }
    }

    /// Whether the buckets form a fan.
    pub const fn is_fan(self) -> bool {
        self.is_fan
    }

    /// Offset of the first bucket.
    pub const fn first(self) -> u64 {
        self.first
    }

    /// Number of buckets.
    pub const fn buckets(self) -> usize {
        if self.is_fan { FAN_OUT } else { 1 }
    }

    /// Offsets of the buckets, with CVTs of this shape.
    pub fn offsets(self, cvt: CvtShape) -> impl Iterator<Item = u64> {
        (0..self.buckets()).map(move |index| self.first + (index * bucket_bytes(cvt)) as u64)
    }

    /// Offset of the bucket in which the chain of `key` continues. The hash that selects the bucket
    /// is seeded with the fan's offset, and is the same on all hosts and in all versions.
    #[inline]
    pub fn bucket_of(self, key: Key, cvt: CvtShape) -> u64 {
        self.first + (self.index_of(key) * bucket_bytes(cvt)) as u64
    }

    /// Index of the bucket in which the chain of `key` continues.
    #[inline]
    pub fn index_of(self, key: Key) -> usize {
        if !self.is_fan {
            return 0;
        }
        xxh3_64_with_seed(&key.0.to_le_bytes(), self.first) as usize % FAN_OUT
    }
}

/// Bytes of a bucket of CVTs of this shape.
#[inline]
pub const fn bucket_bytes(cvt: CvtShape) -> usize {
    bucket_words(cvt) * WORD_BYTES
}

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
    /// If the number of words is not [`bucket_words`].
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

    /// Buckets behind this bucket, in the group's region; `None` at the end of a chain.
    #[inline]
    pub fn overflow(self) -> Option<Overflow> {
        Overflow::decode(self.words[self.words.len() - 1])
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
            assert!(overflow >= slot_offset(shape, BUCKET_SLOTS));
            let last = words.len() - 1;
            assert_eq!(overflow, (last * WORD_BYTES) as u64);
            for (word, named) in [
                (0, None),
                (4096, Some(Overflow::bucket(4096))),
                (4096 | 1, Some(Overflow::fan(4096))),
            ] {
                words[last] = word;
                assert_eq!(Bucket::new(&words, shape).overflow(), named);
                assert_eq!(named.map_or(0, Overflow::encode), word);
            }
        }
    }

    /// Keys that share a bucket of one fan are spread evenly by the next.
    #[test]
    fn every_fan_spreads_keys_over_all_its_buckets() {
        const KEYS: usize = 64 * 100;
        let shape = CvtShape::new(2, 0);
        let fans = [1, 2, 3, 1 << 20].map(|line| Overflow::fan(line << 18));
        for (one, other) in [(0, 1), (1, 2), (0, 3)].map(|(a, b)| (fans[a], fans[b])) {
            let mut counts = [[0; FAN_OUT]; FAN_OUT];
            for number in 0..KEYS as u64 {
                let key = Key(number << 12);
                counts[one.index_of(key)][other.index_of(key)] += 1;
                let index = one.offsets(shape).position(|at| at == one.bucket_of(key, shape));
                assert_eq!(index, Some(one.index_of(key)));
            }
            let mean = KEYS / FAN_OUT / FAN_OUT;
            let even = |count: &usize| (mean / 2..2 * mean).contains(count);
            assert!(counts.as_flattened().iter().all(even), "{counts:?}");
        }
        let single = Overflow::bucket(1 << 18);
        assert_eq!(single.offsets(shape).collect::<Vec<_>>(), [1 << 18]);
        assert_eq!(single.bucket_of(Key(5 << 12), shape), 1 << 18);
    }
}
