//! Hazards of the lock table, one test each; then its sizes and errors.

use lotus_fabric::ids::{Incarnation, Key, TableId};

use super::*;
use crate::lock_key::COLLISION_FREE_BUCKETS;
use crate::slot::MAX_HOLDERS_PER_SLOT;
use LockMode::{Read, Write};

const ROW: LockKey = row(7);
const OTHER: LockKey = row(8);

const fn row(key: u64) -> LockKey {
    LockKey::row(TableId(1), Key(key << 12))
}

fn txn(attempt: u64) -> TxnId {
    txn_of(1, attempt)
}

fn txn_of(incarnation: u16, attempt: u64) -> TxnId {
    TxnId::new(Incarnation::new(incarnation).expect("fits"), 0, attempt)
}

/// Table of one bucket; with one bit of fingerprint, all names share its first slot.
fn one_bucket(fingerprint_bits: u32) -> LockTable {
    LockTable::new(LockTableConfig { bytes: 64, fingerprint_bits }).expect("valid")
}

fn words(table: &LockTable) -> Vec<u64> {
    table.words.iter().map(|word| word.load(Ordering::Relaxed)).filter(|word| *word != 0).collect()
}

fn lock(table: &LockTable, attempt: u64, name: LockKey, mode: LockMode) -> Result<Grant, Refusal> {
    table.try_lock(txn(attempt), LockRequest { name, mode })
}

/// Two requests for one key, each finding another slot of the bucket free, would both succeed.
/// The first frees a slot in front of the one that the key is in: a second request must still
/// find the key's slot and not stop at the free one.
#[test]
fn h5_a_key_has_one_slot_even_behind_a_free_one() {
    let table = one_bucket(56);
    assert_eq!(lock(&table, 1, OTHER, Write), Ok(Grant::Acquired));
    assert_eq!(lock(&table, 1, ROW, Write), Ok(Grant::Acquired));
    assert_eq!(table.unlock(txn(1), &OTHER), Release::Released);
    assert_eq!(lock(&table, 2, ROW, Write), Err(Refusal::Conflict));
    assert_eq!(words(&table).len(), 1);
}

