//! Schemas: the types of a table's rows.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use lotus_mvcc::table::{MAX_ORDERED_KEY_BYTES, MAX_RECORD_BYTES, max_ordered_record_bytes};
use lotus_mvcc::{PrimaryKey, TableId, TableSpec};

use crate::error::{Defect, RowError};
use crate::key::{KeyBuffer, KeyRange, KeyReader, KeyWriter, PrefixOf, RowKey};
use crate::table::Table;
use crate::value::Value;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Hashed {}
    impl Sealed for super::Ordered {}
}

/// Kind of a table: [`Hashed`] or [`Ordered`].
pub trait TableKind: sealed::Sealed {
    /// Whether the table keeps its keys in order.
    const ORDERED: bool;
    /// Longest key, in bytes.
    const KEY_LIMIT: u32;
    /// Longest value with the shortest key, in bytes.
    const VALUE_LIMIT: u32;
}

/// A hash table: rows are found by their whole keys.
#[derive(Clone, Copy, Debug)]
pub enum Hashed {}

/// A table that keeps its keys in order.
#[derive(Clone, Copy, Debug)]
pub enum Ordered {}

impl TableKind for Hashed {
    const ORDERED: bool = false;
    const KEY_LIMIT: u32 = PrimaryKey::MAX_BYTES as u32;
    const VALUE_LIMIT: u32 = MAX_RECORD_BYTES;
}

impl TableKind for Ordered {
    const ORDERED: bool = true;
    const KEY_LIMIT: u32 = MAX_ORDERED_KEY_BYTES;
    const VALUE_LIMIT: u32 = max_ordered_record_bytes(1);
}

/// Type parameters of a schema, which holds no values of the types: a schema is always `Send`.
type Types<K, V, O> = fn() -> (K, V, O);

/// A table's name, the types of its keys and values, and their longest lengths.
///
/// The lengths follow from types with a maximum length. For types without a maximum, the lengths
/// must be set, or the specification is refused. Key types that cannot fit do not compile:
///
/// ```compile_fail
/// use lotus_rows::Schema;
///
/// const TOO_LONG: Schema<[u8; 32], u64> = Schema::new("digests");
/// let spec = TOO_LONG.spec();
/// ```
pub struct Schema<K, V, O = Hashed> {
    name: &'static str,
    key_bytes: u32,
    record_bytes: u32,
    types: PhantomData<Types<K, V, O>>,
}

impl<K: RowKey, V: Value> Schema<K, V> {
    /// A schema of a hash table. Keys have at most 31 bytes; longer keys need an
    /// [ordered](Self::ordered) table.
    pub const fn new(name: &'static str) -> Self {
        Self::of(name)
    }
}

impl<K: RowKey, V: Value> Schema<K, V, Ordered> {
    /// A schema of an ordered table. Keys have at most 255 bytes, and values at most half of the
    /// limit of hash tables ([`max_ordered_record_bytes`]).
    pub const fn ordered(name: &'static str) -> Self {
        Self::of(name)
    }
}

impl<K: RowKey, V: Value, O: TableKind> Schema<K, V, O> {
    const fn of(name: &'static str) -> Self {
        const {
            let (key, value) = (or_zero(K::MAX_KEY_BYTES), or_zero(V::MAX_VALUE_BYTES));
            assert!(
                key <= O::KEY_LIMIT,
                "keys of this type are too long: 31 bytes at most, in ordered tables 255"
            );
            assert!(key > 0 || K::MAX_KEY_BYTES.is_none(), "keys of this type have no bytes");
            assert!(
                value <= O::VALUE_LIMIT,
                "values of this type are too long: 15,360 bytes at most, in ordered tables half"
            );
        }
        let (key_bytes, record_bytes) = (or_zero(K::MAX_KEY_BYTES), or_zero(V::MAX_VALUE_BYTES));
        Self { name, key_bytes, record_bytes, types: PhantomData }
    }

    /// Sets the length of the longest encoded key, in bytes.
    #[must_use]
    pub const fn key_bytes(mut self, bytes: u32) -> Self {
        self.key_bytes = bytes;
        self
    }

    /// Sets the length of the longest encoded value, in bytes.
    #[must_use]
    pub const fn record_bytes(mut self, bytes: u32) -> Self {
        self.record_bytes = bytes;
        self
    }

    /// Returns the name of the table.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the specification of the table; its capacity must still be set.
    pub const fn spec(&self) -> TableSpec {
        // A record has room for at least one byte, even without values.
        let no_value = matches!(V::MAX_VALUE_BYTES, Some(0)) && self.record_bytes == 0;
        let record_bytes = if no_value { 1 } else { self.record_bytes };
        let mut spec = TableSpec::new(self.name).key_bytes(self.key_bytes);
        spec.record_bytes = record_bytes;
        spec.ordered = O::ORDERED;
        spec
    }

