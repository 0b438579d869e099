//! LOTUS's lock table (LOTUS §4.1): slots, holders, and the operations on them.
//!
//! # Layout
//! A fixed number of buckets, each one cache line of eight slots; see `slot` for the meaning of a
//! slot. A name's hash determines its bucket and fingerprint. The memory is zero and untouched
//! until used, so a large table costs only the memory in use.
//!
//! # Synchronisation
//! A slot and the records of its holders change together under the mutex of the bucket's stripe,
//! and a decision uses a single load of the slot, so that no second load can disagree (H5, H6). The
//! paper changes the slot by compare-and-swap and logs the holder afterwards; a short mutex costs
//! as much as these two atomics and has no intermediate state.
//!
//! Slots are atomic words nevertheless, because [`LockTable::is_write_locked`] reads them without
//! the mutex. Slots are stored with `Release` and loaded by this function with `Acquire`: a thread
//! that sees a free slot sees all actions of the last holder before the unlock. Under the mutex,
//! `Relaxed` suffices.
//!
//! # Noticing writers
//! A reader without a lock may have to know that no transaction could write the row meanwhile
//! (H11). A counter is incremented for every grant and every release of a write lock: at a grant
//! after the slot changes, at a release before the slot changes. So a thread that has seen the
//! increment of the grant sees the slot taken, until it sees the increment of the release.
//! [`LockTable::watch`] remembers a counter, [`LockTable::unwritten_since`] checks whether the
//! counter has changed or the slot is taken.
//!
//! # What it does not do
//! The table never blocks: requests that [wait](LockTable::lock_or_wait) are kept in queues, and a
//! release hands the lock to the next request. The table does not know the shards of its node: the
//! caller checks the ownership *after* taking the lock, see
//! [`LockHost::owns`](crate::LockHost::owns).

use std::fmt;

use lotus_fabric::ids::{Incarnation, ShardId, TxnId};
use lotus_fabric::prefetch;
use lotus_sabotage::{Rule, broken};

use crate::lock_key::{LockKey, LockMode, LockRequest};
use crate::primitive::{AtomicU64, Ordering, Words, zeroed_words};
use crate::slot::{Counter, Grant, Refusal, Word, decide};
use crate::stripe::{Holder, Records, Stripe};

/// Slots in a bucket: one cache line.
const SLOTS_PER_BUCKET: usize = 8;
const BUCKET_BYTES: usize = SLOTS_PER_BUCKET * size_of::<u64>();

/// Number of mutexes in a table with at least as many buckets: enough that two coordinators seldom
/// contend for a mutex, few enough (64 KiB) to stay in a core's cache.
const STRIPES: usize = 1024;

/// Number of locks of a set that are prefetched ahead of the current lock: about as many cache
/// misses as a core keeps in flight.
const LOOKAHEAD: usize = 8;

/// Size of a [`LockTable`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockTableConfig {
    /// Bytes of slots, rounded down to whole buckets of 64. Default: 32 MiB (LOTUS §8.1).
    pub bytes: usize,
    /// Bits of a fingerprint, 1 to 56. Default: 56. Fewer bits cause false conflicts between names,
    /// which is safe but wasteful: for tests, and for measuring the benefit of fingerprints.
    pub fingerprint_bits: u32,
}

impl Default for LockTableConfig {
    fn default() -> Self {
        Self { bytes: 32 << 20, fingerprint_bits: 56 }
    }
}

impl LockTableConfig {
    /// Returns the configuration of a table of `bytes` bytes.
    pub fn with_bytes(bytes: usize) -> Self {
        Self { bytes, ..Self::default() }
    }
}

/// Reason why a lock table could not be created.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockTableError {
    /// Ask for at least one bucket of 64 bytes and at most 32 GiB.
    #[error("a lock table of {bytes} bytes: it takes 64 bytes to 32 GiB")]
    Size {
        /// Bytes asked for.
        bytes: usize,
    },
    /// Ask for 1 to 56 bits.
    #[error("fingerprints of {bits} bits: they have 1 to 56")]
    FingerprintBits {
        /// Bits asked for.
        bits: u32,
    },
    /// Ask for fewer bytes: the machine does not have the memory.
    #[error("no memory for a lock table of {bytes} bytes")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
}

