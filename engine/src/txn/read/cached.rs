//! Use of the version table cache by reads: a cached row skips the READ of its CVT, and a CVT that
//! was read is cached. `version_tables` decides whether use and insertion are allowed. Tables with
//! records in the cells are not cached: their rows take one READ either way, and the READ meets the
//! fence of an expelled node (H2).

use lotus_mvcc::layout::cvt::{CELL_WORDS, Cvt, HEADER_WORDS, MAX_CELLS};

use super::View;
use crate::api::cache_counters::CacheCounters;
use crate::api::error::TxnError;
use crate::node::caches::version_tables::Cover;
use crate::node::coordinator::Coordinator;
use crate::txn::body::{Body, Mode};
use crate::txn::fetch::{Fetch, NextRead};

impl View {
    /// Returns whether the transaction holds a lock on the row, in the cache's terms.
    fn cover(self) -> Cover {
        match self {
            Self::Locked { .. } => Cover::Locked,
            Self::Snapshot(_) => Cover::Unlocked,
        }
    }
}

impl Body {
    /// Looks up the row's CVT in this node's cache. Returns whether the CVT is cached and leads to
    /// a record; only memory is believed about absent rows (I65).
    #[inline]
    pub(super) fn consult_cache(
        &mut self,
        coordinator: &Coordinator,
        mode: Mode,
        fetch: &mut Fetch,
        caches: &mut CacheCounters,
    ) -> Result<bool, TxnError> {
        let row = &self.rows[fetch.row];
        let versions = &coordinator.node.versions;
        if !versions.covers(row.key) {
            return Ok(false);
        }
        let mut words = [0; HEADER_WORDS + CELL_WORDS * MAX_CELLS];
        let shape = self.table(row.table).def.cvt();
        let words = &mut words[..shape.words()];
        let cover = self.view(coordinator, mode, row).cover();
        let cached = versions.lookup(row.table, row.name(), cover, words);
        caches.version_tables.count(cached.is_some());
        let Some(cvt) = cached else { return Ok(false) };
        fetch.cvt = cvt;
        self.absorb_cvt(coordinator, mode, fetch, Cvt::new(words, shape), false)?;
        fetch.unconfirmed = None;
        Ok(matches!(fetch.wants, NextRead::Record(_) | NextRead::Successor(_)))
    }

    /// Caches a CVT that was read, if allowed.
    #[inline]
    pub(super) fn keep_cached(
        &self,
        coordinator: &Coordinator,
        mode: Mode,
        fetch: &Fetch,
        cvt: Cvt<'_>,
    ) {
        let Some(before) = fetch.before else { return };
        let row = &self.rows[fetch.row];
        let versions = &coordinator.node.versions;
        let cover = match self.view(coordinator, mode, row).cover() {
            Cover::Locked => versions.cover_of(self.held.txn(), row.table, row.key),
            Cover::Unlocked => Cover::Unlocked,
        };
        versions.keep((row.table, row.name()), cover, before, fetch.cvt, cvt);
    }
}
