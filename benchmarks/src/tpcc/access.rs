//! Records in a transaction: typed rows over the seam's items and bytes.
//!
//! Every row that is read must carry the key that it was asked for by; if not, the engine has
//! mixed something up, and the run ends.

use std::marker::PhantomData;

use lotus_fabric::ids::TableId;
use lotus_mvcc::PrimaryKey;

use super::Tpcc;
use super::rows::{Moment, Record};
use crate::engine::{Item, Txn, TxnError};

/// A row of type `R` in a transaction.
pub(super) struct Row<R> {
    item: Item,
    key: PrimaryKey,
    record: PhantomData<R>,
}

impl<R> Clone for Row<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Row<R> {}

/// A transaction that knows the records.
pub(super) struct Rows<'t, T> {
    pub(super) tpcc: &'t Tpcc,
    pub(super) txn: &'t mut T,
}

impl<T: Txn> Rows<'_, T> {
    /// Declares a row to read.
    #[inline]
    pub(super) fn read<R: Record>(&mut self, key: PrimaryKey) -> Result<Row<R>, TxnError> {
        let item = self.txn.add_ro(self.table::<R>(), key)?;
        Ok(Row { item, key, record: PhantomData })
    }

    /// Declares a row to read and perhaps to write.
    #[inline]
    pub(super) fn update<R: Record>(&mut self, key: PrimaryKey) -> Result<Row<R>, TxnError> {
        let item = self.txn.add_rw(self.table::<R>(), key)?;
        Ok(Row { item, key, record: PhantomData })
    }

    /// Declares a row that does not exist yet.
    #[inline]
    pub(super) fn insert<R: Record>(&mut self, record: &R) -> Result<Row<R>, TxnError> {
        let key = record.key(&self.tpcc.scale);
        let item = self.txn.insert(self.table::<R>(), key, record.as_bytes())?;
        Ok(Row { item, key, record: PhantomData })
    }

    /// Locks and reads what was declared.
    #[inline]
    pub(super) async fn execute(&mut self) -> Result<(), TxnError> {
        self.txn.execute().await
    }

    /// The record of a row that has been executed, if there is one.
    #[inline]
    pub(super) fn find<R: Record>(&self, row: Row<R>) -> Result<Option<R>, TxnError> {
        let Some(value) = self.txn.value(row.item) else { return Ok(None) };
        match R::read_from_bytes(value) {
            Ok(record) if record.key(&self.tpcc.scale) == row.key => Ok(Some(record)),
            _ => Err(self.complaint(row)),
        }
    }

    /// The record of a row that has been executed and must exist.
    #[inline]
    pub(super) fn get<R: Record>(&self, row: Row<R>) -> Result<R, TxnError> {
        self.find(row)?.ok_or_else(|| self.complaint(row))
    }

    /// Sets the record that the commit writes.
    #[inline]
    pub(super) fn put<R: Record>(&mut self, row: Row<R>, record: &R) -> Result<(), TxnError> {
        self.txn.put(row.item, record.as_bytes())
    }

    /// Lets the commit delete the row.
    #[inline]
    pub(super) fn delete<R: Record>(&mut self, row: Row<R>) -> Result<(), TxnError> {
        self.txn.delete(row.item)
    }

    /// What stands for the time of this attempt.
    #[inline]
    pub(super) fn now(&self) -> Moment {
        Moment::new(self.txn.id().raw())
    }

    #[inline]
    fn table<R: Record>(&self) -> TableId {
        self.tpcc.tables[R::TABLE as usize]
    }

    #[cold]
    fn complaint<R: Record>(&self, row: Row<R>) -> TxnError {
        let (table, key, value) = (R::TABLE.name(), row.key, self.txn.value(row.item));
        TxnError::Fatal(format!("{table} {key:?} has the record {value:02x?}"))
    }
}
