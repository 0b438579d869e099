//! The address cache: offsets at which the CVTs of rows were last seen (LOTUS §5.1).
//!
//! One cache serves every coordinator of a compute node. The cache is a plain array of words, read
//! and written without any ordering, because a wrong answer is harmless: a stale offset, an offset
//! of another row with the same tag, or a just overwritten offset leads to a CVT that names another
//! row. The lookup notices the mismatch and reads the bucket ([`crate::index::Lookup`]). A word
//! holds a whole entry, so an entry is never half new.
//!
//! ```text
//! line = 8 entries = 64 bytes           entry = tag:24 | CVT offset:40, 0 for none
//! ```
//! A row's entries are all in one cache line, which [`AddressCache::prefetch`] can fetch while a
//! transaction is still gathering its locks. The offset is within the region of the row's replica
//! group, which the row's key names.
//!
//! # Growth
//! A table may have more rows than it was made for ([`crate::index`]). Searches for the additional
//! rows pass through fans of buckets, and evict other rows from the cache. After as many evictions
//! as the cache has entries, a larger array, empty at first, replaces the current array.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use lotus_fabric::ids::{Key, TableId};
use lotus_fabric::prefetch;
use lotus_fabric::region::Memory;

use crate::layout::{LINE_BYTES, OFFSET_BITS, field};

const LINE_ENTRIES: usize = 8;
const _: () = assert!(LINE_ENTRIES * size_of::<AtomicU64>() == LINE_BYTES);

type CacheLine = [AtomicU64; LINE_ENTRIES];

/// Number of larger arrays that a cache may have in succession.
const LARGER: usize = 4;
/// Growth factor: entries of an array for each entry of the previous array.
const GROWTH: usize = 8;

/// A lossy map from rows to the offsets of their CVTs, shared without locks.
pub struct AddressCache {
    /// Arrays of entries. Each array is a separate mapping: page-aligned, populated on use, and
    /// backed by huge pages if available, so that a look-up costs one cache miss and no page walk.
    first: Array,
    larger: [OnceLock<Array>; LARGER],
    /// Number of the array in use; 0 is the first.
    current: AtomicUsize,
    /// Evictions from the current array by rows of an outgrown index.
    lost: AtomicU64,
}

struct Array {
    entries: Memory,
    lines: usize,
}

impl Array {
    fn with_lines(lines: usize) -> std::io::Result<Self> {
        Ok(Self { entries: Memory::anonymous(lines * LINE_BYTES)?, lines })
    }
}

impl AddressCache {
    /// Creates an empty cache of at least `entries` entries (eight bytes each); at least one line.
    ///
    /// # Errors
    /// Error of the operating system when there is no address space left.
    pub fn with_entries(entries: usize) -> std::io::Result<Self> {
        let first = Array::with_lines(entries.div_ceil(LINE_ENTRIES).max(1))?;
        let (larger, current) = (Default::default(), AtomicUsize::new(0));
        Ok(Self { first, larger, current, lost: AtomicU64::new(0) })
    }

    /// Number of entries.
    pub fn capacity(&self) -> usize {
        self.array().lines * LINE_ENTRIES
    }

    #[inline]
    fn array(&self) -> &Array {
        // Acquire: an array is complete before it is in use.
        match self.current.load(Ordering::Acquire) {
            0 => &self.first,
            larger => self.larger[larger - 1].get().expect("an array in use exists"),
        }
    }

    /// Notes that a row of an outgrown index has taken another row's entry. After enough such
    /// evictions the cache switches to a larger array, if memory allows.
    #[cold]
    pub fn note_lost(&self) {
        let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
        let current = self.current.load(Ordering::Relaxed);
        if lost < self.capacity() as u64 || current == LARGER {
            return;
        }
        self.lost.store(0, Ordering::Relaxed);
        if let Ok(larger) = Array::with_lines(self.array().lines * GROWTH) {
            // Another thread may have come first.
            let _ = self.larger[current].set(larger);
            self.current.fetch_max(current + 1, Ordering::Release);
        }
    }

    /// Returns the offset at which the CVT of row `key` of `table` was last seen, if cached.
    #[inline]
    pub fn lookup(&self, table: TableId, key: Key) -> Option<u64> {
        let place = self.place(table, key);
        // Relaxed, here and below: the offset is only a hint, checked against the CVT behind it.
        let mut entries = place.line.iter().map(|entry| entry.load(Ordering::Relaxed));
        entries.find_map(|entry| place.offset_in(entry))
    }

    /// Stores `offset` as the place of the CVT of row `key` of `table`, replacing another row's
    /// entry if need be; returns whether another row was evicted.
    ///
    /// # Panics
    /// If `offset` is 0 or does not fit in 40 bits.
    #[inline]
    pub fn insert(&self, table: TableId, key: Key, offset: u64) -> bool {
        assert!(offset != 0 && offset >> OFFSET_BITS == 0, "CVT offset {offset:#x}");
        let place = self.place(table, key);
        let entry = place.tag << OFFSET_BITS | offset;
        let mut target = (place.tag % LINE_ENTRIES as u64) as usize;
        let mut is_full = true;
        for (index, existing) in place.line.iter().enumerate() {
            let existing = existing.load(Ordering::Relaxed);
            if existing == entry {
                // The usual case; storing the entry again would take the line from other
                // processors.
                return false;
            }
            if place.offset_in(existing).is_some() {
                (target, is_full) = (index, false);
                break;
            }
            if existing == 0 {
                (target, is_full) = (index, false);
            }
        }
        place.line[target].store(entry, Ordering::Relaxed);
        is_full
    }

