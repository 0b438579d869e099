//! Typed records in a transaction, over the engine interface's items and bytes.
//!
//! Every record read must carry the key of the read; otherwise the engine has mixed up rows, and
//! the run ends.

use std::marker::PhantomData;

use lotus_fabric::ids::TableId;
use lotus_mvcc::PrimaryKey;

use super::Tpcc;
use super::rows::{Moment, Record};
use crate::contract::engine::{Item, Txn, TxnError};

/// A row of type `R` that a transaction has declared.
pub(super) struct TypedRow<R> {
    item: Item,
    key: PrimaryKey,
    record: PhantomData<R>,
}

impl<R> Clone for TypedRow<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for TypedRow<R> {}

/// A transaction with typed access to rows.
pub(super) struct Rows<'t, T> {
    pub(super) tpcc: &'t Tpcc,
    pub(super) txn: &'t mut T,
}

impl<T: Txn> Rows<'_, T> {
    /// Declares a row to read.
    #[inline]
    pub(super) fn read<R: Record>(&mut self, key: PrimaryKey) -> Result<TypedRow<R>, TxnError> {
        let item = self.txn.add_ro(self.table::<R>(), key)?;
        Ok(TypedRow { item, key, record: PhantomData })
    }

    /// Declares a row to read and perhaps to write.
    #[inline]
    pub(super) fn update<R: Record>(&mut self, key: PrimaryKey) -> Result<TypedRow<R>, TxnError> {
        let item = self.txn.add_rw(self.table::<R>(), key)?;
        Ok(TypedRow { item, key, record: PhantomData })
    }

    /// Declares a row that does not exist yet.
    #[inline]
    pub(super) fn insert<R: Record>(&mut self, record: &R) -> Result<TypedRow<R>, TxnError> {
        let key = record.key(&self.tpcc.scale);
        let item = self.txn.insert(self.table::<R>(), key, record.as_bytes())?;
        Ok(TypedRow { item, key, record: PhantomData })
    }

    /// Locks and reads the declared rows.
    #[inline]
    pub(super) async fn execute(&mut self) -> Result<(), TxnError> {
        self.txn.execute().await
    }

    /// Record of an executed row; `None` if the row does not exist.
    #[inline]
    pub(super) fn find<R: Record>(&self, row: TypedRow<R>) -> Result<Option<R>, TxnError> {
        let Some(value) = self.txn.value(row.item) else { return Ok(None) };
        match R::read_from_bytes(value) {
            Ok(record) if record.key(&self.tpcc.scale) == row.key => Ok(Some(record)),
            _ => Err(self.complaint(row)),
        }
    }

    /// Record of an executed row, which must exist.
    #[inline]
    pub(super) fn get<R: Record>(&self, row: TypedRow<R>) -> Result<R, TxnError> {
        self.find(row)?.ok_or_else(|| self.complaint(row))
    }

    /// Sets the record that the commit will write.
    #[inline]
    pub(super) fn put<R: Record>(&mut self, row: TypedRow<R>, record: &R) -> Result<(), TxnError> {
        self.txn.put(row.item, record.as_bytes())
    }

    /// Marks the row for deletion at commit.
    #[inline]
    pub(super) fn delete<R: Record>(&mut self, row: TypedRow<R>) -> Result<(), TxnError> {
        self.txn.delete(row.item)
    }

    /// Stand-in for the current time: the id of this attempt.
    #[inline]
    pub(super) fn now(&self) -> Moment {
        Moment::new(self.txn.id().raw())
    }

    #[inline]
    fn table<R: Record>(&self) -> TableId {
        self.tpcc.tables[R::TABLE as usize]
    }

    #[cold]
    fn complaint<R: Record>(&self, row: TypedRow<R>) -> TxnError {
        let (table, key, value) = (R::TABLE.name(), row.key, self.txn.value(row.item));
        TxnError::Fatal(format!("{table} {key:?} has the record {value:02x?}"))
    }
}
