//! Ordered tables over the wire: in interactive transactions, and in scans.

use std::io::Write;
use std::ops::Bound;
use std::time::Duration;

use crate::common::raw::Raw;
use crate::common::{ACCOUNTS, Bank, INITIAL, balance, run};
use lotus::TableSpec;
use lotus_client::{CallError, Client, Failure, Kind, Rows, TableId, Transaction};
use lotus_protocol::messages::{
    self, Action, Answer, Begin, Bytes, Excess, Found, Keys, Op, RESULT_BYTES, Step, StepEnd,
    decode, split,
};
use lotus_server::Config;

/// All rows take more than an answer has room for.
const SPEC: TableSpec =
    TableSpec::new("sorted").key_bytes(20).record_bytes(1_000).capacity(2_000).ordered();
const ROWS: u32 = 1_200;

fn key(number: u32) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

fn row(number: u32) -> (Vec<u8>, Vec<u8>) {
    (key(number), vec![number as u8; 1_000])
}

fn rows(numbers: impl IntoIterator<Item = u32>) -> Rows {
    numbers.into_iter().map(row).collect()
}

/// A bank with an ordered table beside its accounts.
fn open(nodes: usize, set: impl Fn(&mut Config)) -> Bank {
    let bank = Bank::open_with(nodes, |config| {
        config.limits.hold = Duration::from_secs(30);
        set(config);
    });
    bank.cluster.create_table(SPEC).unwrap();
    bank
}

/// The table, with all rows in it.
async fn filled(client: &Client) -> TableId {
    let table = client.table("sorted").unwrap();
    for from in (0..ROWS).step_by(25) {
        let body = async move |txn: &mut Transaction| {
            for (key, value) in rows(from..from + 25) {
                txn.ordered(table).insert(key, value);
            }
            Ok::<(), CallError>(())
        };
        client.run(Kind::Serializable, body).await.unwrap();
    }
    table
}

/// All rows, as another transaction sees them.
async fn all(client: &Client, table: TableId) -> Rows {
    let body = async move |txn: &mut Transaction| txn.ordered(table).range(..).rows().await;
    client.run(Kind::ReadOnly, body).await.unwrap().value
}