    /// Removes the row, and every other row of its line with the same tag.
    #[inline]
    pub fn invalidate(&self, table: TableId, key: Key) {
        let place = self.place(table, key);
        for entry in place.line {
            if place.offset_in(entry.load(Ordering::Relaxed)).is_some() {
                entry.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Hints that the row will be looked up soon.
    #[inline]
    pub fn prefetch(&self, table: TableId, key: Key) {
        prefetch::read(self.place(table, key).line);
    }

    #[inline]
    fn place(&self, table: TableId, key: Key) -> CachePlace<'_> {
        let mixed = mix(table, key);
        // The line from the upper bits, as a fraction of all lines; the tag from the lower ones.
        let array = self.array();
        let index = ((u128::from(mixed) * array.lines as u128) >> 64) as usize;
        let (line, _) = array.entries[index * LINE_ENTRIES..]
            .split_first_chunk::<LINE_ENTRIES>()
            .expect("there are that many lines");
        CachePlace { line, tag: field(mixed, 0, u64::BITS - OFFSET_BITS) }
    }
}

/// Returns a hash of a row, for caches in this process.
///
/// A key is already a hash, but not of its table, and its shard bits are few: one multiplication
/// spreads all input bits over both halves of a product.
#[inline]
pub(crate) fn mix(table: TableId, key: Key) -> u64 {
    let name = key.0 ^ u64::from(table.0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let product = u128::from(name) * 0xD6E8_FEB8_6659_FD93;
    (product >> 64) as u64 ^ product as u64
}

/// Cache line and tag of a row.
struct CachePlace<'a> {
    line: &'a CacheLine,
    tag: u64,
}

impl CachePlace<'_> {
    /// Returns the offset in `entry`, if the entry has this row's tag.
    #[inline]
    fn offset_in(&self, entry: u64) -> Option<u64> {
        let offset = field(entry, 0, OFFSET_BITS);
        (entry >> OFFSET_BITS == self.tag && offset != 0).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::CriticalField;
    use crate::naming::Naming;

    const TABLE: TableId = TableId(1);

    fn key(number: u64) -> Key {
        Naming::KNOWN.name(&number.into(), CriticalField::Hashed, 4096).key
    }

    #[test]
    fn rows_are_remembered_moved_and_forgotten() {
        let cache = AddressCache::with_entries(1000).expect("maps");
        assert_eq!(cache.lookup(TABLE, key(1)), None);
        cache.insert(TABLE, key(1), 72);
        cache.prefetch(TABLE, key(1));
        assert_eq!(cache.lookup(TABLE, key(1)), Some(72));
        assert_eq!(cache.lookup(TableId(2), key(1)), None);
        cache.insert(TABLE, key(1), (1 << OFFSET_BITS) - 8);
        assert_eq!(cache.lookup(TABLE, key(1)), Some((1 << OFFSET_BITS) - 8));
        cache.invalidate(TABLE, key(1));
        assert_eq!(cache.lookup(TABLE, key(1)), None);
    }

    #[test]
    fn a_full_line_gives_way_and_never_invents_an_offset() {
        let cache = AddressCache::with_entries(1).expect("maps");
        assert_eq!(cache.capacity(), LINE_ENTRIES);
        for number in 1..=100 {
            cache.insert(TABLE, key(number), number * 8);
            assert_eq!(cache.lookup(TABLE, key(number)), Some(number * 8));
        }
        let kept = (1..=100).filter(|number| cache.lookup(TABLE, key(*number)).is_some());
        assert_eq!(kept.count(), LINE_ENTRIES);
    }

    #[test]
    fn a_cache_with_room_for_twice_the_rows_keeps_almost_all() {
        let cache = AddressCache::with_entries(20_000).expect("maps");
        for number in 0..10_000 {
            cache.insert(TABLE, key(number), (number + 1) * 8);
        }
        let hit = |number: &u64| cache.lookup(TABLE, key(*number)) == Some((number + 1) * 8);
        let hits = (0..10_000).filter(hit).count();
        assert!(hits > 9_700, "{hits} of 10000");
    }

    #[test]
    fn a_cache_of_an_outgrown_table_grows_until_it_keeps_almost_all() {
        const ROWS: u64 = 20_000;
        let cache = AddressCache::with_entries(200).expect("maps");
        for _ in 0..3 {
            for number in 0..ROWS {
                if cache.insert(TABLE, key(number), (number + 1) * 8) {
                    cache.note_lost();
                }
            }
        }
        let hit = |number: &u64| cache.lookup(TABLE, key(*number)) == Some((number + 1) * 8);
        assert!((0..ROWS).filter(hit).count() as u64 > ROWS * 9 / 10);
        assert!(cache.capacity() <= 200 * GROWTH.pow(3), "{}", cache.capacity());
    }

    #[test]
    fn a_cache_has_a_largest_size() {
        let cache = AddressCache::with_entries(1).expect("maps");
        (0..1 << 20).for_each(|_| cache.note_lost());
        assert_eq!(cache.capacity(), LINE_ENTRIES * GROWTH.pow(LARGER as u32));
    }

    #[test]
    fn lines_begin_at_cache_lines() {
        for entries in [1, 8, 9, 100_000] {
            let cache = AddressCache::with_entries(entries).expect("maps");
            let place = cache.place(TABLE, key(entries as u64));
            assert_eq!(place.line.as_ptr().addr() % LINE_BYTES, 0);
        }
    }

    /// A cache sized for a large data set must not cost a small program its start-up time.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_large_cache_touches_no_memory_until_it_is_used() {
        let resident_pages = || -> usize {
            let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
            statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number")
        };
        let before = resident_pages();
        let cache = AddressCache::with_entries(64 << 20).expect("maps");
        cache.insert(TABLE, key(1), 8);
        let touched_mib = (resident_pages() - before) * 4 / 1024;
        assert!(touched_mib < 64, "{touched_mib} MiB of a 512 MiB cache were touched");
    }
}
