//! Ordered tables through the public interface, against a sorted map.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use crate::common::*;
use lotus::ordered::Rows;
use lotus::{
    Cluster, ClusterError, CoordinatorId, Isolation, PrimaryKey, RowSource, Session, TableId,
    TableSpec, Transaction, TxnError,
};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// About eight rows of the longest fill a node.
const SPEC: TableSpec =
    TableSpec::new("sorted").key_bytes(20).record_bytes(100).capacity(2_000).ordered();

fn coordinator_id(compute_node: usize) -> CoordinatorId {
    CoordinatorId { compute_node, thread: 0 }
}

/// Runs a job at a compute node, again while the locks of the transaction before are not released
/// yet.
fn at<T, F>(cluster: &Cluster, compute_node: usize, job: F) -> Result<T, TxnError>
where
    T: Send + 'static,
    F: AsyncFn(&mut Session) -> Result<T, TxnError> + Send + 'static,
{
    outcome(cluster.submit(coordinator_id(compute_node), async move |mut session: Session| {
        again(&mut session, job).await
    }))
}

/// Runs a part of a job again while other transactions are in its way.
async fn again<T>(
    session: &mut Session,
    part: impl AsyncFn(&mut Session) -> Result<T, TxnError>,
) -> Result<T, TxnError> {
    for attempts in 0.. {
        match part(session).await {
            Err(error) if error.is_retryable() => session.back_off(attempts).await,
            outcome => return outcome,
        }
    }
    unreachable!("it goes on until there is an outcome")
}

