//! Holders of locks: the lock state of LOTUS §4.1, in stripes.
//!
//! A stripe is the mutex of a set of buckets and the records of the lock holders in these buckets.
//! A slot and its records change only together, under the stripe's mutex, so two requests never
//! choose different slots for one name (H5), a decision never rests on an outdated word (H6), and a
//! crash of a coordinator never leaves a slot without its record or a record without its slot (H8).
//!
//! Records lie in a short vector that is searched linearly: a transaction holds its locks for
//! microseconds, so a stripe seldom has more than a handful of records. The vector keeps its
//! capacity, so a warm stripe does not allocate.
//!
//! The rest of the mutex's cache line holds counters of grants and releases of write locks. With
//! these counters a reader without a lock checks that no row was written (H11).
//!
//! Requests waiting for locks of the stripe are in a queue, created by the first wait; for a stripe
//! without a queue the check costs one read of a word in the same cache line.

use lotus_fabric::ids::{Key, TableId, TxnId};

use crate::lock_key::{LockKey, LockMode, LockSpace};
use crate::primitive::{AtomicU64, Mutex, MutexGuard};
use crate::queue::{Parked, ParkedQueue, WaitOutcome, WaitVerdict, judge, place_in_queue};
use crate::slot::{Counter, OwnLocks, recount};

/// A lock and one of its holders.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Holder {
    /// The lock.
    pub name: LockKey,
    /// Holding transaction; the incarnation identifies the compute node.
    pub txn: TxnId,
    /// Mode in which the transaction holds the lock.
    pub mode: LockMode,
}

/// A mutex, its records, and counters, in a separate cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Stripe {
    records: Mutex<Records>,
    /// Numbers of grants and releases of write locks; each counter serves a part of the stripe's
    /// buckets. Changed under the mutex only.
    pub(crate) write_changes: [AtomicU64; Self::COUNTERS],
}

impl Stripe {
    /// Initial capacity of a stripe in records.
    const INITIAL_RECORDS: usize = 8;
    /// Number of counters that fit in a stripe's cache line.
    pub(crate) const COUNTERS: usize = 3;

    pub(crate) fn new() -> Self {
        let holders = Vec::with_capacity(Self::INITIAL_RECORDS);
        let records = Mutex::new(Records { holders, waiting: None });
        Self { records, write_changes: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Locks the stripe.
    ///
    /// # Panics
    /// If another thread panicked inside the stripe, which only a violated assertion in this crate
    /// can cause: the holders are then unknown, and no lock of the stripe may be granted again.
    #[inline]
    pub(crate) fn enter(&self) -> MutexGuard<'_, Records> {
        self.records.lock().expect("no thread panics inside a stripe")
    }
}

/// Records of the holders of the stripe's slots, and waiting requests.
#[derive(Debug)]
pub(crate) struct Records {
    holders: Vec<SlotRecord>,
    /// Created by the first wait. Boxed, because a stripe is one cache line.
    waiting: Option<Box<ParkedQueue>>,
}

/// A [`Holder`] and its slot, flattened into 24 bytes.
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
    fn is(&self, txn: TxnId, name: &LockKey) -> bool {
        self.txn == txn && self.names(name)
    }

    #[inline]
    fn names(&self, name: &LockKey) -> bool {
        self.key == name.key && self.table == name.table && self.space == name.space
    }

    fn holder(&self) -> Holder {
        let name = LockKey { table: self.table, space: self.space, key: self.key };
        Holder { name, txn: self.txn, mode: self.mode }
    }
}

impl Records {
    /// Returns the locks of `txn` in `slot`, with the mode of `name` among them.
    #[inline]
    pub(crate) fn of(&self, slot: u32, txn: TxnId, name: &LockKey) -> OwnLocks {
        let mut mine = OwnLocks::default();
        for record in self.holders.iter().filter(|record| record.slot == slot && record.txn == txn)
        {
            mine.records += 1;
            if record.is(txn, name) {
                mine.name = Some(record.mode);
            }
        }
        mine
    }

    /// Adds the record of a new holder.
    #[inline]
    pub(crate) fn add(&mut self, slot: u32, txn: TxnId, name: &LockKey, mode: LockMode) {
        let LockKey { table, space, key } = *name;
        self.holders.push(SlotRecord { txn, key, slot, table, space, mode });
    }

