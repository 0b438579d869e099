//! The version table cache and the lock table under every interleaving of a few threads, up to
//! three preemptions of two threads or two of three (H11).
//!
//! `RUSTFLAGS="--cfg lotus_loom" cargo test -p lotus-mvcc --test loom`
//!
//! Remote memory is one word, the version of the newest cell; a clock is another. The threads use
//! locks and cache as `engine/src/node/caches/version_tables.rs` does.
#![cfg(lotus_loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use lotus_fabric::ids::{Incarnation, Key, TableId, TxnId};
use lotus_locktable::{LockKey, LockRequest, LockTable, LockTableConfig};
use lotus_mvcc::Timestamp;
use lotus_mvcc::layout::cvt::{CELL_WORDS, Cell, Contents, Version};
use lotus_mvcc::naming::{KeyMark, RowName};
use lotus_mvcc::version_table_cache::VersionTableCache;

const TABLE: TableId = TableId(1);
const KEY: Key = Key(7 << 12);
const NAME: RowName = RowName { key: KEY, mark: KeyMark::from_low_bits(5) };
const ROW: LockKey = LockKey::row(TABLE, KEY);
const OFFSET: u64 = 72;

fn txn(slot: u16) -> TxnId {
    TxnId::new(Incarnation::new(1).expect("fits"), slot, 1)
}

/// One cell: the version at `time`.
fn cell(time: u64) -> [u64; CELL_WORDS] {
    let taken = Cell::NEVER_USED.taken_by(txn(9), Contents::Deleted, 64);
    let time = Timestamp::new(time).expect("63 bits");
    Cell { version: Version::Committed(time), ..taken }.encode()
}

struct World {
    locks: LockTable,
    cache: VersionTableCache,
    memory: AtomicU64,
    clock: AtomicU64,
}

impl World {
    fn keep(&self, version: u64, still: impl FnOnce() -> bool) {
        self.cache.keep(TABLE, NAME, OFFSET, &cell(version), still);
    }

    fn cached(&self) -> Option<u64> {
        let mut words = [0; CELL_WORDS];
        self.cache.lookup(TABLE, NAME, &mut words).map(|_| words[0])
    }

    /// Writes memory and draws a timestamp, under the lock.
    fn write(&self) -> u64 {
        let time = self.clock.fetch_add(1, Ordering::AcqRel) + 1;
        self.memory.store(time, Ordering::Relaxed);
        time
    }

    /// A writer of this node. It believes the cached version, and renews it.
    fn write_here(&self, slot: u16) {
        if self.locks.try_lock(txn(slot), LockRequest::write(ROW)).is_err() {
            return;
        }
        if let Some(cached) = self.cached() {
            assert_eq!(cached, self.memory.load(Ordering::Relaxed), "under the lock");
        }
        let time = self.write();
        self.cache.renew(TABLE, NAME, OFFSET, (0, cell(time)));
        self.locks.unlock(txn(slot), &ROW);
    }

    /// A writer of another node: the grant of its lock removes the cached row.
    fn write_from_afar(&self, slot: u16) {
        if self.locks.try_lock(txn(slot), LockRequest::write(ROW)).is_err() {
            return;
        }
        self.cache.forget(TABLE, KEY);
        self.write();
        self.locks.unlock(txn(slot), &ROW);
    }

    /// A reader without a lock that finds nothing cached, reads memory, and keeps the result.
    fn fill(&self) {
        let watch = self.locks.watch(&ROW);
        let read = self.memory.load(Ordering::Relaxed);
        self.keep(read, || self.locks.unwritten_since(&ROW, watch));
    }

    /// A snapshot that looks into the cache: a version found there is no older than the snapshot.
    fn look(&self) {
        let snapshot = self.clock.load(Ordering::Acquire);
        if !self.locks.is_write_locked(&ROW)
            && let Some(cached) = self.cached()
        {
            assert!(cached >= snapshot, "version {cached} at snapshot {snapshot}");
        }
    }
}

/// Explores `threads` side by side, over a cache of one set, with and without the row.
fn explore(threads: &'static [fn(&World)]) {
    for cached in [false, true] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(5 - threads.len());
        model.check(move || {
            let world = Arc::new(World {
                locks: LockTable::new(LockTableConfig::with_bytes(64)).expect("valid"),
                cache: VersionTableCache::with_entries(1),
                memory: AtomicU64::new(1),
                clock: AtomicU64::new(1),
            });
            if cached {
                world.keep(1, || true);
            }
            let threads = threads.iter().map(|work| {
                let world = Arc::clone(&world);
                thread::spawn(move || work(&world))
            });
            threads.collect::<Vec<_>>().into_iter().for_each(|t| t.join().expect("no panic"));
            if let Some(cached) = world.cached() {
                assert_eq!(cached, world.memory.load(Ordering::Relaxed), "in the end");
            }
        });
    }
}

#[test]
fn h11_what_is_kept_beside_writers_of_this_node_is_true() {
    explore(&[World::fill, |world| world.write_here(1), |world| world.write_here(2)]);
}

#[test]
fn h11_what_is_kept_beside_writers_of_other_nodes_is_true() {
    explore(&[World::fill, |world| world.write_from_afar(1), |world| world.write_here(2)]);
}

#[test]
fn h11_snapshots_find_nothing_older_than_themselves() {
    explore(&[World::look, |world| world.write_here(1)]);
    explore(&[World::look, |world| world.write_from_afar(1)]);
    explore(&[World::look, World::fill, |world| world.write_from_afar(1)]);
}
