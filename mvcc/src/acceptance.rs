//! Acceptance of records: whether a record is the one that a cell named.
//!
//! A reader without the row's lock reads the CVT, then the record, while writers replace both word
//! by word. This page argues that it is never deceived; `tests/torn_reads.rs` tries.
//!
//! # What writers do
//!
//! A writer holds the row's lock and, in this order, each step complete before the next begins on
//! the replica in question: (1) writes its record, into the slot of the victim's cell or into one
//! that is free; (2) writes that cell whole, INVISIBLE; (3) draws its timestamp; (4) changes the
//! version word. Where the record goes to the cell's home slot, (1) and (2) are one WRITE, whose
//! words land in any order. An abort clears the cell instead of (3) and (4). Every record names the
//! version that it follows. A slot that a version has left may be rewritten at any time, for any
//! row: nothing here rests on how long it is kept.
//!
//! # Why a mix is caught
//!
//! Let the reader pick version `v` ≤ S from the cell, and then read the slot that the cell names.
//! `v` was drawn before S was, and S before the reader's first READ. So its steps (1) and (2) were
//! complete by then: the cell's other words are those of `v` or of a later tenant, never of an
//! earlier one, and likewise the slot of `v` holds its record or a later one. What can be wrong:
//!
//! - *Words of two records, or of another row's:* the checksum covers every word and is seeded with
//!   the name; the table and the primary key are compared, for rows may share a name.
//! - *The slot of a later tenant of the cell, or a later record of this row in the slot of `v`:*
//!   its writer began after `v` committed, so the version it follows is `v` or later, and `v` >
//!   previous fails. That holds whether the writer commits or aborts.
//! - *Length or state of another tenant:* the record has its own, and they must agree.
//! - *The wrong pick:* a version `u` between `v` and S was replaced or cleared while the CVT was
//!   read, word by word. Oldest versions go first, so `v` was replaced before it; but its record
//!   may still be whole in its slot. Only a cell that shows something later than S, or nothing, can
//!   have held `u`. Then, where READs may be torn, the CVT is read again behind the record
//!   ([`crate::visibility::may_be_outdated`]) and must be the same: a version word never returns
//!   once it has gone, so `v` stood there at a moment between the two READs, and `u` beside it. A
//!   CVT that was read twice before with the same result shows as much.
//!
//! Nothing in this rests on whether the record is read after its cell. So it holds for a record in
//! the cell's home slot as well, which is read with the cell, in one READ and in any order: what
//! matters is that the READ began after S was drawn.
//!
//! The predecessor is a second witness: where the CVT still shows the version before `v`, the
//! record must name just that one. Cells of a consistent CVT never contradict it, because the
//! versions in a CVT have no gaps. For a version that is *later* than S it is the only witness of
//! which record a cell led to: [`crate::chain`] rests on it.
//!
//! # What rests on a record, and what cannot
//!
//! A deletion writes a record as well, and is believed only with it. Reading the CVT twice with the
//! same result would not do: a writer that pauses between two words of a cell leaves an old version
//! word beside a new tombstone for an unbounded time. Nor would a tombstone without a record do the
//! other way round: its version word beside the state of the value that stood there before would
//! bring that value back.
//!
//! A deletion without a record is another matter, because it may stand only in a cell that named no
//! record before ([`crate::layout::cvt::Cell::taken_by`]). Such a cell had no version, or one more
//! deletion of this kind, so half of the new words beside half of the old contradict each other, or
//! describe that earlier deletion correctly. A later tenant's version word beside the words of the
//! deletion was drawn after the reader's READ began, and is later than S; its other words beside
//! the deletion's version word name a record that follows the deletion. So it is believed on the
//! terms of an absence:
//!
//! That a row did *not exist* has no record to show for it, and is believed once two readings of
//! the CVT, one after the other, agree: then all words stood side by side at one moment. At such a
//! moment a writer in the middle of a cell does no harm, because its victim is a cell without a
//! version as long as there is one.

use lotus_fabric::ids::{Key, TableId};
use lotus_sabotage::{Rule, broken};
use thiserror::Error;

use crate::key::PrimaryKey;
use crate::layout::record::Record;
use crate::timestamp::Timestamp;
use crate::visibility::Candidate;

/// Row that a record is expected to be of.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The row's table.
    pub table: TableId,
    /// Key of the row.
    pub key: Key,
    /// The row's primary key.
    pub primary_key: &'a PrimaryKey,
}

/// Reason why a record was not accepted. Unless said otherwise the caller reads the CVT again, a
/// bounded number of times, and then aborts as retryable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Reject {
    /// The words are not one record of this row: it was being written, or is another row's.
    #[error("the record is another row's, or was being written while it was read")]
    Torn,
    /// The record is another table's, which slabs rule out: one table's slots are never another's.
    #[error("the record belongs to another table")]
    OtherTable,
    /// The record is another row's that has the same 64-bit name: the slot has a new tenant. Only
    /// if the two have the same mark as well is it the CVT that is another row's; retrying does not
    /// help then, and the caller reports an error that names the row ([`crate::naming`]).
    #[error("the record belongs to another row of this name")]
    OtherRow,
    /// The value is longer or shorter than the cell says, or only one of them is a deletion.
    #[error("the record's contents are not what its cell says")]
    OtherContents,
    /// The record was written over the expected version or a later one.
    #[error("the record was replaced by a newer version")]
    Replaced,
    /// The record does not follow the version that precedes it in the CVT.
    #[error("the record does not follow the version before it")]
    OtherPredecessor,
}

