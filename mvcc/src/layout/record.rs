//! A record: the bytes of one version, with a header that identifies its row and writer.
//!
//! ```text
//! w0  checksum of every word that follows,       w3  predecessor's record offset:40 zero:24
//!     seeded with the row's key                  w4  table:16 key length:8 state:8
//! w1  writer tag, 0 for the loader                   value length:32
//! w2  previous version, 0 for none
//! primary key, padded with zeroes to 8 bytes | value, padded with zeroes to 8 bytes
//! ```
//! LOTUS puts a cacheline version at each 64-byte boundary of a record (§7.1); a one-byte counter
//! wraps and tearing happens between words, so a checksum replaces the cacheline versions. The
//! checksum covers writer and table and is seeded with the key: mixed bytes of two writers, or of
//! two rows, never match. The key itself is not stored: the reader of a record knows the expected
//! row.
//!
//! The previous version is the row's newest committed version when the record was written, and the
//! predecessor's offset is that version's slot. The previous version shows whether a record is too
//! new for the cell or link that led to it ([`crate::acceptance`]); version and offset together
//! locate an older version ([`crate::chain`]). The full primary key distinguishes two rows with the
//! same 64-bit name. A slot outside of a CVT consists of whole cache lines.

use std::ops::Range;

use lotus_fabric::ids::{Key, TableId, TxnId};
use lotus_sabotage::{Rule, broken};
use zerocopy::IntoBytes;

use super::cvt::{CellState, Contents};
use super::{LINE_BYTES, OFFSET_BITS, Torn, WORD_BYTES, field, hash_seeded};
use crate::key::PrimaryKey;
use crate::timestamp::Timestamp;

/// Number of words of a record's header.
pub const RECORD_HEADER_WORDS: usize = 5;

/// Number of words to read or write for a record with these lengths of key and value.
#[inline]
pub const fn record_words(key_bytes: usize, value_bytes: usize) -> usize {
    RECORD_HEADER_WORDS + key_bytes.div_ceil(WORD_BYTES) + value_bytes.div_ceil(WORD_BYTES)
}

/// Number of bytes of a slot for records with keys and values up to these lengths: whole cache
/// lines, so that writing one version never disturbs a reader of another version.
#[inline]
pub const fn slot_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    (record_words(key_bytes, value_bytes) * WORD_BYTES).next_multiple_of(LINE_BYTES)
}

const _: () = assert!(slot_bytes(8, 16) == 64, "a SmallBank record fills one line");
const _: () = assert!(slot_bytes(8, 17) == 128);

/// Writer, previous version and table of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// Attempt that wrote the record; `None` for the loader.
    pub writer: Option<TxnId>,
    /// Newest committed version of the row when the record was written; [`Timestamp::ZERO`] for
    /// none.
    pub previous: Timestamp,
    /// Offset of the previous version's record slot in the group's region; 0 for none.
    pub predecessor: u64,
    /// Table of the row.
    pub table: TableId,
}

impl RecordHeader {
    /// Writes a record of row `key` with this header, `primary_key` and `value` to the front of
    /// `words`, and returns its length in words. `None` is a deletion.
    ///
    /// # Panics
    /// If the record does not fit in `words`, if the predecessor's offset does not fit in 40 bits,
    /// or if the writer is the transaction id 0, which marks the loader: attempts are numbered from
    /// 1.
    #[inline]
    pub fn encode(
        &self,
        key: Key,
        primary_key: &PrimaryKey,
        value: Option<&[u8]>,
        words: &mut [u64],
    ) -> usize {
        assert!(self.writer.is_none_or(|writer| writer.raw() != 0), "tag 0 is the loader's");
        assert!(self.predecessor >> OFFSET_BITS == 0, "record offset {:#x}", self.predecessor);
        let bytes = value.unwrap_or_default();
        let state = if value.is_some() { CellState::Valid } else { CellState::Tombstone };
        let used = record_words(primary_key.byte_count(), bytes.len());
        let words = &mut words[..used];
        words[1] = self.writer.map_or(0, TxnId::raw);
        words[2] = self.previous.raw();
        words[3] = self.predecessor;
        words[4] = u64::from(self.table.0)
            | (primary_key.byte_count() as u64) << 16
            | (state as u64) << 24
            | (bytes.len() as u64) << 32;
        let (padded_key, padded_value) =
            words[RECORD_HEADER_WORDS..].split_at_mut(primary_key.word_count());
        for (index, word) in padded_key.iter_mut().enumerate() {
            *word = primary_key.padded_word(index);
        }
        if let Some(last) = padded_value.last_mut() {
            *last = 0;
        }
        padded_value.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        words[0] = checksum(key, &words[1..]);
        used
    }
}

