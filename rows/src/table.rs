//! Typed views of tables, and a transaction's operations on their rows.

use std::fmt;

use lotus_mvcc::TableId;

use crate::key::RowKey;
use crate::schema::{Hashed, Ordered, Schema};
use crate::txn::{HashRows, Purpose};
use crate::value::Value;

/// A table of a cluster with keys of type `K` and values of type `V`.
///
/// Methods take the transaction, of a compute node or of an application. They return the
/// transaction's error type, into which a [`RowError`](crate::RowError) converts.
pub struct Table<K, V, O = Hashed> {
    schema: Schema<K, V, O>,
    id: TableId,
}

/// A table that keeps its keys in order.
pub type OrderedTable<K, V> = Table<K, V, Ordered>;

impl<K, V, O> Table<K, V, O> {
    pub(crate) const fn new(schema: Schema<K, V, O>, id: TableId) -> Self {
        Self { schema, id }
    }

    /// Returns the number of the table.
    pub const fn id(&self) -> TableId {
        self.id
    }

    /// Returns the types of the table's rows.
    pub const fn schema(&self) -> &Schema<K, V, O> {
        &self.schema
    }
}

impl<K: RowKey, V: Value> Table<K, V> {
    /// Reads the value of a row, including the transaction's own changes; `None` if the row does
    /// not exist.
    ///
    /// # Errors
    /// [`RowError`](crate::RowError), or errors of an execution.
    #[inline]
    pub fn get<T: HashRows>(
        &self,
        txn: &mut T,
        key: &K,
    ) -> impl Future<Output = Result<Option<V::Type>, T::Error>> {
        self.read(txn, key, Purpose::Read)
    }

    /// Reads the value of a row that the transaction will change: like [`Self::get`], but
    /// write-locks the row from the beginning. Changing a row that was only read takes an
    /// additional round.
    ///
    /// # Errors
    /// As [`Self::get`]; also the transaction's error for writes if it is read-only.
    #[inline]
    pub fn get_for_update<T: HashRows>(
        &self,
        txn: &mut T,
        key: &K,
    ) -> impl Future<Output = Result<Option<V::Type>, T::Error>> {
        self.read(txn, key, Purpose::Update)
    }

    #[inline]
    async fn read<T: HashRows>(
        &self,
        txn: &mut T,
        key: &K,
        purpose: Purpose,
    ) -> Result<Option<V::Type>, T::Error> {
        let key = self.schema.primary_key(key)?;
        let Some(value) = txn.get_row(self.id, key, purpose).await? else { return Ok(None) };
        Ok(Some(self.schema.decode_value(key.as_bytes(), value)?))
    }

    /// Declares a row that will be used: the next reading call also fetches the declared rows, in
    /// the same round.
    ///
    /// # Errors
    /// [`RowError`](crate::RowError), or errors of the transaction.
    #[inline]
    pub fn declare<T: HashRows>(
        &self,
        txn: &mut T,
        key: &K,
        purpose: Purpose,
    ) -> Result<(), T::Error> {
        txn.declare_row(self.id, self.schema.primary_key(key)?, purpose)
    }

    /// Inserts or updates a row.
    ///
    /// # Errors
    /// [`RowError`](crate::RowError), or errors of an execution.
    #[inline]
    pub async fn put<T: HashRows>(
        &self,
        txn: &mut T,
        key: &K,
        value: &V::Type,
    ) -> Result<(), T::Error> {
        let key = self.schema.primary_key(key)?;
        let value = self.schema.value_bytes(key.as_bytes(), value)?;
        txn.put_row(self.id, key, value.as_ref()).await
    }

    /// Inserts a row that does not exist yet. If the transaction has not read the row, the next
    /// execution, at the latest the execution at commit, finds out whether the row exists; so
    /// inserts take no separate round.
    ///
    /// # Errors
    /// [`RowError`](crate::RowError), or errors of the transaction's `insert`.
    #[inline]
    pub async fn insert<T: HashRows>(
        &self,
        txn: &mut T,
        key: &K,
        value: &V::Type,
    ) -> Result<(), T::Error> {
        let key = self.schema.primary_key(key)?;
        let value = self.schema.value_bytes(key.as_bytes(), value)?;
        txn.insert_row(self.id, key, value.as_ref()).await
    }

    /// Deletes a row; returns whether the row existed.
    ///
    /// # Errors
    /// [`RowError`](crate::RowError), or errors of an execution; also an error of the transaction
    /// if it has inserted the row itself.
    #[inline]
    pub async fn delete<T: HashRows>(&self, txn: &mut T, key: &K) -> Result<bool, T::Error> {
        txn.delete_row(self.id, self.schema.primary_key(key)?).await
    }
}

impl<K, V, O> Clone for Table<K, V, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V, O> Copy for Table<K, V, O> {}

impl<K, V, O> fmt::Debug for Table<K, V, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}, {:?}", self.id.0, self.schema)
    }
}
