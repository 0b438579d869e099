//! Limits: settings, sizes, write sets, memory, lock slots, index buckets.
//!
//! Every refusal is a typed error, leaves no trace, and affects no other transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::*;
use lotus::{
    Abort, Cluster, ClusterBuilder, ClusterError, CoordinatorId, CriticalField, Isolation,
    LockKind, PrimaryKey, TableId, TableSpec, Transaction, TxnError,
};
use lotus_fabric::env::Env;
use lotus_fabric::sim::{Config, Profile, SimMachines, World};

type Tweak = fn(ClusterBuilder) -> ClusterBuilder;

#[test]
fn settings_that_do_not_add_up_are_refused_with_a_sentence() {
    let topology: &[Tweak] = &[
        |builder| builder.memory_nodes(0),
        |builder| builder.compute_nodes(0),
        |builder| builder.replicas(0),
        |builder| builder.memory_nodes(2),
        |builder| builder.replicas(4),
        |builder| builder.memory_nodes(9).replicas(9),
        |builder| builder.memory_nodes(65),
        |builder| builder.compute_nodes(65),
        |builder| builder.compute_nodes(70_000),
        |builder| builder.memory_nodes(usize::MAX),
        |builder| builder.compute_nodes(usize::MAX),
        |builder| builder.replicas(usize::MAX),
    ];
    let settings: &[Tweak] = &[
        |builder| builder.threads(0),
        |builder| builder.coroutines(0),
        |builder| builder.threads(33).coroutines(32),
        |builder| builder.threads(usize::MAX).coroutines(2),
        |builder| builder.max_writes(u16::MAX),
        |builder| builder.locks(LockKind::Cas).threads(129).coroutines(1),
        |builder| builder.locks(LockKind::Dslr).compute_nodes(64).threads(8).coroutines(16),
        |builder| builder.locks(LockKind::ShiftLock).compute_nodes(16).threads(8).coroutines(16),
        |builder| builder.locks(LockKind::Declock).compute_nodes(16).threads(8).coroutines(15),
        |builder| builder.memory_limit(0),
        |builder| builder.memory_limit(1 << 20),
        |builder| builder.memory_limit(u64::MAX),
    ];
    for tweak in topology {
        let refused = tweak(small()).start().err().expect("it does not add up");
        assert!(matches!(refused, ClusterError::Topology(_)), "{refused}");
    }
    for tweak in settings {
        let refused = tweak(small()).start().err().expect("it does not add up");
        assert!(matches!(refused, ClusterError::Setting(_)), "{refused}");
        assert!(refused.to_string().len() > 20, "{refused}");
    }
    for bytes in [0, 63, 64 << 30] {
        let refused = small().lock_table_bytes(bytes).start().err();
        assert!(matches!(refused, Some(ClusterError::LockTable(_))), "{refused:?}");
    }
    let refused = small().max_writes(0).start().err();
    assert!(matches!(refused, Some(ClusterError::Log(_))), "{refused:?}");
}

/// A coordinator that does not exist is not mapped to another one.
#[test]
fn only_coordinators_that_exist_take_jobs() {
    let (cluster, _) = with_numbers(small().compute_nodes(2));
    for (compute_node, thread) in [(0, 1), (2, 0), (usize::MAX, 0)] {
        let submit =
            || drop(cluster.submit(CoordinatorId { compute_node, thread }, |_| async { Ok(()) }));
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(submit));
        assert!(refused.is_err(), "compute node {compute_node}, thread {thread}");
    }
    stop_clean(cluster);
}

#[test]
fn a_memory_limit_need_not_be_round() {
    let (cluster, table) = with_numbers(small().memory_limit((9 << 20) + 1));
    insert(&cluster, table, 1, 1);
    stop_clean(cluster);
}

