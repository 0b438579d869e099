//! Scans for clients: all pages of one show one snapshot, which is released when the client goes.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::raw::Raw;
use crate::common::{ACCOUNTS, Bank, INITIAL, balance, run};
use lotus::{CoordinatorId, Isolation, Session, TableSpec, TxnError};
use lotus_client::{CallError, Client, Failure, Rows, Scan, TableId};
use lotus_protocol::messages::{self, Answer, Bytes, Op, decode, split};
use lotus_server::Config;

/// Rows of which a page has a few dozen.
const SPEC: TableSpec = TableSpec::new("wide").record_bytes(1_000).capacity(1_000);
const COUNT: u64 = 600;

fn wide(number: u64) -> Vec<u8> {
    let mut value = vec![0; 1_000];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

/// A bank with a second table, whose rows hold [`INITIAL`] each.
fn open(nodes: usize, set: impl Fn(&mut Config)) -> Bank {
    let bank = Bank::open_with(nodes, set);
    let table = bank.cluster.create_table(SPEC).unwrap();
    let row = |row: u64, value: &mut Vec<u8>| {
        value.extend(wide(INITIAL));
        row.into()
    };
    bank.cluster.load(table, COUNT, &row, &AtomicU64::new(0)).unwrap();
    bank
}

/// Takes in the rows of a page, each of which is new.
fn take(all: &mut BTreeMap<u64, u64>, page: &Rows) {
    for (key, value) in page {
        let row = u64::from_be_bytes(key[..].try_into().unwrap());
        assert_eq!(all.insert(row, number(value)), None, "row {row} came twice");
    }
}

async fn take_rest(scan: &mut Scan, all: &mut BTreeMap<u64, u64>) -> Result<(), CallError> {
    while let Some(page) = scan.next_page().await? {
        take(all, &page);
    }
    Ok(())
}

async fn transfer(session: &mut Session, table: TableId, step: u64) -> Result<(), TxnError> {
    let (from, to) = ((step >> 33) % COUNT, (step >> 13) % COUNT);
    if from == to {
        return Ok(());
    }
    let mut txn = session.begin(Isolation::Serializable).await?;
    let items = [txn.add_rw(table, from)?, txn.add_rw(table, to)?];
    txn.execute().await?;
    let [payer, payee] = items.map(|item| number(txn.value(item).unwrap()));
    if payer > 0 {
        txn.put(items[0], &wide(payer - 1))?;
        txn.put(items[1], &wide(payee + 1))?;
    }
    txn.commit().await.map(drop)
}

/// Transfers between all rows until it is `over`; returns the number of transfers.
async fn transfers(
    mut session: Session,
    table: TableId,
    start: u64,
    over: Arc<AtomicBool>,
) -> Result<u64, TxnError> {
    let (mut step, mut made) = (start, 0);
    while !over.load(Ordering::Relaxed) {
        step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Other tests run beside this one, and their time-outs are short.
        let view = session.view();
        view.sleep_until(view.now().after(Duration::from_micros(100))).await;
        match transfer(&mut session, table, step).await {
            Ok(()) => made += 1,
            Err(error) if error.is_retryable() => session.back_off(2).await,
            Err(error) => return Err(error),
        }
    }
    Ok(made)
}

#[test]
fn every_scan_beside_transfers_shows_the_true_sum() {
    let bank = open(2, |_| {});
    let table = bank.cluster.table("wide").unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let over = Arc::clone(&over);
            let coordinator_id = CoordinatorId { compute_node: writer % 2, thread: 0 };
            bank.cluster.submit(coordinator_id, move |session| {
                transfers(session, table, writer as u64 + 1, over)
            })
        })
        .collect();
    run(async {
        let client = bank.client().await;
        let (mut whole, mut too_old) = (0, 0);
        while whole < 10 {
            let (mut scan, mut rows) = (client.scan(table), BTreeMap::new());
            match take_rest(&mut scan, &mut rows).await {
                Ok(()) => whole += 1,
                Err(CallError::Failed(Failure::SnapshotTooOld)) => {
                    too_old += 1;
                    assert!(too_old < 100, "scans are for tables that are written");
                    continue;
                }
                Err(error) => panic!("{error}"),
            }
            assert_eq!((rows.len() as u64, rows.values().sum()), (COUNT, COUNT * INITIAL));
            assert!(matches!(scan.next_page().await, Ok(None)), "it has ended");
        }
    });
    over.store(true, Ordering::Relaxed);
    let made: u64 = writers.into_iter().map(|writer| writer.wait().unwrap()).sum();
    assert!(made > 100, "the writers were at work");
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

