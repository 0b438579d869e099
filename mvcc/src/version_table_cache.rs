//! The version table cache: CVTs of rows whose locks this compute node owns (LOTUS §4.4).
//!
//! # What it is
//! A bounded map from rows to their CVTs, shared by the coordinators of one compute node. The cache
//! is divided into sets of eight rows, each with its own mutex and LRU order: the paper's
//! hash-partitioned LRU sub-caches at their smallest, so that two coordinators seldom contend for a
//! set. A row is found, kept, renewed or forgotten without an allocation.
//!
//! # What it is not
//! The cache does not know whether a given CVT is current, nor which transactions may use it: both
//! depend on locks, and the engine decides (H11; `engine/src/node/caches/version_tables.rs`). To
//! support the engine, the cache gives two guarantees. First, operations on one row are totally
//! ordered, and [`VersionTableCache::keep`] evaluates its condition *inside* that order: after a
//! thread has made the condition false and then forgotten the row, the row is absent and stays
//! absent. Second, a CVT that is being written is never kept.
//!
//! # Rows of one name
//! Rows with the same name have separate places in one set. A row is looked up by name and mark,
//! renewed by name, mark and the offset of its CVT, and forgotten by name, together with all rows
//! of the name: of a row that another node writes, only the lock name is known. The cache stores 23
//! bits of the mark. If two rows agree in these bits, a look-up may return the CVT of the wrong
//! row; the record behind the CVT reveals the mistake.
//!
//! # Memory
//! ```text
//! set = 9 lines:   line 0      mutex, tags of the eight rows, their order of use, `more`
//!                  line 1..9   key | offset:40 cells:8 table:16 | two cells of three words
//! ```
//! The cost is 72 bytes per row: 64 K rows take 4.5 MiB, as in LOTUS §8.1. Cells beyond two are in
//! `more`, 1152 bytes that a set allocates for its first row with more than two cells.

use lotus_fabric::ids::{Key, ShardId, TableId};
use lotus_fabric::prefetch;

use crate::address_cache::mix;
use crate::layout::cvt::{CELL_WORDS, Cell, MAX_CELLS, Version};
use crate::layout::{LINE_BYTES, OFFSET_BITS, field};
use crate::naming::RowName;

#[cfg(lotus_loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(lotus_loom))]
use std::sync::{Mutex, MutexGuard};

/// Number of rows in a set.
const WAYS: usize = 8;
/// Number of words of cells in a row's own line.
const INLINE_WORDS: usize = 2 * CELL_WORDS;
/// Largest number of words of cells of a row outside of its own line.
const MORE_WORDS: usize = MAX_CELLS * CELL_WORDS - INLINE_WORDS;

const _: () = assert!(size_of::<CacheLine>() == LINE_BYTES && size_of::<Order>() == WAYS);
#[cfg(not(lotus_loom))]
const _: () = assert!(size_of::<Set>() == (1 + WAYS) * LINE_BYTES);

/// Cache of CVTs. See the module's documentation.
pub struct VersionTableCache {
    sets: Box<[Set]>,
}

/// One sub-cache, aligned to a cache line.
#[repr(align(64))]
struct Set(Mutex<Ways>);

#[repr(C)]
struct Ways {
    /// Part of each row's hash and mark, never zero; zero marks an empty way.
    tags: [u32; WAYS],
    order: Order,
    more: Box<[[u64; MORE_WORDS]]>,
    lines: [CacheLine; WAYS],
}

/// Bits of a tag that derive from the row's name: the top bit, and eight bits of the hash.
const NAME_TAG: u32 = 1 << 31 | 0xFF;
/// Place of the mark's bits in a tag.
const MARK_SHIFT: u32 = 8;

/// One row.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct CacheLine {
    key: u64,
    place: u64,
    cells: [u64; INLINE_WORDS],
}

impl VersionTableCache {
    /// Creates a cache of `entries` rows, rounded up to whole sets of eight; at least one set.
    pub fn with_entries(entries: usize) -> Self {
        let set = |_| {
            let (tags, more) = ([0; WAYS], Box::default());
            Set(Mutex::new(Ways { tags, order: Order::NEW, more, lines: Default::default() }))
        };
        Self { sets: (0..entries.div_ceil(WAYS).max(1)).map(set).collect() }
    }

    /// Capacity in rows.
    pub fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// Copies the cells of a row's CVT into `cells`; returns the CVT's offset, or `None` if the row
    /// is not cached.
    ///
    /// # Panics
    /// If `cells` differs in length from the cached cells.
    #[inline]
    pub fn lookup(&self, table: TableId, name: RowName, cells: &mut [u64]) -> Option<u64> {
        let (tag, mut ways) = self.enter(table, name.key);
        let way = ways.find(with_mark(tag, name), table, name.key)?;
        ways.order.put_first(way);
        let place = ways.lines[way].place;
        assert_eq!(cells.len(), cell_words(place), "a table's CVTs have one length");
        let inline = cells.len().min(INLINE_WORDS);
        cells[..inline].copy_from_slice(&ways.lines[way].cells[..inline]);
        if cells.len() > inline {
            let beyond = cells.len() - inline;
            cells[inline..].copy_from_slice(&ways.more[way][..beyond]);
        }
        Some(field(place, 0, OFFSET_BITS))
    }

