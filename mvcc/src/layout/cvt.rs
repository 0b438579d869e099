//! The consecutive version table of one row: a header and N cells (LOTUS §4.4, Figure 11).
//!
//! ```text
//! header   w0  key                       cell   w0  version word
//!          w1  table:16 cells:8 home:8          w1  record offset:40 0:8 state:8 head CV:8
//!              value limit:32                   w2  value length:32 0:24 tail CV:8
//!          w2  check:32 mark:31 1:1       home   `home` words, behind each cell
//! ```
//! Fields are listed from the low bits up. A header is written once, by the insert that takes the
//! slot. Each writer of the row writes a whole cell, and at commit the version word of that cell
//! alone.
//!
//! # The version word
//!
//! Zero means that the cell holds no version. A word with the top bit set is INVISIBLE and holds
//! the writer's [`TxnId`]; otherwise the word is the commit timestamp. So one word holds the writer
//! *or* the commit time, and the change from writer to commit time cannot tear.
//!
//! # The record slot
//!
//! A cell names the slot of its version's record. A writer writes its record first: either over the
//! displaced version's record in the same slot, or into a new slot, which the cell then names. In
//! the second case the displaced version stays in its slot for snapshots that may still need it
//! ([`crate::retention`]). A cleared cell keeps its slot, unless trimmed.
//!
//! A tombstone can do without a record. When memory is exhausted, a delete whose cell names no slot
//! writes no record; such a cell had no version, or another tombstone without a record, so no mix
//! of its new and earlier words looks like a deletion that never happened ([`crate::acceptance`]).
//!
//! # The home slot
//!
//! In tables with small keys and values, each cell is followed by its own record slot, its *home*
//! ([`CvtShape`]): a READ fetches versions and values together, a WRITE stores both. A cell names
//! its home like any other slot, and may name a slot elsewhere instead: while the version in the
//! home may still be needed, the next record goes elsewhere. A home is part of its CVT for ever and
//! never free memory.

use lotus_fabric::ids::{Key, TableId, TxnId};

use super::{OFFSET_BITS, Torn, WORD_BYTES, field, hash};
use crate::naming::{KeyMark, RowName};
use crate::timestamp::Timestamp;

/// Number of words of a CVT's header.
pub const HEADER_WORDS: usize = 3;
/// Number of words of a cell.
pub const CELL_WORDS: usize = 3;
/// Smallest number of cells: with a single one, the newest committed version would have to be
/// overwritten before its successor commits, and an abort could not bring it back (I18).
pub const MIN_CELLS: usize = 2;
/// Largest number of cells.
pub const MAX_CELLS: usize = 8;

/// Largest number of words of a home slot.
pub const MAX_HOME_WORDS: usize = 24;

/// Shape of the CVTs of a table: the number of cells, and the words of each cell's home slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CvtShape {
    cells: u8,
    home_words: u8,
}

impl CvtShape {
    /// CVTs of `cells` cells, each with a home slot of `home_words` words; 0 for no home slot, as
    /// in LOTUS.
    ///
    /// # Panics
    /// If there are fewer cells than [`MIN_CELLS`], more than [`MAX_CELLS`], or more home words
    /// than [`MAX_HOME_WORDS`].
    #[inline]
    pub const fn new(cells: usize, home_words: usize) -> Self {
        assert!(MIN_CELLS <= cells && cells <= MAX_CELLS, "a CVT has 2 to 8 cells");
        assert!(home_words <= MAX_HOME_WORDS, "a home slot is small");
        Self { cells: cells as u8, home_words: home_words as u8 }
    }

    /// Number of cells.
    #[inline]
    pub const fn cells(self) -> usize {
        self.cells as usize
    }

    /// Number of words of a home slot; 0 if cells have no home slot.
    #[inline]
    pub const fn home_words(self) -> usize {
        self.home_words as usize
    }

    /// Number of words of a cell and its home slot.
    #[inline]
    pub const fn stride(self) -> usize {
        CELL_WORDS + self.home_words()
    }

