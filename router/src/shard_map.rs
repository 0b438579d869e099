//! Owners of shards (the compute nodes that grant their locks), with the epochs of ownership.
//!
//! # What it is
//! Ownership is decided by one word per shard in the memory pool, which is changed by
//! compare-and-swap: of two concurrent changes at most one succeeds (H19). A [`ShardMap`] is a
//! compute node's *copy* of these words, readable by all coordinators of the node at the price of a
//! load. A map starts as an even split, every compute node getting a shard in turn, and
//! [learns](ShardMap::learn) of changes later, in any order: the newer epoch counts.
//!
//! # What can be relied on
//! Only an owner's word about itself. A node becomes the owner when its own copy says so, and ends
//! the ownership itself: the node [stops](ShardMap::stop), and only then gives the shard away.
//! About other nodes a copy may be out of date. A node that gets a request without being the owner
//! answers with the owner in its copy, which is newer.
//!
//! # Epochs
//! Every change of a shard's word raises the shard's epoch, also when the owner stays. Lock
//! requests carry the epoch under which the requester saw the owner; a receiver whose word differs
//! refuses them (H4, H19). An owner seen twice under one epoch has held the shard in between.
//!
//! # What it is not
//! The map does not wait for locks to drain and notifies no other node: the engine runs the
//! hand-over.
//!
//! # Word
//! bits 0..16 owner, bits 16..48 epoch, bits 48..64 zero. In a copy, for a shard that has stopped:
//! owner [`NOBODY`], and the owner's number plus one in bits 48..64.

use std::sync::atomic::{AtomicU64, Ordering};

use lotus_fabric::ids::{NodeId, ShardId};

use crate::topology::{Role, TopologyError, check_nodes};

/// Version of one shard's ownership; only ever grows. Not the cluster's configuration epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardEpoch(pub u32);

impl ShardEpoch {
    /// Epoch of the initial split. Zero is never in use, so a zeroed request matches no owner.
    pub const FIRST: Self = Self(1);
}

/// Owner of shards with a lost owner, until adoption: no node has this number, and the shards'
/// locks are not granted.
pub const NOBODY: NodeId = NodeId(u16::MAX);

/// Compute node that grants a shard's locks, and the epoch of the ownership.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner {
    /// The owner.
    pub node: NodeId,
    /// Epoch in which the node became the owner.
    pub epoch: ShardEpoch,
}

impl Owner {
    /// Encodes the owner as a word of the memory pool.
    pub const fn to_word(self) -> u64 {
        (self.epoch.0 as u64) << 16 | self.node.0 as u64
    }

    /// Decodes a word of the memory pool.
    pub const fn from_word(word: u64) -> Self {
        Self { node: NodeId(word as u16), epoch: ShardEpoch((word >> 16) as u32) }
    }

    /// Ownership after the shard has been given to `node`; `None` if the shard has been moved 2³²
    /// times, and stays with its owner for the cluster's life.
    #[must_use]
    pub fn next(self, node: NodeId) -> Option<Self> {
        self.epoch.0.checked_add(1).map(|epoch| Self { node, epoch: ShardEpoch(epoch) })
    }

    /// Word in the owner's own copy after the owner has stopped granting locks.
    const fn stopped(self) -> u64 {
        let nobody = Self { node: NOBODY, epoch: self.epoch };
        (self.node.0 as u64 + 1) << 48 | nobody.to_word()
    }
}

/// Copy of all shards' owners on one node. Shared by its coordinators; 32 KiB.
#[derive(Debug)]
pub struct ShardMap {
    words: Box<[AtomicU64]>,
}

impl ShardMap {
    /// Deals the shards out to `compute_nodes` in turn: as a result, tables whose critical field
    /// takes few values, and which therefore have only the first few shards, are spread evenly too.
    ///
    /// # Errors
    /// If `compute_nodes` is empty or too long, or names a node twice.
    pub fn even(compute_nodes: &[NodeId]) -> Result<Self, TopologyError> {
        check_nodes(Role::Compute, compute_nodes)?;
        let words = ShardId::all().map(|shard| {
            let index = usize::from(shard.raw()) % compute_nodes.len();
            let owner = Owner { node: compute_nodes[index], epoch: ShardEpoch::FIRST };
            AtomicU64::new(owner.to_word())
        });
        Ok(Self { words: words.collect() })
    }

