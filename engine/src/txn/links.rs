//! Rows of grouped access paths ([`lotus_rows::path`]) in transactions of the engine.

use lotus_rows::path::{Entry, Group};

use crate::api::error::TxnError;
use crate::txn::body::Item;
use crate::txn::transaction::Transaction;

impl Transaction {
    /// Adds an entry to the group in a row of a grouped path, and the row if it does not exist. The
    /// item must come from [`Transaction::add_rw`] and have been executed.
    ///
    /// # Errors
    /// [`TxnError::Path`]; `Misuse` if the item has not been executed or was not added for writing.
    pub fn link(&mut self, item: Item, entry: &Entry<'_>) -> Result<(), TxnError> {
        let limit = self.value_limit(item)?;
        let value = Group::read(self.value(item))?.with(entry, limit)?;
        self.upsert(item, &value)
    }

    /// Removes an entry from the group in a row of a grouped path; the row stays. The item must
    /// come from [`Transaction::add_rw`] and have been executed.
    ///
    /// # Errors
    /// As [`Transaction::link`].
    pub fn unlink(&mut self, item: Item, entry: &Entry<'_>) -> Result<(), TxnError> {
        let value = Group::read(self.value(item))?.without(entry)?;
        self.upsert(item, &value)
    }
}
