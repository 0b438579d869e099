//! Progress of reading one row.

use crate::node::caches::version_tables::ReadStart;
use crate::node::shared::NodeTable;
use crate::txn::body::Row;
use lotus_fabric::verbs::Buffer;
use lotus_mvcc::Timestamp;
use lotus_mvcc::chain::Link;
use lotus_mvcc::index::{Lookup, Read};
use lotus_mvcc::visibility::Candidate;

/// Progress of reading one row.
pub(crate) struct Fetch {
    pub(crate) row: usize,
    pub(crate) wants: NextRead,
    /// Destination of this round's READ.
    pub(crate) buffer: Option<Buffer>,
    /// Moment before this round's READ, which the cache compares before keeping the CVT; `None` if
    /// the CVT may not be cached.
    pub(crate) before: Option<ReadStart>,
    /// Destination of a second READ of the CVT, needed if the first READ or the record alone proves
    /// nothing.
    pub(crate) second: Option<Buffer>,
    pub(crate) rereads: u32,
    /// Offset of the CVT, once known or remembered.
    pub(crate) cvt: u64,
    /// Search through the buckets, if no remembered address led to the CVT: an index into
    /// [`Body::lookups`](crate::txn::body::Body::lookups), because most fetches have none.
    pub(crate) lookup: Option<usize>,
    /// Words that are valid once a second READ returns equal words; only if a READ may be torn.
    pub(crate) unconfirmed: Option<Vec<u64>>,
    /// Destination of the group's purge time, read after words that may show the row as absent.
    pub(crate) purge_time: Option<Buffer>,
    pub(crate) wants_purge_time: bool,
    /// Purge time read in this round.
    pub(crate) absent_since: Option<Timestamp>,
    /// Number of records of later versions read on the way to an older one.
    pub(crate) hops: u32,
}

/// Next READ of a fetch.
#[derive(Clone, Copy)]
pub(crate) enum NextRead {
    /// The words at [`Fetch::cvt`], which may no longer be this row's CVT.
    Cvt,
    /// The words of an index bucket.
    Bucket(Read),
    /// The record of a version.
    Record(Candidate),
    /// The record of a version in the CVT, on the way to a version that has left the CVT.
    Successor(Candidate),
    /// The record of a version that has left the CVT.
    Older(Link),
    /// Another bucket at the end of the chain, for an insert into a full chain with `behind`
    /// buckets behind the home bucket.
    Overflow { tail: u64, behind: u8 },
}

/// Outcome of absorbing a READ.
pub(crate) enum Next {
    /// Another READ, as [`Fetch::wants`] says.
    Read,
    /// Repeat the READ, because a writer is at work.
    Reread,
    /// The row is read.
    Done,
}

impl Fetch {
    /// A fetch of the row at this place in its transaction, with nothing read. An insert also needs
    /// the time since which its row is absent.
    #[inline]
    pub(crate) fn of(row: usize, insert: bool) -> Self {
        Self {
            row,
            wants: NextRead::Cvt,
            buffer: None,
            before: None,
            second: None,
            rereads: 0,
            cvt: 0,
            lookup: None,
            unconfirmed: None,
            purge_time: None,
            wants_purge_time: insert,
            absent_since: None,
            hops: 0,
        }
    }

    /// Whether the CVT differs from its first reading; if it does, the next READ examines the CVT
    /// anew.
    #[cold]
    pub(crate) fn has_changed(&mut self, cvt: &[u64]) -> bool {
        let changed = self.unconfirmed.take().is_some_and(|first| first != cvt);
        if changed {
            self.wants = NextRead::Cvt;
        }
        changed
    }

    /// Starts a search for the row's CVT in its chain of buckets.
    #[cold]
    pub(crate) fn search(&mut self, table: &NodeTable, row: &Row, lookups: &mut Vec<Lookup>) {
        debug_assert!(self.lookup.is_none(), "I27: a row is searched through its chain once");
        let (lookup, read) = Lookup::start(&table.def, row.name(), None);
        lookups.push(lookup);
        self.lookup = Some(lookups.len() - 1);
        self.wants = NextRead::Bucket(read);
    }
}
