//! Place of a scan between two rows of a table: small, and valid as long as its snapshot.
//!
//! A table's home buckets are read in *stretches* of a few buckets each. A stretch is followed by
//! the overflow buckets of its home buckets, home bucket by home bucket ([`crate::scan::chains`]).
//! On no replica does a bucket leave its chain or a row's CVT move (H13), so a place names the same
//! rows of a snapshot at every return.

use lotus_fabric::ids::{ShardId, TableId};
use lotus_fabric::verbs::MAX_VERB_BYTES;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::bucket::{BUCKET_SLOTS, FAN_OUT, MAX_BEHIND};
use lotus_mvcc::table::MAX_ORDERED_KEY_BYTES;
use lotus_mvcc::{TableDef, Timestamp};
use lotus_router::GroupId;

/// Largest number of rows in a batch.
pub(crate) const AT_ONCE: usize = 64;

/// Largest number of home buckets in a stretch.
const MOST_HOMES: usize = AT_ONCE / BUCKET_SLOTS;

/// Place between two rows of a table, in the order of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ScanPlace {
    /// The replica group.
    pub(crate) group: u16,
    /// Number of the stretch's first home bucket, in the group.
    pub(crate) bucket: u64,
    /// Last bucket read behind the home buckets; `None` before the home buckets.
    pub(crate) chain: Option<ChainPlace>,
}

/// Place of a bucket behind the home buckets of a stretch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChainPlace {
    /// Number of home buckets in the stretch.
    pub(crate) homes: u8,
    /// Index of the home bucket in the stretch.
    pub(crate) home: u8,
    /// Path from the home bucket.
    pub(crate) path: Path,
}

/// Path from a home bucket to a bucket behind it: the index of the bucket to pass through in each
/// fan. Paths of one length have the order of their buckets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Path(u64);

impl Path {
    /// Path to the home bucket itself. Each step appends two bits.
    pub(crate) const HOME: Self = Self(1);
    const STEP_BITS: u32 = FAN_OUT.trailing_zeros();

    /// Path extended by one step, to the bucket with index `index`.
    ///
    /// # Panics
    /// If the path gets more than [`MAX_BEHIND`] steps.
    pub(crate) const fn child(self, index: usize) -> Self {
        const { assert!(MAX_BEHIND as u32 * Self::STEP_BITS < u64::BITS, "a path fits") };
        assert!(self.0 >> (u64::BITS - Self::STEP_BITS) == 0, "I283: a path has 31 steps at most");
        Self(self.0 << Self::STEP_BITS | index as u64)
    }

    /// Paths to all buckets that the path passes through, including the last, without the home
    /// bucket.
    pub(crate) fn prefixes(self) -> impl Iterator<Item = Self> {
        let steps = self.0.ilog2() / Self::STEP_BITS;
        (0..steps).rev().map(move |left| Self(self.0 >> (left * Self::STEP_BITS)))
    }

    /// Path with this encoding; `None` if the encoding is invalid.
    const fn from_raw(raw: u64) -> Option<Self> {
        match raw.checked_ilog2() {
            Some(bits) if bits.is_multiple_of(Self::STEP_BITS) => Some(Self(raw)),
            _ => None,
        }
    }
}

impl ScanPlace {
    /// The beginning of every table.
    pub(crate) const START: Self = Self { group: 0, bucket: 0, chain: None };

    /// The first place of the next group.
    pub(crate) const fn next_group(self) -> Self {
        Self { group: self.group + 1, bucket: 0, chain: None }
    }

    /// The first place behind a stretch of `homes` home buckets and all their overflow buckets.
    pub(crate) const fn next_stretch(self, homes: u64) -> Self {
        Self { bucket: self.bucket + homes, chain: None, ..self }
    }
}

/// Home buckets of a table in one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Homes {
    base: u64,
    bucket_bytes: u64,
    /// Number of home buckets.
    pub(crate) count: u64,
}

impl Homes {
    pub(crate) fn of(table: &TableDef, group: GroupId) -> Self {
        let geometry = table.geometry();
        let bucket_bytes = (table.bucket_words() * WORD_BYTES) as u64;
        let bytes = geometry.shape().index_bytes(usize::from(group.0));
        // The group's first shard has the group's own number.
        let first = ShardId::from_low_bits(u64::from(group.0));
        let base = if bytes == 0 { 0 } else { geometry.shard_base(first) };
        Self { base, bucket_bytes, count: bytes / bucket_bytes }
    }

