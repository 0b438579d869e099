//! Typed rows (`lotus_rows`) in transactions of the engine.
//!
//! Rows of hash tables are added, executed and changed as by hand; an execution is skipped if the
//! wanted row is already executed. Rows of ordered tables go through [`Transaction::ordered`].

use lotus_fabric::ids::TableId;
use lotus_mvcc::PrimaryKey;
use lotus_rows::{HashRows, OrderedRows, Purpose, RangeQuery, RowError};

use crate::api::error::TxnError;
use crate::txn::body::{Access, Item, Row};
use crate::txn::transaction::Transaction;

/// Number of rows up to which a row is found by its primary key. This saves the hash of the key if
/// the row was added a moment ago, the common case of typed rows.
const FEW: usize = 8;

impl Transaction {
    /// Adds a row, unless it is known to have been added.
    #[inline]
    fn add_for(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        purpose: Purpose,
    ) -> Result<Item, TxnError> {
        let access = match purpose {
            Purpose::Read => Access::Read,
            Purpose::Update => Access::Write,
        };
        let rows = self.body.as_ref().map(|body| body.rows.as_slice()).unwrap_or_default();
        if rows.len() <= FEW {
            let same = |row: &Row| row.primary_key == key && row.table == table;
            if let Some(index) = rows.iter().position(same)
                && rows[index].access >= access
            {
                debug_assert!(
                    !rows[index + 1..].iter().any(same),
                    "I8: a transaction has a row once, by its whole primary key"
                );
                return Ok(Item::from_index(index as u32));
            }
        }
        match purpose {
            Purpose::Read => self.add_ro(table, key),
            Purpose::Update => self.add_rw(table, key),
        }
    }

    /// Whether the row is executed, so that its value is known.
    #[inline]
    fn is_executed(&self, item: Item) -> bool {
        let row = self.body.as_ref().and_then(|body| body.rows.get(item.index() as usize));
        row.is_some_and(|row| row.executed)
    }
}

impl HashRows for Transaction {
    type Error = TxnError;

    #[inline]
    fn declare_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        purpose: Purpose,
    ) -> Result<(), TxnError> {
        self.add_for(table, key, purpose).map(drop)
    }

    #[inline]
    async fn get_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        purpose: Purpose,
    ) -> Result<Option<&[u8]>, TxnError> {
        let item = self.add_for(table, key, purpose)?;
        if !self.is_executed(item) {
            self.execute().await?;
        }
        Ok(self.value(item))
    }

    #[inline]
    async fn put_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        value: &[u8],
    ) -> Result<(), TxnError> {
        let item = self.add_for(table, key, Purpose::Update)?;
        if !self.is_executed(item) {
            self.execute().await?;
        }
        debug_assert!(
            self.body_mut()?.row(item)?.access != Access::Read,
            "I37: a row that is put is locked to write"
        );
        self.upsert(item, value)
    }

    async fn insert_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        value: &[u8],
    ) -> Result<(), TxnError> {
        // An insert of a row that this transaction knows to exist is refused without an execution,
        // even if the transaction has added the row itself.
        let item = self.add_for(table, key, Purpose::Read)?;
        if self.value(item).is_some() {
            return Err(self.end_at_row(table, key.as_bytes(), Some(item)));
        }
        self.insert(table, key, value).map(drop)
    }

    async fn delete_row(&mut self, table: TableId, key: PrimaryKey) -> Result<bool, TxnError> {
        let item = self.add_for(table, key, Purpose::Update)?;
        if !self.is_executed(item) {
            self.execute().await?;
        }
        if self.value(item).is_none() {
            return Ok(false);
        }
        self.delete(item)?;
        Ok(true)
    }
}

impl OrderedRows for Transaction {
    fn declare_ordered(
        &mut self,
        table: TableId,
        key: &[u8],
        purpose: Purpose,
    ) -> Result<(), TxnError> {
        let mut ordered = self.ordered(table)?;
        match purpose {
            Purpose::Read => ordered.declare(key),
            Purpose::Update => ordered.declare_for_update(key),
        }
    }

    async fn get_ordered<R>(
        &mut self,
        table: TableId,
        key: &[u8],
        purpose: Purpose,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, TxnError> {
        let mut rows = self.ordered(table)?;
        let value = match purpose {
            Purpose::Read => rows.get(key).await?,
            Purpose::Update => rows.get_for_update(key).await?,
        };
        Ok(value.map(read))
    }

    async fn put_ordered(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), TxnError> {
        self.ordered(table)?.put(key, value).await
    }

    async fn insert_ordered(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), TxnError> {
        self.ordered(table)?.insert(key, value).await
    }

    async fn delete_ordered(&mut self, table: TableId, key: &[u8]) -> Result<bool, TxnError> {
        self.ordered(table)?.delete(key).await
    }

    async fn range_ordered<R>(
        &mut self,
        table: TableId,
        query: RangeQuery<'_>,
        mut read: impl FnMut(&[u8], &[u8]) -> Result<R, RowError>,
    ) -> Result<Vec<R>, TxnError> {
        let mut rows = self.ordered(table)?;
        let range = rows.range(query.bounds()).limit(query.limit.unwrap_or(usize::MAX));
        let range = if query.reverse { range.reverse() } else { range };
        let range = match query.purpose {
            Purpose::Read => range,
            Purpose::Update => range.for_update(),
        };
        let found = range.rows().await?;
        let mut rows = Vec::with_capacity(found.len());
        for (key, value) in found.iter() {
            rows.push(read(key, value)?);
        }
        Ok(rows)
    }
}
