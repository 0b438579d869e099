//! Whole transactions: a body, and where it runs.

use lotus_fabric::ids::TableId;
use lotus_fabric::machines::Machines;
use lotus_mvcc::PrimaryKey;
use lotus_router::Intent;

use crate::api::error::TxnError;
use crate::api::isolation::Isolation;
use crate::api::seat::Seat;
use crate::cluster::handle::Cluster;
use crate::txn::submit::{Committed, Submitted, TxnKind, retry};
use crate::txn::transaction::Transaction;

impl<M: Machines> Cluster<M> {
    /// Runs a read-write transaction on some coordinator. If the body returns `Ok`, its changes are
    /// committed; if it returns `Err`, none of them ever becomes visible.
    ///
    /// The body adds rows, executes, reads, puts; rows that it has not executed are executed by the
    /// commit. It runs on a coordinator's thread, which it must not block, and its future stays
    /// there. Await the outcome or call [`Submitted::wait`]; dropping it changes nothing.
    ///
    /// # Attempts
    /// The body is called anew for each attempt. An error of an execution or of the commit ends the
    /// attempt, and the transaction remembers it: if it is [retryable](TxnError::is_retryable), a
    /// new attempt begins, whatever error the body has made of it. So the body may use an error
    /// type of its own, and nothing is lost if it overlooks such an error and returns `Ok`: it is
    /// not committed, but tried again. Attempts go on for a second at least, and for 256 of them.
    ///
    /// # Errors
    /// The outcome is one of these:
    /// * the error of the body, if no engine's error has ended the attempt, or no retry can help;
    /// * the engine's error, converted, if the body returned `Ok` in spite of it, or it came from
    ///   the commit, or retries have not helped; only after `Unknown` and `Fenced` may the
    ///   transaction have committed;
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
    pub fn run<T, E, F>(&self, isolation: Isolation, body: F) -> Submitted<Committed<T>, E>
    where
        T: Send + 'static,
        E: From<TxnError> + Send + 'static,
        F: AsyncFn(&mut Transaction) -> Result<T, E> + Send + 'static,
    {
        self.run_as(self.any_seat(), TxnKind::Write(isolation), body)
    }

    /// Like [`Cluster::run`], on the compute node that owns the locks of a row, where they cost no
    /// message (LOTUS §4.3).
    ///
    /// # Errors
    /// `UnknownTable`.
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
        let def = self.shared.table(table).ok_or(TxnError::UnknownTable(table))?;
        let first = def.key(&key.into()).shard();
        let compute_node = self.route(Intent::ReadWrite { first }, self.random());
        let seat = self.serving(Seat { compute_node, ..self.any_seat() });
        Ok(self.run_as(seat, TxnKind::Write(isolation), body))
    }

    /// Like [`Cluster::run`], for a read-only transaction: one snapshot, no locks.
    pub fn run_read_only<T, E, F>(&self, body: F) -> Submitted<Committed<T>, E>
    where
        T: Send + 'static,
        E: From<TxnError> + Send + 'static,
        F: AsyncFn(&mut Transaction) -> Result<T, E> + Send + 'static,
    {
        self.run_as(self.any_seat(), TxnKind::Read, body)
    }

    fn run_as<T, E, F>(&self, seat: Seat, kind: TxnKind, body: F) -> Submitted<Committed<T>, E>
    where
        T: Send + 'static,
        E: From<TxnError> + Send + 'static,
        F: AsyncFn(&mut Transaction) -> Result<T, E> + Send + 'static,
    {
        self.assign(seat, move |session| retry(session, kind, body))
    }
}
