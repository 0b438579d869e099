//! YCSB: one table, and six mixes of reads, updates, inserts, ranges and read-modify-writes.
//!
//! Records are numbered; a record's key is a hash of its number, as in YCSB's default order of
//! inserts. Popularity follows a Zipf distribution, in mix D from the newest record down. A range
//! begins at the key of a record and has up to [`Ycsb::MOST_IN_RANGE`] rows. Mix E needs an ordered
//! table; the other mixes run on either kind of table.
//!
//! A value carries its record's number and a check, so every read can tell a whole value of the
//! right record. The audited balance is the number of records.

use std::sync::atomic::{AtomicU64, Ordering};

use lotus_fabric::ids::TableId;
use lotus_mvcc::table::MAX_RECORD_BYTES;
use lotus_mvcc::{PrimaryKey, TableSpec};
use rand::Rng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::contract::audit::{Check, Effects, RowCheck};
use crate::contract::config::ClusterConfig;
use crate::contract::deployment::{DeployError, Deployment};
use crate::contract::engine::{KeyRange, Ordered, Txn, TxnError};
use crate::contract::workload::{Access, Workload, mix};
use crate::workloads::kvs::integer_table;
use crate::workloads::zipf::KeyChooser;

/// A mix of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mix {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % reads, mostly of the newest records, and 5 % inserts.
    D,
    /// 95 % ranges, 5 % inserts.
    E,
    /// Half reads, half read-modify-writes.
    F,
}

impl Mix {
    /// All mixes, with their names on the command line.
    pub const NAMES: [(&'static str, Self); 6] = [
        ("a", Self::A),
        ("b", Self::B),
        ("c", Self::C),
        ("d", Self::D),
        ("e", Self::E),
        ("f", Self::F),
    ];

    /// The frequent operation, and the less frequent operation with its share.
    const fn operations(self) -> (Operation, Operation, f64) {
        match self {
            Self::A => (Operation::Read, Operation::Update, 0.5),
            Self::B => (Operation::Read, Operation::Update, 0.05),
            Self::C => (Operation::Read, Operation::Read, 0.0),
            Self::D => (Operation::Read, Operation::Insert, 0.05),
            Self::E => (Operation::Range, Operation::Insert, 0.05),
            Self::F => (Operation::Read, Operation::ReadModifyWrite, 0.5),
        }
    }

    const fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }
}

/// Operation of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Operation {
    Read,
    Update,
    Insert,
    Range,
    ReadModifyWrite,
}

/// One transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct YcsbRequest {
    operation: Operation,
    record: u64,
    /// Rows of a range.
    rows: u16,
}

/// The workload.
#[derive(Debug)]
pub struct Ycsb {
    table: TableId,
    mix: Mix,
    records: u64,
    value_bytes: usize,
    ordered: bool,
    theta: f64,
    chooser: KeyChooser,
    /// Number of the next record to be inserted.
    next: AtomicU64,
}

/// Bytes of a value that are not padding: number and check.
const CHECKED_BYTES: usize = 16;

impl Ycsb {
    /// Longest range, in rows.
    pub const MOST_IN_RANGE: u16 = 100;
    /// Shortest value, in bytes.
    pub const LEAST_VALUE_BYTES: usize = CHECKED_BYTES;
    /// Longest value, in bytes.
    pub const MOST_VALUE_BYTES: usize = MAX_RECORD_BYTES as usize;

    /// A store of `records` records, with values of `value_bytes`, chosen with skew `theta`; in an
    /// ordered table if requested, or if the mix has ranges.
    ///
    /// # Panics
    /// As [`KeyChooser::new`], and if values are shorter than [`Self::LEAST_VALUE_BYTES`].
    pub fn new(mix: Mix, records: u64, value_bytes: usize, theta: f64, ordered: bool) -> Self {
        assert!(value_bytes >= CHECKED_BYTES, "values of {value_bytes} bytes");
        let (table, ordered) = (TableId(0), ordered || mix == Mix::E);
        let chooser = KeyChooser::new(records, theta);
        let next = AtomicU64::new(records);
        Self { table, mix, records, value_bytes, ordered, theta, chooser, next }
    }

    /// Writes the value of a record.
    fn encode(&self, record: u64, seed: u64, value: &mut Vec<u8>) {
        value.extend_from_slice(&record.to_le_bytes());
        value.resize(self.value_bytes, seed as u8);
        let check = checksum(record, &value[CHECKED_BYTES..]);
        value[8..CHECKED_BYTES].copy_from_slice(&check.to_le_bytes());
    }

