//! Ordered tables: keys in order, and ranges of them.
//!
//! # What it is
//! An ordered table ([`TableSpec::ordered`](crate::TableSpec::ordered)) is a B+tree whose nodes are
//! rows (`lotus_tree`). The rows of the application lie in the leaves. An [`OrderedTable`] changes
//! the tree by changing rows within a transaction. Locks, log, commit, replicas, recovery, versions
//! and snapshots are therefore the usual row mechanisms. A split becomes visible with the commit
//! that caused it, or never.
//!
//! # Reading
//! Each coordinator remembers the latest inner nodes that it has read, as Sherman does
//! (`crate::node::caches::inner_nodes`), so a leaf is found without a READ. The leaf's fences tell
//! whether it is the right leaf; if not, the search starts at the root, within the transaction.
//!
//! # Phantoms
//! A serializable transaction holds locks on the leaves that it has read. To insert or delete a key
//! within a leaf's fences, present or not, a transaction must have locked the leaf to write. The
//! result of a range, an absent key, and the end of a range therefore stay unchanged until the
//! transaction ends (I282). Transactions of other isolation levels read all nodes from one
//! snapshot.
//!
//! # What it is not
//! Fine-grained: two transactions that write different keys of one leaf conflict, and so do a
//! writer and a serializable reader. Ascending keys all go to the last leaf.

mod change;
mod range;
mod search;

use lotus_fabric::ids::{TableId, TxnId};
use lotus_mvcc::PrimaryKey;
use lotus_mvcc::table::SizeError;
use lotus_sabotage::any_broken;
use lotus_tree::{Node, Seek, edit};

use crate::api::error::TxnError;
use crate::node::coordinator;
use crate::txn::body::{Access, Change, Row};
use crate::txn::transaction::Transaction;

pub use range::{Range, Rows};

/// An ordered table within a transaction.
///
/// Every operation first executes the rows that were added to the transaction and not executed yet.
/// An execution error ([`Transaction::execute`]) ends the attempt; it may concern a row added
/// earlier, and names that row.
///
/// Dropping the future of a put leaves the transaction unchanged. Dropping the future of a deletion
/// may leave the row deleted. The transaction may go on in both cases, and commit.
pub struct OrderedTable<'t> {
    txn: &'t mut Transaction,
    table: TableId,
    limits: Limits,
}

/// What a transaction has done with a node of an ordered table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeUse {
    /// The table.
    pub table: TableId,
    /// Number of the node, as the primary key of its row.
    pub key: PrimaryKey,
    /// Writer of the version that was read: the inner `None` for a loaded version, the outer `None`
    /// if no version was read.
    pub read: Option<Option<TxnId>>,
    /// Whether the transaction writes the node.
    pub written: bool,
    /// Whether the transaction deletes the node.
    pub deleted: bool,
}

/// Lengths that the table's specification allows, in bytes.
#[derive(Clone, Copy)]
struct Limits {
    key: u32,
    value: u32,
    node: usize,
}

impl Transaction {
    /// Returns an ordered table, to be read and changed within this transaction.
    ///
    /// # Errors
    /// `UnknownTable`; `Misuse` if the table is not ordered, or the attempt is over.
    pub fn ordered(&mut self, table: TableId) -> Result<OrderedTable<'_>, TxnError> {
        let tables = self.slot.coordinator.tables(table);
        let known = coordinator::known(&tables, table)?;
        let (spec, node) = (known.def.spec(), known.def.stored().value_bytes as usize);
        if !spec.ordered {
            return Err(TxnError::Misuse("the table is not ordered: add its rows by their keys"));
        }
        let limits = Limits { key: spec.key_bytes, value: spec.record_bytes, node };
        let _not_over = self.body_mut()?;
        Ok(OrderedTable { txn: self, table, limits })
    }
}

impl Transaction {
    /// Visits the nodes of ordered tables that this transaction has read or changed, for a history.
    pub fn for_each_node(&self, visit: &mut dyn FnMut(NodeUse)) {
        let Some(body) = &self.body else { return };
        let of_tree = |row: &&Row| body.table(row.table).def.is_ordered();
        for row in body.rows.iter().filter(of_tree) {
            let found = row.writer.is_some() || row.value.is_some();
            visit(NodeUse {
                table: row.table,
                key: row.primary_key,
                read: found.then_some(row.writer),
                written: matches!(row.change, Change::Put(_)),
                deleted: row.change == Change::Delete,
            });
        }
    }
}

