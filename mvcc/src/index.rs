//! The hash index: the place of a row's CVT, and the search for a CVT.
//!
//! # Geometry
//!
//! In the region of every replica group a table has one array of home buckets. Shard `s` belongs to
//! group `s % groups`; within a group, shards lie one after the other with the same number of
//! buckets each, and a row's home bucket follows from its hash. A full bucket continues in overflow
//! buckets, which belong to the same shard and never leave its chain: first a single bucket, then
//! fans of four ([`crate::layout::bucket`]), so that an index grows with its table without moving
//! rows.
//!
//! ```text
//! group g:  base | shard g: bucket 0, 1, ... | shard g + groups: bucket 0, 1, ... | ...
//! ```
//!
//! # Lookup
//!
//! [`Lookup`] is a state machine over words that its caller reads (LOTUS §5.1, "read CVT"): it
//! names the words to read, takes them, and returns the next step. A stale cached address is
//! harmless: a CVT names its row, so the lookup notices another row's CVT and reads the bucket.
//! Rows with the same name lie in one chain; the mark in the header identifies the row
//! ([`crate::naming`]).
//!
//! # Inserting
//!
//! An insert holds the lock of the row *and* of the home bucket, whose lock name is
//! [`IndexShape::bucket_key`] in the table's bucket space (LOTUS §4.1 locks the bucket's address;
//! aligned addresses would name few shards). This lock covers the whole chain.

use std::ops::Range;

use lotus_fabric::ids::{Key, ShardId};

use crate::layout::bucket::{BUCKET_SLOTS, Bucket, bucket_words, slot_offset};
use crate::layout::cvt::{Cell, Cvt, CvtShape, HEADER_WORDS, Slot};
use crate::layout::{LINE_BYTES, WORD_BYTES};
use crate::naming::RowName;
use crate::slab::SlotKind;
use crate::table::{SpecError, TableDef, TableSpec};

/// Share of the slots of home buckets, in percent, that is used at a table's capacity: the free
/// fifth keeps all but a few rows of an even spread out of overflow buckets.
pub const LOAD_FACTOR_PERCENT: u64 = 80;

/// Division of a table's index into groups, shards and buckets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexShape {
    groups: u16,
    shards: u16,
    buckets_per_shard: u64,
    bucket_bytes: u64,
}

impl IndexShape {
    /// Returns the shape of a table with this `spec` in a cluster of `groups` replica groups.
    ///
    /// # Errors
    /// See [`TableSpec::validate`].
    ///
    /// # Panics
    /// If `groups` is 0, or exceeds the number of shards of the cluster.
    pub fn of(spec: &TableSpec, groups: usize) -> Result<Self, SpecError> {
        spec.validate()?;
        assert!((1..=usize::from(ShardId::COUNT)).contains(&groups), "{groups} replica groups");
        let rows_per_bucket_in_100 = BUCKET_SLOTS as u64 * LOAD_FACTOR_PERCENT;
        let buckets_in_100 = u64::from(spec.shards) * rows_per_bucket_in_100;
        Ok(Self {
            groups: groups as u16,
            shards: spec.shards as u16,
            buckets_per_shard: (spec.stored().rows * 100).div_ceil(buckets_in_100),
            bucket_bytes: (bucket_words(spec.cvt_shape()) * WORD_BYTES) as u64,
        })
    }

    /// Number of home buckets of each shard; at least one.
    #[inline]
    pub fn buckets_per_shard(&self) -> u64 {
        self.buckets_per_shard
    }

    /// Replica group of `shard`.
    #[inline]
    pub fn group(&self, shard: ShardId) -> usize {
        usize::from(shard.raw() % self.groups)
    }

