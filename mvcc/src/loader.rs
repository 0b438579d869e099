//! Layout of one shard's index before the first transaction.
//!
//! Initial rows need no locks and no protocol: the loader of a shard is its only user.
//! [`ShardImage`] builds the shard's buckets in local memory, row by row, and then lists the words
//! to write and their offsets. It allocates no remote memory: the caller places the records outside
//! of cells, passes their offsets, and provides overflow buckets on request.

use lotus_fabric::ids::{Key, ShardId};
use thiserror::Error;

use crate::layout::WORD_BYTES;
use crate::layout::bucket::{Bucket, MAX_BEHIND, Overflow, slot_offset};
use crate::layout::cvt::{CELL_WORDS, Cell, CellState, HEADER_WORDS, Slot, Version};
use crate::naming::RowName;
use crate::slab::SlotKind;
use crate::table::TableDef;
use crate::timestamp::Timestamp;

/// Initial version of a loaded row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadedRow<'r> {
    /// The row's record.
    pub record: LoadedRecord<'r>,
    /// Length of the row's value in bytes.
    pub length: u32,
}

/// Record of a loaded row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadedRecord<'r> {
    /// In the slot at this offset of the group's region.
    At(u64),
    /// In the home slot of the row's first cell, with these words.
    InCell(&'r [u64]),
}

/// Reason why a row was not placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// A row with this name and mark was placed before: the same primary key twice, or two keys
    /// that share name and mark, which do not occur in practice ([`crate::naming`]). The caller
    /// must drop one of the two rows.
    #[error("key {key:?} occurs twice")]
    DuplicateKey {
        /// The key.
        key: Key,
    },
    /// More rows share the hash of a key than the index has room for. This does not happen by
    /// chance; the caller must drop a row with this hash.
    #[error("too many rows share the hash of {key:?}")]
    TooManyOfOneName {
        /// The hash.
        key: Key,
    },
    /// The row's chain is full. The caller gives the image a slot of this kind with
    /// [`ShardImage::add_overflow`] and places the row again.
    #[error("the row's chain of buckets is full")]
    NeedsOverflow(SlotKind),
}

/// Buckets of one shard of one table, in local memory.
#[derive(Debug)]
pub struct ShardImage<'a> {
    table: &'a TableDef,
    shard: ShardId,
    /// Home buckets, then overflow buckets, each [`TableDef::bucket_words`] long.
    words: Vec<u64>,
    /// For each bucket in `words`, the index of the first bucket behind it; 0 for none, since
    /// bucket 0 is a home bucket and never behind another bucket.
    next: Vec<usize>,
    /// Offsets of the overflow buckets in the group's region.
    overflow: Vec<u64>,
    /// Overflow buckets not yet linked to a chain, with the index of the first bucket.
    unused: Vec<(Overflow, usize)>,
}

impl<'a> ShardImage<'a> {
    /// Creates an image of `shard` with empty home buckets.
    pub fn new(table: &'a TableDef, shard: ShardId) -> Self {
        let buckets = table.geometry().shape().buckets_per_shard() as usize;
        let words = vec![0; buckets * table.bucket_words()];
        let next = vec![0; buckets];
        Self { table, shard, words, next, overflow: Vec::new(), unused: Vec::new() }
    }

