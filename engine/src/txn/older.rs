//! Reading versions that have left the CVT, for snapshots that need them ([`lotus_mvcc::chain`]).
//!
//! A fetch that finds every cell newer than its snapshot continues in this module. It reads the
//! record of a version still in the CVT to learn the place of the previous version, then one record
//! per round until a version is old enough. A record that does not match ends the attempt with
//! `SnapshotTooOld`. The fetch owns the current link; `lotus_mvcc` interprets it.

use lotus_mvcc::acceptance::accept_record;
use lotus_mvcc::chain::{Link, MAX_HOPS, accept_link};
use lotus_mvcc::layout::record::Record;
use lotus_mvcc::visibility::Candidate;

use crate::api::error::TxnError;
use crate::txn::body::Body;
use crate::txn::fetch::{Fetch, Next, NextRead};

impl Body {
    /// Absorbs the record of the CVT's second-oldest version.
    pub(crate) fn absorb_successor(
        &mut self,
        fetch: &mut Fetch,
        successor: Candidate,
        words: &[u64],
    ) -> Result<Next, TxnError> {
        let row = &self.rows[fetch.row];
        match accept_record(&row.expected(), successor, words) {
            Ok(record) => self.follow(fetch, &record),
            Err(why) => self.rejected(fetch, why, words),
        }
    }

    /// Absorbs the record at the target of a link.
    pub(crate) fn absorb_older(
        &mut self,
        fetch: &mut Fetch,
        link: Link,
        words: &[u64],
    ) -> Result<Next, TxnError> {
        let row = &self.rows[fetch.row];
        let record = match accept_link(&row.expected(), link, words) {
            Ok(record) => record,
            Err(_) => return Err(row.too_old()),
        };
        if self.snapshot.is_some_and(|snapshot| link.version <= snapshot) {
            self.keep_value(fetch.row, &record, words);
            return Ok(Next::Done);
        }
        if fetch.hops >= MAX_HOPS && !self.goes_far_back {
            return Err(row.too_old());
        }
        self.follow(fetch, &record)
    }

    /// Follows the link to the version before `record`.
    fn follow(&mut self, fetch: &mut Fetch, record: &Record<'_>) -> Result<Next, TxnError> {
        fetch.hops += 1;
        let row = &mut self.rows[fetch.row];
        match Link::before(record) {
            Some(link) if link.record != 0 => {
                fetch.wants = NextRead::Older(link);
                Ok(Next::Read)
            }
            // Versions from before the row's latest insertion are unknown.
            Some(link) if Some(link.version) > self.snapshot => Err(row.too_old()),
            // The row did not exist.
            _ => {
                (row.value, row.writer) = (None, None);
                Ok(Next::Done)
            }
        }
    }
}
