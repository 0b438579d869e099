//! Cost of a client per transaction, without any engine.

#![allow(missing_docs, reason = "criterion's macros define undocumented items")]

use criterion::{Criterion, criterion_group, criterion_main};
use lotus_benchmarks::kvs::Kvs;
use lotus_benchmarks::smallbank::SmallBank;
use lotus_benchmarks::tpcc::{Critical, Scale, Tpcc};
use lotus_benchmarks::workload::Workload;
use lotus_benchmarks::zipf::KeyChooser;
use rand::SeedableRng;
use rand::rngs::SmallRng;

fn draw(criterion: &mut Criterion) {
    let mut rng = SmallRng::seed_from_u64(1);
    for theta in [0.0, 0.99, 1.2] {
        let chooser = KeyChooser::new(20_000_000, theta);
        criterion.bench_function(&format!("key, theta {theta}"), |bencher| {
            bencher.iter(|| chooser.draw(&mut rng));
        });
    }
    let kvs = Kvs::new(20_000_000, 0.5, 0.99);
    criterion.bench_function("kvs request", |bencher| bencher.iter(|| kvs.draw(&mut rng)));
    let bank = SmallBank::new(20_000_000, 800_000, 0.9, 1);
    criterion.bench_function("smallbank request", |bencher| bencher.iter(|| bank.draw(&mut rng)));
    let tpcc = Tpcc::new(Scale { warehouses: 105, ..Scale::default() }, Critical::Warehouse, 1);
    criterion.bench_function("tpcc request", |bencher| bencher.iter(|| tpcc.draw(&mut rng)));
    for (table, name) in [(2, "customer"), (3, "payment"), (6, "order line"), (8, "stock")] {
        let (mut row, mut value) = (0, Vec::new());
        criterion.bench_function(&format!("tpcc row, {name}"), |bencher| {
            bencher.iter(|| {
                value.clear();
                row = (row + 1) % tpcc.rows(table);
                tpcc.row(table, row, &mut value)
            });
        });
    }
}

criterion_group!(benches, draw);
criterion_main!(benches);
