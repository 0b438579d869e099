//! Operations on ordered tables at the end of steps of interactive transactions.
//!
//! A range is read by pages, with one answer per page; the client asks for the next page in the
//! same transaction. Meanwhile the transaction holds the nodes read so far, and the nodes count as
//! rows of the transaction.

use lotus::ordered::{Range, Rows};
use lotus::{TableId, Transaction, TxnError};
use lotus_protocol::messages::{Bytes, Found, RESULT_BYTES, ROW_BYTES, StepEnd};

/// Most bytes of the key that ends a page.
const KEY_BYTES: usize = 255;

// Lengths of a key and a value take less than `ROW_BYTES`, and a row has one byte at least.
const _: () = assert!(
    Range::PAGE_BYTES * (1 + ROW_BYTES) + KEY_BYTES + ROW_BYTES <= RESULT_BYTES,
    "a page fits in an answer"
);

/// Result of an operation.
pub(crate) enum Outcome {
    Value(Option<Box<[u8]>>),
    Deleted(bool),
    Rows { rows: Rows, reverse: bool },
}

impl Outcome {
    /// Returns the bytes that the result takes in an answer, or a few less.
    pub(crate) fn bytes(&self) -> usize {
        let of_rows = |rows: &Rows| {
            let bytes = rows.iter().map(|(key, value)| ROW_BYTES + key.len() + value.len());
            bytes.sum::<usize>() + ROW_BYTES + KEY_BYTES
        };
        match self {
            Self::Value(value) => ROW_BYTES + value.as_ref().map_or(0, |value| value.len()),
            Self::Deleted(_) => ROW_BYTES,
            Self::Rows { rows, .. } => of_rows(rows),
        }
    }

    /// Returns the result in the form of an answer.
    pub(crate) fn shown(&self) -> Found<'_> {
        match self {
            Self::Value(value) => Found::Value(value.as_deref().map(Bytes)),
            Self::Deleted(deleted) => Found::Deleted(*deleted),
            Self::Rows { rows, reverse } => {
                let rest = rows.rest().and_then(|rest| match reverse {
                    false => Some(&rest.from),
                    true => rest.until.as_ref(),
                });
                let rest = rest.map(|key| Bytes(key));
                let rows = rows.iter().map(|(key, value)| (Bytes(key), Bytes(value)));
                Found::Rows { rows: rows.collect(), rest }
            }
        }
    }
}

/// Returns the number of the ordered table named by a step's end.
pub(crate) const fn table_of(end: &StepEnd<'_>) -> Option<u16> {
    match *end {
        StepEnd::Execute | StepEnd::Commit => None,
        StepEnd::Get { table, .. }
        | StepEnd::Delete { table, .. }
        | StepEnd::Range { table, .. } => Some(table),
    }
}

/// Carries out the operation that ends a step. An operation on an unknown table changes nothing.
pub(crate) async fn find(
    txn: &mut Transaction,
    table: TableId,
    end: &StepEnd<'_>,
) -> Result<Option<Outcome>, TxnError> {
    Ok(Some(match *end {
        StepEnd::Execute | StepEnd::Commit => return Ok(None),
        StepEnd::Get { key: Bytes(key), for_update, .. } => {
            let mut table = txn.ordered(table)?;
            let value = match for_update {
                false => table.get(key).await?,
                true => table.get_for_update(key).await?,
            };
            Outcome::Value(value.map(Box::from))
        }
        StepEnd::Delete { key: Bytes(key), .. } => {
            Outcome::Deleted(txn.ordered(table)?.delete(key).await?)
        }
        StepEnd::Range { keys, limit, for_update, .. } => {
            let mut table = txn.ordered(table)?;
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let range = table.within(keys.range()).page().limit(limit);
            let range = if keys.reverse { range.reverse() } else { range };
            let range = if for_update { range.for_update() } else { range };
            Outcome::Rows { rows: range.rows().await?, reverse: keys.reverse }
        }
    }))
}
