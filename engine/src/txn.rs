//! A transaction: declare rows, execute, read and write, commit (LOTUS §7.3).
//!
//! A [`Transaction`] is a handle on buffers that its coroutine slot lends it; once they have grown
//! to fit, a transaction allocates nothing. `execute` and `commit` hand the buffers to the slot's
//! driver, which locks and reads the rows added since the last call (`crate::read`) or carries out
//! the commit (`crate::commit`). Dropping a transaction aborts it: its locks are released at once,
//! remote ones by a message that is repeated until acknowledged.

use std::ops::Range;
use std::rc::Rc;

use lotus_fabric::ids::{Epoch, Key, TableId, TxnId};
use lotus_locktable::{HeldLocks, LockName, LockRequest, LockService, TakenLock};
use lotus_mvcc::acceptance::Expected;
use lotus_mvcc::index::Lookup;
use lotus_mvcc::layout::cvt::Cell;
use lotus_mvcc::slab::{Purpose, SlotKind};
use lotus_mvcc::{PrimaryKey, Timestamp};
use lotus_points::point;
use lotus_router::GroupId;

use crate::commit::CommitPlan;
use crate::coordinator::{Coordinator, Tables};
use crate::error::TxnError;
use crate::filling::Piece;
use crate::read::Fetch;
use crate::reserve::purpose;
use crate::rows::RowIndex;
use crate::slot::Slot;

/// Row of a transaction, numbered in the order in which rows were added.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Item(u32);

impl Item {
    /// Returns the item at this place in its transaction.
    #[inline]
    pub fn from_index(index: u32) -> Self {
        Self(index)
    }

    /// Returns its place in its transaction, from zero.
    #[inline]
    pub fn index(self) -> u32 {
        self.0
    }
}

/// Result of a committed transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Receipt {
    /// Commit timestamp; `None` if nothing was written.
    pub commit_ts: Option<Timestamp>,
    /// Snapshot that the reads came from; `None` if rows were read under locks.
    pub snapshot: Option<Timestamp>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Serializable,
    Snapshot,
    ReadOnly,
}

/// Access of a transaction to a row, in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Access {
    Read,
    Write,
    Insert,
    /// Internal: take the row away, if it is deleted.
    Purge,
    /// Internal: take the slot of an older version away.
    Trim,
}

/// Change that a commit makes to a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    None,
    /// The new value, as a range of [`Body::values`].
    Put(Range<usize>),
    Delete,
    /// Free the row's CVT and all its slots.
    Purge,
    /// Take a cell's version and slot.
    Trim,
}

/// Place where a commit writes a row, settled when the row was read under its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// Offset of the CVT in the group's region.
    pub(crate) cvt: u64,
    /// The cell to overwrite, and its contents.
    pub(crate) cell_index: usize,
    pub(crate) cell: Cell,
    /// Version that follows the one displaced, if any is.
    pub(crate) successor: Option<Timestamp>,
    /// The newest committed version, which the new one follows, and the slot of its record; for a
    /// new CVT, the timestamp since which the row is known to be absent, and 0.
    pub(crate) previous: Timestamp,
    pub(crate) predecessor: u64,
    /// Whether the CVT itself is new, so that the header is written as well.
    pub(crate) new_cvt: bool,
}

impl Target {
    /// Target of an insert: a new CVT at `cvt`, with `cell` as its first cell. The row is known to
    /// have been absent since `absent_since`.
    pub(crate) fn new_cvt(cvt: u64, cell: Cell, absent_since: Timestamp) -> Self {
        Self {
            cvt,
            cell_index: 0,
            cell,
            successor: None,
            previous: absent_since,
            predecessor: 0,
            new_cvt: true,
        }
    }
}

/// Bucket allocated for an insert into a full chain. It joins the chain when the transaction
/// commits, and is free memory until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrownBucket {
    pub(crate) table: TableId,
    pub(crate) group: GroupId,
    /// Offset of the chain's last bucket; its overflow word will name the new one.
    pub(crate) tail: u64,
    /// Offset of the new bucket.
    pub(crate) bucket: u64,
    /// Number of its slots that this transaction has claimed.
    pub(crate) claimed: usize,
}