#[test]
fn requests_of_others_go_on_between_pages_and_pages_may_be_asked_for_again() {
    let bank = open(1, |_| {});
    run(async {
        let client = bank.client().await;
        let table = client.table("wide").unwrap();
        let (mut scan, mut rows) = (client.scan(table), BTreeMap::new());
        let (mut pages, mut dropped) = (0, 0);
        loop {
            assert_eq!(balance(&client, 3).await.unwrap(), INITIAL);
            // Every other future is dropped while its request is under way, or before.
            let patience =
                Duration::from_micros(if pages % 2 == dropped % 2 { 1 } else { u64::MAX });
            match tokio::time::timeout(patience, scan.next_page()).await {
                Ok(Ok(Some(page))) => {
                    pages += 1;
                    take(&mut rows, &page);
                }
                Ok(Ok(None)) => break,
                Ok(Err(error)) => panic!("{error}"),
                Err(_) => dropped += 1,
            }
        }
        assert!(pages > 5, "{pages}");
        assert_eq!((rows.len() as u64, rows.values().sum()), (COUNT, COUNT * INITIAL));
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

async fn change(session: &mut Session, table: TableId, key: u64) -> Result<(), TxnError> {
    let mut txn = session.begin(Isolation::Serializable).await?;
    let item = txn.add_rw(table, key)?;
    txn.execute().await?;
    let now = number(txn.value(item).unwrap());
    txn.put(item, &wide(now + 1))?;
    txn.commit().await.map(drop)
}

/// Changes every row.
fn change_all(bank: &Bank, table: TableId) {
    let job = move |mut session: Session| async move {
        for key in 0..COUNT {
            // Locks of the last commit are released a little later than it is reported.
            loop {
                match change(&mut session, table, key).await {
                    Err(error) if error.is_retryable() => session.back_off(2).await,
                    outcome => break outcome?,
                }
            }
        }
        Ok(())
    };
    bank.cluster.submit(CoordinatorId { compute_node: 0, thread: 0 }, job).wait().unwrap();
}

#[test]
fn a_scan_that_was_ended_for_its_time_goes_on_while_its_snapshot_is_readable() {
    let pause = Duration::from_millis(50);
    let bank = open(2, |config| config.limits.scan_pause = pause);
    run(async {
        let client = bank.client().await;
        let table = client.table("wide").unwrap();
        let mut scans = Vec::new();
        for _ in 0..2 {
            let (mut scan, mut rows) = (client.scan(table), BTreeMap::new());
            take(&mut rows, &scan.next_page().await.unwrap().unwrap());
            scans.push((scan, rows));
        }
        tokio::time::sleep(4 * pause).await;
        for (scan, _) in &mut scans {
            let late = scan.next_page().await;
            let told = matches!(
                late,
                Err(CallError::Failed(Failure::ScanTooLong { limit_ms: 60_000, pause_ms: 50 }))
            );
            assert!(told, "{late:?}");
        }
        let (mut scan, mut rows) = scans.pop().unwrap();
        take_rest(&mut scan, &mut rows).await.unwrap();
        assert_eq!((rows.len() as u64, rows.values().sum()), (COUNT, COUNT * INITIAL));
        let (mut scan, mut rows) = scans.pop().unwrap();
        for _ in 0..10 {
            change_all(&bank, table);
        }
        let end = take_rest(&mut scan, &mut rows).await;
        assert!(matches!(end, Err(CallError::Failed(Failure::SnapshotTooOld))), "{end:?}");
        assert!(rows.values().all(|number| *number == INITIAL), "no row of another time");
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

/// The limit of the whole scan ends it although its client asks for page after page.
#[test]
fn a_scan_has_a_limit_for_all_of_it() {
    let bank = open(1, |config| config.limits.scan = Duration::from_millis(100));
    run(async {
        let client = bank.client().await;
        let mut scan = client.scan(client.table("wide").unwrap());
        let late = loop {
            tokio::time::sleep(Duration::from_millis(40)).await;
            match scan.next_page().await {
                Ok(page) => assert!(page.is_some(), "it would take eight pages"),
                Err(late) => break late,
            }
        };
        let told = matches!(late, CallError::Failed(Failure::ScanTooLong { limit_ms: 100, .. }));
        assert!(told, "{late}");
    });
}

/// Snapshots of scans whose first page nobody waited for were held until the limit for pauses.
#[test]
fn scans_whose_first_page_nobody_waits_for_leave_their_places() {
    // Limits that are never reached, and three places.
    let bank = open(1, |config| {
        config.workers = Some(12);
        (config.limits.scan, config.limits.scan_pause) =
            (Duration::from_secs(3_600), Duration::from_secs(3_600));
    });
    run(async {
        let client = bank.client().await;
        let table = client.table("wide").unwrap();
        for _ in 0..8 {
            // There is a connection: the request is sent when it is first polled.
            let (mut scan, mut rows) = (client.scan(table), BTreeMap::new());
            take_rest(&mut scan, &mut rows).await.unwrap();
            assert_eq!(rows.len() as u64, COUNT);
            let mut dropped = client.scan(table);
            let answered = tokio::time::timeout(Duration::ZERO, dropped.next_page()).await;
            assert!(answered.is_err(), "it takes some intervals of the horizon");
        }
    });
}

#[test]
fn scans_that_are_dropped_or_whose_client_vanishes_leave_their_places() {
    // Limits that are never reached.
    let bank = open(1, |config| {
        config.workers = Some(12);
        (config.limits.scan, config.limits.scan_pause) =
            (Duration::from_secs(3_600), Duration::from_secs(3_600));
    });
    // Sixteen coroutines, less twelve workers and one for errands: three places.
    for round in 0..5 {
        run(async {
            let client = bank.client().await;
            let table = client.table("wide").unwrap();
            let mut open = Vec::new();
            for _ in 0..3 {
                let mut scan = client.scan(table);
                scan.next_page().await.unwrap().unwrap();
                open.push(scan);
            }
            if round % 2 == 0 {
                // The end of the runtime takes the connection with it, without a farewell.
                std::mem::forget((open, client));
            }
        });
    }
    run(async {
        let client = bank.client().await;
        let (mut scan, mut rows) = (client.scan(client.table("wide").unwrap()), BTreeMap::new());
        take_rest(&mut scan, &mut rows).await.unwrap();
        assert_eq!(rows.len() as u64, COUNT);
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}

#[test]
fn what_cannot_be_scanned_is_named() {
    let mut bank = open(1, |_| {});
    run(async {
        let client = bank.client().await;
        let names: Vec<String> = client.tables().into_iter().map(|table| table.name).collect();
        assert_eq!(names, ["accounts", "wide"], "the server's own is not shown");
        let internal = bank.cluster.table("lotus.calls").unwrap();
        for table in [internal, TableId(77)] {
            let unknown = client.scan(table).next_page().await;
            let told = matches!(
                unknown,
                Err(CallError::Failed(Failure::UnknownTable { table: known })) if known == table.0
            );
            assert!(told, "{unknown:?}");
        }
        let mut scan = client.scan(client.table("wide").unwrap());
        scan.next_page().await.unwrap().unwrap();
        bank.servers.remove(0).stop().unwrap();
        let lost = scan.next_page().await.unwrap_err();
        let told = matches!(lost, CallError::Unreachable(_) | CallError::Failed(Failure::Leaving));
        assert!(told, "{lost}");
    });
}

/// A scan ends with the node that holds its snapshot. The other one is of the same process here and
/// may go on with it, from the cursor: whole, or not at all.
#[test]
fn a_scan_is_lost_with_its_compute_node_and_goes_on_at_another() {
    let builder = lotus::Cluster::embedded().compute_nodes(2).memory_nodes(2).replicas(2);
    let builder = builder.lock_table_bytes(1 << 16).lease(Some(Duration::from_secs(2)));
    let bank = Bank::over(builder.start().unwrap(), |_| {});
    let table = bank.cluster.create_table(SPEC).unwrap();
    let row = |row: u64, value: &mut Vec<u8>| {
        value.extend(wide(INITIAL));
        row.into()
    };
    bank.cluster.load(table, COUNT, &row, &AtomicU64::new(0)).unwrap();
    run(async {
        let client = bank.client().await;
        let mut scans = Vec::new();
        for _ in 0..8 {
            let (mut scan, mut rows) = (client.scan(table), BTreeMap::new());
            take(&mut rows, &scan.next_page().await.unwrap().unwrap());
            scans.push((scan, rows));
        }
        bank.cluster.kill(1);
        let mut lost = 0;
        for (scan, rows) in &mut scans {
            match take_rest(scan, rows).await {
                Ok(()) => {}
                Err(CallError::Failed(Failure::Leaving) | CallError::Unreachable(_)) => {
                    lost += 1;
                    take_rest(scan, rows).await.unwrap();
                }
                Err(error) => panic!("{error}"),
            }
            assert_eq!((rows.len() as u64, rows.values().sum()), (COUNT, COUNT * INITIAL));
        }
        assert!(lost < 8, "{lost}");
        let mut rows = BTreeMap::new();
        take_rest(&mut client.scan(table), &mut rows).await.unwrap();
        assert_eq!(rows.len() as u64, COUNT);
    });
}

/// The answer to one request on a raw connection.
fn ask(raw: &mut Raw, op: &Op<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    messages::send(&mut out, 1, op);
    raw.stream.write_all(&out).unwrap();
    let frame = raw.next().expect("an answer");
    split(&frame).unwrap().1.to_vec()
}

#[test]
fn cursors_that_no_server_has_made_change_nothing() {
    let bank = open(1, |_| {});
    let mut raw = Raw::admitted(bank.servers[0].address());
    let table = bank.cluster.table("wide").unwrap().0;
    let keys = messages::Keys::default();
    let scan = |begin, cursor| Op::Scan(messages::Scan { scan: 1, begin, table, cursor, keys });
    let is_too_old =
        |answer: &[u8]| matches!(decode(answer), Ok(Answer::Failed(Failure::SnapshotTooOld)));
    for cursor in [&[7; 32][..], &[0; 32], &[1], &[0xff; 33]] {
        assert!(is_too_old(&ask(&mut raw, &scan(true, Bytes(cursor)))), "{cursor:?}");
    }
    let answer = ask(&mut raw, &scan(true, Bytes(b"")));
    let Ok(Answer::Page { cursor: Some(Bytes(cursor)), rows }) = decode(&answer) else { panic!() };
    // The first page again, and then one that begins behind the last group.
    let again = ask(&mut raw, &scan(false, Bytes(b"")));
    assert_eq!(
        decode::<Answer<'_>>(&again),
        Ok(Answer::Page { cursor: Some(Bytes(cursor)), rows })
    );
    // A cursor of this table ends with its place: number of the home bucket, path from it, home
    // buckets of the stretch and which of them, group, kind.
    let at = |from_end: usize| cursor.len() - from_end;
    let (bucket, path, homes, group) = (at(21)..at(13), at(13)..at(5), at(5)..at(3), at(3)..at(1));
    let changed = |changes: &[(&std::ops::Range<usize>, &[u8])]| {
        let mut changed = cursor.to_vec();
        for (range, bytes) in changes {
            changed[(*range).clone()].copy_from_slice(bytes);
        }
        changed
    };
    let beyond = changed(&[(&group, &[0xff; 2])]);
    let answer = ask(&mut raw, &scan(false, Bytes(&beyond)));
    assert_eq!(decode::<Answer<'_>>(&answer), Ok(Answer::Page { cursor: None, rows: vec![] }));
    // The last page was no end, and a cursor of another scan is one.
    let answer = ask(&mut raw, &scan(false, Bytes(cursor)));
    assert!(matches!(decode(&answer), Ok(Answer::Page { cursor: Some(_), .. })));
    assert!(is_too_old(&ask(&mut raw, &scan(false, Bytes(&[0; 32])))));
    let over = ask(&mut raw, &scan(false, Bytes(cursor)));
    assert!(matches!(decode(&over), Ok(Answer::Failed(Failure::NoTransaction))));
    // A home bucket beyond the table's, and behind the first one a path that leads nowhere.
    let deep = (1_u64 << 62).to_le_bytes();
    let far = changed(&[(&bucket, &[0xff; 8])]);
    let nowhere = changed(&[(&bucket, &[0; 8]), (&path, &deep), (&homes, &[1, 0])]);
    let far_and_nowhere = changed(&[(&bucket, &[0xff; 8]), (&path, &deep), (&homes, &[1, 0])]);
    for place in [&far, &nowhere, &far_and_nowhere] {
        let answer = ask(&mut raw, &scan(true, Bytes(place)));
        assert!(matches!(decode(&answer), Ok(Answer::Page { .. })), "{place:?}: {answer:?}");
    }
    // A path of half a step, and a home bucket that is not in the stretch.
    let none = [(2_u64, [1, 0]), (4, [1, 1]), (0, [1, 0]), (4, [0xff, 0])];
    let none =
        none.map(|(word, stretch)| changed(&[(&path, &word.to_le_bytes()), (&homes, &stretch)]));
    for cursor in &none {
        assert!(is_too_old(&ask(&mut raw, &scan(true, Bytes(cursor)))), "{cursor:?}");
    }
    // A step of a transaction is no request of a scan.
    let step =
        messages::Step { txn: 1, begin: None, actions: vec![], end: messages::StepEnd::Commit };
    let answer = ask(&mut raw, &Op::Step(step));
    assert!(matches!(decode(&answer), Ok(Answer::Failed(_))), "{answer:?}");
    run(async {
        let client: Client = bank.client().await;
        assert_eq!(balance(&client, 1).await.unwrap(), INITIAL);
    });
    assert_eq!(bank.audit(), ACCOUNTS * INITIAL);
}
