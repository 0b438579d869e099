//! Rules for the version table cache: when to use, and when to keep, a cached CVT (LOTUS §4.4,
//! H11).
//!
//! # The claim
//! The cached CVT of a row equals the CVT on the row's primary, or a transaction of this node has
//! the row locked to write. A CVT enters and leaves the cache without a message, because only the
//! owner of a row's shard caches the CVT, and every writer of the row asks that owner first.
//!
//! # Why it holds
//! - *A writer of another node* is granted its lock here, and the row is dropped before the writer
//!   learns of the grant ([`LockHost::write_granted`](lotus_locktable::LockHost)). The row stays
//!   out of the cache while the lock is held: see below.
//! - *A writer of this node* leaves the cached row unchanged. After all replicas show the new
//!   version, and before unlocking, the writer replaces its cell in the cache. A writer that does
//!   not get this far never unlocks: a commit once begun only goes forward. An attempt that aborts
//!   has written nothing.
//! - *A READ under the transaction's own lock* is kept: no other transaction can write meanwhile.
//!   The lock must be in this node's table. An attempt may believe in a lock already lost: the
//!   owner took the lock back, because the attempt will not commit, and gave the shard to this node
//!   (H19).
//! - *A READ without a lock* is kept if no write lock on the row was held since before the READ was
//!   posted ([`LockTable::unwritten_since`]), and this node has owned the shard all along. Both are
//!   checked with the row's place in the cache locked. A writer whose grant escapes the check comes
//!   to that place later: a remote writer to drop the row, a local writer to replace its cell.
//! - *A shard that moves away* is dropped once its owner has stopped serving the shard; the check
//!   notices the stop.
//!
//! # Readers
//! A transaction with the row's lock, to read or to write, may use the cache. A transaction without
//! the lock may use the cache if it finds no write lock on the row, and looks into the cache
//! *afterwards*: the cached CVT was then true at the moment of the lock check or later. The
//! transaction must have drawn its snapshot before. A writer within the snapshot had the lock when
//! the snapshot was drawn, so either the lock is still visible, or the cache has the writer's
//! version.
//!
//! # Absent rows
//! The cache is not believed about absent rows. A version leads to its record, and the READ of the
//! record meets the fence if this node is expelled and does not know of it (H2); an absence would
//! be believed without any READ.

use std::sync::Arc;

use lotus_fabric::ids::{Key, NodeId, ShardId, TableId, TxnId};
use lotus_locktable::{LockKey, LockTable, Watch};
use lotus_mvcc::RowName;
use lotus_mvcc::layout::cvt::{Cell, Cvt, HEADER_WORDS};
use lotus_mvcc::version_table_cache::VersionTableCache;
use lotus_router::{Owner, ShardMap};
use lotus_sabotage::{Rule, broken};

/// Version tables cached by one compute node.
pub(crate) struct VersionTables {
    node: NodeId,
    locks: Arc<LockTable>,
    shards: Arc<ShardMap>,
    /// `None` if the cache is disabled.
    cache: Option<VersionTableCache>,
}

/// Lock held by the transaction that asks for a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cover {
    /// The row's lock, at least to read.
    Locked,
    /// No lock, with the snapshot drawn already (I64).
    Unlocked,
}

/// A moment before a READ of a row's CVT was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadStart {
    owner: Owner,
    writers: Watch,
}

impl VersionTables {
    /// Creates a cache for the version tables of `entries` rows; disabled if `entries` is 0.
    pub(crate) fn new(
        node: NodeId,
        locks: Arc<LockTable>,
        shards: Arc<ShardMap>,
        entries: usize,
    ) -> Self {
        let cache = (entries > 0).then(|| VersionTableCache::with_entries(entries));
        Self { node, locks, shards, cache }
    }

    /// Returns the cache, for comparison with memory.
    pub(crate) fn cache(&self) -> Option<&VersionTableCache> {
        self.cache.as_ref()
    }

    /// Returns the cache and the owner of the row's shard, if this node is the owner.
    #[inline]
    fn owned(&self, key: Key) -> Option<(&VersionTableCache, Owner)> {
        let cache = self.cache.as_ref()?;
        let owner = self.shards.owner(key.shard());
        (owner.node == self.node).then_some((cache, owner))
    }

