//! Names of rows: the 64-bit LOTUS key of a primary key, and its mark.
//!
//! A row's name for locks, index and shard map is 64 bits long: the low 12 are the shard, taken
//! from the table's critical field, and the upper 52 a hash of the whole primary key (LOTUS §4.2).
//! The *mark* is 31 further bits of the hash. Rows may share a name: then they share a lock and a
//! chain of buckets, and no more. A CVT's header has name and mark, so a search skips the CVTs of
//! other rows without reading their records, which a deleted row may not have.
//!
//! # A secret
//!
//! Untrusted users choose keys. So the hash takes a secret ([`Naming`]): without the secret an
//! attacker cannot tell which keys share a lock, a shard or a chain of buckets. Names lie in remote
//! memory and travel between hosts, so the secret belongs to the cluster, not to a process: it is
//! chosen with the cluster's first table, and kept with the list of tables and in snapshots. Each
//! table has a copy ([`crate::TableDef::name`]), so that callers need not know the secret, and
//! naming a row needs no further lookup.
//!
//! # The hash
//!
//! - *Keys of eight bytes*, by far the most: two rounds of a mixer over 64 bits (MurmurHash3's
//!   finalizer, with Evensen's constants), each after mixing in a word of the secret. Every step is
//!   invertible, so two 8-byte keys never share all 64 bits. Name and mark together contain all 64
//!   bits (the mark has the bits that the shard may replace), so two such keys never share name and
//!   mark, by chance or on purpose. The mixer is not a cipher, and need not be: an attacker does
//!   not see hashes, only the time of a request; and the difference of two keys goes through two
//!   rounds of two multiplications, with carries that depend on both words of the secret. The code
//!   has no branches.
//! - *Keys of other lengths:* SipHash-1-3 with an output of 128 bits, designed for untrusted keys:
//!   64 bits for the name, 31 further bits for the mark.
//!
//! Two rows with the same name and mark are distinguished by the primary key in the record, and the
//! later row is refused. Such a collision takes a key that does not have eight bytes, the same
//! shard, and 83 bits that are equal by chance: among 2^36 rows of a shard, once in 4,000 tables.

use std::fmt;

use lotus_fabric::ids::{Key, ShardId};
use siphasher::sip128::SipHasher13;

use crate::key::{CriticalField, PrimaryKey};

const SHARD_CLEARED: u64 = u64::MAX << ShardId::BITS;

/// Bits of a key's hash in addition to the bits in its 64-bit name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct KeyMark(u32);

impl KeyMark {
    /// Number of bits.
    pub const BITS: u32 = 31;

    /// Returns the mark with the low bits of `bits`.
    #[inline]
    pub const fn from_low_bits(bits: u64) -> Self {
        Self(bits as u32 & (u32::MAX >> 1))
    }

    /// Bits of the mark.
    #[inline]
    pub const fn raw(self) -> u32 {
        self.0
    }
}

/// Identity of a row in a CVT's header: the name, which rows may share, and the mark, which
/// distinguishes rows with the same name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RowName {
    /// The 64-bit name of the row, for locks, index and shard map.
    pub key: Key,
    /// Further bits of the hash.
    pub mark: KeyMark,
}

/// A secret for a [`Naming`]. Never shown in output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u64; 2]);

impl Secret {
    /// Bytes of a stored secret.
    pub const BYTES: usize = 16;

    /// Returns the secret with these words, which must be unpredictable.
    pub const fn of(words: [u64; 2]) -> Self {
        Self(words)
    }

    /// Returns a secret derived from a seed, and so not really secret: for repeatable simulations
    /// and benchmarks.
    pub const fn from_seed(seed: u64) -> Self {
        // Seed zero gives zeroes, the secret of [`Naming::KNOWN`].
        Self([round(seed), round(seed.rotate_left(32))])
    }

    /// Encodes the secret for storage.
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        let number = self.0[1] as u128;
        (number << u64::BITS | self.0[0] as u128).to_le_bytes()
    }

    /// Decodes a stored secret.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let number = u128::from_le_bytes(bytes);
        Self([number as u64, (number >> u64::BITS) as u64])
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The function from primary keys to names. Knowing the secret, an attacker could find keys that
/// share a name, so `Debug` hides the secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Naming {
    secret: [u64; 2],
    /// Mask of the hash bits that go into names: all bits, except in tests.
    kept: u64,
}

impl fmt::Debug for Naming {
    /// Hides the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Naming(..)")
    }
}

impl Naming {
    /// Naming with a publicly known secret.
    pub const KNOWN: Self = Self::by(Secret([0; 2]));

    /// Returns the naming with this secret.
    #[inline]
    pub const fn by(secret: Secret) -> Self {
        Self { secret: secret.0, kept: u64::MAX }
    }

    /// Returns the secret.
    pub const fn secret(&self) -> Secret {
        Secret(self.secret)
    }