/// Decodes the record in `words` and accepts it if it is the one that the cell of `candidate`
/// names: a value or a deletion. There should be [`crate::TableDef::record_words`] words.
///
/// # Errors
/// [`Reject`] says what is wrong with the record, and what to do.
///
/// # Panics
/// If `words` are fewer than a record's header.
#[inline]
pub fn accept_record<'a>(
    expected: &Expected<'_>,
    candidate: Candidate,
    words: &'a [u64],
) -> Result<Record<'a>, Reject> {
    let Candidate { version, contents, predecessor, .. } = candidate;
    let record = accept_version(expected, version, words)?;
    if record.contents() != contents {
        return Err(Reject::OtherContents);
    }
    if predecessor.is_some_and(|predecessor| predecessor != record.previous()) {
        return Err(Reject::OtherPredecessor);
    }
    Ok(record)
}

/// Decodes the record in `words` and accepts it if it is of the row that is `expected` and follows
/// a version earlier than `version`.
#[inline]
pub(crate) fn accept_version<'a>(
    expected: &Expected<'_>,
    version: Timestamp,
    words: &'a [u64],
) -> Result<Record<'a>, Reject> {
    let record = Record::decode(expected.key, words).map_err(|_| Reject::Torn)?;
    if record.table() != expected.table {
        return Err(Reject::OtherTable);
    }
    if !record.is_of(expected.primary_key) {
        return Err(Reject::OtherRow);
    }
    if version <= record.previous() && !broken(Rule::RecordsAreNotNewer) {
        return Err(Reject::Replaced);
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use lotus_fabric::ids::TxnId;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::layout::cvt::Contents;
    use crate::layout::record::RecordHeader;

    const KEY: Key = Key(0x5000);
    const VALUE: [u8; 16] = [0xCD; 16];

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time).expect("63 bits")
    }

    fn header(previous: u64) -> RecordHeader {
        let writer = Some(TxnId::from_raw(4));
        RecordHeader { writer, previous: at(previous), predecessor: 64, table: TableId(2) }
    }

    fn candidate(version: u64, predecessor: Option<u64>) -> Candidate {
        let predecessor = predecessor.map(at);
        let contents = Contents::Value { length: 16 };
        Candidate { index: 0, version: at(version), record: 64, contents, predecessor }
    }

    fn accept(words: &[u64], candidate: Candidate) -> Result<Option<Range<usize>>, Reject> {
        let primary_key = &PrimaryKey::from(1);
        let expected = Expected { table: TableId(2), key: KEY, primary_key };
        accept_record(&expected, candidate, words).map(|record| record.value_range())
    }

    fn record(header: RecordHeader, key: impl Into<PrimaryKey>, value: Option<&[u8]>) -> [u64; 9] {
        let mut words = [0; 9];
        header.encode(KEY, &key.into(), value, &mut words);
        words
    }

    #[test]
    fn the_right_record_is_accepted_and_its_value_located() {
        let words = record(header(5), 1, Some(&VALUE));
        for predecessor in [None, Some(5)] {
            let value = accept(&words, candidate(7, predecessor)).expect("the right record");
            assert_eq!(words.as_bytes()[value.expect("not a deletion")], VALUE);
        }
    }

    #[test]
    fn a_deletion_is_believed_with_its_record_only() {
        let deletion = |time| Candidate { contents: Contents::Deleted, ..candidate(time, None) };
        let (deleted, value) = (record(header(5), 1, None), record(header(5), 1, Some(&VALUE)));
        assert_eq!(accept(&deleted, deletion(7)), Ok(None));
        assert_eq!(accept(&deleted, deletion(5)), Err(Reject::Replaced));
        assert_eq!(accept(&value, deletion(7)), Err(Reject::OtherContents));
    }

    #[test]
    fn every_other_record_is_rejected_for_what_it_is() {
        let value = Some(&VALUE[..]);
        let mut other_row = [0; 9];
        header(5).encode(Key(0x6000), &PrimaryKey::from(1), value, &mut other_row);
        let other_table = RecordHeader { table: TableId(3), ..header(5) };
        let mut torn = record(header(5), 1, value);
        torn[6] ^= 1;
        let seven = candidate(7, None);
        let cases = [
            (torn, seven, Reject::Torn),
            ([0; 9], seven, Reject::Torn),
            (other_row, seven, Reject::Torn),
            (record(other_table, 1, value), seven, Reject::OtherTable),
            (record(header(5), 2, value), seven, Reject::OtherRow),
            (record(header(5), [0; 7], value), seven, Reject::OtherRow),
            (record(header(7), 1, value), seven, Reject::Replaced),
            (record(header(9), 1, value), seven, Reject::Replaced),
            (record(header(5), 1, Some(&VALUE[1..])), seven, Reject::OtherContents),
            (record(header(5), 1, None), seven, Reject::OtherContents),
            (record(header(5), 1, value), candidate(7, Some(6)), Reject::OtherPredecessor),
            (record(header(0), 1, value), candidate(7, Some(6)), Reject::OtherPredecessor),
        ];
        for (words, candidate, expected) in cases {
            assert_eq!(accept(&words, candidate), Err(expected), "{words:x?} as {candidate:?}");
        }
    }
}
