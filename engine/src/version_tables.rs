//! When a cached CVT may be believed, and when one may be kept (LOTUS §4.4, H11).
//!
//! # The claim
//! What is cached of a row is what its primary holds, or somebody on this node has the row locked
//! to write. So a CVT comes from the cache without a message, and leaves it without one, because
//! only the owner of a row's shard caches it, and whoever writes the row asks that owner first.
//!
//! # Why it holds
//! - *A writer of another node* is granted its lock here, and before it learns of that the row is
//!   forgotten ([`LockHost::write_granted`](lotus_locktable::LockHost)). Nothing brings it back
//!   while the lock is held: see below.
//! - *A writer of this node* leaves the row as it was cached. When all replicas show its version,
//!   and before it unlocks, it replaces the one cell that it has written. If it never gets there,
//!   it never unlocks: a commit that was begun only goes forward. One that aborts has written
//!   nothing.
//! - *A READ under the transaction's own lock* is kept: nobody can write meanwhile. The lock must
//!   be in this node's table. An attempt may believe in one that it has not any more: its owner
//!   took it back, because the attempt will not commit, and gave the shard to this node (H19).
//! - *A READ without a lock* is kept if nobody has held the lock to write since before it was
//!   posted ([`LockTable::unwritten_since`]), and this node has owned the shard all along. That is
//!   asked with the row's place in the cache locked. A writer whose grant escapes the question
//!   comes to that place later: to forget, if it is remote, or to replace its cell, if it is local.
//! - *A shard that moves away* is forgotten once its owner has ceased, which the question notices.
//!
//! # Who may believe it
//! Whoever holds the row's lock, to read or to write. Without it, whoever sees that nobody holds
//! it to write, and looks into the cache *afterwards*: then what is there was true at that moment
//! or later. It must have drawn its snapshot before. A writer within the snapshot had the lock when
//! the snapshot was drawn, so either it is still seen to have it, or the cache has its version.
//!
//! # What the cache is not believed about
//! That a row is absent. A version leads to its record, and reading that meets the fence of a node
//! that was expelled and does not know (H2); an absence would be believed without asking anybody.

use std::sync::Arc;

use lotus_fabric::ids::{Key, NodeId, ShardId, TableId, TxnId};
use lotus_locktable::{LockName, LockTable, Watch};
use lotus_mvcc::layout::cvt::{Cell, Cvt, HEADER_WORDS};
use lotus_mvcc::version_table_cache::VersionTableCache;
use lotus_router::{Owner, ShardMap};
use lotus_sabotage::{Rule, broken};

/// The version tables that one compute node has cached.
pub(crate) struct VersionTables {
    node: NodeId,
    locks: Arc<LockTable>,
    shards: Arc<ShardMap>,
    /// `None` if nothing is to be cached.
    cache: Option<VersionTableCache>,
}

/// Whether the transaction that asks holds the row's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cover {
    /// It does, at least to read.
    Locked,
    /// It does not, and has drawn its snapshot.
    Unlocked,
}

/// A moment before a READ of a row's CVT was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    owner: Owner,
    writers: Watch,
}

impl VersionTables {
    /// Room for the version tables of `entries` rows; nothing is cached if that is 0.
    pub(crate) fn new(
        node: NodeId,
        locks: Arc<LockTable>,
        shards: Arc<ShardMap>,
        entries: usize,
    ) -> Self {
        let cache = (entries > 0).then(|| VersionTableCache::with_entries(entries));
        Self { node, locks, shards, cache }
    }

    /// What is cached, for whoever compares it with memory.
    pub(crate) fn cache(&self) -> Option<&VersionTableCache> {
        self.cache.as_ref()
    }

    /// The cache, and who owns the row's shard, if that is this node.
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

    /// Where the row's CVT is, and its words behind the header in `words`, if that may be believed.
    #[inline]
    pub(crate) fn lookup(
        &self,
        table: TableId,
        key: Key,
        cover: Cover,
        words: &mut [u64],
    ) -> Option<u64> {
        let (cache, _) = self.owned(key)?;
        let name = LockName::row(table, key);
        let free = || broken(Rule::CachesYieldToWriters) || !self.locks.is_write_locked(&name);
        // The lock first: see the essay.
        let believed = cover == Cover::Locked || free();
        if believed { cache.lookup(table, key, &mut words[HEADER_WORDS..]) } else { None }
    }

    /// To be asked before a READ of the row's CVT is posted, for [`Self::keep`]; `None` if it is
    /// not for this node to keep.
    #[inline]
    pub(crate) fn before(&self, table: TableId, key: Key) -> Option<Before> {
        let (_, owner) = self.owned(key)?;
        Some(Before { owner, writers: self.locks.watch(&LockName::row(table, key)) })
    }

    /// What covers an attempt that believes to hold the row's lock. It stays as it is until the
    /// attempt's coordinator has its next turn: nobody takes a lock back without asking there.
    #[inline]
    pub(crate) fn cover_of(&self, txn: TxnId, table: TableId, key: Key) -> Cover {
        let held = self.locks.holds(txn, &LockName::row(table, key));
        if held { Cover::Locked } else { Cover::Unlocked }
    }

    /// Keeps a CVT that was read, unless it may be out of date.
    #[inline]
    pub(crate) fn keep(
        &self,
        (table, key): (TableId, Key),
        cover: Cover,
        before: Before,
        offset: u64,
        cvt: Cvt<'_>,
    ) {
        let Some((cache, _)) = self.owned(key) else { return };
        cache.keep(table, key, offset, &cvt.words()[HEADER_WORDS..], || {
            let owned = self.shards.serves(key.shard(), before.owner);
            owned && (cover == Cover::Locked || self.unwritten(&LockName::row(table, key), before))
        });
    }

    fn unwritten(&self, name: &LockName, before: Before) -> bool {
        if broken(Rule::FillsYieldToWriters) {
            return self.locks.watch(name) == before.writers;
        }
        if broken(Rule::FillsNoticeWriters) {
            return !self.locks.is_write_locked(name);
        }
        self.locks.unwritten_since(name, before.writers)
    }

    /// A writer of this node has made its version visible on all replicas, and still has the lock.
    #[inline]
    pub(crate) fn renew(&self, table: TableId, key: Key, index: usize, cell: Cell) {
        if let Some((cache, _)) = self.owned(key)
            && !broken(Rule::CachesAreRenewed)
        {
            cache.renew(table, key, index, cell.encode());
        }
    }

    /// The shard is about to be given away, and its owner has stopped.
    pub(crate) fn forget_shard(&self, shard: ShardId) {
        if let Some(cache) = &self.cache {
            cache.forget_shard(shard);
        }
    }

    /// The row is about to change and nobody here will say how.
    pub(crate) fn forget(&self, table: TableId, key: Key) {
        if let Some(cache) = &self.cache {
            cache.forget(table, key);
        }
    }
}

#[cfg(test)]
mod tests;