    /// Number of words of a CVT.
    #[inline]
    pub const fn words(self) -> usize {
        self.cell_word(self.cells())
    }

    /// Index, among the words of a CVT, of the first word of cell `index`: its version word.
    #[inline]
    pub const fn cell_word(self, index: usize) -> usize {
        HEADER_WORDS + self.stride() * index
    }

    /// Bytes from the start of a CVT to cell `index`, where its version word stands.
    #[inline]
    pub const fn cell_offset(self, index: usize) -> u64 {
        (self.cell_word(index) * WORD_BYTES) as u64
    }

    /// Offset of the home slot of cell `index` of the CVT at `cvt`; 0 if cells have no home slot.
    #[inline]
    pub const fn home(self, cvt: u64, index: usize) -> u64 {
        if self.home_words == 0 {
            return 0;
        }
        cvt + self.cell_offset(index) + (CELL_WORDS * WORD_BYTES) as u64
    }
}

const _: () = {
    let paper = CvtShape::new(2, 0);
    assert!(paper.words() * WORD_BYTES == 72, "the paper's 72 bytes at N = 2");
    assert!(paper.cell_offset(0) == 24 && paper.cell_offset(1) == 48);
    let small = CvtShape::new(2, 8);
    assert!(small.words() * WORD_BYTES == 200, "two records of a line each, in their cells");
    assert!(small.home(4096, 1) == 4096 + 24 + 88 + 24);
};

const INVISIBLE: u64 = 1 << 63;
const CHECK_SET: u64 = 1 << 63;
/// Bits of the check in a header's last word, below the mark.
const CHECK_BITS: u32 = 32;

const _: () = assert!(CHECK_BITS + KeyMark::BITS + 1 == u64::BITS, "the word has no bit to spare");

/// Meaning of a version word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// The cell holds no version.
    None,
    /// The writer has not committed yet, or died before its commit.
    Invisible(TxnId),
    /// The version was committed at this time.
    Committed(Timestamp),
}

impl Version {
    /// Encodes the version as a word.
    ///
    /// # Panics
    /// If the commit timestamp is [`Timestamp::ZERO`], whose word means "no version".
    #[inline]
    pub fn encode(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Invisible(writer) => INVISIBLE | writer.raw(),
            Self::Committed(time) => {
                assert!(time > Timestamp::ZERO, "a version's timestamp is never zero");
                time.raw()
            }
        }
    }

    /// Whether this is a committed version later than `time`.
    pub fn is_after(self, time: Timestamp) -> bool {
        matches!(self, Self::Committed(own) if own > time)
    }

    /// Decodes a version word.
    #[inline]
    pub fn decode(word: u64) -> Self {
        match Timestamp::new(word) {
            Some(Timestamp::ZERO) => Self::None,
            Some(time) => Self::Committed(time),
            None => Self::Invisible(TxnId::from_raw(word ^ INVISIBLE)),
        }
    }
}

/// State of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CellState {
    /// No writer ever took the cell, so no version was ever lost from it.
    NeverUsed = 0,
    /// The version is a value.
    Valid = 1,
    /// The version is the row's deletion.
    Tombstone = 2,
    /// Emptied by an abort or by recovery; an earlier version, if any, is gone.
    Cleared = 3,
    /// Emptied, and its slot taken away. So a version was lost, even if other cells were never
    /// taken by a writer; the next writer takes such an unused cell.
    Trimmed = 4,
}

impl CellState {
    #[inline]
    pub(crate) const fn decode(raw: u64) -> Result<Self, Torn> {
        match raw {
            0 => Ok(Self::NeverUsed),
            1 => Ok(Self::Valid),
            2 => Ok(Self::Tombstone),
            3 => Ok(Self::Cleared),
            4 => Ok(Self::Trimmed),
            _ => Err(Torn),
        }
    }

    /// Whether a cell in this state has a version.
    #[inline]
    const fn has_version(self) -> bool {
        matches!(self, Self::Valid | Self::Tombstone)
    }
}

