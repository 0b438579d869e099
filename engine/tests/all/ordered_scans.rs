//! Ordered tables that are read by pages, and scanned.

use crate::common::*;
use lotus::{
    Cluster, CoordinatorId, Isolation, KeyRange, ScanCursor, ScanError, ScanPage, Session, TableId,
    TableSpec, TxnError,
};

/// Nodes have some 15 rows, so that a page has a few hundred.
const SPEC: TableSpec =
    TableSpec::new("sorted").key_bytes(40).record_bytes(250).capacity(4_000).ordered();
const ROWS: u32 = 2_000;
const FIRST: CoordinatorId = CoordinatorId { compute_node: 0, thread: 0 };

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn key(number: u32) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

fn value(number: u32) -> Vec<u8> {
    vec![number as u8; 250]
}

/// All rows of some numbers.
fn rows(numbers: impl IntoIterator<Item = u32>) -> Pairs {
    numbers.into_iter().map(|number| (key(number), value(number))).collect()
}

fn filled() -> (Running, TableId) {
    let (cluster, table) = with_table(small(), SPEC);
    done(cluster.submit(FIRST, async move |mut session: Session| {
        for from in (0..ROWS).step_by(50) {
            let mut txn = session.begin(Isolation::Serializable).await?;
            let mut sorted = txn.ordered(table)?;
            for number in from..from + 50 {
                sorted.insert(&key(number), &value(number)).await?;
            }
            txn.commit().await?;
        }
        Ok(())
    }));
    (cluster, table)
}

fn shown(pages: &[ScanPage]) -> Pairs {
    pages.iter().flat_map(|page| page.rows.clone()).collect()
}

/// Pages of a scan of a range.
async fn pages(
    session: &mut Session,
    table: TableId,
    keys: &KeyRange,
    reverse: bool,
) -> Result<Vec<ScanPage>, ScanError> {
    let mut scan = session.scan(table).await?;
    scan.select(keys.clone(), reverse)?;
    let mut pages = Vec::new();
    while let Some(page) = scan.next_page().await? {
        pages.push(page);
    }
    Ok(pages)
}

#[test]
fn a_scan_shows_the_rows_of_a_range_in_order_and_goes_on_at_each_cursor() {
    let (cluster, table) = filled();
    let scanned: Pairs = cluster.scan(table).collect::<Result<_, _>>().expect("nothing is written");
    assert_eq!(scanned, rows(0..ROWS));
    done(cluster.submit(FIRST, async move |mut session: Session| {
        let (from, until) = (key(100), key(1_900));
        let some = KeyRange::of(&from[..]..&until[..]);
        let hundred = KeyRange::prefix(b"0007");
        for (keys, expected) in [
            (KeyRange::default(), rows(0..ROWS)),
            (some, rows(100..1_900)),
            (hundred, rows(700..800)),
            (KeyRange::prefix(b"x"), Vec::new()),
            (KeyRange::of(&from[..]..&from[..]), Vec::new()),
        ] {
            for reverse in [false, true] {
                let read = pages(&mut session, table, &keys, reverse).await.expect("it is there");
                let mut expected = expected.clone();
                if reverse {
                    expected.reverse();
                }
                assert_eq!(shown(&read), expected, "{keys:?}");
                let bytes = |page: &ScanPage| {
                    page.rows.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
                };
                assert!(read.iter().all(|page| bytes(page) <= ScanPage::MAX_BYTES));
                let mut before = 0;
                for page in &read {
                    before += page.rows.len();
                    let Some(cursor) = &page.next else { continue };
                    assert_eq!(ScanCursor::decode(&cursor.encode()).as_ref(), Some(cursor));
                    let mut scan = session.resume_scan(cursor).await.expect("it is there");
                    scan.select(keys.clone(), reverse).expect("it is ordered");
                    let next = scan.next_page().await.expect("it is there").expect("the next one");
                    assert_eq!(next.rows[..], expected[before..before + next.rows.len()]);
                }
            }
        }
        Ok(())
    }));
    stop_clean(cluster);
}

