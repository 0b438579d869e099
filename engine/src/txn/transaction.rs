//! A transaction: declare rows, execute, read and write, commit (LOTUS §7.3).
//!
//! A [`Transaction`] is a handle on buffers that its coroutine slot lends it; once the buffers have
//! grown to fit, a transaction allocates nothing. `execute` and `commit` hand the buffers to the
//! slot's driver, which locks and reads the rows added since the last call (`crate::txn::read`) or
//! carries out the commit (`crate::txn::commit`). Dropping a transaction aborts it: local locks are
//! released at once, remote locks by a message that is repeated until acknowledged.
//!
//! The slot keeps the error of a failed execution, by the attempt's id. The error takes no room in
//! the handle, and no time if nothing fails.

use lotus_sabotage::any_broken;
use std::rc::Rc;

use lotus_fabric::ids::{TableId, TxnId};
use lotus_locktable::{LockKey, LockRequest, LockService, TakenLock};
use lotus_mvcc::{PrimaryKey, RowName, TableDef, Timestamp};
use lotus_points::point;

use crate::api::error::TxnError;
use crate::node::coordinator;
use crate::txn::body::{Access, Body, Change, Item, Mode, Receipt, Row};
use crate::txn::piece::Piece;
use crate::txn::slot::Slot;

/// Handle of one attempt at a transaction: rows are added, executed, read and written.
///
/// A body of [`Cluster::run`](crate::Cluster::run) borrows the handle, and commits by returning
/// `Ok`. A job that has begun a transaction by hand ([`Session::begin`](crate::Session::begin))
/// calls [`Transaction::commit`]; dropping the handle without a commit aborts the transaction.
pub struct Transaction {
    pub(crate) slot: Rc<Slot>,
    /// `None` once the attempt has ended, and during an execution.
    pub(crate) body: Option<Box<Body>>,
    /// Whether the slot's driver has the body, for an execution.
    lent: bool,
    id: TxnId,
    mode: Mode,
}

impl Transaction {
    pub(crate) async fn begin(slot: &Rc<Slot>, mode: Mode) -> Result<Self, TxnError> {
        let mut begun = Self::open(slot, mode).await?;
        let coordinator = &slot.coordinator;
        let from_snapshot = match mode {
            Mode::Serializable => {
                coordinator.shared.config.read_rule == crate::api::config::ReadRule::Snapshot
            }
            Mode::Snapshot | Mode::ReadOnly => true,
        };
        if from_snapshot {
            let issued = coordinator.timestamps.issued();
            coordinator.snapshots.borrow_mut().register(slot.index, issued);
            let snapshot = coordinator.timestamps.snapshot().await?;
            debug_assert!(
                snapshot >= issued || any_broken(),
                "I2: a snapshot is at least what was issued before it"
            );
            coordinator.snapshots.borrow_mut().activate(slot.index, snapshot);
            begun.body_mut()?.snapshot = Some(snapshot);
        }
        Ok(begun)
    }

    /// Begins a read-only transaction at a snapshot of any age that the caller keeps alive.
    pub(crate) async fn begin_at(slot: &Rc<Slot>, snapshot: Timestamp) -> Result<Self, TxnError> {
        let mut begun = Self::open(slot, Mode::ReadOnly).await?;
        let body = begun.body_mut()?;
        (body.snapshot, body.goes_far_back) = (Some(snapshot), true);
        Ok(begun)
    }

    async fn open(slot: &Rc<Slot>, mode: Mode) -> Result<Self, TxnError> {
        let coordinator = &slot.coordinator;
        slot.idle().await;
        coordinator.node.check_standing()?;
        let epoch = coordinator.configuration.enter_epoch()?;
        let misuse = TxnError::Misuse("a slot runs one transaction at a time: end the other first");
        let id = slot.next_attempt()?;
        point!(coordinator.node.id.0, Begin);
        let mut body = slot.take_body().ok_or(misuse)?;
        debug_assert!(body.rows.is_empty(), "I16: the buffers of the last transaction are empty");
        body.held.begin(id);
        if body.epoch != epoch {
            // Tables may have been dropped.
            (body.epoch, body.tables) = (epoch, None);
        }
        // From here on the transaction's `drop` returns the buffers.
        Ok(Self { slot: Rc::clone(slot), body: Some(body), lent: false, id, mode })
    }

    /// Returns the id of this attempt; no two attempts share one.
    pub fn id(&self) -> TxnId {
        self.id
    }

