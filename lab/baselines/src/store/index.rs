//! The hash index of a table: the bucket of a key, and the position of the bucket's slots.
//!
//! A bucket is a fixed number of adjacent slots: one READ fetches a bucket. A key is in its own
//! bucket or, if that bucket was full, in the next bucket, and so on. A slot never changes its key:
//! a known address stays valid, and a search ends at the first free slot.
//!
//! Where all loaded keys are numbers below the capacity, the keys are not hashed: number n has slot
//! n. Motor's own loader places the rows of SmallBank in this way. Any further keys have separate
//! buckets behind the numbered slots.

use lotus_fabric::ids::RemoteAddr;
use lotus_fabric::ids::{NodeId, RegionId};
use lotus_mvcc::PrimaryKey;
use xxhash_rust::xxh3::xxh3_64;

const WORD: u64 = 8;
/// Words of a slot that hold its key.
pub(crate) const KEY_WORDS: usize = 4;

/// Number of a slot in its table: bucket × slots of a bucket + place in the bucket.
pub(crate) type SlotNumber = u64;

/// Shape of a table's index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    pub(crate) buckets: u64,
    /// Number of buckets, at the front, for keys that are numbers and need no hash; 0 if keys are
    /// hashed.
    pub(crate) direct_buckets: u64,
    pub(crate) slots_per_bucket: u64,
    pub(crate) slot_words: usize,
    /// Words beside the index for each slot.
    pub(crate) beside_words: usize,
}

/// The number that a key of at most eight bytes encodes.
pub(crate) fn number_of(key: &PrimaryKey) -> Option<u64> {
    let bytes = key.as_bytes();
    let mut padded = [0; 8];
    padded.get_mut(8_usize.checked_sub(bytes.len())?..)?.copy_from_slice(bytes);
    Some(u64::from_be_bytes(padded))
}

impl Geometry {
    pub(crate) fn slots(&self) -> u64 {
        self.buckets * self.slots_per_bucket
    }

    /// Bucket at which the search for a key begins.
    #[inline]
    pub(crate) fn bucket_of(&self, key: &PrimaryKey) -> u64 {
        let number = number_of(key).map(|number| number / self.slots_per_bucket);
        match number.filter(|bucket| *bucket < self.direct_buckets) {
            Some(bucket) => bucket,
            None => self.hashed(xxh3_64(key.as_bytes())),
        }
    }

    /// Bucket in which a search continues.
    pub(crate) fn next(&self, bucket: u64) -> u64 {
        self.hashed((bucket + 1).saturating_sub(self.direct_buckets))
    }

    /// Bucket `number` of the buckets for hashed keys; numbers wrap around behind the last bucket.
    fn hashed(&self, number: u64) -> u64 {
        self.direct_buckets + number % (self.buckets - self.direct_buckets)
    }

    pub(crate) fn bucket_of_slot(&self, slot: SlotNumber) -> u64 {
        slot / self.slots_per_bucket
    }

    pub(crate) fn bucket_bytes(&self) -> usize {
        self.slots_per_bucket as usize * self.slot_bytes()
    }

    pub(crate) const fn slot_bytes(&self) -> usize {
        self.slot_words * WORD as usize
    }

    pub(crate) const fn beside_bytes(&self) -> usize {
        self.beside_words * WORD as usize
    }

    /// Index with at least `slots` slots in buckets of `slots_per_bucket`. If keys are `dense`, the
    /// index has a few more buckets for other keys.
    pub(crate) fn of_slots(
        slots: u64,
        slots_per_bucket: u64,
        dense: bool,
        (slot_words, beside_words): (usize, usize),
    ) -> Self {
        let buckets = slots.div_ceil(slots_per_bucket).max(1);
        let (direct_buckets, spare) = if dense { (buckets, buckets / 16 + 1) } else { (0, 0) };
        let buckets = buckets + spare;
        Self { buckets, direct_buckets, slots_per_bucket, slot_words, beside_words }
    }

    /// Offset of a slot in its table's region.
    #[inline]
    pub(crate) fn slot_at(&self, slot: SlotNumber) -> u64 {
        slot * self.slot_bytes() as u64
    }

    /// Offset of the words beside the index that belong to a slot.
    #[inline]
    pub(crate) fn beside_at(&self, slot: SlotNumber) -> u64 {
        self.slots() * self.slot_bytes() as u64 + slot * self.beside_bytes() as u64
    }

    /// Bytes of the whole region.
    pub(crate) fn bytes(&self) -> u64 {
        self.beside_at(self.slots())
    }

    pub(crate) fn bucket_addr(&self, node: NodeId, region: RegionId, bucket: u64) -> RemoteAddr {
        RemoteAddr::new(node, region, self.slot_at(bucket * self.slots_per_bucket))
    }
}

/// A key as stored in its slot: the bytes, zeroes, and the length in the very last byte.
#[inline]
pub(crate) fn key_words(key: &PrimaryKey) -> [u64; KEY_WORDS] {
    let bytes = key.as_bytes();
    let mut padded = [0; KEY_WORDS * 8];
    padded[..bytes.len()].copy_from_slice(bytes);
    padded[KEY_WORDS * 8 - 1] = bytes.len() as u8;
    let word = |at: usize| u64::from_le_bytes(padded[at * 8..][..8].try_into().expect("eight"));
    [word(0), word(1), word(2), word(3)]
}

/// The key stored in a slot; `None` if the words are not a key.
pub(crate) fn key_of(words: &[u64]) -> Option<PrimaryKey> {
    let mut padded = [0; KEY_WORDS * 8];
    for (bytes, word) in padded.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let length = usize::from(padded[KEY_WORDS * 8 - 1]);
    PrimaryKey::try_from(padded.get(..length).filter(|_| length < KEY_WORDS * 8)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        buckets: 10,
        slots_per_bucket: 4,
        slot_words: 14,
        beside_words: 5,
        direct_buckets: 0,
    };

    #[test]
    fn keys_keep_their_bytes_in_a_slot() {
        for bytes in [&[7][..], &[0, 0], &[255; 31]] {
            let key = PrimaryKey::try_from(bytes).expect("a key");
            assert_eq!(key_of(&key_words(&key)), Some(key));
        }
        assert_eq!(key_of(&[0; KEY_WORDS]), None);
        assert_eq!(key_of(&[0, 0, 0, 200 << 56]), None);
    }

    #[test]
    fn slots_lie_beside_each_other_and_their_values_behind_all_of_them() {
        assert_eq!((GEOMETRY.slots(), GEOMETRY.bucket_bytes()), (40, 448));
        assert_eq!(GEOMETRY.slot_at(39) + 112, GEOMETRY.beside_at(0));
        assert_eq!(GEOMETRY.beside_at(39) + 40, GEOMETRY.bytes());
        assert_eq!((GEOMETRY.next(9), GEOMETRY.bucket_of_slot(39)), (0, 9));
    }

    #[test]
    fn numbers_below_the_capacity_are_their_own_slots() {
        let dense = Geometry { direct_buckets: 40, slots_per_bucket: 1, buckets: 44, ..GEOMETRY };
        let bucket = |number: u64| dense.bucket_of(&PrimaryKey::from(number));
        assert_eq!([0, 17, 39].map(bucket), [0, 17, 39]);
        assert!((40..44).contains(&bucket(40)) && (40..44).contains(&bucket(1 << 40)));
        assert_eq!([40, 43].map(|bucket| dense.next(bucket)), [41, 40]);
        let short = PrimaryKey::try_from(&[1, 0][..]).expect("a key");
        assert_eq!(number_of(&short), Some(256));
    }
}