/// One version of a row, as described by a cell of the CVT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Version word of the cell.
    pub version: Version,
    /// State of the cell.
    pub state: CellState,
    /// Offset of the bound record slot in the group's region; 0 if no slot is bound. A value always
    /// has a slot.
    pub record: u64,
    /// Length of the version's value in bytes; 0 for a tombstone.
    pub length: u32,
    /// Cacheline version (LOTUS §7.1): number of writes of the cell, modulo 256. Stored at both
    /// ends of the cell, as a cheap first test for a torn read.
    pub writes: u8,
}

impl Cell {
    /// A cell that no writer has taken yet: three zero words.
    pub const NEVER_USED: Self = Self {
        version: Version::None,
        state: CellState::NeverUsed,
        record: 0,
        length: 0,
        writes: 0,
    };

    /// Encodes the cell as words.
    ///
    /// # Panics
    /// If the record offset does not fit in 40 bits.
    #[inline]
    pub fn encode(self) -> [u64; CELL_WORDS] {
        assert!(self.record >> OFFSET_BITS == 0, "record offset {:#x}", self.record);
        let writes = u64::from(self.writes) << 56;
        [
            self.version.encode(),
            self.record | (self.state as u64) << 48 | writes,
            u64::from(self.length) | writes,
        ]
    }

    /// Decodes the cell in `words`, which are [`CELL_WORDS`] long.
    ///
    /// # Errors
    /// [`Torn`] if no writer ever stored these three words together: the cacheline versions differ,
    /// or the version word and the state are contradictory.
    #[inline]
    pub fn decode(words: &[u64]) -> Result<Self, Torn> {
        let [version, place, size] = words else {
            panic!("a cell has {CELL_WORDS} words, not {}", words.len());
        };
        let cell = Self {
            version: Version::decode(*version),
            state: CellState::decode(field(*place, 48, 8))?,
            record: field(*place, 0, OFFSET_BITS),
            length: *size as u32,
            writes: field(*place, 56, 8) as u8,
        };
        let has_version = cell.version != Version::None;
        let whole = field(*size, 56, 8) == field(*place, 56, 8)
            && has_version == cell.state.has_version()
            && (cell.state != CellState::Valid || cell.record != 0);
        if whole { Ok(cell) } else { Err(Torn) }
    }

    /// Returns the cell that the next writer stores in this place, INVISIBLE until the writer
    /// commits.
    ///
    /// `record` is the slot of the version's record; 0 for a deletion without one.
    ///
    /// # Panics
    /// If `record` is 0 and the version is a value, or the cell names a slot: the writer forgot to
    /// reserve memory, or a reader could apply the deletion to the displaced version (I200).
    #[inline]
    #[must_use]
    pub fn taken_by(self, writer: TxnId, contents: Contents, record: u64) -> Self {
        let without = contents == Contents::Deleted && self.record == 0;
        assert!(record != 0 || without, "a cell is written only once its record slot is reserved");
        let (state, length) = match contents {
            Contents::Value { length } => (CellState::Valid, length),
            Contents::Deleted => (CellState::Tombstone, 0),
        };
        let version = Version::Invisible(writer);
        Self { version, state, record, length, writes: self.writes.wrapping_add(1) }
    }

    /// Returns the cell emptied and without its slot, which is free memory from then on.
    #[inline]
    #[must_use]
    pub fn trimmed(self) -> Self {
        Self { state: CellState::Trimmed, record: 0, ..self.cleared() }
    }

    /// Returns the cell as emptied by an abort or by recovery.
    #[inline]
    #[must_use]
    pub fn cleared(self) -> Self {
        Self {
            version: Version::None,
            state: CellState::Cleared,
            length: 0,
            writes: self.writes.wrapping_add(1),
            ..self
        }
    }
}

/// Contents of a row after a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// A value.
    Value {
        /// Length of the value in bytes.
        length: u32,
    },
    /// No value: the row is deleted.
    Deleted,
}

