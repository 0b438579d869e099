//! Whole transactions: running a body at a coordinator.

use std::panic::Location;

use lotus_fabric::ids::TableId;
use lotus_mvcc::PrimaryKey;
use lotus_router::Intent;

use crate::api::coordinator_id::CoordinatorId;
use crate::api::error::TxnError;
use crate::api::isolation::Isolation;
use crate::api::options::TxnOptions;
use crate::cluster::handle::Cluster;
use crate::node::threads::home::INSIDE;
use crate::node::threads::label::Label;
use crate::txn::submit::{Committed, Submitted, Terms, TxnKind, retry};
use crate::txn::transaction::Transaction;

impl Cluster {
    /// Runs a read-write transaction on some coordinator. If the body returns `Ok`, its changes are
    /// committed; if the body returns `Err`, no change ever becomes visible.
    ///
    /// The body adds rows, executes, reads, puts; the commit executes added rows that the body has
    /// not executed. The body runs on a coordinator's thread, which it must not block, and its
    /// future stays on this thread. Await the outcome or call [`Submitted::wait`]; dropping the
    /// outcome changes nothing.
    ///
    /// # Attempts
    /// The body is called anew for each attempt. An error of an execution or of the commit ends the
    /// attempt, and the transaction remembers the error: after a
    /// [retryable](TxnError::is_retryable) error a new attempt begins, whatever error the body
    /// returns. So the body may use an error type of its own, and may even overlook such an error
    /// and return `Ok`: the transaction is not committed, but retried. Retries go on for at least a
    /// second and at least 256 attempts.
    ///
    /// # Errors
    /// The possible outcomes:
    /// * the error of the body, if no engine's error has ended the attempt, or no retry can help;
    /// * the engine's error, converted, if the body returned `Ok` in spite of the error, or the
    ///   commit failed, or retries have not helped; only after `Unknown` and `Fenced` may the
    ///   transaction have committed;
    /// * `DeadlinePassed`, converted, if the commit had not begun within the time limit
    ///   ([`ClusterBuilder::transaction_timeout`](crate::ClusterBuilder::transaction_timeout));
    /// * `Misuse`, converted, if the caller is a transaction's own code, or a process forked from
    ///   the cluster's: nothing is begun, since the caller could not wait for the outcome;
    /// * `Panicked`, converted, if the body panicked.
    ///
    /// ```
    /// use lotus::{Abort, Cluster, Isolation, TableSpec, Transaction};
    ///
    /// #[derive(Debug, PartialEq)]
    /// struct TooPoor;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let cluster = Cluster::embedded().start()?;
    /// let spec = TableSpec::new("accounts").record_bytes(8).capacity(10);
    /// let accounts = cluster.create_table(spec)?;
    /// let withdraw = async move |txn: &mut Transaction| {
    ///     let item = txn.add_rw(accounts, 42)?;
    ///     txn.execute().await?;
    ///     let value = txn.value(item).and_then(|value| value.try_into().ok());
    ///     let balance = u64::from_le_bytes(value.unwrap_or_default());
    ///     let left = balance.checked_sub(10).ok_or(Abort::Application(TooPoor))?;
    ///     txn.upsert(item, &left.to_le_bytes())?;
    ///     Ok::<u64, Abort<TooPoor>>(left)
    /// };
    /// let withdrawn = cluster.run(Isolation::Serializable, withdraw).wait();
    /// assert_eq!(withdrawn.err(), Some(Abort::Application(TooPoor)));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn run<T, E, F>(&self, isolation: Isolation, body: F) -> Submitted<Committed<T>, E>
    where
        T: Send + 'static,
        E: From<TxnError> + Send + 'static,
        F: AsyncFn(&mut Transaction) -> Result<T, E> + Send + 'static,
    {
        let terms = self.terms(TxnKind::Write(isolation), Location::caller());
        self.run_as(self.any_coordinator(), terms, body)
    }

    /// Like [`Cluster::run`], on the compute node that owns the locks of a row, where locking costs
    /// no message (LOTUS §4.3).
    ///
    /// # Errors
    /// `UnknownTable`.
    #[track_caller]
    pub fn run_at<T, E, F>(
        &self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        isolation: Isolation,
        body: F,
    ) -> Result<Submitted<Committed<T>, E>, TxnError>
    where
        T: Send + 'static,
        E: From<TxnError> + Send + 'static,
        F: AsyncFn(&mut Transaction) -> Result<T, E> + Send + 'static,
    {
        let coordinator_id = self.coordinator_at(table, &key.into())?;
        let terms = self.terms(TxnKind::Write(isolation), Location::caller());
        Ok(self.run_as(coordinator_id, terms, body))
    }

    /// Like [`Cluster::run`], for a read-only transaction: one snapshot, no locks.
    #[track_caller]
    pub fn run_read_only<T, E, F>(&self, body: F) -> Submitted<Committed<T>, E>
    where
        T: Send + 'static,
        E: From<TxnError> + Send + 'static,
        F: AsyncFn(&mut Transaction) -> Result<T, E> + Send + 'static,
    {
        let terms = self.terms(TxnKind::Read, Location::caller());
        self.run_as(self.any_coordinator(), terms, body)
    }

    /// Like [`Cluster::run`], with a name, a time limit or a place of its own.
    ///
    /// # Errors
    /// `UnknownTable`, of [`TxnOptions::at`].
    #[track_caller]
    pub fn run_with<T, E, F>(
        &self,
        options: TxnOptions,
        body: F,
    ) -> Result<Submitted<Committed<T>, E>, TxnError>
    where
        T: Send + 'static,
        E: From<TxnError> + Send + 'static,
        F: AsyncFn(&mut Transaction) -> Result<T, E> + Send + 'static,
    {
        let TxnOptions { isolation, timeout, name, at } = options;
        let coordinator_id = match at {
            Some((table, key)) => self.coordinator_at(table, &key)?,
            None => self.any_coordinator(),
        };
        let kind = isolation.map_or(TxnKind::Read, TxnKind::Write);
        let mut terms = self.terms(kind, Location::caller());
        terms.limit = timeout.or(terms.limit);
        terms.label = name.map_or(terms.label, Label::Named);
        Ok(self.run_as(coordinator_id, terms, body))
    }

    /// Default terms of a transaction.
    fn terms(&self, kind: TxnKind, site: &'static Location<'static>) -> Terms {
        let limit = self.shared.config.transaction_timeout;
        Terms { kind, limit, label: Label::Site(site) }
    }

    /// Returns a coordinator on the node that owns the locks of a row.
    fn coordinator_at(&self, table: TableId, key: &PrimaryKey) -> Result<CoordinatorId, TxnError> {
        let def = self.shared.table(table).ok_or(TxnError::UnknownTable(table))?;
        let first = def.key(key).shard();
        let compute_node = self.route(Intent::ReadWrite { first }, self.random());
        Ok(self.serving(CoordinatorId { compute_node, ..self.any_coordinator() }))
    }

    fn run_as<T, E, F>(
        &self,
        coordinator_id: CoordinatorId,
        terms: Terms,
        body: F,
    ) -> Submitted<Committed<T>, E>
    where
        T: Send + 'static,
        E: From<TxnError> + Send + 'static,
        F: AsyncFn(&mut Transaction) -> Result<T, E> + Send + 'static,
    {
        // Refused, since the caller could not wait for the outcome.
        if self.name().coordinator_here().is_some() {
            return Submitted::refused(self.name(), TxnError::Misuse(INSIDE));
        }
        let label = terms.label.clone();
        self.assign(coordinator_id, label, move |session| retry(session, terms, body))
    }
}