fn pairs(rows: &Rows) -> Vec<(Vec<u8>, Vec<u8>)> {
    rows.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// All rows, as a read-only transaction sees them.
fn all(cluster: &Cluster, compute_node: usize, table: TableId) -> Map {
    at(cluster, compute_node, async move |session| {
        let mut txn = session.begin_read_only().await?;
        let rows = txn.ordered(table)?.range(..).rows().await?;
        Ok(pairs(&rows))
    })
    .expect("nothing is in its way")
    .into_iter()
    .collect()
}

/// Audits the cluster once it has settled: leaves that were merged away are rows that were deleted,
/// and coordinators purge these when no client waits any more.
#[track_caller]
fn assert_sound(cluster: &Cluster) {
    cluster.settle().expect("the nodes are well");
    let found = cluster.audit().expect("the memory nodes answer");
    found.iter().for_each(|check| assert!(check.passed, "{}: {}", check.name, check.detail));
}

/// An operation on a table and on its model.
#[derive(Clone, Debug)]
enum Change {
    Put(Vec<u8>, Vec<u8>),
    Insert(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    /// A range between two keys, downwards if true, of at most so many rows.
    Range(Vec<u8>, Vec<u8>, bool, usize),
    Prefix(Vec<u8>),
}

impl Change {
    fn draw(rng: &mut SmallRng, model: &Map, grows: bool) -> Self {
        let key = Self::key(rng);
        let known = model.keys().nth(rng.random_range(0..model.len().max(1))).cloned();
        let value = vec![rng.random(); rng.random_range(0..=100)];
        match rng.random_range(0..10) {
            0..3 if grows => Self::Insert(key, value),
            0..4 => Self::Delete(known.unwrap_or(key)),
            4..7 => Self::Put(known.filter(|_| !grows).unwrap_or(key), value),
            7 => Self::Prefix(key[..1].to_vec()),
            _ => {
                let other = Self::key(rng);
                let limit = *[1, 7, 1000].choose(rng).expect("three");
                Self::Range(key.clone().min(other.clone()), key.max(other), rng.random(), limit)
            }
        }
    }

    fn key(rng: &mut SmallRng) -> Vec<u8> {
        // Short ones too, so that one is the prefix of another.
        let bytes = rng.random_range(1..=20);
        let mut key: Vec<u8> = (0..bytes).map(|_| *b"abz\xff".choose(rng).expect("four")).collect();
        key.truncate(rng.random_range(1..=20));
        key
    }

    /// Applies the change to both, and compares the answers.
    async fn apply(
        &self,
        txn: &mut Transaction,
        table: TableId,
        model: &mut Map,
    ) -> Result<(), TxnError> {
        let mut sorted = txn.ordered(table)?;
        match self {
            Self::Put(key, value) => {
                sorted.put(key, value).await?;
                model.insert(key.clone(), value.clone());
                assert_eq!(sorted.get(key).await?, Some(&**value), "what was put is there");
            }
            Self::Insert(key, value) => match sorted.insert(key, value).await {
                Err(exists @ TxnError::AlreadyExists { .. }) => {
                    assert!(model.contains_key(key));
                    return Err(exists);
                }
                inserted => {
                    inserted?;
                    assert_eq!(model.insert(key.clone(), value.clone()), None);
                }
            },
            Self::Delete(key) => {
                assert_eq!(sorted.delete(key).await?, model.remove(key).is_some());
                assert_eq!(sorted.get(key).await?, None);
            }
            Self::Range(from, until, reverse, limit) => {
                let mut range = sorted.range(&**from..&**until).limit(*limit);
                if *reverse {
                    range = range.reverse();
                }
                let found = pairs(&range.rows().await?);
                let rows = model.range(from.clone()..until.clone());
                let rows = rows.map(|(key, value)| (key.clone(), value.clone()));
                let expected: Vec<_> = match reverse {
                    false => rows.take(*limit).collect(),
                    true => rows.rev().take(*limit).collect(),
                };
                assert_eq!(found, expected, "{self:?}");
            }
            Self::Prefix(prefix) => {
                let found = pairs(&sorted.prefix(prefix).rows().await?);
                let rows = model.iter().filter(|(key, _)| key.starts_with(prefix));
                let rows: Vec<_> = rows.map(|(key, value)| (key.clone(), value.clone())).collect();
                assert_eq!(found, rows, "{self:?}");
            }
        }
        Ok(())
    }
}

/// Transactions of several changes each, at two compute nodes in turn, whose remembered nodes so
/// are often out of date; some are aborted.
fn follows_a_sorted_map(isolation: Isolation) {
    let (cluster, table) = with_table(small().compute_nodes(2), SPEC);
    let mut rng = SmallRng::seed_from_u64(7);
    let mut model = Map::new();
    for round in 0..600 {
        let grows = round % 300 < 150;
        let seed = rng.random();
        let before = model.clone();
        model = at(&cluster, round % 2, async move |session| {
            let mut txn = session.begin(isolation).await?;
            let mut next = before.clone();
            let mut rng = SmallRng::seed_from_u64(seed);
            for _ in 0..rng.random_range(1..8) {
                let change = Change::draw(&mut rng, &next, grows);
                match change.apply(&mut txn, table, &mut next).await {
                    Err(exists @ TxnError::AlreadyExists { .. }) => {
                        assert_eq!(txn.ended_by(), Some(exists));
                        return Ok(before.clone());
                    }
                    applied => applied?,
                }
            }
            if rng.random_bool(0.1) {
                return Ok(before.clone());
            }
            txn.commit().await?;
            Ok(next)
        })
        .expect("it is alone");
        if round % 50 == 49 {
            assert_eq!(all(&cluster, (round + 1) % 2, table), model, "round {round}");
        }
    }
    assert_sound(&cluster);
}

#[test]
fn it_is_a_sorted_map_when_serializable() {
    follows_a_sorted_map(Isolation::Serializable);
}

#[test]
fn it_is_a_sorted_map_in_snapshot_isolation() {
    follows_a_sorted_map(Isolation::Snapshot);
}

#[test]
fn many_rows_come_and_go_in_order() {
    let spec = TableSpec::new("numbers in order").record_bytes(8).capacity(20_000).ordered();
    let (cluster, table) = with_table(small(), spec);
    let each = async move |cluster: &Cluster, numbers: Vec<u64>, delete: bool| {
        for some in numbers.chunks(50) {
            let some = some.to_vec();
            let done = at(cluster, 0, async move |session| {
                let mut txn = session.begin(Isolation::Serializable).await?;
                let mut sorted = txn.ordered(table)?;
                for number in &some {
                    match delete {
                        true => assert!(sorted.delete(&number.to_be_bytes()).await?),
                        false => sorted.insert(&number.to_be_bytes(), b"value").await?,
                    }
                }
                txn.commit().await.map(drop)
            });
            done.expect("it is alone");
        }
    };
    let numbers = |step: u64| (0..5_000).map(move |index| index * step % 5_000);
    block_on(each(&cluster, numbers(1).collect(), false));
    let found = all(&cluster, 0, table);
    assert!(found.keys().cloned().eq((0..5_000_u64).map(|number| number.to_be_bytes().to_vec())));
    // Every third one, in an order of leaps, and then the rest.
    let (thirds, others): (Vec<_>, Vec<_>) = numbers(7).partition(|number| number % 3 == 0);
    block_on(each(&cluster, thirds, true));
    let left = all(&cluster, 0, table);
    assert_eq!(left.len(), others.len());
    block_on(each(&cluster, others, true));
    assert_eq!(all(&cluster, 0, table), Map::new());
    assert_sound(&cluster);
}

#[test]
fn a_loaded_table_is_a_tree_and_duplicates_are_refused() {
    let spec = TableSpec::new("loaded").record_bytes(12).capacity(3_000).ordered();
    let (cluster, table) = with_table(small(), spec);
    let row = |number: u64, value: &mut Vec<u8>| {
        value.extend_from_slice(&[number as u8; 12]);
        PrimaryKey::from(number * 7 % 3_000)
    };
    let loaded = AtomicU64::new(0);
    cluster.load(table, 3_000, &row, &loaded).expect("they fit");
    assert_eq!(loaded.into_inner(), 3_000);
    let found = all(&cluster, 0, table);
    assert!(found.keys().cloned().eq((0..3_000_u64).map(|number| number.to_be_bytes().to_vec())));
    let mut visited = Vec::new();
    let visit = &mut |key: &[u8], value: &[u8]| visited.push((key.to_vec(), value.to_vec()));
    cluster.audit_ordered(table, visit).expect("it is a tree");
    assert_eq!(visited.into_iter().collect::<Map>(), found);
    at(&cluster, 0, async move |session| {
        let mut txn = session.begin(Isolation::Serializable).await?;
        let mut sorted = txn.ordered(table)?;
        for number in (0..3_000_u64).step_by(100) {
            sorted.put(&number.to_be_bytes()[..7], b"between").await?;
            assert!(sorted.delete(&number.to_be_bytes()).await?);
        }
        txn.commit().await.map(drop)
    })
    .expect("it is alone");
    assert_sound(&cluster);
    let twice = |number: u64, _: &mut Vec<u8>| PrimaryKey::from(number / 2);
    let long = |_, value: &mut Vec<u8>| {
        value.extend([0; 13]);
        PrimaryKey::from(1)
    };
    for (name, source) in [("twice", &twice as &RowSource<'_>), ("long", &long)] {
        let spec = TableSpec::new(name).record_bytes(12).capacity(10).ordered();
        let table = cluster.create_table(spec).expect("there is room");
        let refused = cluster.load(table, 10, source, &AtomicU64::new(0));
        assert!(matches!(refused, Err(ClusterError::Row { .. })), "{refused:?}");
    }
}

/// A leaf that is found by remembered inner nodes takes one READ; several that were declared, one
/// round.
#[test]
fn declared_keys_come_in_one_round() {
    // One memory node, so that a round is one doorbell.
    let (cluster, table) = with_table(small().memory_nodes(1).replicas(1).compute_nodes(1), SPEC);
    let key = |row: u32| (row * 100).to_be_bytes();
    let rounds = || cluster.counters().expect("no coordinator has failed").doorbells;
    at(&cluster, 0, async move |session| {
        let mut txn = session.begin(Isolation::Serializable).await?;
        for row in 0..100 {
            txn.ordered(table)?.put(&key(row), &[row as u8; 100]).await?;
        }
        txn.commit().await.map(drop)
    })
    .expect("it is alone");
    let read = async move |session: &mut Session, declares: bool| {
        let mut txn = session.begin(Isolation::Serializable).await?;
        let mut sorted = txn.ordered(table)?;
        for row in [10, 40, 70].into_iter().filter(|_| declares) {
            match row {
                40 => sorted.declare_for_update(&key(row))?,
                _ => sorted.declare(&key(row))?,
            }
        }
        for row in [10, 40, 70] {
            let value = [row as u8; 100];
            assert_eq!(sorted.get(&key(row)).await?, Some(&value[..]));
        }
        sorted.put(&key(40), &[40; 100]).await?;
        drop(txn);
        Ok(())
    };
    // Least of several: the first one reads inner nodes, and upkeep rings doorbells as well, on a
    // busy machine in each of them.
    let least = |declares: bool| {
        let counts = (0..20).map(|_| {
            let before = rounds();
            at(&cluster, 0, async move |session| read(session, declares).await).expect("alone");
            rounds() - before
        });
        counts.min()
    };
    let (apart, at_once) = (least(false), least(true));
    assert!(apart >= Some(4), "a round for each leaf, and one to lock the one that is put");
    assert!(at_once < Some(4), "{at_once:?}, apart {apart:?}");
    stop_clean(cluster);
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let (cluster, table) = with_table(small(), SPEC);
    let numbers = cluster.create_table(NUMBERS).expect("there is room");
    at(&cluster, 0, async move |session| {
        let mut txn = session.begin(Isolation::Serializable).await?;
        let misused = |outcome: Result<_, TxnError>| {
            assert!(matches!(outcome, Err(TxnError::Misuse(_))), "{outcome:?}");
        };
        misused(txn.add_rw(table, 1).map(drop));
        misused(txn.ordered(numbers).map(drop));
        assert_eq!(txn.ordered(TableId(9)).err(), Some(TxnError::UnknownTable(TableId(9))));
        let mut sorted = txn.ordered(table)?;
        misused(sorted.put(b"", b"1").await);
        let too_large = |outcome: Result<_, TxnError>| {
            assert!(matches!(outcome, Err(TxnError::TooLarge(_))), "{outcome:?}");
        };
        too_large(sorted.put(&[7; 21], b"1").await);
        too_large(sorted.put(b"key", &[7; 101]).await);
        too_large(sorted.get(&[7; 21]).await.map(drop));
        too_large(sorted.declare(&[7; 21]));
        misused(sorted.declare(b""));
        misused(sorted.range(&b"b"[..]..&b"a"[..]).rows().await.map(drop));
        assert!(sorted.range(&b"a"[..]..&b"a"[..]).rows().await?.is_empty());
        let whole = (Bound::Excluded(&b"a"[..]), Bound::Included(&b"zz"[..]));
        assert!(sorted.range(whole).rows().await?.is_empty());
        sorted.put(b"key", b"1").await?;
        assert!(!sorted.delete(b"kez").await?);
        txn.commit().await?;
        let mut txn = session.begin(Isolation::Serializable).await?;
        assert_eq!(
            txn.ordered(table)?.insert(b"key", b"2").await,
            Err(TxnError::AlreadyExists { table, key: (*b"key").into() })
        );
        misused(txn.ordered(table).map(drop));
        let mut txn = session.begin_read_only().await?;
        misused(txn.ordered(table)?.put(b"key", b"2").await);
        assert_eq!(txn.ordered(table)?.get(b"key").await?, Some(&b"1"[..]));
        Ok(())
    })
    .expect("it is alone");
}

/// Rows in a table of many leaves.
const LOADED: u64 = 300;

fn with_loaded() -> (Running, TableId) {
    let (cluster, table) = with_table(small().compute_nodes(2), SPEC);
    let row = |number: u64, value: &mut Vec<u8>| {
        value.extend_from_slice(&[7; 100]);
        PrimaryKey::from(number)
    };
    cluster.load(table, LOADED, &row, &AtomicU64::new(0)).expect("they fit");
    (cluster, table)
}

/// Key between two loaded ones.
fn between(number: u64) -> Vec<u8> {
    [&number.to_be_bytes()[..], b"x"].concat()
}

/// Number of all rows.
async fn count(txn: &mut Transaction, table: TableId) -> Result<usize, TxnError> {
    Ok(txn.ordered(table)?.range(..).rows().await?.len())
}

/// Two transactions at a time count all rows, and each adds one, at another end of the table, if
/// there are as many as were loaded. Returns the number that committed.
fn both_add_the_last_one(isolation: Isolation) -> usize {
    let (cluster, table) = with_loaded();
    let counted = Arc::new(AtomicU64::new(0));
    let submitted = [(0, 1), (1, LOADED - 2)].map(|(compute_node, place)| {
        let counted = Arc::clone(&counted);
        cluster.submit(coordinator_id(compute_node), async move |mut session: Session| {
            let view = session.view();
            let mut txn = session.begin(isolation).await?;
            assert_eq!(count(&mut txn, table).await?, LOADED as usize);
            counted.fetch_add(1, Ordering::SeqCst);
            until(&view, || counted.load(Ordering::SeqCst) == 2).await;
            txn.ordered(table)?.insert(&between(place), b"last").await?;
            txn.commit().await.map(drop)
        })
    });
    submitted.map(outcome).iter().filter(|outcome| outcome.is_ok()).count()
}

#[test]
fn h20_write_skew_on_a_range_is_for_snapshot_isolation_alone() {
    assert!(both_add_the_last_one(Isolation::Serializable) <= 1);
    assert_eq!(both_add_the_last_one(Isolation::Snapshot), 2);
}

/// A row comes into a range that a transaction has read: not before a serializable one has ended,
/// and unseen by one that reads a snapshot.
#[test]
fn h20_no_phantom_comes_into_a_range() {
    for isolation in [Some(Isolation::Serializable), Some(Isolation::Snapshot), None] {
        let (cluster, table) = with_loaded();
        let stage = Arc::new(AtomicU64::new(0));
        let (reading, writing) = (Arc::clone(&stage), Arc::clone(&stage));
        let reader = cluster.submit(coordinator_id(0), async move |mut session: Session| {
            let view = session.view();
            let mut txn = match isolation {
                Some(isolation) => session.begin(isolation).await?,
                None => session.begin_read_only().await?,
            };
            let first = count(&mut txn, table).await?;
            reading.store(1, Ordering::SeqCst);
            until(&view, || reading.load(Ordering::SeqCst) == 2).await;
            assert_eq!(count(&mut txn, table).await?, first);
            txn.commit().await.map(drop)
        });
        let insert = async move |session: &mut Session| {
            let mut txn = session.begin(Isolation::Serializable).await?;
            txn.ordered(table)?.insert(&between(LOADED / 2), b"phantom").await?;
            txn.commit().await.map(drop)
        };
        let tried =
            outcome(cluster.submit(coordinator_id(1), async move |mut session: Session| {
                until(&session.view(), || writing.load(Ordering::SeqCst) == 1).await;
                let mut tried = Ok(());
                for attempts in 0..20 {
                    tried = insert(&mut session).await;
                    if tried.is_ok() {
                        break;
                    }
                    session.back_off(attempts).await;
                }
                writing.store(2, Ordering::SeqCst);
                Ok(tried)
            }));
        outcome(reader).expect("nothing is in its way");
        match (tried.expect("it ends"), isolation) {
            (Err(TxnError::Conflict { key, .. }), Some(Isolation::Serializable)) => {
                assert_eq!(key, PrimaryKey::try_from(&*between(LOADED / 2)).expect("short"));
                at(&cluster, 1, insert).expect("the reader has ended");
            }
            (Ok(()), Some(Isolation::Snapshot) | None) => {}
            (tried, _) => panic!("{isolation:?}: {tried:?}"),
        }
        assert_eq!(all(&cluster, 0, table).len(), LOADED as usize + 1);
    }
}

/// Rows come and go at two compute nodes at once, by clients that all use the same leaves, while
/// others read ranges: no row is lost, doubled or out of order.
#[test]
fn clients_at_two_nodes_lose_nothing() {
    let (cluster, table) = with_table(small().compute_nodes(2), SPEC);
    let submitted = (0..8_u8).map(|client| {
        let coordinator_id = coordinator_id(usize::from(client % 2));
        cluster.submit(coordinator_id, async move |mut session: Session| {
            let mut mine = Map::new();
            let mut rng = SmallRng::seed_from_u64(client.into());
            for _ in 0..150 {
                let key = vec![rng.random_range(b'a'..=b'f'), rng.random_range(0..40), client];
                let deletes = mine.contains_key(&key);
                again(&mut session, async |session| {
                    let mut txn = session.begin(Isolation::Serializable).await?;
                    let mut sorted = txn.ordered(table)?;
                    match deletes {
                        true => assert!(sorted.delete(&key).await?),
                        false => sorted.insert(&key, &[client; 90]).await?,
                    }
                    txn.commit().await.map(drop)
                })
                .await?;
                match deletes {
                    true => drop(mine.remove(&key)),
                    false => drop(mine.insert(key, vec![client; 90])),
                }
                let rows = again(&mut session, async |session| {
                    let mut txn = session.begin_read_only().await?;
                    Ok(pairs(&txn.ordered(table)?.range(..).rows().await?))
                })
                .await?;
                assert!(rows.is_sorted_by(|(one, _), (next, _)| one < next));
                let found = rows.into_iter().filter(|(key, _)| key[2] == client);
                assert_eq!(found.collect::<Map>(), mine);
            }
            Ok(mine)
        })
    });
    let submitted: Vec<_> = submitted.collect();
    let expected: Map =
        submitted.into_iter().flat_map(|job| outcome(job).expect("it goes on")).collect();
    assert_eq!(all(&cluster, 1, table), expected);
    assert_sound(&cluster);
}

/// A change whose future is dropped while it waits, at any of its waits, leaves nothing behind: the
/// transaction goes on and commits, and no key is lost or doubled.
#[test]
fn h21_a_change_that_is_dropped_changes_nothing() {
    let (cluster, table) = with_loaded();
    let mut added = Map::new();
    for round in 0..120_u64 {
        let (key, polls) = (between(round * 7 % LOADED), round % 6);
        let wanted = key.clone();
        let done = at(&cluster, (round % 2) as usize, async move |session| {
            let mut txn = session.begin(Isolation::Serializable).await?;
            let done = {
                let mut sorted = txn.ordered(table)?;
                let mut put = std::pin::pin!(sorted.put(&key, &[9; 100]));
                let mut polled = 0;
                std::future::poll_fn(|cx| {
                    if polled == polls {
                        return Poll::Ready(Ok(false));
                    }
                    polled += 1;
                    put.as_mut().poll(cx).map(|done| done.map(|()| true))
                })
                .await?
            };
            // The execution that it waited for goes on.
            txn.execute().await?;
            txn.commit().await?;
            Ok(done)
        });
        if done.expect("it is alone") {
            added.insert(wanted, vec![9; 100]);
        }
    }
    assert!(!added.is_empty() && added.len() < 120, "some are done, and some are dropped");
    let found = all(&cluster, 0, table);
    assert_eq!(found.len(), LOADED as usize + added.len());
    assert!(added.iter().all(|(key, value)| found.get(key) == Some(value)));
    assert_sound(&cluster);
}
