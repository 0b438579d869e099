//! Records of calls with an id, by which every call takes effect once (H21).
//!
//! A call's record is part of its own write set: the record exists if and only if the call has
//! committed. Records live in rows of an internal table; a call's id determines the row, and a call
//! with an id holds the row's write lock while it is carried out. So of two calls with an id in
//! common, at any nodes, the second finds the first call's record.
//!
//! A row holds several records. Records older than the retention make room for others when the row
//! is next written. No sweep is needed, and memory use does not grow. Ages are counted in a time
//! agreed on by all servers ([`crate::call_time`]).
//!
//! Results leave a part of a row to calls given up: a client asking for the outcome of a call must
//! learn the outcome, above all when the row has no room for the call itself.
//!
//! This module holds the format of a row, and the decisions on a row; the module is pure.

use lotus::PrimaryKey;
use lotus_protocol::messages::{Bytes, CallId};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The name of the internal table.
pub(crate) const TABLE: &str = "lotus.calls";

/// A row reserves one part in this many for the records of calls given up, at least one record and
/// at most six; results may not fill the reserved part.
const ROOM_TO_GIVE_UP: usize = 16;
const GIVEN_UP_BYTES: usize = 40;

/// The record of one call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Record<'a> {
    id: CallId,
    /// Hash of the procedure's name and its arguments.
    fingerprint: u64,
    /// Time of writing, in milliseconds ([`crate::call_time`]).
    at_ms: u64,
    /// The encoded result; `None` if the call was given up before it was carried out.
    #[serde(borrow)]
    result: Option<Bytes<'a>>,
}

/// Result of looking a call up in its row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    /// The call has no record.
    Nothing,
    /// The call has committed, with this result.
    Done(Vec<u8>),
    /// The call was given up, and will never be carried out.
    GivenUp,
    /// The call's id belongs to another call.
    Taken,
}

/// The row has no room for the record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Full {
    /// There will be room when older records have expired.
    ForNow,
    /// The record does not fit even alone.
    ForEver,
}

/// Returns the hash of a call's name and arguments, by which calls with the same id are compared.
pub(crate) fn fingerprint(procedure: &str, arguments: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&(procedure.len() as u64).to_le_bytes());
    hasher.update(procedure.as_bytes());
    hasher.update(arguments);
    hasher.digest()
}

/// Returns the row of a call.
pub(crate) fn row_of(id: CallId, rows: u64) -> PrimaryKey {
    (xxh3_64(&id.0) % rows).into()
}

/// Looks a call up in its row, and compares the `fingerprint` if given. A row that does not decode
/// counts as empty: only this module writes the table.
pub(crate) fn recall(row: &[u8], id: CallId, fingerprint: Option<u64>) -> Memory {
    let records = decode(row);
    let Some(record) = records.iter().find(|record| record.id == id) else {
        return Memory::Nothing;
    };
    match record.result {
        None => Memory::GivenUp,
        Some(_) if fingerprint.is_some_and(|asked| asked != record.fingerprint) => Memory::Taken,
        Some(Bytes(result)) => Memory::Done(result.to_vec()),
    }
}

/// A record to be added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) id: CallId,
    pub(crate) fingerprint: u64,
    /// `None` gives the call up.
    pub(crate) result: Option<&'a [u8]>,
    pub(crate) now_ms: u64,
}

/// Returns the bytes of a row that results may fill.
pub(crate) fn room_for_results(row_bytes: usize) -> usize {
    row_bytes - (row_bytes / ROOM_TO_GIVE_UP).clamp(GIVEN_UP_BYTES, 6 * GIVEN_UP_BYTES)
}

/// Returns the row with one more record and without records written before `expired_ms`.
pub(crate) fn remember(
    row: &[u8],
    entry: Entry<'_>,
    expired_ms: u64,
    row_bytes: usize,
) -> Result<Vec<u8>, Full> {
    let mut records = decode(row);
    records.retain(|record| record.at_ms >= expired_ms);
    let others = records.len();
    records.push(Record {
        id: entry.id,
        fingerprint: entry.fingerprint,
        at_ms: entry.now_ms,
        result: entry.result.map(Bytes),
    });
    let mut bytes = Vec::new();
    lotus_protocol::frame::write(&mut bytes, &records);
    let room = if entry.result.is_some() { room_for_results(row_bytes) } else { row_bytes };
    match bytes.len() {
        len if len <= room => Ok(bytes),
        _ if others == 0 => Err(Full::ForEver),
        _ => Err(Full::ForNow),
    }
}

fn decode(row: &[u8]) -> Vec<Record<'_>> {
    if row.is_empty() { Vec::new() } else { postcard::from_bytes(row).unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW_BYTES: usize = 200;

    fn entry(id: u128, result: Option<&[u8]>, now_ms: u64) -> Entry<'_> {
        Entry { id: CallId::from(id), fingerprint: 7, result, now_ms }
    }

    #[test]
    fn a_row_remembers_what_it_was_told() {
        let row = remember(&[], entry(1, Some(b"one"), 10), 0, ROW_BYTES).unwrap();
        let row = remember(&row, entry(2, None, 11), 0, ROW_BYTES).unwrap();
        let cases = [
            (1, Some(7), Memory::Done(b"one".to_vec())),
            (1, None, Memory::Done(b"one".to_vec())),
            (1, Some(8), Memory::Taken),
            (2, Some(7), Memory::GivenUp),
            (3, Some(7), Memory::Nothing),
        ];
        for (id, fingerprint, expected) in cases {
            assert_eq!(recall(&row, CallId::from(id), fingerprint), expected, "{id}");
        }
    }

    #[test]
    fn the_old_make_room_and_nobody_else_does() {
        let long = [0; 80];
        let row = remember(&[], entry(1, Some(&long), 10), 0, ROW_BYTES).unwrap();
        let third = entry(3, Some(&long), 30);
        let both = remember(&row, entry(2, None, 20), 0, ROW_BYTES).unwrap();
        assert_eq!(remember(&both, third, 10, ROW_BYTES), Err(Full::ForNow));
        let after = remember(&both, third, 11, ROW_BYTES).unwrap();
        let known = [1, 2, 3].map(|id| recall(&after, CallId::from(id), None) != Memory::Nothing);
        assert_eq!(known, [false, true, true]);
        let longer = [0; 160];
        assert_eq!(remember(&[], entry(4, Some(&longer), 1), 0, ROW_BYTES), Err(Full::ForEver));
    }

    #[test]
    fn a_row_that_is_full_of_results_still_takes_what_is_given_up() {
        for row_bytes in [256, 2048, 15_360] {
            let (mut row, mut id) = (Vec::new(), 0);
            // The longest encodings of numbers.
            let full = loop {
                id += 1;
                let entry = Entry {
                    fingerprint: u64::MAX,
                    ..entry(u128::MAX - id, Some(b"result"), u64::MAX)
                };
                match remember(&row, entry, 0, row_bytes) {
                    Ok(more) => row = more,
                    Err(full) => break full,
                }
            };
            assert_eq!(full, Full::ForNow);
            let last = Entry { fingerprint: u64::MAX, ..entry(u128::MAX, None, u64::MAX) };
            let row = remember(&row, last, 0, row_bytes).unwrap();
            assert_eq!(recall(&row, last.id, None), Memory::GivenUp);
        }
    }

    #[test]
    fn name_and_arguments_are_told_apart() {
        assert_ne!(fingerprint("ab", b"c"), fingerprint("a", b"bc"));
    }
}