/// Many threads fight for one key in a bucket where slots come and go. Were two of them ever to
/// hold it together, the unprotected counter would lose an increment.
#[test]
fn h5_h6_writers_exclude_each_other() {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    let (table, counter) = (one_bucket(56), AtomicU64::new(0));
    let granted: u64 = std::thread::scope(|scope| {
        let work = |thread: u64| {
            let mut granted = 0;
            for round in 0..20_000 {
                let txn = txn(thread << 32 | round);
                let churn = LockRequest::write(row(100 + thread));
                let _ = table.try_lock(txn, churn);
                if table.try_lock(txn, LockRequest::write(ROW)).is_ok() {
                    counter.store(counter.load(Relaxed) + 1, Relaxed);
                    granted += 1;
                }
                table.unlock_all(txn, &[churn.name, ROW]);
            }
            granted
        };
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    assert_eq!(counter.load(Relaxed), granted);
    assert_eq!((table.held(), words(&table)), (0, vec![]));
}

/// A reader looks at a free slot, a writer takes it, and the reader joins the writer.
/// Whatever the order, a written slot refuses readers and a read one refuses writers.
#[test]
fn h6_a_reader_never_joins_a_writer() {
    let table = one_bucket(56);
    assert_eq!(lock(&table, 1, ROW, Write), Ok(Grant::Acquired));
    assert_eq!(lock(&table, 2, ROW, Read), Err(Refusal::Conflict));
    table.unlock(txn(1), &ROW);
    assert_eq!(lock(&table, 2, ROW, Read), Ok(Grant::Acquired));
    assert_eq!(lock(&table, 3, ROW, Read), Ok(Grant::Acquired));
    assert_eq!(lock(&table, 1, ROW, Write), Err(Refusal::Conflict));
}

/// Slots left as (fingerprint, 0) would fill the bucket with names without holders.
#[test]
fn h7_a_bucket_can_be_filled_again_and_again() {
    let table = one_bucket(56);
    for key in 0..80 {
        let mode = if key % 2 == 0 { Read } else { Write };
        assert_eq!(lock(&table, 1, row(key), mode), Ok(Grant::Acquired));
        assert_eq!(table.unlock(txn(1), &row(key)), Release::Released);
        assert_eq!(words(&table), []);
    }
}

/// A reader that asks to write must not be told that it holds the lock already.
#[test]
fn h7_an_upgrade_needs_a_sole_reader() {
    let table = one_bucket(56);
    assert_eq!(lock(&table, 1, ROW, Read), Ok(Grant::Acquired));
    assert_eq!(lock(&table, 2, ROW, Read), Ok(Grant::Acquired));
    assert_eq!(lock(&table, 1, ROW, Write), Err(Refusal::Conflict));
    assert_eq!(lock(&table, 2, ROW, Write), Err(Refusal::Conflict));
    table.unlock(txn(2), &ROW);
    assert_eq!(lock(&table, 1, ROW, Write), Ok(Grant::Upgraded));
    assert_eq!(lock(&table, 2, ROW, Read), Err(Refusal::Conflict));
    assert!(table.is_write_locked(&ROW));
    assert_eq!((table.unlock(txn(1), &ROW), words(&table)), (Release::Released, vec![]));
}

/// Two keys of one transaction that look the same: refusing the second would refuse it for ever.
#[test]
fn h7_a_transaction_does_not_conflict_with_itself() {
    for modes in [[Read, Read], [Read, Write], [Write, Read], [Write, Write]] {
        let table = one_bucket(1);
        assert_eq!(lock(&table, 1, ROW, modes[0]), Ok(Grant::Acquired));
        assert_eq!(lock(&table, 1, OTHER, modes[1]), Ok(Grant::Acquired));
        assert_eq!(table.held(), 2);
        // The stronger of the two modes keeps others out, until the last lock is gone.
        let expected = if modes.contains(&Write) { Err(Refusal::Conflict) } else { Ok(()) };
        assert_eq!(lock(&table, 2, ROW, Read).map(drop), expected, "{modes:?}");
        table.unlock(txn(2), &ROW);
        table.unlock(txn(1), &ROW);
        assert_eq!(table.is_write_locked(&OTHER), modes[1] == Write);
        assert_eq!(lock(&table, 2, ROW, Write), Err(Refusal::Conflict));
        table.unlock(txn(1), &OTHER);
        assert_eq!(words(&table), []);
    }
}

/// Nine locks of one transaction in one bucket: the refusal must say that no retry will help.
#[test]
fn h7_a_bucket_full_of_ones_own_locks_is_told_apart() {
    let table = one_bucket(56);
    for key in 0..8 {
        assert_eq!(lock(&table, 1, row(key), Write), Ok(Grant::Acquired));
    }
    assert_eq!(lock(&table, 1, row(8), Write), Err(Refusal::OwnBucketFull));
    assert_eq!(lock(&table, 2, row(8), Read), Err(Refusal::BucketFull));
    assert_eq!(lock(&table, 1, row(3), Read), Ok(Grant::AlreadyHeld));
    table.unlock(txn(1), &row(0));
    assert_eq!(lock(&table, 2, row(8), Read), Ok(Grant::Acquired));
    assert_eq!(lock(&table, 1, row(0), Write), Err(Refusal::BucketFull));
}

/// The audit runs while a memory node is filled, and locks come and go.
#[test]
fn h7_slots_are_sound_whenever_they_are_looked_at() {
    let table = one_bucket(2);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|thread| {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let (txn, name) = (txn(thread << 32 | round), row(round % 7));
                        let _ = table.try_lock(txn, LockRequest::read(name));
                        let _ = table.try_lock(txn, LockRequest::write(name));
                        table.unlock(txn, &name);
                    }
                })
            })
            .collect();
        loop {
            let is_over = workers.iter().all(|worker| worker.is_finished());
            assert_eq!(table.unsound_slots(), 0);
            if is_over {
                break;
            }
        }
    });
}

#[test]
fn h7_slots_that_their_holders_would_not_make_so_are_found() {
    let table = one_bucket(56);
    assert_eq!(lock(&table, 1, ROW, Write), Ok(Grant::Acquired));
    let held = table.words.iter().position(|word| word.load(Ordering::Relaxed) != 0);
    let held = held.expect("a lock is held");
    // A word in the slot that is held, and in one that is not.
    let sound = table.words[held].load(Ordering::Relaxed);
    let free = (held + 1) % SLOTS_PER_BUCKET;
    for (slot, word, unsound) in
        [(held, 0, 1), (held, sound + 1, 1), (held, sound, 0), (free, 7 << 8, 1), (free, 0, 0)]
    {
        table.words[slot].store(word, Ordering::Relaxed);
        assert_eq!(table.unsound_slots(), unsound, "{word:#x}");
    }
}

