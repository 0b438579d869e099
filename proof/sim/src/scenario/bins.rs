//! Workload of an ordered table: rows in bins, each with a limit.
//!
//! The keys of one bin are adjacent. A transaction that adds a row reads the range of its bin and
//! finds fewer rows than the limit, so two concurrent additions to one bin are a write skew on a
//! range: only locks on absent rows prevent it (H20). Rows are long, and inserted and deleted
//! often, so leaves are split and merged all the time. The audited balance is the number of rows.

use lotus_benchmarks::audit::{Check, Effects, RowCheck};
use lotus_benchmarks::config::ClusterConfig;
use lotus_benchmarks::deployment::{DeployError, Deployment};
use lotus_benchmarks::engine::{AbortReason, KeyRange, Ordered, Txn, TxnError};
use lotus_benchmarks::workload::{Access, Workload};
use lotus_fabric::ids::TableId;
use lotus_mvcc::{PrimaryKey, TableSpec};
use rand::Rng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Name of the check on bins.
pub const WITHIN_LIMIT: &str = "no bin has more rows than its limit";
/// Name of the check on the number of rows.
pub const COUNTED: &str = "as many rows exist as were put into bins and not taken";

/// Maximum number of rows of a bin.
const LIMIT: usize = 4;
/// Common prefix of all keys; its length leaves inner nodes few children.
const PREFIX: [u8; 23] = [b'b'; 23];
/// Bytes of a key: prefix, bin, number.
const KEY_BYTES: usize = PREFIX.len() + 8;
/// Bytes of a value: five values fill a leaf.
const VALUE_BYTES: usize = 180;

type Key = [u8; KEY_BYTES];

/// The workload. Every second bin begins with one row.
#[derive(Clone, Debug)]
pub struct Bins {
    table: TableId,
    bins: u32,
}

/// Transaction of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BinRequest {
    kind: BinChange,
    bin: u32,
    /// Another bin, if the workload has more than one.
    other: u32,
    number: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum BinChange {
    /// Adds a row to the bin, unless the bin is full.
    Put,
    /// Deletes a row of the bin.
    Take,
    /// Deletes a row of the bin and adds it to another bin, unless the other is full.
    Move,
    /// Writes a row of the bin again.
    Touch,
    /// Reads all bins in a snapshot.
    Look,
    /// Reads some rows below the bin in a snapshot, downwards.
    LookDown,
}

const KINDS: [BinChange; 6] = [
    BinChange::Put,
    BinChange::Take,
    BinChange::Move,
    BinChange::Touch,
    BinChange::Look,
    BinChange::LookDown,
];

const REFUSED: TxnError = TxnError::Aborted(AbortReason::Logic);

fn key(bin: u32, number: u32) -> Key {
    let mut key = [0; KEY_BYTES];
    key[..PREFIX.len()].copy_from_slice(&PREFIX);
    key[PREFIX.len()..][..4].copy_from_slice(&bin.to_be_bytes());
    key[PREFIX.len() + 4..].copy_from_slice(&number.to_be_bytes());
    key
}

