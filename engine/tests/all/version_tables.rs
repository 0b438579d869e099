//! The version table cache: the READs that it saves, and that it never returns outdated data (H11).
//!
//! A cached row is read with one READ, its record's; any other takes two. So READs tell whether the
//! cache was used, and values whether that was right. Rows whose records lie in their cells take
//! one READ, and are not cached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use lotus::{Cluster, ClusterBuilder, CoordinatorId, Isolation, Retention, TableId};

const OTHER: CoordinatorId = CoordinatorId { compute_node: 1, thread: 0 };
const CACHED: u64 = 1;
const UNCACHED: u64 = 2;
/// READs of a row without a known address: the bucket, the purge time, the record.
const SEARCHED: u64 = 3;

/// Builds a cluster with coordinators that read nothing but rows: the tests count READs, and those
/// of the horizon would come at any time.
fn undisturbed() -> ClusterBuilder {
    small().retention(Retention::None).horizon_interval(Duration::from_secs(3600))
}

/// Starts two compute nodes, with a row of value 7 that belongs to the first one.
fn with_a_row(cached: usize) -> (Running, TableId, u64) {
    let builder = undisturbed().compute_nodes(2).version_table_cache(cached);
    let (cluster, table) = with_table(builder, NUMBERS_APART);
    let key = key_owned_by(&cluster, table, 0, 0);
    insert(&cluster, table, key, 7);
    settled(&cluster);
    (cluster, table, key)
}

#[track_caller]
fn settled(cluster: &Cluster) {
    cluster.settle().expect("no coordinator has failed");
}

/// Reads a row in a snapshot on `coordinator_id`. Returns the value, and the number of READs.
#[track_caller]
fn look(
    cluster: &Cluster,
    coordinator_id: CoordinatorId,
    table: TableId,
    key: u64,
) -> (Option<u64>, u64) {
    done(cluster.submit(coordinator_id, move |mut session| async move {
        let before = session.counters().reads;
        let seen = session.read(table, key).await?;
        Ok((seen, session.counters().reads - before))
    }))
}

/// Changes the row on `coordinator_id`. Returns the number of READs.
#[track_caller]
fn change(
    cluster: &Cluster,
    coordinator_id: CoordinatorId,
    table: TableId,
    key: u64,
    value: u64,
) -> u64 {
    let reads = done(cluster.submit(coordinator_id, move |mut session| async move {
        let before = session.counters().reads;
        session.update(table, key, value).await?;
        Ok(session.counters().reads - before)
    }));
    settled(cluster);
    reads
}

/// Transaction that has the row locked until it is told to go on.
struct Holding {
    ready: Arc<AtomicBool>,
    go_on: Arc<AtomicBool>,
    job: lotus::Submitted<()>,
}

/// Lock of a transaction on the row, and its next step.
#[derive(Clone, Copy, Debug)]
enum Hold {
    /// A write lock; then it aborts.
    Abort,
    /// A write lock; then it writes 8.
    Write,
    /// A read lock; then it upgrades and writes 8.
    ReadThenWrite,
}

impl Holding {
    #[track_caller]
    fn new(
        cluster: &Cluster,
        coordinator_id: CoordinatorId,
        table: TableId,
        key: u64,
        hold: Hold,
    ) -> Self {
        let [ready, go_on] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (tell, told) = (Arc::clone(&ready), Arc::clone(&go_on));
        let job = cluster.submit(coordinator_id, move |mut session| async move {
            let view = session.view();
            let mut txn = session.begin(Isolation::Serializable).await?;
            if let Hold::ReadThenWrite = hold {
                txn.add_ro(table, key)?;
            } else {
                txn.add_rw(table, key)?;
            }
            txn.execute().await?;
            tell.store(true, Ordering::Release);
            until(&view, || told.load(Ordering::Acquire)).await;
            if let Hold::Abort = hold {
                txn.abort();
                return Ok(());
            }
            let item = txn.add_rw(table, key)?;
            txn.execute().await?;
            txn.put(item, &8u64.to_le_bytes())?;
            txn.commit().await.map(drop)
        });
        eventually(|| ready.load(Ordering::Acquire));
        Self { ready, go_on, job }
    }

    #[track_caller]
    fn end(self, cluster: &Cluster) {
        assert!(self.ready.load(Ordering::Acquire));
        self.go_on.store(true, Ordering::Release);
        done(self.job);
        settled(cluster);
    }
}

#[test]
fn a_cached_row_takes_one_read_in_every_kind_of_transaction() {
    for (cached, reads) in [(64, CACHED), (0, UNCACHED)] {
        let (cluster, table, key) = with_a_row(cached);
        assert_eq!(look(&cluster, FIRST, table, key), (Some(7), SEARCHED));
        assert_eq!(look(&cluster, FIRST, table, key), (Some(7), reads));
        for value in 8..20 {
            assert_eq!(change(&cluster, FIRST, table, key, value), reads);
            assert_eq!(look(&cluster, FIRST, table, key), (Some(value), reads));
        }
        let hits = cluster.cache_counters().expect("none has failed").version_tables.hits;
        assert_eq!(hits, if cached == 0 { 0 } else { 25 });
        stop_clean(cluster);
    }
}

#[test]
fn only_the_owner_of_a_row_caches_it() {
    let (cluster, table, key) = with_a_row(64);
    for _ in 0..3 {
        look(&cluster, OTHER, table, key);
    }
    assert_eq!(look(&cluster, OTHER, table, key), (Some(7), UNCACHED));
    stop_clean(cluster);
}