    /// Returns this naming with a different secret.
    #[must_use]
    pub const fn with_secret(self, secret: Secret) -> Self {
        Self { secret: secret.0, ..self }
    }

    /// Returns this naming with names of only `bits` bits, half of them the shard's, so that many
    /// rows share a name: for tests.
    #[must_use]
    pub const fn with_hash_bits(mut self, bits: u32) -> Self {
        if bits >= u64::BITS {
            self.kept = u64::MAX;
            return self;
        }
        let upper = if bits / 2 < 52 { bits / 2 } else { 52 };
        let lower = if bits - upper < ShardId::BITS { bits - upper } else { ShardId::BITS };
        let high = if upper == 0 { 0 } else { u64::MAX << (u64::BITS - upper) };
        self.kept = high | ((1 << lower) - 1);
        self
    }

    /// Returns name and mark of a row (LOTUS §4.2), in a table with this critical field and number
    /// of shards, from 1 to [`ShardId::COUNT`].
    #[inline]
    pub fn name(&self, key: &PrimaryKey, critical_field: CriticalField, shards: u16) -> RowName {
        // With the length known at compile time, the hash of the most common size is a few
        // instructions without a branch.
        let (hash, mark) = match key.number() {
            Some(number) => {
                let hash = self.mix(number);
                (hash, hash)
            }
            None => self.digest(key.as_bytes()),
        };
        let hash = hash & self.kept;
        let field = match critical_field {
            // Bits outside of the name's 52, so shard and name are independent.
            CriticalField::Hashed => u64::from(ShardId::from_low_bits(hash).raw()),
            CriticalField::Bytes { start, len } => key.number_at(start, len),
        };
        // A division costs more than the rest, and the default of 4096 shards does not need it.
        let shard = if shards.is_power_of_two() {
            field & u64::from(shards - 1)
        } else {
            field % u64::from(shards)
        };
        RowName { key: Key(hash & SHARD_CLEARED | shard), mark: KeyMark::from_low_bits(mark) }
    }

    /// Hash of a key of eight bytes.
    #[inline]
    const fn mix(&self, number: u64) -> u64 {
        round(round(number ^ self.secret[0]) ^ self.secret[1])
    }

    /// Hash of a key of any other length, and bits for its mark.
    fn digest(&self, bytes: &[u8]) -> (u64, u64) {
        let [first, second] = self.secret;
        let digest = SipHasher13::new_with_keys(first, second).hash(bytes);
        (digest.h1, digest.h2)
    }
}