/// Result of an unlock. In both cases the transaction no longer holds the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// The transaction held the lock, and has released it.
    Released,
    /// The transaction did not hold the lock: a repeated unlock is harmless (H7).
    NotHeld,
}

/// A position in the history of a name's write locks; see [`LockTable::watch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watch(u64);

mod waiting;

pub use waiting::LockOrWait;

/// The locks of one compute node, shared by its coordinators.
pub struct LockTable {
    /// The slots, and possibly unused words behind them; the first word is aligned to a cache line.
    words: Words,
    buckets: usize,
    fingerprint_mask: u64,
    stripes: Box<[Stripe]>,
}

/// Bucket and fingerprint of a name.
struct SlotPlace {
    bucket: usize,
    fingerprint: u64,
}

/// Result of a search for a fingerprint in a bucket.
enum Found {
    /// The fingerprint's slot, and the word read from it.
    Taken { index: usize, word: Word },
    /// A free slot for the fingerprint.
    Free { index: usize },
    /// All eight slots are taken by different fingerprints.
    Full,
}

impl LockTable {
    /// Creates an empty table.
    ///
    /// # Errors
    /// If the configuration is out of range or the memory is not available.
    pub fn new(config: LockTableConfig) -> Result<Self, LockTableError> {
        let LockTableConfig { bytes, fingerprint_bits: bits } = config;
        let buckets = bytes / BUCKET_BYTES;
        // Slots are numbered in 32 bits.
        if buckets == 0 || buckets * SLOTS_PER_BUCKET > 1 << 32 {
            return Err(LockTableError::Size { bytes });
        }
        if !(1..=56).contains(&bits) {
            return Err(LockTableError::FingerprintBits { bits });
        }
        let words = zeroed_words(buckets * SLOTS_PER_BUCKET)
            .ok_or(LockTableError::OutOfMemory { bytes })?;
        let stripes = buckets.next_power_of_two().min(STRIPES);
        let stripes = (0..stripes).map(|_| Stripe::new()).collect();
        Ok(Self { words, buckets, fingerprint_mask: (1 << bits) - 1, stripes })
    }

    /// Takes one lock, or returns the reason of the refusal. Never waits for the holders.
    ///
    /// Repeating a granted request is harmless. A write request for a lock that the transaction
    /// holds to read upgrades the lock if no other transaction reads.
    ///
    /// # Errors
    /// The reason for the refusal; the table is unchanged.
    #[inline]
    pub fn try_lock(&self, txn: TxnId, request: LockRequest) -> Result<Grant, Refusal> {
        let LockRequest { name, mode } = request;
        let place = self.place(&name);
        let mut records = self.stripe(place.bucket).enter();
        self.lock_in(&mut records, place, txn, LockRequest { name, mode })
    }

    /// [`Self::try_lock`] with the stripe of `place` already entered. The decision and the change
    /// of the slot rest on one load (I36).
    #[inline]
    fn lock_in(
        &self,
        records: &mut Records,
        place: SlotPlace,
        txn: TxnId,
        request: LockRequest,
    ) -> Result<Grant, Refusal> {
        let LockRequest { name, mode } = request;
        let SlotPlace { bucket, fingerprint } = place;
        let slots = self.slots(bucket);
        match find(slots, fingerprint) {
            Found::Free { index } => {
                let (grant, counter) = decide(Counter::FREE, Default::default(), mode)?;
                store(&slots[index], Word::new(fingerprint, counter));
                self.note_change(bucket, mode);
                records.add(slot_number(bucket, index), txn, &name, mode);
                Ok(grant)
            }
            Found::Taken { index, word } => {
                let slot = slot_number(bucket, index);
                let mine = records.of(slot, txn, &name);
                let (grant, counter) = decide(word.counter(), mine, mode)?;
                match grant {
                    Grant::Acquired if mine.records == 0 && records.overtakes(&name) => {
                        return Err(Refusal::Conflict);
                    }
                    Grant::Acquired => records.add(slot, txn, &name, mode),
                    Grant::Upgraded => {
                        records.set_mode(txn, &name, mode);
                    }
                    Grant::AlreadyHeld => return Ok(grant),
                }
                store(&slots[index], Word::new(fingerprint, counter));
                self.note_change(bucket, mode);
                Ok(grant)
            }
            Found::Full => Err(full(records, bucket, txn)),
        }
    }