    /// Last known owner of `shard`; [`NOBODY`] if this node is the owner and has stopped.
    #[inline]
    pub fn owner(&self, shard: ShardId) -> Owner {
        // Acquire pairs with the release in `change`: a thread seeing a new owner also sees all
        // writes from before its naming. On x86-64 it is a plain load.
        Owner::from_word(self.word(shard).load(Ordering::Acquire))
    }

    /// Whether `claim` grants locks of `shard`.
    #[inline]
    pub fn serves(&self, shard: ShardId, claim: Owner) -> bool {
        self.word(shard).load(Ordering::Acquire) == claim.to_word()
    }

    /// Whether locks that `claim` has granted still stand: it is the owner, stopped or not.
    #[inline]
    pub fn is_current(&self, shard: ShardId, claim: Owner) -> bool {
        let word = self.word(shard).load(Ordering::Acquire);
        word == claim.to_word() || word == claim.stopped()
    }

    /// Whether `node`, which must be the node of this copy, still answers for the locks of `shard`:
    /// it grants them, or has stopped and not given the shard away yet.
    pub fn keeps(&self, shard: ShardId, node: NodeId) -> bool {
        let owner = self.owner(shard);
        owner.node == node || self.is_current(shard, Owner { node, ..owner })
    }

    /// Records that `owner` has `shard`, if the epoch of `owner` is later than the known epoch.
    /// Returns whether it is.
    pub fn learn(&self, shard: ShardId, owner: Owner) -> bool {
        loop {
            let word = self.word(shard).load(Ordering::Acquire);
            if Owner::from_word(word).epoch >= owner.epoch {
                return false;
            }
            if self.change(shard, word, owner.to_word()) {
                return true;
            }
        }
    }

    /// Makes `owner` grant no more locks of `shard`; granted locks stand. Returns whether `owner`
    /// was granting.
    pub fn stop(&self, shard: ShardId, owner: Owner) -> bool {
        self.change(shard, owner.to_word(), owner.stopped())
    }

    /// Makes `owner`, which has stopped and not given the shard away, grant locks again.
    pub fn resume(&self, shard: ShardId, owner: Owner) {
        // After a failed swap the copy knows a later owner.
        self.change(shard, owner.stopped(), owner.to_word());
    }

    /// Removes the expelled node `lost` as an owner: no node may ask it for locks, and locks
    /// granted by `lost` do not stand (H4). The word in the pool will follow, under another epoch.
    pub fn disown(&self, lost: NodeId) {
        for shard in ShardId::all() {
            let owner = self.owner(shard);
            if owner.node == lost {
                // After a failed swap a later owner is recorded, by another thread.
                self.change(shard, owner.to_word(), Owner { node: NOBODY, ..owner }.to_word());
            }
        }
    }