    /// Places the row `name` with the version [`Timestamp::LOADED`]; returns the offset of its CVT
    /// in the group's region.
    ///
    /// # Errors
    /// [`PlaceError`] if the key is a duplicate, or the chain is full or has its maximum length.
    ///
    /// # Panics
    /// If the row belongs to another shard, its record has no offset, or its words do not fit a
    /// home slot of the table.
    pub fn place(&mut self, name: RowName, row: LoadedRow<'_>) -> Result<u64, PlaceError> {
        let key = name.key;
        assert_eq!(key.shard(), self.shard, "the image is of one shard");
        let home = self.table.geometry().shape().home_number(key) as usize;
        let (bucket, slot) = match self.search(home, name)? {
            Room::In { bucket, slot } => (bucket, slot),
            Room::After { tail } => (self.link(key, home, tail)?, 0),
        };
        let shape = self.table.cvt();
        let offset = self.offset(bucket) + slot_offset(shape, slot);
        let start = bucket * self.bucket_words() + slot * shape.words();
        let cvt = &mut self.words[start..start + shape.cell_word(1)];
        cvt[..HEADER_WORDS].copy_from_slice(&self.table.header(name).encode());
        let (cell_words, home) = cvt[HEADER_WORDS..].split_at_mut(CELL_WORDS);
        let record = match row.record {
            LoadedRecord::At(record) => record,
            LoadedRecord::InCell(words) => {
                home[..words.len()].copy_from_slice(words);
                shape.home(offset, 0)
            }
        };
        assert!(record != 0, "a row's record lies behind the region's header");
        let cell = Cell {
            version: Version::Committed(Timestamp::LOADED),
            state: CellState::Valid,
            record,
            length: row.length,
            writes: 1,
        };
        cell_words.copy_from_slice(&cell.encode());
        Ok(offset)
    }

    /// Adds overflow buckets, from which full chains are extended.
    pub fn add_overflow(&mut self, buckets: Overflow) {
        self.unused.push((buckets, self.next.len()));
        self.overflow.extend(buckets.offsets(self.table.cvt()));
        self.next.resize(self.next.len() + buckets.buckets(), 0);
        self.words.resize(self.next.len() * self.bucket_words(), 0);
    }

    /// Words to write, with their offsets in the group's region: the home buckets in one piece,
    /// then every overflow bucket, used or unused.
    pub fn images(&self) -> impl Iterator<Item = (u64, &[u64])> {
        let (homes, overflow) = self.words.split_at(self.home_count() * self.bucket_words());
        let overflow = overflow.chunks_exact(self.bucket_words());
        let base = self.table.geometry().shard_base(self.shard);
        std::iter::once((base, homes)).chain(self.overflow.iter().copied().zip(overflow))
    }

    /// Searches the chain for its first free slot or its end.
    fn search(&self, home: usize, name: RowName) -> Result<Room, PlaceError> {
        let (mut bucket, mut behind) = (home, 0);
        loop {
            let words = &self.words[bucket * self.bucket_words()..][..self.bucket_words()];
            let view = Bucket::new(words, self.table.cvt());
            for (slot, cvt) in view.cvts().enumerate() {
                match cvt.slot() {
                    Slot::Free => return Ok(Room::In { bucket, slot }),
                    Slot::Used(header) if header.name == name => {
                        return Err(PlaceError::DuplicateKey { key: name.key });
                    }
                    Slot::Used(_) | Slot::Torn => {}
                }
            }
            match view.overflow() {
                None if behind >= MAX_BEHIND => {
                    return Err(PlaceError::TooManyOfOneName { key: name.key });
                }
                None => return Ok(Room::After { tail: bucket }),
                Some(next) => bucket = self.next[bucket] + next.index_of(name.key),
            }
            behind += 1;
        }
    }

    /// Links unused buckets behind `tail`; returns the index of the bucket in which the chain of
    /// `key` continues.
    fn link(&mut self, key: Key, home: usize, tail: usize) -> Result<usize, PlaceError> {
        let wanted = if tail == home { SlotKind::Bucket } else { SlotKind::Fan };
        let fits = |(buckets, _): &(Overflow, usize)| buckets.is_fan() == (wanted == SlotKind::Fan);
        let unused = self.unused.iter().position(fits).ok_or(PlaceError::NeedsOverflow(wanted))?;
        let (buckets, first) = self.unused.swap_remove(unused);
        let overflow_word = (tail + 1) * self.bucket_words() - 1;
        self.words[overflow_word] = buckets.encode();
        self.next[tail] = first;
        Ok(first + buckets.index_of(key))
    }

    fn offset(&self, bucket: usize) -> u64 {
        let base = self.table.geometry().shard_base(self.shard);
        let bytes = (self.bucket_words() * WORD_BYTES) as u64;
        match bucket.checked_sub(self.home_count()) {
            Some(overflow) => self.overflow[overflow],
            None => base + bucket as u64 * bytes,
        }
    }

