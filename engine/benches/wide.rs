//! Cost of a transaction per row, for few rows and for many: it reads them from one snapshot, all
//! in one execution, on one coordinator.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lotus::{Cluster, CoordinatorId, Secret, Session, TableId, TableSpec, TxnError};

const ROWS: u64 = 10_000;
const COORDINATOR: CoordinatorId = CoordinatorId { compute_node: 0, thread: 0 };

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

async fn read(
    mut session: Session,
    table: TableId,
    width: u64,
    count: u64,
) -> Result<(), TxnError> {
    for number in 0..count {
        let mut txn = session.begin_read_only().await?;
        for row in 0..width {
            txn.add_ro(table, (number + row) % ROWS)?;
        }
        txn.execute().await?;
        txn.commit().await?;
    }
    Ok(())
}

fn wide_transactions(criterion: &mut Criterion) {
    let cluster = Cluster::embedded()
        .name_secret(Some(Secret::from_seed(0)))
        .start()
        .expect("the defaults are valid");
    let spec = TableSpec::new("numbers").record_bytes(8).capacity(ROWS);
    let table = cluster.create_table(spec).expect("there is room");
    let row = |row: u64, value: &mut Vec<u8>| {
        value.extend(row.to_le_bytes());
        row.into()
    };
    cluster.load(table, ROWS, &row, &Default::default()).expect("there is room");
    let mut group = criterion.benchmark_group("read-only transaction");
    for width in [1, 4, 16, 64, 400] {
        group.throughput(Throughput::Elements(width));
        group.bench_function(format!("{width} rows"), |bencher| {
            bencher.iter_custom(|iterations| {
                let start = now();
                let job = cluster
                    .submit(COORDINATOR, move |session| read(session, table, width, iterations));
                job.wait().expect("nothing conflicts");
                start.elapsed()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, wide_transactions);
criterion_main!(benches);