#[test]
fn tables_that_cannot_be_are_refused_and_take_nothing() {
    let (cluster, table) = with_numbers(small());
    let before = cluster.memory_use().expect("all nodes can be reached");
    let good = || TableSpec::new("other").record_bytes(8).capacity(10);
    let specs = [
        TableSpec::new("").record_bytes(8).capacity(10),
        TableSpec::named("x".repeat(65)).record_bytes(8).capacity(10),
        TableSpec::new("unsized").capacity(10),
        good().record_bytes(15_361),
        good().capacity(0),
        good().capacity(u64::MAX),
        good().key_bytes(0),
        good().key_bytes(32),
        good().versions(1),
        good().versions(100),
        good().shards(0),
        good().shards(4097),
        good().critical_field(CriticalField::Bytes { start: 4, len: 8 }),
    ];
    for spec in specs {
        let refused = cluster.create_table(spec).expect_err("it is not valid");
        assert!(matches!(refused, ClusterError::Spec { .. }), "{refused}");
    }
    let twice = cluster.create_table(NUMBERS).expect_err("the name is taken");
    assert!(matches!(twice, ClusterError::TableExists(name) if name == "numbers"));
    let huge = cluster.create_table(good().capacity(1 << 36)).expect_err("it does not fit");
    assert!(matches!(huge, ClusterError::OutOfMemory { .. }), "{huge}");
    assert_eq!(cluster.memory_use().expect("all nodes can be reached"), before);
    assert_eq!((cluster.table("numbers"), cluster.table("other")), (Some(table), None));
    let unknown = cluster.audit_scan(TableId(5), &mut |_, _, _| {}).expect_err("there is none");
    assert!(matches!(unknown, ClusterError::UnknownTable(TableId(5))));
    cluster.create_table(good()).expect("nothing stands in its way");
    stop_clean(cluster);
}

#[test]
fn rows_that_cannot_be_loaded_are_named() {
    let cluster = start(small());
    let spec = |name| TableSpec::named(name).record_bytes(8).capacity(10);
    let load = |name: &str, source: &lotus::RowSource<'_>| {
        let table = cluster.create_table(spec(name.to_owned())).expect("there is room");
        cluster.load(table, 4, source, &AtomicU64::new(0)).err()
    };
    let duplicate = load("duplicate", &|row, _| PrimaryKey::from(row / 2));
    let long = load("long", &|row, value| {
        value.resize(row as usize * 3, 0);
        PrimaryKey::from(row)
    });
    let key = load("key", &|row, _| PrimaryKey::from((row, row)));
    for (refused, rows) in [(duplicate, 1..4), (long, 3..4), (key, 0..4)] {
        let Some(ClusterError::Row { row, .. }) = refused else { panic!("{refused:?}") };
        assert!(rows.contains(&row), "row {row}");
    }
}

#[test]
fn a_write_set_as_large_as_the_log_commits_and_a_larger_one_changes_nothing() {
    for nodes in [1, 2] {
        let (cluster, table) = with_numbers(small().compute_nodes(nodes));
        for (first, writes) in [(0, 513), (1_000, 512)] {
            let committed =
                cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
                    for key in first..first + writes {
                        txn.insert(table, key, &key.to_le_bytes())?;
                    }
                    Ok(())
                });
            match writes {
                512 => _ = done(committed),
                _ => assert_eq!(outcome(committed), Err(TxnError::TooManyWrites { limit: 512 })),
            }
        }
        assert_keys(&cluster, table, 1_000..1_512);
        // Reads do not count.
        done(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            for key in 1_000..1_512 {
                txn.add_rw(table, key)?;
            }
            txn.add_ro(table, 0)?;
            txn.execute().await?;
            Ok(())
        }));
        stop_clean(cluster);
    }
}

