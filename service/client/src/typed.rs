//! Typed rows (`lotus_rows`) in interactive transactions.
//!
//! The transaction remembers every row read or changed, so reading the row again takes no exchange.
//! Declared rows are read by the next exchange.

use lotus_fabric::ids::TableId;
use lotus_mvcc::PrimaryKey;
use lotus_rows::{HashRows, OrderedRows, Purpose, RangeQuery, RowError};

use crate::error::CallError;
use crate::transaction::{Item, Transaction};

impl Transaction {
    /// Returns an item of the row, locked to write if the purpose is an update.
    fn item(&mut self, table: TableId, key: PrimaryKey, purpose: Purpose) -> Item {
        let writes = purpose == Purpose::Update;
        self.item_of(table, key, writes).unwrap_or_else(|| match purpose {
            Purpose::Read => self.add_ro(table, key),
            Purpose::Update => self.add_rw(table, key),
        })
    }

    /// Returns an executed item of the row, to be changed.
    async fn written_item(&mut self, table: TableId, key: PrimaryKey) -> Result<Item, CallError> {
        let known = self.item_of(table, key, true);
        let item = known.unwrap_or_else(|| self.add_rw(table, key));
        if !self.is_executed(item) {
            self.execute().await?;
        }
        Ok(item)
    }
}

impl HashRows for Transaction {
    type Error = CallError;

    fn declare_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        purpose: Purpose,
    ) -> Result<(), CallError> {
        let _item = self.item(table, key, purpose);
        Ok(())
    }

    async fn get_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        purpose: Purpose,
    ) -> Result<Option<&[u8]>, CallError> {
        let item = self.item(table, key, purpose);
        if !self.is_executed(item) {
            self.execute().await?;
        }
        Ok(self.value(item))
    }

    async fn put_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        value: &[u8],
    ) -> Result<(), CallError> {
        let item = self.written_item(table, key).await?;
        self.upsert(item, value);
        Ok(())
    }

    async fn insert_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        value: &[u8],
    ) -> Result<(), CallError> {
        let known = self.item_of(table, key, false).is_some();
        if known && self.get_row(table, key, Purpose::Read).await?.is_some() {
            return Err(self.end_at_row(table, key.as_bytes()));
        }
        self.insert(table, key, value);
        Ok(())
    }

    async fn delete_row(&mut self, table: TableId, key: PrimaryKey) -> Result<bool, CallError> {
        if self.get_row(table, key, Purpose::Update).await?.is_none() {
            return Ok(false);
        }
        let item = self.written_item(table, key).await?;
        self.delete(item);
        Ok(true)
    }
}

impl OrderedRows for Transaction {
    /// Does nothing: an operation on an ordered table is an exchange of its own.
    fn declare_ordered(&mut self, _: TableId, _: &[u8], _: Purpose) -> Result<(), CallError> {
        Ok(())
    }

    async fn get_ordered<R>(
        &mut self,
        table: TableId,
        key: &[u8],
        purpose: Purpose,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, CallError> {
        let mut rows = self.ordered(table);
        let value = match purpose {
            Purpose::Read => rows.get(key).await?,
            Purpose::Update => rows.get_for_update(key).await?,
        };
        Ok(value.as_deref().map(read))
    }

    async fn put_ordered(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), CallError> {
        self.ordered(table).put(key, value);
        Ok(())
    }

    async fn insert_ordered(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), CallError> {
        self.ordered(table).insert(key, value);
        Ok(())
    }

    async fn delete_ordered(&mut self, table: TableId, key: &[u8]) -> Result<bool, CallError> {
        self.ordered(table).delete(key).await
    }

    async fn range_ordered<R>(
        &mut self,
        table: TableId,
        query: RangeQuery<'_>,
        mut read: impl FnMut(&[u8], &[u8]) -> Result<R, RowError>,
    ) -> Result<Vec<R>, CallError> {
        let mut rows = self.ordered(table);
        let range = rows.range(query.bounds()).limit(query.limit.unwrap_or(usize::MAX));
        let range = if query.reverse { range.reverse() } else { range };
        let range = match query.purpose {
            Purpose::Read => range,
            Purpose::Update => range.for_update(),
        };
        let found = range.rows().await?;
        let mut rows = Vec::with_capacity(found.len());
        for (key, value) in &found {
            rows.push(read(key, value)?);
        }
        Ok(rows)
    }
}
