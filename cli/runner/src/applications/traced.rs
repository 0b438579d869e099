//! Operations of a stored transaction, as sent to the calling application, which writes histories.
//! The operations travel as part of the result. So the record of a call with an id holds them as
//! well, and a later lookup of the outcome returns them too. Space in the record is limited, and
//! most rows read are also written, so each row is named once.

use lotus::{PrimaryKey, TableId};
use lotus_benchmarks::history::{Access, Operation};
use lotus_fabric::ids::TxnId;
use serde::{Deserialize, Serialize};

/// Result of a transaction of a workload.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Traced {
    /// Change of the balance.
    pub effect: i64,
    /// The committed attempt.
    txn: u64,
    rows: Vec<TracedRow>,
    steps: Vec<Step>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct TracedRow {
    table: u16,
    key: Vec<u8>,
}

/// An operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Step {
    access: Access,
    /// Index of the operation's row in `rows`.
    row: u32,
    /// Attempt that wrote the version read, if any. Versions written belong to this attempt.
    writer: Option<u64>,
}

/// The received value is not the result of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a transaction's operations make no sense")]
pub struct MalformedResult;

impl Traced {
    /// Result of the attempt `txn`, with its `operations`.
    pub fn new(effect: i64, txn: TxnId, operations: &[Operation]) -> Self {
        let mut rows: Vec<TracedRow> = Vec::new();
        let step = |operation: &Operation| {
            let Operation { access, table, key, version } = *operation;
            let is_its = |row: &TracedRow| row.table == table.0 && row.key == key.as_bytes();
            let row = rows.iter().position(is_its).unwrap_or_else(|| {
                rows.push(TracedRow { table: table.0, key: key.as_bytes().to_vec() });
                rows.len() - 1
            });
            let writer = version.filter(|_| access == Access::Read).map(TxnId::raw);
            Step { access, row: row as u32, writer }
        };
        let steps = operations.iter().map(step).collect();
        Self { effect, txn: txn.raw(), rows, steps }
    }

    /// The attempt and its operations.
    ///
    /// # Errors
    /// [`MalformedResult`].
    pub fn operations(&self) -> Result<(TxnId, Vec<Operation>), MalformedResult> {
        let txn = id(self.txn)?;
        let operation = |step: &Step| {
            let row = self.rows.get(step.row as usize).ok_or(MalformedResult)?;
            let key = PrimaryKey::try_from(&row.key[..]).map_err(|_| MalformedResult)?;
            let version = match step.access {
                Access::Read => step.writer.map(id).transpose()?,
                Access::Write | Access::Delete => Some(txn),
            };
            Ok(Operation { access: step.access, table: TableId(row.table), key, version })
        };
        let operations: Result<Vec<_>, MalformedResult> =
            self.steps.iter().map(operation).collect();
        Ok((txn, operations?))
    }
}

fn id(raw: u64) -> Result<TxnId, MalformedResult> {
    // Transaction ids have 63 bits.
    if raw >> 63 == 0 { Ok(TxnId::from_raw(raw)) } else { Err(MalformedResult) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_fabric::ids::Incarnation;

    fn txn(attempt: u64) -> TxnId {
        TxnId::new(Incarnation::new(3).expect("fits"), 5, attempt)
    }

    #[test]
    fn what_has_travelled_is_what_was_done() {
        let table = TableId(7);
        let done = [
            (Access::Read, 1_u64.into(), Some(txn(8))),
            (Access::Read, PrimaryKey::try_from(&b"loaded"[..]).expect("short"), None),
            (Access::Write, 1_u64.into(), Some(txn(9))),
            (Access::Delete, 2_u64.into(), Some(txn(9))),
        ];
        let done = done.map(|(access, key, version)| Operation { access, table, key, version });
        let sent = Traced::new(-5, txn(9), &done);
        let bytes = serde_json::to_vec(&sent).expect("encodes");
        let came: Traced = serde_json::from_slice(&bytes).expect("decodes");
        assert_eq!(came.effect, -5);
        assert_eq!(came.operations(), Ok((txn(9), done.to_vec())));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let traced = |txn, key: &[u8], row, writer| Traced {
            effect: 0,
            txn,
            rows: vec![TracedRow { table: 7, key: key.to_vec() }],
            steps: vec![Step { access: Access::Read, row, writer }],
        };
        assert!(traced(1, b"key", 0, None).operations().is_ok());
        for nonsense in [
            traced(1 << 63, b"key", 0, None),
            traced(1, b"key", 0, Some(u64::MAX)),
            traced(1, b"key", 1, None),
            traced(1, b"", 0, None),
            traced(1, &[7; 32], 0, None),
        ] {
            assert_eq!(nonsense.operations(), Err(MalformedResult), "{nonsense:?}");
        }
    }
}