    /// Hints that the row will be looked up soon.
    #[inline]
    pub(crate) fn prefetch(&self, table: TableId, key: Key) {
        if let Some((cache, _)) = self.owned(key) {
            cache.prefetch(table, key);
        }
    }

    /// Hints that the row will be looked up next.
    #[inline]
    pub(crate) fn prefetch_row(&self, table: TableId, key: Key) {
        if let Some((cache, _)) = self.owned(key) {
            cache.prefetch_row(table, key);
        }
    }

    /// Whether this row could be cached here.
    #[inline]
    pub(crate) fn covers(&self, key: Key) -> bool {
        self.owned(key).is_some()
    }

    /// Returns the offset of the row's CVT, and fills in the CVT's words after the header, if the
    /// row is cached and may be used.
    #[inline]
    pub(crate) fn lookup(
        &self,
        table: TableId,
        name: RowName,
        cover: Cover,
        words: &mut [u64],
    ) -> Option<u64> {
        let (cache, _) = self.owned(name.key)?;
        let lock = LockKey::row(table, name.key);
        let free = || broken(Rule::CachesYieldToWriters) || !self.locks.is_write_locked(&lock);
        // Check the lock before the cache (I64): see the module's documentation.
        let believed = cover == Cover::Locked || free();
        if believed { cache.lookup(table, name, &mut words[HEADER_WORDS..]) } else { None }
    }

    /// Records the moment before a READ of the row's CVT is posted, for [`Self::keep`]; `None` if
    /// this node must not keep the CVT.
    #[inline]
    pub(crate) fn before(&self, table: TableId, key: Key) -> Option<ReadStart> {
        let (_, owner) = self.owned(key)?;
        Some(ReadStart { owner, writers: self.locks.watch(&LockKey::row(table, key)) })
    }

    /// Returns the cover of an attempt that believes it holds the row's lock. The answer holds
    /// until the next turn of the attempt's coordinator: a lock is only taken back after asking
    /// that coordinator.
    #[inline]
    pub(crate) fn cover_of(&self, txn: TxnId, table: TableId, key: Key) -> Cover {
        let held = self.locks.holds(txn, &LockKey::row(table, key));
        if held { Cover::Locked } else { Cover::Unlocked }
    }

    /// Keeps a CVT that was read, unless possibly out of date (I63).
    #[inline]
    pub(crate) fn keep(
        &self,
        (table, name): (TableId, RowName),
        cover: Cover,
        before: ReadStart,
        offset: u64,
        cvt: Cvt<'_>,
    ) {
        debug_assert!(offset != 0, "I62: a cached row has a place in memory");
        let key = name.key;
        let Some((cache, _)) = self.owned(key) else { return };
        cache.keep(table, name, offset, &cvt.words()[HEADER_WORDS..], || {
            let owned = self.shards.serves(key.shard(), before.owner);
            owned && (cover == Cover::Locked || self.unwritten(&LockKey::row(table, key), before))
        });
    }

    fn unwritten(&self, name: &LockKey, before: ReadStart) -> bool {
        if broken(Rule::FillsYieldToWriters) {
            return self.locks.watch(name) == before.writers;
        }
        if broken(Rule::FillsNoticeWriters) {
            return !self.locks.is_write_locked(name);
        }
        self.locks.unwritten_since(name, before.writers)
    }

    /// Replaces the cell `index` of the row's CVT at `offset`: a writer of this node has made the
    /// cell visible on all replicas, and holds the lock.
    #[inline]
    pub(crate) fn renew(
        &self,
        table: TableId,
        name: RowName,
        offset: u64,
        (index, cell): (usize, Cell),
    ) {
        if let Some((cache, _)) = self.owned(name.key)
            && !broken(Rule::CachesAreRenewed)
        {
            cache.renew(table, name, offset, (index, cell.encode()));
        }
    }

    /// Drops all rows of a shard about to be given away, after its owner has stopped.
    pub(crate) fn forget_shard(&self, shard: ShardId) {
        if let Some(cache) = &self.cache {
            cache.forget_shard(shard);
        }
    }

    /// Drops all rows of a name before one of them changes without notice to the cache.
    pub(crate) fn forget(&self, table: TableId, key: Key) {
        if let Some(cache) = &self.cache {
            cache.forget(table, key);
        }
    }
}

#[cfg(test)]
mod tests;