    /// Bytes of all home buckets in group `group`; 0 if the group has no shard of the table.
    ///
    /// # Panics
    /// If the cluster has no group `group`.
    pub fn index_bytes(&self, group: usize) -> u64 {
        let (groups, shards) = (usize::from(self.groups), usize::from(self.shards));
        assert!(group < groups, "group {group} of {groups}");
        let shards_here = shards.saturating_sub(group).div_ceil(groups) as u64;
        shards_here * self.shard_bytes()
    }

    /// Bytes of one shard's home buckets.
    #[inline]
    pub(crate) fn shard_bytes(&self) -> u64 {
        self.buckets_per_shard * self.bucket_bytes
    }

    /// Number of the row's home bucket within its shard.
    #[inline]
    pub fn home_number(&self, key: Key) -> u64 {
        const HASH_BITS: u32 = 64 - ShardId::BITS;
        // The hash as a fraction of its range, times the buckets: no division.
        ((u128::from(key.hash()) * u128::from(self.buckets_per_shard)) >> HASH_BITS) as u64
    }

    /// Name of the lock of the row's home bucket, which covers the chain: the bucket's number in
    /// place of a hash, in the row's own shard (I26).
    #[inline]
    pub fn bucket_key(&self, key: Key) -> Key {
        self.bucket_name(key.shard(), self.home_number(key))
    }

    /// Name of the lock of home bucket `number` of `shard`.
    #[inline]
    pub fn bucket_name(&self, shard: ShardId, number: u64) -> Key {
        Key(number << ShardId::BITS | u64::from(shard.raw()))
    }

    /// Bytes from the group's base to the shard's first bucket.
    #[inline]
    fn shard_offset(&self, shard: ShardId) -> u64 {
        assert!(shard.raw() < self.shards, "shard {} of {}", shard.raw(), self.shards);
        u64::from(shard.raw() / self.groups) * self.shard_bytes()
    }
}

/// A shape and its place: the offset of the home buckets in every group's region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexGeometry {
    shape: IndexShape,
    bases: Vec<u64>,
}

impl IndexGeometry {
    /// Returns the geometry of an index of this shape, at `bases[g]` in group `g`.
    ///
    /// # Panics
    /// If the number of bases is not the number of groups, or a base is 0 or not aligned to a cache
    /// line.
    pub fn new(shape: IndexShape, bases: Vec<u64>) -> Self {
        assert_eq!(bases.len(), usize::from(shape.groups), "one base for each group");
        let line = LINE_BYTES as u64;
        assert!(bases.iter().all(|base| *base != 0 && base.is_multiple_of(line)), "{bases:?}");
        Self { shape, bases }
    }

    /// Offset of the home buckets in each group.
    pub fn bases(&self) -> &[u64] {
        &self.bases
    }

    /// Division of the index into groups, shards and buckets.
    #[inline]
    pub fn shape(&self) -> &IndexShape {
        &self.shape
    }

    /// Offset of the first home bucket of `shard`, in its group's region.
    ///
    /// # Panics
    /// If the table does not have the shard.
    #[inline]
    pub fn shard_base(&self, shard: ShardId) -> u64 {
        self.bases[self.shape.group(shard)] + self.shape.shard_offset(shard)
    }

    /// Offset of the row's home bucket, in the region of the group of the row's shard.
    ///
    /// # Panics
    /// If the table does not have the shard.
    #[inline]
    pub fn home_bucket(&self, key: Key) -> u64 {
        self.bucket_at(key.shard(), self.shape.home_number(key))
    }

    /// Returns the kind of slot that extends the chain of `key` behind its last bucket, `tail`.
    #[inline]
    pub fn behind(&self, key: Key, tail: u64) -> SlotKind {
        if tail == self.home_bucket(key) { SlotKind::Bucket } else { SlotKind::Fan }
    }

    /// Offset of home bucket `number` of `shard`, in the region of the shard's group.
    ///
    /// # Panics
    /// If the table does not have the shard.
    #[inline]
    pub fn bucket_at(&self, shard: ShardId, number: u64) -> u64 {
        self.shard_base(shard) + number * self.shape.bucket_bytes
    }
}

