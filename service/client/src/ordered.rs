//! Ordered tables in an interactive transaction: keys in order, and ranges of keys.
//!
//! A read takes one exchange; a range takes one exchange per page of 128 KiB at most. Puts and
//! inserts are sent with the transaction's next step, of any kind.

use std::ops::RangeBounds;

use lotus_fabric::ids::TableId;
use lotus_mvcc::KeyRange;

use crate::error::CallError;
use crate::scan::{Rows, owned};
use crate::transaction::{Planned, Transaction};
use lotus_protocol::messages::{Bytes, Found, Keys, StepEnd};

/// An ordered table within a transaction.
///
/// Keys have at least one byte, and at most the table's key length. Every operation that awaits
/// first executes rows that were added to the transaction and not executed yet.
pub struct OrderedTable<'t> {
    txn: &'t mut Transaction,
    table: TableId,
}

impl<'t> OrderedTable<'t> {
    pub(crate) const fn new(txn: &'t mut Transaction, table: TableId) -> Self {
        Self { txn, table }
    }

    /// Returns the value of a key, with this transaction's changes; `None` if the row does not
    /// exist.
    ///
    /// # Errors
    /// As [`Transaction::execute`]; [`Failure::Refused`](crate::Failure::Refused) if the table does
    /// not exist or is not ordered, or the key is too long or empty.
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, CallError> {
        self.read(key, false).await
    }

    /// Returns the value of a key that this transaction will change: as [`Self::get`], but the row
    /// is locked to write from the beginning, so that two transactions do not conflict by reading
    /// the row first.
    ///
    /// # Errors
    /// As [`Self::get`], and in a read-only transaction.
    pub async fn get_for_update(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, CallError> {
        self.read(key, true).await
    }

    async fn read(&mut self, key: &[u8], for_update: bool) -> Result<Option<Vec<u8>>, CallError> {
        let end = StepEnd::Get { table: self.table.0, key: Bytes(key), for_update };
        let value = |found: Found<'_>| match found {
            Found::Value(value) => Some(value.map(|Bytes(value)| value.to_vec())),
            _ => None,
        };
        self.txn.find(end, value).await
    }

    /// Sets the value of a key, whether the row exists or not. The next step sends the change, and
    /// returns its errors.
    pub fn put(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.txn.plan(Planned::OrderedPut(self.table, key.into(), value.into()));
    }

    /// Adds a row that does not exist yet. The next step sends the row, and returns its errors:
    /// [`Failure::AlreadyExists`](crate::Failure::AlreadyExists) if the row exists, which ends the
    /// transaction.
    pub fn insert(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.txn.plan(Planned::OrderedInsert(self.table, key.into(), value.into()));
    }

    /// Deletes the row of a key when the transaction commits; returns whether the row exists.
    ///
    /// # Errors
    /// As [`Self::get_for_update`].
    pub async fn delete(&mut self, key: &[u8]) -> Result<bool, CallError> {
        let end = StepEnd::Delete { table: self.table.0, key: Bytes(key) };
        let deleted = |found: Found<'_>| match found {
            Found::Deleted(deleted) => Some(deleted),
            _ => None,
        };
        self.txn.find(end, deleted).await
    }

    /// Returns a range of keys, to be read by [`Range::rows`]. Bounds compare as bytes do.
    pub fn range<'o, 'k>(&'o mut self, bounds: impl RangeBounds<&'k [u8]>) -> Range<'o, 't> {
        self.within(KeyRange::of(bounds))
    }

    /// Returns the range of all keys that begin with `prefix`.
    pub fn prefix<'o>(&'o mut self, prefix: &[u8]) -> Range<'o, 't> {
        self.within(KeyRange::prefix(prefix))
    }

    const fn within<'o>(&'o mut self, keys: KeyRange) -> Range<'o, 't> {
        Range { table: self, keys, reverse: false, limit: usize::MAX, for_update: false }
    }
}

/// A range to be read: from a key, inclusive, to another key, exclusive.
#[must_use = "nothing is read before `rows` is awaited"]
pub struct Range<'o, 't> {
    table: &'o mut OrderedTable<'t>,
    keys: KeyRange,
    reverse: bool,
    limit: usize,
    for_update: bool,
}

impl Range<'_, '_> {
    /// Reads from the greatest key down.
    pub const fn reverse(mut self) -> Self {
        self.reverse = true;
        self
    }

    /// Reads at most this number of rows. Without a limit the result takes the memory of all rows,
    /// and the transaction may have more nodes than the server allows; see
    /// [`Client::scan`](crate::Client::scan) for long ranges.
    pub const fn limit(mut self, rows: usize) -> Self {
        self.limit = rows;
        self
    }

    /// Locks the rows to write, for a transaction that will change the rows: see
    /// [`OrderedTable::get_for_update`].
    pub const fn for_update(mut self) -> Self {
        self.for_update = true;
        self
    }

    /// Reads the rows, with this transaction's changes. A range longer than an answer is fetched in
    /// several answers, all within the transaction.
    ///
    /// # Errors
    /// As [`OrderedTable::get`]; also [`Failure::Refused`](crate::Failure::Refused) if the range
    /// ends before it begins, and [`Failure::TooLarge`](crate::Failure::TooLarge) if the
    /// transaction gets more nodes of the table than the server allows.
    pub async fn rows(self) -> Result<Rows, CallError> {
        let Self { table: OrderedTable { txn, table }, mut keys, reverse, limit, for_update } =
            self;
        let mut rows = Rows::new();
        loop {
            let limit = (limit - rows.len()) as u64;
            let wanted = Keys::of(&keys, reverse);
            let end = StepEnd::Range { table: table.0, keys: wanted, limit, for_update };
            let page = |found: Found<'_>| match found {
                Found::Rows { rows, rest } if rows.len() as u64 <= limit => {
                    Some((owned(rows), rest.map(|Bytes(key)| key.to_vec())))
                }
                _ => None,
            };
            let (page, rest) = txn.find(end, page).await?;
            rows.extend(page);
            let Some(place) = rest else { return Ok(rows) };
            let rest = keys.rest(place, reverse);
            if rest == keys {
                return txn.over();
            }
            keys = rest;
        }
    }
}
