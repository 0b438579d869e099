//! Workload of rows that are inserted, deleted, and read while absent.
//!
//! Rows `2p` and `2p + 1` are a pair, of which at most one row may exist. A transaction that
//! inserts a row checks the absence of the partner, so concurrent inserts of a pair are a write
//! skew on absent rows: only locks on absent rows prevent it (H20). The audited balance is the
//! number of rows.

use lotus_benchmarks::audit::{Check, Effects, RowCheck};
use lotus_benchmarks::config::ClusterConfig;
use lotus_benchmarks::deployment::{DeployError, Deployment};
use lotus_benchmarks::engine::{AbortReason, Txn, TxnError};
use lotus_benchmarks::kvs::{integer_key, integer_table};
use lotus_benchmarks::workload::{Access, Workload};
use lotus_fabric::ids::TableId;
use lotus_mvcc::{PrimaryKey, TableSpec};
use rand::Rng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Name of the check on pairs.
pub const AT_MOST_ONE: &str = "at most one row of each pair exists";
/// Name of the check on the number of rows.
pub const COUNTED: &str = "as many rows exist as were inserted and not deleted";

/// The workload. Every second pair begins with its first row.
#[derive(Clone, Debug)]
pub struct Pairs {
    table: TableId,
    pairs: u64,
    /// Capacity of the table.
    made_for: u64,
    record_bytes: usize,
}

/// Bytes of a value without padding.
pub const SHORTEST: usize = 16;

/// Transaction of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PairRequest {
    kind: PairChange,
    row: u64,
    /// Row of another pair, if the workload has more than one.
    other: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum PairChange {
    /// Inserts the row and a row of another pair, unless either has a partner.
    EnterBoth,
    /// Inserts the row unless its partner exists.
    Enter,
    /// Deletes the row.
    Leave,
    /// Deletes the row and inserts its partner.
    Swap,
    /// Reads the row, then decides to rewrite it.
    Touch,
    /// Reads both rows in a snapshot.
    Look,
}

/// Name of the transaction that only deletes.
pub const LEAVES: &str = "Leave";

const KINDS: [PairChange; 6] = [
    PairChange::EnterBoth,
    PairChange::Enter,
    PairChange::Leave,
    PairChange::Swap,
    PairChange::Touch,
    PairChange::Look,
];

impl Pairs {
    /// A workload of `pairs` pairs, with values of `record_bytes` bytes, at least [`SHORTEST`]. The
    /// index is made for `made_for` rows; if `made_for` is 0, for half of the possible rows, so
    /// that buckets overflow.
    pub fn new(pairs: u64, made_for: u64, record_bytes: usize) -> Self {
        let made_for = if made_for == 0 { pairs } else { made_for };
        let record_bytes = record_bytes.max(SHORTEST);
        Self { table: TableId(0), pairs, made_for, record_bytes }
    }

    /// Value of a row: its key, the key's complement as a check, and padding.
    fn value(&self, row: u64) -> Vec<u8> {
        let mut value = vec![row as u8; self.record_bytes];
        value[..8].copy_from_slice(&row.to_le_bytes());
        value[8..SHORTEST].copy_from_slice(&(!row).to_le_bytes());
        value
    }

    fn checked(&self, row: u64, found: Option<&[u8]>) -> Result<bool, TxnError> {
        match found {
            Some(bytes) if bytes != self.value(row) => {
                let begins = &bytes[..bytes.len().min(SHORTEST)];
                Err(TxnError::Fatal(format!("row {row} has a value that begins {begins:02x?}")))
            }
            found => Ok(found.is_some()),
        }
    }

    /// Inserts rows of different pairs, unless a row's partner exists.
    async fn enter<T: Txn>(&self, txn: &mut T, rows: &[u64]) -> Result<i64, TxnError> {
        let mut partners = Vec::new();
        for row in rows {
            txn.insert(self.table, *row, &self.value(*row))?;
            partners.push((row ^ 1, txn.add_ro(self.table, row ^ 1)?));
        }
        txn.execute().await?;
        for (partner, item) in partners {
            if self.checked(partner, txn.value(item))? {
                return Err(REFUSED);
            }
        }
        Ok(rows.len() as i64)
    }
}

const REFUSED: TxnError = TxnError::Aborted(AbortReason::Logic);

impl Workload for Pairs {
    type Request = PairRequest;