impl OrderedTable<'_> {
    /// Returns the value of a key, with this transaction's changes; `None` if the row does not
    /// exist.
    ///
    /// # Errors
    /// `TooLarge`, `Misuse`, or the errors of an execution.
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<&[u8]>, TxnError> {
        self.read(key, Access::Read).await
    }

    /// Returns the value of a key that this transaction will change: as [`Self::get`], but the row
    /// is locked to write from the beginning, so that two transactions that both read the row first
    /// do not block each other.
    ///
    /// # Errors
    /// As [`Self::get`]; `Misuse` in a read-only transaction.
    pub async fn get_for_update(&mut self, key: &[u8]) -> Result<Option<&[u8]>, TxnError> {
        self.read(key, Access::Write).await
    }

    /// Declares a key that will be read, or the first key of a range. The next execution brings the
    /// key's leaf in the round of its other rows. A hint: without effect if no remembered inner
    /// node leads to the leaf.
    ///
    /// # Errors
    /// `TooLarge`, or `Misuse`.
    pub fn declare(&mut self, key: &[u8]) -> Result<(), TxnError> {
        self.declare_for(key, Access::Read)
    }

    /// Declares a key that will be changed, as [`Self::declare`] does: its leaf is locked to write.
    ///
    /// # Errors
    /// As [`Self::declare`]; `Misuse` in a read-only transaction.
    pub fn declare_for_update(&mut self, key: &[u8]) -> Result<(), TxnError> {
        self.declare_for(key, Access::Write)
    }

    fn declare_for(&mut self, key: &[u8], access: Access) -> Result<(), TxnError> {
        self.check_key(key)?;
        if let Some(id) = self.remembered(Seek::At(key), 0) {
            self.txn.add(self.table, id.into(), access, 0)?;
        }
        Ok(())
    }

    async fn read(&mut self, key: &[u8], access: Access) -> Result<Option<&[u8]>, TxnError> {
        self.check_key(key)?;
        let (id, item) = self.leaf(Seek::At(key), access).await?;
        Ok(self.node(id, item)?.and_then(|leaf| leaf.get(key)))
    }

    /// Sets the value of a key, whether the row exists or not.
    ///
    /// # Errors
    /// `TooLarge`, `Misuse`, or the errors of an execution.
    pub async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), TxnError> {
        self.write(key, value, true).await
    }

    /// Adds a row that does not exist yet.
    ///
    /// # Errors
    /// `AlreadyExists` if the row exists, which ends the attempt; otherwise as [`Self::put`].
    pub async fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), TxnError> {
        self.write(key, value, false).await
    }

    async fn write(&mut self, key: &[u8], value: &[u8], replace: bool) -> Result<(), TxnError> {
        self.check_key(key)?;
        if value.len() > self.limits.value as usize {
            let (table, bytes, limit) = (self.table, value.len(), self.limits.value);
            return Err(SizeError::Value { table, bytes, limit }.into());
        }
        let (id, item) = self.leaf(Seek::At(key), Access::Write).await?;
        let leaf = self.node(id, item)?.unwrap_or(Node::EMPTY);
        if !replace && leaf.find(key).is_ok() {
            return Err(self.txn.end_at_row(self.table, key, None));
        }
        debug_assert!(
            leaf.covers(Seek::At(key)) || any_broken(),
            "I281: a key is written into the leaf that is responsible for it"
        );
        let leaf = edit::with(leaf, key, value);
        self.grow(id, item, leaf, key).await
    }

    /// Deletes the row of a key; returns whether the row existed.
    ///
    /// # Errors
    /// `TooLarge`, `Misuse`, or the errors of an execution.
    pub async fn delete(&mut self, key: &[u8]) -> Result<bool, TxnError> {
        self.check_key(key)?;
        let (id, item) = self.leaf(Seek::At(key), Access::Write).await?;
        let leaf = self.node(id, item)?.unwrap_or(Node::EMPTY);
        debug_assert!(
            leaf.covers(Seek::At(key)) || any_broken(),
            "I281: that a key is absent, its own leaf says"
        );
        if leaf.find(key).is_err() {
            return Ok(false);
        }
        let leaf = edit::without(leaf, key);
        self.txn.upsert(item, &leaf)?;
        self.shrink(id, item).await?;
        Ok(true)
    }

    fn check_key(&self, key: &[u8]) -> Result<(), TxnError> {
        let (table, bytes, limit) = (self.table, key.len(), self.limits.key);
        match bytes {
            0 => Err(TxnError::Misuse("a key has at least one byte")),
            _ if bytes > limit as usize => Err(SizeError::Key { table, bytes, limit }.into()),
            _ => Ok(()),
        }
    }
}

/// Error of an inverted range.
pub(crate) const INVERTED: TxnError =
    TxnError::Misuse("a range ends at or after the key that it begins with");