#[test]
fn keys_and_values_over_the_limit_are_too_large() {
    let (cluster, table) = with_numbers(small());
    insert(&cluster, table, 1, 10);
    done(cluster.submit(FIRST, move |mut session| async move {
        let too_large = |error: TxnError| assert!(matches!(error, TxnError::TooLarge(_)));
        let mut txn = session.begin(Isolation::Serializable).await?;
        let item = txn.add_rw(table, 1)?;
        too_large(txn.add_ro(table, [7; 9]).unwrap_err());
        too_large(txn.insert(table, [7; 31], b"").unwrap_err());
        too_large(txn.put(item, &[0; 17]).unwrap_err());
        // The transaction goes on without them.
        txn.execute().await?;
        txn.put(item, &11u64.to_le_bytes())?;
        too_large(txn.put(item, &[0; 8192]).unwrap_err());
        txn.commit().await
    }));
    assert_eq!(read(&cluster, table, 1), Some(11));
    stop_clean(cluster);
}

/// An insert with a refused value must not stay behind as a row without one.
#[test]
fn an_insert_of_a_value_that_is_too_large_leaves_no_row() {
    let (cluster, table) = with_numbers(small());
    done(cluster.submit(FIRST, move |mut session| async move {
        let mut txn = session.begin(Isolation::Serializable).await?;
        assert!(txn.insert(table, 1, &[0; 17]).is_err());
        txn.insert(table, 2, &2u64.to_le_bytes())?;
        txn.commit().await
    }));
    assert_eq!((read(&cluster, table, 1), read(&cluster, table, 2)), (None, Some(2)));
    stop_clean(cluster);
}

const BLOBS: TableSpec = TableSpec::new("blobs").record_bytes(8192).capacity(600).shards(8);

/// Inserts rows of 8 KiB under keys `from..` until one and then 40 more have been refused. Returns
/// the keys inserted.
fn fill(cluster: &Cluster, coordinator_id: CoordinatorId, table: TableId, from: u64) -> Vec<u64> {
    done(cluster.submit(coordinator_id, move |mut session| async move {
        let (mut inserted, mut refused) = (Vec::new(), 0);
        for key in from.. {
            let mut txn = session.begin(Isolation::Serializable).await?;
            txn.insert(table, key, &[key as u8; 8192])?;
            match txn.commit().await {
                Ok(_) => inserted.push(key),
                Err(TxnError::TableFull { table: full }) => {
                    assert_eq!(full, table);
                    refused += 1;
                }
                Err(error) if error.is_retryable() => session.back_off(3).await,
                Err(error) => return Err(error),
            }
            if refused > 40 {
                break;
            }
        }
        Ok(inserted)
    }))
}

#[test]
fn a_full_table_refuses_more_rows_and_serves_those_it_has() {
    let (cluster, numbers) = with_numbers(small().memory_limit(9 << 20));
    let table = cluster.create_table(BLOBS).expect("there is room");
    insert(&cluster, numbers, 1, 10);
    update(&cluster, numbers, 1, 11).expect("nobody else is there");
    let inserted = fill(&cluster, FIRST, table, 0);
    assert!(inserted.len() > 100, "only {}", inserted.len());
    let last = *inserted.last().expect("some were");
    done(cluster.submit(FIRST, move |mut session| async move {
        for key in [inserted, vec![last + 1]].concat() {
            let mut txn = session.begin_read_only().await?;
            let item = txn.add_ro(table, key)?;
            txn.execute().await?;
            let expected = (key <= last).then_some(vec![key as u8; 8192]);
            assert_eq!(txn.value(item), expected.as_deref(), "row {key}");
        }
        Ok(())
    }));
    // Both cells of this row have their record slots.
    update(&cluster, numbers, 1, 12).expect("it needs no memory");
    assert_eq!(read(&cluster, numbers, 1), Some(12));
    let refused = cluster.create_table(TableSpec::new("late").record_bytes(8).capacity(100_000));
    assert!(matches!(refused, Err(ClusterError::OutOfMemory { .. })), "{refused:?}");
    stop_clean(cluster);
}

