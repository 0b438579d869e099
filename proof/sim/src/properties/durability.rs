//! Every committed transaction is durable: a row's last version has the last commit timestamp of
//! all reported commits, or is from an attempt with an unknown outcome.

use std::collections::{BTreeMap, BTreeSet};

use lotus_benchmarks::deployment::{DeployError, Deployment};
use lotus_benchmarks::history::{Access, History, Status};
use lotus_fabric::ids::{TableId, TxnId};
use lotus_mvcc::PrimaryKey;

use crate::verdict::Violation;

/// Name of the property.
pub const DURABLE: &str = "what was reported as committed is there";

/// Changes of one row in the history.
#[derive(Default)]
struct Row {
    /// Last reported change: commit timestamp, writer, whether it is a deletion.
    last: Option<(u64, TxnId, bool)>,
    /// Attempts with an unknown outcome that may have changed the row as well.
    unknown: BTreeSet<TxnId>,
}

/// Compares the rows in memory with the reported commits.
///
/// # Errors
/// If the data cannot be read.
pub fn violations(
    history: &History,
    deployment: &mut impl Deployment,
) -> Result<Vec<Violation>, DeployError> {
    let rows = expected(history);
    let tables: BTreeSet<TableId> = rows.keys().map(|(table, _)| *table).collect();
    let mut found: BTreeMap<(TableId, PrimaryKey), Option<TxnId>> = BTreeMap::new();
    for table in tables {
        deployment.scan(table, &mut |key, _, writer| {
            found.insert((table, *key), writer);
        })?;
    }
    let wrong = rows.iter().filter_map(|(row, known)| {
        let complaint = known.complaint(found.get(row).copied())?;
        Some(format!("table {}, row {:02x?}: {complaint}", row.0.0, row.1.as_bytes()))
    });
    let wrong: Vec<String> = wrong.collect();
    Ok(wrong.first().map_or_else(Vec::new, |first| {
        let detail = format!("{} rows are wrong; the first: {first}", wrong.len());
        vec![Violation { property: DURABLE.to_owned(), detail }]
    }))
}

fn expected(history: &History) -> BTreeMap<(TableId, PrimaryKey), Row> {
    let mut rows: BTreeMap<(TableId, PrimaryKey), Row> = BTreeMap::new();
    for (attempt, operations) in history.attempts() {
        for operation in operations.iter().filter(|op| op.access != Access::Read) {
            let row = rows.entry((operation.table, operation.key)).or_default();
            match (attempt.status, attempt.receipt.commit_ts) {
                (Status::Info, _) => _ = row.unknown.insert(attempt.id),
                (Status::Ok, Some(time)) => {
                    let change = (time, attempt.id, operation.access == Access::Delete);
                    // A later operation of an attempt on the same row replaces the earlier one.
                    if row.last.is_none_or(|last| last.0 <= time) {
                        row.last = Some(change);
                    }
                }
                _ => {}
            }
        }
    }
    rows
}

impl Row {
    /// Difference between the expected row and the row found: `found` is `None` without a row,
    /// `Some(None)` for a row as loaded, or else names the writer. Returns `None` if both agree.
    fn complaint(&self, found: Option<Option<TxnId>>) -> Option<String> {
        let right = match (self.last, found) {
            (_, Some(Some(writer))) if self.unknown.contains(&writer) => true,
            (Some((_, writer, false)), Some(Some(found))) => writer == found,
            (Some((_, _, true)), None) => true,
            // A deleted row has no writer; any possible deletion with an unknown outcome is
            // accepted.
            (Some(_), None) => !self.unknown.is_empty(),
            (Some(_), Some(_)) => false,
            (None, Some(Some(_))) => false,
            (None, Some(None) | None) => true,
        };
        (!right).then(|| format!("{found:?} instead of {:?}", self.last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_judged_by_its_last_change_and_by_what_nobody_knows() {
        let [one, two] = [1, 2].map(TxnId::from_raw);
        let row =
            |last, unknown: &[TxnId]| Row { last, unknown: unknown.iter().copied().collect() };
        let written = Some((5, one, false));
        let deleted = Some((5, one, true));
        for (row, found, right) in [
            (row(written, &[]), Some(Some(one)), true),
            (row(written, &[]), Some(Some(two)), false),
            (row(written, &[two]), Some(Some(two)), true),
            (row(written, &[]), Some(None), false),
            (row(written, &[]), None, false),
            (row(written, &[two]), None, true),
            (row(deleted, &[]), None, true),
            (row(deleted, &[]), Some(Some(one)), false),
            (row(None, &[]), Some(None), true),
            (row(None, &[]), Some(Some(one)), false),
            (row(None, &[one]), Some(Some(one)), true),
        ] {
            assert_eq!(row.complaint(found).is_none(), right, "{:?} {found:?}", row.last);
        }
    }
}
