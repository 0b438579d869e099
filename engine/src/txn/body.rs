//! Buffers of a transaction: rows, values, and the working state of execution and commit.

use crate::api::error::TxnError;
use crate::node::coordinator::{Coordinator, Tables};
use crate::node::shared::NodeTable;
use crate::txn::fetch::{Fetch, Next};
use crate::txn::piece::Piece;
use crate::txn::plan::CommitPlan;
use crate::txn::rows::RowIndex;
use lotus_fabric::ids::{Epoch, Key, TableId, TxnId};
use lotus_locktable::{HeldLocks, LockKey, LockRequest, LockService};
use lotus_mvcc::acceptance::{Expected, Reject};
use lotus_mvcc::index::Lookup;
use lotus_mvcc::layout::bucket::Overflow;
use lotus_mvcc::layout::cvt::{Cell, CvtShape};
use lotus_mvcc::layout::record::Record;
use lotus_mvcc::naming::{KeyMark, RowName};
use lotus_mvcc::slab::{Purpose, SlotKind};
use lotus_mvcc::visibility::Newest;
use lotus_mvcc::{PrimaryKey, TableDef, Timestamp};
use lotus_router::GroupId;
use lotus_sabotage::{Rule, broken};
use std::ops::Range;

/// Row of a transaction, numbered in the order in which rows were added.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Item(u32);

impl Item {
    /// Returns the item at this place in its transaction.
    #[inline]
    pub fn from_index(index: u32) -> Self {
        Self(index)
    }

    /// Returns the place of the item in its transaction, from zero.
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
    /// Internal: remove the row, if it is deleted.
    Purge,
    /// Internal: free the slot of an older version.
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
    /// Remove a cell's older version and free the slot.
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
    /// Offset of the cell's home slot; 0 if the table's cells have none.
    pub(crate) home: u64,
    /// Slot for the new record unless another slot is reserved: the cell's current slot, or the
    /// home slot; 0 for none.
    pub(crate) slot: u64,
    /// Version that follows the displaced version, if a version is displaced.
    pub(crate) successor: Option<Timestamp>,
    /// The newest committed version, which the new version follows, and the slot of its record; for
    /// a new CVT, the timestamp since which the row is known to be absent, and 0.
    pub(crate) previous: Timestamp,
    pub(crate) predecessor: u64,
    /// Whether the CVT itself is new, so that the header is written as well.
    pub(crate) new_cvt: bool,
}

impl Target {
    /// Target of an insert: a new CVT of this shape at `cvt`, with `cell` as its first cell. The
    /// row is known to have been absent since `absent_since`.
    pub(crate) fn new_cvt(shape: CvtShape, cvt: u64, cell: Cell, absent_since: Timestamp) -> Self {
        debug_assert!(cvt != 0, "I24: no CVT begins where a region does");
        Self {
            cvt,
            cell_index: 0,
            cell,
            home: shape.home(cvt, 0),
            slot: cell.record,
            successor: None,
            previous: absent_since,
            predecessor: 0,
            new_cvt: true,
        }
    }
}

/// Buckets allocated for an insert into a full chain. The buckets join the chain when the
/// transaction commits, and are free memory until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrownChain {
    pub(crate) table: TableId,
    pub(crate) group: GroupId,
    /// Offset of the chain's last bucket; its overflow word will name the new buckets.
    pub(crate) tail: u64,
    pub(crate) buckets: Overflow,
}

impl GrownChain {
    /// Purpose of the slot that contains the buckets.
    pub(crate) fn slots(&self) -> Purpose {
        let kind = if self.buckets.is_fan() { SlotKind::Fan } else { SlotKind::Bucket };
        purpose(self.table, self.group, kind)
    }
}

/// One row of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) table: TableId,
    /// Name of the row, which several rows may share, and the mark that distinguishes such rows.
    pub(crate) key: Key,
    pub(crate) mark: KeyMark,
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
    /// Record slot taken for this write; no cell names the slot yet.
    pub(crate) reserved: Option<u64>,
}

impl Row {
    /// Name and mark of the row.
    #[inline]
    pub(crate) fn name(&self) -> RowName {
        RowName { key: self.key, mark: self.mark }
    }

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

