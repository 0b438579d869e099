//! Rows and ranges of ordered tables.

use std::fmt;
use std::ops::RangeBounds;

use crate::error::RowError;
use crate::key::{KeyRange, PrefixOf, RowKey};
use crate::table::OrderedTable;
use crate::txn::{OrderedRows, Purpose, RangeQuery};
use crate::value::Value;

impl<K: RowKey, V: Value> OrderedTable<K, V> {
    /// Reads the value of a row, including the transaction's own changes; `None` if the row does
    /// not exist.
    ///
    /// # Errors
    /// [`RowError`], or errors of an execution.
    pub fn get<T: OrderedRows>(
        &self,
        txn: &mut T,
        key: &K,
    ) -> impl Future<Output = Result<Option<V::Type>, T::Error>> {
        self.read(txn, key, Purpose::Read)
    }

    /// Reads the value of a row that the transaction will change: like [`Self::get`], but
    /// write-locks the row from the beginning.
    ///
    /// # Errors
    /// As [`Self::get`]; also the transaction's error for writes if it is read-only.
    pub fn get_for_update<T: OrderedRows>(
        &self,
        txn: &mut T,
        key: &K,
    ) -> impl Future<Output = Result<Option<V::Type>, T::Error>> {
        self.read(txn, key, Purpose::Update)
    }

    async fn read<T: OrderedRows>(
        &self,
        txn: &mut T,
        key: &K,
        purpose: Purpose,
    ) -> Result<Option<V::Type>, T::Error> {
        let key = self.schema().key(key)?;
        let decode = |value: &[u8]| self.schema().decode_value(key.as_bytes(), value);
        let value = txn.get_ordered(self.id(), key.as_bytes(), purpose, decode).await?;
        Ok(value.transpose()?)
    }

    /// Declares a row that will be used, or the first row of a range: the next reading call also
    /// fetches the declared rows, in the same round. Only a hint in transactions of clients.
    ///
    /// # Errors
    /// [`RowError`], or errors of the transaction.
    pub fn declare<T: OrderedRows>(
        &self,
        txn: &mut T,
        key: &K,
        purpose: Purpose,
    ) -> Result<(), T::Error> {
        txn.declare_ordered(self.id(), self.schema().key(key)?.as_bytes(), purpose)
    }

    /// Inserts or updates a row.
    ///
    /// # Errors
    /// [`RowError`], or errors of an execution.
    pub async fn put<T: OrderedRows>(
        &self,
        txn: &mut T,
        key: &K,
        value: &V::Type,
    ) -> Result<(), T::Error> {
        let key = self.schema().key(key)?;
        let value = self.schema().value_bytes(key.as_bytes(), value)?;
        txn.put_ordered(self.id(), key.as_bytes(), value.as_ref()).await
    }

    /// Inserts a row that does not exist yet.
    ///
    /// # Errors
    /// An error of the transaction, which ends it, if the row exists; otherwise as [`Self::put`].
    pub async fn insert<T: OrderedRows>(
        &self,
        txn: &mut T,
        key: &K,
        value: &V::Type,
    ) -> Result<(), T::Error> {
        let key = self.schema().key(key)?;
        let value = self.schema().value_bytes(key.as_bytes(), value)?;
        txn.insert_ordered(self.id(), key.as_bytes(), value.as_ref()).await
    }

    /// Deletes a row; returns whether the row existed.
    ///
    /// # Errors
    /// [`RowError`], or errors of an execution.
    pub async fn delete<T: OrderedRows>(&self, txn: &mut T, key: &K) -> Result<bool, T::Error> {
        let key = self.schema().key(key)?;
        txn.delete_ordered(self.id(), key.as_bytes()).await
    }

    /// Returns a range of keys, to be read with [`Range::rows`].
    pub fn range<'t, T: OrderedRows>(
        &self,
        txn: &'t mut T,
        keys: impl RangeBounds<K>,
    ) -> Range<'t, K, V, T> {
        self.unread(txn, self.schema().range(&keys))
    }

    /// Returns the range of the keys with prefix `prefix`, to be read with [`Range::rows`].
    pub fn prefix<'t, T: OrderedRows, P: PrefixOf<K> + ?Sized>(
        &self,
        txn: &'t mut T,
        prefix: &P,
    ) -> Range<'t, K, V, T> {
        self.unread(txn, self.schema().prefix(prefix))
    }

    fn unread<'t, T>(
        &self,
        txn: &'t mut T,
        keys: Result<KeyRange, RowError>,
    ) -> Range<'t, K, V, T> {
        let (reverse, limit, purpose) = (false, None, Purpose::Read);
        Range { table: *self, txn, keys, reverse, limit, purpose }
    }
}

/// A range of an ordered table, not yet read.
#[must_use = "nothing is read before `rows` is awaited"]
pub struct Range<'t, K, V, T> {
    table: OrderedTable<K, V>,
    txn: &'t mut T,
    keys: Result<KeyRange, RowError>,
    reverse: bool,
    limit: Option<usize>,
    purpose: Purpose,
}

impl<K: RowKey, V: Value, T: OrderedRows> Range<'_, K, V, T> {
    /// Reads from the greatest key down.
    pub fn reverse(mut self) -> Self {
        self.reverse = true;
        self
    }

    /// Reads at most `rows` rows. Without a limit, the whole range is held in memory.
    pub fn limit(mut self, rows: usize) -> Self {
        self.limit = Some(rows);
        self
    }

    /// Write-locks the rows, for a transaction that will change them.
    pub fn for_update(mut self) -> Self {
        self.purpose = Purpose::Update;
        self
    }

    /// Reads the rows in order, including the transaction's own changes.
    ///
    /// # Errors
    /// [`RowError`]; errors of the transaction if the range ends before its beginning, or an
    /// execution has failed.
    pub async fn rows(self) -> Result<Vec<(K, V::Type)>, T::Error> {
        let Self { table, txn, keys, reverse, limit, purpose } = self;
        let keys = keys?;
        let (from, until) = (keys.from(), keys.until());
        let query = RangeQuery { from, until, reverse, limit, purpose };
        let decode = |key: &[u8], value: &[u8]| table.schema().decode(key, value);
        txn.range_ordered(table.id(), query, decode).await
    }
}

impl<K, V, T> fmt::Debug for Range<'_, K, V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, txn: _, keys, reverse, limit, purpose } = self;
        let how = (reverse, limit, purpose);
        f.debug_tuple("Range").field(table).field(keys).field(&how).finish()
    }
}
