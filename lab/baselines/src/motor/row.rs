//! Bytes of a Motor row: the version table (CVT) in a slot of the index, the newest value beside
//! the index, and the differences of older versions.
//!
//! # The slot
//! | words | |
//! |---|---|
//! | 0–3 | primary key, its length in the last byte |
//! | 4 | offset of the row's bar of deltas, plus one; 0 before the first update |
//! | 5 | unused: Motor stores the offset of the value here, which we compute |
//! | 6 | number of the table, plus one; 0 while the slot is free |
//! | 7 | lock: 0, or the transaction that holds it |
//! | 8 … | cells of three words |
//!
//! The words of a cell: the version; the link to the value ([`Link`]); length, deletion flag, and
//! bits that reveal a cell with words of two writers.
//!
//! Words land in ascending order. So a key is complete when its slot appears taken, and the lock
//! becomes free only after the other words have landed.
//!
//! # The value
//! The version stands before and behind the value, so that a value being overwritten is detected
//! (Motor has an anchor of one byte at either end, which wraps). Between them is the *content*: the
//! value, padded to words, and its writer, a word that Motor does not have.
//!
//! # Deltas
//! With [`Records::Deltas`] there is one value beside the index, the newest. Motor stores a
//! writer's change as the *old* bytes of the changed attributes. Our workloads name no attributes,
//! so the content is divided into at most 48 chunks of whole words. A delta is its version and the
//! old words of the chunks that differ.
//!
//! # Full records
//! With [`Records::Full`] there is a value for each cell beside the index; a value is never
//! changed, only replaced (LOTUS §7.1). The words at its ends name the writer, as the cell does:
//! the version is not yet known where cells begin INVISIBLE.

use lotus_fabric::ids::TxnId;
use lotus_mvcc::{PrimaryKey, TableSpec};

use crate::store::Records;
use crate::store::index::{KEY_WORDS, key_of, key_words};

pub(crate) const WORD: usize = 8;
pub(crate) const DELTA_AT: usize = 4;
const TABLE_AT: usize = 6;
pub(crate) const LOCK_AT: usize = 7;
pub(crate) const HEADER_WORDS: usize = 8;
pub(crate) const CELL_WORDS: usize = 3;
/// Maximum number of chunks of a content; a cell has a bit for each chunk.
const MAX_CHUNKS: usize = 48;
/// Maximum number of versions of a row.
pub(crate) const MAX_CELLS: usize = 8;
const PLACE_SHIFT: u32 = 48;
const DELETED: u64 = 1 << 32;
/// Set in the cell of a version that has its own record.
const RECORD: u64 = 1 << 33;
const RECORD_PLACE_SHIFT: u32 = 34;
const TAG_SHIFT: u32 = 40;
/// Version of a loaded row.
const LOADED: u64 = 1;
/// Writer of a loaded record; not the id of any transaction.
const LOADER: u64 = u64::MAX;
/// Version of a cell whose commit has no timestamp yet (LOTUS §5.1). No snapshot includes it.
pub(crate) const INVISIBLE: u64 = u64::MAX;

/// Lengths of the rows of one table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// Versions of a row.
    pub(crate) cells: usize,
    pub(crate) records: Records,
    /// Words of the longest value and of its writer.
    pub(crate) content_words: usize,
    /// Words of a chunk; the last chunk may be shorter.
    chunk_words: usize,
}

impl Shape {
    pub(crate) fn new(spec: &TableSpec, records: Records) -> Self {
        let content_words = (spec.record_bytes as usize).div_ceil(WORD) + 1;
        let chunk_words = content_words.div_ceil(MAX_CHUNKS);
        Self { cells: spec.versions as usize, records, content_words, chunk_words }
    }

    pub(crate) const fn slot_words(&self) -> usize {
        HEADER_WORDS + self.cells * CELL_WORDS
    }

    /// Words of the value with the versions at both ends.
    pub(crate) const fn value_words(&self) -> usize {
        self.content_words + 2
    }

