//! Names of locks, and their places in the table.
//!
//! A name is hashed into a 56-bit fingerprint, stored in the lock's slot, and a position, which
//! selects the bucket. The owner of a lock computes the hash; neither value is sent, but both are
//! the same on every host and in every version, so that a trace or a failing seed can be replayed
//! on any machine.
//!
//! # Two keys of one table do not share a slot
//! Names that agree in fingerprint and bucket conflict although they differ: a false conflict. With
//! 2048 buckets (128 KiB) or more, [`LockKey::spread`] excludes false conflicts between keys of
//! one table and space: the mix is a bijection of the key, so equal fingerprints mean that the
//! mixes differ by less than 512, and multiplying by the golden ratio moves such neighbours at
//! least 2^53 apart, into different buckets. Between tables a false conflict is as likely as a
//! collision of two 64-bit hashes.

use lotus_fabric::ids::{Key, ShardId, TableId};

/// Mode in which a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum LockMode {
    /// Shared: many transactions read.
    Read = 0,
    /// Exclusive: one transaction writes.
    Write = 1,
}

/// Whether a name's key identifies a row or an index bucket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum LockSpace {
    /// A row, present or absent, by its key.
    Row = 0,
    /// A bucket of the remote index, which an insert locks in addition to its row (LOTUS §4.1).
    Bucket = 1,
}

/// The name of one lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockKey {
    /// Table of the row or bucket.
    pub table: TableId,
    /// Row or index bucket.
    pub space: LockSpace,
    /// The row's key, or the bucket's number above the bits of its shard.
    pub key: Key,
}

impl LockKey {
    /// Name of a row's lock, whether the row exists or not (I25).
    #[inline]
    pub const fn row(table: TableId, key: Key) -> Self {
        Self { table, space: LockSpace::Row, key }
    }

    /// Name of an index bucket's lock; the low bits of `key` are the shard, as in a row's key.
    #[inline]
    pub const fn bucket(table: TableId, key: Key) -> Self {
        Self { table, space: LockSpace::Bucket, key }
    }

    /// Shard whose owner keeps this lock (LOTUS §4.2).
    #[inline]
    pub const fn shard(&self) -> ShardId {
        self.key.shard()
    }

    /// A 64-bit hash of the name, stable across hosts.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.spread().position
    }

    /// Fingerprint and position of the name; see the module's notes.
    #[inline]
    pub(crate) fn spread(&self) -> LockHashes {
        let kind = u64::from(self.table.0) << 8 | self.space as u64;
        let mix = finalize(self.key.0 ^ kind.wrapping_mul(KIND_FACTOR));
        LockHashes { fingerprint: (mix >> 8).max(1), position: mix.wrapping_mul(GOLDEN_RATIO) }
    }
}

/// One lock to take.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockRequest {
    /// Name of the lock.
    pub name: LockKey,
    /// Mode of the lock.
    pub mode: LockMode,
}

impl LockRequest {
    /// Request to take `name` for reading.
    #[inline]
    pub const fn read(name: LockKey) -> Self {
        Self { name, mode: LockMode::Read }
    }

    /// Request to take `name` for writing.
    #[inline]
    pub const fn write(name: LockKey) -> Self {
        Self { name, mode: LockMode::Write }
    }
}

/// Number of buckets (128 KiB) from which on two keys of one table and space never share a slot.
#[cfg(test)]
pub(crate) const COLLISION_FREE_BUCKETS: usize = 2048;

/// 2^64 divided by the golden ratio, made odd: its multiples are spread as evenly as possible.
const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;

/// Separates tables and spaces; an arbitrary odd number with well-mixed bits.
const KIND_FACTOR: u64 = 0xD6E8_FEB8_6659_FD93;

/// Hash values of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LockHashes {
    /// 56 bits, never zero: a slot of all zeroes is free.
    pub(crate) fingerprint: u64,
    /// Position in the table, as a fraction of 2^64.
    pub(crate) position: u64,
}

/// The finaliser of MurmurHash3 with Stafford's constants (variant 13): a bijection in which
/// every input bit changes every output bit with a probability close to one half.
#[inline]
const fn finalize(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_hash_never_changes() {
        let row = LockKey::row(TableId(3), Key(0x0123_4567_89AB_CDEF));
        let bucket = LockKey::bucket(TableId(3), Key(0x0123_4567_89AB_CDEF));
        assert_eq!(
            row.spread(),
            LockHashes { fingerprint: 0xD9_FFCD_64AE_7588, position: 0x2A52_91DE_FD35_4DE3 }
        );
        assert_eq!(
            bucket.spread(),
            LockHashes { fingerprint: 0xA6_CF96_7B31_9377, position: 0xE096_746E_3811_4C2B }
        );
    }

    #[test]
    fn the_fingerprint_is_never_zero() {
        // The finaliser maps zero to zero, and this name's kind is zero too.
        assert_eq!(LockKey::row(TableId(0), Key(0)).spread().fingerprint, 1);
    }

    /// The claim of the module's notes: mixes closer than 512 lie in different buckets.
    #[test]
    fn equal_fingerprints_of_one_table_lie_in_different_buckets() {
        let bucket_width = u64::MAX / COLLISION_FREE_BUCKETS as u64 + 1;
        for difference in 1..512u64 {
            let apart = difference.wrapping_mul(GOLDEN_RATIO);
            assert!(apart.min(apart.wrapping_neg()) >= bucket_width, "{difference}");
        }
    }

    #[test]
    fn every_part_of_a_name_counts() {
        let name = LockKey::row(TableId(1), Key(1 << 12));
        let others = [
            LockKey::row(TableId(2), name.key),
            LockKey::bucket(TableId(1), name.key),
            LockKey::row(TableId(1), Key(2 << 12)),
            LockKey::row(TableId(1), Key(1 << 12 | 1)),
        ];
        for other in others {
            assert_ne!(name.spread().fingerprint, other.spread().fingerprint, "{other:?}");
            assert_ne!(name.spread().position, other.spread().position, "{other:?}");
        }
    }
}
