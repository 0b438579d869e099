//! Holders of locks: the lock state of LOTUS §4.1, in stripes.
//!
//! A stripe is the mutex of every bucket that maps to it and the records of the holders of locks
//! there. A slot is only changed together with its record, under the stripe's mutex, so no two
//! requests ever choose different slots for one name (H5), no decision rests on a word that has
//! since changed (H6), and no crash of a coordinator leaves one without the other (H8).
//!
//! Records lie in one short vector that is searched from end to end: a transaction holds its locks
//! for microseconds, so a stripe seldom has more than a handful. The vector keeps its capacity, so
//! a warm stripe does not allocate.
//!
//! The rest of the mutex's cache line holds counters of write locks that were granted or released.
//! They let a reader without a lock check that nothing was written (H11).

use lotus_fabric::ids::{Key, TableId, TxnId};

use crate::name::{LockMode, LockName, LockSpace};
use crate::primitive::{AtomicU64, Mutex, MutexGuard};
use crate::slot::{Counter, Mine, recount};

/// A lock and one of its holders.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Holder {
    /// The lock.
    pub name: LockName,
    /// Holding transaction; its incarnation tells its compute node.
    pub txn: TxnId,
    /// Mode in which it holds the lock.
    pub mode: LockMode,
}

/// One mutex, the records that it guards, and counters, on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Stripe {
    records: Mutex<Records>,
    /// Number of times that a write lock of some buckets of the stripe was granted or ceased to be
    /// held. Changed under the mutex only.
    pub(crate) write_changes: [AtomicU64; Self::COUNTERS],
}

impl Stripe {
    /// Number of records that a new stripe has room for before it allocates again.
    const INITIAL_RECORDS: usize = 8;
    /// Number of counters in a stripe: those that fit in its cache line.
    pub(crate) const COUNTERS: usize = 4;

    pub(crate) fn new() -> Self {
        let records = Mutex::new(Records(Vec::with_capacity(Self::INITIAL_RECORDS)));
        Self { records, write_changes: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Locks the stripe.
    ///
    /// # Panics
    /// If another thread panicked inside, which only a violated assertion in this crate can cause:
    /// the holders are then unknown, and no lock of the stripe may be granted again.
    #[inline]
    pub(crate) fn enter(&self) -> MutexGuard<'_, Records> {
        self.records.lock().expect("no thread panics inside a stripe")
    }
}

/// Records of the holders of the stripe's slots.
#[derive(Debug)]
pub(crate) struct Records(Vec<SlotRecord>);

/// A [`Holder`] and the slot it occupies, flattened into 24 bytes.
#[derive(Clone, Copy, Debug)]
struct SlotRecord {
    txn: TxnId,
    key: Key,
    slot: u32,
    table: TableId,
    space: LockSpace,
    mode: LockMode,
}

const _: () = assert!(size_of::<SlotRecord>() == 24);
#[cfg(not(lotus_loom))]
const _: () = assert!(size_of::<Stripe>() == 64);

impl SlotRecord {
    #[inline]
    fn is(&self, txn: TxnId, name: &LockName) -> bool {
        self.txn == txn
            && self.key == name.key
            && self.table == name.table
            && self.space == name.space
    }

    fn holder(&self) -> Holder {
        let name = LockName { table: self.table, space: self.space, key: self.key };
        Holder { name, txn: self.txn, mode: self.mode }
    }
}

impl Records {
    /// Locks that `txn` holds in `slot`, with `name` looked up among them.
    #[inline]
    pub(crate) fn of(&self, slot: u32, txn: TxnId, name: &LockName) -> Mine {
        let mut mine = Mine::default();
        for record in self.0.iter().filter(|record| record.slot == slot && record.txn == txn) {
            mine.records += 1;
            if record.is(txn, name) {
                mine.name = Some(record.mode);
            }
        }
        mine
    }

    /// Adds the record of a new holder.
    #[inline]
    pub(crate) fn add(&mut self, slot: u32, txn: TxnId, name: &LockName, mode: LockMode) {
        let LockName { table, space, key } = *name;
        self.0.push(SlotRecord { txn, key, slot, table, space, mode });
    }

    /// Changes the mode in which `txn` holds `name` and returns the slot; `None` if it does not
    /// hold it.
    pub(crate) fn set_mode(&mut self, txn: TxnId, name: &LockName, mode: LockMode) -> Option<u32> {
        let record = self.0.iter_mut().find(|record| record.is(txn, name))?;
        record.mode = mode;
        Some(record.slot)
    }

    /// Removes the record of `txn` for `name`; returns its slot and mode, or `None` if there is
    /// none.
    #[inline]
    pub(crate) fn remove(&mut self, txn: TxnId, name: &LockName) -> Option<(u32, LockMode)> {
        let index = self.0.iter().position(|record| record.is(txn, name))?;
        let record = self.0.swap_remove(index);
        Some((record.slot, record.mode))
    }

    /// The counter that `slot` should have.
    #[inline]
    pub(crate) fn count(&self, slot: u32) -> Counter {
        let of_slot = self.0.iter().filter(|record| record.slot == slot);
        recount(of_slot.map(|record| record.mode))
    }

    /// Whether `txn` has a record in `slot`.
    pub(crate) fn holds_slot(&self, txn: TxnId, slot: u32) -> bool {
        self.0.iter().any(|record| record.slot == slot && record.txn == txn)
    }

    /// All holders, in an unspecified but reproducible order.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Holder> + '_ {
        self.0.iter().map(SlotRecord::holder)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
