//! Primary keys.
//!
//! A [`PrimaryKey`] is the application's name of a row: up to 31 bytes, held inline. The system's
//! own names of rows are derived from it in [`crate::naming`].
//!
//! Numbers are encoded big-endian, so that the order of encoded keys is the order of the numbers,
//! and a critical field has the same value whichever way the key was built.

use std::cmp::Ordering;
use std::fmt;

use thiserror::Error;
use zerocopy::IntoBytes;

const WORDS: usize = 4;
const LENGTH_AT: usize = PrimaryKey::MAX_BYTES;

/// A row's full primary key: 1 to 31 bytes, inline, 32 bytes in memory.
///
/// ```
/// use lotus_mvcc::PrimaryKey;
///
/// let district = PrimaryKey::from((7_u32, 3_u32));
/// assert_eq!(district.as_bytes(), [0, 0, 0, 7, 0, 0, 0, 3]);
/// assert_eq!(PrimaryKey::try_from(&b"alice"[..])?.as_bytes(), b"alice");
/// # Ok::<(), lotus_mvcc::key::KeyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrimaryKey {
    /// The bytes in order, padded with zeroes; the length in the very last byte. Words rather than
    /// bytes, so that copies, comparisons and 8-byte keys are single instructions.
    words: [u64; WORDS],
}

const _: () = assert!(size_of::<PrimaryKey>() == 32);

/// Reason why bytes are not a primary key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A key has at least one byte. The caller must choose another key.
    #[error("a primary key has at least one byte")]
    Empty,
    /// Keys are held inline. The caller may use an ordered table, whose keys may be longer, or a
    /// digest of the long key.
    #[error(
        "a primary key has at most {max} bytes, not {len}; in ordered tables it may have {longer}",
        max = PrimaryKey::MAX_BYTES,
        longer = lotus_tree::MAX_KEY_BYTES
    )]
    TooLong {
        /// Number of bytes given.
        len: usize,
    },
}

impl PrimaryKey {
    /// Largest length of a primary key, in bytes.
    pub const MAX_BYTES: usize = 31;

    /// Builds a key in place: `write` fills the beginning of the buffer and returns the length of
    /// the key in bytes, which may exceed the buffer.
    ///
    /// # Errors
    /// [`KeyError`], as for a key of that length.
    #[inline]
    pub fn build(write: impl FnOnce(&mut [u8]) -> usize) -> Result<Self, KeyError> {
        let mut words = [0; WORDS];
        let all = words.as_mut_bytes();
        let room = &mut all[..LENGTH_AT];
        match write(room) {
            0 => Err(KeyError::Empty),
            len @ 1..=Self::MAX_BYTES => {
                room[len..].fill(0);
                all[LENGTH_AT] = len as u8;
                Ok(Self { words })
            }
            len => Err(KeyError::TooLong { len }),
        }
    }

    /// Returns the first bytes of a longer key, for error messages; `None` if `bytes` is empty.
    pub fn prefix_of(bytes: &[u8]) -> Option<Self> {
        Self::try_from(&bytes[..bytes.len().min(Self::MAX_BYTES)]).ok()
    }

    /// The key's bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.words.as_bytes()[..self.byte_count()]
    }

    /// Length of the key in bytes, from 1 to [`Self::MAX_BYTES`].
    #[inline]
    pub const fn byte_count(&self) -> usize {
        (self.words[WORDS - 1] >> 56) as usize
    }

    /// Number of 8-byte words that the key fills in a record.
    #[inline]
    pub(crate) const fn word_count(&self) -> usize {
        self.byte_count().div_ceil(8)
    }

    /// Word `index` of the key as a record stores it, padded with zeroes.
    #[inline]
    pub(crate) const fn padded_word(&self, index: usize) -> u64 {
        let without_length = if index == WORDS - 1 { u64::MAX >> 8 } else { u64::MAX };
        self.words[index] & without_length
    }

    /// The key's bytes as one word, if the key has eight bytes.
    #[inline]
    pub(crate) const fn number(&self) -> Option<u64> {
        if self.byte_count() == 8 { Some(self.words[0]) } else { None }
    }

    /// The big-endian number in `len` bytes from `start`; bytes past the end read as zero.
    #[inline]
    pub(crate) fn number_at(&self, start: u8, len: u8) -> u64 {
        let first = usize::from(start / 8);
        let low = u128::from(self.padded_word(first));
        let high = if first + 1 < WORDS { u128::from(self.padded_word(first + 1)) } else { 0 };
        let bytes = (high << 64 | low) >> (8 * (start % 8));
        (bytes as u64).swap_bytes() >> (64 - 8 * u32::from(len))
    }

    #[inline]
    const fn of_words(first: u64, second: u64, byte_count: u64) -> Self {
        Self { words: [first.to_be(), second.to_be(), 0, byte_count << 56] }
    }
}