fn bin_of(key: &[u8]) -> u32 {
    let bytes = key.get(PREFIX.len()..PREFIX.len() + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(u32::MAX, u32::from_be_bytes)
}

/// Value of a row: its key, and padding derived from the key.
fn value(key: &[u8]) -> Vec<u8> {
    let mut value = key.to_vec();
    value.resize(VALUE_BYTES, key.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
    value
}

/// Rows of a range, checked as they are read.
#[derive(Default)]
struct Seen {
    keys: Vec<Vec<u8>>,
    wrong: Option<String>,
}

impl Seen {
    fn see(&mut self, key: &[u8], found: &[u8]) {
        if found != value(key) {
            self.wrong.get_or_insert_with(|| format!("key {key:02x?} has the value {found:02x?}"));
        }
        self.keys.push(key.to_vec());
    }

    /// The keys, if they ascend (or descend) and all values are right.
    fn checked(self, reverse: bool) -> Result<Vec<Vec<u8>>, TxnError> {
        if let Some(wrong) = self.wrong {
            return Err(TxnError::Fatal(wrong));
        }
        let follows = |pair: &[Vec<u8>]| (pair[0] < pair[1]) != reverse && pair[0] != pair[1];
        match self.keys.windows(2).find(|pair| !follows(pair)) {
            Some(pair) => Err(TxnError::Fatal(format!("keys out of order: {pair:02x?}"))),
            None => Ok(self.keys),
        }
    }
}

/// First bin with more rows than its limit, among sorted keys.
pub(crate) fn overfull(keys: &[Vec<u8>]) -> Option<u32> {
    let mut bins = keys.chunk_by(|one, next| bin_of(one) == bin_of(next));
    bins.find(|bin| bin.len() > LIMIT).map(|bin| bin_of(&bin[0]))
}

impl Bins {
    /// A workload of `bins` bins.
    pub fn new(bins: u32) -> Self {
        Self { table: TableId(0), bins }
    }

    /// Keys of the rows of a bin.
    async fn rows_of<T: Txn>(
        &self,
        txn: &mut T,
        bin: u32,
        for_update: bool,
    ) -> Result<Vec<Vec<u8>>, TxnError> {
        let (from, until) = (key(bin, 0), key(bin + 1, 0));
        let mut seen = Seen::default();
        let range =
            KeyRange { from: &from, until: Some(&until), reverse: false, limit: 99, for_update };
        let range = Ordered::Range(range);
        txn.ordered(self.table, range, &mut |key, value| seen.see(key, value)).await?;
        seen.checked(false)
    }

    async fn put<T: Txn>(&self, txn: &mut T, key: &[u8]) -> Result<(), TxnError> {
        let value = value(key);
        let insert = Ordered::Insert { key, value: &value };
        txn.ordered(self.table, insert, &mut |_, _| {}).await.map(drop)
    }

    /// Deletes one of a bin's rows; returns the row's key.
    async fn take<T: Txn>(&self, txn: &mut T, request: &BinRequest) -> Result<Vec<u8>, TxnError> {
        let mut keys = self.rows_of(txn, request.bin, true).await?;
        if keys.is_empty() {
            return Err(REFUSED);
        }
        let key = keys.swap_remove(request.number as usize % keys.len());
        let deleted =
            txn.ordered(self.table, Ordered::Delete { key: &key }, &mut |_, _| {}).await?;
        let gone = || TxnError::Fatal(format!("key {key:02x?} was read and is not there"));
        if deleted == 1 { Ok(key) } else { Err(gone()) }
    }

    async fn look<T: Txn>(&self, txn: &mut T, request: &BinRequest) -> Result<(), TxnError> {
        let mut seen = Seen::default();
        let until = key(request.bin, 0);
        let reverse = request.kind == BinChange::LookDown;
        let range = KeyRange {
            from: &PREFIX,
            until: Some(&until[..]).filter(|_| reverse),
            reverse,
            limit: if reverse { 1 + request.number as usize % 20 } else { usize::MAX },
            for_update: false,
        };
        let range = Ordered::Range(range);
        txn.ordered(self.table, range, &mut |key, value| seen.see(key, value)).await?;
        let keys = seen.checked(reverse)?;
        match overfull(&keys) {
            Some(bin) => Err(TxnError::Fatal(format!("bin {bin} has more than {LIMIT} rows"))),
            None => Ok(()),
        }
    }
}

impl Workload for Bins {
    type Request = BinRequest;

    const NAME: &'static str = "bins";
    const TRANSACTIONS: &'static [&'static str] =
        &["Put", "Take", "Move", "Touch", "Look", "LookDown"];

    fn tables(&self, cluster: &ClusterConfig) -> Vec<TableSpec> {
        let spec = TableSpec::new("bins")
            .key_bytes(KEY_BYTES as u32)
            .record_bytes(VALUE_BYTES as u32)
            .capacity(u64::from(self.bins) * LIMIT as u64)
            .versions(cluster.versions);
        vec![spec.ordered()]
    }

    fn attach(&mut self, tables: &[TableId]) {
        self.table = tables[0];
    }

    fn rows(&self, _table: usize) -> u64 {
        u64::from(self.bins.div_ceil(2))
    }

    fn row(&self, _table: usize, row: u64, into: &mut Vec<u8>) -> PrimaryKey {
        let key = key(2 * row as u32, 0);
        into.extend_from_slice(&value(&key));
        key.into()
    }

    fn draw(&self, rng: &mut SmallRng) -> BinRequest {
        let bin = rng.random_range(0..self.bins);
        let other = (bin + rng.random_range(1..=self.bins)) % self.bins;
        let kind = KINDS[rng.random_range(0..KINDS.len())];
        BinRequest { kind, bin, other, number: rng.random() }
    }

    fn kind(request: &BinRequest) -> usize {
        request.kind as usize
    }

    fn access(request: &BinRequest) -> Access {
        match request.kind {
            BinChange::Look | BinChange::LookDown => Access::ReadOnly,
            _ => Access::ReadWrite,
        }
    }

    fn first_record(&self, request: &BinRequest) -> (TableId, PrimaryKey) {
        (self.table, key(request.bin, 0).into())
    }

    async fn attempt<T: Txn>(&self, txn: &mut T, request: &BinRequest) -> Result<i64, TxnError> {
        match request.kind {
            BinChange::Put => {
                if self.rows_of(txn, request.bin, false).await?.len() >= LIMIT {
                    return Err(REFUSED);
                }
                self.put(txn, &key(request.bin, request.number)).await.map(|()| 1)
            }
            BinChange::Take => self.take(txn, request).await.map(|_| -1),
            BinChange::Move => {
                let same = request.other == request.bin;
                let full = self.rows_of(txn, request.other, false).await?.len() >= LIMIT;
                if same || full {
                    return Err(REFUSED);
                }
                self.take(txn, request).await?;
                self.put(txn, &key(request.other, request.number)).await.map(|()| 0)
            }
            BinChange::Touch => {
                let keys = self.rows_of(txn, request.bin, false).await?;
                let key = keys.get(request.number as usize % LIMIT).ok_or(REFUSED)?;
                let put = Ordered::Put { key, value: &value(key) };
                txn.ordered(self.table, put, &mut |_, _| {}).await.map(|_| 0)
            }
            BinChange::Look | BinChange::LookDown => self.look(txn, request).await.map(|()| 0),
        }
    }

    fn audit<D: Deployment>(
        &self,
        deployment: &mut D,
        effects: &Effects,
    ) -> Result<Vec<Check>, DeployError> {
        let (mut whole, mut keys) = (RowCheck::default(), Vec::new());
        deployment.scan_ordered(self.table, &mut |key, found| {
            whole.see(found == value(key), || format!("key {key:02x?} has another value"));
            keys.push(key.to_vec());
        })?;
        let overfull = overfull(&keys);
        let initial = i128::from(self.rows(0));
        let found = keys.len() as i128;
        let low = initial + effects.committed + effects.unknown_low;
        let high = initial + effects.committed + effects.unknown_high;
        Ok(vec![
            whole.check("every row carries its key", found as u64),
            Check::new(WITHIN_LIMIT, overfull.is_none(), format!("{found} rows; {overfull:?}")),
            Check::new(
                COUNTED,
                (low..=high).contains(&found),
                format!("{found} rows, expected {low} to {high}"),
            ),
        ])
    }

    fn settings(&self) -> serde_json::Value {
        json!({ "bins": self.bins })
    }
}
