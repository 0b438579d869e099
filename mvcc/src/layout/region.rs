//! The region of a replica group: a header, a slab directory, and slabs.
//!
//! ```text
//! 0      w0 magic | w1 format version | w2 allocation cursor | w3 region bytes | w4 purge time
//!        | w5 life | zero to 1016
//! 1016   how often shards have changed owners
//! 1024   one word for each compute node: its floor, 0 for none yet | zero to 3072
//! 3072   one word for each compute node: its beat
//! 3584   one word for each compute node: its load, 0 for none yet
//! 4096   one word for each shard: its owner and the epoch since which it is
//! 36864  one word for each shard: how many locks of it are asked for
//! 69632  one word for each 256 KiB of the region: kind:8 table:16 incarnation:16 take:24
//! then   slabs, each at a multiple of 256 KiB
//! ```
//! The cursor only grows, by compare-and-swap on the primary of the group. A newly allocated slab
//! is entered in the directory before use, so that recovery can tell its owner. A slab of a dropped
//! table is zeroed and marked [free](FREE_SLAB), and is reallocated by compare-and-swap of its
//! directory word. Word `i` of the directory stands for the bytes from `i` times 256 KiB, the
//! header's own slabs included, so that one shift finds a slab's word.
//!
//! Floors ([`crate::horizon`]) stand in the first group's region only, and are read from its
//! primary only. Each node writes its own floor, and after a promotion writes the floor again
//! before it is missed. The same holds for loads. Beats, the signs of life of compute nodes, stand
//! on every memory node, in the region of the group whose first primary the memory node was.
//!
//! Owners ([`OWNERS_OFFSET`]) also stand in the first group's region, on every replica: the
//! primary's words are authoritative, and the backups follow before the new owner is told.

use lotus_fabric::ids::{Incarnation, ShardId, TableId};
use thiserror::Error;

use super::{FORMAT_VERSION, OFFSET_BITS, WORD_BYTES, field};

/// Number of bytes of the header.
pub const HEADER_BYTES: u64 = RATES_OFFSET + ShardId::COUNT as u64 * WORD_BYTES as u64;
/// Number of bytes of a slab, and its alignment.
pub const SLAB_BYTES: u64 = 256 << 10;
/// First word of every region: `LOTUSMEM` in memory order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"LOTUSMEM");
/// Offset of the allocation cursor, in bytes.
pub const CURSOR_OFFSET: u64 = 2 * WORD_BYTES as u64;

/// Offset of the purge time, in bytes: every purged row was deleted at or before this time. The
/// purge time only grows, on every replica before a row is purged.
pub const PURGE_TIME_OFFSET: u64 = 4 * WORD_BYTES as u64;
/// Offset of the memory node's life, in bytes: 0 for the first life. The word stands in the region
/// of the group whose first primary the node was, and is written last when blank memory is
/// initialised.
pub const LIFE_OFFSET: u64 = 5 * WORD_BYTES as u64;
/// Offset, in bytes, of the counter of ownership changes. The counter is raised after each change
/// of a shard's owner, and makes its readers read the owners again.
pub const CHANGES_OFFSET: u64 = FLOORS_OFFSET - WORD_BYTES as u64;
/// Offset of the array of floors of compute nodes, in bytes.
pub const FLOORS_OFFSET: u64 = 1024;
/// Number of compute nodes that the array has room for.
pub const MAX_FLOORS: usize = 256;
/// Offset of the array of beats of compute nodes, in bytes.
pub const BEATS_OFFSET: u64 = FLOORS_OFFSET + (MAX_FLOORS * WORD_BYTES) as u64;
/// Number of compute nodes that the array has room for.
pub const MAX_BEATS: usize = 64;
/// Offset of the array of loads of compute nodes, in bytes.
pub const LOADS_OFFSET: u64 = BEATS_OFFSET + (MAX_BEATS * WORD_BYTES) as u64;
/// Offset of the array of owners of shards, in bytes.
pub const OWNERS_OFFSET: u64 = LOADS_OFFSET + (MAX_BEATS * WORD_BYTES) as u64;
/// Offset of the array of request rates of shards, in bytes.
pub const RATES_OFFSET: u64 = OWNERS_OFFSET + ShardId::COUNT as u64 * WORD_BYTES as u64;

const _: () = assert!(CURSOR_OFFSET == 16 && LIFE_OFFSET == 40);
const _: () = assert!(BEATS_OFFSET == 3072 && LOADS_OFFSET == 3584 && OWNERS_OFFSET == 4096);
const _: () = assert!(RATES_OFFSET == 36864 && HEADER_BYTES == 69632);
const _: () = assert!(SLAB_BYTES.is_power_of_two() && HEADER_BYTES < SLAB_BYTES);