/// Taking a slab was a fetch-and-add of the group's cursor, taken back by compare-and-swap if it
/// ran past the end. Two coordinators that ran past it together each hindered the other: the cursor
/// stayed beyond the region, and readers that believed it read out of bounds.
#[test]
fn the_end_of_memory_is_found_by_many_at_once() {
    let builder = small().memory_limit(6 << 20).compute_nodes(2).threads(2);
    let cluster = start(builder);
    let table = cluster.create_table(BLOBS).expect("there is room");
    let coordinator_ids: Vec<_> = cluster.coordinators().collect();
    let inserted = Env::real(0).in_parallel(16, |worker| {
        fill(
            &cluster,
            coordinator_ids[worker % coordinator_ids.len()],
            table,
            worker as u64 * 10_000,
        )
    });
    assert_keys(&cluster, table, inserted.concat());
    let used = cluster.memory_use().expect("all nodes can be reached");
    assert!(used.total_bytes <= 3 * (6 << 20), "{used:?}");
    stop_clean(cluster);
}

/// The lock table of these tests: one bucket of eight slots.
const ONE_BUCKET: usize = 64;

#[test]
fn a_full_lock_table_is_worth_a_retry() {
    let (cluster, table) = with_numbers(small().lock_table_bytes(ONE_BUCKET));
    let holds = Arc::new(AtomicUsize::new(0));
    let (holding, refused) = (Arc::clone(&holds), Arc::clone(&holds));
    let holder = cluster.submit(FIRST, move |mut session| async move {
        let view = session.view();
        let mut txn = session.begin(Isolation::Serializable).await?;
        for key in 0..8 {
            txn.add_ro(table, key)?;
        }
        txn.execute().await?;
        holding.store(1, Ordering::SeqCst);
        until(&view, || holding.load(Ordering::SeqCst) == 2).await;
        txn.commit().await
    });
    done(cluster.submit(FIRST, move |mut session| async move {
        until(&session.view(), || refused.load(Ordering::SeqCst) == 1).await;
        let mut txn = session.begin(Isolation::Serializable).await?;
        txn.add_rw(table, 100)?;
        assert_eq!(txn.execute().await, Err(TxnError::LockTableFull));
        assert!(TxnError::LockTableFull.is_retryable());
        drop(txn);
        refused.store(2, Ordering::SeqCst);
        for attempt in 0.. {
            let mut txn = session.begin(Isolation::Serializable).await?;
            txn.add_rw(table, 100)?;
            match txn.execute().await {
                Err(TxnError::LockTableFull) if attempt < 1_000 => {}
                executed => return executed,
            }
            session.back_off(attempt).await;
        }
        Ok(())
    }));
    done(holder);
    stop_clean(cluster);
}

/// H7: a transaction that fills a bucket by itself blocks itself in every attempt, so its error
/// must not be retryable.
#[test]
fn h7_a_transaction_too_large_for_the_lock_table_is_not_told_to_retry() {
    for nodes in [1, 2] {
        let builder = small().compute_nodes(nodes).lock_table_bytes(ONE_BUCKET);
        let (cluster, table) = with_numbers(builder);
        let error = done(cluster.submit(FIRST, move |mut session| async move {
            let mut txn = session.begin(Isolation::Serializable).await?;
            for key in 0..40 {
                txn.add_ro(table, key)?;
            }
            Ok(txn.execute().await.expect_err("forty locks do not fit in eight slots"))
        }));
        assert!(!error.is_retryable(), "{error:?}");
        insert(&cluster, table, 1, 1);
        stop_clean(cluster);
    }
}

/// H7: the counter of a slot holds 127 readers; the next one is refused and no lock is lost.
#[test]
fn h7_the_128th_reader_of_a_row_is_refused() {
    let (cluster, table) = with_numbers(small().coroutines(130));
    insert(&cluster, table, 1, 10);
    let tried = Arc::new(AtomicUsize::new(0));
    let readers: Vec<_> = (0..128)
        .map(|_| {
            let tried = Arc::clone(&tried);
            cluster.submit(FIRST, move |mut session| async move {
                let view = session.view();
                let mut txn = session.begin(Isolation::Serializable).await?;
                txn.add_ro(table, 1)?;
                let executed = txn.execute().await;
                tried.fetch_add(1, Ordering::SeqCst);
                until(&view, || tried.load(Ordering::SeqCst) >= 128).await;
                Ok(executed)
            })
        })
        .collect();
    let outcomes: Vec<_> = readers.into_iter().map(done).collect();
    let refused: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused, [TxnError::LockTableFull]);
    update(&cluster, table, 1, 11).expect("all readers are gone");
    stop_clean(cluster);
}

