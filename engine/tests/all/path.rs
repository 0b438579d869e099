//! Secondary access paths through the public interface: they change together with their base rows,
//! and absent path rows take part in serializability.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::*;
use lotus::path::{Entry, Group, PathError, target};
use lotus::{Isolation, PrimaryKey, TableId, TableSpec, Transaction, TxnError};

/// Tables of people by number, of their names by number, and of their numbers by name.
#[derive(Clone, Copy)]
struct People {
    base: TableId,
    /// Unique: name to number.
    by_name: TableId,
    /// Grouped: street to numbers, ordered by name.
    by_street: TableId,
}

/// Size of a group, in bytes: room for three entries of [`entry`].
const GROUP_BYTES: u32 = 40;

fn people(nodes: usize) -> (Running, People) {
    let cluster = start(small().compute_nodes(nodes));
    let table = |name, bytes| {
        let spec = TableSpec::new(name).record_bytes(bytes).capacity(1_000);
        cluster.create_table(spec).expect("there is room")
    };
    let base = table("people", 8);
    let by_name = table("people by name", 8);
    let people = People { base, by_name, by_street: table("people by street", GROUP_BYTES) };
    (cluster, people)
}

fn entry(name: &str, number: u64) -> Entry<'_> {
    Entry { order: name.as_bytes(), key: number.into() }
}

impl People {
    async fn enter(
        self,
        txn: &mut Transaction,
        number: u64,
        name: &str,
        street: u64,
    ) -> Result<(), TxnError> {
        txn.insert(self.base, number, name.as_bytes())?;
        let name_key = PrimaryKey::try_from(name.as_bytes()).expect("names are short");
        txn.insert(self.by_name, name_key, PrimaryKey::from(number).as_bytes())?;
        let group = txn.add_rw(self.by_street, street)?;
        txn.execute().await?;
        txn.link(group, &entry(name, number))
    }

    /// Returns the names in a street in their order, as path and base rows have them.
    async fn names(self, txn: &mut Transaction, street: u64) -> Result<Vec<String>, TxnError> {
        let group = txn.add_ro(self.by_street, street)?;
        txn.execute().await?;
        let numbers: Vec<_> = Group::read(txn.value(group))?.iter().map(|e| e.key).collect();
        let mut items = Vec::new();
        for number in numbers {
            items.push(txn.add_ro(self.base, number)?);
        }
        txn.execute().await?;
        let name = |item| txn.value(item).expect("no entry without its base row");
        let names = items.into_iter().map(|item| String::from_utf8_lossy(name(item)).into_owned());
        Ok(names.collect())
    }
}

#[test]
fn path_rows_change_with_their_base_rows() {
    for nodes in [1, 2] {
        let (cluster, people) = people(nodes);
        for isolation in ISOLATIONS {
            let street = isolation as u64;
            let from = 10 * street;
            done(cluster.submit(FIRST, move |mut session| async move {
                // The first entry of a group that does not exist, and two more at once.
                let names = if street == 0 { ["Cat", "Ada", "Bea"] } else { ["Eve", "Dan", "Fay"] };
                let mut txn = session.begin(isolation).await?;
                people.enter(&mut txn, from, names[0], street).await?;
                people.enter(&mut txn, from + 1, names[1], street).await?;
                txn.commit().await?;
                let mut txn = session.begin(isolation).await?;
                people.enter(&mut txn, from + 2, names[2], street).await?;
                txn.commit().await?;
                let mut sorted = names;
                sorted.sort_unstable();
                let mut txn = session.begin_read_only().await?;
                assert_eq!(people.names(&mut txn, street).await?, sorted);
                txn.commit().await?;
                for (number, name) in (from..).zip(names) {
                    let mut txn = session.begin(isolation).await?;
                    let group = txn.add_rw(people.by_street, street)?;
                    let base = txn.add_rw(people.base, number)?;
                    txn.execute().await?;
                    txn.delete(base)?;
                    txn.unlink(group, &entry(name, number))?;
                    let gone = TxnError::Path(PathError::NotLinked);
                    assert_eq!(txn.unlink(group, &entry(name, number)), Err(gone));
                    txn.commit().await?;
                }
                // An emptied group keeps its row, and takes entries again.
                let mut txn = session.begin(isolation).await?;
                let group = txn.add_rw(people.by_street, street)?;
                txn.execute().await?;
                assert_eq!(txn.value(group), Some(&[][..]));
                txn.link(group, &Entry::by_key(from))?;
                txn.commit().await
            }));
        }
        assert_keys(&cluster, people.base, []);
        assert_keys(&cluster, people.by_street, [0, 1]);
        stop_clean(cluster);
    }
}

