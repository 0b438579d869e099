//! One whole transaction that reads and writes a single record, on one coordinator: alone, and
//! with sixteen coroutines side by side (time per transaction).

use criterion::{Criterion, criterion_group, criterion_main};
use lotus::{Cluster, CoordinatorId, Isolation, Secret, Session, TableId, TableSpec, TxnError};

const ROWS: u64 = 100_000;
const COROUTINES: u64 = 16;
const COORDINATOR: CoordinatorId = CoordinatorId { compute_node: 0, thread: 0 };

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// Updates rows `first`, `first + COROUTINES`, ... so that coroutines never meet.
async fn updates(
    mut session: Session,
    table: TableId,
    first: u64,
    count: u64,
) -> Result<(), TxnError> {
    for number in 0..count {
        let key = (first + number * COROUTINES) % ROWS;
        let mut txn = session.begin(Isolation::Serializable).await?;
        let item = txn.add_rw(table, key)?;
        txn.execute().await?;
        txn.put(item, &number.to_le_bytes())?;
        txn.commit().await?;
    }
    Ok(())
}

fn single_record_update(criterion: &mut Criterion) {
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
    let mut group = criterion.benchmark_group("single-record update");
    for coroutines in [1, COROUTINES] {
        group.bench_function(format!("{coroutines} coroutines"), |bencher| {
            bencher.iter_custom(|iterations| {
                let share = iterations.div_ceil(coroutines);
                let start = now();
                let jobs: Vec<_> = (0..coroutines)
                    .map(|first| {
                        cluster.submit(COORDINATOR, move |session| {
                            updates(session, table, first, share)
                        })
                    })
                    .collect();
                for job in jobs {
                    job.wait().expect("nothing conflicts");
                }
                start.elapsed()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, single_record_update);
criterion_main!(benches);
