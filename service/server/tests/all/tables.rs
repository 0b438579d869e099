//! Tables that clients create, at any node of any process.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::raw::Raw;
use crate::common::{Bank, run};
use crate::parts::parts_over;
use lotus::{Authority, Cluster, Transaction};
use lotus_authority::testing::{Question, QuestionOutcome, TestAuthority};
use lotus_client::{CallError, Client, CriticalField, Effect, Failure, Kind, TableId, TableSpec};
use lotus_protocol::messages::{self, Answer, Op, decode};
use lotus_server::{Abort, Registry, Server};

const ORDERS: TableSpec = TableSpec::new("orders").record_bytes(16).capacity(1_000);
const ROWS: u64 = 64;

/// Stored transactions that are told by number which table they use.
fn procedures() -> Registry {
    let mut registry = Registry::new();
    registry.register(
        "store",
        async move |txn: &mut Transaction, (table, key, value): (u16, u64, Vec<u8>)| {
            txn.insert(lotus::TableId(table), key, &value)?;
            Ok::<(), Abort>(())
        },
    );
    registry
}

/// Compute nodes 0 and 2 in one process, and compute node 1 in another, with their servers.
struct Shop {
    clusters: [Arc<Cluster>; 2],
    servers: Vec<Server>,
}

impl Shop {
    fn open(authority: &Arc<TestAuthority>) -> Self {
        let clusters = parts_over(&(Arc::clone(authority) as Arc<dyn Authority>));
        let [most, one] = &clusters;
        let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        let addresses: Vec<String> = listeners.iter().map(address).collect();
        let nodes = listeners.into_iter().zip([most, one, most]).enumerate();
        let servers = nodes.map(|(node, (listener, part))| {
            let mut config = lotus_server::Config::new(listener, addresses.clone());
            config.create_tables = true;
            Server::start(Arc::clone(part), node, procedures(), config).unwrap()
        });
        Self { servers: servers.collect(), clusters }
    }

    async fn client(&self, node: usize) -> Client {
        self.client_with(node, Duration::from_secs(20)).await
    }

    async fn client_with(&self, node: usize, timeout: Duration) -> Client {
        let mut config = lotus_client::Config::new(self.servers[node].address().to_string());
        config.timeout = timeout;
        Client::connect(config).await.unwrap()
    }
}

async fn write(client: &Client, table: TableId, key: u64) -> Result<(), CallError> {
    let mut txn = client.transaction(Kind::Serializable);
    txn.insert(table, key, key.to_le_bytes());
    txn.commit().await.map(drop)
}

async fn read(client: &Client, table: TableId, key: u64) -> Option<Vec<u8>> {
    let mut txn = client.transaction(Kind::ReadOnly);
    let item = txn.add_ro(table, key);
    txn.execute().await.unwrap();
    txn.value(item).map(<[u8]>::to_vec)
}

#[test]
fn a_table_that_is_created_at_one_node_is_served_by_all() {
    let shop = Shop::open(&Arc::default());
    run(async {
        let clients = [shop.client(0).await, shop.client(1).await];
        let [one, other] = &clients;
        assert_eq!(one.table("orders"), None);
        let table = one.create_table(&ORDERS).await.unwrap();
        assert_eq!(one.table("orders"), Some(table));
        let known = shop.clusters.iter().filter(|part| part.table("orders").is_some());
        assert_eq!(known.count(), 1, "the other process has not been asked yet");
        // The owners of these rows are at all nodes.
        for key in 0..ROWS {
            write(one, table, key).await.unwrap();
        }
        assert_eq!(other.table("orders"), None);
        assert_eq!(other.open_table("orders").await.unwrap(), Some(table));
        for key in 0..ROWS {
            assert_eq!(read(other, table, key).await, Some(key.to_le_bytes().to_vec()));
        }
        assert_eq!(other.open_table("none").await.unwrap(), None);

        let field = CriticalField::Bytes { start: 0, len: 4 };
        let items = TableSpec::new("items").record_bytes(16).capacity(9).critical_field(field);
        let items = other.create_table(&items.shards(3)).await.unwrap();
        for key in 0..9_u64 {
            let call = one.call::<_, ()>("store", &(items.0, key, vec![7_u8]));
            call.at(items, key).await.unwrap();
        }
        assert_eq!(read(one, items, 8).await, Some(vec![7]));
    });
}