    fn change(&self, shard: ShardId, from: u64, to: u64) -> bool {
        // Release publishes the earlier writes of this thread; acquire, on failure as well, shows
        // the writes of the faster thread.
        let word = self.word(shard);
        word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    #[inline]
    fn word(&self, shard: ShardId) -> &AtomicU64 {
        &self.words[usize::from(shard.raw())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: ShardId = ShardId::from_low_bits(7);

    fn map(compute_nodes: u16) -> ShardMap {
        let nodes: Vec<NodeId> = (0..compute_nodes).map(NodeId).collect();
        ShardMap::even(&nodes).unwrap()
    }

    fn owner(node: u16, epoch: u32) -> Owner {
        Owner { node: NodeId(node), epoch: ShardEpoch(epoch) }
    }

    #[test]
    fn ownership_survives_packing() {
        for owner in [owner(0, 1), owner(u16::MAX, u32::MAX), owner(0x1234, 0x9ABC_DEF0)] {
            assert_eq!(Owner::from_word(owner.to_word()), owner);
        }
    }

    #[test]
    fn the_first_split_is_even_also_among_the_first_few_shards() {
        for compute_nodes in 1..=64 {
            let map = map(compute_nodes);
            let mut sizes = vec![0; usize::from(compute_nodes)];
            for shard in ShardId::all() {
                sizes[usize::from(map.owner(shard).node.0)] += 1;
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
            }
        }
    }

    #[test]
    fn only_later_epochs_are_news() {
        // (known, heard, known then)
        let cases = [
            (owner(0, 3), owner(1, 4), owner(1, 4)),
            (owner(0, 3), owner(1, 9), owner(1, 9)),
            (owner(0, 3), owner(1, 2), owner(0, 3)),
            (owner(0, 3), owner(1, 3), owner(0, 3)),
            (owner(0, 3), owner(0, 4), owner(0, 4)),
            (owner(NOBODY.0, 3), owner(1, 3), owner(NOBODY.0, 3)),
        ];
        for (known, heard, then) in cases {
            let map = map(3);
            map.learn(SHARD, known);
            assert_eq!(map.learn(SHARD, heard), then != known, "{known:?} {heard:?}");
            assert_eq!(map.owner(SHARD), then, "{known:?} {heard:?}");
        }
    }

    #[test]
    fn who_has_stopped_grants_nothing_and_keeps_what_was_granted() {
        let map = map(3);
        let before = map.owner(SHARD);
        assert!(map.serves(SHARD, before) && map.is_current(SHARD, before));
        assert!(map.stop(SHARD, before));
        assert!(!map.stop(SHARD, before), "once");
        assert_eq!(map.owner(SHARD), Owner { node: NOBODY, ..before });
        assert!(!map.serves(SHARD, before) && map.is_current(SHARD, before));
        assert!(map.keeps(SHARD, before.node) && !map.keeps(SHARD, NodeId(0)));
        let nobody = Owner { node: NOBODY, ..before };
        assert!(!map.serves(SHARD, nobody) && !map.is_current(SHARD, nobody));
        map.resume(SHARD, before);
        assert!(map.serves(SHARD, before));
    }

    #[test]
    fn whoever_was_faster_is_not_overruled() {
        let map = map(3);
        let before = map.owner(SHARD);
        let after = before.next(NodeId(2)).unwrap();
        assert!(map.stop(SHARD, before));
        assert!(map.learn(SHARD, after));
        map.resume(SHARD, before);
        assert_eq!(map.owner(SHARD), after);
        assert!(!map.is_current(SHARD, before));
    }

    #[test]
    fn what_a_lost_node_has_granted_does_not_stand() {
        let map = map(2);
        let lost = map.owner(SHARD);
        let other = ShardId::from_low_bits(SHARD.raw().into());
        map.disown(lost.node);
        assert_eq!(map.owner(other), Owner { node: NOBODY, ..lost });
        assert!(!map.is_current(SHARD, lost));
        assert!(ShardId::all().all(|shard| map.owner(shard).node != lost.node));
        assert!(ShardId::all().any(|shard| map.owner(shard).node != NOBODY));
    }

    /// A shard that goes away and comes back must not honour requests from before (H19).
    #[test]
    fn a_shard_that_returns_is_owned_anew() {
        let map = map(2);
        let before = map.owner(SHARD);
        let away = before.next(NodeId(1 - before.node.0)).unwrap();
        let back = away.next(before.node).unwrap();
        assert!(map.learn(SHARD, away) && map.learn(SHARD, back));
        assert!(!map.serves(SHARD, before) && !map.is_current(SHARD, before));
        assert!(map.serves(SHARD, back));
    }

    #[test]
    fn epochs_do_not_wrap() {
        assert_eq!(owner(0, u32::MAX).next(NodeId(0)), None);
    }
}
