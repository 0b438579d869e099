//! Remote memory, byte by byte.
//!
//! # What this is
//!
//! One file per structure: [`cvt`] (a row's versions), [`bucket`] (CVTs that share a hash),
//! [`record`] (one version's bytes), [`region`] (header and directory at the beginning of a
//! region). `docs/memory-layout.md` draws the structures and names the writer of each word;
//! compile-time assertions pin the constants to the drawings.
//!
//! # What it is not
//!
//! These codecs turn words into values and back. [`crate::visibility`] decides what a value means
//! to a transaction, and [`crate::index`] where it lies.
//!
//! # Words
//!
//! Every structure is a sequence of aligned 8-byte words, the unit of remote memory: a word never
//! tears, a longer access may (`docs/verbs.md`). Fields inside a word are shifts, not structs, so
//! that a field's place is written once, next to its name.

pub mod bucket;
pub mod cvt;
pub mod record;
pub mod region;

use thiserror::Error;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};
use zerocopy::IntoBytes;

#[cfg(not(target_endian = "little"))]
compile_error!("remote structures are little-endian words, and this host's words are not");

/// Version of every structure in this module, kept in a region's header page.
///
/// The version changes whenever a byte of a structure changes its place or its meaning.
pub const FORMAT_VERSION: u64 = 11;

/// Number of bytes of a word.
pub const WORD_BYTES: usize = 8;

/// Number of bytes of a cache line, the unit that buckets and record slots are rounded up to.
pub const LINE_BYTES: usize = 64;

/// Bits of an offset in a cell or a bucket, which limit the size of a region.
pub const OFFSET_BITS: u32 = 40;

/// Torn read: the words were being written while they were read. The caller reads again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the words were being written while they were read")]
pub struct Torn;

/// Extracts `bits` bits of `word` from bit `shift` on.
#[inline]
pub(crate) const fn field(word: u64, shift: u32, bits: u32) -> u64 {
    word >> shift & (u64::MAX >> (64 - bits))
}

/// A stable hash of `words`, in their order in memory.
#[inline]
pub(crate) fn hash(words: &[u64]) -> u64 {
    xxh3_64(words.as_bytes())
}

/// A stable hash of `words` and `seed`.
#[inline]
pub(crate) fn hash_seeded(words: &[u64], seed: u64) -> u64 {
    xxh3_64_with_seed(words.as_bytes(), seed)
}