/// Checksum of a record; never 0, so that unwritten memory is not a valid record.
#[inline]
fn checksum(key: Key, words: &[u64]) -> u64 {
    hash_seeded(words, key.0).max(1)
}

/// Offset of the words of a record that [`glimpse`] reads.
pub const GLIMPSE_OFFSET: u64 = 4 * WORD_BYTES as u64;
/// Number of words of a record that [`glimpse`] reads.
pub const GLIMPSE_WORDS: usize = 3;

/// Returns the first word of the value in a record with a key of eight bytes at most, for
/// estimates: the checksum is not verified, so the record may be torn or belong to another row of
/// the table. `None` if the words are not a value of `table`.
pub fn glimpse(table: TableId, words: &[u64]) -> Option<u64> {
    let &[head, _, first] = words else { return None };
    let fits = field(head, 0, 16) == u64::from(table.0)
        && (1..=WORD_BYTES as u64).contains(&field(head, 16, 8))
        && field(head, 24, 8) == CellState::Valid as u64;
    fits.then_some(first)
}

/// A record with a valid checksum: a view of its words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    words: &'a [u64],
    key_bytes: usize,
    contents: Contents,
}

impl<'a> Record<'a> {
    /// Decodes the record of row `key` at the front of `words`; the words after it are ignored.
    ///
    /// # Errors
    /// [`Torn`] if the record does not end within `words` or the checksum does not match, as for
    /// the record of another row.
    ///
    /// # Panics
    /// If `words` are fewer than [`RECORD_HEADER_WORDS`].
    #[inline]
    pub fn decode(key: Key, words: &'a [u64]) -> Result<Self, Torn> {
        let shape = words[4];
        let (key_bytes, length) = (field(shape, 16, 8) as usize, field(shape, 32, 32));
        let used = record_words(key_bytes, length as usize);
        if used > words.len() {
            return Err(Torn);
        }
        if words[0] != checksum(key, &words[1..used]) && !broken(Rule::RecordChecksums) {
            return Err(Torn);
        }
        let contents = match CellState::decode(field(shape, 24, 8))? {
            CellState::Valid => Contents::Value { length: length as u32 },
            CellState::Tombstone => Contents::Deleted,
            CellState::NeverUsed | CellState::Cleared | CellState::Trimmed => {
                return Err(Torn);
            }
        };
        Ok(Self { words: &words[..used], key_bytes, contents })
    }

    /// Writer, previous version and table.
    #[inline]
    pub fn header(&self) -> RecordHeader {
        let writer = self.words[1] & Timestamp::MAX.raw();
        RecordHeader {
            writer: (writer != 0).then(|| TxnId::from_raw(writer)),
            previous: self.previous(),
            predecessor: self.predecessor(),
            table: self.table(),
        }
    }

    /// Newest committed version of the row when the record was written.
    #[inline]
    pub fn previous(&self) -> Timestamp {
        Timestamp::new(self.words[2]).unwrap_or(Timestamp::MAX)
    }

    /// Offset of the previous version's record slot in the group's region; 0 for none.
    #[inline]
    pub fn predecessor(&self) -> u64 {
        field(self.words[3], 0, OFFSET_BITS)
    }

    /// Table of the row.
    #[inline]
    pub fn table(&self) -> TableId {
        TableId(self.words[4] as u16)
    }

    /// Value, with its length, or deletion.
    #[inline]
    pub fn contents(&self) -> Contents {
        self.contents
    }

    /// Primary key of the row.
    ///
    /// # Errors
    /// If the stored key has an impossible length, which no writer stores.
    pub fn primary_key(&self) -> Result<PrimaryKey, crate::key::KeyError> {
        let start = RECORD_HEADER_WORDS * WORD_BYTES;
        PrimaryKey::try_from(&self.words.as_bytes()[start..start + self.key_bytes])
    }

