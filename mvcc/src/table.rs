//! Tables: the application's specification, and its place in the cluster.
//!
//! A [`TableSpec`] is the application's request, possibly a `const`. A [`TableDef`] is the request
//! validated, numbered, and placed in every replica group; a definition never changes, so
//! coordinators share it without synchronisation. Neither type touches remote memory.
//!
//! An *ordered* table is a B+tree whose nodes are rows: keys and values of the application lie in
//! the leaves, so the rows in remote memory differ in length and number from the specification
//! ([`StoredRows`]).

use std::borrow::Cow;

use lotus_fabric::ids::{Key, ShardId, TableId};
use lotus_fabric::verbs::MAX_VERB_BYTES;
use thiserror::Error;

use crate::index::{IndexGeometry, IndexShape};
use crate::key::{CriticalField, PrimaryKey};
use crate::layout::WORD_BYTES;
use crate::layout::bucket::{FAN_OUT, bucket_bytes, bucket_words};
use crate::layout::cvt::{Contents, CvtHeader, CvtShape, MAX_CELLS, MAX_HOME_WORDS, MIN_CELLS};
use crate::layout::record::{record_words, slot_bytes};
use crate::naming::{Naming, RowName};
use crate::slab::SlotKind;

mod rows;
mod sizes;

pub use sizes::SizeError;

/// Largest length of a table's name, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Largest length of a value, in bytes: with the longest key, a record is still one verb.
pub const MAX_RECORD_BYTES: u32 = 15 << 10;
/// Largest number of rows in a table.
pub const MAX_CAPACITY: u64 = 1 << 36;
/// Largest number of tables in a cluster: their list is one value at the authority, of 1 MiB at
/// most.
pub const MAX_TABLES: usize = 1024;
/// Largest number of tables over a cluster's whole existence: the number of a dropped table is
/// never reused.
pub const MAX_TABLE_IDS: usize = 1 << 16;
/// Prefix of the names of the system's own tables.
pub const INTERNAL_PREFIX: &str = "lotus.";
/// Largest total of key and value, in bytes, for which [`Inline::Auto`] places records in their
/// cells.
pub const MAX_INLINE_BYTES: u32 = 64;
/// Longest primary key of an ordered table, in bytes.
pub const MAX_ORDERED_KEY_BYTES: u32 = lotus_tree::MAX_KEY_BYTES as u32;
/// Least size of the nodes of an ordered table, in bytes: the amount read for one row.
const LEAST_NODE_BYTES: usize = 1024;
/// Largest size of the nodes of an ordered table, in bytes: a node is a value.
pub const MAX_NODE_BYTES: usize = MAX_RECORD_BYTES as usize;
/// Fill of a node, in percent, under inserts and deletes.
const NODE_FILL_PERCENT: u64 = 65;

const _: () = assert!(
    slot_bytes(PrimaryKey::MAX_BYTES, MAX_RECORD_BYTES as usize) <= MAX_VERB_BYTES
        && slot_bytes(u8::MAX as usize, MAX_RECORD_BYTES as usize) <= MAX_VERB_BYTES,
    "a record of the longest key and value is one verb"
);
const _: () = assert!(
    record_words(PrimaryKey::MAX_BYTES, 0) + MAX_INLINE_BYTES as usize / 8 <= MAX_HOME_WORDS,
    "every record that may lie in its cell fits a home slot"
);

/// Longest value, in bytes, of an ordered table with keys of up to `key_bytes` bytes: two of the
/// longest rows fit in a node.
pub const fn max_ordered_record_bytes(key_bytes: u32) -> u32 {
    let least = lotus_tree::least_bytes(key_bytes as usize, 0);
    let free = MAX_NODE_BYTES.saturating_sub(least);
    (free / lotus_tree::MIN_ENTRIES) as u32 + lotus_tree::CHILD_BYTES as u32
}