    /// Words of all values of a row.
    pub(crate) const fn beside_words(&self) -> usize {
        match self.records {
            Records::Deltas => self.value_words(),
            Records::Full => self.cells * self.value_words(),
        }
    }

    /// Offset of the value at `place` among the values of its row.
    pub(crate) const fn value_at(&self, place: u8) -> u64 {
        (place as usize * self.value_words() * WORD) as u64
    }

    /// Words of the longest delta.
    const fn delta_words(&self) -> usize {
        self.content_words + 1
    }

    /// Bytes of a row's bar: a delta for each version but the oldest.
    pub(crate) const fn bar_bytes(&self) -> u64 {
        match self.records {
            Records::Deltas => ((self.cells - 1) * self.delta_words() * WORD) as u64,
            Records::Full => 0,
        }
    }

    /// Offset in the bar of the delta at `place`.
    pub(crate) const fn delta_at(&self, place: u8) -> u64 {
        (place as usize * self.delta_words() * WORD) as u64
    }

    /// The words of a chunk.
    fn chunk(&self, chunk: usize) -> std::ops::Range<usize> {
        let first = chunk * self.chunk_words;
        first..(first + self.chunk_words).min(self.content_words)
    }

    /// Words of a delta with the changed chunks `changed`.
    pub(crate) fn words_of_delta(&self, changed: u64) -> usize {
        1 + chunks_of(changed).map(|chunk| self.chunk(chunk).len()).sum::<usize>()
    }

    /// Bits of the chunks in which two contents differ.
    pub(crate) fn changed(&self, old: &[u64], new: &[u64]) -> u64 {
        let chunks = old.chunks(self.chunk_words).zip(new.chunks(self.chunk_words));
        let bits = chunks.enumerate().map(|(chunk, (old, new))| u64::from(old != new) << chunk);
        bits.fold(0, |all, bit| all | bit)
    }

    /// Fills in the delta that undoes `version`.
    pub(crate) fn write_delta(&self, version: u64, changed: u64, old: &[u64], delta: &mut [u64]) {
        delta[0] = version;
        let mut next = 1;
        for part in chunks_of(changed).map(|chunk| self.chunk(chunk)) {
            let words = part.len();
            delta[next..next + words].copy_from_slice(&old[part]);
            next += words;
        }
    }

    /// Undoes a version; `false` if the words are the delta of another version.
    #[must_use]
    pub(crate) fn take_back(
        &self,
        (version, delta): (u64, Delta),
        words: &[u64],
        content: &mut [u64],
    ) -> bool {
        let mut next = 1;
        for part in chunks_of(delta.changed).map(|chunk| self.chunk(chunk)) {
            let length = part.len();
            content[part].copy_from_slice(&words[next..next + length]);
            next += length;
        }
        words[0] == version
    }

    /// The content of a value as read; `None` unless `anchor` is at both ends of the value.
    pub(crate) fn content_of<'v>(&self, value: &'v [u64], anchor: u64) -> Option<&'v [u64]> {
        let (first, rest) = value.split_first()?;
        let (last, content) = rest.split_last()?;
        (*first == anchor && *last == anchor).then_some(content)
    }

    /// Fills in a value.
    pub(crate) fn write_value(&self, anchor: u64, content: &[u64], value: &mut [u64]) {
        let last = self.value_words() - 1;
        (value[0], value[last]) = (anchor, anchor);
        value[1..last].copy_from_slice(content);
    }

    /// Lays out a loaded row.
    pub(crate) fn lay_out(
        &self,
        table: usize,
        (key, value, bar): (&PrimaryKey, &[u8], Option<u64>),
        slot: &mut [u64],
        beside: &mut [u64],
    ) {
        slot[..HEADER_WORDS].copy_from_slice(&header(table, key, bar.map_or(0, |bar| bar + 1)));
        let (anchor, link) = match self.records {
            Records::Deltas => (LOADED, Link::default()),
            Records::Full => (LOADER, Link::Record { writer: LOADER, place: 0 }),
        };
        let cell = Cell { version: LOADED, bytes: value.len() as u32, deleted: false, link };
        slot[HEADER_WORDS..HEADER_WORDS + CELL_WORDS].copy_from_slice(&cell.to_words());
        let mut content = vec![0; self.content_words];
        for (word, bytes) in content.iter_mut().zip(value.chunks(WORD)) {
            let mut padded = [0; WORD];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(padded);
        }
        self.write_value(anchor, &content, &mut beside[..self.value_words()]);
    }
}