impl From<u64> for PrimaryKey {
    #[inline]
    fn from(number: u64) -> Self {
        Self::of_words(number, 0, 8)
    }
}

impl<const N: usize> From<[u8; N]> for PrimaryKey {
    /// Arrays of no bytes, or of more than [`Self::MAX_BYTES`], do not compile.
    #[inline]
    fn from(bytes: [u8; N]) -> Self {
        const { assert!(N >= 1 && N <= PrimaryKey::MAX_BYTES) };
        let mut words = [0; WORDS];
        let all = words.as_mut_bytes();
        all[..N].copy_from_slice(&bytes);
        all[LENGTH_AT] = N as u8;
        Self { words }
    }
}

#[inline]
fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

impl From<(u32, u32)> for PrimaryKey {
    #[inline]
    fn from((a, b): (u32, u32)) -> Self {
        Self::of_words(pair(a, b), 0, 8)
    }
}

impl From<(u64, u64)> for PrimaryKey {
    #[inline]
    fn from((a, b): (u64, u64)) -> Self {
        Self::of_words(a, b, 16)
    }
}

impl From<(u32, u32, u32)> for PrimaryKey {
    #[inline]
    fn from((a, b, c): (u32, u32, u32)) -> Self {
        Self::of_words(pair(a, b), pair(c, 0), 12)
    }
}

impl From<(u32, u32, u32, u32)> for PrimaryKey {
    #[inline]
    fn from((a, b, c, d): (u32, u32, u32, u32)) -> Self {
        Self::of_words(pair(a, b), pair(c, d), 16)
    }
}

impl TryFrom<&[u8]> for PrimaryKey {
    type Error = KeyError;

    #[inline]
    fn try_from(bytes: &[u8]) -> Result<Self, KeyError> {
        match bytes.len() {
            0 => Err(KeyError::Empty),
            len @ 1..=Self::MAX_BYTES => {
                let mut words = [0; WORDS];
                let all = words.as_mut_bytes();
                all[..len].copy_from_slice(bytes);
                all[LENGTH_AT] = len as u8;
                Ok(Self { words })
            }
            len => Err(KeyError::TooLong { len }),
        }
    }
}

impl Ord for PrimaryKey {
    /// Compares the bytes, which for keys built of numbers is the order of the numbers.
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl PartialOrd for PrimaryKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for PrimaryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Part of a primary key that decides the shard (LOTUS §4.2, the critical field).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CriticalField {
    /// No part: the hash of the whole key spreads rows over all shards.
    #[default]
    Hashed,
    /// A big-endian number inside the encoded key, such as a warehouse; the number modulo the
    /// table's shard count is the shard. In shorter keys, missing bytes read as zero.
    Bytes {
        /// Index of the field's first byte.
        start: u8,
        /// Number of bytes, from 1 to 8.
        len: u8,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_big_endian_concatenations() {
        let cases: [(PrimaryKey, &[u8]); 7] = [
            (0x0102_0304_0506_0708.into(), &[1, 2, 3, 4, 5, 6, 7, 8]),
            ((1_u32, 2_u32).into(), &[0, 0, 0, 1, 0, 0, 0, 2]),
            ((1, 2, 3).into(), &[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3]),
            ((1, 2, 3, 4).into(), &[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]),
            ((1_u64, 2_u64).into(), &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]),
            ([9; 3].into(), &[9; 3]),
            ([255; 31].into(), &[255; 31]),
        ];
        for (key, bytes) in cases {
            assert_eq!(key.as_bytes(), bytes);
            assert_eq!(PrimaryKey::try_from(bytes), Ok(key));
        }
    }

    #[test]
    fn lengths_out_of_range_are_refused() {
        assert_eq!(PrimaryKey::try_from(&[][..]), Err(KeyError::Empty));
        assert_eq!(PrimaryKey::try_from(&[0; 32][..]), Err(KeyError::TooLong { len: 32 }));
        assert_eq!(PrimaryKey::prefix_of(&[7; 40]), Some([7; 31].into()));
        assert_eq!(
            (PrimaryKey::prefix_of(&[7]), PrimaryKey::prefix_of(&[])),
            (Some([7].into()), None)
        );
    }

    #[test]
    fn a_key_that_is_built_is_the_same_key() {
        let built = |len: usize| {
            PrimaryKey::build(|room| {
                room.fill(7);
                len
            })
        };
        assert_eq!(built(3), Ok([7; 3].into()));
        assert_eq!(built(31), Ok([7; 31].into()));
        assert_eq!(built(0), Err(KeyError::Empty));
        assert_eq!(built(32), Err(KeyError::TooLong { len: 32 }));
    }

    #[test]
    fn a_trailing_zero_makes_another_key() {
        assert_ne!(PrimaryKey::from([1]), PrimaryKey::from([1, 0]));
        assert!(PrimaryKey::from([1]) < PrimaryKey::from([1, 0]));
        assert!(PrimaryKey::from(255) < PrimaryKey::from(256));
    }
}