/// A bijection of 64-bit words; each bit of the result depends on all bits of the argument.
#[inline]
const fn round(word: u64) -> u64 {
    let word = (word ^ word >> 27).wrapping_mul(0x3C79_AC49_2BA7_B653);
    let word = (word ^ word >> 33).wrapping_mul(0x1C69_B3F7_4AC4_AE35);
    word ^ word >> 27
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SECRET: Naming = Naming::by(Secret([0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210]));

    fn of(naming: Naming, key: impl Into<PrimaryKey>) -> RowName {
        naming.name(&key.into(), CriticalField::Hashed, 4096)
    }

    fn key_of_16(high: u64, low: u64) -> PrimaryKey {
        (high, low).into()
    }

    #[test]
    fn the_shard_is_the_low_bits_of_the_critical_field() {
        let long: PrimaryKey = (0_u32, 5000_u32, 0x0102_0304_u32, 77_u32).into();
        let cases = [
            (PrimaryKey::from(5000), 0, 8, 4096, 5000 % 4096),
            (PrimaryKey::from(5000), 6, 2, 4096, 5000 % 4096),
            (PrimaryKey::from(5000), 0, 8, 10, 0),
            (long, 4, 4, 4096, 5000 % 4096),
            (long, 6, 4, 4096, 0x0102),
            (long, 12, 4, 4096, 77),
            (PrimaryKey::from([0xAB; 31]), 30, 1, 4096, 0xAB),
            (PrimaryKey::from([0xAB; 31]), 23, 8, 4096, 0xBAB),
            (PrimaryKey::from([1]), 0, 2, 4096, 0x100),
        ];
        for (key, start, len, shards, shard) in cases {
            let derived = SECRET.name(&key, CriticalField::Bytes { start, len }, shards);
            assert_eq!(derived.key.shard().raw(), shard, "{key:?} from {start}, {len} bytes");
            let hashed = SECRET.name(&key, CriticalField::Hashed, shards);
            assert_eq!(derived.key.hash(), hashed.key.hash());
            assert_eq!(derived.mark, hashed.mark);
        }
    }

    #[test]
    fn names_are_pinned_because_they_outlive_a_build() {
        let pinned = [
            (of(SECRET, 42), 0x2B81_AF01_50B9_842B, 0x50B9_842B),
            (of(SECRET, [1, 2, 3]), 0x3254_1BD3_E30D_DE13, 0x1711_E036),
            (of(Naming::KNOWN, 42), 0x2BA2_CAD6_7507_9C1F, 0x7507_9C1F),
        ];
        for (name, key, mark) in pinned {
            let expected = RowName { key: Key(key), mark: KeyMark::from_low_bits(mark) };
            assert_eq!(name, expected, "{:#x} {:#x}", name.key.0, name.mark.raw());
        }
        let few = SECRET.name(&42.into(), CriticalField::Hashed, 100);
        assert!(few.key.shard().raw() < 100);
    }

    /// Each step of a round can be undone, so that keys of eight bytes share no hash.
    #[test]
    fn a_round_can_be_undone() {
        // Inverse of an odd number modulo 2^64, by Newton's iteration.
        let inverse = |odd: u64| {
            (0..6).fold(odd, |x, _| x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x))))
        };
        let unshift = |word: u64, by: u32| (0..64 / by).fold(word, |x, _| word ^ x >> by);
        for number in (0..1000).chain((0..64).map(|bit| 1 << bit)).chain([u64::MAX]) {
            let word = unshift(round(number), 27).wrapping_mul(inverse(0x1C69_B3F7_4AC4_AE35));
            let word = unshift(word, 33).wrapping_mul(inverse(0x3C79_AC49_2BA7_B653));
            assert_eq!(unshift(word, 27), number);
        }
    }

    /// Keys that had one name while names were hashes without a secret.
    #[test]
    fn keys_that_collide_under_one_secret_do_not_under_another() {
        let one = key_of_16(0xB939_42EA_7B73_8267, 0xD754_6379_A4BA_4790);
        let other = key_of_16(0x550E_8400_E29B_41D4, 0xA716_4466_5544_0000);
        for secret in 0..100 {
            let naming = Naming::by(Secret([secret, !secret]));
            assert_ne!(of(naming, one).key, of(naming, other).key);
        }
        // Numbers that share 52 bits under one secret, found by trying.
        let few = SECRET.with_hash_bits(32);
        let mut seen = BTreeSet::new();
        let twin = (0..1_u64 << 20).find(|number| !seen.insert(of(few, *number).key));
        let twin = twin.expect("of a million numbers two share 32 bits");
        let first = (0..twin).find(|number| of(few, *number).key == of(few, twin).key);
        let first = first.expect("it was seen");
        let share = |secret| {
            let naming = Naming::by(Secret([secret, 1])).with_hash_bits(32);
            of(naming, first).key == of(naming, twin).key
        };
        assert!((0..1000).all(|secret| !share(secret)), "{first} and {twin}");
    }

    #[test]
    fn rows_of_one_name_have_different_marks() {
        let naming = SECRET.with_hash_bits(4);
        let numbers = (0..2_000_u64).map(PrimaryKey::from);
        let texts = (0..2_000_u64).map(|number| (number, number).into());
        let names: BTreeSet<RowName> = numbers.chain(texts).map(|key| of(naming, key)).collect();
        assert_eq!(names.len(), 4_000);
        let keys: BTreeSet<Key> = names.iter().map(|name| name.key).collect();
        assert_eq!(keys.len(), 16);
        let all: BTreeSet<Key> =
            (0..100).map(|key| of(SECRET.with_hash_bits(0), key).key).collect();
        assert_eq!(all.len(), 1);
        assert_eq!(SECRET.with_hash_bits(64).kept, u64::MAX);
    }

    #[test]
    fn names_of_successive_numbers_spread_evenly() {
        const BINS: usize = 64;
        const KEYS: u64 = 64_000;
        for naming in [SECRET, Naming::KNOWN] {
            let (mut shards, mut hashes) = ([0; BINS], [0; BINS]);
            for number in 0..KEYS {
                let name = of(naming, number);
                shards[usize::from(name.key.shard().raw()) % BINS] += 1;
                hashes[(name.key.hash() >> 46) as usize] += 1;
            }
            let mean = KEYS as usize / BINS;
            let even = |count: &usize| (mean * 4 / 5..mean * 6 / 5).contains(count);
            assert!(shards.iter().chain(&hashes).all(even), "{shards:?} {hashes:?}");
        }
    }

    #[test]
    fn a_secret_is_read_back_as_it_was_stored() {
        for secret in [SECRET.secret(), Secret::from_seed(3)] {
            assert_eq!(Secret::from_bytes(secret.to_bytes()), secret);
            assert_eq!(Naming::KNOWN.with_secret(secret), Naming::by(secret));
        }
        assert_eq!(Secret([1, 2]).to_bytes(), [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_ne!(Secret::from_seed(1), Secret::from_seed(2));
    }

    #[test]
    fn the_secret_is_not_shown() {
        assert_eq!(format!("{SECRET:?} {:?}", SECRET.secret()), "Naming(..) Secret(..)");
    }
}
