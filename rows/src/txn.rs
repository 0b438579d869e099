//! The two traits by which typed rows reach a transaction.

use std::future::Future;
use std::ops::Bound;

use lotus_mvcc::{PrimaryKey, TableId};

use crate::error::RowError;

/// Use that a transaction will make of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The row is read.
    Read,
    /// The row is read and perhaps written, so it is locked to write from the beginning.
    Update,
}

/// A transaction with rows of hash tables.
///
/// Code over this trait is written once, and runs in the process of a compute node and in
/// applications, each with its own transaction. Applications call the methods of
/// [`Table`](crate::Table), which take such a transaction.
pub trait HashRows {
    /// Error of the transaction.
    type Error: From<RowError>;

    /// Declares a row that will be used. The next call that reads brings it too, in the same round.
    ///
    /// # Errors
    /// The transaction's own.
    fn declare_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        purpose: Purpose,
    ) -> Result<(), Self::Error>;

    /// Reads a row, with this transaction's changes.
    ///
    /// # Errors
    /// The transaction's own.
    fn get_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        purpose: Purpose,
    ) -> impl Future<Output = Result<Option<&[u8]>, Self::Error>>;

    /// Sets the value of a row, whether there is one or not.
    ///
    /// # Errors
    /// The transaction's own.
    fn put_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        value: &[u8],
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Adds a row that does not exist yet.
    ///
    /// # Errors
    /// The transaction's own. If the transaction has not read the row, the next call that reads, or
    /// the commit, finds that it exists. Whichever call does, the transaction has ended.
    fn insert_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        value: &[u8],
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Deletes a row; returns whether there was one.
    ///
    /// # Errors
    /// The transaction's own.
    fn delete_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
    ) -> impl Future<Output = Result<bool, Self::Error>>;
}

/// Rows of an ordered table that are to be read.
#[derive(Clone, Copy, Debug)]
pub struct RangeQuery<'k> {
    /// Least bytes of a key.
    pub from: &'k [u8],
    /// Least bytes of a key above the range; `None` if it ends with the table.
    pub until: Option<&'k [u8]>,
    /// Whether the rows are read from the greatest key down.
    pub reverse: bool,
    /// Largest number of rows, if there is one.
    pub limit: Option<usize>,
    /// Use of the rows.
    pub purpose: Purpose,
}

impl<'k> RangeQuery<'k> {
    /// Both bounds, as ranges of byte strings have them.
    pub fn bounds(&self) -> (Bound<&'k [u8]>, Bound<&'k [u8]>) {
        (Bound::Included(self.from), self.until.map_or(Bound::Unbounded, Bound::Excluded))
    }
}

/// A transaction with rows of ordered tables.
pub trait OrderedRows: HashRows {
    /// Declares a row that will be used, or the first one of a range, so that one round brings it
    /// with others. A hint: transactions that cannot make use of it do nothing.
    ///
    /// # Errors
    /// The transaction's own.
    fn declare_ordered(
        &mut self,
        table: TableId,
        key: &[u8],
        purpose: Purpose,
    ) -> Result<(), Self::Error>;

    /// Reads a row, with this transaction's changes; returns what `read` makes of its value.
    ///
    /// # Errors
    /// The transaction's own.
    fn get_ordered<R>(
        &mut self,
        table: TableId,
        key: &[u8],
        purpose: Purpose,
        read: impl FnOnce(&[u8]) -> R,
    ) -> impl Future<Output = Result<Option<R>, Self::Error>>;

    /// Sets the value of a row, whether there is one or not.
    ///
    /// # Errors
    /// The transaction's own.
    fn put_ordered(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Adds a row that does not exist yet.
    ///
    /// # Errors
    /// The transaction's own.
    fn insert_ordered(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Deletes a row; returns whether there was one.
    ///
    /// # Errors
    /// The transaction's own.
    fn delete_ordered(
        &mut self,
        table: TableId,
        key: &[u8],
    ) -> impl Future<Output = Result<bool, Self::Error>>;

    /// Reads the rows of a range, in order; returns what `read` makes of their keys and values.
    ///
    /// # Errors
    /// The transaction's own, or the first error of `read`.
    fn range_ordered<R>(
        &mut self,
        table: TableId,
        query: RangeQuery<'_>,
        read: impl FnMut(&[u8], &[u8]) -> Result<R, RowError>,
    ) -> impl Future<Output = Result<Vec<R>, Self::Error>>;
}