/// Place of a table's records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Inline {
    /// Beside their cells if key and value have at most [`MAX_INLINE_BYTES`] together, so that one
    /// READ fetches versions and values; otherwise in slabs.
    #[default]
    Auto,
    /// In slabs, as in LOTUS.
    Never,
}

/// Specification of a table, as requested by the application.
///
/// ```
/// use lotus_mvcc::{CriticalField, TableSpec};
///
/// const CHECKING: TableSpec = TableSpec::new("checking").record_bytes(16).capacity(1_000_000);
/// const STOCK: TableSpec = TableSpec::new("stock")
///     .record_bytes(320)
///     .capacity(10_000_000)
///     .critical_field(CriticalField::Bytes { start: 0, len: 4 }) // the warehouse
///     .shards(100);
/// assert!(CHECKING.validate().is_ok() && STOCK.validate().is_ok());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TableSpec {
    /// The table's name, unique in a cluster: 1 to [`MAX_NAME_BYTES`] bytes.
    pub name: Cow<'static, str>,
    /// The longest value, in bytes: 1 to [`MAX_RECORD_BYTES`]. Required.
    pub record_bytes: u32,
    /// The longest primary key, in bytes: 1 to [`PrimaryKey::MAX_BYTES`], or in an ordered table to
    /// [`MAX_ORDERED_KEY_BYTES`]; 8 by default.
    pub key_bytes: u32,
    /// Number of rows that the index is sized for: 1 to [`MAX_CAPACITY`]. Required.
    pub capacity: u64,
    /// Number of versions kept of a row: [`MIN_CELLS`] to [`MAX_CELLS`]; 2 by default, as in LOTUS
    /// §8.
    pub versions: u32,
    /// Part of the primary key that decides the shard; by default the hash of the whole key.
    pub critical_field: CriticalField,
    /// Number of shards of the table: 1 to 4096, the default. A table whose critical field takes
    /// fewer values should set this number, or the index keeps room in shards that stay empty.
    pub shards: u32,
    /// Place of the records: beside their cells if they are small, by default.
    pub inline: Inline,
    /// Whether the table keeps its keys in order, for range reads. Its rows are then the nodes of a
    /// B+tree; false by default.
    pub ordered: bool,
}

/// Defect of a [`TableSpec`]. The caller must change the spec.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SpecError {
    /// Name the table.
    #[error("a table needs a name")]
    NameEmpty,
    /// Shorten the name.
    #[error("a table's name has at most {MAX_NAME_BYTES} bytes, not {bytes}")]
    NameTooLong {
        /// Bytes in the name.
        bytes: usize,
    },
    /// Set `record_bytes` within its range; keep larger values in several rows.
    #[error("record_bytes must be 1 to {MAX_RECORD_BYTES}, not {bytes}")]
    RecordBytes {
        /// Length given.
        bytes: u32,
    },
    /// Set `key_bytes` within its range, make the table ordered, or use a digest in place of longer
    /// keys.
    #[error(
        "key_bytes must be 1 to {limit}, not {bytes}; only ordered tables take more than {max}, up \
         to {MAX_ORDERED_KEY_BYTES}",
        max = PrimaryKey::MAX_BYTES
    )]
    KeyBytes {
        /// Length given.
        bytes: u32,
        /// Largest length, which depends on whether the table is ordered.
        limit: u32,
    },
    /// Lower `key_bytes` or `record_bytes`, or use an unordered table.
    #[error(
        "record_bytes of an ordered table with keys of {key_bytes} bytes must be 1 to {limit}, not \
         {record_bytes}: two rows and two more keys fit in a node of {MAX_NODE_BYTES} bytes"
    )]
    OrderedRowBytes {
        /// Length of a key.
        key_bytes: u32,
        /// Length of a value.
        record_bytes: u32,
        /// Longest value for keys of this length.
        limit: u32,
    },
    /// Leave the critical field out: rows of an ordered table lie in the shard of their leaf.
    #[error("an ordered table has no critical field")]
    OrderedCriticalField,
    /// Set `versions` within its range.
    #[error(
        "versions must be {MIN_CELLS} to {MAX_CELLS}, not {versions}: with a single version a \
         writer would overwrite the committed value before it commits, and could not undo it"
    )]
    Versions {
        /// Number given.
        versions: u32,
    },
    /// Set `capacity` within its range.
    #[error("capacity must be 1 to 2^36 rows, not {rows}")]
    Capacity {
        /// Number given.
        rows: u64,
    },
    /// Let the critical field lie within the key and have 1 to 8 bytes.
    #[error(
        "the critical field ({len} bytes from {start}) must have 1 to 8 bytes and lie within \
         the key's {key_bytes}"
    )]
    CriticalField {
        /// Index of the field's first byte.
        start: u8,
        /// Number of the field's bytes.
        len: u8,
        /// Largest length of a primary key, in bytes.
        key_bytes: u32,
    },
    /// Set `shards` within its range.
    #[error("shards must be 1 to {max}, not {shards}", max = ShardId::COUNT)]
    Shards {
        /// Number given.
        shards: u32,
    },
}