    /// Releases one lock, regardless of its mode.
    #[inline]
    pub fn unlock(&self, txn: TxnId, name: &LockKey) -> Release {
        let SlotPlace { bucket, fingerprint } = self.place(name);
        let mut records = self.stripe(bucket).enter();
        let Some((slot, mode)) = records.remove(txn, name) else { return Release::NotHeld };
        let word = &self.slots(bucket)[slot_index(slot)];
        let seen = Word(word.load(Ordering::Relaxed));
        assert_eq!(seen.fingerprint(), fingerprint, "a held slot keeps its fingerprint");
        let counter = match mode {
            LockMode::Read if seen.counter() != Counter::WRITTEN => {
                Counter::read_by(seen.counter().readers() - 1)
            }
            _ => records.count(slot),
        };
        self.note_change(bucket, mode);
        store(word, Word::new(fingerprint, counter));
        if records.has_waiting() {
            self.serve(records, slot);
        }
        Release::Released
    }

    /// Takes all of `requests` or no lock, prefetching ahead; a name may occur more than once.
    ///
    /// # Errors
    /// The index of the first refused request, and the reason. Locks taken by this call are
    /// released, and locks upgraded by this call are downgraded; locks held before stay unchanged.
    pub fn try_lock_set(
        &self,
        txn: TxnId,
        requests: &[LockRequest],
    ) -> Result<(), (usize, Refusal)> {
        // Does not allocate unless the transaction requests a lock that it already holds.
        self.lock_set(txn, requests, &mut Vec::new())
    }

    /// Like [`Self::try_lock_set`]; also stores in `unusual` the index and grant of every request
    /// whose grant was not [`Grant::Acquired`], in ascending order.
    pub(crate) fn lock_set(
        &self,
        txn: TxnId,
        requests: &[LockRequest],
        unusual: &mut Vec<(usize, Grant)>,
    ) -> Result<(), (usize, Refusal)> {
        unusual.clear();
        if let [_, later @ ..] = requests {
            later.iter().take(LOOKAHEAD - 1).for_each(|request| self.prefetch(&request.name));
        }
        for (index, request) in requests.iter().enumerate() {
            if let Some(ahead) = requests.get(index + LOOKAHEAD) {
                self.prefetch(&ahead.name);
            }
            match self.try_lock(txn, *request) {
                Ok(Grant::Acquired) => {}
                Ok(grant) => unusual.push((index, grant)),
                Err(refusal) => {
                    self.undo_set(txn, &requests[..index], unusual);
                    return Err((index, refusal));
                }
            }
        }
        Ok(())
    }

    /// Undoes the grants of [`Self::lock_set`] for `granted`, last first; empties `unusual`.
    pub(crate) fn undo_set(
        &self,
        txn: TxnId,
        granted: &[LockRequest],
        unusual: &mut Vec<(usize, Grant)>,
    ) {
        for (index, request) in granted.iter().enumerate().rev() {
            match unusual.pop_if(|(at, _)| *at == index) {
                None => {
                    self.unlock(txn, &request.name);
                }
                Some((_, Grant::Upgraded)) => self.downgrade(txn, &request.name),
                Some(_) => {}
            }
        }
    }

    /// Releases every lock in `names`, skipping locks that `txn` does not hold.
    pub fn unlock_all(&self, txn: TxnId, names: &[LockKey]) {
        for name in names {
            self.unlock(txn, name);
        }
    }

    /// Releases every lock in `requests`, regardless of its mode.
    pub fn unlock_set(&self, txn: TxnId, requests: &[LockRequest]) {
        for request in requests {
            self.unlock(txn, &request.name);
        }
    }

    /// Whether `txn` holds `name`, to read or to write.
    pub fn holds(&self, txn: TxnId, name: &LockKey) -> bool {
        let SlotPlace { bucket, fingerprint } = self.place(name);
        let records = self.stripe(bucket).enter();
        let Found::Taken { index, .. } = find(self.slots(bucket), fingerprint) else {
            return false;
        };
        records.of(slot_number(bucket, index), txn, name).name.is_some()
    }

