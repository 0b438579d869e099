//! The two traits through which typed rows use a transaction.

use std::future::Future;
use std::ops::Bound;

use lotus_mvcc::{PrimaryKey, TableId};

use crate::error::RowError;

/// A transaction's intended use of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The row is read.
    Read,
    /// The row is read and perhaps written, so it is write-locked from the beginning.
    Update,
}

/// A transaction on hash tables.
///
/// Code over the trait is written once, and runs with the transactions of a compute node's process
/// and with the transactions of client applications. Applications call the methods of
/// [`Table`](crate::Table), which take a transaction.
pub trait HashRows {
    /// The transaction's error.
    type Error: From<RowError>;

    /// Declares a row that will be used. The next reading call also fetches the declared row, in
    /// the same round.
    ///
    /// # Errors
    /// Errors of the transaction.
    fn declare_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        purpose: Purpose,
    ) -> Result<(), Self::Error>;

    /// Reads a row, including the transaction's own changes.
    ///
    /// # Errors
    /// Errors of the transaction.
    fn get_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        purpose: Purpose,
    ) -> impl Future<Output = Result<Option<&[u8]>, Self::Error>>;

    /// Inserts or updates a row.
    ///
    /// # Errors
    /// Errors of the transaction.
    fn put_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        value: &[u8],
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Inserts a row that does not exist yet.
    ///
    /// # Errors
    /// Errors of the transaction. If the transaction has not read the row, the next reading call,
    /// or the commit, finds an existing row. The transaction ends with the failing call.
    fn insert_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        value: &[u8],
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Deletes a row; returns whether the row existed.
    ///
    /// # Errors
    /// Errors of the transaction.
    fn delete_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
    ) -> impl Future<Output = Result<bool, Self::Error>>;
}

/// A range query on an ordered table.
#[derive(Clone, Copy, Debug)]
pub struct RangeQuery<'k> {
    /// Inclusive lower bound.
    pub from: &'k [u8],
    /// Exclusive upper bound; `None` if the range ends with the table.
    pub until: Option<&'k [u8]>,
    /// Whether to read from the greatest key down.
    pub reverse: bool,
    /// Largest number of rows; `None` if unlimited.
    pub limit: Option<usize>,
    /// Intended use of the rows.
    pub purpose: Purpose,
}

impl<'k> RangeQuery<'k> {
    /// Returns both bounds, for ranges of byte strings.
    pub fn bounds(&self) -> (Bound<&'k [u8]>, Bound<&'k [u8]>) {
        (Bound::Included(self.from), self.until.map_or(Bound::Unbounded, Bound::Excluded))
    }
}

/// A transaction on ordered tables.
pub trait OrderedRows: HashRows {
    /// Declares a row that will be used, or the first row of a range, so that one round fetches
    /// several declared rows. Only a hint, which a transaction may ignore.
    ///
    /// # Errors
    /// Errors of the transaction.
    fn declare_ordered(
        &mut self,
        table: TableId,
        key: &[u8],
        purpose: Purpose,
    ) -> Result<(), Self::Error>;

    /// Reads a row, including the transaction's own changes; returns the result of `read` on the
    /// value.
    ///
    /// # Errors
    /// Errors of the transaction.
    fn get_ordered<R>(
        &mut self,
        table: TableId,
        key: &[u8],
        purpose: Purpose,
        read: impl FnOnce(&[u8]) -> R,
    ) -> impl Future<Output = Result<Option<R>, Self::Error>>;

    /// Inserts or updates a row.
    ///
    /// # Errors
    /// Errors of the transaction.
    fn put_ordered(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Inserts a row that does not exist yet.
    ///
    /// # Errors
    /// Errors of the transaction.
    fn insert_ordered(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Deletes a row; returns whether the row existed.
    ///
    /// # Errors
    /// Errors of the transaction.
    fn delete_ordered(
        &mut self,
        table: TableId,
        key: &[u8],
    ) -> impl Future<Output = Result<bool, Self::Error>>;

    /// Reads the rows of a range, in order; returns the results of `read` on their keys and values.
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