impl TableSpec {
    /// Creates a spec with this name; `record_bytes` and `capacity` must still be set.
    pub const fn new(name: &'static str) -> Self {
        Self::of(Cow::Borrowed(name))
    }

    /// Like [`Self::new`], for a name that is known only at run time.
    pub const fn named(name: String) -> Self {
        Self::of(Cow::Owned(name))
    }

    const fn of(name: Cow<'static, str>) -> Self {
        Self {
            name,
            record_bytes: 0,
            key_bytes: 8,
            capacity: 0,
            versions: MIN_CELLS as u32,
            critical_field: CriticalField::Hashed,
            shards: ShardId::COUNT as u32,
            inline: Inline::Auto,
            ordered: false,
        }
    }

    /// Sets the longest value, in bytes.
    #[must_use]
    pub const fn record_bytes(mut self, bytes: u32) -> Self {
        self.record_bytes = bytes;
        self
    }

    /// Sets the longest primary key, in bytes.
    #[must_use]
    pub const fn key_bytes(mut self, bytes: u32) -> Self {
        self.key_bytes = bytes;
        self
    }

    /// Sets the number of rows that the index is sized for. This is not a limit: the index of a
    /// table with more rows grows, and the first read of a row takes a few more READs.
    #[must_use]
    pub const fn capacity(mut self, rows: u64) -> Self {
        self.capacity = rows;
        self
    }

    /// Sets the number of versions kept of a row.
    #[must_use]
    pub const fn versions(mut self, versions: u32) -> Self {
        self.versions = versions;
        self
    }

    /// Sets the part of the primary key that decides the shard.
    #[must_use]
    pub const fn critical_field(mut self, field: CriticalField) -> Self {
        self.critical_field = field;
        self
    }

    /// Sets the number of shards of the table.
    #[must_use]
    pub const fn shards(mut self, shards: u32) -> Self {
        self.shards = shards;
        self
    }

    /// Sets the place of the records.
    #[must_use]
    pub const fn inline(mut self, inline: Inline) -> Self {
        self.inline = inline;
        self
    }

    /// Keeps the keys in order, for range reads.
    #[must_use]
    pub const fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// Rows that remote memory holds for this table. The spec must be valid.
    pub const fn stored(&self) -> StoredRows {
        let Self { key_bytes, record_bytes, capacity, .. } = *self;
        if !self.ordered {
            return StoredRows { key_bytes, value_bytes: record_bytes, rows: capacity };
        }
        let (key, value) = (key_bytes as usize, record_bytes as usize);
        let entry = lotus_tree::ENTRY_BYTES + key + value;
        // In a node that holds only two or three of the longest rows, the rest stays free.
        let (node_bytes, used_bytes) = match lotus_tree::usual_bytes(key, value) {
            ..LEAST_NODE_BYTES => (LEAST_NODE_BYTES, LEAST_NODE_BYTES),
            usual @ LEAST_NODE_BYTES..=MAX_NODE_BYTES => (usual, usual),
            _ => (MAX_NODE_BYTES, MAX_NODE_BYTES / entry * entry),
        };
        let rows_bytes = capacity.saturating_mul(entry as u64);
        StoredRows {
            key_bytes: size_of::<u64>() as u32,
            value_bytes: node_bytes as u32,
            rows: 1 + rows_bytes / (used_bytes as u64 * NODE_FILL_PERCENT / 100),
        }
    }