/// Nodes are split and merged between the pages; the snapshot stays.
#[test]
fn a_scan_shows_one_snapshot_beside_changes() {
    let (cluster, table) = filled();
    let mut scan = cluster.scan(table);
    let first = scan.next_page().expect("it is new").expect("there are rows");
    assert!(first.rows.len() < 1_000, "there are more pages");
    done(cluster.submit(FIRST, async move |mut session: Session| {
        for from in (0..ROWS).step_by(50) {
            let mut txn = session.begin(Isolation::Serializable).await?;
            let mut sorted = txn.ordered(table)?;
            for number in from..from + 50 {
                match number % 10 {
                    0 => sorted.put(&[&key(number)[..], b"x"].concat(), b"new").await?,
                    _ => assert!(sorted.delete(&key(number)).await?),
                }
            }
            txn.commit().await?;
        }
        Ok(())
    }));
    let mut read = vec![first];
    while let Some(page) = scan.next_page().expect("it holds its snapshot") {
        read.push(page);
    }
    assert_eq!(shown(&read), rows(0..ROWS));
    drop(scan);
    assert_eq!(cluster.scan(table).count() as u32, 2 * ROWS / 10);
    stop_clean(cluster);
}

#[test]
fn ranges_are_for_ordered_tables_and_cursors_for_their_own() {
    let (cluster, table) = filled();
    let spec = TableSpec::new("plain").record_bytes(8).capacity(100);
    let plain = cluster.create_table(spec).expect("there is room");
    let of_another = |cluster: &Cluster| {
        let page = cluster.scan(table).next_page().expect("it is new").expect("there are rows");
        let mut cursor = page.next.expect("there are more").encode();
        cursor[16..18].copy_from_slice(&plain.0.to_le_bytes());
        ScanCursor::decode(&cursor).expect("it is a cursor")
    };
    let mut foreign = cluster.resume_scan(&of_another(&cluster));
    assert_eq!(foreign.next_page(), Err(ScanError::SnapshotTooOld));
    drop(foreign);
    done(cluster.submit(FIRST, async move |mut session: Session| {
        let inverted = KeyRange { from: key(2), until: Some(key(1)) };
        for (table, keys, reverse) in [
            (plain, KeyRange::prefix(b"a"), false),
            (plain, KeyRange::default(), true),
            (table, inverted, false),
        ] {
            let refused = pages(&mut session, table, &keys, reverse).await;
            let told = matches!(refused, Err(ScanError::Txn(TxnError::Misuse(_))));
            assert!(told, "{refused:?}");
        }
        assert_eq!(
            pages(&mut session, plain, &KeyRange::default(), false).await,
            Ok(vec![ScanPage { rows: Vec::new(), next: None }])
        );
        Ok(())
    }));
    stop_clean(cluster);
}

/// Pages within a transaction, which changes rows between them.
#[test]
fn pages_of_a_range_add_up_to_it() {
    let (cluster, table) = filled();
    done(cluster.submit(FIRST, async move |mut session: Session| {
        let mut txn = session.begin(Isolation::Serializable).await?;
        for reverse in [false, true] {
            let (mut keys, mut read, mut pages) = (KeyRange::default(), Pairs::new(), 0);
            loop {
                let mut sorted = txn.ordered(table)?;
                let range = sorted.within(keys.clone()).page();
                let range = if reverse { range.reverse() } else { range };
                let rows = range.rows().await?;
                let bytes = rows.iter().map(|(key, value)| key.len() + value.len());
                assert!(bytes.sum::<usize>() <= lotus::ordered::Range::PAGE_BYTES);
                read.extend(rows.iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
                pages += 1;
                match rows.rest() {
                    Some(rest) => keys = rest.clone(),
                    None => break,
                }
            }
            assert!(pages > 3, "{pages}");
            if reverse {
                read.reverse();
                assert_eq!(read[..1], rows([0]));
            }
            let changed = read.iter().filter(|(_, value)| value == b"changed").count();
            assert_eq!((read.len() as u32, changed), (ROWS, usize::from(reverse)));
            txn.ordered(table)?.put(&key(1_000), b"changed").await?;
            assert!(txn.row_count() > 100, "it holds the leaves");
        }
        let limited = txn.ordered(table)?.range(..).page().limit(3).rows().await?;
        assert_eq!((limited.len(), limited.rest()), (3, None));
        Ok(())
    }));
    stop_clean(cluster);
}
