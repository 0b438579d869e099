//! Cost of workload, client and worker per transaction, on an engine that costs nothing.

#![allow(missing_docs, reason = "criterion's macros define undocumented items")]

#[path = "../tests/null/mod.rs"]
mod null;

use criterion::{Criterion, criterion_group, criterion_main};
use lotus_fabric::env::Env;

fn client(criterion: &mut Criterion) {
    let env = Env::real(0);
    criterion.bench_function("smallbank transaction", |bencher| {
        bencher.iter_custom(|transactions| {
            let start = env.now();
            null::serve(transactions);
            env.now().since(start)
        });
    });
}

criterion_group!(benches, client);
criterion_main!(benches);
