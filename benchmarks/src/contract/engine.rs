//! The interface to a transaction engine that workloads are written against.
//!
//! # What it is
//! The trait pair [`TxnEngine`] and [`Txn`]: a workload is written once against the traits, and any
//! engine that implements them can run it, Lotus or a baseline. The traits follow the shape common
//! to systems on disaggregated memory: declare the data, execute (lock and read it), write, commit
//! (LOTUS §5.1).
//!
//! # What it is not
//! The traits are not the public interface of an engine: they create no tables and start no
//! cluster. [`crate::contract::deployment`] does that.
//!
//! # Cost
//! Dispatch is static and the traits do not allocate, so that measurements show the engine's own
//! cost. Futures stay on their coordinator's thread and need not be `Send`.

use std::fmt;

use lotus_fabric::ids::{TableId, TxnId};
use lotus_mvcc::PrimaryKey;
use serde::{Deserialize, Serialize};

/// The isolation level of a read-write transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Isolation {
    /// Equivalent to a serial order; data that is only read is read-locked.
    #[serde(rename = "sr")]
    Serializable,
    /// Reads come from one snapshot; of two concurrent writers of a key, one aborts.
    #[serde(rename = "si")]
    Snapshot,
}

impl Isolation {
    /// The opposite level: snapshot for serializable, and the reverse.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Serializable => Self::Snapshot,
            Self::Snapshot => Self::Serializable,
        }
    }

    /// The name that flags, reports and histories use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serializable => "sr",
            Self::Snapshot => "si",
        }
    }
}

/// Kind of a transaction, declared when it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxnKind {
    /// A read-write transaction at this level.
    ReadWrite(Isolation),
    /// A read-only transaction: reads from one snapshot, without locks.
    ReadOnly,
}

/// Handle of one record within one transaction, numbered in the order of adding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Item(pub u32);

/// Timestamps of a committed transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Receipt {
    /// The commit timestamp; `None` when nothing was written.
    pub commit_ts: Option<u64>,
    /// The snapshot of the reads; `None` if the reads were made under locks.
    pub snapshot: Option<u64>,
}

/// Reason why an attempt certainly had no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AbortReason {
    /// Another transaction holds or has changed the data. Retry.
    Conflict,
    /// A lock bucket is full. Back off and retry.
    LockTableFull,
    /// The data carries the write of a transaction that is in doubt. Retry.
    InDoubt,
    /// The snapshot's versions have been overwritten. Retry with a newer snapshot.
    SnapshotTooOld,
    /// A node did not answer in time, or the data is lost for now. Retry.
    Unavailable,
    /// The lock's owner has not answered for a while and may be dead. Drop the request.
    Suspected,
    /// The lock's shard has no owner, because its owner was lost. Drop the request.
    Unowned,
    /// The workload rolled back, as its rules ask, or a row to insert exists already. Do not retry.
    Logic,
    /// No memory is left for another row. Drop the request; most workloads cannot go on
    /// ([`Workload::FILLS_MEMORY`](crate::contract::workload::Workload::FILLS_MEMORY)).
    MemoryFull,
}

impl AbortReason {
    /// All reasons, in the order of [`AbortReason::index`].
    pub const ALL: [Self; 9] = [
        Self::Conflict,
        Self::LockTableFull,
        Self::InDoubt,
        Self::SnapshotTooOld,
        Self::Unavailable,
        Self::Suspected,
        Self::Unowned,
        Self::Logic,
        Self::MemoryFull,
    ];

    /// Position of the reason in [`AbortReason::ALL`].
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns whether a client drops the request, and issues a new request, instead of retrying.
    #[inline]
    pub const fn drops_request(self) -> bool {
        matches!(self, Self::Logic | Self::Suspected | Self::Unowned | Self::MemoryFull)
    }

    /// The name that reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::LockTableFull => "lock_table_full",
            Self::InDoubt => "in_doubt",
            Self::SnapshotTooOld => "snapshot_too_old",
            Self::Unavailable => "unavailable",
            Self::Suspected => "suspected",
            Self::Unowned => "unowned",
            Self::Logic => "logic",
            Self::MemoryFull => "memory_full",
        }
    }
}

impl fmt::Display for AbortReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error of a transaction's operation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TxnError {
    /// The attempt had no effect. The reason tells whether to retry, as a new attempt.
    #[error("the transaction aborted ({0})")]
    Aborted(AbortReason),
    /// The attempt may or may not have committed. Never retry it blindly.
    #[error("the outcome of the transaction is unknown")]
    Unknown,
    /// The compute node was expelled from the cluster. The attempt may or may not have committed;
    /// clients of the node move to another node.
    #[error("the compute node is lost")]
    Lost,
    /// The run has become worthless: a full table, a damaged value, misuse. Stop and show the
    /// message to the user.
    #[error("{0}")]
    Fatal(String),
}

/// Begins the transactions of one coroutine.
#[allow(async_fn_in_trait, reason = "transactions stay on their coordinator's thread")]
pub trait TxnEngine {
    /// A transaction in progress.
    type Txn: Finish;

    /// Begins an attempt. Every retry is a new attempt.
    ///
    /// # Errors
    /// As [`TxnError`] says.
    async fn begin(&mut self, kind: TxnKind) -> Result<Self::Txn, TxnError>;

    /// Announces that the next attempt is not a retry of the last attempt. The default does
    /// nothing.
    fn new_transaction(&mut self) {}

