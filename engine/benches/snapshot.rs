//! Cost of snapshot files for concurrent transactions: one coordinator updates rows, for a second
//! alone and for a second while snapshots are taken one after the other, and so on in turn. The
//! ratio of the two is the result; both come from one run.

#![expect(clippy::print_stdout, reason = "a benchmark says what it has measured")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lotus::{Cluster, CoordinatorId, Isolation, Secret, Session, TableId, TableSpec, TxnError};
use lotus_fabric::env::Env;

const ROWS: u64 = 500_000;
const COROUTINES: u64 = 15;
const COORDINATOR: CoordinatorId = CoordinatorId { compute_node: 0, thread: 0 };
const TURN: Duration = Duration::from_secs(1);
const TURNS: u32 = 8;

/// Updates two rows a transaction until `over`; a tenth of the rows takes nine tenths of them.
async fn updates(
    mut session: Session,
    table: TableId,
    first: u64,
    over: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
) -> Result<(), TxnError> {
    let mut random = first + 1;
    while !over.load(Ordering::Relaxed) {
        let mut txn = session.begin(Isolation::Serializable).await?;
        let mut items = Vec::with_capacity(2);
        for _ in 0..2 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            let among = if random >> 60 < 14 { ROWS / 10 } else { ROWS };
            items.push(txn.add_rw(table, (random >> 20) % among)?);
        }
        match txn.execute().await {
            Err(error) if error.is_retryable() => continue,
            executed => executed?,
        }
        for item in items {
            txn.put(item, &random.to_le_bytes())?;
        }
        txn.commit().await?;
        committed.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn main() {
    // Cargo asks whether there are tests.
    if std::env::args().any(|argument| argument == "--test" || argument == "--list") {
        return;
    }
    let cluster = Cluster::embedded()
        .name_secret(Some(Secret::from_seed(0)))
        .start()
        .expect("the defaults are valid");
    let spec = TableSpec::new("numbers").record_bytes(8).capacity(ROWS);
    let table = cluster.create_table(spec).expect("there is room");
    let zero = |row: u64, value: &mut Vec<u8>| {
        value.extend(0u64.to_le_bytes());
        row.into()
    };
    cluster.load(table, ROWS, &zero, &Default::default()).expect("there is room");
    let (over, committed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let jobs: Vec<_> = (0..COROUTINES)
        .map(|first| {
            let (over, committed) = (Arc::clone(&over), Arc::clone(&committed));
            cluster
                .submit(COORDINATOR, move |session| updates(session, table, first, over, committed))
        })
        .collect();
    let env = Env::real(0);
    let path = std::env::temp_dir().join(format!("lotus-bench-{}", std::process::id()));
    let (mut alone, mut beside, mut snapshots) = (0.0, 0.0, 0);
    for turn in 0..TURNS {
        let (began, before) = (env.now(), committed.load(Ordering::Relaxed));
        let with_snapshots = turn % 2 == 1;
        while env.now().since(began) < TURN {
            if with_snapshots {
                cluster.snapshot(&path).expect("nothing stands in its way");
                snapshots += 1;
            } else {
                std::thread::park_timeout(Duration::from_millis(10));
            }
        }
        let rate = (committed.load(Ordering::Relaxed) - before) as f64
            / env.now().since(began).as_secs_f64();
        *(if with_snapshots { &mut beside } else { &mut alone }) += rate;
    }
    over.store(true, Ordering::Relaxed);
    jobs.into_iter().for_each(|job| job.wait().expect("nothing stands in its way"));
    // The last snapshot file is not needed.
    let _ = std::fs::remove_file(&path);
    let turns = f64::from(TURNS / 2);
    println!("alone         {:.0} transactions/s", alone / turns);
    println!("with snapshots {:.0} transactions/s, ratio {:.2}", beside / turns, beside / alone);
    println!("{snapshots} snapshots of {ROWS} rows");
}