impl Contents {
    /// Length of the value in bytes; 0 for a deletion.
    #[inline]
    pub const fn byte_count(self) -> usize {
        match self {
            Self::Value { length } => length as usize,
            Self::Deleted => 0,
        }
    }
}

/// Constant part of a CVT, which identifies its row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CvtHeader {
    /// Name of the row, and the mark that distinguishes rows with the same name.
    pub name: RowName,
    /// The row's table.
    pub table: TableId,
    /// Number of cells that follow, and the words of their home slots.
    pub cvt: CvtShape,
    /// Largest length of a value, in bytes: the capacity of each record slot.
    pub value_limit: u32,
}

/// Contents of a bucket's slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// Free; an insert may take it.
    Free,
    /// The CVT of the row that the header names.
    Used(CvtHeader),
    /// An insert is landing, or the slot is being freed: read the slot again.
    Torn,
}

impl CvtHeader {
    /// Encodes the header as words, check word included.
    #[inline]
    pub fn encode(self) -> [u64; HEADER_WORDS] {
        let shape = u64::from(self.table.0)
            | u64::from(self.cvt.cells) << 16
            | u64::from(self.cvt.home_words) << 24
            | u64::from(self.value_limit) << 32;
        let RowName { key, mark } = self.name;
        [key.0, shape, last_word(key.0, shape, mark)]
    }

    /// Decodes the slot that begins with `words`.
    ///
    /// # Panics
    /// If `words` are fewer than [`HEADER_WORDS`].
    #[inline]
    pub fn decode(words: &[u64]) -> Slot {
        let [key, shape, last, ..] = *words else {
            panic!("a header has {HEADER_WORDS} words, not {}", words.len());
        };
        if key | shape | last == 0 {
            return Slot::Free;
        }
        let mark = KeyMark::from_low_bits(last >> CHECK_BITS);
        if last != last_word(key, shape, mark) {
            return Slot::Torn;
        }
        Slot::Used(Self {
            name: RowName { key: Key(key), mark },
            table: TableId(shape as u16),
            cvt: CvtShape {
                cells: field(shape, 16, 8) as u8,
                home_words: field(shape, 24, 8) as u8,
            },
            value_limit: field(shape, 32, 32) as u32,
        })
    }
}

/// Returns the header's last word: the mark, and a check over mark, key and shape. The top bit
/// distinguishes used from free slots.
#[inline]
fn last_word(key: u64, shape: u64, mark: KeyMark) -> u64 {
    let mark = u64::from(mark.raw());
    // The mark lies in the same word as its check, so the mark needs no mixing.
    let check = (hash(&[key, shape]) ^ mark) & (u64::MAX >> CHECK_BITS);
    CHECK_SET | mark << CHECK_BITS | check
}

/// A CVT as it was read: a view of its words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cvt<'a> {
    words: &'a [u64],
    shape: CvtShape,
}

impl<'a> Cvt<'a> {
    /// CVT of this shape in `words`.
    ///
    /// # Panics
    /// If the number of `words` differs from the shape's.
    #[inline]
    pub fn new(words: &'a [u64], shape: CvtShape) -> Self {
        assert_eq!(words.len(), shape.words(), "words of a CVT of {} cells", shape.cells);
        Self { words, shape }
    }

