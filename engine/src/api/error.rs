//! Errors, and what the caller may do about them: one enum per family of operations.

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
/// An error of an execution or a commit ends the attempt, which then holds nothing (but see
/// [`Unknown`](Self::Unknown)), and so does [`AlreadyExists`](Self::AlreadyExists). Any other error
/// changes nothing.
///
/// An execution carries out all that was added before, so its error may be about another row than
/// the call that caused it. Errors name the row that they are about ([`RowName`]).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TxnError {
    /// Another transaction has changed the row, or holds it: has held it until the time limit
    /// passed, if the attempt could wait for it. Retry as a new attempt.
    #[error("another transaction is using {key} of {}", key.table(*table))]
    Conflict {
        /// The table.
        table: TableId,
        /// The row.
        key: RowName,
    },
    /// The row carries an undecided write. Retry later; recovery settles it.
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
    /// body was dropped, and nothing was changed. Give it more time, or find out for what it waits.
    #[error("{what} had not begun its commit within {limit:?}, so it was dropped")]
    DeadlinePassed {
        /// Its name, or the line of the program that has submitted it.
        what: Arc<str>,
        /// The time that it had.
        limit: Duration,
    },
    /// The compute node that owned the row's lock was lost, and no other owns it yet. The attempt
    /// had no effect; back off, then retry.
    #[error("no node grants the lock of {key} of {} at the moment", key.table(*table))]
    Unavailable {
        /// The table.
        table: TableId,
        /// The row.
        key: RowName,
    },
    /// The compute node that owns the row's lock has not answered for a while, and may be dead. The
    /// attempt had no effect; do something else, then retry.
    #[error("the owner of the lock of {key} of {} does not answer", key.table(*table))]
    Suspected {
        /// The table.
        table: TableId,
        /// The row.
        key: RowName,
    },
    /// A memory node with the last copies of rows that the attempt needed does not answer half of
    /// the compute nodes. The attempt had no effect, and retries will fail until the node comes
    /// back.
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
    /// The row exists, so it cannot be inserted. In a table of either kind, and whichever call
    /// finds it, this ends the attempt.
    #[error("{} already has {key}", key.table(*table))]
    AlreadyExists {
        /// The table.
        table: TableId,
        /// The row.
        key: RowName,
    },
    /// A key or value exceeds the table's limit. Nothing was changed; shorten it.
    #[error(transparent)]
    TooLarge(#[from] SizeError),
    /// A row of a secondary access path cannot be read or changed. Nothing was changed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A key or value does not fit its type or its table (`lotus_rows`). Nothing was changed.
    #[error(transparent)]
    Row(#[from] RowError),
    /// The transaction writes more rows than a log slot can name. Split it.
    #[error("a transaction writes at most {limit} rows")]
    TooManyWrites {
        /// The limit.
        limit: usize,
    },
    /// The memory nodes have no room for another row of this table, or for so many first updates of
    /// rows at once. Nothing was changed. Deletes never fail so, and make room: not at once, but
    /// when no snapshot needs the rows any more.
    #[error("table {} is full: the memory limit is reached", table.0)]
    TableFull {
        /// The table.
        table: TableId,
    },
    /// Another row of this table has the same 64-bit name, and the same 31 bits that tell rows of a
    /// name apart; or more than 200 rows have this name. It does not happen by chance
    /// (`lotus_mvcc::naming`). Nothing was changed; choose another primary key.
    #[error("the hash of {key} of {} belongs to other rows", key.table(*table))]
    KeyCollision {
        /// The table.
        table: TableId,
        /// The requested row.
        key: RowName,
    },
    /// The rows of an ordered table are no tree. Another program, or a bug, wrote them: do not go
    /// on.
    #[error("ordered table {} is damaged", table.0)]
    Damaged {
        /// The table.
        table: TableId,
    },
    /// There is no such table.
    #[error("there is no table {}", .0.0)]
    UnknownTable(TableId),
    /// Misuse, without effect: the sentence says what to do instead.
    #[error("{0}")]
    Misuse(&'static str),
    /// The transaction may or may not have committed, and its rows stay locked until that is
    /// settled. Never retry blindly.
    #[error("the outcome of transaction {0:?} is unknown")]
    Unknown(TxnId),
    /// This compute node has been expelled or has failed. Use another one; the outcome of what was
    /// in flight is unknown.
    #[error("this compute node no longer takes part in the cluster")]
    Fenced,
    /// The transaction's own code panicked. The attempt was aborted, unless its commit had begun.
    #[error("the transaction's code panicked")]
    Panicked,
}

impl TxnError {
    /// Whether the attempt certainly had no effect and a new one may succeed.
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

    /// The row that the error is about.
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

    /// The same, to name the row.
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
    /// A setting is out of range; the sentence says which, and what is allowed.
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
    /// A table of that name exists already.
    #[error("there is a table named \"{0}\" already")]
    TableExists(String),
    /// It is not known whether the table of this name was created: the authority has not answered
    /// since it was asked to enter it. Ask again, or open the table.
    #[error("the authority does not answer: whether table \"{0}\" was created is not known")]
    MayExist(String),
    /// The cluster has as many tables as one can have, or has had as many.
    #[error("a cluster has at most {MAX_TABLES} tables at a time, and {MAX_TABLE_IDS} in its life")]
    TooManyTables,
    /// There is no such table.
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
        /// The sentence that says what is wrong with it.
        reason: String,
    },
    /// The table of this name is dropped, but its memory has not been given back in time: a node
    /// does not answer, a memory node is being filled, or no compute node takes part. Nothing is
    /// left to do: the memory is given back later.
    #[error("table \"{0}\" is dropped, and its memory is not given back yet")]
    StillThere(String),
    /// There may be room once the memory of a dropped table has been given back; try again.
    #[error("memory is full while that of a dropped table is being given back; try again")]
    Clearing,
    /// There is no table of that name.
    #[error("there is no table named \"{0}\"")]
    NoSuchTable(String),
    /// The authority did not answer, or another process was faster; ask again.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The system has no randomness for the secret of the names of rows; see what it says.
    #[error("the system has no randomness to give: {0}")]
    Randomness(std::io::Error),
    /// The value stored at the authority makes no sense; another program writes to it.
    #[error("what is stored at the authority is damaged")]
    Damaged,
    /// The compute node has been started in this cluster before. Either it still takes part; or the
    /// others have not settled its transactions in time; or no node can: there is no lease, or it
    /// was the last one. Start it again later.
    #[error(
        "compute node {node} has been started in this cluster before: it takes part still, or \
         what it has left is not settled yet, or no compute node is left to settle it"
    )]
    JoinedBefore {
        /// The compute node's index.
        node: usize,
    },
    /// The process of compute node 0 has not founded the cluster in time; start it.
    #[error("compute node 0 has not made the cluster within {waited:?}")]
    NotFounded {
        /// Time that this process has waited.
        waited: Duration,
    },
    /// The [`while_waiting`](crate::ClusterBuilder::while_waiting) callback ended a wait of the
    /// start. Start again.
    #[error("the start was broken off")]
    Interrupted,
    /// The process of compute node 0 ended before all data was loaded, or could not load it; the
    /// sentence says why. The data will never be complete: end all nodes, memory nodes too, and
    /// start them again.
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
    /// This node and a member do not reach each other; mend the network between them.
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
    /// Transactions or jobs had not ended by themselves when the cluster was stopped, within
    /// [`ClusterBuilder::stop_timeout`](crate::ClusterBuilder::stop_timeout). The cluster has
    /// stopped all the same. What was dropped has changed nothing, unless its commit had begun:
    /// that was completed. What blocks a thread goes on blocking it.
    #[error("not all had ended within {within:?}: {}", .what.join("; "))]
    Unended {
        /// Each by its name, or by the line of the program that has submitted it.
        what: Vec<String>,
        /// The time that they had.
        within: Duration,
    },
    /// The call cannot be made here; the sentence says what to do instead. Nothing was changed.
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
