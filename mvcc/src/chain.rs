//! Versions that are no longer in the CVT: each record names the previous version and the slot of
//! that version's record.
//!
//! # What this is
//!
//! A snapshot older than every cell of a CVT continues from the second oldest cell: the record of
//! that cell leads to the oldest version, whose record leads to the version before, one READ each,
//! until a version is old enough or the chain breaks. This module makes pure decisions over the
//! records that were read.
//!
//! # What it is not
//!
//! A promise that the version still exists. [`crate::retention`] decides how long a displaced
//! version keeps its slot; this module only recognises a slot that was reused, however early.
//!
//! # Why a link is exact
//!
//! A record whose `previous` is `v` was written under the row's lock while `v` was the row's newest
//! version, by an attempt that committed or aborted. The newest version is never displaced, so at
//! that moment the predecessor's slot held the whole record of `v`. A later write to the slot,
//! before the reader looks, is one of:
//!
//! - *another row's record:* the checksum is seeded with a different name, or the primary key
//!   differs;
//! - *a later record of this row:* its writer began when `v` had been displaced by a later version,
//!   so its `previous` is later than `v`. Again an abort changes nothing;
//! - *a partly written record:* the checksum fails.
//!
//! So a record of the row in that slot is the record of `v` if and only if its `previous` is
//! earlier than `v`. Only the version that names `v` follows it: the next version after the
//! `previous` of `v`'s own record is `v`. If that `previous` is at most the snapshot and `v` is
//! not, `previous` is the version that the snapshot sees.
//!
//! A row that was deleted long ago is purged, and may be inserted again: then no record names its
//! earlier versions, and its old slots may hold its new records. So an insert names the group's
//! purge time as its previous version, without a slot. The purge time is no earlier than any purged
//! version, so a reader looking for a purged version rejects the new records as too new; and from
//! the purge time on the row is known not to have existed.
//!
//! A link begins at a record, never at a cell: a cell's words may be torn, and a version word later
//! than the snapshot may stand beside the slot of an older tenant. The search therefore begins one
//! version later than seems necessary
//! ([`Visible::Displaced`](crate::visibility::Visible::Displaced)): the first record must name the
//! preceding version in the CVT, and from then on the search does not rely on the CVT.

use lotus_sabotage::{Rule, broken};

use crate::acceptance::{Expected, Reject, accept_version};
use crate::layout::record::Record;
use crate::timestamp::Timestamp;

/// Largest number of records that a reader follows before the snapshot counts as too old. A row
/// with so many newer versions is written faster than it can be read.
pub const MAX_HOPS: u32 = 8;

/// Reference to a version of a row, from the record of the next version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Commit time of the version.
    pub version: Timestamp,
    /// Offset of the slot of the version's record, in the group's region; 0 if the row did not
    /// exist from `version` on, and earlier times are unknown.
    pub record: u64,
}

impl Link {
    /// Returns the link to the version before `record`; `None` if the row did not exist before.
    #[inline]
    pub fn before(record: &Record<'_>) -> Option<Self> {
        let link = Self { version: record.previous(), record: record.predecessor() };
        (link.version > Timestamp::ZERO).then_some(link)
    }
}

/// Decodes the record of the version that `link` names, if still in its slot; never the record of
/// another version, however early the slot was reused (I58). `words` should be a whole slot.
///
/// # Errors
/// [`Reject`]: the version is gone for good.
///
/// # Panics
/// If `words` are fewer than a record's header.
pub fn accept_link<'a>(
    expected: &Expected<'_>,
    link: Link,
    words: &'a [u64],
) -> Result<Record<'a>, Reject> {
    let version = if broken(Rule::LinksAreExact) { Timestamp::MAX } else { link.version };
    accept_version(expected, version, words)
}

#[cfg(test)]
mod tests {
    use lotus_fabric::ids::{Key, TableId};

    use super::*;
    use crate::key::PrimaryKey;
    use crate::layout::record::RecordHeader;

    const KEY: Key = Key(0x5000);

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time).expect("63 bits")
    }

    fn record(key: Key, previous: u64, predecessor: u64) -> [u64; 8] {
        let header =
            RecordHeader { writer: None, previous: at(previous), predecessor, table: TableId(1) };
        let mut words = [0; 8];
        header.encode(key, &PrimaryKey::from(1), Some(&[7; 16]), &mut words);
        words
    }

    #[test]
    fn a_record_names_what_it_follows_and_where_that_is() {
        let link = |words: &[u64]| Link::before(&Record::decode(KEY, words).expect("whole"));
        let five = Link { version: at(5), record: 128 };
        assert_eq!(link(&record(KEY, 5, 128)), Some(five));
        assert_eq!(link(&record(KEY, 0, 0)), None);
    }

    #[test]
    fn a_slot_is_believed_if_its_record_follows_an_earlier_version() {
        let primary_key = &PrimaryKey::from(1);
        let expected = Expected { table: TableId(1), key: KEY, primary_key };
        let five = Link { version: at(5), record: 128 };
        let mut torn = record(KEY, 3, 64);
        torn[7] ^= 1;
        let mut twin = [0; 8];
        let header =
            RecordHeader { writer: None, previous: at(3), predecessor: 64, table: TableId(1) };
        header.encode(KEY, &PrimaryKey::from(2), Some(&[7; 16]), &mut twin);
        let cases = [
            ("the version's own", record(KEY, 3, 64), Ok(())),
            ("the first of the row", record(KEY, 0, 0), Ok(())),
            ("the next in its place", record(KEY, 5, 128), Err(Reject::Replaced)),
            ("a later one", record(KEY, 7, 64), Err(Reject::Replaced)),
            ("another row's", record(Key(0x6000), 3, 64), Err(Reject::Torn)),
            ("another row's of this name", twin, Err(Reject::OtherRow)),
            ("half a record", torn, Err(Reject::Torn)),
            ("nothing", [0; 8], Err(Reject::Torn)),
        ];
        for (what, words, accepted) in cases {
            assert_eq!(accept_link(&expected, five, &words).map(drop), accepted, "{what}");
        }
    }
}