    /// Returns the typed view of a table of the cluster that was created with the specification.
    pub const fn table(self, id: TableId) -> Table<K, V, O> {
        Table::new(self, id)
    }

    /// Decodes a row, for example of a scan.
    ///
    /// # Errors
    /// [`RowError`] if key or value are not of the table's types.
    #[inline]
    pub fn decode(&self, key: &[u8], value: &[u8]) -> Result<(K, V::Type), RowError> {
        Ok((self.decode_key(key)?, self.decode_value(key, value)?))
    }

    /// Decodes a key.
    ///
    /// # Errors
    /// [`RowError`] if the key is not of the table's type.
    #[inline]
    pub fn decode_key(&self, bytes: &[u8]) -> Result<K, RowError> {
        let mut reader = KeyReader::new(bytes);
        let key = K::read_key(&mut reader).and_then(|key| reader.end().map(|()| key));
        key.map_err(|malformed| self.error(bytes, Defect::Key(malformed)))
    }

    /// Decodes the value of the row with key `key`.
    #[inline]
    pub(crate) fn decode_value(&self, key: &[u8], value: &[u8]) -> Result<V::Type, RowError> {
        V::from_bytes(value).map_err(|malformed| self.error(key, Defect::Value(malformed)))
    }

    /// Encodes the value of the row with key `key`.
    #[inline]
    pub(crate) fn value_bytes<'v>(
        &self,
        key: &[u8],
        value: &'v V::Type,
    ) -> Result<impl AsRef<[u8]> + use<'v, K, V, O>, RowError> {
        let written = V::to_bytes(value);
        let written = written.map_err(|malformed| self.error(key, Defect::Value(malformed)))?;
        let (bytes, limit) = (written.as_ref().len(), self.spec_record_bytes());
        if bytes > limit as usize {
            return Err(self.error(key, Defect::ValueLength { bytes, limit }));
        }
        Ok(written)
    }

    const fn spec_record_bytes(&self) -> u32 {
        if self.record_bytes == 0 && V::MAX_VALUE_BYTES.is_none() {
            O::VALUE_LIMIT
        } else {
            self.record_bytes
        }
    }

    /// Longest allowed key, in bytes.
    const fn key_limit(&self) -> u32 {
        if self.key_bytes == 0 || self.key_bytes > O::KEY_LIMIT {
            O::KEY_LIMIT
        } else {
            self.key_bytes
        }
    }

    #[cold]
    fn error(&self, key: &[u8], defect: Defect) -> RowError {
        RowError::new(self.name, key, defect)
    }

    /// Checks the length of a key; `first` holds at least the first bytes.
    #[inline]
    fn check_key(&self, first: &[u8], bytes: usize) -> Result<(), RowError> {
        let limit = self.key_limit();
        if (1..=limit as usize).contains(&bytes) {
            return Ok(());
        }
        Err(self.error(first, Defect::KeyLength { bytes, limit }))
    }
}

impl<K: RowKey, V: Value> Schema<K, V> {
    /// Returns the primary key of a row.
    ///
    /// # Errors
    /// [`RowError`] if the key is empty or too long.
    #[inline]
    pub fn primary_key(&self, key: &K) -> Result<PrimaryKey, RowError> {
        let written = PrimaryKey::build(|room| {
            let mut writer = KeyWriter::new(room);
            key.write_key(&mut writer);
            writer.len()
        });
        match written {
            Ok(built) if built.byte_count() <= self.key_limit() as usize => Ok(built),
            _ => Err(self.wrong_length(key)),
        }
    }

    /// Returns the error of an empty or too long key.
    #[cold]
    fn wrong_length(&self, key: &K) -> RowError {
        let mut room = [0; PrimaryKey::MAX_BYTES];
        let mut writer = KeyWriter::new(&mut room);
        key.write_key(&mut writer);
        let (bytes, limit) = (writer.len(), self.key_limit());
        let first = &room[..bytes.min(PrimaryKey::MAX_BYTES)];
        self.error(first, Defect::KeyLength { bytes, limit })
    }
}

impl<K: RowKey, V: Value> Schema<K, V, Ordered> {
    /// Encodes a key.
    ///
    /// # Errors
    /// [`RowError`] if the key is empty or too long.
    #[inline]
    pub fn key(&self, key: &K) -> Result<KeyBuffer, RowError> {
        let buffer = KeyBuffer::written(|to| key.write_key(to));
        self.check_key(buffer.as_bytes(), buffer.len())?;
        Ok(buffer)
    }

    /// Encodes a range of keys.
    ///
    /// # Errors
    /// [`RowError`] if a bound is longer than the longest key of any ordered table.
    pub fn range(&self, keys: &impl RangeBounds<K>) -> Result<KeyRange, RowError> {
        self.check_range(KeyRange::of(keys))
    }