    /// Changes the mode in which `txn` holds `name` and returns the slot; `None` if `txn` does not
    /// hold `name`.
    pub(crate) fn set_mode(&mut self, txn: TxnId, name: &LockKey, mode: LockMode) -> Option<u32> {
        let record = self.holders.iter_mut().find(|record| record.is(txn, name))?;
        record.mode = mode;
        Some(record.slot)
    }

    /// Removes the record of `txn` for `name`; returns its slot and mode, or `None` without such a
    /// record.
    #[inline]
    pub(crate) fn remove(&mut self, txn: TxnId, name: &LockKey) -> Option<(u32, LockMode)> {
        let index = self.holders.iter().position(|record| record.is(txn, name))?;
        let record = self.holders.swap_remove(index);
        Some((record.slot, record.mode))
    }

    /// Returns the counter of `slot` according to the records.
    #[inline]
    pub(crate) fn count(&self, slot: u32) -> Counter {
        let of_slot = self.holders.iter().filter(|record| record.slot == slot);
        recount(of_slot.map(|record| record.mode))
    }

    /// Whether `txn` has a record in `slot`.
    pub(crate) fn holds_slot(&self, txn: TxnId, slot: u32) -> bool {
        self.holders.iter().any(|record| record.slot == slot && record.txn == txn)
    }

    /// All holders, in an unspecified but reproducible order.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Holder> + '_ {
        self.holders.iter().map(SlotRecord::holder)
    }

    pub(crate) fn len(&self) -> usize {
        self.holders.len()
    }

    /// Whether a request waits in this stripe.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.as_ref().is_some_and(|queue| !queue.is_empty())
    }

    /// Waiting requests, in the order of their queues.
    pub(crate) fn waiting(&self) -> &[Parked] {
        self.waiting.as_ref().map_or(&[], |queue| queue)
    }

    /// Whether a request for `name` waits, so that a new grant would overtake the waiting request.
    #[inline]
    pub(crate) fn overtakes(&self, name: &LockKey) -> bool {
        self.has_waiting() && self.is_awaited(name)
    }

    #[cold]
    fn is_awaited(&self, name: &LockKey) -> bool {
        self.waiting().iter().any(|parked| parked.request.name == *name)
    }

    /// Adds a request to the queue of its name.
    pub(crate) fn park(&mut self, parked: Parked) {
        let queue = self.waiting.get_or_insert_default();
        let place = place_in_queue(queue.iter().map(|one| one.since), parked.since);
        queue.insert(place, parked);
    }

    /// Removes the requests selected by `which` from the queues, and returns them.
    pub(crate) fn unpark(&mut self, which: impl Fn(&Parked) -> bool) -> Vec<Parked> {
        let queue = self.waiting.as_mut();
        queue.map_or_else(Vec::new, |queue| queue.extract_if(.., |one| which(one)).collect())
    }

    /// Serves the queues of `slot`, whose counter is `counter`: adds records for granted requests,
    /// and moves all requests whose wait ends to `settled`. Returns the new counter.
    pub(crate) fn serve(
        &mut self,
        slot: u32,
        mut counter: Counter,
        settled: &mut Vec<(Parked, WaitOutcome)>,
    ) -> Counter {
        let mut next = 0;
        // Name of the last request that stays, usually the only name.
        let mut stays: Option<LockKey> = None;
        while let Some(parked) = self.waiting().get(next) {
            let name = parked.request.name;
            let overtakes = stays == Some(name)
                || stays.is_some()
                    && self.waiting()[..next].iter().any(|one| one.request.name == name);
            if parked.slot != slot || overtakes {
                next += 1;
                continue;
            }
            let (txn, request) = (parked.txn, parked.request);
            let is = |one: &SlotRecord| one.slot == slot && one.txn != txn && one.names(&name);
            let held = self.holders.iter().any(is);
            let outcome = match judge(counter, self.of(slot, txn, &name), request, held, false) {
                WaitVerdict::Grant(_, after) => {
                    counter = after;
                    self.add(slot, txn, &name, request.mode);
                    WaitOutcome::Granted
                }
                WaitVerdict::Refuse => WaitOutcome::Refused,
                WaitVerdict::Wait => {
                    stays = Some(name);
                    next += 1;
                    continue;
                }
            };
            let queue = self.waiting.as_mut().expect("it has the request");
            settled.push((queue.remove(next), outcome));
        }
        counter
    }
}