/// A second unlock must not take a reader away from another transaction.
#[test]
fn h7_a_second_unlock_is_harmless() {
    let table = one_bucket(56);
    assert_eq!(lock(&table, 1, ROW, Read), Ok(Grant::Acquired));
    assert_eq!(lock(&table, 2, ROW, Read), Ok(Grant::Acquired));
    assert_eq!(table.unlock(txn(1), &ROW), Release::Released);
    assert_eq!(table.unlock(txn(1), &ROW), Release::NotHeld);
    assert_eq!(lock(&table, 3, ROW, Write), Err(Refusal::Conflict));
    assert_eq!(table.unlock(txn(2), &ROW), Release::Released);
    assert_eq!(lock(&table, 3, ROW, Write), Ok(Grant::Acquired));
}

/// The 128th reader would wrap the counter to zero: a free slot with 128 readers.
#[test]
fn h7_the_128th_reader_is_refused() {
    let table = one_bucket(56);
    let readers = u64::from(MAX_HOLDERS_PER_SLOT);
    for reader in 0..readers {
        assert_eq!(lock(&table, reader, ROW, Read), Ok(Grant::Acquired));
    }
    assert_eq!(lock(&table, readers, ROW, Read), Err(Refusal::TooManyReaders));
    assert_eq!(lock(&table, 0, ROW, Read), Ok(Grant::AlreadyHeld));
    for reader in 0..readers {
        assert_eq!(table.unlock(txn(reader), &ROW), Release::Released);
    }
    assert_eq!((table.held(), words(&table)), (0, vec![]));
}

/// The locks of a dead node are found by its incarnation, in any bucket.
#[test]
fn h8_the_locks_of_a_dead_incarnation_are_found() {
    let table = LockTable::new(LockTableConfig::with_bytes(1 << 20)).expect("valid");
    let (dead, alive) = (txn_of(3, 1), txn_of(4, 1));
    for key in 0..500 {
        let txn = if key % 5 == 0 { dead } else { alive };
        assert_eq!(table.try_lock(txn, LockRequest::read(row(key))), Ok(Grant::Acquired));
    }
    let mut found = table.holders_of(dead.incarnation());
    found.sort_unstable();
    let expected = (0..500).step_by(5).map(|key| Holder { name: row(key), txn: dead, mode: Read });
    assert_eq!(found, expected.collect::<Vec<_>>());
    for holder in found {
        assert_eq!(table.unlock(holder.txn, &holder.name), Release::Released);
    }
    assert_eq!((table.held(), table.holders_of(dead.incarnation())), (400, vec![]));
}

#[test]
fn a_set_is_taken_whole_or_not_at_all() {
    let table = LockTable::new(LockTableConfig::with_bytes(1 << 20)).expect("valid");
    let requests: Vec<_> = (0..30).map(|key| LockRequest::write(row(key))).collect();
    // Held before the call: one lock that the set repeats and one that it upgrades.
    assert_eq!(lock(&table, 1, row(2), Write), Ok(Grant::Acquired));
    assert_eq!(lock(&table, 1, row(3), Read), Ok(Grant::Acquired));
    // A conflict with another transaction.
    assert_eq!(lock(&table, 2, row(25), Read), Ok(Grant::Acquired));

    assert_eq!(table.try_lock_set(txn(1), &requests), Err((25, Refusal::Conflict)));
    assert_eq!(table.held(), 3);
    assert!(table.is_write_locked(&row(2)) && !table.is_write_locked(&row(3)));
    assert_eq!(lock(&table, 3, row(3), Read), Ok(Grant::Acquired));
    table.unlock(txn(3), &row(3));

    table.unlock(txn(2), &row(25));
    assert_eq!(table.try_lock_set(txn(1), &requests), Ok(()));
    assert_eq!(table.try_lock_set(txn(1), &requests), Ok(()));
    assert_eq!(table.held(), 30);
    table.unlock_set(txn(1), &requests);
    assert_eq!((table.held(), words(&table)), (0, vec![]));
}

#[test]
fn a_set_that_names_a_lock_twice_is_undone_too() {
    let table = one_bucket(56);
    let set = [LockRequest::read(ROW), LockRequest::write(ROW), LockRequest::write(OTHER)];
    assert_eq!(lock(&table, 2, OTHER, Write), Ok(Grant::Acquired));
    assert_eq!(table.try_lock_set(txn(1), &set), Err((2, Refusal::Conflict)));
    assert_eq!(table.held(), 1);
    assert_eq!(table.try_lock_set(txn(1), &set[..2]), Ok(()));
    assert!(table.is_write_locked(&ROW));
}