/// A table made for ten rows takes five hundred: chains of overflow buckets grow, also by several
/// inserts of one transaction that meet the same full chain (H20).
#[test]
fn h20_index_chains_grow_as_long_as_need_be() {
    const ROWS: u64 = 500;
    for (nodes, shards, at_once) in [(1, 1, 1), (1, 1, 100), (2, 4, 25)] {
        let cluster = start(small().compute_nodes(nodes));
        let spec = TableSpec::new("crowded").record_bytes(8).capacity(10).shards(shards);
        let table = cluster.create_table(spec).expect("there is room");
        let insert = |first: u64| {
            cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
                for key in first..first + at_once as u64 {
                    txn.insert(table, key, &key.to_le_bytes())?;
                }
                Ok(())
            })
        };
        // All at once, so that inserts into one chain meet.
        let firsts = || (0..ROWS).step_by(at_once);
        let inserts: Vec<_> = firsts().map(insert).collect();
        for (first, inserted) in firsts().zip(inserts) {
            // Each goes on for a second of attempts, which on a busy machine may not be enough.
            let mut inserted = outcome(inserted);
            for _ in 0..60 {
                if inserted.as_ref().is_err_and(is_conflict) {
                    inserted = outcome(insert(first));
                }
            }
            inserted.expect("nothing stands in its way");
        }
        assert_keys(&cluster, table, 0..ROWS);
        for coordinator_id in cluster.coordinators().collect::<Vec<_>>() {
            done(cluster.submit(coordinator_id, move |mut session| async move {
                let mut txn = session.begin_read_only().await?;
                let items: Result<Vec<_>, _> =
                    (0..=ROWS).map(|key| txn.add_ro(table, key)).collect();
                txn.execute().await?;
                for (key, item) in (0..).zip(items?) {
                    assert_eq!(number_of(&txn, item), (key < ROWS).then_some(key));
                }
                Ok(())
            }));
        }
        stop_clean(cluster);
    }
}

/// A table takes a hundred times the rows that it was made for, and the first search for a row
/// takes five rounds of READs on average, where one chain would take forty (0080). Later ones find
/// its address in a cache that has grown, too.
#[test]
fn an_index_grows_with_its_table() {
    const ROWS: u64 = 20_000;
    const AT_ONCE: u64 = 50;
    const STEP: usize = 7;
    let cluster = start(small().compute_nodes(2));
    let spec = TableSpec::new("outgrown").record_bytes(8).capacity(ROWS / 100).shards(4);
    let table = cluster.create_table(spec).expect("there is room");
    for first in (0..ROWS).step_by(AT_ONCE as usize) {
        done(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            for key in first..first + AT_ONCE {
                txn.insert(table, key, &key.to_le_bytes())?;
            }
            Ok(())
        }));
    }
    assert_keys(&cluster, table, 0..ROWS);
    let rounds = || cluster.counters().expect("no coordinator has failed").doorbells;
    let coordinator_ids: Vec<_> = cluster.coordinators().collect();
    // Rounds of READs that it takes to read a row, by a table's first user and later.
    let mut each = [0.0; 4];
    for taken in &mut each {
        let before = rounds();
        for coordinator_id in &coordinator_ids {
            done(cluster.submit(*coordinator_id, move |mut session| async move {
                for key in (0..ROWS).step_by(STEP) {
                    assert_eq!(session.read(table, key).await?, Some(key));
                }
                Ok(())
            }));
        }
        let read = coordinator_ids.len() as u64 * ROWS.div_ceil(STEP as u64);
        *taken = (rounds() - before) as f64 / read as f64;
    }
    assert!(each[0] < 6.0, "{each:?}");
    assert!(each[3] < 1.5, "addresses are remembered: {each:?}");
    let mut scanned: Vec<_> = cluster
        .scan(table)
        .map(|row| u64::from_le_bytes(row.expect("nothing is written").1[..].try_into().unwrap()))
        .collect();
    scanned.sort_unstable();
    assert!(scanned.into_iter().eq(0..ROWS), "each row once");
    stop_clean(cluster);
}

