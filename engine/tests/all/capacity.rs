//! Full memory: deletes and updates still succeed, and the memory they free serves every
//! coordinator.
//!
//! Records of 8 KiB, 31 to a slab, so that a few hundred rows fill a cluster. Rows are inserted,
//! deleted and inserted again by different coordinators of two compute nodes.

use std::time::Duration;

use crate::common::*;
use lotus::{
    Cluster, ClusterBuilder, CoordinatorId, Isolation, PrimaryKey, Retention, Secret, Session,
    TableId, TableSpec, Transaction, TxnError,
};
use lotus_fabric::env::Env;

const BLOBS: TableSpec = TableSpec::new("blobs").record_bytes(8192).capacity(600).shards(8);
const INSERTER: CoordinatorId = CoordinatorId { compute_node: 0, thread: 0 };
const NEIGHBOUR: CoordinatorId = CoordinatorId { compute_node: 0, thread: 1 };
const OTHER_NODE: CoordinatorId = CoordinatorId { compute_node: 1, thread: 1 };

/// Two compute nodes with two coordinators each, and room for some two hundred rows.
fn cramped() -> ClusterBuilder {
    small().memory_limit(9 << 20).compute_nodes(2).threads(2)
}

fn with_blobs(builder: ClusterBuilder) -> (Running, TableId) {
    let cluster = start(builder);
    let table = cluster.create_table(BLOBS).expect("there is room");
    (cluster, table)
}

/// Begins transactions and runs `body` with each until one commits or fails for good.
async fn repeated<F>(session: &mut Session, body: F) -> Result<(), TxnError>
where
    F: AsyncFn(Transaction) -> Result<(), TxnError>,
{
    for attempt in 0.. {
        let txn = session.begin(Isolation::Serializable).await?;
        match body(txn).await {
            Err(error) if error.is_retryable() => session.back_off(attempt).await,
            outcome => return outcome,
        }
    }
    unreachable!("it ends with an outcome")
}

/// Inserts rows from `key` on until `refusals` of them in a row find no memory, or `most` are in.
fn fill(
    cluster: &Cluster,
    coordinator_id: CoordinatorId,
    table: TableId,
    from: u64,
    refusals: usize,
    most: usize,
) -> Vec<u64> {
    done(cluster.submit(coordinator_id, move |mut session| async move {
        let (mut inserted, mut refused) = (Vec::new(), 0);
        for key in from.. {
            let insert = async |mut txn: Transaction| {
                txn.insert(table, key, &[key as u8; 8192])?;
                txn.commit().await.map(drop)
            };
            match repeated(&mut session, insert).await {
                Ok(()) => {
                    inserted.push(key);
                    refused = 0;
                }
                Err(TxnError::TableFull { .. }) => refused += 1,
                Err(error) => return Err(error),
            }
            if refused == refusals || inserted.len() == most {
                break;
            }
        }
        Ok(inserted)
    }))
}

/// Fills the memory from every coordinator at once.
fn fill_all(cluster: &Cluster, table: TableId) -> Vec<u64> {
    let coordinator_ids: Vec<_> = cluster.coordinators().collect();
    let inserted = Env::real(0).in_parallel(coordinator_ids.len(), |worker| {
        fill(cluster, coordinator_ids[worker], table, worker as u64 * 10_000, 20, usize::MAX)
    });
    let keys = inserted.concat();
    assert!(keys.len() > 100, "only {} rows", keys.len());
    keys
}

/// Deletes rows, `at_once` in a transaction. Returns the number of refused deletions, and the first
/// error.
fn delete(
    cluster: &Cluster,
    coordinator_id: CoordinatorId,
    table: TableId,
    keys: &[u64],
    at_once: usize,
) -> (usize, Option<TxnError>) {
    let keys = keys.to_vec();
    done(cluster.submit(coordinator_id, move |mut session| async move {
        let (mut refused, mut first) = (0, None);
        for some in keys.chunks(at_once) {
            let delete = async |mut txn: Transaction| {
                for key in some {
                    let item = txn.add_rw(table, *key)?;
                    txn.delete(item)?;
                }
                txn.commit().await.map(drop)
            };
            if let Err(error) = repeated(&mut session, delete).await {
                refused += some.len();
                first.get_or_insert(error);
            }
        }
        Ok((refused, first))
    }))
}