/// Words to read from the region of the row's group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of words.
    pub words: usize,
}

/// A slot that an insert may take, under the lock of the chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeSlot {
    /// Offset of the CVT to be created.
    pub offset: u64,
    /// First cell of the CVT, which may still be bound to a record slot of a purged row. The insert
    /// writes the header and the first cell, as [`Cell::taken_by`] says, and leaves the remaining
    /// cells unchanged.
    pub first_cell: Cell,
}

/// Next action, or result, of a lookup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SearchStep {
    /// Read these words and pass them to [`Lookup::absorb`].
    Read(Read),
    /// The row's CVT.
    Found {
        /// Offset of the CVT; worth remembering in the address cache.
        offset: u64,
        /// Range of the CVT in the words last absorbed.
        words: Range<usize>,
    },
    /// The row has no CVT. Valid only as of these READs, unless a lock excludes inserts.
    Absent {
        /// The last bucket of the chain, behind which an insert would append overflow buckets.
        tail: u64,
        /// The first slot that an insert may take; `None` if the chain is full.
        free: Option<FreeSlot>,
    },
    /// The row was not seen, but a header was being written: call [`Lookup::restart`], a bounded
    /// number of times.
    Torn,
}

/// The search for one row's CVT.
#[derive(Clone, Debug)]
pub struct Lookup {
    header: [u64; HEADER_WORDS],
    cvt: CvtShape,
    /// Offset of the home bucket.
    home: u64,
    /// Place of the next words to absorb.
    at: At,
    free: Option<FreeSlot>,
    torn: bool,
    /// Whether the chain has led into a fan.
    in_fan: bool,
    /// Number of overflow buckets visited so far.
    behind: u8,
}

#[derive(Clone, Copy, Debug)]
enum At {
    CachedCvt(u64),
    Bucket(u64),
}

impl Lookup {
    /// Starts the search for the row `name` of `table`, at the cached address if known.
    #[inline]
    pub fn start(table: &TableDef, name: RowName, cached: Option<u64>) -> (Self, Read) {
        let home = table.geometry().home_bucket(name.key);
        let at = cached.map_or(At::Bucket(home), At::CachedCvt);
        let header = table.header(name).encode();
        let cvt = table.cvt();
        let (free, torn, in_fan, behind) = (None, false, false, 0);
        let lookup = Self { header, cvt, home, at, free, torn, in_fan, behind };
        let read = lookup.pending();
        (lookup, read)
    }

    /// Whether the search has passed into a fan of buckets: this part of the index has more rows
    /// than planned.
    pub fn is_in_fan(&self) -> bool {
        self.in_fan
    }

    /// Number of buckets behind the home bucket that the search has visited; at most
    /// [`MAX_BEHIND`](crate::layout::bucket::MAX_BEHIND).
    pub fn behind(&self) -> u8 {
        self.behind
    }

    /// Restarts the search at the home bucket.
    #[inline]
    pub fn restart(&mut self) -> Read {
        (self.free, self.torn, self.at) = (None, false, At::Bucket(self.home));
        self.behind = 0;
        self.pending()
    }

    /// Takes the words that the last step asked for, and returns the next step.
    ///
    /// # Panics
    /// If the number of words differs from the requested number.
    #[inline]
    pub fn absorb(&mut self, words: &[u64]) -> SearchStep {
        self.absorb_except(words, |_| false)
    }

    /// Like [`Lookup::absorb`], for an insert whose transaction has already `claimed` slots of the
    /// chain: claimed slots are not free.
    ///
    /// # Panics
    /// As `absorb`.
    #[inline]
    pub fn absorb_except(&mut self, words: &[u64], claimed: impl Fn(u64) -> bool) -> SearchStep {
        match self.at {
            At::CachedCvt(offset) => self.absorb_cached(offset, words),
            At::Bucket(offset) => self.absorb_bucket(offset, Bucket::new(words, self.cvt), claimed),
        }
    }