    /// Whether the records lie beside their cells.
    #[inline]
    pub const fn is_inline(&self) -> bool {
        let StoredRows { key_bytes, value_bytes, .. } = self.stored();
        let small = key_bytes.saturating_add(value_bytes) <= MAX_INLINE_BYTES;
        small && matches!(self.inline, Inline::Auto)
    }

    /// Whether the name is reserved for the system's own tables.
    pub fn is_internal(&self) -> bool {
        self.name.starts_with(INTERNAL_PREFIX)
    }

    /// Describes the settings other than the name in which this table differs from `wanted`, as
    /// "record_bytes is 16, not 32"; empty if all settings are equal.
    pub fn differences(&self, wanted: &Self) -> String {
        let pairs = self.settings().into_iter().zip(wanted.settings());
        let differ = pairs.filter(|((_, found), (_, wanted))| found != wanted);
        let said =
            differ.map(|((name, found), (_, wanted))| format!("{name} is {found}, not {wanted}"));
        said.collect::<Vec<_>>().join(", ")
    }

    /// Every setting except the name, as text.
    fn settings(&self) -> Vec<(&'static str, String)> {
        // Destructured field by field, so that a new field does not compile until listed.
        let Self {
            name: _,
            record_bytes,
            key_bytes,
            capacity,
            versions,
            critical_field,
            shards,
            inline,
            ordered,
        } = self;
        vec![
            ("record_bytes", record_bytes.to_string()),
            ("key_bytes", key_bytes.to_string()),
            ("capacity", capacity.to_string()),
            ("versions", versions.to_string()),
            ("shards", shards.to_string()),
            ("critical_field", format!("{critical_field:?}")),
            ("inline", format!("{inline:?}")),
            ("ordered", ordered.to_string()),
        ]
    }

    /// Shape of the CVTs. The spec must be valid.
    #[inline]
    pub(crate) const fn cvt_shape(&self) -> CvtShape {
        let StoredRows { key_bytes, value_bytes, .. } = self.stored();
        let home_words = match self.is_inline() {
            true => record_words(key_bytes as usize, value_bytes as usize),
            false => 0,
        };
        CvtShape::new(self.versions as usize, home_words)
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first [`SpecError`] found, in the order of the fields.
    pub fn validate(&self) -> Result<(), SpecError> {
        let &Self { record_bytes, key_bytes, capacity, versions, shards, .. } = self;
        let name_bytes = self.name.len();
        if name_bytes == 0 {
            return Err(SpecError::NameEmpty);
        }
        if name_bytes > MAX_NAME_BYTES {
            return Err(SpecError::NameTooLong { bytes: name_bytes });
        }
        if !(1..=MAX_RECORD_BYTES).contains(&record_bytes) {
            return Err(SpecError::RecordBytes { bytes: record_bytes });
        }
        let limit = if self.ordered { MAX_ORDERED_KEY_BYTES } else { PrimaryKey::MAX_BYTES as u32 };
        if !(1..=limit).contains(&key_bytes) {
            return Err(SpecError::KeyBytes { bytes: key_bytes, limit });
        }
        self.validate_order()?;
        if !(1..=MAX_CAPACITY).contains(&capacity) {
            return Err(SpecError::Capacity { rows: capacity });
        }
        if !(MIN_CELLS as u32..=MAX_CELLS as u32).contains(&versions) {
            return Err(SpecError::Versions { versions });
        }
        if let CriticalField::Bytes { start, len } = self.critical_field
            && (!(1..=8).contains(&len) || u32::from(start) + u32::from(len) > key_bytes)
        {
            return Err(SpecError::CriticalField { start, len, key_bytes });
        }
        if !(1..=u32::from(ShardId::COUNT)).contains(&shards) {
            return Err(SpecError::Shards { shards });
        }
        Ok(())
    }

    /// Checks the restrictions of ordered tables.
    fn validate_order(&self) -> Result<(), SpecError> {
        let &Self { key_bytes, record_bytes, ordered, .. } = self;
        let limit = max_ordered_record_bytes(key_bytes);
        match self.critical_field {
            _ if !ordered => Ok(()),
            _ if record_bytes > limit => {
                Err(SpecError::OrderedRowBytes { key_bytes, record_bytes, limit })
            }
            CriticalField::Hashed => Ok(()),
            CriticalField::Bytes { .. } => Err(SpecError::OrderedCriticalField),
        }
    }
}

/// Rows of a table in remote memory: the application's rows, or the nodes of an ordered table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredRows {
    /// Longest primary key, in bytes.
    pub key_bytes: u32,
    /// Longest value, in bytes.
    pub value_bytes: u32,
    /// Number of rows that the index is sized for.
    pub rows: u64,
}

