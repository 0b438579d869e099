//! Acceptance of records: decides whether a record belongs to the cell that named its slot.
//!
//! A reader without the row's lock reads the CVT, then the record, while writers replace both word
//! by word. This page argues that the reader never accepts a wrong record;
//! `tests/all/torn_reads.rs` tests the claim.
//!
//! # What writers do
//!
//! A writer holds the row's lock and takes four steps, each complete before the next begins on the
//! replica in question: (1) it writes its record, into the slot of the victim's cell or into a free
//! slot; (2) it writes the whole cell, INVISIBLE; (3) it draws its timestamp; (4) it changes the
//! version word. If the record goes to the cell's home slot, (1) and (2) are one WRITE, whose words
//! land in any order. An abort clears the cell instead of (3) and (4). Every record names its
//! previous version. A slot that a version has left may be rewritten at any time, for any row: the
//! argument does not depend on how long the slot is kept.
//!
//! # Why a mix is caught
//!
//! Let the reader pick version `v` ≤ S from the cell, and then read the slot that the cell names.
//! `v` was drawn before S, and S before the reader's first READ. So steps (1) and (2) of the writer
//! of `v` were complete by then: the cell's remaining words belong to `v` or to a later tenant,
//! never to an earlier tenant, and the slot of `v` holds the record of `v` or a later record.
//! Possible errors:
//!
//! - *Words of two records, or of another row's record:* the checksum covers every word and is
//!   seeded with the name; the table and the primary key are compared, because rows may share a
//!   name.
//! - *The slot of a later tenant of the cell, or a later record of this row in the slot of `v`:*
//!   its writer began after `v` committed, so its previous version is `v` or later, and `v` >
//!   previous fails, whether the writer commits or aborts.
//! - *Length or state of another tenant:* the record has its own length and state, which must agree
//!   with the cell's.
//! - *The wrong pick:* a version `u` between `v` and S was replaced or cleared while the CVT was
//!   read, word by word. The oldest version is replaced first, so `v` was replaced before `u`; but
//!   the record of `v` may still be whole in its slot. Only a cell that shows a version later than
//!   S, or no version, can have held `u`. In that case, on fabrics whose READs may be torn, the CVT
//!   is read again behind the record ([`crate::visibility::may_be_outdated`]) and must be
//!   unchanged: a version word never returns once it has gone, so `v` stood in the CVT at a moment
//!   between the two READs, with `u` beside it. A CVT that was read twice before the record with
//!   the same result proves as much.
//!
//! The argument does not need the record to be read after its cell. It therefore also holds for a
//! record in the cell's home slot, which is read with the cell, in one READ and in any order: only
//! the READ must have begun after S was drawn.
//!
//! The predecessor is a second check: if the CVT still shows the version before `v`, the record
//! must name exactly that version. Cells of a consistent CVT never contradict the record, because
//! the versions in a CVT have no gaps. For a version *later* than S the predecessor is the only
//! evidence of which record a cell led to: [`crate::chain`] rests on it.
//!
//! # What rests on a record, and what cannot
//!
//! A deletion also writes a record, and is believed only with that record. Reading the CVT twice
//! with the same result would not suffice: a writer that pauses between two words of a cell leaves
//! an old version word beside a new tombstone for an unbounded time. A tombstone without a record
//! would fail the other way round: its version word beside the state of the earlier value would
//! bring that value back.
//!
//! A deletion without a record is a special case, because it may stand only in a cell that named no
//! record before ([`crate::layout::cvt::Cell::taken_by`]). Such a cell had no version, or an
//! earlier deletion without a record, so half of the new words beside half of the old words
//! contradict each other, or describe the earlier deletion correctly. A later tenant's version word
//! beside the words of the deletion was drawn after the reader's READ began, and is later than S;
//! the tenant's other words beside the deletion's version word name a record that follows the
//! deletion. So a deletion without a record is believed on the same terms as an absence:
//!
//! The *absence* of a row has no record as evidence, and is believed once two successive readings
//! of the CVT agree: then its words stood side by side at one moment. At such a moment a writer in
//! the middle of a cell does no harm, because its victim is a cell without a version as long as the
//! CVT has such a cell.

use lotus_fabric::ids::{Key, TableId};
use lotus_sabotage::{Rule, broken};
use thiserror::Error;

use crate::key::PrimaryKey;
use crate::layout::record::Record;
use crate::timestamp::Timestamp;
use crate::visibility::Candidate;

/// Row to which a record must belong.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The row's table.
    pub table: TableId,
    /// Key of the row.
    pub key: Key,
    /// The row's primary key.
    pub primary_key: &'a PrimaryKey,
}

/// Reason why a record was not accepted. Unless a variant says otherwise, the caller reads the CVT
/// again, a bounded number of times, and then aborts as retryable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Reject {
    /// The words are not one record of the expected row: the record was being written, or belongs
    /// to another row.
    #[error("the record is another row's, or was being written while it was read")]
    Torn,
    /// The record belongs to another table. Slabs rule this out: a slot serves one table only.
    #[error("the record belongs to another table")]
    OtherTable,
    /// The record belongs to another row with the same 64-bit name: the slot has a new tenant. If
    /// both rows have the same mark as well, the CVT itself belongs to the other row; retrying does
    /// not help then, and the caller reports an error that names the row ([`crate::naming`]).
    #[error("the record belongs to another row of this name")]
    OtherRow,
    /// The value is longer or shorter than the cell says, or only one of cell and record is a
    /// deletion.
    #[error("the record's contents are not what its cell says")]
    OtherContents,
    /// The record was written over the expected version or a later one.
    #[error("the record was replaced by a newer version")]
    Replaced,
    /// The record does not follow the version that precedes it in the CVT.
    #[error("the record does not follow the version before it")]
    OtherPredecessor,
}

/// Decodes the record in `words` and accepts a record that matches the cell of `candidate`: a value
/// or a deletion. `words` should have [`crate::TableDef::record_words`] words.
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

/// Decodes the record in `words` and accepts a record of the `expected` row that follows a version
/// earlier than `version`.
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