    /// Whether the next attempt, a retry, waits in queues for its locks, so that the client need
    /// not delay the retry. False by default.
    fn retries_in_order(&self) -> bool {
        false
    }
}

/// The rows of an attempt of a transaction, as the workload's code sees them. The caller of the
/// workload's code commits.
#[allow(async_fn_in_trait, reason = "transactions stay on their coordinator's thread")]
pub trait Txn {
    /// The unique id of the attempt.
    fn id(&self) -> TxnId;

    /// Declares a record that will be read.
    ///
    /// # Errors
    /// As [`TxnError`] says.
    fn add_ro(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError>;

    /// Declares a record that will be read and may be written.
    ///
    /// # Errors
    /// As [`TxnError`] says.
    fn add_rw(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError>;

    /// Declares a record that does not exist yet, with its value. Inserted records are not read.
    ///
    /// # Errors
    /// As [`TxnError`] says; if the record exists, the execution aborts with
    /// [`AbortReason::Logic`].
    fn insert(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        value: &[u8],
    ) -> Result<Item, TxnError>;

    /// Locks and reads the records added since the last call. May be called again after adding more
    /// records.
    ///
    /// # Errors
    /// As [`TxnError`] says; after an error only [`Finish::abort`] may be called.
    async fn execute(&mut self) -> Result<(), TxnError>;

    /// The value that an executed item had when it was read; `None` if the record did not exist.
    fn value(&self, item: Item) -> Option<&[u8]>;

    /// Writer of the version that was read; `None` for a loaded row or an absent one.
    fn writer(&self, item: Item) -> Option<TxnId>;

    /// Sets the value that the commit will write. The item must come from [`Txn::add_rw`].
    ///
    /// # Errors
    /// As [`TxnError`] says.
    fn put(&mut self, item: Item, value: &[u8]) -> Result<(), TxnError>;

    /// Marks the record for deletion at commit. The item must come from [`Txn::add_rw`] and exist.
    ///
    /// # Errors
    /// As [`TxnError`] says.
    fn delete(&mut self, item: Item) -> Result<(), TxnError>;

    /// Carries out an operation on an ordered table. Passes the rows that the operation reads to
    /// `visit`, and returns the number of rows that were read or changed. The default is for
    /// engines without ordered tables.
    ///
    /// # Errors
    /// As [`TxnError`] says; after an error only [`Finish::abort`] may be called.
    async fn ordered(
        &mut self,
        _table: TableId,
        _operation: Ordered<'_>,
        _visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize, TxnError> {
        Err(TxnError::Fatal("this engine has no ordered tables".to_owned()))
    }

    /// Visits the rows that the engine stores for ordered tables, as far as the attempt has read or
    /// changed them. The default visits no rows.
    fn for_each_stored(&self, _visit: &mut dyn FnMut(StoredRow)) {}
}

/// An operation on an ordered table. Bounds compare as bytes do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ordered<'k> {
    /// Announces that a key, or a range that begins with the key, will be used: a hint, which may
    /// save a round.
    Declare {
        /// The key.
        key: &'k [u8],
        /// Whether the attempt will change the row.
        for_update: bool,
    },
    /// Reads the row of a key, if the row exists.
    Get {
        /// The key.
        key: &'k [u8],
        /// Whether the attempt will change the row.
        for_update: bool,
    },
    /// Reads the rows of a range.
    Range(KeyRange<'k>),
    /// Sets the value of a key, whether the key has a row or not.
    Put {
        /// The key.
        key: &'k [u8],
        /// The value.
        value: &'k [u8],
    },
    /// Adds a row; if the row exists, the attempt aborts with [`AbortReason::Logic`].
    Insert {
        /// The key.
        key: &'k [u8],
        /// The value.
        value: &'k [u8],
    },
    /// Deletes the row of a key, if the row exists.
    Delete {
        /// The key.
        key: &'k [u8],
    },
}

/// Range of keys, and the way to read its rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyRange<'k> {
    /// The first key.
    pub from: &'k [u8],
    /// The first key behind the range; `None` if the range has no upper bound.
    pub until: Option<&'k [u8]>,
    /// Whether the rows come in descending order.
    pub reverse: bool,
    /// Largest number of rows.
    pub limit: usize,
    /// Whether the attempt will change the rows.
    pub for_update: bool,
}

/// How an attempt has used a row of remote memory that the engine stores for an ordered table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredRow {
    /// The table.
    pub table: TableId,
    /// The engine's own key.
    pub key: PrimaryKey,
    /// Writer of the version that was read, `None` for a loaded version; `None` if no version was
    /// read.
    pub read: Option<Option<TxnId>>,
    /// Whether the row is written.
    pub written: bool,
    /// Whether the row is deleted.
    pub deleted: bool,
}

/// Commit or abort of an attempt of a transaction.
#[allow(async_fn_in_trait, reason = "transactions stay on their coordinator's thread")]
pub trait Finish: Txn {
    /// Commits: makes either all writes visible or no write.
    ///
    /// # Errors
    /// As [`TxnError`] says.
    async fn commit(self) -> Result<Receipt, TxnError>;

    /// Aborts: no write of the attempt ever becomes visible.
    fn abort(self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_where_they_stand() {
        for (at, reason) in AbortReason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), at, "{reason}");
        }
    }
}