/// One row of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) table: TableId,
    pub(crate) key: Key,
    /// The replica group of the key's shard.
    pub(crate) group: GroupId,
    pub(crate) primary_key: PrimaryKey,
    pub(crate) access: Access,
    /// Whether the row is locked and read.
    pub(crate) executed: bool,
    /// Value that was read, as a range of [`Body::values`]; `None` if the row is absent.
    pub(crate) value: Option<Range<usize>>,
    /// Writer of the version that was read.
    pub(crate) writer: Option<TxnId>,
    pub(crate) target: Option<Target>,
    pub(crate) change: Change,
    /// Record slot taken for this write, which no cell names yet.
    pub(crate) reserved: Option<u64>,
}

impl Row {
    /// Contents that a record of this row must match.
    #[inline]
    pub(crate) fn expected(&self) -> Expected<'_> {
        Expected { table: self.table, key: self.key, primary_key: &self.primary_key }
    }

    /// Purpose of the slots that hold its records.
    #[inline]
    pub(crate) fn records(&self) -> Purpose {
        purpose(self.table, self.group, SlotKind::Record)
    }

    #[cold]
    pub(crate) fn collision(&self) -> TxnError {
        TxnError::KeyCollision { table: self.table, key: self.primary_key }
    }

    #[cold]
    pub(crate) fn too_old(&self) -> TxnError {
        TxnError::SnapshotTooOld { table: self.table, key: self.primary_key }
    }
}

/// Buffers of one transaction, reused by the next.
#[derive(Default)]
pub(crate) struct Body {
    pub(crate) rows: Vec<Row>,
    /// Index of the rows by key.
    pub(crate) index: RowIndex,
    /// Values read and values to write, concatenated.
    pub(crate) values: Vec<u8>,
    pub(crate) held: HeldLocks,
    pub(crate) wanted: Vec<LockRequest>,
    pub(crate) fetches: Vec<Fetch>,
    /// Searches for rows that have no remembered address.
    pub(crate) lookups: Vec<Lookup>,
    /// Offsets of the CVTs that this transaction's inserts will take.
    pub(crate) claims: Vec<u64>,
    /// Overflow buckets that this transaction's inserts need.
    pub(crate) grown: Vec<GrownBucket>,
    pub(crate) plan: CommitPlan,
    pub(crate) tables: Option<Tables>,
    pub(crate) snapshot: Option<Timestamp>,
    /// Whether reads follow a row's records back without a limit.
    pub(crate) goes_far_back: bool,
    /// Configuration epoch that it reads under.
    pub(crate) epoch: Epoch,
    /// Slots of the rows to be purged, by their place in `rows`; a purge has no other rows.
    pub(crate) freed: Vec<(usize, u64)>,
    /// Whether this is a purge.
    pub(crate) purges: bool,
    /// Whether this is a trim.
    pub(crate) trims: bool,
    /// Piece to write to a memory node, if the transaction is for that.
    pub(crate) piece: Option<Piece>,
    /// Number of executions so far.
    pub(crate) rounds: u16,
}

impl Body {
    pub(crate) fn clear(&mut self) {
        debug_assert!(self.held.is_empty(), "locks are released before the buffers are reused");
        self.rows.clear();
        self.index.clear();
        self.values.clear();
        self.wanted.clear();
        self.fetches.clear();
        self.claims.clear();
        self.grown.clear();
        self.plan.clear();
        self.snapshot = None;
        self.goes_far_back = false;
        self.freed.clear();
        self.purges = false;
        self.trims = false;
        self.piece = None;
        self.rounds = 0;
    }

    /// Copies `bytes` into the values.
    pub(crate) fn keep(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.values.len();
        self.values.extend_from_slice(bytes);
        start..self.values.len()
    }
}

