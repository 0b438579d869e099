//! Errors about a row: what they name, and what becomes of the attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use lotus::{Cluster, CoordinatorId, Isolation, TableId, TableSpec, Transaction, TxnError};

const PEOPLE: TableSpec = TableSpec::new("people").record_bytes(16).capacity(1_000);
const LOG: TableSpec =
    TableSpec::new("log").key_bytes(255).record_bytes(100).capacity(1_000).ordered();

/// A key as long as they may be, which differs from others in its last byte only.
fn long(last: u8) -> Vec<u8> {
    [&[b'k'; 254][..], &[last]].concat()
}

/// A cluster with a row in each table: `alice`, and a long key.
fn with_rows() -> (Running, TableId, TableId) {
    let cluster = start(small().compute_nodes(2).lock_timeout(Duration::from_millis(200)));
    let people = cluster.create_table(PEOPLE).expect("there is room");
    let log = cluster.create_table(LOG).expect("there is room");
    done(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        txn.insert(people, *b"alice", b"1")?;
        txn.ordered(log)?.put(&long(b'a'), b"1").await
    }));
    (cluster, people, log)
}

/// Row that the error names: table, key, and the place of its item.
#[track_caller]
fn told(error: &TxnError) -> (TableId, Vec<u8>, Option<u32>) {
    let (table, row) = error.row().expect("it is about a row");
    (table, row.key().to_vec(), row.item().map(lotus::Item::index))
}

/// Regression: an insert into an ordered table left the attempt alive and one into another table
/// ended it; a body that went on all the same was committed in the one case and not in the other.
#[test]
fn a_row_that_exists_ends_the_attempt_in_every_kind_of_table() {
    #[derive(Clone, Copy, Debug)]
    enum Way {
        Hash,
        HashThatWasRead,
        Ordered,
        OrderedThatWasRead,
    }
    let (cluster, people, log) = with_rows();
    let insert = async move |txn: &mut Transaction, way: Way| match way {
        Way::Hash => {
            txn.insert(people, *b"alice", b"2")?;
            txn.execute().await
        }
        Way::HashThatWasRead => {
            txn.add_ro(people, *b"alice")?;
            txn.execute().await?;
            txn.insert(people, *b"alice", b"2")?;
            txn.execute().await
        }
        Way::Ordered => txn.ordered(log)?.insert(&long(b'a'), b"2").await,
        Way::OrderedThatWasRead => {
            txn.ordered(log)?.get(&long(b'a')).await?;
            txn.ordered(log)?.insert(&long(b'a'), b"2").await
        }
    };
    for isolation in ISOLATIONS {
        for way in [Way::Hash, Way::HashThatWasRead, Way::Ordered, Way::OrderedThatWasRead] {
            // Locks of the round before are held a moment longer than it takes.
            cluster.settle().expect("it ends");
            done(cluster.submit(FIRST, async move |mut session| {
                let mut txn = session.begin(isolation).await?;
                let exists = insert(&mut txn, way).await.expect_err("it is there");
                assert!(matches!(exists, TxnError::AlreadyExists { .. }), "{way:?}: {exists:?}");
                assert_eq!(txn.ended_by(), Some(exists), "{way:?}");
                let over = txn.ordered(log).map(drop);
                assert!(matches!(over, Err(TxnError::Misuse(_))), "{way:?}: {over:?}");
                // Nothing of it is locked.
                let mut next = session.begin(isolation).await?;
                next.add_rw(people, *b"alice")?;
                next.ordered(log)?.get_for_update(&long(b'a')).await?;
                Ok(())
            }));
            let swallowed = cluster.run(isolation, async move |txn: &mut Transaction| {
                txn.ordered(log)?.put(b"beside", b"1").await?;
                let _ = insert(txn, way).await;
                Ok(())
            });
            let told = outcome(swallowed);
            assert!(matches!(told, Err(TxnError::AlreadyExists { .. })), "{way:?}: {told:?}");
            assert_eq!(value(&cluster, log, b"beside"), None, "{way:?}");
        }
    }
    stop_clean(cluster);
}