    #[inline]
    fn absorb_cached(&mut self, offset: u64, words: &[u64]) -> SearchStep {
        assert_eq!(words.len(), self.pending().words, "a CVT was asked for");
        if words[..HEADER_WORDS] == self.header {
            return SearchStep::Found { offset, words: 0..words.len() };
        }
        SearchStep::Read(self.restart())
    }

    #[inline]
    fn absorb_bucket(
        &mut self,
        offset: u64,
        bucket: Bucket<'_>,
        claimed: impl Fn(u64) -> bool,
    ) -> SearchStep {
        // The comparison covers the whole header, including mark and check: only the row's own
        // complete header matches, not the header of another row with the same name.
        let found = bucket.slots().position(|slot| slot[..HEADER_WORDS] == self.header);
        if let Some(slot) = found {
            let start = slot * self.cvt.words();
            let words = start..start + self.cvt.words();
            return SearchStep::Found { offset: offset + slot_offset(self.cvt, slot), words };
        }
        for (slot, cvt) in bucket.cvts().enumerate() {
            let at = offset + slot_offset(self.cvt, slot);
            match cvt.slot() {
                Slot::Used(_) => {}
                Slot::Torn => self.torn = true,
                Slot::Free if claimed(at) => {}
                Slot::Free => self.note_free(at, cvt),
            }
        }
        match bucket.overflow() {
            Some(next) => {
                self.in_fan = next.is_fan();
                self.behind = self.behind.saturating_add(1);
                self.at = At::Bucket(next.bucket_of(Key(self.header[0]), self.cvt));
                SearchStep::Read(self.pending())
            }
            None if self.torn => SearchStep::Torn,
            None => SearchStep::Absent { tail: offset, free: self.free },
        }
    }

    /// Notes a free slot. A free slot with a torn first cell is being freed right now, and cannot
    /// be taken.
    #[inline]
    fn note_free(&mut self, offset: u64, cvt: Cvt<'_>) {
        match cvt.cell(0) {
            Ok(first_cell) => {
                self.free.get_or_insert(FreeSlot { offset, first_cell });
            }
            Err(_) => self.torn = true,
        }
    }

    #[inline]
    fn pending(&self) -> Read {
        match self.at {
            At::CachedCvt(offset) => Read { offset, words: self.cvt.words() },
            At::Bucket(offset) => Read { offset, words: bucket_words(self.cvt) },
        }
    }
}

#[cfg(test)]
mod tests {
    use lotus_fabric::ids::{TableId, TxnId};
    use proptest::prelude::*;

    use super::*;
    use crate::key::CriticalField;
    use crate::layout::cvt::Contents;
    use crate::naming::{KeyMark, Naming};
    use crate::table::Inline;

    const SPEC: TableSpec =
        TableSpec::new("rows").record_bytes(16).capacity(100).shards(1).inline(Inline::Never);
    const HOME: u64 = 1 << 18;
    const NEXT: u64 = 2 << 18;

    fn table() -> TableDef {
        TableDef::new(TableId(3), SPEC.capacity(1), vec![HOME], Naming::KNOWN).expect("valid")
    }

    /// Name and mark of row `number`. Numbers from a hundred apart share a name.
    fn name(number: u64) -> RowName {
        let key = Key((number % 100) << ShardId::BITS);
        RowName { key, mark: KeyMark::from_low_bits(number / 100) }
    }

    /// A bucket of two-cell CVTs with these rows in its first slots.
    fn bucket(rows: &[u64], overflow: u64) -> Vec<u64> {
        let mut words = vec![0; bucket_words(table().cvt())];
        for (row, slot) in rows.iter().zip(words.chunks_exact_mut(table().cvt_words())) {
            slot[..HEADER_WORDS].copy_from_slice(&table().header(name(*row)).encode());
        }
        *words.last_mut().expect("not empty") = overflow;
        words
    }