    /// All words of the CVT.
    #[inline]
    pub const fn words(self) -> &'a [u64] {
        self.words
    }

    /// The header, decoded.
    #[inline]
    pub fn slot(self) -> Slot {
        CvtHeader::decode(self.words)
    }

    /// Decodes cell `index`.
    ///
    /// # Errors
    /// [`Torn`], as [`Cell::decode`] says.
    #[inline]
    pub fn cell(self, index: usize) -> Result<Cell, Torn> {
        Cell::decode(&self.words[self.shape.cell_word(index)..][..CELL_WORDS])
    }

    /// Decodes every cell in order.
    #[inline]
    pub fn cells(self) -> impl Iterator<Item = Result<Cell, Torn>> + 'a {
        let each = self.words[HEADER_WORDS..].chunks_exact(self.shape.stride());
        each.map(|cell| Cell::decode(&cell[..CELL_WORDS]))
    }

    /// Version words of all cells, in order.
    #[inline]
    pub fn version_words(self) -> impl Iterator<Item = u64> + 'a {
        self.words[HEADER_WORDS..].chunks_exact(self.shape.stride()).map(|cell| cell[0])
    }

    /// Words of the home slot of cell `index`, if `record` is the offset of that slot in a CVT at
    /// `offset`; `None` if the record is elsewhere.
    #[inline]
    pub fn home_words(self, offset: u64, index: usize, record: u64) -> Option<&'a [u64]> {
        let home = self.shape.home(offset, index);
        let start = self.shape.cell_word(index) + CELL_WORDS;
        (home != 0 && home == record).then(|| &self.words[start..][..self.shape.home_words()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: CvtShape = CvtShape::new(2, 8);
    const NAME: RowName =
        RowName { key: Key(0xABCD_1234), mark: KeyMark::from_low_bits(0x7654_3210) };
    const HEADER: CvtHeader =
        CvtHeader { name: NAME, table: TableId(7), cvt: SHAPE, value_limit: 16 };

    fn committed(time: u64) -> Version {
        Version::Committed(Timestamp::new(time).expect("63 bits"))
    }

    fn valid() -> Cell {
        Cell::NEVER_USED.taken_by(TxnId::from_raw(9), Contents::Value { length: 16 }, 4096)
    }

    #[test]
    fn version_words_say_one_thing_each() {
        let all = [
            (Version::None, 0),
            (committed(1), 1),
            (committed(u64::MAX >> 1), u64::MAX >> 1),
            (Version::Invisible(TxnId::from_raw(0)), 1 << 63),
            (Version::Invisible(TxnId::from_raw(u64::MAX >> 1)), u64::MAX),
        ];
        for (version, word) in all {
            assert_eq!(version.encode(), word);
            assert_eq!(Version::decode(word), version);
        }
    }

    #[test]
    fn the_layout_is_pinned() {
        let cell = Cell {
            version: committed(0x11),
            state: CellState::Tombstone,
            record: 0xAA_BBCC_DDEE,
            length: 0x1234_5678,
            writes: 0xF1,
        };
        let words = [0x11, 0xF102_00AA_BBCC_DDEE, 0xF100_0000_1234_5678];
        assert_eq!(cell.encode(), words);
        assert_eq!(Cell::decode(&words), Ok(cell));
        assert_eq!(HEADER.encode()[..2], [0xABCD_1234, 16 << 32 | 8 << 24 | 2 << 16 | 7]);
        assert_eq!(HEADER.encode()[2] >> 32, 0xF654_3210);
        assert_eq!(CvtHeader::decode(&HEADER.encode()), Slot::Used(HEADER));
        assert_eq!(Cell::NEVER_USED.encode(), [0; CELL_WORDS]);
    }

    #[test]
    fn cells_and_homes_lie_where_the_shape_says() {
        for (cells, home_words) in [(2, 0), (2, 8), (3, 11), (MAX_CELLS, MAX_HOME_WORDS)] {
            let shape = CvtShape::new(cells, home_words);
            let words: Vec<u64> = (0..shape.words() as u64).collect();
            let cvt = Cvt::new(&words, shape);
            let versions: Vec<u64> = cvt.version_words().collect();
            assert_eq!(versions.len(), cells);
            for (index, first) in versions.iter().enumerate() {
                assert_eq!(first * WORD_BYTES as u64, shape.cell_offset(index));
                let home = shape.home(4096, index);
                let Some(found) = cvt.home_words(4096, index, home) else {
                    assert_eq!((home_words, home), (0, 0));
                    continue;
                };
                assert_eq!(found[0] * WORD_BYTES as u64, home - 4096);
                assert_eq!(found.len(), home_words);
                assert_eq!(cvt.home_words(4096, index, home + 64), None);
            }
        }
    }

    #[test]
    fn a_header_is_free_whole_or_torn() {
        let words = HEADER.encode();
        for landed in 0..1 << HEADER_WORDS {
            let partly = [0, 1, 2].map(|w| if landed >> w & 1 == 1 { words[w] } else { 0 });
            let expected = match landed {
                0 => Slot::Free,
                7 => Slot::Used(HEADER),
                _ => Slot::Torn,
            };
            assert_eq!(CvtHeader::decode(&partly), expected, "words landed: {landed:03b}");
        }
    }

    #[test]
    fn headers_of_rows_that_share_a_name_are_never_mixed() {
        let other = CvtHeader { name: RowName { mark: KeyMark::default(), ..NAME }, ..HEADER };
        let [key, shape, last] = other.encode();
        assert_eq!((key, CvtHeader::decode(&[key, shape, last])), (NAME.key.0, Slot::Used(other)));
        let check = (1 << CHECK_BITS) - 1;
        let mixed = [key, shape, last & check | HEADER.encode()[2] & !check];
        assert_eq!(CvtHeader::decode(&mixed), Slot::Torn);
    }

    #[test]
    fn a_cell_names_the_slot_of_its_last_writer() {
        let writer = TxnId::from_raw(12);
        let taken = valid();
        assert_eq!((taken.record, taken.writes, taken.length), (4096, 1, 16));
        let cleared = taken.cleared();
        assert_eq!((cleared.record, cleared.writes), (4096, 2));
        assert_eq!((cleared.version, cleared.state), (Version::None, CellState::Cleared));
        let trimmed = taken.trimmed();
        assert_eq!(trimmed, Cell { state: CellState::Trimmed, record: 0, ..cleared });
        assert_eq!(Cell::decode(&trimmed.encode()), Ok(trimmed));
        let again = cleared.taken_by(writer, Contents::Deleted, 8192);
        assert_eq!((again.record, again.state), (8192, CellState::Tombstone));
        assert_eq!(again.version, Version::Invisible(writer));
    }

    #[test]
    fn words_that_never_stood_together_are_torn() {
        let [version, place, size] = valid().encode();
        let cases: [(&str, [u64; 3]); 6] = [
            ("head and tail differ", [version, place, size + (1 << 56)]),
            ("version without a state", [version, 0, 0]),
            ("state without a version", [0, place, size]),
            ("version in a cleared cell", [version, place & !(0xFF << 48) | 3 << 48, size]),
            ("version without a record", [version, place & !0xFF_FFFF_FFFF, size]),
            ("unknown state", [version, place | 0x80 << 48, size]),
        ];
        for (why, words) in cases {
            assert_eq!(Cell::decode(&words), Err(Torn), "{why}");
        }
    }

    #[test]
    fn a_deletion_without_a_record_is_whole() {
        let writer = TxnId::from_raw(1);
        for before in [Cell::NEVER_USED, valid().trimmed()] {
            let taken = before.taken_by(writer, Contents::Deleted, 0);
            assert_eq!(Cell::decode(&taken.encode()), Ok(taken));
            let deleted = Cell { version: committed(5), ..taken };
            assert_eq!(Cell::decode(&deleted.encode()), Ok(deleted));
            // A mix of its words with the earlier ones is no deletion.
            let [_, place, size] = deleted.encode();
            assert_eq!(Cell::decode(&[before.encode()[0], place, size]), Err(Torn));
        }
    }

    #[test]
    #[should_panic(expected = "record slot is reserved")]
    fn a_value_is_never_written_without_a_slot() {
        let value = Contents::Value { length: 0 };
        let _ = Cell::NEVER_USED.taken_by(TxnId::from_raw(1), value, 0);
    }

    #[test]
    #[should_panic(expected = "record slot is reserved")]
    fn a_deletion_never_takes_the_slot_of_a_version_away() {
        let _ = valid().taken_by(TxnId::from_raw(1), Contents::Deleted, 0);
    }
}
