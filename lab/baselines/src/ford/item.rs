//! Bytes of a row of FORD: one version, in a slot of the index.
//!
//! | words | |
//! |---|---|
//! | 0–3 | primary key, its length in the last byte |
//! | 4 | number of the table, plus one; whether the row was deleted; length; 0 in a free slot |
//! | 5 | version: start timestamp of its writer |
//! | 6 | lock: 0, or the holding transaction; the top bit is set while its commit is written |
//! | 7 | writer of the version; FORD has no such word |
//! | 8 … | the value, padded to the longest of the workload |
//!
//! FORD has 48 bytes before the value. Version and lock are adjacent, so that one READ of the
//! validation covers both.

use lotus_fabric::ids::TxnId;
use lotus_mvcc::PrimaryKey;

use crate::store::Stored;
use crate::store::index::{KEY_WORDS, key_of, key_words};

pub(crate) const WORD: usize = 8;
const META_AT: usize = 4;
pub(crate) const VERSION_AT: usize = 5;
pub(crate) const LOCK_AT: usize = 6;
const WRITER_AT: usize = 7;
pub(crate) const HEADER_WORDS: usize = 8;
/// Set in a lock while the row is being written: the row's bytes may be a mixture of two versions.
pub(crate) const INVISIBLE: u64 = 1 << 63;
const TABLE_SHIFT: u32 = 48;
const DELETED: u64 = 1 << 32;
/// Version of a loaded row.
const LOADED: u64 = 1;

/// Lengths of the rows of one table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// Words of a row, including the header.
    pub(crate) words: usize,
}

impl Shape {
    /// Rows with values of up to `longest` bytes, and a length of at least `item_bytes` bytes in
    /// all.
    pub(crate) const fn new(longest: usize, item_bytes: usize) -> Self {
        let words = HEADER_WORDS + longest.div_ceil(WORD);
        let least = item_bytes.div_ceil(WORD);
        Self { words: if words > least { words } else { least } }
    }

    pub(crate) const fn value_words(&self) -> usize {
        self.words - HEADER_WORDS
    }
}

/// Header of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) version: u64,
    pub(crate) lock: u64,
    pub(crate) writer: u64,
    /// Length of the value; `None` if the row was deleted.
    pub(crate) bytes: Option<u32>,
}

impl Header {
    /// The header stored in a slot.
    pub(crate) fn of(slot: &[u64]) -> Self {
        let meta = slot[META_AT];
        Self {
            version: slot[VERSION_AT],
            lock: slot[LOCK_AT],
            writer: slot[WRITER_AT],
            bytes: (meta & DELETED == 0).then_some(meta as u32),
        }
    }

    pub(crate) fn to_words(self, table: usize, key: &PrimaryKey) -> [u64; HEADER_WORDS] {
        let [a, b, c, d] = key_words(key);
        let state = self.bytes.map_or(DELETED, u64::from);
        let meta = (table as u64 + 1) << TABLE_SHIFT | state;
        [a, b, c, d, meta, self.version, self.lock, self.writer]
    }

    pub(crate) fn writer(&self) -> Option<TxnId> {
        (self.writer != 0 && self.writer & INVISIBLE == 0).then(|| TxnId::from_raw(self.writer))
    }
}

/// The key of a slot; `None` if the slot is free.
pub(crate) fn key_in(slot: &[u64]) -> Option<PrimaryKey> {
    (slot[META_AT] != 0).then(|| key_of(&slot[..KEY_WORDS])).flatten()
}

/// Whether a slot contains the row with this key.
#[inline]
pub(crate) fn is_of(slot: &[u64], table: usize, key: &PrimaryKey) -> bool {
    slot[META_AT] >> TABLE_SHIFT == table as u64 + 1 && slot[..KEY_WORDS] == key_words(key)
}

/// Lays out a loaded row.
pub(crate) fn lay_out(table: usize, (key, value): (&PrimaryKey, &[u8]), slot: &mut [u64]) {
    let bytes = Some(value.len() as u32);
    let header = Header { version: LOADED, lock: 0, writer: 0, bytes };
    slot[..HEADER_WORDS].copy_from_slice(&header.to_words(table, key));
    for (word, bytes) in slot[HEADER_WORDS..].iter_mut().zip(value.chunks(WORD)) {
        let mut padded = [0; WORD];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(padded);
    }
}

/// The row of a slot that is not free.
pub(crate) fn stored(slot: &[u64]) -> Result<Stored, String> {
    use zerocopy::IntoBytes;
    let key = key_in(slot).ok_or("it has no key")?;
    let header = Header::of(slot);
    let Some(bytes) = header.bytes else { return Ok(Stored { key, value: None }) };
    let value = slot[HEADER_WORDS..].as_bytes().get(..bytes as usize);
    let value = value.ok_or("the value is longer than the table allows")?.to_vec();
    Ok(Stored { key, value: Some((value, header.writer())) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_as_long_as_the_longest_value_or_as_asked() {
        assert_eq!(Shape::new(16, 0).words * WORD, 80);
        assert_eq!(Shape::new(16, 720).words * WORD, 720);
        assert_eq!(Shape::new(700, 720).words * WORD, 768);
    }

    #[test]
    fn a_loaded_row_is_read_back_and_a_deleted_one_is_none() {
        let key = PrimaryKey::from(7_u64);
        let mut slot = vec![0; Shape::new(16, 0).words];
        assert!(key_in(&slot).is_none());
        lay_out(3, (&key, b"hello"), &mut slot);
        assert!(is_of(&slot, 3, &key) && !is_of(&slot, 2, &key));
        let found = stored(&slot).expect("a row");
        assert_eq!(found, Stored { key, value: Some((b"hello".to_vec(), None)) });
        let header = Header { bytes: None, ..Header::of(&slot) };
        slot[..HEADER_WORDS].copy_from_slice(&header.to_words(3, &key));
        assert_eq!(Header::of(&slot), header);
        assert_eq!(stored(&slot).expect("a row").value, None);
    }
}
