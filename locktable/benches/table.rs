//! Cost of a lock: warm, in sets, and cold with and without prefetching.
//!
//! Cold means random names over a table of 32 MiB whose slots have all been used: every lock misses
//! the caches once for its bucket, unless the set prefetches it while others are taken.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lotus_fabric::ids::{Incarnation, Key, TableId, TxnId};
use lotus_locktable::{LockKey, LockRequest, LockTable, LockTableConfig};

const SET: usize = 8;
const COLD_NAMES: u64 = 1 << 22;

fn txn(attempt: u64) -> TxnId {
    TxnId::new(Incarnation::new(1).expect("fits"), 0, attempt)
}

fn write(key: u64) -> LockRequest {
    LockRequest::write(LockKey::row(TableId(1), Key(key << 12)))
}

fn warm(criterion: &mut Criterion) {
    let table = LockTable::new(LockTableConfig::default()).expect("valid");
    let (one, two) = ([write(1)], [write(1), write(2)]);
    let read = LockRequest::read(one[0].name);
    let mut group = criterion.benchmark_group("warm");
    group.bench_function("lock_and_unlock_to_write", |bencher| {
        bencher.iter(|| {
            let _ = black_box(table.try_lock(txn(1), black_box(one[0])));
            black_box(table.unlock(txn(1), &one[0].name))
        });
    });
    group.bench_function("lock_and_unlock_to_read", |bencher| {
        bencher.iter(|| {
            let _ = black_box(table.try_lock(txn(1), black_box(read)));
            black_box(table.unlock(txn(1), &read.name))
        });
    });
    group.bench_function("lock_and_unlock_a_set_of_two", |bencher| {
        bencher.iter(|| {
            let _ = black_box(table.try_lock_set(txn(1), black_box(&two)));
            table.unlock_set(txn(1), &two);
        });
    });
    group.bench_function("is_write_locked", |bencher| {
        bencher.iter(|| table.is_write_locked(black_box(&one[0].name)));
    });
    group.finish();
}

fn cold(criterion: &mut Criterion) {
    let table = LockTable::new(LockTableConfig::default()).expect("valid");
    for key in 0..COLD_NAMES {
        let _ = table.try_lock(txn(1), write(key));
        table.unlock(txn(1), &write(key).name);
    }
    // Names in sequence fall all over the table; none comes again before 4 Mi others.
    let mut next = 0;
    let mut set = move || {
        next = (next + SET as u64) % COLD_NAMES;
        std::array::from_fn::<_, SET, _>(|offset| write(next + offset as u64))
    };
    let mut group = criterion.benchmark_group("cold");
    group.throughput(Throughput::Elements(SET as u64));
    group.bench_function("eight_one_by_one", |bencher| {
        bencher.iter(|| {
            let set = set();
            for request in &set {
                let _ = black_box(table.try_lock(txn(1), *request));
            }
            table.unlock_set(txn(1), &set);
        });
    });
    group.bench_function("eight_as_a_set", |bencher| {
        bencher.iter(|| {
            let set = set();
            let _ = black_box(table.try_lock_set(txn(1), &set));
            table.unlock_set(txn(1), &set);
        });
    });
    group.finish();
}

criterion_group!(benches, warm, cold);
criterion_main!(benches);
