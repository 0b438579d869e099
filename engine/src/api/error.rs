//! Errors, and the caller's remedies: one enum per family of operations.

use std::sync::Arc;
use std::time::Duration;

use lotus_authority::{AuthorityError, IncarnationError};
use lotus_fabric::ids::{TableId, TxnId};
use lotus_fabric::transport::FabricError;
use lotus_locktable::LockTableError;
use lotus_mvcc::table::{MAX_TABLE_IDS, MAX_TABLES, SizeError, SpecError};
use lotus_recovery::log::GeometryError;
use lotus_recovery::membership::MembershipError;
use lotus_router::TopologyError;
use lotus_rows::RowError;
use lotus_rows::path::PathError;

use lotus_fabric::lane::BatchError;

use crate::api::row_name::RowName;

/// Error of an operation of a transaction.
///
/// An error of an execution or a commit, and [`AlreadyExists`](Self::AlreadyExists), end the
/// attempt, which then holds nothing (but see [`Unknown`](Self::Unknown)). Any other error changes
/// nothing.
///
/// An execution carries out everything added before, so its error may be about an earlier call's
/// row. Errors name their row ([`RowName`]).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TxnError {
    /// Another transaction has changed the row, or holds its lock (until the time limit passed, if
    /// the attempt could wait for the lock). Retry as a new attempt.
    #[error("another transaction is using {key} of {}", key.table(*table))]
    Conflict {
        /// The table.
        table: TableId,
        /// The row.
        key: RowName,
    },
    /// The row carries an undecided write. Retry later; recovery settles the write.
    #[error("{key} of {} carries an undecided write", key.table(*table))]
    InDoubt {
        /// The table.
        table: TableId,
        /// The row.
        key: RowName,
    },
    /// The version that the snapshot needs has been overwritten. Retry with a newer snapshot.
    #[error("the snapshot is too old to read {key} of {}", key.table(*table))]
    SnapshotTooOld {
        /// The table.
        table: TableId,
        /// The row.
        key: RowName,
    },
    /// The owner's lock table has no room. Back off, then retry.
    #[error("the lock table is full")]
    LockTableFull,
    /// The transaction's own locks fill a bucket of the lock table, so no retry can help. Lock
    /// fewer rows at once, or configure a larger lock table.
    #[error("the transaction locks too many rows for this lock table")]
    TooManyLocks,
    /// A node did not answer in time. The attempt had no effect; retry.
    #[error("a node did not answer in time")]
    Timeout,
    /// The transaction had not begun its commit when its time was up
    /// ([`ClusterBuilder::transaction_timeout`](crate::ClusterBuilder::transaction_timeout)): its
    /// body was dropped, and nothing was changed. Raise the limit, or find out why the body waits.
    #[error("{what} had not begun its commit within {limit:?}, so it was dropped")]
    DeadlinePassed {
        /// Name of the transaction, or the line of the program that submitted it.
        what: Arc<str>,
        /// The time limit.
        limit: Duration,
    },
    /// The compute node that owned the row's lock was lost, and the lock has no new owner yet. The
    /// attempt had no effect; back off, then retry.
    #[error("no node grants the lock of {key} of {} at the moment", key.table(*table))]
    Unavailable {
        /// The table.
        table: TableId,
        /// The row.
        key: RowName,
    },
    /// The compute node that owns the row's lock has not answered for a while, and may be dead. The
    /// attempt had no effect; do other work, then retry.
    #[error("the owner of the lock of {key} of {} does not answer", key.table(*table))]
    Suspected {
        /// The table.
        table: TableId,
        /// The row.
        key: RowName,
    },
    /// The attempt needed rows whose last copies are on a memory node that does not answer half of
    /// the compute nodes. The attempt had no effect, and retries will fail until the memory node
    /// comes back.
    #[error("the last copies of some rows are lost with memory node {memory_node}")]
    DataLost {
        /// The memory node, from zero.
        memory_node: usize,
    },
    /// The row does not exist, so it cannot be updated or deleted.
    #[error("{} has no {key}", key.table(*table))]
    NotFound {
        /// The table.
        table: TableId,
        /// The row.
        key: RowName,
    },
    /// The row exists, so it cannot be inserted. Ends the attempt, in hash and ordered tables
    /// alike, and no matter which call finds the row.
    #[error("{} already has {key}", key.table(*table))]
    AlreadyExists {
        /// The table.
        table: TableId,
        /// The row.
        key: RowName,
    },
    /// A key or value exceeds the table's limit. Nothing was changed; shorten the key or value.
    #[error(transparent)]
    TooLarge(#[from] SizeError),
    /// A row of a secondary access path cannot be read or changed. Nothing was changed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A key or value does not fit its type or its table (`lotus_rows`). Nothing was changed.
    #[error(transparent)]
    Row(#[from] RowError),
    /// The transaction writes more rows than a log slot can name. Split the transaction.
    #[error("a transaction writes at most {limit} rows")]
    TooManyWrites {
        /// The limit.
        limit: usize,
    },
    /// The memory nodes have no room for another row of this table, or for that many first updates
    /// of rows at once. Nothing was changed. Deletes never fail with this error, and make room,
    /// once no snapshot needs the rows any more.
    #[error("table {} is full: the memory limit is reached", table.0)]
    TableFull {
        /// The table.
        table: TableId,
    },
    /// Another row of this table has the same 64-bit name, and the same 31 bits that distinguish
    /// rows of a name; or more than 200 rows have this name. Does not happen by chance
    /// (`lotus_mvcc::naming`). Nothing was changed; choose a different primary key.
    #[error("the hash of {key} of {} belongs to other rows", key.table(*table))]
    KeyCollision {
        /// The table.
        table: TableId,
        /// The requested row.
        key: RowName,
    },
    /// The rows of an ordered table are not a tree, so another program, or a bug, wrote to the
    /// table. Do not go on.
    #[error("ordered table {} is damaged", table.0)]
    Damaged {
        /// The table.
        table: TableId,
    },
    /// The table does not exist.
    #[error("there is no table {}", .0.0)]
    UnknownTable(TableId),
    /// Misuse, without effect: the sentence says how to proceed instead.
    #[error("{0}")]
    Misuse(&'static str),
    /// The transaction may or may not have committed, and its rows stay locked until the outcome is
    /// settled. Never retry blindly.
    #[error("the outcome of transaction {0:?} is unknown")]
    Unknown(TxnId),
    /// This compute node has been expelled or has failed. Use a different node; the outcome of
    /// transactions in flight is unknown.
    #[error("this compute node no longer takes part in the cluster")]
    Fenced,
    /// The transaction's own code panicked. The attempt was aborted, unless its commit had begun.
    #[error("the transaction's code panicked")]
    Panicked,
}

impl TxnError {
    /// Whether the attempt certainly had no effect and a new attempt may succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Conflict { .. }
                | Self::InDoubt { .. }
                | Self::SnapshotTooOld { .. }
                | Self::LockTableFull
                | Self::Timeout
                | Self::Unavailable { .. }
                | Self::Suspected { .. }
        )
    }

    /// Table and name of the row, for errors about a row.
    pub fn row(&self) -> Option<(TableId, &RowName)> {
        match self {
            Self::Conflict { table, key }
            | Self::InDoubt { table, key }
            | Self::SnapshotTooOld { table, key }
            | Self::Unavailable { table, key }
            | Self::Suspected { table, key }
            | Self::NotFound { table, key }
            | Self::AlreadyExists { table, key }
            | Self::KeyCollision { table, key } => Some((*table, key)),
            _ => None,
        }
    }

    /// Like [`Self::row`], but the name is mutable, to be completed.
    pub(crate) fn row_mut(&mut self) -> Option<&mut RowName> {
        match self {
            Self::Conflict { key, .. }
            | Self::InDoubt { key, .. }
            | Self::SnapshotTooOld { key, .. }
            | Self::Unavailable { key, .. }
            | Self::Suspected { key, .. }
            | Self::NotFound { key, .. }
            | Self::AlreadyExists { key, .. }
            | Self::KeyCollision { key, .. } => Some(key),
            _ => None,
        }
    }
}