/// Positions of the set bits.
fn chunks_of(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let chunk = bits.trailing_zeros() as usize;
        let is_set = bits != 0;
        bits &= bits.wrapping_sub(1);
        is_set.then_some(chunk)
    })
}

/// The writer in the last word of a content.
pub(crate) fn writer_of(content: &[u64]) -> Option<TxnId> {
    let word = *content.last()?;
    (word != 0 && word >> 63 == 0).then(|| TxnId::from_raw(word))
}

/// Header of an unlocked slot.
pub(crate) fn header(table: usize, key: &PrimaryKey, delta: u64) -> [u64; HEADER_WORDS] {
    let [a, b, c, d] = key_words(key);
    [a, b, c, d, delta, 0, table as u64 + 1, 0]
}

/// The delta that undoes a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Delta {
    /// Bits of the chunks that the writer changed.
    pub(crate) changed: u64,
    /// The delta's place in the bar.
    pub(crate) place: u8,
}

/// Link from a cell to the value of its version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Link {
    /// The value is the row's value after undoing all newer versions; this delta undoes the cell's
    /// own version.
    Delta(Delta),
    /// The version has its own record: the record's writer, and its place among the row's records.
    Record { writer: u64, place: u8 },
}

impl Default for Link {
    fn default() -> Self {
        Self::Delta(Delta::default())
    }
}

/// One version of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cell {
    /// Timestamp of the commit; 0 if the cell has no version.
    pub(crate) version: u64,
    /// Length of the value.
    pub(crate) bytes: u32,
    /// Whether the row was deleted.
    pub(crate) deleted: bool,
    pub(crate) link: Link,
}

impl Cell {
    pub(crate) fn to_words(self) -> [u64; CELL_WORDS] {
        let length = u64::from(self.bytes) | if self.deleted { DELETED } else { 0 };
        match self.link {
            Link::Delta(Delta { changed, place }) => {
                let link = changed | u64::from(place) << PLACE_SHIFT;
                [self.version, link, length | self.version << TAG_SHIFT]
            }
            Link::Record { writer, place } => {
                let place = RECORD | u64::from(place) << RECORD_PLACE_SHIFT;
                [self.version, writer, length | place | tag_of(writer) << TAG_SHIFT]
            }
        }
    }

    /// Whether the words of a cell are from one writer.
    fn is_whole([version, link, length]: &[u64; CELL_WORDS]) -> bool {
        let tag = if length & RECORD == 0 { *version } else { tag_of(*link) };
        length >> TAG_SHIFT == tag << TAG_SHIFT >> TAG_SHIFT
    }

    /// The cell encoded by `words`, which are whole.
    fn of(words: &[u64; CELL_WORDS]) -> Self {
        let [version, link, length] = *words;
        let link = if length & RECORD == 0 {
            let changed = link & ((1 << PLACE_SHIFT) - 1);
            Link::Delta(Delta { changed, place: (link >> PLACE_SHIFT) as u8 })
        } else {
            let place = (length >> RECORD_PLACE_SHIFT) as u8 % MAX_CELLS as u8;
            Link::Record { writer: link, place }
        };
        Self { version, bytes: length as u32, deleted: length & DELETED != 0, link }
    }