/// Writes a new value of this byte to existing rows, which must succeed.
#[track_caller]
fn update_all(
    cluster: &Cluster,
    coordinator_id: CoordinatorId,
    table: TableId,
    keys: &[u64],
    byte: u8,
) {
    let keys = keys.to_vec();
    done(cluster.submit(coordinator_id, move |mut session| async move {
        for key in keys {
            let update = async |mut txn: Transaction| {
                let item = txn.add_rw(table, key)?;
                txn.execute().await?;
                txn.put(item, &[byte; 8192])?;
                txn.commit().await.map(drop)
            };
            repeated(&mut session, update).await?;
        }
        Ok(())
    }));
}

/// Inserts `count` rows, waiting for memory for as long as a purge may take. Keys of a group
/// without room are passed over, as long as there is room in another one.
fn insert_when_there_is_room(
    cluster: &Cluster,
    coordinator_id: CoordinatorId,
    table: TableId,
    from: u64,
    count: usize,
) -> Vec<u64> {
    let mut inserted = Vec::new();
    let filled = eventually_within(Duration::from_secs(15), || {
        let next = inserted.last().map_or(from, |last| last + 1);
        inserted.extend(fill(cluster, coordinator_id, table, next, 20, count - inserted.len()));
        inserted.len() == count
    });
    assert!(filled, "{} of {count} rows have found room at {coordinator_id:?}", inserted.len());
    inserted
}

#[test]
fn deletes_succeed_when_all_memory_is_taken() {
    for at_once in [1, 40] {
        let (cluster, table) = with_blobs(cramped());
        let keys = fill_all(&cluster, table);
        let refused = delete(&cluster, OTHER_NODE, table, &keys, at_once);
        assert_eq!(refused, (0, None), "of {} deletions", keys.len());
        assert_keys(&cluster, table, std::iter::empty());
        stop_clean(cluster);
    }
}

#[test]
fn a_cluster_that_was_full_is_filled_again_by_other_coordinators_than_deleted() {
    let (cluster, table) = with_blobs(cramped());
    let keys = fill_all(&cluster, table);
    let (gone, kept) = keys.split_at(keys.len() / 2);
    assert_eq!(delete(&cluster, OTHER_NODE, table, gone, 1), (0, None));
    // The updates take second slots, which are missing later.
    update_all(&cluster, OTHER_NODE, table, kept, 7);
    // Some free slots are kept back for updates at each node.
    let room = gone.len() * 8 / 10;
    let mut all = insert_when_there_is_room(&cluster, INSERTER, table, 100_000, room / 2);
    let rest = insert_when_there_is_room(&cluster, NEIGHBOUR, table, 200_000, room / 2);
    all.extend(rest);
    all.extend(kept);
    all.sort_unstable();
    assert_keys(&cluster, table, all);
    stop_clean(cluster);
}

/// A row that takes the place of a deleted one may belong to a full bucket of the index. Records
/// used to take every slab, so that no further bucket could be had, and full memory refused this
/// row for good though record slots were free. The index is just large enough for its rows; with
/// each of these secrets it has a first full bucket after the deletions.
#[test]
fn each_row_finds_the_place_of_a_deleted_one_whatever_its_name() {
    for secret in [5, 6, 7, 9].map(Secret::from_seed) {
        // Of one group: of several, one may get more of the new rows than it has lost.
        let builder = cramped().memory_nodes(1).replicas(1).name_secret(Some(secret));
        let cluster = start(builder);
        let table = cluster.create_table(BLOBS.capacity(2_000)).expect("there is room");
        let keys = fill_all(&cluster, table);
        let (gone, kept) = keys.split_at(keys.len() / 2);
        assert_eq!(delete(&cluster, OTHER_NODE, table, gone, 1), (0, None));
        // Some free slots are kept back for updates at each node.
        let again = (0..gone.len() as u64 * 8 / 10).map(|row| 100_000 + row);
        for key in again.clone() {
            let inserted = eventually_within(Duration::from_secs(15), || {
                fill(&cluster, INSERTER, table, key, 1, 1) == [key]
            });
            assert!(inserted, "no room for row {key}");
        }
        let mut all: Vec<_> = again.chain(kept.iter().copied()).collect();
        all.sort_unstable();
        assert_keys(&cluster, table, all);
        stop_clean(cluster);
    }
}