/// A table of a cluster: a valid spec, its number, the naming of its rows, and the offset of its
/// index in every group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableDef {
    id: TableId,
    spec: TableSpec,
    stored: StoredRows,
    cvt: CvtShape,
    geometry: IndexGeometry,
    naming: Naming,
}

impl TableDef {
    /// Defines table `spec` under the number `id`, with its index at `bases[g]` of group `g`'s
    /// region, and rows named by `naming`. [`IndexShape::index_bytes`] gives the index size in each
    /// group.
    ///
    /// # Errors
    /// See [`TableSpec::validate`].
    ///
    /// # Panics
    /// If `bases` is empty, or a base is 0 or not aligned to a cache line.
    pub fn new(
        id: TableId,
        spec: TableSpec,
        bases: Vec<u64>,
        naming: Naming,
    ) -> Result<Self, SpecError> {
        let shape = IndexShape::of(&spec, bases.len())?;
        let (stored, cvt) = (spec.stored(), spec.cvt_shape());
        let geometry = IndexGeometry::new(shape, bases);
        Ok(Self { id, spec, stored, cvt, geometry, naming })
    }

    /// Lengths and number of the rows that remote memory holds.
    #[inline]
    pub fn stored(&self) -> StoredRows {
        self.stored
    }

    /// Whether the rows are nodes of a tree.
    #[inline]
    pub fn is_ordered(&self) -> bool {
        self.spec.ordered
    }

    /// Number of the table.
    #[inline]
    pub fn id(&self) -> TableId {
        self.id
    }

    /// Specification that the application gave.
    #[inline]
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// Place of the index.
    #[inline]
    pub fn geometry(&self) -> &IndexGeometry {
        &self.geometry
    }

    /// Naming of the rows, the same for all tables of a cluster.
    #[inline]
    pub fn naming(&self) -> Naming {
        self.naming
    }

    /// Name and mark of the row with this primary key.
    #[inline]
    pub fn name(&self, primary_key: &PrimaryKey) -> RowName {
        self.naming.name(primary_key, self.spec.critical_field, self.spec.shards as u16)
    }

    /// LOTUS key of the row with this primary key (LOTUS §4.2); several rows may share a LOTUS key.
    #[inline]
    pub fn key(&self, primary_key: &PrimaryKey) -> Key {
        self.name(primary_key).key
    }

    /// Header of the CVT of the row `name`.
    #[inline]
    pub fn header(&self, name: RowName) -> CvtHeader {
        CvtHeader { name, table: self.id, cvt: self.cvt, value_limit: self.stored.value_bytes }
    }

