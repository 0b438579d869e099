//! Options of a single transaction.

use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::ids::TableId;
use lotus_mvcc::PrimaryKey;

use crate::api::isolation::Isolation;

/// Options of a transaction run by [`Cluster::run_with`](crate::Cluster::run_with).
///
/// ```
/// use std::time::Duration;
/// use lotus::{Isolation, TxnOptions};
/// let audit = TxnOptions::new(Isolation::Snapshot).name("audit").timeout(Duration::from_secs(5));
/// # let _ = audit;
/// ```
#[derive(Clone, Debug)]
pub struct TxnOptions {
    /// `None` for a read-only transaction.
    pub(crate) isolation: Option<Isolation>,
    /// Time limit; `None` for the cluster's.
    pub(crate) timeout: Option<Duration>,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) at: Option<(TableId, PrimaryKey)>,
}

impl TxnOptions {
    /// A read-write transaction.
    pub fn new(isolation: Isolation) -> Self {
        Self { isolation: Some(isolation), timeout: None, name: None, at: None }
    }

    /// A read-only transaction: one snapshot, no locks.
    pub fn read_only() -> Self {
        Self { isolation: None, timeout: None, name: None, at: None }
    }

    /// Time within which the transaction must begin its commit, all attempts together, in place of
    /// [`ClusterBuilder::transaction_timeout`](crate::ClusterBuilder::transaction_timeout).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Name of the transaction in errors and in the log; by default the line of the program that
    /// submits the transaction.
    #[must_use]
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Runs the transaction on the compute node that owns the locks of a row, where locking costs
    /// no message.
    #[must_use]
    pub fn at(mut self, table: TableId, key: impl Into<PrimaryKey>) -> Self {
        self.at = Some((table, key.into()));
        self
    }
}