/// Handle of one attempt at a transaction; see the module's documentation.
pub struct Transaction {
    slot: Rc<Slot>,
    /// `None` once the attempt has ended, and while it executes.
    body: Option<Box<Body>>,
    /// Whether the slot's driver has the body, to execute it.
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
                coordinator.shared.config.read_rule == crate::config::ReadRule::Snapshot
            }
            Mode::Snapshot | Mode::ReadOnly => true,
        };
        if from_snapshot {
            let issued = coordinator.timestamps.issued();
            coordinator.snapshots.borrow_mut().register(slot.index, issued);
            let snapshot = coordinator.timestamps.snapshot().await?;
            coordinator.snapshots.borrow_mut().activate(slot.index, snapshot);
            begun.body_mut()?.snapshot = Some(snapshot);
        }
        Ok(begun)
    }

    /// Begins a read-only transaction at a snapshot that the caller keeps alive, however old.
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
        let epoch = coordinator.enter_epoch()?;
        let misuse = TxnError::Misuse("a slot runs one transaction at a time: end the other first");
        let id = slot.next_attempt()?;
        point!(coordinator.node.id.0, Begin);
        let mut body = slot.take_body().ok_or(misuse)?;
        body.held.begin(id);
        body.epoch = epoch;
        // From here on the transaction's `drop` returns the buffers.
        Ok(Self { slot: Rc::clone(slot), body: Some(body), lent: false, id, mode })
    }

    /// Returns the id of this attempt; no two attempts share one.
    pub fn id(&self) -> TxnId {
        self.id
    }

    /// Adds a row to be read. Adding a row again returns the same item.
    ///
    /// # Errors
    /// `UnknownTable`, `TooLarge`, or `Misuse` once the attempt is over.
    #[inline]
    pub fn add_ro(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        self.add(table, key.into(), Access::Read, 0)
    }

    /// Adds a row to be read and perhaps written.
    ///
    /// # Errors
    /// As [`Transaction::add_ro`]; `Misuse` in a read-only transaction.
    #[inline]
    pub fn add_rw(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        self.add(table, key.into(), Access::Write, 0)
    }

    /// Adds a row that does not exist yet, with its value. `execute` fails with `AlreadyExists` if
    /// it does, unless this transaction has deleted it.
    ///
    /// # Errors
    /// As [`Transaction::add_rw`]; `TooLarge` if the value is.
    pub fn insert(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        value: &[u8],
    ) -> Result<Item, TxnError> {
        let item = self.add(table, key.into(), Access::Insert, value.len())?;
        self.body_mut()?.set(item, value)?;
        Ok(item)
    }

    /// Adds a row with a value of `value_bytes` bytes, unless that does not fit the table.
    #[inline]
    pub(crate) fn add(
        &mut self,
        table: TableId,
        primary_key: PrimaryKey,
        access: Access,
        value_bytes: usize,
    ) -> Result<Item, TxnError> {
        if self.mode == Mode::ReadOnly && access != Access::Read {
            return Err(TxnError::Misuse("a read-only transaction cannot write"));
        }
        let coordinator = Rc::clone(&self.slot.coordinator);
        let body = self.body_mut()?;
        let known = body.tables.as_ref().is_some_and(|all| usize::from(table.0) < all.len());
        if !known {
            body.tables = Some(coordinator.tables(table));
        }
        let tables = body.tables.as_ref().expect("just set");
        let node_table = tables.get(usize::from(table.0)).ok_or(TxnError::UnknownTable(table))?;
        node_table.def.check_key(&primary_key)?;
        node_table.def.check_value(value_bytes)?;
        let key = node_table.def.key(&primary_key);
        let same = |row: &Row| row.primary_key == primary_key;
        if let Some(index) = body.index.find(&body.rows, table, key, same) {
            let row = &mut body.rows[index];
            // A row that this transaction deletes exists: inserting it again is a write.
            if access > row.access && row.change != Change::Delete {
                // Upgrade the lock and read the row again at the next execution.
                (row.access, row.executed) = (access, false);
            }
            return Ok(Item(index as u32));
        }
        node_table.addresses.prefetch(table, key);
        coordinator.node.versions.prefetch(table, key);
        coordinator.locks.prefetch(&LockName::row(table, key));
        body.rows.push(Row {
            table,
            key,
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
        Ok(Item(body.rows.len() as u32 - 1))
    }

    /// Locks and reads the rows added since the last call. Any error ends the attempt.
    ///
    /// If this future is dropped, the execution goes on; call `execute` again to wait for it.
    ///
    /// # Errors
    /// Retryable ones (see [`TxnError::is_retryable`]), `AlreadyExists`, `KeyCollision`,
    /// `TableFull`, or `Fenced`.
    pub async fn execute(&mut self) -> Result<(), TxnError> {
        if let Some(body) = self.body.take() {
            self.lent = true;
            self.slot.request_execution(self.mode, body);
        } else if !self.lent {
            return Err(OVER);
        }
        // Otherwise an execution that was dropped is still under way: wait for that one.
        let executed = self.slot.executed().await;
        self.lent = false;
        self.body = Some(executed?);
        Ok(())
    }

    /// Returns the value of a row: the one put by this transaction, or else the one read. `None` if
    /// the row does not exist, was deleted, or has not been executed yet.
    #[inline]
    pub fn value(&self, item: Item) -> Option<&[u8]> {
        let body = self.body.as_ref()?;
        let row = body.rows.get(item.0 as usize)?;
        let range = match &row.change {
            Change::None => row.value.as_ref()?,
            Change::Put(range) => range,
            Change::Delete | Change::Purge | Change::Trim => return None,
        };
        body.values.get(range.clone())
    }

    /// Returns the writer of the version that was read; `None` for a loaded or absent row.
    #[inline]
    pub fn writer(&self, item: Item) -> Option<TxnId> {
        self.body.as_ref()?.rows.get(item.0 as usize)?.writer
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
                self.insert(table, key, value).map(drop)
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
        body.rows[item.0 as usize].change = Change::Delete;
        Ok(())
    }

    /// Commits: makes all changes visible at one moment, or none of them. Rows added since the last
    /// execution are executed first.
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
        let (slot, id) = (Rc::clone(&self.slot), self.id);
        let coordinator = &slot.coordinator;
        let body = self.body_mut()?;
        let writes = body.check_changes(coordinator)?;
        body.reserve(&slot).await?;
        point!(coordinator.node.id.0, Reserve);
        // Last check before the point of no return, after the last read (H4).
        body.check_locks(coordinator)?;
        coordinator.check_epoch(body.epoch)?;
        if slot.has_yielded(id) {
            return Err(body.given_up());
        }
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

    /// Takes read locks on `names`, rows or not, until the attempt ends.
    pub(crate) async fn lock_to_read(&mut self, names: &[LockName]) -> Result<(), TxnError> {
        let slot = Rc::clone(&self.slot);
        let coordinator = &slot.coordinator;
        let body = self.body_mut()?;
        let wanted: Vec<LockRequest> = names.iter().copied().map(LockRequest::read).collect();
        let timeout = coordinator.shared.config.lock_timeout;
        body.rounds += 1;
        let granted = coordinator.locks.acquire(&mut body.held, body.rounds, &wanted, timeout);
        // The caller has no row to name in an error, and retries.
        granted.await.map_err(|_| TxnError::Timeout)
    }

    /// Writes a piece under the locks of the attempt, as a commit writes rows.
    pub(crate) async fn fill(mut self, piece: Piece) -> Result<(), TxnError> {
        let (slot, id) = (Rc::clone(&self.slot), self.id);
        let coordinator = &slot.coordinator;
        let body = self.body_mut()?;
        let stands = |lock: &TakenLock| {
            coordinator.still_owned(lock.request.name.shard(), lock.owner, lock.shard_epoch)
        };
        coordinator.check_epoch(body.epoch)?;
        if !body.held.taken().iter().all(stands) || slot.has_yielded(id) {
            return Err(TxnError::Timeout);
        }
        body.piece = Some(piece);
        let body = self.body.take().expect("the attempt is not over");
        slot.request_commit(id, body).await.map(drop)
    }

    /// Aborts the attempt. None of its changes ever becomes visible.
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
        self.body.as_deref_mut().ok_or(if self.lent { EXECUTING } else { OVER })
    }
}