    /// Returns the error of an execution that has ended the attempt, or `None`. After such an error
    /// the transaction is unusable, and none of its changes is ever committed. The slot remembers
    /// the error until another attempt of the slot fails.
    #[inline]
    pub fn ended_by(&self) -> Option<TxnError> {
        let goes_on = self.body.is_some() || self.lent;
        if goes_on { None } else { self.slot.ended_by(self.id) }
    }

    /// Adds a row to be read. Adding a row again returns the same item.
    ///
    /// # Errors
    /// `UnknownTable`, `TooLarge`, or `Misuse` once the attempt is over.
    #[inline]
    pub fn add_ro(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        self.add_row(table, key.into(), Access::Read, 0)
    }

    /// Adds a row to be read and perhaps written.
    ///
    /// # Errors
    /// As [`Transaction::add_ro`]; `Misuse` in a read-only transaction.
    #[inline]
    pub fn add_rw(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        self.add_row(table, key.into(), Access::Write, 0)
    }

    /// Adds a row that does not exist yet, with its value. If the row exists, and this transaction
    /// has not deleted it, the next execution ends the attempt with `AlreadyExists`: by
    /// [`Self::execute`], by a commit, or by an operation on an ordered table.
    ///
    /// # Errors
    /// As [`Transaction::add_rw`]; `TooLarge` if the value is too large.
    pub fn insert(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        value: &[u8],
    ) -> Result<Item, TxnError> {
        let item = self.add_row(table, key.into(), Access::Insert, value.len())?;
        self.body_mut()?.set(item, value)?;
        Ok(item)
    }

    /// Adds a row of the application, in a table that is not ordered.
    #[inline]
    fn add_row(
        &mut self,
        table: TableId,
        key: PrimaryKey,
        access: Access,
        value_bytes: usize,
    ) -> Result<Item, TxnError> {
        self.add_if(|def| !def.is_ordered(), (table, key), access, value_bytes)
    }

    /// Adds a row with a value of `value_bytes` bytes, unless the value does not fit the table.
    #[inline]
    pub(crate) fn add(
        &mut self,
        table: TableId,
        primary_key: PrimaryKey,
        access: Access,
        value_bytes: usize,
    ) -> Result<Item, TxnError> {
        self.add_if(|_| true, (table, primary_key), access, value_bytes)
    }

    /// As [`Self::add`], if `allowed` accepts the table.
    #[inline]
    fn add_if(
        &mut self,
        allowed: impl FnOnce(&TableDef) -> bool,
        (table, primary_key): (TableId, PrimaryKey),
        access: Access,
        value_bytes: usize,
    ) -> Result<Item, TxnError> {
        if self.mode == Mode::ReadOnly && access != Access::Read {
            return Err(TxnError::Misuse("a read-only transaction cannot write"));
        }
        let Some(body) = &mut self.body else { return Err(self.missing()) };
        let coordinator = &self.slot.coordinator;
        let known = body.tables.as_ref().is_some_and(|all| usize::from(table.0) < all.len());
        if !known {
            body.tables = Some(coordinator.tables(table));
        }
        let tables = body.tables.as_ref().expect("just set");
        let node_table = coordinator::known(tables, table)?;
        if !allowed(&node_table.def) {
            return Err(ORDERED);
        }
        node_table.def.check_key(&primary_key)?;
        node_table.def.check_value(value_bytes)?;
        let RowName { key, mark } = node_table.def.name(&primary_key);
        let mut twin = false;
        let same = |row: &Row| {
            let same = row.primary_key == primary_key;
            twin |= !same;
            same
        };
        if let Some(index) = body.index.find(&body.rows, table, key, same) {
            let row = &mut body.rows[index];
            // A row that this transaction deletes exists: inserting the row again is a write.
            if access > row.access && row.change != Change::Delete {
                // Upgrade the lock and read the row again at the next execution.
                (row.access, row.executed) = (access, false);
            }
            return Ok(Item::from_index(index as u32));
        }
        body.has_twins |= twin;
        node_table.addresses.prefetch(table, key);
        if node_table.may_be_cached() {
            coordinator.node.versions.prefetch(table, key);
        }
        coordinator.locks.prefetch(&LockKey::row(table, key));
        body.rows.push(Row {
            table,
            key,
            mark,
            group: coordinator.group_of(key.shard()),
            primary_key,
            access,
            executed: false,
            value: None,
            writer: None,
            target: None,
            change: Change::None,
            reserved: None,
        });
        body.index.added(&body.rows);
        Ok(Item::from_index(body.rows.len() as u32 - 1))
    }