    /// Place of the value to read for this version, among the row's values.
    pub(crate) fn value_place(&self) -> u8 {
        match self.link {
            Link::Delta(_) => 0,
            Link::Record { place, .. } => place,
        }
    }
}

/// Bits of a writer's id that combine the attempt and the coroutine.
const fn tag_of(writer: u64) -> u64 {
    writer ^ writer >> TxnId::ATTEMPT_BITS
}

/// A version table as read: the words of its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cvt<'w> {
    slot: &'w [u64],
    /// Number of the cell with the newest version, and the version; 0 if there is no version.
    newest: (usize, u64),
}

impl<'w> Cvt<'w> {
    /// Reads a slot; `None` if a cell was being written.
    pub(crate) fn of(slot: &'w [u64]) -> Option<Self> {
        let mut newest = (0, 0);
        for (at, words) in cells_in(slot).iter().enumerate() {
            if !Cell::is_whole(words) {
                return None;
            }
            if words[0] > newest.1 {
                newest = (at, words[0]);
            }
        }
        Some(Self { slot, newest })
    }

    pub(crate) fn lock(&self) -> u64 {
        self.slot[LOCK_AT]
    }

    /// Offset of the row's bar of deltas, if any.
    pub(crate) fn bar(&self) -> Option<u64> {
        self.slot[DELTA_AT].checked_sub(1)
    }

    pub(crate) fn cells(&self) -> impl Iterator<Item = Cell> + use<'w> {
        cells_in(self.slot).iter().map(Cell::of)
    }

    /// The versions of all cells; 0 for cells without a version.
    pub(crate) fn versions(&self) -> impl Iterator<Item = u64> + use<'w> {
        cells_in(self.slot).iter().map(|words| words[0])
    }

    /// The newest version, if any.
    pub(crate) fn newest(&self) -> Option<Cell> {
        let (at, version) = self.newest;
        (version != 0).then(|| Cell::of(&cells_in(self.slot)[at]))
    }

    /// Timestamp of the newest version; 0 if there is no version.
    pub(crate) fn newest_version(&self) -> u64 {
        self.newest.1
    }

    /// Word at both ends of the value to read for a version.
    pub(crate) fn anchor(&self, seen: &Cell) -> u64 {
        match seen.link {
            Link::Delta(_) => self.newest.1,
            Link::Record { writer, .. } => writer,
        }
    }
}

/// The cells in the words of a slot.
fn cells_in(slot: &[u64]) -> &[[u64; CELL_WORDS]] {
    slot[HEADER_WORDS..].as_chunks().0
}

/// The key of a slot; `None` if the slot is free.
pub(crate) fn key_in(slot: &[u64]) -> Option<PrimaryKey> {
    (slot[TABLE_AT] != 0).then(|| key_of(&slot[..KEY_WORDS])).flatten()
}