    /// Whether a value belongs to the record of a key.
    fn is_right(&self, key: &[u8], value: &[u8]) -> bool {
        let Some((head, padding)) = value.split_first_chunk::<CHECKED_BYTES>() else {
            return false;
        };
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap_or_default());
        let record = word(0);
        value.len() == self.value_bytes
            && key == key_of(record)
            && word(8) == checksum(record, padding)
    }

    fn check(&self, key: &[u8], value: &[u8]) -> Result<(), TxnError> {
        let complaint = || TxnError::Fatal(format!("key {key:02x?} has the value {value:02x?}"));
        self.is_right(key, value).then_some(()).ok_or_else(complaint)
    }

    /// Reads the record, which may not exist yet, and writes the record if the request does.
    async fn on_record<T: Txn>(&self, txn: &mut T, request: &YcsbRequest) -> Result<i64, TxnError> {
        let (key, writes) = (key_of(request.record), request.operation != Operation::Read);
        if self.ordered {
            let mut right = Ok(());
            let check = &mut |key: &[u8], value: &[u8]| right = self.check(key, value);
            let get = Ordered::Get { key: &key, for_update: writes };
            let found = txn.ordered(self.table, get, check).await?;
            right?;
            if writes && found == 1 {
                let value = self.value(request.record, txn.id().raw());
                let put = Ordered::Put { key: &key, value: &value };
                txn.ordered(self.table, put, &mut |_, _| {}).await?;
            }
            return Ok(0);
        }
        let item = match writes {
            true => txn.add_rw(self.table, key)?,
            false => txn.add_ro(self.table, key)?,
        };
        txn.execute().await?;
        let Some(value) = txn.value(item) else { return Ok(0) };
        self.check(&key, value)?;
        if writes {
            let value = self.value(request.record, txn.id().raw());
            txn.put(item, &value)?;
        }
        Ok(0)
    }

    fn value(&self, record: u64, seed: u64) -> Vec<u8> {
        let mut value = Vec::with_capacity(self.value_bytes);
        self.encode(record, seed, &mut value);
        value
    }

    async fn insert<T: Txn>(&self, txn: &mut T, record: u64) -> Result<i64, TxnError> {
        let (key, value) = (key_of(record), self.value(record, 0));
        match self.ordered {
            true => {
                let insert = Ordered::Insert { key: &key, value: &value };
                txn.ordered(self.table, insert, &mut |_, _| {}).await?;
            }
            false => {
                txn.insert(self.table, key, &value)?;
                txn.execute().await?;
            }
        }
        Ok(1)
    }

    async fn range<T: Txn>(&self, txn: &mut T, request: &YcsbRequest) -> Result<i64, TxnError> {
        let key = key_of(request.record);
        let (mut right, mut before) = (Ok(()), None::<Vec<u8>>);
        let check = &mut |key: &[u8], value: &[u8]| {
            let ascends = before.as_deref().is_none_or(|before| before < key);
            before = Some(key.to_vec());
            if !ascends || !self.is_right(key, value) {
                right = self
                    .check(key, value)
                    .and(Err(TxnError::Fatal(format!("key {key:02x?} is out of order"))));
            }
        };
        let limit = usize::from(request.rows);
        let range = KeyRange { from: &key, until: None, reverse: false, limit, for_update: false };
        txn.ordered(self.table, Ordered::Range(range), check).await?;
        right.map(|()| 0)
    }
}

/// Key of a record: its number, hashed.
fn key_of(record: u64) -> [u8; 8] {
    mix(record).to_be_bytes()
}

fn checksum(record: u64, padding: &[u8]) -> u64 {
    let byte = padding.first().copied().unwrap_or_default();
    let same = padding.iter().all(|other| *other == byte);
    mix(record ^ u64::from(byte) << 56 ^ u64::from(same))
}

impl Workload for Ycsb {
    type Request = YcsbRequest;