    const fn bucket_read(offset: u64) -> Read {
        Read { offset, words: 64 }
    }

    #[test]
    fn shards_of_a_group_lie_one_after_the_other() {
        let spec = SPEC.shards(10).capacity(1000).versions(3);
        let shape = IndexShape::of(&spec, 4).expect("valid");
        // 100 rows a shard, 5.6 a bucket: 18 buckets of 704 bytes.
        assert_eq!(shape.buckets_per_shard(), 18);
        let sizes = [3, 3, 2, 2].map(|shards| shards * 18 * 704);
        assert_eq!([0, 1, 2, 3].map(|group| shape.index_bytes(group)), sizes);
        let geometry = IndexGeometry::new(shape, vec![64, 128, 192, 256]);
        let bases = [0, 1, 4, 9].map(|shard| geometry.shard_base(ShardId::from_low_bits(shard)));
        assert_eq!(bases, [64, 128, 64 + 18 * 704, 128 + 2 * 18 * 704]);
    }

    #[test]
    fn more_groups_than_shards_leaves_groups_empty() {
        let shape = IndexShape::of(&SPEC.shards(2), 3).expect("valid");
        assert_eq!(shape.index_bytes(2), 0);
        assert!(shape.index_bytes(1) > 0);
    }

    #[test]
    fn a_lookup_reads_the_chain_to_its_end() {
        let (mut lookup, read) = Lookup::start(&table(), name(9), None);
        assert_eq!(read, bucket_read(HOME));
        let full = bucket(&[1, 2, 3, 4, 5, 6, 7], NEXT);
        assert_eq!(lookup.absorb(&full), SearchStep::Read(bucket_read(NEXT)));
        let found = SearchStep::Found { offset: NEXT + 72, words: 9..18 };
        assert_eq!(lookup.clone().absorb(&bucket(&[8, 9], 0)), found);
        let free = Some(FreeSlot { offset: NEXT + 72, first_cell: Cell::NEVER_USED });
        assert_eq!(lookup.absorb(&bucket(&[8], 0)), SearchStep::Absent { tail: NEXT, free });
        assert_eq!(lookup.restart(), bucket_read(HOME));
        assert_eq!(
            lookup.absorb(&bucket(&[1, 2, 3, 4, 5, 6, 7], 0)),
            SearchStep::Absent { tail: HOME, free: None }
        );
    }

    #[test]
    fn rows_of_one_name_are_found_each_for_itself() {
        let start = |row| Lookup::start(&table(), name(row), None).0;
        let found = |slot: usize| {
            let offset = HOME + 72 * slot as u64;
            SearchStep::Found { offset, words: 9 * slot..9 * slot + 9 }
        };
        let words = bucket(&[9, 309, 209], 0);
        let places = [9, 309, 209].map(|row| start(row).absorb(&words));
        assert_eq!(places, [0, 1, 2].map(found));
        let free = Some(FreeSlot { offset: HOME + 3 * 72, first_cell: Cell::NEVER_USED });
        assert_eq!(start(109).absorb(&words), SearchStep::Absent { tail: HOME, free });
        // A remembered address of another row of this name leads to the bucket.
        let (mut lookup, _) = Lookup::start(&table(), name(209), Some(HOME));
        assert_eq!(lookup.absorb(&words[..9]), SearchStep::Read(bucket_read(HOME)));
        assert_eq!(lookup.absorb(&words), found(2));
    }

    #[test]
    fn the_first_free_slot_of_the_chain_is_kept_with_its_bound_record() {
        let cell = Cell::NEVER_USED.taken_by(TxnId::from_raw(1), Contents::Deleted, 4096).cleared();
        let mut home = bucket(&[1, 2], NEXT);
        home[2 * 9 + 3..2 * 9 + 6].copy_from_slice(&cell.encode());
        let (mut lookup, _) = Lookup::start(&table(), name(9), None);
        lookup.absorb(&home);
        let free = Some(FreeSlot { offset: HOME + 2 * 72, first_cell: cell });
        assert_eq!(lookup.absorb(&bucket(&[], 0)), SearchStep::Absent { tail: NEXT, free });
    }