/// Every node is asked until each has been: requests that name no row go to any of them.
#[test]
fn a_directory_has_the_tables_of_all_nodes() {
    let shop = Shop::open(&Arc::default());
    run(async {
        let (one, other) = (shop.client(0).await, shop.client(1).await);
        for number in 0..8_u64 {
            let spec = TableSpec::named(format!("t{number}")).record_bytes(8).capacity(10);
            let table = one.create_table(&spec).await.unwrap();
            other.refresh().await.unwrap();
            assert_eq!(other.table(&spec.name), Some(table));
        }
    });
}

#[test]
fn a_table_is_created_once_and_keeps_its_shape() {
    let bank = Bank::open_with(2, |config| config.create_tables = true);
    run(async {
        let client = bank.client().await;
        let tables = bank.cluster.tables().len();
        let creations = (0..8).map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.create_table(&ORDERS).await.unwrap() })
        });
        let mut created = Vec::new();
        for creation in creations.collect::<Vec<_>>() {
            created.push(creation.await.unwrap());
        }
        created.dedup();
        assert_eq!((created.len(), bank.cluster.tables().len()), (1, tables + 1));
        let other = ORDERS.record_bytes(24).versions(3);
        match client.create_table(&other).await {
            Err(CallError::Failed(Failure::TableDiffers(settings))) => {
                assert_eq!(settings, "record_bytes is 16, not 24, versions is 2, not 3");
            }
            answer => panic!("{answer:?}"),
        }
        let invalid = client.create_table(&TableSpec::new("t").capacity(1)).await;
        assert!(matches!(&invalid, Err(CallError::Request(why)) if why.contains("record_bytes")));
        let internal = TableSpec::new("lotus.mine").record_bytes(1).capacity(1);
        let internal = client.create_table(&internal).await;
        assert!(matches!(internal, Err(CallError::Failed(Failure::InvalidTable(_)))));
        assert_eq!(bank.cluster.tables().len(), tables + 1);
    });
}

#[test]
fn clients_create_no_tables_where_they_may_not() {
    let bank = Bank::open(1);
    run(async {
        let client = bank.client().await;
        let refused = client.create_table(&ORDERS).await;
        assert!(matches!(refused, Err(CallError::Failed(Failure::MayNotCreate))), "{refused:?}");
        assert_eq!(bank.cluster.table("orders"), None);
    });
}

#[test]
fn a_table_that_is_dropped_is_unknown_and_its_name_is_free() {
    let bank = Bank::open_with(2, |config| {
        (config.create_tables, config.drop_tables) = (true, true);
        config.lasting_tables = vec!["accounts".to_owned()];
    });
    run(async {
        let (client, other) = (bank.client().await, bank.client().await);
        let first = client.create_table(&ORDERS).await.unwrap();
        assert_eq!(other.open_table("orders").await.unwrap(), Some(first));
        write(&client, first, 1).await.unwrap();
        client.drop_table("orders").await.unwrap();
        assert_eq!(client.table("orders"), None);
        let unknown = write(&other, first, 2).await;
        match unknown {
            Err(CallError::Failed(Failure::UnknownTable { table })) => assert_eq!(table, first.0),
            answer => panic!("{answer:?}"),
        }
        let mut scan = other.scan(first);
        assert!(scan.next_page().await.is_err());

        let second = client.create_table(&ORDERS.record_bytes(24)).await.unwrap();
        assert_ne!(first, second);
        other.refresh().await.unwrap();
        assert_eq!(other.table("orders"), Some(second));
        write(&other, second, 1).await.unwrap();
        assert_eq!(read(&client, second, 1).await, Some(1_u64.to_le_bytes().to_vec()));

        let missing = client.drop_table("letters").await;
        assert!(matches!(missing, Err(CallError::Failed(Failure::NotFound(_)))), "{missing:?}");
        for (name, said) in [("accounts", "of the cluster file"), ("lotus.calls", "of the system")]
        {
            match client.drop_table(name).await {
                Err(CallError::Failed(Failure::Refused(why))) => assert!(why.contains(said)),
                answer => panic!("{name}: {answer:?}"),
            }
        }
    });
}