    /// Error for a record that was rejected for the reason `why`. `KeyCollision` if the row's CVT
    /// belongs to another row with the same name and mark. Otherwise `None`: the record's slot was
    /// reused, a passing state.
    #[cold]
    pub(crate) fn collision(&self, def: &TableDef, why: Reject, words: &[u64]) -> Option<TxnError> {
        if why != Reject::OtherRow {
            return None;
        }
        let other = Record::decode(self.key, words).ok()?.primary_key().ok()?;
        let (table, key) = (self.table, self.primary_key.into());
        (def.name(&other) == self.name()).then_some(TxnError::KeyCollision { table, key })
    }

    /// Next step in reading this locked row, while its newest version is unknown.
    #[cold]
    pub(crate) fn undecided(&self, found: Newest) -> Result<Next, TxnError> {
        match found {
            Newest::InDoubt { .. } => {
                Err(TxnError::InDoubt { table: self.table, key: self.primary_key.into() })
            }
            _ => Ok(Next::Reread),
        }
    }

    #[cold]
    pub(crate) fn too_old(&self) -> TxnError {
        TxnError::SnapshotTooOld { table: self.table, key: self.primary_key.into() }
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
    /// Whether two of the rows share a name, and so a lock.
    pub(crate) has_twins: bool,
    pub(crate) fetches: Vec<Fetch>,
    /// Searches for rows that have no remembered address.
    pub(crate) lookups: Vec<Lookup>,
    /// Offsets of the CVTs that this transaction's inserts will take.
    pub(crate) claims: Vec<u64>,
    /// Overflow buckets that this transaction's inserts need.
    pub(crate) grown: Vec<GrownChain>,
    pub(crate) plan: CommitPlan,
    pub(crate) tables: Option<Tables>,
    pub(crate) snapshot: Option<Timestamp>,
    /// Whether reads follow the chain of a row's older records without a limit.
    pub(crate) goes_far_back: bool,
    /// Configuration epoch of the transaction's reads.
    pub(crate) epoch: Epoch,
    /// Record slots of the rows to purge, by the row's place in `rows`; a purge has no other rows.
    pub(crate) freed: Vec<(usize, u64)>,
    /// Whether this is a purge.
    pub(crate) purges: bool,
    /// Whether this is a trim.
    pub(crate) trims: bool,
    /// Piece to write to a memory node, if the transaction fills one.
    pub(crate) piece: Option<Piece>,
    /// Number of rounds of lock requests so far.
    pub(crate) rounds: u16,
    /// Whether the attempt goes on although other attempts use its rows; its writes are lost.
    #[cfg(feature = "sabotage")]
    pub(crate) is_beside: bool,
}

impl Body {
    pub(crate) fn clear(&mut self) {
        debug_assert!(
            self.held.is_empty(),
            "I41: locks are released before the buffers are reused"
        );
        self.rows.clear();
        self.index.clear();
        self.values.clear();
        self.wanted.clear();
        self.has_twins = false;
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
        #[cfg(feature = "sabotage")]
        {
            self.is_beside = false;
        }
    }

    /// Copies `bytes` into the values.
    pub(crate) fn keep(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.values.len();
        self.values.extend_from_slice(bytes);
        start..self.values.len()
    }

    /// Table of a row.
    #[inline]
    pub(crate) fn table(&self, table: TableId) -> &NodeTable {
        let tables = self.tables.as_ref().expect("a row was added");
        &tables[usize::from(table.0)]
    }

    #[inline]
    pub(crate) fn row(&self, item: Item) -> Result<&Row, TxnError> {
        let unknown = || TxnError::Misuse("the item belongs to another transaction");
        self.rows.get(item.0 as usize).ok_or_else(unknown)
    }

    /// Returns the table and access of a row that may be written.
    #[inline]
    pub(crate) fn writable(&self, item: Item) -> Result<(TableId, Access), TxnError> {
        let row = self.row(item)?;
        if row.access == Access::Read {
            return Err(TxnError::Misuse("the row was added for reading only"));
        }
        let gone = row.value.is_none() || row.change == Change::Delete;
        if row.executed && row.access == Access::Write && gone {
            let absent = TxnError::NotFound { table: row.table, key: row.primary_key.into() };
            return Err(self.explained(absent));
        }
        Ok((row.table, row.access))
    }