    fn home_count(&self) -> usize {
        self.table.geometry().shape().buckets_per_shard() as usize
    }

    fn bucket_words(&self) -> usize {
        self.table.bucket_words()
    }
}

/// Place found for a row.
enum Room {
    In { bucket: usize, slot: usize },
    After { tail: usize },
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use lotus_fabric::ids::TableId;
    use proptest::prelude::*;

    use super::*;
    use crate::index::{Lookup, SearchStep};
    use crate::layout::bucket::BUCKET_SLOTS;
    use crate::layout::cvt::Cvt;
    use crate::naming::{KeyMark, Naming};
    use crate::table::{Inline, TableSpec};
    use crate::visibility::{Newest, newest};

    const SPILL: u64 = 1 << 30;

    fn table(capacity: u64, versions: u32) -> TableDef {
        let spec = TableSpec::new("rows").record_bytes(16).shards(1).versions(versions);
        let spec = spec.inline(Inline::Never);
        TableDef::new(TableId(9), spec.capacity(capacity), vec![1 << 18], Naming::KNOWN)
            .expect("valid")
    }

    /// Row `number` of shard 0. Numbers that differ above their lowest 44 bits alone share a name.
    fn name(number: u64) -> RowName {
        let key = Key((number << ShardId::BITS) & (u64::MAX >> 8));
        RowName { key, mark: KeyMark::from_low_bits(number >> 44) }
    }

