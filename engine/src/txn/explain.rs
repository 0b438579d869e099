//! Errors of an attempt, in the caller's terms.
//!
//! The code that finds an error names the row by table number and primary key. When the attempt
//! ends, this module translates the name into the application's terms: the table's name, the key as
//! written, and the item. A row of an ordered table is a tree node, which the application does not
//! know. The error then names a key in that node, or the key of the search if the caller knows it.

use std::sync::Arc;

use lotus_fabric::ids::TableId;
use lotus_mvcc::{PrimaryKey, TableDef};
use lotus_sabotage::{Rule, any_broken, broken};
use lotus_tree::Node;

use crate::api::error::TxnError;
use crate::api::row_name::RowName;
use crate::txn::body::{Body, Change, Item, Row};
use crate::txn::transaction::Transaction;

impl RowName {
    /// Returns the item of the row in its transaction; `None` in an ordered table.
    pub fn item(&self) -> Option<Item> {
        self.place().map(Item::from_index)
    }
}

impl Body {
    /// The error of an execution or a commit, in the caller's terms. If the number of a new tree
    /// node is already used, by a row or by the hash of another number, the error is a conflict:
    /// the next attempt draws another number.
    #[cold]
    pub(crate) fn explained(&self, error: TxnError) -> TxnError {
        let Some((table, key)) = error.row() else { return error };
        let known = self.tables.as_ref().and_then(|tables| tables.get(usize::from(table.0)));
        let Some(def) = known.map(|known| &known.def) else { return error };
        let is_it = |row: &Row| row.table == table && *key == row.primary_key;
        let Some(place) = self.rows.iter().position(is_it) else { return error };
        let row = &self.rows[place];
        let named = match def.is_ordered() {
            false => RowName::of_item(def, row.primary_key, place as u32),
            true => RowName::in_node(def, self.key_in(row), row.primary_key),
        };
        let taken = match &error {
            TxnError::AlreadyExists { .. } => Some(true),
            TxnError::KeyCollision { .. } => Some(false),
            _ => None,
        };
        let taken = taken.filter(|_| def.is_ordered() && !broken(Rule::NodeNumbersAreNew));
        if let Some(by_a_row) = taken {
            debug_assert!(
                !by_a_row || any_broken(),
                "I313: a new node has a number that no row has"
            );
            return TxnError::Conflict { table, key: named };
        }
        let mut error = error;
        if let Some(key) = error.row_mut() {
            *key = named;
        }
        error
    }

    /// A key of the application in the node of a row; empty if none is known.
    fn key_in(&self, row: &Row) -> &[u8] {
        let bytes = match &row.change {
            Change::Put(range) => Some(range),
            _ => row.value.as_ref(),
        };
        let node = bytes.and_then(|range| Node::read(&self.values[range.clone()]));
        let Some(node) = node else { return &[] };
        let first = (!node.is_empty()).then(|| node.key(0)).filter(|key| !key.is_empty());
        first.unwrap_or_else(|| node.low())
    }
}

impl Transaction {
    /// Definition of a table that the transaction uses.
    fn table(&self, table: TableId) -> Option<&Arc<TableDef>> {
        let tables = self.body.as_ref()?.tables.as_ref()?;
        Some(&tables.get(usize::from(table.0))?.def)
    }

    /// Ends the attempt because the row of an insert exists already, and returns the error; `item`
    /// is the item of a row in a hash table. An execution that finds such a row also ends the
    /// attempt.
    #[cold]
    pub(crate) fn end_at_row(
        &mut self,
        table: TableId,
        key: &[u8],
        item: Option<Item>,
    ) -> TxnError {
        let name = match (self.table(table), item, PrimaryKey::try_from(key)) {
            (Some(table), Some(item), Ok(key)) => RowName::of_item(table, key, item.index()),
            (Some(table), _, _) => RowName::of_key(table, key),
            (None, _, _) => key.into(),
        };
        let error = TxnError::AlreadyExists { table, key: name };
        if let Some(body) = self.body.take() {
            self.slot.end_by(self.id(), body, error.clone());
        }
        error
    }
}