    const NAME: &'static str = "pairs";
    const FILLS_MEMORY: bool = true;
    const TRANSACTIONS: &'static [&'static str] =
        &["EnterBoth", "Enter", LEAVES, "Swap", "Touch", "Look"];

    fn tables(&self, cluster: &ClusterConfig) -> Vec<TableSpec> {
        vec![integer_table("pairs", self.record_bytes, self.made_for, cluster)]
    }

    fn attach(&mut self, tables: &[TableId]) {
        self.table = tables[0];
    }

    fn rows(&self, _table: usize) -> u64 {
        self.pairs.div_ceil(2)
    }

    fn row(&self, _table: usize, row: u64, into: &mut Vec<u8>) -> PrimaryKey {
        into.extend_from_slice(&self.value(4 * row));
        (4 * row).into()
    }

    fn draw(&self, rng: &mut SmallRng) -> PairRequest {
        let rows = 2 * self.pairs;
        let row = rng.random_range(0..rows);
        let (kinds, apart) = match self.pairs {
            1 => (&KINDS[1..], 0),
            _ => (&KINDS[..], rng.random_range(2..=rows - 2)),
        };
        let kind = kinds[rng.random_range(0..kinds.len())];
        PairRequest { kind, row, other: (row + apart) % rows }
    }

    fn kind(request: &PairRequest) -> usize {
        request.kind as usize
    }

    fn access(request: &PairRequest) -> Access {
        match request.kind {
            PairChange::Look => Access::ReadOnly,
            _ => Access::ReadWrite,
        }
    }

    fn first_record(&self, request: &PairRequest) -> (TableId, PrimaryKey) {
        (self.table, request.row.into())
    }

    async fn attempt<T: Txn>(&self, txn: &mut T, request: &PairRequest) -> Result<i64, TxnError> {
        let (table, row, partner) = (self.table, request.row, request.row ^ 1);
        match request.kind {
            PairChange::Enter => self.enter(txn, &[row]).await,
            PairChange::EnterBoth => self.enter(txn, &[row, request.other]).await,
            PairChange::Leave => {
                let item = txn.add_rw(table, row)?;
                txn.execute().await?;
                if !self.checked(row, txn.value(item))? {
                    return Err(REFUSED);
                }
                txn.delete(item)?;
                Ok(-1)
            }
            PairChange::Swap => {
                let item = txn.add_rw(table, row)?;
                txn.execute().await?;
                if !self.checked(row, txn.value(item))? {
                    return Err(REFUSED);
                }
                txn.delete(item)?;
                txn.insert(table, partner, &self.value(partner))?;
                txn.execute().await?;
                Ok(0)
            }
            PairChange::Touch => {
                let seen = txn.add_ro(table, row)?;
                txn.execute().await?;
                if !self.checked(row, txn.value(seen))? {
                    return Err(REFUSED);
                }
                let item = txn.add_rw(table, row)?;
                txn.execute().await?;
                txn.put(item, &self.value(row))?;
                Ok(0)
            }
            PairChange::Look => {
                let [one, other] = [txn.add_ro(table, row)?, txn.add_ro(table, partner)?];
                txn.execute().await?;
                let one = self.checked(row, txn.value(one))?;
                if one && self.checked(partner, txn.value(other))? {
                    return Err(TxnError::Fatal(format!("rows {row} and {partner} both exist")));
                }
                Ok(0)
            }
        }
    }

    fn audit<D: Deployment>(
        &self,
        deployment: &mut D,
        effects: &Effects,
    ) -> Result<Vec<Check>, DeployError> {
        let (mut whole, mut rows) = (RowCheck::default(), Vec::new());
        deployment.scan(self.table, &mut |key, bytes, _| {
            let row = integer_key(key).unwrap_or(u64::MAX);
            whole.see(bytes == self.value(row), || format!("row {row} has another value"));
            rows.push(row);
        })?;
        rows.sort_unstable();
        let both = rows.windows(2).find(|pair| pair[0] ^ 1 == pair[1]);
        let initial = i128::from(self.rows(0));
        let found = rows.len() as i128;
        let low = initial + effects.committed + effects.unknown_low;
        let high = initial + effects.committed + effects.unknown_high;
        Ok(vec![
            whole.check("every row carries its key", found as u64),
            Check::new(AT_MOST_ONE, both.is_none(), format!("{found} rows; {both:?}")),
            Check::new(
                COUNTED,
                (low..=high).contains(&found),
                format!("{found} rows, expected {low} to {high}"),
            ),
        ])
    }

    fn settings(&self) -> serde_json::Value {
        json!({ "pairs": self.pairs, "record_bytes": self.record_bytes })
    }
}