    /// Shape of a CVT.
    #[inline]
    pub fn cvt(&self) -> CvtShape {
        self.cvt
    }

    /// Number of words of a CVT.
    #[inline]
    pub fn cvt_words(&self) -> usize {
        self.cvt.words()
    }

    /// Number of words of an index bucket.
    #[inline]
    pub fn bucket_words(&self) -> usize {
        bucket_words(self.cvt)
    }

    /// Number of words to read for a record with these contents.
    ///
    /// The number suffices for every length of primary key, so that the record of another row with
    /// the same 64-bit key is recognised and not mistaken for a torn record.
    #[inline]
    pub fn record_words(&self, contents: Contents) -> usize {
        record_words(self.stored.key_bytes as usize, contents.byte_count())
    }

    /// Bytes of the longest record, the minimum size of every slot, including home slots.
    #[inline]
    pub fn whole_record_bytes(&self) -> usize {
        record_words(self.stored.key_bytes as usize, self.stored.value_bytes as usize) * WORD_BYTES
    }

    /// Bytes of a record slot outside of the index: a multiple of a cache line.
    #[inline]
    pub fn slot_bytes(&self) -> u64 {
        slot_bytes(self.stored.key_bytes as usize, self.stored.value_bytes as usize) as u64
    }

    /// Bytes of a slot of this kind.
    pub fn bytes_of(&self, slots: SlotKind) -> u64 {
        let bucket = bucket_bytes(self.cvt);
        match slots {
            SlotKind::Record => self.slot_bytes(),
            SlotKind::Bucket => bucket as u64,
            SlotKind::Fan => (bucket * FAN_OUT) as u64,
        }
    }

    /// Checks that a value of `bytes` bytes fits.
    ///
    /// # Errors
    /// [`SizeError::Value`] if the value is too long.
    #[inline]
    pub fn check_value(&self, bytes: usize) -> Result<(), SizeError> {
        let (table, limit) = (self.id, self.stored.value_bytes);
        if bytes <= limit as usize { Ok(()) } else { Err(SizeError::Value { table, bytes, limit }) }
    }