const OVER: TxnError = TxnError::Misuse("the transaction has ended; begin a new one");
const EXECUTING: TxnError = TxnError::Misuse("the transaction is still executing; wait for that");

impl Drop for Transaction {
    fn drop(&mut self) {
        self.end();
    }
}

impl Body {
    #[inline]
    fn row(&self, item: Item) -> Result<&Row, TxnError> {
        let unknown = TxnError::Misuse("the item belongs to another transaction");
        self.rows.get(item.0 as usize).ok_or(unknown)
    }

    /// Returns the table and access of a row that may be written.
    #[inline]
    fn writable(&self, item: Item) -> Result<(TableId, Access), TxnError> {
        let row = self.row(item)?;
        if row.access == Access::Read {
            return Err(TxnError::Misuse("the row was added for reading only"));
        }
        let gone = row.value.is_none() || row.change == Change::Delete;
        if row.executed && row.access == Access::Write && gone {
            return Err(TxnError::NotFound { table: row.table, key: row.primary_key });
        }
        Ok((row.table, row.access))
    }

    /// Sets the value of a row that may be written.
    #[inline]
    fn set(&mut self, item: Item, value: &[u8]) -> Result<(), TxnError> {
        let row = &self.rows[item.0 as usize];
        let tables = self.tables.as_ref().expect("a row was added");
        tables[usize::from(row.table.0)].def.check_value(value.len())?;
        let range = match &row.change {
            // A second put of the same length overwrites the first in place.
            Change::Put(range) if range.len() == value.len() => {
                let range = range.clone();
                self.values[range.clone()].copy_from_slice(value);
                range
            }
            _ => self.keep(value),
        };
        self.rows[item.0 as usize].change = Change::Put(range);
        Ok(())
    }