    /// Whether a transaction holds `name` to write. Takes no mutex.
    ///
    /// The answer was correct at one moment during the call. Errs only towards `true`, when another
    /// name has the same fingerprint in the same bucket.
    #[inline]
    pub fn is_write_locked(&self, name: &LockKey) -> bool {
        let SlotPlace { bucket, fingerprint } = self.place(name);
        // A name keeps its slot while held, so one pass over the bucket finds the slot.
        self.slots(bucket).iter().any(|word| {
            let word = Word(word.load(Ordering::Acquire));
            word.fingerprint() == fingerprint && word.counter() == Counter::WRITTEN
        })
    }

    /// Returns the current position, for [`Self::unwritten_since`]. Takes no mutex.
    #[inline]
    pub fn watch(&self, name: &LockKey) -> Watch {
        // Acquire: a thread that sees the increment of a grant must then find the slot taken.
        Watch(self.write_changes(self.place(name).bucket).load(Ordering::Acquire))
    }

    /// Whether no transaction has held `name` to write since `watch`, or holds it now. Takes no
    /// mutex.
    ///
    /// Errs only towards `false`, because names share counters. A very recent change by another
    /// thread, without synchronisation with this thread, may be missed; the module's notes say
    /// which changes cannot be missed.
    #[inline]
    pub fn unwritten_since(&self, name: &LockKey, watch: Watch) -> bool {
        // The slot first: a thread that sees the slot free after a writer sees the earlier
        // increment of the counter.
        !self.is_write_locked(name) && self.watch(name) == watch
    }

    /// Prefetches the first two cache lines that locking `name` touches.
    #[inline]
    pub fn prefetch(&self, name: &LockKey) {
        let bucket = self.place(name).bucket;
        prefetch::read(&self.slots(bucket)[0]);
        prefetch::read(self.stripe(bucket));
    }

    /// Number of held locks, counted once per holder.
    ///
    /// Enters every stripe in turn, so the sum is exact only without concurrent changes.
    pub fn held(&self) -> usize {
        self.stripes.iter().map(|stripe| stripe.enter().len()).sum()
    }

    /// Returns every lock held by transactions of `incarnation`, for releasing the locks of a dead
    /// node.
    ///
    /// Complete once no request can lock for the incarnation: refuse the incarnation at every lock
    /// server first (H8).
    pub fn holders_of(&self, incarnation: Incarnation) -> Vec<Holder> {
        let mut holders = Vec::new();
        self.for_each_holder(|holder| {
            if holder.txn.incarnation() == incarnation {
                holders.push(holder);
            }
        });
        holders
    }

    /// Returns every held lock of these shards, for the hand-over of the shards.
    ///
    /// Complete if this node stopped owning the shards before the call (H19).
    pub fn holders_in(&self, shards: &[ShardId]) -> Vec<Holder> {
        let mut holders = Vec::new();
        self.for_each_holder(|holder| {
            if shards.contains(&holder.name.shard()) {
                holders.push(holder);
            }
        });
        holders
    }

    /// Calls `visit` with every holder, one stripe at a time.
    ///
    /// `visit` runs inside a stripe: the closure must not call the table, and should be brief.
    pub fn for_each_holder(&self, mut visit: impl FnMut(Holder)) {
        for stripe in &self.stripes {
            stripe.enter().holders().for_each(&mut visit);
        }
    }

    /// Number of slots that disagree with their holders' records, or are not zero although without
    /// a holder (H7): always 0.
    ///
    /// Enters the stripes bucket by bucket, so the call is safe at any time.
    pub fn unsound_slots(&self) -> usize {
        let unsound_in = |bucket| {
            let records = self.stripe(bucket).enter();
            let slots = self.slots(bucket).iter().enumerate();
            let is_unsound = |(index, slot): &(usize, &AtomicU64)| {
                let word = Word(slot.load(Ordering::Relaxed));
                match records.count(slot_number(bucket, *index)) {
                    Counter::FREE => word != Word::FREE,
                    held => word.counter() != held,
                }
            };
            slots.filter(is_unsound).count()
        };
        (0..self.buckets).map(unsound_in).sum()
    }