    const NAME: &'static str = "ycsb";
    const TRANSACTIONS: &'static [&'static str] =
        &["Read", "Update", "Insert", "Range", "ReadModifyWrite"];

    fn tables(&self, cluster: &ClusterConfig) -> Vec<TableSpec> {
        // A tenth more than the initial rows, so that inserts find room in the index.
        let rows = self.records + self.records / 10;
        let hashed = integer_table("ycsb", self.value_bytes, rows, cluster);
        let ordered = TableSpec::new("ycsb")
            .record_bytes(self.value_bytes as u32)
            .capacity(rows)
            .versions(cluster.versions);
        vec![if self.ordered { ordered.ordered() } else { hashed }]
    }

    fn attach(&mut self, tables: &[TableId]) {
        self.table = tables[0];
    }

    fn rows(&self, _table: usize) -> u64 {
        self.records
    }

    fn row(&self, _table: usize, row: u64, value: &mut Vec<u8>) -> PrimaryKey {
        self.encode(row, 0, value);
        key_of(row).into()
    }

    fn draw(&self, rng: &mut SmallRng) -> YcsbRequest {
        let (frequent, other, share) = self.mix.operations();
        let operation = if rng.random::<f64>() < share { other } else { frequent };
        let record = match operation {
            Operation::Insert => self.next.fetch_add(1, Ordering::Relaxed),
            // The newest record is the most popular; it may not exist yet.
            _ if self.mix == Mix::D => {
                self.next.load(Ordering::Relaxed) - 1 - self.chooser.draw_rank(rng)
            }
            _ => self.chooser.draw(rng),
        };
        let rows = match operation {
            Operation::Range => rng.random_range(1..=Self::MOST_IN_RANGE),
            _ => 0,
        };
        YcsbRequest { operation, record, rows }
    }

    fn kind(request: &YcsbRequest) -> usize {
        request.operation as usize
    }

    fn access(request: &YcsbRequest) -> Access {
        match request.operation {
            Operation::Read | Operation::Range => Access::ReadOnly,
            _ => Access::ReadWrite,
        }
    }

    fn first_record(&self, request: &YcsbRequest) -> (TableId, PrimaryKey) {
        (self.table, key_of(request.record).into())
    }

    async fn attempt<T: Txn>(&self, txn: &mut T, request: &YcsbRequest) -> Result<i64, TxnError> {
        match request.operation {
            Operation::Insert => self.insert(txn, request.record).await,
            Operation::Range => self.range(txn, request).await,
            _ => self.on_record(txn, request).await,
        }
    }

    fn audit<D: Deployment>(
        &self,
        deployment: &mut D,
        effects: &Effects,
    ) -> Result<Vec<Check>, DeployError> {
        let (mut rows, mut found) = (RowCheck::default(), 0_i128);
        let mut see = |key: &[u8], value: &[u8]| {
            found += 1;
            rows.see(self.is_right(key, value), || format!("key {key:02x?}: {value:02x?}"));
        };
        match self.ordered {
            true => deployment.scan_ordered(self.table, &mut see)?,
            false => {
                deployment.scan(self.table, &mut |key, value, _| see(key.as_bytes(), value))?;
            }
        }
        let low = i128::from(self.records) + effects.committed + effects.unknown_low;
        let high = i128::from(self.records) + effects.committed + effects.unknown_high;
        Ok(vec![
            rows.check("every value is one of its key", found as u64),
            Check::new(
                "as many records exist as were inserted",
                (low..=high).contains(&found),
                format!("{found} records, expected {low} to {high}"),
            ),
        ])
    }

    fn settings(&self) -> serde_json::Value {
        json!({
            "mix": self.mix.name(),
            "records": self.records,
            "value_bytes": self.value_bytes,
            "zipf": self.theta,
            "ordered": self.ordered,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn mixes_are_those_of_ycsb() {
        for (name, mix) in Mix::NAMES {
            let ycsb = Ycsb::new(mix, 1_000, 100, 0.99, false);
            let mut rng = SmallRng::seed_from_u64(5);
            let mut counts = [0; 5];
            for _ in 0..20_000 {
                let request = ycsb.draw(&mut rng);
                counts[Ycsb::kind(&request)] += 1;
                let ranges = u16::from(request.operation == Operation::Range);
                assert!((ranges..=ranges * Ycsb::MOST_IN_RANGE).contains(&request.rows));
                assert!(request.record <= ycsb.next.load(Ordering::Relaxed));
            }
            let (frequent, other, share) = mix.operations();
            let of_other = if share > 0.0 { counts[other as usize] } else { 0 };
            assert!((f64::from(of_other) / 20_000.0 - share).abs() < 0.02, "{name}: {counts:?}");
            assert_eq!(counts[frequent as usize] + of_other, 20_000, "{name}");
        }
    }

    /// Regression: popularity ranks were scattered over all records before they were counted from
    /// the newest, so that 13 % of the reads were of the newest tenth, not 76 %.
    #[test]
    fn mix_d_reads_the_newest_records_most() {
        let ycsb = Ycsb::new(Mix::D, 10_000, 100, 0.99, false);
        let mut rng = SmallRng::seed_from_u64(5);
        let (mut reads, mut of_newest) = (0, 0);
        while reads < 20_000 {
            let request = ycsb.draw(&mut rng);
            if request.operation == Operation::Read {
                let newest = ycsb.next.load(Ordering::Relaxed) - 1_000;
                reads += 1;
                of_newest += u32::from(request.record >= newest);
            }
        }
        let share = f64::from(of_newest) / 20_000.0;
        assert!((share - 0.756).abs() < 0.02, "{share} of the reads are of the newest tenth");
    }

    #[test]
    fn a_value_is_right_for_its_own_key_alone() {
        let ycsb = Ycsb::new(Mix::A, 10, 40, 0.0, false);
        let value = ycsb.value(7, 9);
        assert!(ycsb.is_right(&key_of(7), &value) && !ycsb.is_right(&key_of(8), &value));
        for at in 0..value.len() {
            let mut torn = value.clone();
            torn[at] ^= 1;
            assert!(!ycsb.is_right(&key_of(7), &torn), "byte {at}");
        }
        assert!(!ycsb.is_right(&key_of(7), &value[..39]));
    }
}