    /// Whether the record's primary key is `primary_key`.
    #[inline]
    pub fn is_of(&self, primary_key: &PrimaryKey) -> bool {
        let key = self.words[RECORD_HEADER_WORDS..].iter();
        self.key_bytes == primary_key.byte_count()
            && key
                .take(primary_key.word_count())
                .enumerate()
                .all(|(index, word)| *word == primary_key.padded_word(index))
    }

    /// Place of the value, in bytes from the record's start; `None` for a deletion.
    #[inline]
    pub fn value_range(&self) -> Option<Range<usize>> {
        let start = record_words(self.key_bytes, 0) * WORD_BYTES;
        match self.contents {
            Contents::Value { length } => Some(start..start + length as usize),
            Contents::Deleted => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: RecordHeader = RecordHeader {
        writer: None,
        previous: Timestamp::LOADED,
        predecessor: 0xAA_BBCC_DDC0,
        table: TableId(3),
    };
    const KEY: Key = Key(0x77);

    fn written_by(raw: u64) -> RecordHeader {
        RecordHeader { writer: Some(TxnId::from_raw(raw)), ..HEADER }
    }

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let keys = [PrimaryKey::from(5), [7; 1].into(), [8; 25].into(), [9; 31].into()];
        for key in keys {
            for length in [0, 1, 7, 8, 9, 16, 300] {
                let value: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
                let mut words = [u64::MAX; 64];
                let used = written_by(5).encode(KEY, &key, Some(&value), &mut words);
                assert_eq!(used, record_words(key.byte_count(), value.len()));
                assert_eq!(words[used..], [u64::MAX; 64][used..], "wrote past its end");
                let record = Record::decode(KEY, &words).expect("whole");
                assert_eq!(record.header(), written_by(5));
                assert!(record.is_of(&key) && !record.is_of(&[6; 9].into()));
                let range = record.value_range().expect("a value");
                assert_eq!(words.as_bytes()[range], value);
            }
        }
    }

    #[test]
    fn the_layout_is_pinned() {
        let mut words = [0; 8];
        let used =
            written_by(9).encode(KEY, &PrimaryKey::from([0xAA; 3]), Some(&[0xBB; 2]), &mut words);
        assert_eq!(used, 7);
        let shape = 2 << 32 | 1 << 24 | 3 << 16 | 3;
        assert_eq!(words[1..7], [9, 1, 0xAA_BBCC_DDC0, shape, 0xAA_AAAA, 0xBBBB]);
        assert_eq!(words[0], hash_seeded(&words[1..7], KEY.0));
        assert!(Record::decode(Key(0x78), &words).is_err(), "another row's");
    }

    #[test]
    fn a_deletion_is_a_record_without_a_value() {
        let mut words = [0; 8];
        let used = HEADER.encode(KEY, &PrimaryKey::from(1), None, &mut words);
        let record = Record::decode(KEY, &words[..used]).expect("whole");
        assert_eq!(record.contents(), Contents::Deleted);
        assert_eq!(record.header(), HEADER);
        assert_eq!(record.value_range(), None);
    }

    #[test]
    fn any_mix_of_two_writers_is_torn() {
        let key = PrimaryKey::from(1);
        let (mut old, mut new) = ([0; 8], [0; 8]);
        written_by(1).encode(KEY, &key, Some(&[1; 16]), &mut old);
        written_by(2).encode(KEY, &key, Some(&[1; 16]), &mut new);
        for mask in 0_u32..256 {
            let mixed: [u64; 8] =
                std::array::from_fn(
                    |word| if mask >> word & 1 == 1 { new[word] } else { old[word] },
                );
            let whole = mixed == old || mixed == new;
            assert_eq!(Record::decode(KEY, &mixed).is_ok(), whole, "words of the new: {mask:08b}");
        }
    }

    #[test]
    fn memory_never_written_and_lengths_beyond_the_buffer_are_torn() {
        assert_eq!(Record::decode(KEY, &[0; 8]), Err(Torn));
        assert_eq!(Record::decode(KEY, &[u64::MAX; 8]), Err(Torn));
        let mut words = [0; 8];
        let used = HEADER.encode(KEY, &PrimaryKey::from(1), Some(&[1; 16]), &mut words);
        assert_eq!(Record::decode(KEY, &words[..used - 1]), Err(Torn));
    }
}