/// Node 1 has never had a row of the table, and node 0 has a few slots more than its reserve. Node
/// 1 used to ask for them, put them into its own reserve, and insert nothing; nor could node 0
/// afterwards.
#[test]
fn what_one_node_can_spare_another_can_insert() {
    const GONE: usize = 5;
    let (cluster, table) = with_blobs(cramped().horizon_interval(Duration::from_millis(2)));
    let keys = fill(&cluster, INSERTER, table, 0, 20, usize::MAX);
    let (gone, kept) = keys.split_at(GONE);
    assert_eq!(delete(&cluster, INSERTER, table, gone, 1), (0, None));
    let mut all = insert_when_there_is_room(&cluster, OTHER_NODE, table, 100_000, GONE);
    all.extend(kept);
    all.sort_unstable();
    assert_keys(&cluster, table, all);
    stop_clean(cluster);
}

#[test]
fn updates_succeed_when_all_memory_is_taken() {
    let (cluster, table) = with_blobs(cramped());
    let keys = fill_all(&cluster, table);
    let coordinator_ids = [INSERTER, NEIGHBOUR, OTHER_NODE];
    for round in 1..=3_u8 {
        for (index, some) in keys.chunks(keys.len().div_ceil(coordinator_ids.len())).enumerate() {
            let coordinator_id =
                coordinator_ids[(index + usize::from(round)) % coordinator_ids.len()];
            update_all(&cluster, coordinator_id, table, some, round);
        }
    }
    let mut rows = 0;
    cluster.settle().expect("nothing has failed");
    cluster
        .audit_scan(table, &mut |_, value, _| {
            assert_eq!(value, [3; 8192]);
            rows += 1;
        })
        .expect("it can be read");
    assert_eq!(rows, keys.len());
    stop_clean(cluster);
}

/// What is in use is what the rows' slots take, not the slabs that coordinators cut them from: so
/// an insert takes one, and the first update of a row another, for the version before. Later ones
/// take the place of the oldest version.
#[test]
fn memory_in_use_grows_by_records_and_not_with_every_update() {
    const ROWS: u64 = 40;
    // The key, the value, and what a record has before them, in lines.
    const SLOT_BYTES: u64 = 64;
    let builder = small().compute_nodes(2).memory_nodes(3).replicas(2).retention(Retention::None);
    let (cluster, table) = with_table(builder, NUMBERS_APART);
    let zero = |row: u64, value: &mut Vec<u8>| {
        value.extend(0_u64.to_le_bytes());
        PrimaryKey::from(row)
    };
    cluster.load(table, ROWS, &zero, &Default::default()).expect("they fit");
    let loaded = cluster.memory_loaded().expect("all nodes can be reached");
    let in_use = || {
        cluster.settle().expect("no coordinator has failed");
        cluster.memory_in_use().expect("all nodes can be reached")
    };
    assert_eq!(in_use(), loaded, "no transaction has run");
    assert!(loaded.iter().all(|bytes| *bytes > ROWS * SLOT_BYTES), "{loaded:?}");
    let sum = |nodes: &[u64]| nodes.iter().sum::<u64>();
    let before = sum(&loaded);
    let rows: Vec<_> = (ROWS..2 * ROWS).map(|key| (key, key)).collect();
    insert_all(&cluster, table, &rows);
    let inserted = sum(&in_use());
    assert_eq!(inserted - before, 2 * ROWS * SLOT_BYTES);
    for round in 0..4 {
        for key in 0..2 * ROWS {
            update(&cluster, table, key, round).expect("nothing is in the way");
        }
        assert_eq!(sum(&in_use()) - inserted, 2 * 2 * ROWS * SLOT_BYTES, "round {round}");
    }
    stop_clean(cluster);
}
