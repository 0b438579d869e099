//! Remote memory, byte by byte.
//!
//! # What this is
//!
//! One file per structure: [`cvt`] (a row's versions), [`bucket`] (CVTs that share a hash),
//! [`record`] (one version's bytes), [`region`] (the page and directory that everything lies
//! behind). `docs/memory-layout.md` draws them and says who writes each word; the constants here
//! are pinned by assertions that do not compile when the drawing and the code part ways.
//!
//! # What it is not
//!
//! These codecs turn words into values and back. What a value means to a transaction is
//! [`crate::visibility`]'s business, and where it lies is [`crate::index`]'s.
//!
//! # Words
//!
//! Everything is a sequence of aligned 8-byte words, because that is what remote memory is: a
//! word never tears, anything longer may (DESIGN §3). Fields inside a word are shifts, not
//! structs, so that a field's place is written once, next to its name.

pub mod bucket;
pub mod cvt;
pub mod record;
pub mod region;

use thiserror::Error;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};
use zerocopy::IntoBytes;

#[cfg(not(target_endian = "little"))]
compile_error!("remote structures are little-endian words, and this host's words are not");

/// The version of every structure in this module, kept in a region's header page.
///
/// It changes whenever a byte of any structure changes its place or its meaning.
pub const FORMAT_VERSION: u64 = 6;

/// Bytes of a word.
pub const WORD_BYTES: usize = 8;

/// Bytes of a cache line, the unit that buckets and record slots are rounded up to.
pub const LINE_BYTES: usize = 64;

/// The largest offset that a cell or a bucket can hold, and so the size limit of a region.
pub const OFFSET_BITS: u32 = 40;

/// These words were being written while they were read: read them again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the words were being written while they were read")]
pub struct Torn;

/// `bits` bits of `word` from bit `shift` on.
#[inline]
pub(crate) const fn field(word: u64, shift: u32, bits: u32) -> u64 {
    word >> shift & (u64::MAX >> (64 - bits))
}

/// A stable hash of `words`, in their order in memory.
#[inline]
pub(crate) fn hash(words: &[u64]) -> u64 {
    xxh3_64(words.as_bytes())
}

/// The same, of which `seed` is a part.
#[inline]
pub(crate) fn hash_seeded(words: &[u64], seed: u64) -> u64 {
    xxh3_64_with_seed(words.as_bytes(), seed)
}