/// Reason why a region cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The first word is not [`MAGIC`]: the memory is not a region, or was never formatted. The
    /// caller has the wrong address, or must format the region.
    #[error("not a LOTUS region: the first word is {found:#018x}")]
    NotARegion {
        /// First word found.
        found: u64,
    },
    /// Another version of this program formatted the region. The caller must use that version.
    #[error("the region has format version {found}, this program reads {FORMAT_VERSION}")]
    OtherFormat {
        /// Format version found.
        found: u64,
    },
    /// The size is not one or more slabs beyond the header, or offsets would not fit in 40
    /// bits. The caller must choose another size.
    #[error("a region cannot have {bytes} bytes")]
    Size {
        /// Size asked for or found.
        bytes: u64,
    },
}

/// Offsets of the parts of a region of a given size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionLayout {
    bytes: u64,
}

impl RegionLayout {
    /// Returns the layout of a region of `bytes` bytes; a rest smaller than a slab is unused.
    ///
    /// # Errors
    /// [`RegionError::Size`] if no slab fits, or the size exceeds the 40 bits of an offset.
    pub fn new(bytes: u64) -> Result<Self, RegionError> {
        let layout = Self { bytes };
        let fits = bytes <= 1 << OFFSET_BITS && layout.first_slab() + SLAB_BYTES <= bytes;
        if fits { Ok(layout) } else { Err(RegionError::Size { bytes }) }
    }

    /// Size of the region in bytes.
    #[inline]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Offset of the first slab, where the cursor of a new region stands.
    #[inline]
    pub const fn first_slab(&self) -> u64 {
        let directory = self.bytes.div_ceil(SLAB_BYTES) * WORD_BYTES as u64;
        (HEADER_BYTES + directory).next_multiple_of(SLAB_BYTES)
    }

    /// End of the last whole slab: an allocation beyond this offset has failed.
    #[inline]
    pub const fn end(&self) -> u64 {
        self.bytes / SLAB_BYTES * SLAB_BYTES
    }

    /// Number of slabs that only [overflow buckets](SlabKind::Overflow) may take (I359).
    ///
    /// A new row in a full region can reuse the record slot of a deleted row, but its name may
    /// belong to a full bucket of the index. The reserve is a thirty-second of the slabs, rounded
    /// up; none in a region of fewer than 16 slabs.
    pub const fn reserved_slabs(&self) -> u64 {
        let slabs = (self.end() - self.first_slab()) / SLAB_BYTES;
        if slabs < 16 { 0 } else { slabs.div_ceil(32) }
    }

    /// End of the last slab that the cursor may allocate for this use.
    pub const fn end_for(&self, kind: SlabKind) -> u64 {
        match kind {
            SlabKind::Overflow => self.end(),
            SlabKind::Index | SlabKind::Records => self.end() - self.reserved_slabs() * SLAB_BYTES,
        }
    }

    /// Number of slabs marked free that this use must not take, with the cursor at `cursor`: the
    /// slabs missing from the reserve.
    pub fn kept_back(&self, kind: SlabKind, cursor: u64) -> u64 {
        match kind {
            SlabKind::Overflow => 0,
            SlabKind::Index | SlabKind::Records => {
                cursor.min(self.end()).saturating_sub(self.end_for(kind)) / SLAB_BYTES
            }
        }
    }

    /// Offset of the directory word for the slab that holds byte `offset`.
    #[inline]
    pub const fn directory_word(offset: u64) -> u64 {
        HEADER_BYTES + offset / SLAB_BYTES * WORD_BYTES as u64
    }

    /// Header words of a freshly formatted region; the remaining words are zero.
    pub const fn encode(&self) -> [u64; 4] {
        [MAGIC, FORMAT_VERSION, self.first_slab(), self.bytes]
    }

    /// Reads the layout of the region with these header words.
    ///
    /// # Errors
    /// A [`RegionError`] that says why the words are not the header of a region.
    pub fn decode(words: [u64; 4]) -> Result<Self, RegionError> {
        match words {
            [MAGIC, FORMAT_VERSION, _, bytes] => Self::new(bytes),
            [MAGIC, found, ..] => Err(RegionError::OtherFormat { found }),
            [found, ..] => Err(RegionError::NotARegion { found }),
        }
    }
}

/// Use of a slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SlabKind {
    /// Home buckets of a table's index; a table has one run of such slabs in each group.
    Index = 1,
    /// Overflow buckets of a table's index.
    Overflow = 2,
    /// Record slots of a table.
    Records = 3,
}

/// Directory word of a slab that is free because its table was dropped. The slab is all zeroes, on
/// every replica.
pub const FREE_SLAB: u64 = 4;

