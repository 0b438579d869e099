//! How often caches knew.

use std::ops::{AddAssign, Sub};

/// Look-ups in one cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hits {
    /// How often it was asked.
    pub lookups: u64,
    /// How often it knew.
    pub hits: u64,
}

impl Hits {
    /// Counts several look-ups, of which so many hit.
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

/// Look-ups in the caches of a coordinator's node since it was started, by that coordinator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheCounters {
    /// The version table cache, asked about rows whose locks are on the node (LOTUS §4.4).
    pub version_tables: Hits,
    /// The address cache, asked where the former did not know (LOTUS §5).
    pub addresses: Hits,
    /// Locks that were asked for; those that the node keeps itself count as hits (LOTUS §4.3).
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

    /// What was asked between `earlier` and `self`.
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