/// Whether a slot contains the row with this key.
#[inline]
pub(crate) fn is_of(slot: &[u64], table: usize, key: &PrimaryKey) -> bool {
    slot[TABLE_AT] == table as u64 + 1 && slot[..KEY_WORDS] == key_words(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(record_bytes: u32, versions: u32) -> Shape {
        let spec = TableSpec::new("t").record_bytes(record_bytes).capacity(1).versions(versions);
        Shape::new(&spec, Records::Deltas)
    }

    #[test]
    fn rows_of_smallbank_have_the_lengths_of_motor() {
        let shape = shape(16, 2);
        // A header of 64 bytes and two cells of 24.
        assert_eq!(shape.slot_words() * WORD, 64 + 2 * 24);
        // Value, writer, and a version at either end.
        assert_eq!(shape.value_words() * WORD, 16 + 8 + 16);
        assert_eq!(shape.bar_bytes(), 32);
    }

    #[test]
    fn cells_keep_their_parts_and_torn_ones_are_told() {
        let of_words = |words: &[u64; 3]| Cell::is_whole(words).then(|| Cell::of(words));
        let delta = Delta { changed: (1 << MAX_CHUNKS) - 1, place: 7 };
        let link = Link::Delta(delta);
        let cell = Cell { version: u64::MAX >> 1, bytes: 15 << 10, deleted: true, link };
        let words = cell.to_words();
        assert_eq!(of_words(&words), Some(cell));
        assert_eq!(of_words(&[5, words[1], words[2]]), None);
        assert_eq!(of_words(&[0; 3]), Some(Cell::default()));
        let link = Link::Record { writer: TxnId::MAX_ATTEMPT << 7, place: 7 };
        let record = Cell { version: INVISIBLE, link, ..cell };
        let words = record.to_words();
        assert_eq!(of_words(&words), Some(record));
        assert_eq!(of_words(&[9, words[1], words[2]]), Some(Cell { version: 9, ..record }));
        assert_eq!(of_words(&[words[0], 5, words[2]]), None);
        let same_attempt = words[1] ^ 1 << TxnId::ATTEMPT_BITS;
        assert_eq!(of_words(&[words[0], same_attempt, words[2]]), None);
    }

    #[test]
    fn a_row_of_full_records_has_one_for_each_cell_and_no_deltas() {
        let records = Records::Full;
        let shape = Shape { records, ..shape(16, 3) };
        assert_eq!((shape.beside_words(), shape.bar_bytes()), (3 * shape.value_words(), 0));
        let (mut slot, mut beside) = (vec![0; shape.slot_words()], vec![0; shape.beside_words()]);
        shape.lay_out(3, (&7_u64.into(), b"hello", None), &mut slot, &mut beside);
        let cvt = Cvt::of(&slot).expect("it is whole");
        let newest = cvt.newest().expect("it was loaded");
        assert_eq!((newest.version, newest.value_place()), (LOADED, 0));
        let value = &beside[..shape.value_words()];
        assert!(shape.content_of(value, cvt.anchor(&newest)).is_some());
        assert_eq!(shape.value_at(2) as usize, 2 * shape.value_words() * WORD);
    }

    #[test]
    fn a_delta_takes_a_version_back_whatever_its_length() {
        for record_bytes in [8, 16, 320, 672, 15 << 10] {
            let shape = shape(record_bytes, 3);
            let words = shape.content_words;
            let old: Vec<u64> = (0..words as u64).collect();
            let mut new = old.clone();
            for at in [0, words / 2, words - 1] {
                new[at] += 100;
            }
            let changed = shape.changed(&old, &new);
            let mut delta = vec![0; shape.words_of_delta(changed)];
            assert!(delta.len() <= shape.delta_words(), "{record_bytes}");
            shape.write_delta(9, changed, &old, &mut delta);
            let known = Delta { changed, place: 0 };
            let mut content = new.clone();
            assert!(shape.take_back((9, known), &delta, &mut content), "{record_bytes}");
            assert_eq!(content, old, "{record_bytes}");
            assert!(!shape.take_back((8, known), &delta, &mut content));
        }
    }

    #[test]
    fn a_loaded_row_is_read_back() {
        let shape = shape(5, 2);
        let (mut slot, mut beside) = (vec![0; shape.slot_words()], vec![0; shape.value_words()]);
        let key = PrimaryKey::from(7_u64);
        assert!(key_in(&slot).is_none());
        shape.lay_out(3, (&key, b"hello", None), &mut slot, &mut beside);
        assert!(is_of(&slot, 3, &key) && !is_of(&slot, 2, &key));
        assert_eq!(key_in(&slot), Some(key));
        let cvt = Cvt::of(&slot).expect("it is whole");
        assert_eq!((cvt.lock(), cvt.bar(), cvt.newest_version()), (0, None, LOADED));
        let content = shape.content_of(&beside, LOADED).expect("it is whole");
        assert_eq!((content[0].to_le_bytes(), writer_of(content)), (*b"hello\0\0\0", None));
        assert_eq!(shape.content_of(&beside, LOADED + 1), None);
    }
}