    /// Returns the encoded range of the keys with prefix `prefix`.
    ///
    /// # Errors
    /// [`RowError`] if the prefix is longer than the longest key of any ordered table.
    pub fn prefix<P: PrefixOf<K> + ?Sized>(&self, prefix: &P) -> Result<KeyRange, RowError> {
        self.check_range(KeyRange::prefix(prefix))
    }

    fn check_range(&self, range: KeyRange) -> Result<KeyRange, RowError> {
        let longest = range.longest();
        if longest.is_whole() {
            return Ok(range);
        }
        let (bytes, limit) = (longest.len(), self.key_limit());
        Err(self.error(longest.as_bytes(), Defect::KeyLength { bytes, limit }))
    }
}

impl<K, V, O> Clone for Schema<K, V, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V, O> Copy for Schema<K, V, O> {}

impl<K, V, O> fmt::Debug for Schema<K, V, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, key_bytes, record_bytes, types: _ } = self;
        write!(f, "{name}: keys of {key_bytes} bytes, values of {record_bytes}")
    }
}

const fn or_zero(bytes: Option<u32>) -> u32 {
    match bytes {
        Some(bytes) => bytes,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Malformed;

    const COUNTS: Schema<(u32, u8), i64> = Schema::new("counts");
    const NAMES: Schema<String, Vec<u8>, Ordered> =
        Schema::ordered("names").key_bytes(4).record_bytes(2);

    #[test]
    fn lengths_follow_from_the_types() {
        let spec = COUNTS.spec().capacity(10);
        assert_eq!((spec.key_bytes, spec.record_bytes, spec.ordered), (5, 8, false));
        assert_eq!(spec.validate(), Ok(()));
        let spec = NAMES.spec().capacity(10);
        assert_eq!((spec.key_bytes, spec.record_bytes, spec.ordered), (4, 2, true));
        let longest: Schema<[u8; 31], u64> = Schema::new("digests");
        assert_eq!(longest.spec().key_bytes, 31);
        let set: Schema<u8, ()> = Schema::new("set");
        assert_eq!(set.spec().record_bytes, 1);
        // Nothing is assumed about types without a longest value.
        let unset: Schema<String, u64> = Schema::new("unset");
        assert!(unset.spec().capacity(10).validate().is_err());
    }

    #[test]
    fn lengths_beyond_the_limits_are_refused() {
        let defect = |error: RowError| error.defect().clone();
        let too_long = Defect::KeyLength { bytes: 5, limit: 4 };
        assert_eq!(NAMES.key(&"abcd".to_owned()).map_err(defect).err(), Some(too_long));
        assert_eq!(NAMES.key(&"abc".to_owned()).expect("it fits").as_bytes(), b"abc\0");
        let error = NAMES.value_bytes(b"abc\0", &vec![0; 3]).map(drop).expect_err("too long");
        assert_eq!(error.defect(), &Defect::ValueLength { bytes: 3, limit: 2 });
        assert_eq!((error.table(), error.key()), ("names", &b"abc\0"[..]));

        let texts: Schema<String, u8> = Schema::new("texts").key_bytes(31).record_bytes(1);
        let error = texts.primary_key(&"x".repeat(400)).expect_err("too long");
        assert_eq!(error.defect(), &Defect::KeyLength { bytes: 401, limit: 31 });
        assert_eq!(error.key(), [b'x'; 31]);
        assert_eq!(texts.primary_key(&"x".repeat(30)).map(|key| key.byte_count()), Ok(31));
    }

    #[test]
    fn bounds_longer_than_all_keys_are_refused() {
        let long = "x".repeat(300);
        assert!(NAMES.prefix(&*long).is_err());
        assert!(NAMES.range(&(..long.clone())).is_err() && NAMES.range(&(long..)).is_err());
        let longest = "x".repeat(254);
        let range = NAMES.range(&(String::new()..=longest)).expect("it fits");
        assert_eq!(range.until().map(<[u8]>::len), Some(256));
    }

    #[test]
    fn rows_of_other_types_are_refused() {
        let wrong = |key: &[u8], value: &[u8]| COUNTS.decode(key, value).err();
        let (key, value) = ([0, 0, 0, 1, 2], 7_i64.to_le_bytes());
        assert_eq!(COUNTS.decode(&key, &value), Ok(((1, 2), 7)));
        let cases = [
            (wrong(&key[..4], &value), Defect::Key(Malformed::Short)),
            (wrong(&[0; 7], &value), Defect::Key(Malformed::Trailing { bytes: 2 })),
            (wrong(&key, &value[1..]), Defect::Value(Malformed::Length { expected: 8, found: 7 })),
        ];
        for (error, defect) in cases {
            assert_eq!(error.map(|error| error.defect().clone()), Some(defect));
        }
    }
}