    /// Offset of the home bucket with this number.
    pub(crate) const fn offset(&self, bucket: u64) -> u64 {
        self.base + bucket * self.bucket_bytes
    }

    /// Number of buckets in a READ from `bucket` on.
    pub(crate) fn in_one_read(&self, bucket: u64) -> u64 {
        (MAX_VERB_BYTES as u64 / self.bucket_bytes).min(self.count - bucket)
    }
}

/// Number of home buckets in a stretch of a table: their rows take at most `room` bytes, or the
/// stretch is one bucket.
pub(crate) fn stretch(table: &TableDef, room: usize) -> u64 {
    let row = (table.stored().value_bytes + table.stored().key_bytes) as usize;
    let in_one_read = MAX_VERB_BYTES / (table.bucket_words() * WORD_BYTES);
    (room / row / BUCKET_SLOTS).clamp(1, in_one_read.min(MOST_HOMES)) as u64
}

/// Place from which a scan continues, in any table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CursorPlace {
    /// The beginning.
    Start,
    /// In an index.
    Buckets(ScanPlace),
    /// In an ordered table: the key behind the part that was read ([`KeyRange::rest`]).
    ///
    /// [`KeyRange::rest`]: lotus_mvcc::KeyRange::rest
    Key(Vec<u8>),
}

impl CursorPlace {
    /// Whether places of this kind belong to a table.
    pub(crate) fn is_of(&self, table: &TableDef) -> bool {
        match self {
            Self::Start => true,
            Self::Buckets(_) => !table.is_ordered(),
            Self::Key(_) => table.is_ordered(),
        }
    }
}

/// Kinds of places, as the last byte of a cursor.
const START: u8 = 0;
const BUCKETS: u8 = 1;
const KEY: u8 = 2;

/// Cursor of a scan: the snapshot and the place from which the scan continues.
///
/// The cursor holds no snapshot: the scan keeps the snapshot readable. Valid only in the process
/// that made it, until that process ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanCursor {
    /// Number of the process that made the cursor.
    pub(crate) process: u64,
    pub(crate) table: TableId,
    pub(crate) snapshot: Timestamp,
    pub(crate) place: CursorPlace,
}

impl ScanCursor {
    /// Largest number of bytes of an encoded cursor.
    pub const MAX_BYTES: usize = Self::HEAD_BYTES + MAX_ORDERED_KEY_BYTES as usize + 1;
    /// Bytes of the process, the snapshot and the table.
    const HEAD_BYTES: usize = 18;
    /// Bytes of a place in an index.
    const BUCKETS_BYTES: usize = 20;

    /// Returns the table.
    pub const fn table(&self) -> TableId {
        self.table
    }

    /// Returns the snapshot.
    pub const fn snapshot(&self) -> Timestamp {
        self.snapshot
    }

    /// Encodes the cursor.
    pub fn encode(&self) -> Vec<u8> {
        let Self { process, table, snapshot, place } = self;
        let mut bytes = Vec::with_capacity(Self::MAX_BYTES);
        bytes.extend_from_slice(&process.to_le_bytes());
        bytes.extend_from_slice(&snapshot.raw().to_le_bytes());
        bytes.extend_from_slice(&table.0.to_le_bytes());
        match place {
            CursorPlace::Start => bytes.push(START),
            CursorPlace::Buckets(ScanPlace { group, bucket, chain }) => {
                let (homes, home, path) =
                    chain.map_or((0, 0, 0), |chain| (chain.homes, chain.home, chain.path.0));
                bytes.extend_from_slice(&bucket.to_le_bytes());
                bytes.extend_from_slice(&path.to_le_bytes());
                bytes.extend_from_slice(&[homes, home]);
                bytes.extend_from_slice(&group.to_le_bytes());
                bytes.push(BUCKETS);
            }
            CursorPlace::Key(key) => {
                bytes.extend_from_slice(key);
                bytes.push(KEY);
            }
        }
        bytes
    }

