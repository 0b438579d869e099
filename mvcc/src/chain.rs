//! Versions that are no longer in the CVT: a record names the version before it, and its slot.
//!
//! # What this is
//!
//! A snapshot that finds every cell of a CVT newer than itself goes on from the oldest cell but
//! one: its record leads to the oldest, that one's to the version before, one READ each, until a
//! version is old enough or the chain breaks. Pure decisions over the records that were read.
//!
//! # What it is not
//!
//! A promise that the version is still there. [`crate::retention`] decides how long a displaced
//! version keeps its slot; here it only matters that a slot with another record in it is
//! recognised, however early it was reused.
//!
//! # Why a link is exact
//!
//! A record whose `previous` is `v` was written under the row's lock while `v` was its newest
//! version, by an attempt that committed or by one that did not. The newest version is never
//! displaced, so at that moment the predecessor's slot held the record of `v`, whole. Anything
//! written there later, before the reader looks, is one of:
//!
//! - *another row's record:* its checksum is seeded with another name, or it has another primary
//!   key;
//! - *a later record of this row:* its writer began when `v` had been displaced, by something later
//!   than `v`, so the version it follows is later than `v`. Again an abort changes nothing;
//! - *half of one of these:* the checksum.
//!
//! So a record of this row in that slot is the one of `v` if and only if it follows a version
//! earlier than `v`. Only the version that names `v` follows it: the next version after the one
//! that `v`'s own record names is `v`. If that is at most the snapshot and `v` is not, it is the
//! one that the snapshot sees.
//!
//! A row that was deleted long ago is purged, and may be inserted again: then no record names its
//! earlier versions, and its old slots may hold its new records. So an insert names the group's
//! purge time as the version it follows, without a slot. That is no earlier than any version that
//! is gone for good, so a reader looking for one of them rejects the new records as later ones; and
//! it is the time from which on the row is known not to have existed.
//!
//! A link begins at a record, never at a cell: a cell's words may be torn, and a version word later
//! than the snapshot may stand beside the slot of an older tenant. That is why the search begins
//! one version further on than it seems to need
//! ([`Visible::Displaced`](crate::visibility::Visible::Displaced)): the first record must name the
//! version that the CVT shows before it, and from there on nothing rests on the CVT.

use lotus_sabotage::{Rule, broken};

use crate::acceptance::{Expected, Reject, accept_version};
use crate::layout::record::Record;
use crate::timestamp::Timestamp;

/// Largest number of records that a reader follows before it gives up as too old. A row that was
/// written so often since its snapshot is written faster than it can be read.
pub const MAX_HOPS: u32 = 8;

/// A version of a row, as the record that follows it names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Its commit time.
    pub version: Timestamp,
    /// Offset of the slot that its record was written to, in the group's region; 0 if the row did
    /// not exist from `version` on, and nothing is known of earlier times.
    pub record: u64,
}

impl Link {
    /// The version before that of `record`; `None` if the row did not exist before.
    #[inline]
    pub fn before(record: &Record<'_>) -> Option<Self> {
        let link = Self { version: record.previous(), record: record.predecessor() };
        (link.version > Timestamp::ZERO).then_some(link)
    }
}

/// Decodes the record of the version that `link` names, if it is still in its slot. There should be
/// as many `words` as a slot has.
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
