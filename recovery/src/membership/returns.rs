//! Memory nodes that were lost and come back with empty memory.
//!
//! # The stages of a return
//! 1. A compute node prepares the memory node's memory and writes a [`Life`], a unique number.
//!    Every compute node that reaches the memory node and reads the number [reports
//!    it](Membership::found).
//! 2. When all live nodes have reported, the memory node *joins*: the epoch grows, and all nodes
//!    stop, finish and resume as after a loss. From then on the memory node gets every write, but
//!    does not count as a copy: no node reads from it, no commit is reported to a caller because
//!    this copy shows the commit, and the search for a group's last copy skips it.
//! 3. Shard by shard it is [filled](Membership::copied).
//! 4. With its last shard the memory node is *whole*: the epoch grows once more, and all nodes turn
//!    to the placement with the memory node in its original place.
//!
//! A loss at any stage puts the memory node back before step 1.
//!
//! # Telling lives apart
//! A node that comes back may have old memory, behind a long silent process. Old memory may never
//! be used: the cluster has written since. A life is made after a loss, and the loss comes after
//! every earlier life; hence [`Life::is_since`] separates new memory from old. The first life, with
//! which the cluster began, has no number.

use lotus_fabric::ids::{Epoch, NodeId, ShardId};
use lotus_router::Placement;
use serde::{Deserialize, Serialize};

use super::Membership;

/// One life of a memory node: the epoch in which the memory was made ready, and a random number. As
/// a word a life is never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Life(u64);

impl TryFrom<u64> for Life {
    type Error = &'static str;

    fn try_from(word: u64) -> Result<Self, Self::Error> {
        Self::from_word(word).ok_or("a life begins after the first epoch")
    }
}

impl From<Life> for u64 {
    fn from(life: Life) -> Self {
        life.0
    }
}

impl Life {
    /// A life that begins in `epoch`; `random` distinguishes lives of the same epoch.
    pub fn new(epoch: Epoch, random: u32) -> Self {
        Self(u64::from(epoch.0) << 32 | u64::from(random))
    }

    /// The life encoded by a word; `None` for 0, the word of the first life.
    pub fn from_word(word: u64) -> Option<Self> {
        (word >> 32 != 0).then_some(Self(word))
    }

    /// The life as stored in memory.
    pub fn word(self) -> u64 {
        self.0
    }

    /// The epoch in which the life began; of two lives of a memory node, the later life has the
    /// larger epoch.
    pub fn epoch(self) -> Epoch {
        Epoch((self.0 >> 32) as u32)
    }

    /// Whether the life began after the loss that began epoch `lost`.
    pub fn is_since(self, lost: Epoch) -> bool {
        self.0 >> 32 >= u64::from(lost.0)
    }
}

/// A memory node that has come back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Return {
    /// The memory node.
    pub node: NodeId,
    /// Its current life.
    pub life: Life,
    /// Progress of its return.
    pub stage: Stage,
}

/// Progress of a memory node's return.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Stage {
    /// Still lost; the compute nodes that have found it.
    Found(Vec<NodeId>),
    /// Getting every write; the shards copied until now.
    Joining(Copied),
    /// Complete: no shard is missing.
    Whole,
}

/// Role of a memory node's process, judged by the lent memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryPart {
    /// Its memory is in use, or new.
    InUse,
    /// An earlier process was given up: this process waits to be taken in, with new memory.
    Awaited,
    /// Its memory was given up, and is never used again: the process is to end.
    GivenUp,
}

/// Set of shards copied to a memory node since its joining.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Box<[u64]>", into = "Box<[u64]>")]
pub struct Copied(pub(super) Box<[u64; Self::WORDS]>);

impl TryFrom<Box<[u64]>> for Copied {
    type Error = &'static str;

    fn try_from(words: Box<[u64]>) -> Result<Self, Self::Error> {
        words.try_into().map(Self).map_err(|_| "a set of shards has a bit for each")
    }
}

impl From<Copied> for Box<[u64]> {
    fn from(copied: Copied) -> Self {
        copied.0
    }
}

impl Copied {
    pub(super) const WORDS: usize = ShardId::COUNT as usize / u64::BITS as usize;

    /// The empty set.
    pub fn none() -> Self {
        Self(Box::new([0; Self::WORDS]))
    }

    fn bit(shard: ShardId) -> (usize, u64) {
        let number = usize::from(shard.raw());
        (number / u64::BITS as usize, 1 << (number % u64::BITS as usize))
    }

    /// Whether the set contains a shard.
    pub fn contains(&self, shard: ShardId) -> bool {
        let (word, bit) = Self::bit(shard);
        self.0[word] & bit != 0
    }