    /// Decodes a cursor encoded by [`ScanCursor::encode`]; `None` for other bytes, as far as they
    /// are detected.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > Self::MAX_BYTES {
            return None;
        }
        let (kind, bytes) = bytes.split_last()?;
        let (head, place) = bytes.split_at_checked(Self::HEAD_BYTES)?;
        let word = |from: &[u8]| Some(u64::from_le_bytes(from.first_chunk().copied()?));
        let half = |from: &[u8]| Some(u16::from_le_bytes(from.first_chunk().copied()?));
        let place = match (*kind, place.len()) {
            (START, 0) => CursorPlace::Start,
            (BUCKETS, Self::BUCKETS_BYTES) => {
                let (bucket, path, group) = (word(place)?, word(&place[8..])?, half(&place[18..])?);
                let chain = match (path, place[16], place[17]) {
                    (0, 0, 0) => None,
                    (path, homes, home) if home < homes && usize::from(homes) <= MOST_HOMES => {
                        Some(ChainPlace { homes, home, path: Path::from_raw(path)? })
                    }
                    _ => return None,
                };
                CursorPlace::Buckets(ScanPlace { group, bucket, chain })
            }
            (KEY, _) => CursorPlace::Key(place.to_vec()),
            _ => return None,
        };
        let (process, snapshot) = (word(head)?, Timestamp::new(word(&head[8..])?)?);
        Some(Self { process, table: TableId(half(&head[16..])?), snapshot, place })
    }
}

#[cfg(test)]
mod tests {
    use lotus_mvcc::{Naming, TableSpec};
    use proptest::prelude::*;

    use super::*;

    fn table(record_bytes: u32, capacity: u64) -> TableDef {
        let spec = TableSpec::new("rows").record_bytes(record_bytes).capacity(capacity);
        TableDef::new(TableId(1), spec, vec![4096; 3], Naming::KNOWN).expect("it is sound")
    }

    #[test]
    fn a_stretch_has_as_many_rows_as_there_is_room_for_and_one_bucket_at_least() {
        for (record_bytes, room, expected) in
            [(8, 1 << 16, 9), (8, 0, 1), (1000, 1 << 15, 4), (8192, 1 << 16, 1), (8192, 1, 1)]
        {
            assert_eq!(stretch(&table(record_bytes, 100), room), expected, "{record_bytes} {room}");
        }
    }

    #[test]
    fn home_buckets_are_read_to_their_end() {
        let table = table(200, 100_000);
        let homes = Homes::of(&table, GroupId(2));
        assert!(homes.count > 32, "{homes:?}");
        assert_eq!(homes.in_one_read(0), 32, "16 KiB of 512 bytes each");
        assert_eq!(homes.in_one_read(homes.count - 5), 5);
        assert_eq!(homes.offset(3), 4096 + 3 * 512);
    }

    proptest! {
        #[test]
        fn cursors_survive_their_encoding(
            words: (u64, u64),
            halves: (u16, u16),
            chain: Option<(u8, u8)>,
            steps in prop::collection::vec(0..FAN_OUT, 0..=31),
            snapshot in 0..1_u64 << 63,
            key in prop::collection::vec(any::<u8>(), 0..=255),
        ) {
            let snapshot = Timestamp::new(snapshot).expect("63 bits");
            let ((process, bucket), (table, group)) = (words, halves);
            let path = steps.iter().fold(Path::HOME, |path, index| path.child(*index));
            prop_assert_eq!(path.prefixes().count(), steps.len());
            let chain = chain.map(|(home, homes)| (home, homes % (MOST_HOMES as u8 + 1)));
            let chain = chain.filter(|(home, homes)| home < homes);
            let chain = chain.map(|(home, homes)| ChainPlace { homes, home, path });
            let buckets = CursorPlace::Buckets(ScanPlace { group, bucket, chain });
            for place in [CursorPlace::Start, buckets, CursorPlace::Key(key)] {
                let cursor = ScanCursor { process, table: TableId(table), snapshot, place };
                let encoded = cursor.encode();
                prop_assert!(encoded.len() <= ScanCursor::MAX_BYTES);
                prop_assert_eq!(ScanCursor::decode(&encoded), Some(cursor));
            }
        }

        #[test]
        fn other_bytes_are_cursors_or_are_not(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let decoded = ScanCursor::decode(&bytes);
            prop_assert!(decoded.is_none_or(|cursor| cursor.encode()[..] == bytes[..]));
        }
    }
}