    /// Keeps the CVT at `offset` with these `cells`, in place of the least recently used row of its
    /// set, if `still` returns true; returns whether the CVT was kept. A CVT with a write under way
    /// is not kept (I66).
    ///
    /// `still` runs with the set's mutex held: the closure must be brief and must not call the
    /// cache.
    ///
    /// # Panics
    /// If `offset` is 0 or does not fit in 40 bits, or the length of `cells` is not valid for a
    /// CVT.
    #[inline]
    pub fn keep(
        &self,
        table: TableId,
        name: RowName,
        offset: u64,
        cells: &[u64],
        still: impl FnOnce() -> bool,
    ) -> bool {
        assert!(offset != 0 && offset >> OFFSET_BITS == 0, "CVT offset {offset:#x}");
        let count = cells.len() / CELL_WORDS;
        assert!(cells.len().is_multiple_of(CELL_WORDS) && (1..=MAX_CELLS).contains(&count));
        let settled = |cell: &[u64]| {
            Cell::decode(cell).is_ok_and(|cell| !matches!(cell.version, Version::Invisible(_)))
        };
        if !cells.chunks_exact(CELL_WORDS).all(settled) {
            return false;
        }
        let (tag, mut ways) = self.enter(table, name.key);
        if !still() {
            return false;
        }
        let tag = with_mark(tag, name);
        let way = ways.find(tag, table, name.key).unwrap_or_else(|| ways.order.last());
        ways.tags[way] = tag;
        ways.order.put_first(way);
        let place = offset | (count as u64) << 40 | u64::from(table.0) << 48;
        (ways.lines[way].key, ways.lines[way].place) = (name.key.0, place);
        ways.write(way, 0, cells);
        true
    }

    /// Replaces cell `index` of the row's CVT at `offset`, if the row is cached. A cached CVT with
    /// another offset belongs to another row of the name, and stays unchanged (I324).
    ///
    /// # Panics
    /// If the CVT has no cell `index`.
    #[inline]
    pub fn renew(
        &self,
        table: TableId,
        name: RowName,
        offset: u64,
        (index, cell): (usize, [u64; CELL_WORDS]),
    ) {
        let (tag, mut ways) = self.enter(table, name.key);
        let Some(way) = ways.find(with_mark(tag, name), table, name.key) else { return };
        if field(ways.lines[way].place, 0, OFFSET_BITS) != offset {
            return;
        }
        let first = index * CELL_WORDS;
        assert!(first < cell_words(ways.lines[way].place), "cell {index}");
        ways.order.put_first(way);
        ways.write(way, first, &cell);
    }

    /// Removes all rows with the name `key`.
    #[inline]
    pub fn forget(&self, table: TableId, key: Key) {
        let (tag, mut ways) = self.enter(table, key);
        for way in 0..WAYS {
            if ways.tags[way] & NAME_TAG == tag && ways.is_of(way, table, key) {
                ways.forget(way);
            }
        }
    }

    /// Removes all rows of a shard that this node has ceased to own (H19). Visits every row.
    ///
    /// Give up the ownership first, then forget: a concurrent [`Self::keep`] under a condition on
    /// the ownership is then either undone or refused.
    pub fn forget_shard(&self, shard: ShardId) {
        for set in &self.sets {
            let mut ways = set.enter();
            for way in 0..WAYS {
                if ways.tags[way] != 0 && Key(ways.lines[way].key).shard() == shard {
                    ways.forget(way);
                }
            }
        }
    }

    /// Calls `visit` with every row: table, key, offset of the CVT, cells. The set's mutex is held
    /// during the call, so `visit` must not call the cache.
    pub fn for_each(&self, mut visit: impl FnMut(TableId, Key, u64, &[u64])) {
        let mut cells = [0; MAX_CELLS * CELL_WORDS];
        for set in &self.sets {
            let ways = set.enter();
            for way in (0..WAYS).filter(|way| ways.tags[*way] != 0) {
                let CacheLine { key, place, cells: inline } = ways.lines[way];
                cells[..INLINE_WORDS].copy_from_slice(&inline);
                if let Some(more) = ways.more.get(way) {
                    cells[INLINE_WORDS..].copy_from_slice(more);
                }
                let (table, offset) = (TableId((place >> 48) as u16), field(place, 0, OFFSET_BITS));
                visit(table, Key(key), offset, &cells[..cell_words(place)]);
            }
        }
    }