    /// Sets the value of a row that may be written.
    #[inline]
    pub(crate) fn set(&mut self, item: Item, value: &[u8]) -> Result<(), TxnError> {
        let row = &self.rows[item.0 as usize];
        debug_assert!(row.access != Access::Read, "I37: a row that is written is locked to write");
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

    /// Returns the number of rows to write, after checking that every change is valid.
    pub(crate) fn check_changes(&self, coordinator: &Coordinator) -> Result<usize, TxnError> {
        let limit = usize::from(coordinator.shared.log.max_writes());
        let mut writes = 0;
        for row in self.rows.iter().filter(|row| row.change != Change::None) {
            // The row was put before it was executed, and turned out not to exist.
            if row.access == Access::Write && row.value.is_none() {
                return Err(TxnError::NotFound { table: row.table, key: row.primary_key.into() });
            }
            writes += 1;
        }
        let logged = writes + self.grown.len();
        if logged > limit { Err(TxnError::TooManyWrites { limit }) } else { Ok(writes) }
    }

    /// Checks that every lock still has the owner and epoch of its grant, or is on a memory node
    /// that has kept its memory (H4, I45).
    #[inline]
    pub(crate) fn check_locks(&self, coordinator: &Coordinator) -> Result<(), TxnError> {
        for lock in self.held.taken() {
            let name = &lock.request.name;
            if !coordinator.still_owned(name.shard(), lock.owner, lock.shard_epoch) {
                return Err(self.conflict(name));
            }
        }
        match coordinator.locks.are_valid(&self.held) || broken(Rule::LostLocksEndAttempts) {
            true => Ok(()),
            false => Err(TxnError::Timeout),
        }
    }

    /// Conflict error for a lock, naming the row that the lock is for. A bucket lock covers no row
    /// in particular, so the error names a row of the same table, or else any row. `Timeout` if
    /// there is no row: an attempt may hold the locks of an earlier, refused attempt before it has
    /// added a row.
    #[cold]
    pub(crate) fn conflict(&self, name: &LockKey) -> TxnError {
        self.row_of(name).map_or(TxnError::Timeout, |row| TxnError::Conflict {
            table: row.table,
            key: row.primary_key.into(),
        })
    }

    /// Error of a transaction that has given up its locks on request.
    #[cold]
    pub(crate) fn given_up(&self) -> TxnError {
        match self.rows.first() {
            Some(row) => TxnError::Conflict { table: row.table, key: row.primary_key.into() },
            None => TxnError::Timeout,
        }
    }

    /// As [`Self::conflict`], for a lock that has no owner.
    #[cold]
    pub(crate) fn unavailable(&self, name: &LockKey) -> TxnError {
        self.row_of(name).map_or(TxnError::Timeout, |row| TxnError::Unavailable {
            table: row.table,
            key: row.primary_key.into(),
        })
    }

    /// As [`Self::conflict`], for a lock with an owner suspected of being dead.
    #[cold]
    pub(crate) fn suspected(&self, name: &LockKey) -> TxnError {
        self.row_of(name).map_or(TxnError::Timeout, |row| TxnError::Suspected {
            table: row.table,
            key: row.primary_key.into(),
        })
    }

    /// The row of a lock, or a substitute row for an error about the lock.
    fn row_of(&self, name: &LockKey) -> Option<&Row> {
        let named = |row: &&Row| row.table == name.table && row.key == name.key;
        let beside = |row: &&Row| row.table == name.table;
        let mut rows = self.rows.iter();
        rows.clone().find(named).or_else(|| rows.clone().find(beside)).or_else(|| rows.next())
    }

    /// Releases the locks, and returns the slots and buckets taken for writes.
    pub(crate) fn release(&mut self, coordinator: &Coordinator) {
        coordinator.locks.release(&mut self.held);
        debug_assert!(self.held.is_empty(), "I41: an attempt that ends holds no lock");
        for row in &mut self.rows {
            if let Some(offset) = row.reserved.take() {
                coordinator.release_slot(row.records(), offset);
            }
        }
        for grown in self.grown.drain(..) {
            coordinator.release_slot(grown.slots(), grown.buckets.first());
        }
    }
}

pub(crate) fn purpose(table: TableId, group: GroupId, slots: SlotKind) -> Purpose {
    Purpose { table, group: u16::from(group.0), slots }
}
