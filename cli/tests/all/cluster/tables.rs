//! Tables of applications on clusters whose nodes are `lotus cn`: those of the cluster file, and
//! those that clients create.

use std::fs;
use std::net::Ipv4Addr;

use lotus_client::{CallError, Client, Config, Failure, Kind, TableId, TableSpec};
use lotus_node::ClusterFile;

use super::described::Described;
use super::{PATIENCE, kill, node, refusal, refusal_of};
use crate::common::lotus;

const ORDERS: &str = "[[table]]\nname = \"orders\"\nrecord_bytes = 16\ncapacity = 1_000\n";
const CREATE: &str = "[clients]\ncreate_tables = true\ninteractive = 2\n";
const SNAPSHOTS: &str = "[snapshots]\ndirectory = \"kept\"\n";
const ITEMS: TableSpec = TableSpec::new("items").record_bytes(200).capacity(1_000);
const ROWS: u64 = 32;

/// A cluster without a load.
fn described(name: &str, sections: &str) -> (Described, Ipv4Addr) {
    let (described, host) = Described::serving(name);
    let file = fs::read_to_string(described.file()).expect("it is ours");
    let (nodes, _) = file.split_once("[load").expect("it has one");
    fs::write(described.file(), format!("{nodes}{sections}")).expect("it is ours");
    (described, host)
}

/// Runs the side of the applications.
fn run<T>(applications: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let within = async { tokio::time::timeout(2 * PATIENCE, applications).await };
    runtime.expect("the system has a thread").block_on(within).expect("it comes to an end")
}

/// An application that knows the address of one compute node.
async fn client(described: &Described, host: Ipv4Addr, node: u16) -> Client {
    let file = ClusterFile::read(described.file().as_ref(), None).expect("sound");
    let mut config = Config::new(format!("{host}:{}", 7500 + node));
    config.security = file.as_application().expect("the key was made");
    config.timeout = PATIENCE;
    Client::connect(config).await.expect("it serves")
}

/// Whether a transaction had no effect and may be repeated: others are in its way, or a node that
/// returns is waited for.
fn may_be_repeated(error: &CallError) -> bool {
    matches!(error, CallError::Failed(Failure::Conflict(_) | Failure::Busy(_)))
}

/// Writes rows `keys`, whose locks all nodes keep.
async fn write(client: &Client, table: TableId, keys: std::ops::Range<u64>) {
    for key in keys {
        loop {
            let mut txn = client.transaction(Kind::Serializable);
            txn.insert(table, key, key.to_le_bytes());
            match txn.commit().await {
                Ok(_) => break,
                Err(error) => assert!(may_be_repeated(&error), "row {key}: {error}"),
            }
        }
    }
}

async fn assert_rows(client: &Client, table: TableId, rows: u64) {
    for key in 0..rows {
        loop {
            let mut txn = client.transaction(Kind::ReadOnly);
            let item = txn.add_ro(table, key);
            match txn.execute().await {
                Ok(()) => {
                    assert_eq!(txn.value(item), Some(&key.to_le_bytes()[..]), "row {key}");
                    break;
                }
                Err(error) => assert!(may_be_repeated(&error), "row {key}: {error}"),
            }
        }
    }
}

/// Opens two transactions side by side at the node that owns a row. With one place the second one
/// waits until the first one is aborted, whose commit then fails.
async fn assert_two_places(client: &Client, table: TableId) {
    let mut both = [(); 2].map(|()| client.transaction(Kind::Snapshot));
    for txn in &mut both {
        txn.add_ro(table, 0);
        txn.execute().await.expect("there is a place");
    }
    for txn in both {
        txn.commit().await.expect("nobody waited for its place");
    }
}

#[test]
fn tables_of_the_file_and_of_clients_outlive_nodes_and_the_cluster() {
    let (described, host) = described("tables", &format!("{CREATE}{SNAPSHOTS}{ORDERS}"));
    described.done(&["up"]);
    run(async {
        let (one, other) = (client(&described, host, 0).await, client(&described, host, 1).await);
        let orders = one.table("orders").expect("the file has it");
        assert_eq!(other.table("orders"), Some(orders));
        let items = one.create_table(&ITEMS).await.expect("clients may");
        for again in [&one, &other] {
            assert_eq!(again.create_table(&ITEMS).await.expect("it is there"), items);
        }
        let differs = other.create_table(&ITEMS.record_bytes(100)).await;
        let said = differs.expect_err("it has 200").to_string();
        assert!(said.ends_with("another shape: record_bytes is 200, not 100"), "{said}");
        write(&one, items, 0..ROWS).await;
        write(&other, orders, 0..ROWS).await;
        assert_rows(&other, items, ROWS).await;
        assert_rows(&one, orders, ROWS).await;
        assert_two_places(&one, items).await;
    });

    kill(node(&described.status(), "cn-1").0);
    described.done(&["up"]);
    run(async {
        let returned = client(&described, host, 1).await;
        let items = returned.table("items").expect("it has learned it at its start");
        assert_rows(&returned, items, ROWS).await;
        write(&returned, items, ROWS..2 * ROWS).await;
    });

    let said = described.done(&["down"]);
    assert!(said.contains("a snapshot "), "{said}");
    let file = fs::read_to_string(described.file()).expect("it is ours");
    let stock = ORDERS.replace("orders", "stock");
    fs::write(described.file(), file + &stock).expect("it is ours");
    described.done(&["up"]);
    run(async {
        let client = client(&described, host, 0).await;
        let [orders, items, stock] =
            ["orders", "items", "stock"].map(|name| client.table(name).expect(name));
        assert_rows(&client, orders, ROWS).await;
        assert_rows(&client, items, 2 * ROWS).await;
        assert_eq!(client.create_table(&ITEMS).await.expect("it is there"), items);
        write(&client, stock, 0..ROWS).await;
    });
    assert!(!described.logs().contains("panicked"), "{}", described.logs());
}