    /// Places every row, giving as many overflow buckets as needed.
    fn place_all<'a>(table: &'a TableDef, rows: &[RowName]) -> (ShardImage<'a>, Vec<u64>) {
        let mut image = ShardImage::new(table, ShardId::from_low_bits(0));
        let mut spill = SPILL;
        let place = |(index, name): (usize, &RowName)| {
            let record = LoadedRecord::At(64 * (index as u64 + 1));
            let row = LoadedRow { record, length: 16 };
            loop {
                match image.place(*name, row) {
                    Ok(offset) => return offset,
                    Err(PlaceError::NeedsOverflow(SlotKind::Fan)) => {
                        image.add_overflow(Overflow::fan(spill));
                    }
                    Err(PlaceError::NeedsOverflow(_)) => {
                        image.add_overflow(Overflow::bucket(spill));
                    }
                    Err(error) => panic!("{error}"),
                }
                spill += 1 << 16;
            }
        };
        let offsets = rows.iter().enumerate().map(place).collect();
        (image, offsets)
    }

    /// Remote memory after the images were written to it.
    fn memory(image: &ShardImage<'_>) -> BTreeMap<u64, u64> {
        let words = |(base, words): (u64, &[u64])| {
            let place = |(index, word): (usize, &u64)| (base + 8 * index as u64, *word);
            words.iter().enumerate().map(place).collect::<Vec<_>>()
        };
        image.images().flat_map(words).collect()
    }

    fn find(table: &TableDef, memory: &BTreeMap<u64, u64>, name: RowName) -> Option<(u64, Newest)> {
        let (mut lookup, mut read) = Lookup::start(table, name, None);
        loop {
            let words: Vec<u64> =
                (0..read.words as u64).map(|word| memory[&(read.offset + 8 * word)]).collect();
            match lookup.absorb(&words) {
                SearchStep::Read(next) => read = next,
                SearchStep::Found { offset, words: range } => {
                    return Some((offset, newest(Cvt::new(&words[range], table.cvt()))));
                }
                SearchStep::Absent { .. } => return None,
                SearchStep::Torn => panic!("nobody is writing"),
            }
        }
    }

    #[test]
    fn duplicates_are_noticed_wherever_the_first_one_lies() {
        let table = table(1, 2);
        let rows: Vec<RowName> = (1..=10).map(name).collect();
        let (mut image, _) = place_all(&table, &rows);
        for name in rows {
            let again = image.place(name, LoadedRow { record: LoadedRecord::At(64), length: 0 });
            assert_eq!(again, Err(PlaceError::DuplicateKey { key: name.key }));
        }
    }

    #[test]
    fn a_full_chain_asks_for_an_overflow_bucket_once() {
        let table = table(1, 2);
        let mut image = ShardImage::new(&table, ShardId::from_low_bits(0));
        let row = LoadedRow { record: LoadedRecord::At(64), length: 16 };
        let place = |number: u64, image: &mut ShardImage<'_>| image.place(name(number), row);
        for number in 0..7 {
            assert_eq!(place(number, &mut image), Ok((1 << 18) + 72 * number));
        }
        assert_eq!(place(7, &mut image), Err(PlaceError::NeedsOverflow(SlotKind::Bucket)));
        image.add_overflow(Overflow::bucket(SPILL));
        assert_eq!(place(7, &mut image), Ok(SPILL));
        assert_eq!(place(8, &mut image), Ok(SPILL + 72));
        assert_eq!(image.images().count(), 2);
    }

    /// A longer chain has places that a scan cannot say.
    #[test]
    fn rows_that_share_a_name_are_refused_when_their_chain_is_as_long_as_chains_may_be() {
        let table = table(1, 2);
        let mut image = ShardImage::new(&table, ShardId::from_low_bits(0));
        let row = LoadedRow { record: LoadedRecord::At(64), length: 16 };
        let RowName { key, .. } = name(3);
        let mut placed = 0;
        let refused = loop {
            let name = RowName { key, mark: KeyMark::from_low_bits(placed) };
            match image.place(name, row) {
                Ok(_) => placed += 1,
                Err(PlaceError::NeedsOverflow(kind)) => image.add_overflow(match kind {
                    SlotKind::Fan => Overflow::fan(SPILL),
                    _ => Overflow::bucket(SPILL),
                }),
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused, PlaceError::TooManyOfOneName { key });
        assert_eq!(placed, BUCKET_SLOTS as u64 * (1 + u64::from(MAX_BEHIND)));
    }

    #[test]
    fn a_small_record_lies_in_the_home_slot_of_its_cell() {
        let spec = TableSpec::new("rows").record_bytes(16).shards(1).capacity(7);
        let table = TableDef::new(TableId(9), spec, vec![1 << 18], Naming::KNOWN).expect("valid");
        let mut image = ShardImage::new(&table, ShardId::from_low_bits(0));
        let words: Vec<u64> = (100..108).collect();
        let row = LoadedRow { record: LoadedRecord::InCell(&words), length: 16 };
        let name = name(5);
        let cvt = image.place(name, row).expect("there is room");
        let memory = memory(&image);
        let (found, newest) = find(&table, &memory, name).expect("it was placed");
        let Newest::Version(seen) = newest else { panic!("{newest:?}") };
        assert_eq!((found, seen.record), (cvt, table.cvt().home(cvt, 0)));
        let there: Vec<u64> = (0..8).map(|word| memory[&(seen.record + 8 * word)]).collect();
        assert_eq!(there, words);
    }

    proptest! {
        #[test]
        fn every_row_is_found_where_it_was_placed(
            hashes in prop::collection::btree_set(0_u64..1 << 52, 0..200),
            capacity in 1_u64..300, versions in 2_u32..=8,
        ) {
            let table = table(capacity, versions);
            // Some rows share a name.
            let twins = hashes.iter().filter(|hash| *hash % 3 == 0).map(|hash| hash ^ 1 << 50);
            let rows: BTreeSet<RowName> = hashes.iter().copied().chain(twins).map(name).collect();
            let rows: Vec<RowName> = rows.into_iter().collect();
            let (image, offsets) = place_all(&table, &rows);
            let memory = memory(&image);
            for (index, (name, offset)) in rows.iter().zip(offsets).enumerate() {
                let (found, newest) = find(&table, &memory, *name).expect("it was placed");
                prop_assert_eq!(found, offset);
                let Newest::Version(seen) = newest else { panic!("{newest:?}") };
                prop_assert_eq!(seen.record, 64 * (index as u64 + 1));
                prop_assert_eq!(seen.version, Timestamp::LOADED);
            }
            let absent = (0..50).map(|number| name(number << 40 | 1));
            for name in absent.filter(|name| !rows.contains(name)) {
                prop_assert_eq!(find(&table, &memory, name), None);
            }
        }
    }
}
