//! Hit counters of a node's caches.

use std::ops::{AddAssign, Sub};

/// Look-ups and hits of one cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hits {
    /// Number of look-ups.
    pub lookups: u64,
    /// Number of look-ups answered by the cache.
    pub hits: u64,
}

impl Hits {
    /// Counts `lookups` look-ups, `hits` of which hit.
    #[inline]
    pub(crate) fn count_all(&mut self, lookups: usize, hits: usize) {
        self.lookups += lookups as u64;
        self.hits += hits as u64;
    }

    #[inline]
    pub(crate) fn count(&mut self, hit: bool) {
        self.lookups += 1;
        self.hits += u64::from(hit);
    }
}

/// Look-ups by one coordinator in its node's caches since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheCounters {
    /// The version table cache, for rows whose locks the node owns (LOTUS §4.4).
    pub version_tables: Hits,
    /// The address cache, asked after a miss in the version table cache (LOTUS §5).
    pub addresses: Hits,
    /// Lock requests; a request for a shard of the node itself counts as a hit (LOTUS §4.3).
    pub locks: Hits,
}

impl AddAssign for Hits {
    fn add_assign(&mut self, other: Self) {
        self.lookups += other.lookups;
        self.hits += other.hits;
    }
}

impl Sub for Hits {
    type Output = Self;

    /// Look-ups between `earlier` and `self`.
    fn sub(self, earlier: Self) -> Self {
        Self { lookups: self.lookups - earlier.lookups, hits: self.hits - earlier.hits }
    }
}

impl AddAssign for CacheCounters {
    fn add_assign(&mut self, other: Self) {
        self.version_tables += other.version_tables;
        self.addresses += other.addresses;
        self.locks += other.locks;
    }
}