    #[test]
    fn a_slot_that_the_transaction_claimed_is_not_free() {
        let (mut lookup, _) = Lookup::start(&table(), name(9), None);
        let claims = [HOME + 72, HOME + 2 * 72];
        let step = lookup.absorb_except(&bucket(&[1], 0), |cvt| claims.contains(&cvt));
        let free = Some(FreeSlot { offset: HOME + 3 * 72, first_cell: Cell::NEVER_USED });
        assert_eq!(step, SearchStep::Absent { tail: HOME, free });
    }

    #[test]
    fn a_stale_cached_address_falls_back_to_the_bucket() {
        let cvt = |row| bucket(&[row], 0)[..9].to_vec();
        let (lookup, read) = Lookup::start(&table(), name(9), Some(NEXT + 72));
        assert_eq!(read, Read { offset: NEXT + 72, words: 9 });
        let mut other_table = table().header(name(9));
        other_table.table = TableId(4);
        let mut elsewhere = vec![0; 9];
        elsewhere[..3].copy_from_slice(&other_table.encode());
        for stale in [cvt(8), vec![0; 9], elsewhere, vec![name(9).key.0; 9]] {
            let mut lookup = lookup.clone();
            assert_eq!(lookup.absorb(&stale), SearchStep::Read(bucket_read(HOME)));
            let found = SearchStep::Found { offset: HOME, words: 0..9 };
            assert_eq!(lookup.absorb(&bucket(&[9], 0)), found);
        }
        let found = SearchStep::Found { offset: NEXT + 72, words: 0..9 };
        assert_eq!(lookup.clone().absorb(&cvt(9)), found);
    }

    #[test]
    fn a_landing_header_hides_absence_but_not_the_row() {
        let mut words = bucket(&[1, 9], 0);
        words[2] = 0;
        let start = |row| Lookup::start(&table(), name(row), None).0;
        assert_eq!(start(2).absorb(&words), SearchStep::Torn);
        assert_eq!(start(1).absorb(&words), SearchStep::Torn);
        assert!(matches!(start(9).absorb(&words), SearchStep::Found { .. }));
    }

    proptest! {
        #[test]
        fn every_home_bucket_lies_in_its_shard(
            primary in any::<u64>(), capacity in 1_u64..1_000_000_000, shards in 1_u32..=4096,
            groups in 1_usize..20, hashed in any::<bool>(),
        ) {
            let field = CriticalField::Bytes { start: 0, len: 8 };
            let field = if hashed { CriticalField::Hashed } else { field };
            let spec = SPEC.capacity(capacity).shards(shards).critical_field(field);
            let table = TableDef::new(TableId(1), spec, vec![HOME; groups], Naming::KNOWN);
            let table = table.expect("valid");
            let key = table.key(&primary.into());
            let (geometry, shape) = (table.geometry(), table.geometry().shape());
            let in_shard = geometry.home_bucket(key) - geometry.shard_base(key.shard());
            prop_assert!(in_shard < shape.shard_bytes());
            prop_assert_eq!(in_shard, shape.home_number(key) * 512);
            let group = shape.group(key.shard());
            prop_assert!(geometry.home_bucket(key) + 512 - HOME <= shape.index_bytes(group));
            prop_assert_eq!(shape.bucket_key(key).shard(), key.shard());
            let slots = shape.buckets_per_shard() * u64::from(shards) * BUCKET_SLOTS as u64;
            prop_assert!(slots * LOAD_FACTOR_PERCENT >= capacity * 100);
        }
    }
}