#[test]
fn rows_are_read_put_inserted_and_deleted_beside_others() {
    let bank = open(2, |_| {});
    run(async {
        let client = bank.client().await;
        let described = client.tables().into_iter().map(|table| (table.name, table.ordered));
        let expected = [("accounts".to_owned(), false), ("sorted".to_owned(), true)];
        assert!(described.eq(expected));
        let [accounts, table] = ["accounts", "sorted"].map(|name| client.table(name).unwrap());
        let long = vec![0xff; 20];
        for kind in [Kind::Serializable, Kind::Snapshot] {
            // Locks of a commit are released a little later than it is reported, so all is tried
            // again after a conflict.
            let body = async |txn: &mut Transaction| {
                let account = txn.add_rw(accounts, 1);
                let mut sorted = txn.ordered(table);
                sorted.insert(*b"b", *b"2");
                sorted.put(long.clone(), []);
                // What is planned is sent before, and other rows are executed.
                assert_eq!(sorted.get(b"b").await?, Some(b"2".to_vec()));
                assert_eq!(sorted.get(b"a").await?, None);
                sorted.put(*b"b", *b"3");
                assert_eq!(sorted.get_for_update(b"b").await?, Some(b"3".to_vec()));
                assert_eq!(sorted.get(&long).await?, Some(Vec::new()));
                assert_eq!(txn.value(account), Some(&INITIAL.to_le_bytes()[..]));
                txn.put(account, (INITIAL + 1).to_le_bytes());
                txn.ordered(table).range(..).rows().await
            };
            let both = client.run(kind, body).await.unwrap();
            let expected = [(b"b".to_vec(), b"3".to_vec()), (long.clone(), Vec::new())];
            assert_eq!(both.value, expected);
            assert!(both.commit_ts.is_some());
            assert_eq!(balance(&client, 1).await.unwrap(), INITIAL + 1);
            assert_eq!(all(&client, table).await, expected);
            let body = async |txn: &mut Transaction| {
                assert!(txn.ordered(table).delete(b"b").await?);
                assert!(!txn.ordered(table).delete(b"c").await?);
                assert!(txn.ordered(table).delete(&long).await?);
                assert_eq!(txn.ordered(table).get(b"b").await?, None);
                let account = txn.add_rw(accounts, 1);
                txn.execute().await?;
                txn.put(account, INITIAL.to_le_bytes());
                Ok::<(), CallError>(())
            };
            client.run(kind, body).await.unwrap();
            assert_eq!(all(&client, table).await, []);
        }
        let given_up = async |txn: &mut Transaction| {
            txn.ordered(table).put(*b"x", *b"1");
            assert_eq!(txn.ordered(table).prefix(b"x").rows().await?.len(), 1);
            Err::<(), _>(CallError::Request("enough".to_owned()))
        };
        let ended = client.run(Kind::Serializable, given_up).await;
        assert!(matches!(ended, Err(CallError::Request(_))), "{ended:?}");
        assert_eq!(all(&client, table).await, []);
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

#[test]
fn ranges_that_are_longer_than_an_answer_are_read_whole_both_ways() {
    let bank = open(2, |_| {});
    assert!(ROWS as usize * 1_000 > RESULT_BYTES);
    run(async {
        let client = bank.client().await;
        let table = filled(&client).await;
        assert_eq!(all(&client, table).await, rows(0..ROWS));
        let mut changed = rows((0..ROWS).filter(|number| *number != 7));
        let after = changed.iter().position(|(known, _)| *known == key(500)).unwrap();
        changed.iter_mut().find(|(known, _)| *known == key(1_100)).unwrap().1 = b"changed".into();
        changed.insert(after + 1, (b"0005000".to_vec(), b"between".to_vec()));
        let body = async |txn: &mut Transaction| {
            let mut sorted = txn.ordered(table);
            // The transaction's own changes are in its range.
            assert!(sorted.delete(&key(7)).await?);
            sorted.put(key(1_100), *b"changed");
            sorted.insert(*b"0005000", *b"between");
            let up = sorted.range(..).rows().await?;
            assert_eq!(up, changed);
            let mut down = sorted.range(..).reverse().rows().await?;
            assert_eq!(down.first(), changed.last());
            down.reverse();
            assert_eq!(down, changed);
            let (from, until) = (key(100), key(900));
            let inner = sorted.range((Bound::Excluded(&*from), Bound::Included(&*until)));
            let inside = |(key, _): &&(Vec<u8>, Vec<u8>)| *key > from && *key <= until;
            let expected: Rows = changed.iter().filter(inside).take(700).cloned().collect();
            assert_eq!(inner.limit(700).for_update().rows().await?, expected);
            let last = sorted.prefix(b"0011").reverse().limit(3).rows().await?;
            assert_eq!(last, rows([1_199, 1_198, 1_197]));
            assert_eq!(sorted.range(..).limit(0).rows().await?, []);
            assert_eq!(sorted.range(&*from..&*from).rows().await?, []);
            Ok::<(), CallError>(())
        };
        client.run(Kind::Serializable, body).await.unwrap();
        assert_eq!(all(&client, table).await, changed);
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

/// A key within a range that a serializable transaction has read comes later, or not at all.
#[test]
fn no_phantom_of_another_client_comes_into_a_range() {
    let bank = open(2, |_| {});
    run(async {
        let client = bank.client().await;
        let table = filled(&client).await;
        let other = bank.client().await;
        let insert = async move |txn: &mut Transaction| {
            txn.ordered(table).insert(*b"0000050", *b"phantom");
            Ok::<(), CallError>(())
        };
        let (from, until) = (key(0), key(10));
        let mut reader = client.transaction(Kind::Serializable);
        let seen = reader.ordered(table).range(&*from..&*until).rows().await.unwrap();
        assert_eq!(seen, rows(0..10));
        let mut early = other.transaction(Kind::Serializable);
        insert(&mut early).await.unwrap();
        let conflict = early.commit().await;
        let told = matches!(conflict, Err(CallError::Failed(Failure::Conflict(_))));
        assert!(told, "{conflict:?}");
        // It is repeated until the reader has ended.
        let later = tokio::spawn(async move { other.run(Kind::Serializable, insert).await });
        let again = reader.ordered(table).range(&*from..&*until).rows().await.unwrap();
        assert_eq!(again, seen);
        reader.ordered(table).put(key(20), *b"ten");
        reader.commit().await.unwrap();
        later.await.unwrap().unwrap();
        let mut txn = client.transaction(Kind::ReadOnly);
        assert_eq!(txn.ordered(table).range(&*from..&*until).rows().await.unwrap().len(), 11);
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

/// Each ends its transaction, and has changed nothing.
#[test]
fn what_cannot_be_is_refused_by_name() {
    let bank = open(1, |config| config.limits.rows = 50);
    run(async {
        let client = bank.client().await;
        let [accounts, table] = ["accounts", "sorted"].map(|name| client.table(name).unwrap());
        let internal = bank.cluster.table("lotus.calls").unwrap();
        let transaction = || client.transaction(Kind::Serializable);
        let refused = |answer: Result<(), CallError>, why: &str| match answer {
            Err(CallError::Failed(
                failure @ (Failure::Refused(_) | Failure::UnknownTable { .. }),
            )) => assert!(failure.to_string().contains(why), "{failure}"),
            answer => panic!("{why}: {answer:?}"),
        };
        for (table, key, why) in [
            (accounts, &b"key"[..], "not ordered"),
            (TableId(77), b"key", "no table 77"),
            (internal, b"key", "no table"),
            (table, b"", "at least one byte"),
            (table, &[7; 21], "at most 20 bytes, not 21"),
            (table, &[7; 300], "at most 20 bytes, not 300"),
        ] {
            refused(transaction().ordered(table).get(key).await.map(drop), why);
            refused(transaction().ordered(table).get_for_update(key).await.map(drop), why);
            refused(transaction().ordered(table).delete(key).await.map(drop), why);
            for inserts in [false, true] {
                let mut txn = transaction();
                match inserts {
                    false => txn.ordered(table).put(key, *b"value"),
                    true => txn.ordered(table).insert(key, *b"value"),
                }
                refused(txn.commit().await.map(drop), why);
            }
        }
        for (table, why) in [(accounts, "not ordered"), (internal, "no table")] {
            refused(transaction().ordered(table).range(..).rows().await.map(drop), why);
        }
        let mut txn = transaction();
        txn.ordered(table).put(*b"key", [0; 1_001]);
        refused(txn.execute().await, "at most 1000 bytes");
        let (from, until) = (key(2), key(1));
        let inverted = &*from..&*until;
        refused(transaction().ordered(table).range(inverted).rows().await.map(drop), "begins with");
        // A plain row of an ordered table would be a node.
        let mut txn = transaction();
        txn.add_ro(table, 0);
        refused(txn.execute().await, "the table is ordered");
        let mut txn = client.transaction(Kind::ReadOnly);
        txn.ordered(table).put(*b"key", *b"value");
        refused(txn.execute().await, "read-only");
        let mut txn = client.transaction(Kind::ReadOnly);
        refused(txn.ordered(table).delete(b"key").await.map(drop), "read-only");
        let mut txn = client.transaction(Kind::ReadOnly);
        let locked = txn.ordered(table).range(..).for_update().rows().await;
        refused(locked.map(drop), "read-only");
        let mut txn = transaction();
        txn.ordered(table).insert(*b"key", *b"value");
        txn.ordered(table).insert(*b"key", *b"value");
        let exists = txn.commit().await;
        assert!(matches!(exists, Err(CallError::Failed(Failure::AlreadyExists(_)))), "{exists:?}");
        assert_eq!(all(&client, table).await, []);
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

/// Changes count, and the nodes that a range reads.
#[test]
fn a_transaction_holds_so_many_rows_and_nodes() {
    let bank = open(1, |config| config.limits.rows = 120);
    run(async {
        let client = bank.client().await;
        let table = filled(&client).await;
        let too_large = |answer: Result<(), CallError>| {
            let told = matches!(
                answer,
                Err(CallError::Failed(Failure::TooLarge { excess: Excess::Rows, limit: 120 }))
            );
            assert!(told, "{answer:?}");
        };
        let mut txn = client.transaction(Kind::Serializable);
        for _ in 0..121 {
            txn.ordered(table).put(key(1), *b"again and again");
        }
        too_large(txn.commit().await.map(drop));
        let mut txn = client.transaction(Kind::ReadOnly);
        too_large(txn.ordered(table).range(..).rows().await.map(drop));
        // A scan has no such limit.
        let mut scan = client.scan(table);
        let mut read = Rows::new();
        while let Some(page) = scan.next_page().await.unwrap() {
            read.extend(page);
        }
        assert_eq!(read, rows(0..ROWS));
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

#[test]
fn scans_show_ranges_in_order_at_one_moment() {
    let bank = open(2, |_| {});
    run(async {
        let client = bank.client().await;
        let table = filled(&client).await;
        let (from, until) = (key(100), key(1_000));
        let mut up = client.scan(table).range(&*from..&*until);
        let mut down = client.scan(table).prefix(b"000").reverse();
        let mut read = [up.next_page().await, down.next_page().await].map(|page| {
            let page = page.unwrap().unwrap();
            assert!(page.len() < 200, "there are more");
            page
        });
        let body = async |txn: &mut Transaction| {
            for number in (0..ROWS).step_by(20) {
                assert!(txn.ordered(table).delete(&key(number)).await?);
                txn.ordered(table).put([&key(number)[..], b"x"].concat(), *b"new");
            }
            Ok::<(), CallError>(())
        };
        client.run(Kind::Serializable, body).await.unwrap();
        for (scan, read) in [&mut up, &mut down].into_iter().zip(&mut read) {
            while let Some(page) = scan.next_page().await.unwrap() {
                read.extend(page);
            }
        }
        let [up, mut down] = read;
        assert_eq!(up, rows(100..1_000));
        down.reverse();
        assert_eq!(down, rows(0..1_000));
        for scan in [
            client.scan(client.table("accounts").unwrap()).prefix(b"a"),
            client.scan(client.table("accounts").unwrap()).reverse(),
            client.scan(table).range(&*until..&*from),
        ] {
            let mut scan = scan;
            let refused = scan.next_page().await;
            let told = matches!(refused, Err(CallError::Failed(Failure::Refused(_))));
            assert!(told, "{refused:?}");
        }
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

/// The answer to one request on a raw connection.
fn ask(raw: &mut Raw, op: &Op<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    messages::send(&mut out, 1, op);
    raw.stream.write_all(&out).unwrap();
    let frame = raw.next().expect("an answer");
    split(&frame).unwrap().1.to_vec()
}

/// A page has room in an answer beside rows of its step, or the step fails.
#[test]
fn answers_are_as_long_as_clients_take_them() {
    let bank = open(1, |_| {});
    run(async { filled(&bank.client().await).await });
    let table = bank.cluster.table("sorted").unwrap().0;
    let wide = bank
        .cluster
        .create_table(TableSpec::new("wide").record_bytes(8_000).capacity(128))
        .unwrap();
    let mut raw = Raw::admitted(bank.servers[0].address());
    let begin = |shard| Some(Begin { kind: messages::Kind::Serializable, shard });
    let keys: Vec<[u8; 8]> = (0..128_u64).map(u64::to_be_bytes).collect();
    let value = Bytes(&[7; 8_000]);
    for some in keys.chunks(16) {
        let insert = |key| Action::Insert { table: wide.0, key: Bytes(key), value };
        let actions = some.iter().map(|key| insert(&key[..])).collect();
        let step = Step { txn: 1, begin: begin(None), actions, end: StepEnd::Commit };
        let answer = ask(&mut raw, &Op::Step(step));
        assert!(matches!(decode(&answer), Ok(Answer::Committed(Some(_)))));
    }
    let range = StepEnd::Range { table, keys: Keys::default(), limit: 1_000, for_update: false };
    for (added, fits) in [(10, true), (128, false)] {
        let read = |key| Action::Read { table: wide.0, key: Bytes(key) };
        let actions = keys.iter().take(added).map(|key| read(&key[..])).collect();
        let step = Step { txn: 2, begin: begin(None), actions, end: range };
        let answer = ask(&mut raw, &Op::Step(step));
        match decode(&answer) {
            Ok(Answer::Found { added: read, found: Found::Rows { rows, rest: Some(_) } }) => {
                assert!(fits && rows.len() > 100);
                assert!(read.len() == added && read.iter().all(Option::is_some));
            }
            Ok(Answer::Failed(Failure::TooLarge { excess: Excess::AnswerBytes, .. })) => {
                assert!(!fits);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}