#[test]
fn what_a_path_refuses_changes_nothing() {
    let (cluster, people) = people(1);
    done(cluster.submit(FIRST, move |mut session| async move {
        let mut txn = session.begin(Isolation::Serializable).await?;
        people.enter(&mut txn, 1, "Ada", 7).await?;
        people.enter(&mut txn, 2, "Bea", 7).await?;
        people.enter(&mut txn, 3, "Cat", 7).await?;
        txn.commit().await?;
        // A full group; the attempt stays usable, and is aborted on purpose.
        let mut txn = session.begin(Isolation::Serializable).await?;
        let full = PathError::GroupFull { bytes: 52, limit: GROUP_BYTES as usize };
        assert_eq!(people.enter(&mut txn, 4, "Dan", 7).await, Err(full.into()));
        txn.abort();
        // A name that is taken.
        let mut txn = session.begin(Isolation::Serializable).await?;
        let taken = people.enter(&mut txn, 5, "Bea", 8).await;
        let key = PrimaryKey::from(*b"Bea");
        assert_eq!(taken, Err(TxnError::AlreadyExists { table: people.by_name, key: key.into() }));
        drop(txn);
        // The group has not been read yet.
        let mut txn = session.begin(Isolation::Serializable).await?;
        let group = txn.add_rw(people.by_street, 7)?;
        let unread = txn.link(group, &entry("Eve", 6));
        assert!(matches!(unread, Err(TxnError::Misuse(_))), "{unread:?}");
        // Not every row is a group.
        let base = txn.add_rw(people.base, 1)?;
        txn.execute().await?;
        let malformed = txn.link(base, &entry("Eve", 6));
        assert_eq!(malformed, Err(PathError::Malformed.into()));
        drop(txn);
        let mut txn = session.begin_read_only().await?;
        let by_name = txn.add_ro(people.by_name, *b"Bea")?;
        assert_eq!(people.names(&mut txn, 7).await?, ["Ada", "Bea", "Cat"]);
        assert_eq!(people.names(&mut txn, 8).await?, [""; 0]);
        assert_eq!(target(txn.value(by_name))?, Some(2.into()));
        Ok(())
    }));
    assert_keys(&cluster, people.base, 1..4);
    stop_clean(cluster);
}

/// H20: a transaction that has read that a street is empty blocks inserts there until it ends.
#[test]
fn h20_an_absent_group_stays_absent_for_whoever_has_read_it() {
    for nodes in [1, 2] {
        let (cluster, people) = people(nodes);
        let stage = Arc::new(AtomicUsize::new(0));
        let (reading, moving) = (Arc::clone(&stage), stage);
        let reader = cluster.submit(FIRST, move |mut session| async move {
            let view = session.view();
            let mut txn = session.begin(Isolation::Serializable).await?;
            assert_eq!(people.names(&mut txn, 7).await?, [""; 0]);
            reading.store(1, Ordering::SeqCst);
            until(&view, || reading.load(Ordering::SeqCst) == 2).await;
            txn.commit().await
        });
        let last = cluster.coordinators().last().expect("there is a coordinator");
        done(cluster.submit(last, move |mut session| async move {
            until(&session.view(), || moving.load(Ordering::SeqCst) == 1).await;
            let mut txn = session.begin(Isolation::Serializable).await?;
            let refused = people.enter(&mut txn, 1, "Ada", 7).await.expect_err("it is being read");
            assert!(is_conflict(&refused), "{refused}");
            drop(txn);
            moving.store(2, Ordering::SeqCst);
            Ok(())
        }));
        done(reader);
        stop_clean(cluster);
    }
}