    /// Turns an upgraded write lock back into a read lock.
    fn downgrade(&self, txn: TxnId, name: &LockKey) {
        let SlotPlace { bucket, fingerprint } = self.place(name);
        let mut records = self.stripe(bucket).enter();
        let slot = records
            .set_mode(txn, name, LockMode::Read)
            .expect("only what this transaction just upgraded is downgraded");
        let word = Word::new(fingerprint, records.count(slot));
        self.note_change(bucket, LockMode::Write);
        store(&self.slots(bucket)[slot_index(slot)], word);
        if records.has_waiting() {
            self.serve(records, slot);
        }
    }

    #[inline]
    fn place(&self, name: &LockKey) -> SlotPlace {
        let spread = name.spread();
        let bucket = (u128::from(spread.position) * self.buckets as u128) >> 64;
        let fingerprint = (spread.fingerprint & self.fingerprint_mask).max(1);
        SlotPlace { bucket: bucket as usize, fingerprint }
    }

    #[inline]
    fn stripe(&self, bucket: usize) -> &Stripe {
        // The number of stripes is a power of two; a division would cost more than the rest of the
        // look-up.
        &self.stripes[bucket & (self.stripes.len() - 1)]
    }

    /// Returns the counter of a bucket. The buckets of a stripe share its counters, in turn.
    #[inline]
    fn write_changes(&self, bucket: usize) -> &AtomicU64 {
        let turn = bucket >> self.stripes.len().trailing_zeros();
        &self.stripe(bucket).write_changes[turn % Stripe::COUNTERS]
    }

    /// Records the grant or release of a lock of this mode. The bucket's stripe must be entered.
    #[inline]
    fn note_change(&self, bucket: usize, mode: LockMode) {
        if mode == LockMode::Write {
            let changes = self.write_changes(bucket);
            // No atomic addition: only the thread that has entered the stripe stores.
            changes.store(changes.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
    }

    #[inline]
    fn slots(&self, bucket: usize) -> &[AtomicU64; SLOTS_PER_BUCKET] {
        self.words[bucket * SLOTS_PER_BUCKET..]
            .first_chunk()
            .expect("there is a word for every slot of every bucket")
    }
}

impl fmt::Debug for LockTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockTable").field("buckets", &self.buckets).finish_non_exhaustive()
    }
}

/// Searches a bucket for a fingerprint, or else for a free slot. The whole bucket is searched
/// before a free slot is returned, so a key never takes two slots (I35). The bucket's stripe must
/// be entered.
#[inline]
fn find(slots: &[AtomicU64; SLOTS_PER_BUCKET], fingerprint: u64) -> Found {
    let words = slots.each_ref().map(|word| Word(word.load(Ordering::Relaxed)));
    // Most requests find an empty bucket, which a single test detects.
    if words.iter().fold(0, |any, word| any | word.0) == Word::FREE.0 {
        return Found::Free { index: 0 };
    }
    let mut found = Found::Full;
    for (index, word) in words.into_iter().enumerate() {
        if word.fingerprint() == fingerprint {
            return Found::Taken { index, word };
        }
        if word == Word::FREE && matches!(found, Found::Full) {
            found = Found::Free { index };
            if broken(Rule::OneSlotPerName) {
                break;
            }
        }
    }
    found
}

/// Changes a slot. The slot's stripe must be entered.
#[inline]
fn store(slot: &AtomicU64, word: Word) {
    // Release: all actions of the last holder happen before a thread sees the slot free (I47).
    slot.store(word.0, Ordering::Release);
}

/// Distinguishes a bucket filled by `txn` alone from a bucket shared with other transactions (H7).
#[cold]
fn full(records: &Records, bucket: usize, txn: TxnId) -> Refusal {
    let mut slots = (0..SLOTS_PER_BUCKET).map(|index| slot_number(bucket, index));
    match slots.all(|slot| records.holds_slot(txn, slot)) {
        true => Refusal::OwnBucketFull,
        false => Refusal::BucketFull,
    }
}

/// Returns a slot's number in the table.
#[inline]
fn slot_number(bucket: usize, index: usize) -> u32 {
    (bucket * SLOTS_PER_BUCKET + index) as u32
}

/// Returns a slot's index in its bucket.
#[inline]
fn slot_index(slot: u32) -> usize {
    slot as usize % SLOTS_PER_BUCKET
}

#[cfg(all(test, not(lotus_loom)))]
mod tests;