    /// Locks and reads the rows added since the last call. Any error ends the attempt, and is
    /// remembered ([`Transaction::ended_by`]).
    ///
    /// If this future is dropped, the execution goes on; call `execute` again to wait for it.
    ///
    /// # Errors
    /// Retryable ones (see [`TxnError::is_retryable`]), `AlreadyExists`, `KeyCollision`,
    /// `TableFull`, or `Fenced`. Errors about a row name the row ([`TxnError::row`]).
    pub async fn execute(&mut self) -> Result<(), TxnError> {
        if let Some(body) = self.body.take() {
            self.lent = true;
            self.slot.request_execution(self.mode, body);
        } else if !self.lent {
            return Err(OVER);
        }
        // Otherwise an execution whose future was dropped is still under way: wait for its end.
        let executed = self.slot.executed().await;
        self.lent = false;
        self.body = Some(executed?);
        Ok(())
    }

    /// Returns the value of a row: the value put by this transaction, or else the value read.
    /// `None` if the row does not exist, was deleted, or has not been executed yet.
    #[inline]
    pub fn value(&self, item: Item) -> Option<&[u8]> {
        let body = self.body.as_ref()?;
        let row = body.rows.get(item.index() as usize)?;
        let range = match &row.change {
            Change::None => row.value.as_ref()?,
            Change::Put(range) => range,
            Change::Delete | Change::Purge | Change::Trim => return None,
        };
        body.values.get(range.clone())
    }

    /// Returns the number of rows that the transaction has in memory: the added rows, and the nodes
    /// of ordered tables that it has read or changed. 0 once the transaction is over.
    pub fn row_count(&self) -> usize {
        self.body.as_ref().map_or(0, |body| body.rows.len())
    }

    /// Returns the writer of the version that was read; `None` for a loaded or absent row.
    #[inline]
    pub fn writer(&self, item: Item) -> Option<TxnId> {
        self.body.as_ref()?.rows.get(item.index() as usize)?.writer
    }

    /// Sets the value that the commit writes.
    ///
    /// # Errors
    /// `NotFound` if the row was executed and does not exist, `TooLarge`, or `Misuse`.
    #[inline]
    pub fn put(&mut self, item: Item, value: &[u8]) -> Result<(), TxnError> {
        let body = self.body_mut()?;
        body.writable(item)?;
        body.set(item, value)
    }

    /// Sets the value that the commit writes, and inserts the row if it does not exist. The item
    /// must have been executed: only the execution finds out whether the row exists.
    ///
    /// # Errors
    /// `TooLarge`, or `Misuse`.
    pub fn upsert(&mut self, item: Item, value: &[u8]) -> Result<(), TxnError> {
        let row = self.body_mut()?.row(item)?;
        match (row.access, row.executed) {
            (Access::Write, false) => Err(TxnError::Misuse("execute before an upsert")),
            (Access::Write, true) if row.value.is_none() || row.change == Change::Delete => {
                let (table, key) = (row.table, row.primary_key);
                let item = self.add(table, key, Access::Insert, value.len())?;
                self.body_mut()?.set(item, value)
            }
            _ => self.put(item, value),
        }
    }

    /// Returns the largest value size of the item's table, in bytes.
    pub(crate) fn value_limit(&mut self, item: Item) -> Result<usize, TxnError> {
        let body = self.body_mut()?;
        let table = usize::from(body.row(item)?.table.0);
        let tables = body.tables.as_ref().expect("a row was added");
        Ok(tables[table].def.spec().record_bytes as usize)
    }

    /// Deletes the row when the transaction commits.
    ///
    /// # Errors
    /// `NotFound` if the row was executed and does not exist, or `Misuse`.
    pub fn delete(&mut self, item: Item) -> Result<(), TxnError> {
        let body = self.body_mut()?;
        let (_, access) = body.writable(item)?;
        if access == Access::Insert {
            return Err(TxnError::Misuse("a row cannot be inserted and deleted at once"));
        }
        body.rows[item.index() as usize].change = Change::Delete;
        Ok(())
    }

