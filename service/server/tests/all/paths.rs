//! Secondary access paths, changed by interactive transactions.

use crate::common::{Bank, run};
use lotus_client::path::{Entry, Group, PathError, target};
use lotus_client::{CallError, Client, Failure, Kind, PrimaryKey, TableId, TableSpec, Transaction};

/// Size of a group, in bytes: room for three entries of [`entry`].
const GROUP_BYTES: u32 = 40;

/// Tables of people by number, of their numbers by name, and of their numbers by street.
#[derive(Clone, Copy)]
struct People {
    base: TableId,
    by_name: TableId,
    by_street: TableId,
}

fn entry(name: &str, number: u64) -> Entry<'_> {
    Entry { order: name.as_bytes(), key: number.into() }
}

impl People {
    /// The tables of a cluster, which has just made them.
    fn of(bank: &Bank) -> Self {
        let table = |name, bytes| {
            let spec = TableSpec::new(name).record_bytes(bytes).capacity(1_000);
            bank.cluster.create_table(spec).unwrap()
        };
        let (base, by_name) = (table("people", 8), table("people by name", 8));
        Self { base, by_name, by_street: table("people by street", GROUP_BYTES) }
    }

    async fn enter(
        self,
        txn: &mut Transaction,
        number: u64,
        name: &'static str,
        street: u64,
    ) -> Result<(), CallError> {
        txn.insert(self.base, number, name);
        let name_key = PrimaryKey::try_from(name.as_bytes()).unwrap();
        txn.insert(self.by_name, name_key, PrimaryKey::from(number).as_bytes());
        let group = txn.add_rw(self.by_street, street);
        txn.execute().await?;
        txn.link(group, &entry(name, number))
    }

    /// The names in a street, in their order.
    async fn names(self, client: &Client, street: u64) -> Vec<String> {
        let body = async move |txn: &mut Transaction| {
            let group = txn.add_ro(self.by_street, street);
            txn.execute().await?;
            let group = Group::read(txn.value(group))?;
            let numbers: Vec<_> = group.iter().map(|entry| entry.key).collect();
            let items = numbers.into_iter().map(|number| txn.add_ro(self.base, number));
            let items: Vec<_> = items.collect();
            txn.execute().await?;
            let names = items.into_iter().map(|item| {
                let name = txn.value(item).expect("no entry without its base row");
                String::from_utf8_lossy(name).into_owned()
            });
            Ok::<_, CallError>(names.collect())
        };
        client.run(Kind::ReadOnly, body).await.unwrap().value
    }
}

#[test]
fn path_rows_change_with_their_base_rows() {
    let bank = Bank::open(2);
    let people = People::of(&bank);
    run(async {
        let client = bank.client().await;
        for (street, kind) in [(1, Kind::Serializable), (2, Kind::Snapshot)] {
            let first = 10 * street;
            let names = if street == 1 { ["Cat", "Ada", "Bea"] } else { ["Eve", "Dan", "Fay"] };
            let all_enter = async move |txn: &mut Transaction| {
                for (number, name) in (first..).zip(names) {
                    people.enter(txn, number, name, street).await?;
                }
                Ok::<_, CallError>(())
            };
            client.run(kind, all_enter).await.unwrap();
            let mut sorted = names;
            sorted.sort_unstable();
            assert_eq!(people.names(&client, street).await, sorted);

            let one_leaves = async move |txn: &mut Transaction| {
                let name = txn.add_rw(people.by_name, PrimaryKey::try_from(names[0].as_bytes())?);
                let group = txn.add_rw(people.by_street, street);
                txn.execute().await?;
                let number = target(txn.value(name))?.expect("it has entered");
                let base = txn.add_rw(people.base, number);
                txn.execute().await?;
                txn.delete(base);
                txn.delete(name);
                txn.unlink(group, &Entry { order: names[0].as_bytes(), key: number })?;
                let again = txn.unlink(group, &entry(names[0], first)).unwrap_err();
                assert!(matches!(again, CallError::Path(PathError::NotLinked)), "{again}");
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            };
            client.run(kind, one_leaves).await.unwrap();
            sorted = names;
            sorted[1..].sort_unstable();
            assert_eq!(people.names(&client, street).await, sorted[1..]);
        }
    });
}

#[test]
fn what_a_path_refuses_changes_nothing_and_ends_nothing() {
    let bank = Bank::open(1);
    let people = People::of(&bank);
    run(async {
        let client = bank.client().await;
        let mut txn = client.transaction(Kind::Serializable);
        for (number, name) in [(1, "Ada"), (2, "Bea"), (3, "Cat")] {
            people.enter(&mut txn, number, name, 7).await.unwrap();
        }
        let group = txn.add_rw(people.by_street, 7);
        txn.execute().await.unwrap();
        match txn.link(group, &entry("Dan", 4)).unwrap_err() {
            CallError::Path(error) => {
                let limit = GROUP_BYTES as usize;
                assert_eq!(error, PathError::GroupFull { bytes: 52, limit });
            }
            other => panic!("{other}"),
        }
        let unread = txn.add_rw(people.by_street, 8);
        let refused = txn.link(unread, &entry("Eve", 5));
        assert!(matches!(refused, Err(CallError::Request(_))), "{refused:?}");
        // A name is no group.
        let name = txn.add_rw(people.base, 1);
        txn.execute().await.unwrap();
        let refused = txn.link(name, &entry("Eve", 5));
        assert!(matches!(refused, Err(CallError::Path(PathError::Malformed))), "{refused:?}");
        txn.commit().await.unwrap();
        assert_eq!(people.names(&client, 7).await, ["Ada", "Bea", "Cat"]);

        // The name is taken.
        let mut txn = client.transaction(Kind::Serializable);
        let taken = people.enter(&mut txn, 4, "Bea", 9).await.unwrap_err();
        assert!(matches!(taken, CallError::Failed(Failure::AlreadyExists(_))), "{taken}");
    });
}
