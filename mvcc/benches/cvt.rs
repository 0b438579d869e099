//! Cost of interpreting bytes that were already read: deriving a key, decoding a CVT, picking a
//! version, accepting a record, and finding a row in a bucket.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use lotus_fabric::ids::{TableId, TxnId};
use lotus_mvcc::acceptance::{Expected, accept_record};
use lotus_mvcc::index::Lookup;
use lotus_mvcc::layout::cvt::{Cell, Contents, Cvt, Version};
use lotus_mvcc::layout::record::RecordHeader;
use lotus_mvcc::loader::{LoadedRecord, LoadedRow, ShardImage};
use lotus_mvcc::visibility::{Visible, newest, victim, visible_at};
use lotus_mvcc::{Inline, Naming, PrimaryKey, TableDef, TableSpec, Timestamp};

fn at(time: u64) -> Timestamp {
    Timestamp::new(time).expect("63 bits")
}

fn table(versions: u32) -> TableDef {
    let spec = TableSpec::new("bench").record_bytes(16).capacity(1).shards(1).versions(versions);
    let spec = spec.inline(Inline::Never);
    TableDef::new(TableId(1), spec, vec![1 << 18], Naming::KNOWN).expect("a valid spec")
}

/// A CVT with cells that were committed at 10, 20, 30 and so on.
fn cvt(table: &TableDef) -> Vec<u64> {
    let name = table.name(&PrimaryKey::from(1));
    let mut words = table.header(name).encode().to_vec();
    for index in 1..=table.cvt().cells() as u64 {
        let writer = TxnId::from_raw(index);
        let contents = Contents::Value { length: 16 };
        let mut cell = Cell::NEVER_USED.taken_by(writer, contents, 64 * index);
        cell.version = Version::Committed(at(10 * index));
        words.extend(cell.encode());
    }
    words
}

fn decisions(c: &mut Criterion) {
    for versions in [2, 4] {
        let table = table(versions);
        let words = cvt(&table);
        let mut group = c.benchmark_group(format!("cvt of {versions}"));
        group.bench_function("decode", |b| {
            b.iter(|| {
                Cvt::new(black_box(&words), table.cvt()).cells().filter(Result::is_ok).count()
            });
        });
        group.bench_function("newest", |b| {
            b.iter(|| newest(Cvt::new(black_box(&words), table.cvt())))
        });
        group.bench_function("visible_at", |b| {
            b.iter(|| visible_at(Cvt::new(black_box(&words), table.cvt()), black_box(at(15))));
        });
        group.bench_function("victim", |b| {
            b.iter(|| victim(Cvt::new(black_box(&words), table.cvt())))
        });
    }
}

fn records(c: &mut Criterion) {
    let table = table(2);
    let primary_key = PrimaryKey::from(1);
    let key = table.key(&primary_key);
    let header = RecordHeader { writer: None, previous: at(10), predecessor: 0, table: table.id() };
    let mut record = [0; 8];
    c.bench_function("record encode 16 bytes", |b| {
        b.iter(|| header.encode(key, black_box(&primary_key), Some(&[7; 16]), &mut record));
    });
    let words = cvt(&table);
    let Visible::Version(candidate) = visible_at(Cvt::new(&words, table.cvt()), at(25)) else {
        panic!("two versions are visible");
    };
    let expected = Expected { table: table.id(), key, primary_key: &primary_key };
    c.bench_function("record accept 16 bytes", |b| {
        b.iter(|| accept_record(black_box(&expected), candidate, black_box(&record)));
    });
}

fn lookups(c: &mut Criterion) {
    c.bench_function("key of a number", |b| {
        let table = table(2);
        b.iter(|| table.name(&PrimaryKey::from(black_box(42))));
    });
    let table = table(2);
    let mut image = ShardImage::new(&table, table.key(&PrimaryKey::from(0)).shard());
    let names: Vec<_> = (0..7).map(|number| table.name(&PrimaryKey::from(number))).collect();
    for name in &names {
        image
            .place(*name, LoadedRow { record: LoadedRecord::At(64), length: 16 })
            .expect("seven rows fit");
    }
    let (_, bucket) = image.images().next().expect("the home bucket");
    c.bench_function("lookup in a full bucket", |b| {
        b.iter(|| Lookup::start(&table, black_box(names[6]), None).0.absorb(black_box(bucket)));
    });
}

criterion_group!(benches, decisions, records, lookups);
criterion_main!(benches);