    /// Returns the number of rows to write, after checking that all of them can be written.
    fn check_changes(&self, coordinator: &Coordinator) -> Result<usize, TxnError> {
        let limit = usize::from(coordinator.shared.log.max_writes());
        let mut writes = 0;
        for row in self.rows.iter().filter(|row| row.change != Change::None) {
            // It was put before it was executed, and turned out not to exist.
            if row.access == Access::Write && row.value.is_none() {
                return Err(TxnError::NotFound { table: row.table, key: row.primary_key });
            }
            writes += 1;
        }
        let logged = writes + self.grown.len();
        if logged > limit { Err(TxnError::TooManyWrites { limit }) } else { Ok(writes) }
    }

    /// Checks that every lock still has the owner and epoch of its grant (H4).
    #[inline]
    fn check_locks(&self, coordinator: &Coordinator) -> Result<(), TxnError> {
        for lock in self.held.taken() {
            let name = &lock.request.name;
            if !coordinator.still_owned(name.shard(), lock.owner, lock.shard_epoch) {
                return Err(self.conflict(name));
            }
        }
        Ok(())
    }

    /// Conflict error for a lock, naming the row that the lock is for. A bucket's lock is for no
    /// row in particular, so the error names any row of the transaction.
    #[cold]
    pub(crate) fn conflict(&self, name: &LockName) -> TxnError {
        let row = self.row_of(name);
        TxnError::Conflict { table: row.table, key: row.primary_key }
    }

    /// Error of a transaction that has given up its locks on request.
    #[cold]
    pub(crate) fn given_up(&self) -> TxnError {
        match self.rows.first() {
            Some(row) => TxnError::Conflict { table: row.table, key: row.primary_key },
            None => TxnError::Timeout,
        }
    }

    /// As [`Self::conflict`], for a lock that has no owner.
    #[cold]
    pub(crate) fn unavailable(&self, name: &LockName) -> TxnError {
        let row = self.row_of(name);
        TxnError::Unavailable { table: row.table, key: row.primary_key }
    }

    /// As [`Self::conflict`], for a lock with an owner suspected of being dead.
    #[cold]
    pub(crate) fn suspected(&self, name: &LockName) -> TxnError {
        let row = self.row_of(name);
        TxnError::Suspected { table: row.table, key: row.primary_key }
    }

    fn row_of(&self, name: &LockName) -> &Row {
        let named = |row: &&Row| row.table == name.table && row.key == name.key;
        self.rows.iter().find(named).unwrap_or(&self.rows[0])
    }

    /// Releases the locks, and returns the slots and buckets taken for writes.
    pub(crate) fn release(&mut self, coordinator: &Coordinator) {
        coordinator.locks.release(&mut self.held);
        for row in &mut self.rows {
            if let Some(offset) = row.reserved.take() {
                coordinator.release_slot(row.records(), offset);
            }
        }
        for grown in self.grown.drain(..) {
            let buckets = purpose(grown.table, grown.group, SlotKind::Bucket);
            coordinator.release_slot(buckets, grown.bucket);
        }
    }
}