    /// Number of shards in the set.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Adds a shard.
    pub fn add(&mut self, shard: ShardId) {
        let (word, bit) = Self::bit(shard);
        self.0[word] |= bit;
    }
}

/// Shards that have a copy on a memory node by the cluster's first placement.
pub fn shards_on(node: NodeId, first: &Placement) -> impl Iterator<Item = ShardId> {
    let has = move |shard: &ShardId| {
        let members = first.replicas(first.group_of(*shard)).members();
        members.iter().any(|member| member.node == node)
    };
    ShardId::all().filter(has)
}

impl Membership {
    /// Memory nodes that were lost and have come back.
    pub fn returns(&self) -> &[Return] {
        &self.returns
    }

    /// Returning memory nodes that are being filled.
    pub fn joining(&self) -> impl Iterator<Item = &Return> {
        self.returns.iter().filter(|one| matches!(one.stage, Stage::Joining(_)))
    }

    /// Life of a memory node in use, if not the first life. `None` also for a lost memory node.
    pub fn life_of(&self, node: NodeId) -> Option<Life> {
        let used = |one: &&Return| one.node == node && !matches!(one.stage, Stage::Found(_));
        self.returns.iter().find(used).map(|one| one.life)
    }

    /// Epoch that began with the loss of a memory node, if lost.
    pub fn loss_of(&self, node: NodeId) -> Option<Epoch> {
        self.lost.iter().find(|lost| lost.node == node).map(|lost| lost.since)
    }

    /// Role of a memory node's process. `own_after` is an epoch read by the process *after* lending
    /// memory; `None` if the process lends no memory, or cannot tell. A loss beginning after
    /// `own_after` is a loss of this process's memory, an earlier loss a loss of its predecessor's
    /// (I347).
    pub fn part_of(&self, node: NodeId, own_after: Option<Epoch>) -> MemoryPart {
        match self.loss_of(node) {
            None => MemoryPart::InUse,
            Some(since) if own_after.is_some_and(|own| own < since) => MemoryPart::GivenUp,
            Some(_) => MemoryPart::Awaited,
        }
    }

    /// Epoch of a memory node's loss, if its memory may be made ready for use again (I133): no live
    /// node uses it by an earlier placement, every expelled node is resolved, and no table is being
    /// [cleared](super::clearing). `None` otherwise.
    pub fn awaited(&self, node: NodeId) -> Option<Epoch> {
        self.loss_of(node).filter(|_| self.may_resume() && self.clearing.is_none())
    }

    /// Records that `by` reaches a lost memory node and reads `life` in its memory; the report of
    /// the last live node makes it join. `None` if nothing changes, or if the life did not begin
    /// after the loss.
    #[must_use]
    pub fn found(&self, by: NodeId, node: NodeId, life: Life) -> Option<Self> {
        let since = self.awaited(node)?;
        if !self.is_live(by) || !life.is_since(since) {
            return None;
        }
        let mut next = self.clone();
        let place = next.returns.iter().position(|one| one.node == node);
        let place = place.unwrap_or_else(|| {
            next.returns.push(Return { node, life, stage: Stage::Found(Vec::new()) });
            next.returns.len() - 1
        });
        let one = &mut next.returns[place];
        if one.life != life {
            // Nodes that found another life must look again.
            (one.life, one.stage) = (life, Stage::Found(Vec::new()));
        }
        let Stage::Found(finders) = &mut one.stage else { return None };
        if !finders.contains(&by) {
            finders.push(by);
        }
        let all = self.live().all(|member| finders.contains(&member.node));
        if all {
            one.stage = Stage::Joining(Copied::none());
            next.lost.retain(|lost| lost.node != node);
            next.change_placement();
        }
        (next != *self).then_some(next)
    }

    /// Records that `by` has copied `shards` to this life of a memory node. With the last shard the
    /// node becomes whole. `None` if nothing changes.
    #[must_use]
    pub fn copied(
        &self,
        by: NodeId,
        node: NodeId,
        life: Life,
        shards: &[ShardId],
        first: &Placement,
    ) -> Option<Self> {
        let mut next = self.clone();
        let live = self.is_live(by);
        let mine = |one: &&mut Return| one.node == node && one.life == life;
        let one = next.returns.iter_mut().find(mine).filter(|_| live)?;
        let Stage::Joining(copied) = &mut one.stage else { return None };
        shards.iter().for_each(|shard| copied.add(*shard));
        if shards_on(node, first).all(|shard| copied.contains(shard)) {
            one.stage = Stage::Whole;
            next.change_placement();
        }
        (next != *self).then_some(next)
    }
}