#[test]
fn two_keys_of_a_table_never_look_the_same() {
    let bytes = COLLISION_FREE_BUCKETS * BUCKET_BYTES;
    let table = LockTable::new(LockTableConfig::with_bytes(bytes)).expect("valid");
    let mut places: Vec<_> = (0..200_000u64)
        .map(|key| table.place(&LockKey::row(TableId(1), Key(key))))
        .map(|place| (place.bucket, place.fingerprint))
        .collect();
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[0] != pair[1]));
    // And they fill the buckets evenly: 98 a bucket, give or take.
    let fullest = places.chunk_by(|one, next| one.0 == next.0).map(<[_]>::len).max();
    assert!(fullest.is_some_and(|keys| keys < 98 + 60), "{fullest:?}");
}

#[test]
fn every_bucket_is_a_cache_line() {
    for bytes in [64, 127, 128, 1000, 1 << 20] {
        let table = LockTable::new(LockTableConfig::with_bytes(bytes)).expect("valid");
        assert_eq!(table.buckets, bytes / 64);
        for bucket in [0, table.buckets - 1] {
            assert_eq!(table.slots(bucket).as_ptr().addr() % 64, 0);
        }
    }
}

#[test]
fn sizes_out_of_range_are_refused() {
    use LockTableError::{FingerprintBits, Size};
    let config = |bytes, fingerprint_bits| LockTableConfig { bytes, fingerprint_bits };
    let cases = [
        (config(0, 56), Size { bytes: 0 }),
        (config(63, 56), Size { bytes: 63 }),
        (config((32 << 30) + 64, 56), Size { bytes: (32 << 30) + 64 }),
        (config(usize::MAX, 56), Size { bytes: usize::MAX }),
        (config(64, 0), FingerprintBits { bits: 0 }),
        (config(64, 57), FingerprintBits { bits: 57 }),
    ];
    for (config, error) in cases {
        assert_eq!(LockTable::new(config).err(), Some(error));
    }
    assert!(LockTable::new(LockTableConfig::default()).is_ok());
}

/// Data that a reader without a lock read while a writer could write must not be kept, however the
/// writer came and went.
#[test]
fn h11_whoever_could_write_since_a_watch_is_noticed() {
    type Change = fn(&LockTable);
    let quiet: [(&str, Change); 3] = [
        ("nothing", |_| ()),
        ("a reader", |table| {
            assert!(lock(table, 1, ROW, Read).is_ok());
            table.unlock(txn(1), &ROW);
        }),
        ("a refused writer", |table| {
            assert!(lock(table, 1, ROW, Read).is_ok() && lock(table, 2, ROW, Write).is_err());
        }),
    ];
    let noticed: [(&str, Change); 5] = [
        ("a writer", |table| assert!(lock(table, 1, ROW, Write).is_ok())),
        ("a writer that is gone", |table| {
            assert!(lock(table, 1, ROW, Write).is_ok());
            table.unlock(txn(1), &ROW);
        }),
        ("an upgrade", |table| {
            assert!(lock(table, 1, ROW, Read).is_ok() && lock(table, 1, ROW, Write).is_ok());
        }),
        ("an upgrade that is gone", |table| {
            assert!(lock(table, 1, ROW, Read).is_ok());
            let (requests, mut unusual) = ([LockRequest::write(ROW)], Vec::new());
            assert_eq!(table.lock_set(txn(1), &requests, &mut unusual), Ok(()));
            table.undo_set(txn(1), &requests, &mut unusual);
        }),
        ("a set that was given back", |table| {
            assert!(lock(table, 2, OTHER, Write).is_ok());
            let set = [LockRequest::write(ROW), LockRequest::write(OTHER)];
            assert!(table.try_lock_set(txn(1), &set).is_err());
        }),
    ];
    let table = || LockTable::new(LockTableConfig::with_bytes(1 << 16)).expect("valid");
    for (changes, unwritten) in [(&quiet[..], true), (&noticed, false)] {
        for (what, change) in changes {
            let table = table();
            let watch = table.watch(&ROW);
            change(&table);
            assert_eq!(table.unwritten_since(&ROW, watch), unwritten, "{what}");
        }
    }
    // A writer that was there before is noticed, and so is its release.
    for gone in [false, true] {
        let table = table();
        assert!(lock(&table, 1, ROW, Write).is_ok());
        let watch = table.watch(&ROW);
        if gone {
            table.unlock(txn(1), &ROW);
        }
        assert!(!table.unwritten_since(&ROW, watch));
    }
}