    /// Hints that the row will be looked up soon. [`Self::prefetch_row`] is the second half, to be
    /// called a cache miss later.
    #[inline]
    pub fn prefetch(&self, table: TableId, key: Key) {
        prefetch::read(self.set(mix(table, key)));
    }

    /// Hints that the row will be looked up next, and kept if not cached.
    #[inline]
    pub fn prefetch_row(&self, table: TableId, key: Key) {
        let (tag, ways) = self.enter(table, key);
        let way = ways.tags.iter().position(|other| *other & NAME_TAG == tag);
        prefetch::read(&ways.lines[way.unwrap_or_else(|| ways.order.last())]);
    }

    /// Locks the set of the rows with this name; also returns the common part of their tags.
    #[inline]
    fn enter(&self, table: TableId, key: Key) -> (u32, MutexGuard<'_, Ways>) {
        let mixed = mix(table, key);
        // The set from the upper bits, as a fraction of all sets; the tag from the lower bits.
        ((1 << 31 | mixed as u32) & NAME_TAG, self.set(mixed).enter())
    }

    #[inline]
    fn set(&self, mixed: u64) -> &Set {
        let index = (u128::from(mixed) * self.sets.len() as u128) >> 64;
        &self.sets[index as usize]
    }
}

/// Completes the name's part of a tag with bits of the mark.
#[inline]
fn with_mark(tag: u32, name: RowName) -> u32 {
    tag | name.mark.raw() << MARK_SHIFT & !NAME_TAG
}

impl Set {
    /// Locks the set.
    ///
    /// # Panics
    /// If another thread panicked inside, which only a violated assertion of a caller can cause:
    /// the contents are not trustworthy then.
    #[inline]
    fn enter(&self) -> MutexGuard<'_, Ways> {
        self.0.lock().expect("no thread panics inside a set")
    }
}

impl Ways {
    #[inline]
    fn find(&self, tag: u32, table: TableId, key: Key) -> Option<usize> {
        (0..WAYS).filter(|way| self.tags[*way] == tag).find(|way| self.is_of(*way, table, key))
    }

    #[inline]
    fn is_of(&self, way: usize, table: TableId, key: Key) -> bool {
        let CacheLine { key: kept, place, .. } = self.lines[way];
        kept == key.0 && place >> 48 == u64::from(table.0)
    }

    #[inline]
    fn forget(&mut self, way: usize) {
        self.tags[way] = 0;
        self.order.put_last(way);
    }

    /// Writes words of cells of a way, from word `first` on.
    #[inline]
    fn write(&mut self, way: usize, first: usize, words: &[u64]) {
        let inline = INLINE_WORDS.saturating_sub(first).min(words.len());
        self.lines[way].cells[first.min(INLINE_WORDS)..][..inline]
            .copy_from_slice(&words[..inline]);
        if inline < words.len() {
            if self.more.is_empty() {
                self.more = vec![[0; MORE_WORDS]; WAYS].into_boxed_slice();
            }
            let begin = (first + inline) - INLINE_WORDS;
            self.more[way][begin..][..words.len() - inline].copy_from_slice(&words[inline..]);
        }
    }
}

/// Ways of a set in their order of use, a byte each, the most recently used in the lowest. Ways
/// without a row come last.
#[derive(Clone, Copy)]
struct Order(u64);

impl Order {
    const NEW: Self = Self(u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7]));
    /// A one in every byte.
    const ONES: u64 = u64::from_le_bytes([1; WAYS]);

    /// The least recently used way, or an empty way.
    #[inline]
    const fn last(self) -> usize {
        (self.0 >> 56) as usize
    }

    /// Bit position of a way's byte.
    #[inline]
    const fn shift(self, way: usize) -> u32 {
        // The way's byte becomes zero; a borrow from this byte spoils only higher bytes.
        let differs = self.0 ^ (Self::ONES * way as u64);
        let zeroes = differs.wrapping_sub(Self::ONES) & !differs & (Self::ONES << 7);
        zeroes.trailing_zeros() & !7
    }

    #[inline]
    const fn put_first(&mut self, way: usize) {
        let shift = self.shift(way);
        let (before, after) = (self.0 & !(u64::MAX << shift), self.0 & (u64::MAX << shift << 8));
        self.0 = after | (before << 8) | way as u64;
    }

    #[inline]
    const fn put_last(&mut self, way: usize) {
        let shift = self.shift(way);
        let (before, after) = (self.0 & !(u64::MAX << shift), self.0 >> shift >> 8);
        self.0 = (way as u64) << 56 | (after << shift) | before;
    }
}

/// Number of words of a row's cells, from its place word.
#[inline]
fn cell_words(place: u64) -> usize {
    field(place, 40, 8) as usize * CELL_WORDS
}

#[cfg(all(test, not(lotus_loom)))]
mod tests;