/// A request to drop a table was repeated by name after its answer was lost, and dropped the table
/// that another application had created under that name meanwhile.
#[test]
fn a_drop_that_comes_twice_drops_no_table_that_was_created_in_between() {
    let bank = Bank::open_with(2, |config| {
        (config.create_tables, config.drop_tables) = (true, true);
    });
    run(async {
        let client = bank.client().await;
        let first = client.create_table(&ORDERS).await.unwrap();
        let drop = |name: &str, table| {
            let mut raw = Raw::admitted(bank.servers[1].address());
            let mut out = Vec::new();
            let request = Op::DropTable { name, table, timeout_us: 10_000_000 };
            messages::send(&mut out, 1, &request);
            raw.stream.write_all(&out).unwrap();
            let frame = raw.next().unwrap();
            let (_, message) = messages::split(&frame).unwrap();
            match decode(message).unwrap() {
                Answer::TableDropped => Ok(()),
                Answer::Failed(failure) => Err(failure),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(drop("orders", Some(first.0)), Ok(()));
        let second = client.create_table(&ORDERS).await.unwrap();
        write(&client, second, 1).await.unwrap();
        assert_eq!(drop("orders", Some(first.0)), Ok(()), "it is dropped");
        for (name, table) in [("orders", None), ("letters", Some(second.0)), ("orders", Some(999))]
        {
            let refused = drop(name, table);
            assert!(matches!(refused, Err(Failure::NotFound(_))), "{name} {table:?}: {refused:?}");
        }
        assert_eq!(read(&client, second, 1).await, Some(1_u64.to_le_bytes().to_vec()));
        // A client with an old directory drops the table that has the name now.
        let other = bank.client().await;
        client.drop_table("orders").await.unwrap();
        let third = client.create_table(&ORDERS).await.unwrap();
        assert_eq!(other.table("orders"), Some(second));
        other.drop_table("orders").await.unwrap();
        client.refresh().await.unwrap();
        assert_eq!(client.table("orders"), None, "{third:?}");
    });
}

#[test]
fn clients_drop_no_tables_where_they_may_not() {
    let bank = Bank::open_with(1, |config| config.create_tables = true);
    run(async {
        let client = bank.client().await;
        client.create_table(&ORDERS).await.unwrap();
        let refused = client.drop_table("orders").await;
        assert!(matches!(refused, Err(CallError::Failed(Failure::MayNotDrop))), "{refused:?}");
        assert!(bank.cluster.table("orders").is_some());
    });
}

#[test]
fn a_table_that_does_not_fit_is_refused_and_others_are_created() {
    let builder = Cluster::embedded().memory_nodes(1).replicas(1).lock_table_bytes(1 << 16);
    let cluster = builder.memory_limit(128 << 20).start().unwrap();
    let bank = Bank::over(cluster, |config| config.create_tables = true);
    run(async {
        let client = bank.client().await;
        for _ in 0..3 {
            let refused = client.create_table(&ORDERS.capacity(1 << 30)).await;
            match refused {
                Err(CallError::Failed(failure @ Failure::NoRoomForTable(_))) => {
                    assert!(failure.to_string().contains("do not fit"), "{failure}");
                }
                answer => panic!("{answer:?}"),
            }
        }
        let table = client.create_table(&ORDERS).await.unwrap();
        write(&client, table, 1).await.unwrap();
    });
}

/// A node of the other process learns of an ordered table when a transaction names it.
#[test]
fn an_ordered_table_that_is_created_at_one_node_is_used_at_all() {
    let shop = Shop::open(&Arc::default());
    let names = TableSpec::new("names").key_bytes(100).record_bytes(8).capacity(100).ordered();
    run(async {
        let one = shop.client(0).await;
        let table = one.create_table(&names).await.unwrap();
        assert!(one.tables().iter().any(|table| table.name == "names" && table.ordered));
        // Each runs at any node.
        for number in 0..16_u64 {
            let body = async move |txn: &mut lotus_client::Transaction| {
                let mut names = txn.ordered(table);
                match number % 2 {
                    0 => names.insert(format!("name {number:02}"), number.to_le_bytes()),
                    _ => assert_eq!(names.range(..).rows().await?.len() as u64, number / 2 + 1),
                }
                Ok::<(), CallError>(())
            };
            one.run(Kind::Serializable, body).await.unwrap();
        }
        let mut scan = shop.client(1).await.scan(table).prefix(b"name 1");
        let page = scan.next_page().await.unwrap().unwrap();
        let keys = page.iter().map(|(key, _)| &key[..]);
        assert!(keys.eq([&b"name 10"[..], b"name 12", b"name 14"]));
    });
}

/// A node of the other process learns of a table when a scan names it. Regression: it said that
/// there was no such table.
#[test]
fn a_table_that_is_created_at_one_node_is_scanned_at_all() {
    let shop = Shop::open(&Arc::default());
    run(async {
        let one = shop.client(0).await;
        let table = one.create_table(&ORDERS).await.unwrap();
        let known = shop.clusters.iter().filter(|part| part.table("orders").is_some());
        assert_eq!(known.count(), 1, "the other process has not been asked yet");
        // Each runs at any node.
        for _ in 0..16 {
            let mut scan = one.scan(table);
            while let Some(rows) = scan.next_page().await.unwrap() {
                assert!(rows.is_empty());
            }
        }
    });
}

#[test]
fn a_silent_authority_is_named_and_no_table_is_half_created() {
    let authority = Arc::<TestAuthority>::default();
    let shop = Shop::open(&authority);
    let tables = |name: &str| {
        let all = shop.clusters[0].tables();
        all.iter().filter(|(_, spec)| spec.name == name).count()
    };
    run(async {
        let hasty = shop.client_with(0, Duration::from_secs(1)).await;
        let client = shop.client(0).await;
        authority.turn(QuestionOutcome::QuestionLost);
        let refused = hasty.create_table(&ORDERS).await.unwrap_err();
        assert!(matches!(refused, CallError::Failed(Failure::NoAuthority)), "{refused:?}");
        assert_eq!(refused.effect(), Effect::Nothing);

        authority.turn_swaps(QuestionOutcome::QuestionLost);
        let unknown = hasty.create_table(&ORDERS).await.unwrap_err();
        assert_eq!(unknown.effect(), Effect::Unknown, "{unknown:?}");
        // A directory without the authority has what the node knows.
        authority.turn(QuestionOutcome::QuestionLost);
        client.refresh().await.unwrap();

        // The entry is made, and the answer lost.
        authority.turn_swaps(QuestionOutcome::AnswerLost);
        let table = client.create_table(&ORDERS).await.unwrap();
        authority.turn(QuestionOutcome::Answered);
        assert_eq!(client.create_table(&ORDERS).await.unwrap(), table);
        shop.clusters[0].open_table("orders").unwrap();
        assert_eq!(tables("orders"), 1);
        write(&client, table, 1).await.unwrap();
    });
}

/// A node that cannot find out whether there is such a table does not say that there is none.
#[test]
fn a_new_table_waits_for_the_authority_at_nodes_that_do_not_know_it() {
    let authority = Arc::<TestAuthority>::default();
    let shop = Shop::open(&authority);
    run(async {
        let client = shop.client(0).await;
        let table = client.create_table(&ORDERS).await.unwrap();
        authority.turn(QuestionOutcome::QuestionLost);
        let mut left = Vec::new();
        for key in 0..ROWS {
            match write(&client, table, key).await {
                Ok(()) => {}
                Err(CallError::Failed(Failure::Conflict(_))) => left.push(key),
                Err(error) => panic!("row {key}: {error}"),
            }
        }
        assert!(!left.is_empty(), "some rows belong to the other process");
        authority.turn(QuestionOutcome::Answered);
        for key in left {
            while let Err(error) = write(&client, table, key).await {
                let again = matches!(error, CallError::Failed(Failure::Conflict(_)));
                assert!(again, "row {key}: {error}");
            }
        }
    });
}

/// Numbers of no table cost the authority few reads, and do not keep others from new tables.
#[test]
fn numbers_of_no_table_are_refused_and_looked_for_at_intervals() {
    let authority = Arc::<TestAuthority>::default();
    let shop = Shop::open(&authority);
    let looks = Arc::new(AtomicU64::new(0));
    run(async {
        let (one, other) = (shop.client(0).await, shop.client(1).await);
        let table = one.create_table(&ORDERS).await.unwrap();
        let counted = Arc::clone(&looks);
        authority.follow(move |question, _| {
            if matches!(question, Question::Read { key: "tables" }) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            QuestionOutcome::Answered
        });
        #[expect(clippy::disallowed_methods, reason = "it compares real rates")]
        let begun = Instant::now();
        let guesses = (0..8_u16).map(|task| {
            let client = other.clone();
            tokio::spawn(async move {
                for guess in 0..10 {
                    let unknown = TableId(1_000 + 10 * task + guess);
                    let refused = write(&client, unknown, guess.into()).await.unwrap_err();
                    let said = refused.to_string();
                    let expected = format!("there is no table {}", unknown.0);
                    assert!(said == expected || said.contains("no room"), "{said}");
                }
            })
        });
        let guesses: Vec<_> = guesses.collect();
        for key in 0..ROWS {
            while let Err(error) = write(&one, table, key).await {
                assert!(matches!(error, CallError::Failed(Failure::Busy(_))), "{error:?}");
            }
        }
        for guess in guesses {
            guess.await.unwrap();
        }
        let intervals = begun.elapsed().as_millis() as u64 / 100 + 1;
        let looks = looks.load(Ordering::Relaxed);
        // Two processes.
        assert!((1..=2 * intervals).contains(&looks), "{looks} looks in {intervals} intervals");
    });
}