    /// Checks that `primary_key` fits.
    ///
    /// # Errors
    /// [`SizeError::Key`] if the key is too long.
    #[inline]
    pub fn check_key(&self, primary_key: &PrimaryKey) -> Result<(), SizeError> {
        let (bytes, limit) = (primary_key.byte_count(), self.stored.key_bytes);
        let table = self.id;
        if bytes <= limit as usize { Ok(()) } else { Err(SizeError::Key { table, bytes, limit }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: TableSpec = TableSpec::new("checking").record_bytes(16).capacity(1000);

    #[test]
    fn specs_are_checked_field_by_field() {
        let field = |start, len| GOOD.critical_field(CriticalField::Bytes { start, len });
        let cases = [
            (GOOD, None),
            (TableSpec::named("x".repeat(64)).record_bytes(1).capacity(1), None),
            (GOOD.record_bytes(15_360).key_bytes(31).versions(8).shards(1), None),
            (field(0, 8), None),
            (TableSpec::new(""), Some(SpecError::NameEmpty)),
            (TableSpec::named("x".repeat(65)), Some(SpecError::NameTooLong { bytes: 65 })),
            (TableSpec::new("x").capacity(1), Some(SpecError::RecordBytes { bytes: 0 })),
            (GOOD.record_bytes(15_361), Some(SpecError::RecordBytes { bytes: 15_361 })),
            (GOOD.key_bytes(0), Some(SpecError::KeyBytes { bytes: 0, limit: 31 })),
            (GOOD.key_bytes(32), Some(SpecError::KeyBytes { bytes: 32, limit: 31 })),
            (GOOD.ordered().key_bytes(255).record_bytes(1000), None),
            (GOOD.ordered().key_bytes(256), Some(SpecError::KeyBytes { bytes: 256, limit: 255 })),
            (
                GOOD.ordered().record_bytes(7660),
                Some(SpecError::OrderedRowBytes { key_bytes: 8, record_bytes: 7660, limit: 7658 }),
            ),
            (field(0, 8).ordered(), Some(SpecError::OrderedCriticalField)),
            (GOOD.capacity(0), Some(SpecError::Capacity { rows: 0 })),
            (GOOD.capacity((1 << 36) + 1), Some(SpecError::Capacity { rows: (1 << 36) + 1 })),
            (GOOD.versions(1), Some(SpecError::Versions { versions: 1 })),
            (GOOD.versions(9), Some(SpecError::Versions { versions: 9 })),
            (GOOD.shards(0), Some(SpecError::Shards { shards: 0 })),
            (GOOD.shards(4097), Some(SpecError::Shards { shards: 4097 })),
            (field(0, 0), Some(SpecError::CriticalField { start: 0, len: 0, key_bytes: 8 })),
            (field(1, 8), Some(SpecError::CriticalField { start: 1, len: 8, key_bytes: 8 })),
            (
                field(0, 9).key_bytes(16),
                Some(SpecError::CriticalField { start: 0, len: 9, key_bytes: 16 }),
            ),
        ];
        for (spec, error) in cases {
            assert_eq!(spec.validate().err(), error, "{spec:?}");
        }
    }

    #[test]
    fn an_ordered_table_stores_nodes() {
        assert_eq!(
            GOOD.stored(),
            StoredRows { key_bytes: 8, value_bytes: 16, rows: 1000 },
            "rows as they are"
        );
        // 27 bytes an entry, in nodes of 1 KiB that are 65 % full.
        let nodes = StoredRows { key_bytes: 8, value_bytes: 1024, rows: 1 + 40 };
        assert_eq!(GOOD.ordered().stored(), nodes);
        let long = GOOD.ordered().key_bytes(255).record_bytes(1000).stored();
        assert_eq!((long.key_bytes, long.value_bytes), (8, 5548));
        assert!(!GOOD.ordered().is_inline() && GOOD.is_inline());
    }

    #[test]
    fn every_setting_that_differs_is_named() {
        let field = CriticalField::Bytes { start: 2, len: 4 };
        let cases = [
            (GOOD, ""),
            (GOOD.record_bytes(24), "record_bytes is 24, not 16"),
            (GOOD.key_bytes(9), "key_bytes is 9, not 8"),
            (GOOD.capacity(7), "capacity is 7, not 1000"),
            (GOOD.versions(3), "versions is 3, not 2"),
            (GOOD.shards(5), "shards is 5, not 4096"),
            (
                GOOD.critical_field(field),
                "critical_field is Bytes { start: 2, len: 4 }, not Hashed",
            ),
            (GOOD.inline(Inline::Never), "inline is Never, not Auto"),
            (GOOD.ordered(), "ordered is true, not false"),
            (GOOD.versions(3).shards(5), "versions is 3, not 2, shards is 5, not 4096"),
        ];
        for (spec, said) in cases {
            assert_eq!(spec.differences(&GOOD), said);
        }
        assert!(TableSpec::new("lotus.calls").is_internal() && !GOOD.is_internal());
    }

    #[test]
    fn sizes_are_checked_against_the_spec() {
        let table = TableDef::new(TableId(1), GOOD, vec![1 << 18], Naming::KNOWN).expect("valid");
        assert_eq!(table.check_value(16), Ok(()));
        let value = SizeError::Value { table: TableId(1), bytes: 17, limit: 16 };
        assert_eq!(table.check_value(17), Err(value));
        assert_eq!(value.to_string(), "a value of table 1 has at most 16 bytes, not 17");
        assert_eq!(table.check_key(&[1; 8].into()), Ok(()));
        let key = SizeError::Key { table: TableId(1), bytes: 9, limit: 8 };
        assert_eq!(table.check_key(&[1; 9].into()), Err(key));
        assert_eq!(table.slot_bytes(), 64);
    }
}