    /// Commits: makes either all changes visible at one moment, or no change. Rows added since the
    /// last execution are executed first.
    ///
    /// Once begun, the commit is completed even if this future is dropped.
    ///
    /// # Errors
    /// As [`Transaction::execute`], `TooManyWrites`, and `Unknown`.
    pub async fn commit(mut self) -> Result<Receipt, TxnError> {
        if self.body_mut()?.rows.iter().any(|row| !row.executed) {
            // Boxed: most commits follow an execution, and their future should be small.
            Box::pin(self.execute()).await?;
        }
        let (slot, id, mode) = (Rc::clone(&self.slot), self.id, self.mode);
        let coordinator = &slot.coordinator;
        let body = self.body_mut()?;
        let ready = async {
            let writes = body.check_changes(coordinator)?;
            body.reserve(&slot).await?;
            point!(coordinator.node.id.0, Reserve);
            // Last check before the point of no return, after the last read (H4).
            body.check_locks(coordinator)?;
            coordinator.configuration.check_epoch(body.epoch)?;
            if slot.attempts.has_yielded(id) { Err(body.given_up()) } else { Ok(writes) }
        };
        let ready = ready.await;
        let writes = ready.map_err(|error| body.explained(error))?;
        debug_assert!(
            writes == 0 || mode != Mode::ReadOnly,
            "I1: a read-only transaction writes nothing"
        );
        let snapshot = body.snapshot;
        if writes == 0 {
            self.end();
            coordinator.lane.mark_transaction();
            return Ok(Receipt { commit_ts: None, snapshot });
        }
        let body = self.body.take().expect("the attempt is not over");
        let verdict = self.slot.request_commit(self.id, body);
        verdict.await
    }

    /// Whether the row is an insert of this transaction.
    pub(crate) fn has_added(&mut self, item: Item) -> Result<bool, TxnError> {
        Ok(self.body_mut()?.row(item)?.access == Access::Insert)
    }

    /// Whether rows were added since the last execution.
    pub(crate) fn is_to_execute(&mut self) -> Result<bool, TxnError> {
        Ok(self.body_mut()?.rows.iter().any(|row| !row.executed))
    }

    /// Takes read locks on `names`, of rows or not, until the attempt ends.
    pub(crate) async fn lock_to_read(&mut self, names: &[LockKey]) -> Result<(), TxnError> {
        let slot = Rc::clone(&self.slot);
        let coordinator = &slot.coordinator;
        let body = self.body_mut()?;
        let wanted: Vec<LockRequest> = names.iter().copied().map(LockRequest::read).collect();
        let timeout = coordinator.shared.config.lock_timeout;
        body.rounds += 1;
        let granted = coordinator.locks.acquire(&mut body.held, body.rounds, &wanted, timeout);
        // The caller has no row to name in an error, and retries.
        granted.await.map_err(|_| TxnError::Timeout)?;
        debug_assert!(
            wanted.is_empty() || !body.held.is_empty(),
            "I39: locks that were granted are held"
        );
        Ok(())
    }

    /// Writes a piece under the locks of the attempt, as a commit writes rows.
    pub(crate) async fn fill(mut self, piece: Piece) -> Result<(), TxnError> {
        let (slot, id) = (Rc::clone(&self.slot), self.id);
        let coordinator = &slot.coordinator;
        let body = self.body_mut()?;
        let stands = |lock: &TakenLock| {
            coordinator.still_owned(lock.request.name.shard(), lock.owner, lock.shard_epoch)
        };
        coordinator.configuration.check_epoch(body.epoch)?;
        let stand = body.held.taken().iter().all(stands) && coordinator.locks.are_valid(&body.held);
        if !stand || slot.attempts.has_yielded(id) {
            return Err(TxnError::Timeout);
        }
        body.piece = Some(piece);
        let body = self.body.take().expect("the attempt is not over");
        slot.request_commit(id, body).await.map(drop)
    }

    /// Aborts the attempt. Its changes never become visible.
    pub fn abort(self) {}

    /// Ends the attempt without a commit.
    fn end(&mut self) {
        if let Some(body) = self.body.take() {
            self.slot.release(body);
        } else if std::mem::take(&mut self.lent) {
            self.slot.abandon();
        }
    }

    #[inline]
    pub(crate) fn body_mut(&mut self) -> Result<&mut Body, TxnError> {
        let missing = self.missing();
        self.body.as_deref_mut().ok_or(missing)
    }

    /// Error of a call that needs the buffers while the transaction does not have them.
    #[inline]
    const fn missing(&self) -> TxnError {
        if self.lent { EXECUTING } else { OVER }
    }
}

const ORDERED: TxnError =
    TxnError::Misuse("the table is ordered: use it through Transaction::ordered");
const OVER: TxnError = TxnError::Misuse("the transaction has ended; begin a new one");
const EXECUTING: TxnError = TxnError::Misuse("the transaction is still executing; wait for that");

impl Drop for Transaction {
    fn drop(&mut self) {
        self.end();
    }
}