fn value(cluster: &Cluster, table: TableId, key: &'static [u8]) -> Option<Vec<u8>> {
    done(cluster.run_read_only(async move |txn: &mut Transaction| {
        Ok::<_, TxnError>(txn.ordered(table)?.get(key).await?.map(<[u8]>::to_vec))
    }))
    .value
}

/// An insert that waits for the next execution is carried out by a call about another row.
#[test]
fn an_error_names_its_own_row_whichever_call_has_it() {
    let (cluster, people, log) = with_rows();
    done(cluster.submit(FIRST, async move |mut session| {
        for calls in 0..4 {
            let mut txn = session.begin(Isolation::Serializable).await?;
            txn.insert(people, *b"bob", b"1")?;
            txn.insert(people, *b"alice", b"1")?;
            let exists = match calls {
                0 => txn.ordered(log)?.get(b"other").await.map(drop),
                1 => txn.ordered(log)?.put(b"other", b"1").await,
                2 => txn.ordered(log)?.range(..).rows().await.map(drop),
                _ => txn.commit().await.map(drop),
            };
            let exists = exists.expect_err("alice is there");
            assert_eq!(told(&exists), (people, b"alice".to_vec(), Some(1)), "call {calls}");
            assert_eq!(exists.to_string(), "table people already has row alice");
        }
        let mut txn = session.begin(Isolation::Serializable).await?;
        let exists = txn.ordered(log)?.insert(&long(b'a'), b"2").await.expect_err("it is there");
        assert_eq!(told(&exists), (log, long(b'a'), None));
        assert_eq!(exists.to_string(), format!("table log already has row {}a", "k".repeat(254)));
        let mut txn = session.begin(Isolation::Serializable).await?;
        txn.add_rw(people, 5)?;
        let absent = txn.add_rw(people, 7)?;
        txn.execute().await?;
        let absent = txn.put(absent, b"1").expect_err("there is no such row");
        assert_eq!(told(&absent), (people, 7_u64.to_be_bytes().to_vec(), Some(1)));
        assert_eq!(absent.to_string(), "table people has no row 7");
        Ok(())
    }));
    stop_clean(cluster);
}

/// The key, not the node that it is in, and of the row that was met, not of one looked for before.
#[test]
fn a_conflict_names_the_key_that_was_looked_for() {
    let (cluster, people, log) = with_rows();
    let (locked, free) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_locked, is_free) = (Arc::clone(&locked), Arc::clone(&free));
    let holding = cluster.submit(FIRST, async move |mut session| {
        let view = session.view();
        let mut holder = session.begin(Isolation::Serializable).await?;
        holder.add_rw(people, *b"alice")?;
        holder.ordered(log)?.get_for_update(&long(b'a')).await?;
        is_locked.store(true, Ordering::SeqCst);
        while !is_free.load(Ordering::SeqCst) {
            view.sleep_until(view.now().after(Duration::from_millis(1))).await;
        }
        Ok(())
    });
    eventually(|| locked.load(Ordering::SeqCst));
    let coordinator_id = CoordinatorId { compute_node: 1, thread: 0 };
    done(cluster.submit(coordinator_id, async move |mut session| {
        let mut txn = session.begin(Isolation::Serializable).await?;
        let met = txn.ordered(log)?.put(&long(b'z'), b"1").await.expect_err("it is locked");
        assert_eq!(told(&met), (log, long(b'z'), None));
        let key = "k".repeat(254);
        let sentence = format!("another transaction is using row {key}z of table log");
        assert_eq!(met.to_string(), sentence);
        session.new_transaction();
        let mut txn = session.begin(Isolation::Serializable).await?;
        txn.add_rw(people, *b"bob")?;
        txn.add_rw(people, *b"alice")?;
        let met = txn.execute().await.expect_err("it is locked");
        assert_eq!(told(&met), (people, b"alice".to_vec(), Some(1)));
        assert_eq!(met.to_string(), "another transaction is using row alice of table people");
        Ok(())
    }));
    free.store(true, Ordering::SeqCst);
    done(holding);
    stop_clean(cluster);
}