#[test]
fn h11_a_writer_of_another_node_is_seen_when_it_is_done() {
    let (cluster, table, key) = with_a_row(64);
    for value in 8..20 {
        look(&cluster, FIRST, table, key);
        change(&cluster, OTHER, table, key, value);
        assert_eq!(look(&cluster, FIRST, table, key), (Some(value), UNCACHED));
        assert_eq!(look(&cluster, FIRST, table, key), (Some(value), CACHED));
        // A reader under a lock sees it as well.
        change(&cluster, OTHER, table, key, value + 100);
        assert_eq!(change(&cluster, FIRST, table, key, value), UNCACHED);
        assert_eq!(look(&cluster, FIRST, table, key), (Some(value), CACHED));
    }
    stop_clean(cluster);
}

/// While a row is locked to write, here or at another node, readers ignore the cache.
#[test]
fn h11_the_cache_yields_to_whoever_may_write() {
    for coordinator_id in [FIRST, OTHER] {
        for (hold, left) in [(Hold::Write, 8), (Hold::Abort, 7)] {
            let (cluster, table, key) = with_a_row(64);
            look(&cluster, FIRST, table, key);
            let holding = Holding::new(&cluster, coordinator_id, table, key, hold);
            for _ in 0..3 {
                // A CVT that was read beside the writer is not kept either.
                assert_eq!(look(&cluster, FIRST, table, key), (Some(7), UNCACHED));
            }
            holding.end(&cluster);
            // The cached CVT outlasts a writer of this node.
            let reads = if coordinator_id == FIRST { CACHED } else { UNCACHED };
            assert_eq!(
                look(&cluster, FIRST, table, key),
                (Some(left), reads),
                "{coordinator_id:?} {hold:?}"
            );
            assert_eq!(look(&cluster, FIRST, table, key), (Some(left), CACHED));
            stop_clean(cluster);
        }
    }
}

/// A row may be cached while others read it under locks; one of them may then become its writer.
#[test]
fn h11_an_upgrade_is_noticed_like_any_writer() {
    for coordinator_id in [FIRST, OTHER] {
        let (cluster, table, key) = with_a_row(64);
        let holding = Holding::new(&cluster, coordinator_id, table, key, Hold::ReadThenWrite);
        look(&cluster, FIRST, table, key);
        assert_eq!(look(&cluster, FIRST, table, key), (Some(7), CACHED));
        holding.end(&cluster);
        let reads = if coordinator_id == FIRST { CACHED } else { UNCACHED };
        assert_eq!(look(&cluster, FIRST, table, key), (Some(8), reads), "{coordinator_id:?}");
        stop_clean(cluster);
    }
}

/// H2: an expelled node that does not know may still have the row cached; a memory node would
/// refuse its READ, so an absence takes one.
#[test]
fn an_absence_is_never_believed_of_the_cache() {
    let (cluster, table, key) = with_a_row(64);
    look(&cluster, FIRST, table, key);
    done(cluster.submit(FIRST, move |mut session| async move { session.delete(table, key).await }));
    settled(&cluster);
    for _ in 0..2 {
        // A snapshot reads the tombstone's record, and accepts it like a value.
        assert_eq!(look(&cluster, FIRST, table, key), (None, CACHED));
    }
    let reads = done(cluster.submit(FIRST, move |mut session| async move {
        let before = session.counters().reads;
        let mut txn = session.begin(Isolation::Serializable).await?;
        let item = txn.add_ro(table, key)?;
        txn.execute().await?;
        assert_eq!(number_of(&txn, item), None);
        txn.commit().await?;
        Ok(session.counters().reads - before)
    }));
    assert!(reads > 0);
    stop_clean(cluster);
}

#[test]
fn a_full_cache_gives_way_and_stays_right() {
    let (cluster, table) = with_table(small().version_table_cache(8), NUMBERS_APART);
    let rows: Vec<_> = (0..100).map(|key| (key, key)).collect();
    insert_all(&cluster, table, &rows);
    for round in 1..4 {
        for key in 0..100 {
            assert_eq!(read(&cluster, table, key), Some(key * round));
            change(&cluster, FIRST, table, key, key * (round + 1));
        }
    }
    stop_clean(cluster);
}

/// A row whose record lies in its cell is read with one READ at every coordinator, cached or not.
#[test]
fn a_row_beside_its_cell_takes_one_read_and_is_not_cached() {
    let builder = undisturbed().compute_nodes(2).version_table_cache(64);
    let (cluster, table) = with_numbers(builder);
    let key = key_owned_by(&cluster, table, 0, 0);
    insert(&cluster, table, key, 7);
    settled(&cluster);
    for value in 8..12 {
        for coordinator_id in [FIRST, OTHER] {
            look(&cluster, coordinator_id, table, key);
            assert_eq!(change(&cluster, coordinator_id, table, key, value), 1);
            assert_eq!(look(&cluster, coordinator_id, table, key), (Some(value), 1));
        }
    }
    let cached = cluster.cache_counters().expect("no node has failed").version_tables;
    assert_eq!(cached.lookups, 0);
    stop_clean(cluster);
}

#[test]
fn rows_of_many_versions_are_cached_as_well() {
    let cluster = start(undisturbed().version_table_cache(64));
    let table = cluster.create_table(NUMBERS_APART.versions(8)).expect("there is room");
    insert(&cluster, table, 5, 1);
    settled(&cluster);
    look(&cluster, FIRST, table, 5);
    for value in 2..30 {
        assert_eq!(change(&cluster, FIRST, table, 5, value), CACHED);
        assert_eq!(look(&cluster, FIRST, table, 5), (Some(value), CACHED));
    }
    stop_clean(cluster);
}