/// A table of the file that the cluster was made without, or with another shape, is named.
#[test]
fn clients_create_nothing_without_the_right_and_files_are_held_to_their_cluster() {
    let (described, host) = described("rights", ORDERS);
    described.done(&["up"]);
    run(async {
        let client = client(&described, host, 1).await;
        let refused = client.create_table(&ITEMS).await;
        assert!(matches!(refused, Err(CallError::Failed(Failure::MayNotCreate))), "{refused:?}");
        let orders = client.table("orders").expect("the file has it");
        write(&client, orders, 0..ROWS).await;
    });
    kill(node(&described.status(), "cn-1").0);
    let sound = fs::read_to_string(described.file()).expect("it is ours");
    for (other, said) in [
        (sound.clone() + &ORDERS.replace("orders", "stock"), "no table named \"stock\""),
        (
            sound.replace("record_bytes = 16", "record_bytes = 24"),
            "in the cluster file: record_bytes is 16, not 24",
        ),
    ] {
        fs::write(described.file(), other).expect("it is ours");
        let refused = refusal_of(&described.cluster(&["up"]));
        assert!(refused.contains(said), "{refused}");
    }
    fs::write(described.file(), sound).expect("it is ours");
    described.done(&["up"]);
    run(async {
        let client = client(&described, host, 1).await;
        let orders = client.table("orders").expect("the file has it");
        assert_rows(&client, orders, ROWS).await;
    });
}

/// The clients' tables come and go, whichever node is asked, also while one is away.
#[test]
fn tables_that_clients_drop_are_gone_at_all_nodes() {
    const RIGHTS: &str = "[clients]\ncreate_tables = true\ndrop_tables = true\n";
    let (described, host) = described("dropped", &format!("{RIGHTS}{ORDERS}"));
    described.done(&["up"]);
    let file = described.file();
    let drop = |name: &str| lotus(&["tables", "--file", &file, "--drop", name]);
    for round in 0..3 {
        let items = run(async {
            let (one, other) =
                (client(&described, host, 0).await, client(&described, host, 1).await);
            let items = one.create_table(&ITEMS).await.expect("clients may");
            write(&other, items, 0..ROWS).await;
            assert_rows(&one, items, ROWS).await;
            items
        });
        if round == 1 {
            kill(node(&described.status(), "cn-1").0);
        }
        let dropped = drop("items");
        assert!(dropped.status.success(), "{dropped:?}");
        assert_eq!(String::from_utf8_lossy(&dropped.stdout), "dropped table items\n");
        assert_eq!(drop("items").status.code(), Some(1), "there is none any more");
        if round == 1 {
            described.done(&["up"]);
        }
        run(async {
            for node in [0, 1] {
                let client = client(&described, host, node).await;
                assert_eq!(client.table("items"), None);
                let outcome = loop {
                    let mut txn = client.transaction(Kind::Serializable);
                    txn.insert(items, 1_u64, [1; 8]);
                    match txn.commit().await {
                        Err(error) if may_be_repeated(&error) => {}
                        outcome => break outcome,
                    }
                };
                let unknown = matches!(
                    outcome,
                    Err(CallError::Failed(Failure::UnknownTable { table })) if table == items.0
                );
                assert!(unknown, "round {round}, node {node}: {outcome:?}");
            }
        });
    }
    let refused = drop("orders");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("of the cluster file"), "{said}");
    assert!(!described.logs().contains("panicked"), "{}", described.logs());
}

#[test]
fn a_file_with_a_wrong_table_starts_nothing() {
    let (described, _) = described("wrong-table", &ORDERS.replace("1_000", "0"));
    let lines = fs::read_to_string(described.file()).expect("it is ours").lines().count();
    let refused = refusal(&described.cluster(&["up"]));
    assert!(
        refused.contains(&format!("line {lines}: capacity must be 1 to 2^36 rows")),
        "{refused}"
    );
    assert!(!described.directory.join("c.state").exists());
}
