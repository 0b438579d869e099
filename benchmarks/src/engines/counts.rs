//! Counts of the engine in the harness's own terms.

use lotus::SessionView;

use crate::contract::deployment::{Activity, Caches, Hits};

/// Look-ups of one kind.
pub(super) const fn hits(lotus::Hits { lookups, hits }: lotus::Hits) -> Hits {
    Hits { lookups, hits }
}

/// Look-ups in caches.
pub(super) const fn caches(counted: lotus::CacheCounters) -> Caches {
    Caches { version_tables: hits(counted.version_tables), addresses: hits(counted.addresses) }
}

/// Counts of a coordinator; shards are counted by the first coordinator of its node.
pub(super) fn activity(view: &SessionView) -> Activity {
    let counted = view.cache_counters();
    let is_first = view.coordinator_id().thread == 0;
    let shards = if is_first { view.move_counters().shards } else { 0 };
    Activity { caches: caches(counted), locks: hits(counted.locks), shards }
}