/// No insert waits for the growth of an index longer than a millisecond, on simulated NICs: a full
/// bucket goes on in others, and nothing is moved (0080).
#[test]
fn an_index_that_grows_stalls_no_insert() {
    const WORKERS: u64 = 8;
    const EACH: u64 = 500;
    let builder = small().compute_nodes(2).coroutines(WORKERS as usize);
    let nodes = builder.node_count().expect("the settings are sound");
    let profile = Profile::named("cx3-56g").expect("it is built in");
    let world = World::new(Config::new(7, nodes, profile)).expect("a valid configuration");
    let cluster = builder.start_on(SimMachines::new(world)).expect("the machines work");
    let spec = TableSpec::new("outgrown").record_bytes(8).capacity(40).shards(4);
    let table = cluster.create_table(spec).expect("there is room");
    let coordinator_ids: Vec<_> = cluster.coordinators().collect();
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let coordinator_id = coordinator_ids[worker as usize % coordinator_ids.len()];
            cluster.submit(coordinator_id, move |mut session| async move {
                let mut longest = Duration::ZERO;
                for key in (worker * EACH)..(worker + 1) * EACH {
                    let begun = session.now();
                    while let Err(error) = session.insert(table, key, key).await {
                        assert!(error.is_retryable(), "{error}");
                    }
                    longest = longest.max(session.now().since(begun));
                }
                Ok(longest)
            })
        })
        .collect();
    let longest = workers.into_iter().map(|worker| cluster.wait(worker).expect("it ends")).max();
    assert!(longest < Some(Duration::from_millis(1)), "{longest:?}");
    let mut rows = 0;
    cluster.audit_scan(table, &mut |_, _, _| rows += 1).expect("it can be read");
    assert_eq!(rows, WORKERS * EACH);
}

/// Free slots in the middle of a chain: an insert that has passed one remembers it to the end of
/// the chain, and so do the others of its transaction. All took the same slot, the last one won,
/// and the audit found nothing wrong: rows were lost although their inserts had committed. It took
/// two chains at the same offsets of two groups, where slots claimed in one counted as claimed in
/// the other.
#[test]
fn h20_inserts_of_one_transaction_never_share_a_slot() {
    for (shards, at_once) in [(2, 25), (4, 50), (12, 100)] {
        let cluster = start(small());
        let spec = TableSpec::new("crowded").record_bytes(8).capacity(10).shards(shards);
        let table = cluster.create_table(spec).expect("there is room");
        for first in [0, at_once, 2 * at_once] {
            done(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
                for key in first..first + at_once {
                    txn.insert(table, key, &key.to_le_bytes())?;
                }
                Ok(())
            }));
        }
        assert_keys(&cluster, table, 0..3 * at_once);
        stop_clean(cluster);
    }
}

/// Chains that an aborted transaction has grown serve the next one, and lose none of its rows.
#[test]
fn h20_an_aborted_insert_leaves_its_chain_usable() {
    let cluster = start(small());
    let spec = TableSpec::new("crowded").record_bytes(8).capacity(10).shards(1);
    let table = cluster.create_table(spec).expect("there is room");
    for commit in [false, true] {
        let ended = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            for key in 0..60u64 {
                txn.insert(table, key, &key.to_le_bytes())?;
            }
            txn.execute().await?;
            if commit { Ok(()) } else { Err(Abort::Application(())) }
        });
        let ended = block_on(ended).map(|committed| committed.value);
        assert_eq!(ended, if commit { Ok(()) } else { Err(Abort::Application(())) });
    }
    assert_keys(&cluster, table, 0..60);
    stop_clean(cluster);
}