/// Error of starting a cluster, or of creating or filling a table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The nodes or replicas are inconsistent; correct the configuration.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A setting is out of range; the sentence names the setting and its range.
    #[error("{0}")]
    Setting(String),
    /// The lock table's size is out of range.
    #[error(transparent)]
    LockTable(#[from] LockTableError),
    /// The logs cannot be laid out.
    #[error(transparent)]
    Log(#[from] GeometryError),
    /// No incarnation was available for a compute node.
    #[error(transparent)]
    Incarnation(#[from] IncarnationError),
    /// The fabric reported an error.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The table's specification is not valid.
    #[error("table \"{table}\": {error}")]
    Spec {
        /// Name of the table.
        table: String,
        /// Its defect.
        error: SpecError,
    },
    /// A table of this name exists already.
    #[error("there is a table named \"{0}\" already")]
    TableExists(String),
    /// The table of this name may or may not have been created: the authority has not answered
    /// since the request to enter the table. Ask again, or open the table.
    #[error("the authority does not answer: whether table \"{0}\" was created is not known")]
    MayExist(String),
    /// The cluster has, or has had, as many tables as the limit allows.
    #[error("a cluster has at most {MAX_TABLES} tables at a time, and {MAX_TABLE_IDS} in its life")]
    TooManyTables,
    /// The table does not exist.
    #[error("there is no table {}", .0.0)]
    UnknownTable(TableId),
    /// The memory nodes have no room; raise the memory limit or lower the capacity.
    #[error("table {}: {needed} more bytes do not fit under the memory limit", table.0)]
    OutOfMemory {
        /// The table.
        table: TableId,
        /// Bytes asked for at once.
        needed: u64,
    },
    /// A row to be loaded is not valid.
    #[error("row {row}: {reason}")]
    Row {
        /// The row's number in the source.
        row: u64,
        /// The row's defect, as a sentence.
        reason: String,
    },
    /// The table of this name is dropped, but its memory has not been given back in time: a node
    /// does not answer, a memory node is being filled, or no compute node takes part. Nothing is
    /// left to do: the memory is given back later.
    #[error("table \"{0}\" is dropped, and its memory is not given back yet")]
    StillThere(String),
    /// Memory is full, but may have room once the memory of a dropped table has been given back;
    /// try again.
    #[error("memory is full while that of a dropped table is being given back; try again")]
    Clearing,
    /// No table has this name.
    #[error("there is no table named \"{0}\"")]
    NoSuchTable(String),
    /// The authority did not answer, or another process was faster; ask again.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The system has no randomness for the secret of the names of rows; see the system's error.
    #[error("the system has no randomness to give: {0}")]
    Randomness(std::io::Error),
    /// The value stored at the authority makes no sense; another program writes to the authority.
    #[error("what is stored at the authority is damaged")]
    Damaged,
    /// The compute node has been started in this cluster before. Either the node still takes part;
    /// or the other nodes have not settled its transactions in time; or no node can settle them:
    /// there is no lease, or this was the last compute node. Start the node again later.
    #[error(
        "compute node {node} has been started in this cluster before: it takes part still, or \
         what it has left is not settled yet, or no compute node is left to settle it"
    )]
    JoinedBefore {
        /// The compute node's index.
        node: usize,
    },
    /// The process of compute node 0 has not founded the cluster in time; start that process.
    #[error("compute node 0 has not made the cluster within {waited:?}")]
    NotFounded {
        /// Time for which this process has waited.
        waited: Duration,
    },
    /// The [`while_waiting`](crate::ClusterBuilder::while_waiting) callback ended a wait of the
    /// start. Start again.
    #[error("the start was broken off")]
    Interrupted,
    /// The process of compute node 0 ended before all data was loaded, or could not load the data;
    /// the sentence says why. The data will never be complete: end all nodes, memory nodes too, and
    /// start the cluster again.
    #[error("the making of this cluster was cut short: {why}; it will never serve")]
    CutShort {
        /// The reason, without a full stop.
        why: String,
    },
    /// The cluster was founded with other settings; start all processes alike.
    #[error("the cluster was made with \"{theirs}\", and this process has \"{ours}\"")]
    OtherSettings {
        /// Setting of the cluster.
        theirs: String,
        /// Setting of this process.
        ours: String,
    },
    /// The operating system could not start a thread.
    #[error("could not start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The path between this node and a member is broken; mend the network between the two.
    #[error("compute nodes {node} and {member} do not reach each other, so {node} is not taken in")]
    CutOff {
        /// The compute node that was to take part.
        node: usize,
        /// The compute node that takes part.
        member: usize,
    },
    /// The memory nodes could not be reached.
    #[error("the memory nodes could not be reached: {0}")]
    Unreachable(String),
    /// Transactions or jobs did not end by themselves when the cluster was stopped, within
    /// [`ClusterBuilder::stop_timeout`](crate::ClusterBuilder::stop_timeout). The cluster has
    /// stopped nevertheless. A dropped transaction has changed nothing, unless its commit had
    /// begun: then the commit was completed. Code that blocks a thread goes on blocking the thread.
    #[error("not all had ended within {within:?}: {}", .what.join("; "))]
    Unended {
        /// Names of the transactions and jobs, or the lines of the program that submitted them.
        what: Vec<String>,
        /// The time limit.
        within: Duration,
    },
    /// The call is not allowed at this place; the sentence says how to proceed instead. Nothing was
    /// changed.
    #[error("{0}")]
    Misuse(&'static str),
    /// A coordinator has stopped after a panic; the cluster cannot be used any more.
    #[error("a coordinator of compute node {node} has failed")]
    CoordinatorFailed {
        /// The compute node's index.
        node: usize,
    },
}

impl From<MembershipError> for ClusterError {
    fn from(error: MembershipError) -> Self {
        match error {
            MembershipError::Authority(error) => error.into(),
            _ => Self::Damaged,
        }
    }
}

/// Error for allocations while a memory node, or a table, is being removed.
pub(crate) fn leaving() -> ClusterError {
    let sentence = "a memory node is being lost or filled, or a table dropped; try again";
    ClusterError::Unreachable(sentence.to_owned())
}

pub(crate) fn unreachable_nodes(error: BatchError) -> ClusterError {
    ClusterError::Unreachable(error.to_string())
}