/// Directory entry of a slab. A word of 0 means that the slab was never taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlabEntry {
    /// Use of the slab, until its table is dropped (H13).
    pub kind: SlabKind,
    /// Table of the slab, until the table is dropped.
    pub table: TableId,
    /// Life of the compute node that sub-allocates or adopted the slab.
    pub owner: Incarnation,
    /// Number of the allocation among the owner's allocations, so that a node that repeats a swap
    /// after a lost answer recognises its own entry. Has [`TAKE_BITS`] bits and wraps to 0.
    pub take: u32,
}

/// Bits of the number of an allocation.
pub const TAKE_BITS: u32 = 24;

impl SlabEntry {
    /// Encodes the entry as a word.
    #[inline]
    pub fn encode(self) -> u64 {
        debug_assert!(self.take >> TAKE_BITS == 0, "I293: the number has a field of its own");
        let (table, owner) = (u64::from(self.table.0), u64::from(self.owner.raw()));
        self.kind as u64 | table << 8 | owner << 24 | u64::from(self.take) << 40
    }

    /// Decodes `word`; `None` if the slab was never taken or is free, or the word is not a valid
    /// entry.
    #[inline]
    pub fn decode(word: u64) -> Option<Self> {
        let kind = match field(word, 0, 8) {
            1 => SlabKind::Index,
            2 => SlabKind::Overflow,
            3 => SlabKind::Records,
            _ => return None,
        };
        let owner = Incarnation::new(field(word, 24, 16) as u16)?;
        let take = field(word, 40, TAKE_BITS) as u32;
        Some(Self { kind, table: TableId(field(word, 8, 16) as u16), owner, take })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_covers_the_region_and_ends_before_the_first_slab() {
        for bytes in [2 * SLAB_BYTES, 64 << 20, 8 << 30, (8 << 30) + 12_345, 1 << 40] {
            let layout = RegionLayout::new(bytes).expect("large enough");
            assert!(layout.first_slab().is_multiple_of(SLAB_BYTES));
            assert!(RegionLayout::directory_word(bytes - 1) + 8 <= layout.first_slab());
            assert!(layout.end() <= bytes && layout.end() > layout.first_slab());
            assert_eq!(RegionLayout::decode(layout.encode()), Ok(layout));
        }
        for bytes in [0, SLAB_BYTES, (1 << 40) + 1] {
            assert_eq!(RegionLayout::new(bytes), Err(RegionError::Size { bytes }));
        }
    }

    #[test]
    fn the_last_slabs_are_for_overflow_buckets() {
        for (slabs, reserved) in [(1, 0), (15, 0), (16, 1), (32, 1), (33, 2), (4096, 128)] {
            let layout = RegionLayout::new((slabs + 1) * SLAB_BYTES).expect("large enough");
            assert_eq!(layout.reserved_slabs(), reserved, "{slabs} slabs");
            assert_eq!(layout.end_for(SlabKind::Overflow), layout.end());
            for kind in [SlabKind::Index, SlabKind::Records] {
                let end = layout.end_for(kind);
                assert_eq!(layout.end() - end, reserved * SLAB_BYTES);
                assert_eq!(layout.kept_back(kind, end), 0, "the cursor has the reserve");
                for missing in 0..=reserved {
                    assert_eq!(layout.kept_back(kind, end + missing * SLAB_BYTES), missing);
                }
                // Refused allocations leave the cursor beyond the end.
                assert_eq!(layout.kept_back(kind, layout.end() + 7 * SLAB_BYTES), reserved);
            }
            assert_eq!(layout.kept_back(SlabKind::Overflow, layout.end()), 0);
        }
    }

    #[test]
    fn foreign_regions_are_told_apart() {
        let good = RegionLayout::new(1 << 30).expect("large enough").encode();
        let cases = [
            ([0; 4], RegionError::NotARegion { found: 0 }),
            ([good[0], 99, good[2], good[3]], RegionError::OtherFormat { found: 99 }),
            ([good[0], good[1], good[2], 5], RegionError::Size { bytes: 5 }),
        ];
        for (words, error) in cases {
            assert_eq!(RegionLayout::decode(words), Err(error));
        }
    }

    #[test]
    fn directory_words_are_pinned() {
        let owner = Incarnation::new(0x1234).expect("13 bits");
        let (kind, table) = (SlabKind::Records, TableId(0xABCD));
        let entry = SlabEntry { kind, table, owner, take: 0x56_789A };
        assert_eq!(entry.encode(), 0x5678_9A12_34AB_CD03);
        assert_eq!(SlabEntry::decode(entry.encode()), Some(entry));
        assert_eq!([0, FREE_SLAB].map(SlabEntry::decode), [None; 2]);
        assert_eq!(SlabEntry::decode(0xFF), None);
    }
}
