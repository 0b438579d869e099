//! Memory nodes that were lost and come back with empty memory.
//!
//! # The life of one that returns
//! 1. One compute node readies its memory and writes a [`Life`] into it, a number that nobody else
//!    has. Whoever reaches it, and reads that number there, [says so](Membership::found).
//! 2. When all who take part do, it *joins*: the epoch grows, and everybody stops, finishes and
//!    resumes as after a loss. From then on it gets every write, and is no copy yet: nobody reads
//!    from it, nobody is told of a commit for its sake, and it does not count where the last copy
//!    is looked for.
//! 3. Shard by shard it is [filled](Membership::copied).
//! 4. When it has every shard that it is to have, it is *whole*: the epoch grows once more, and
//!    everybody turns to the placement in which it has the place that it had at first.
//!
//! It may be lost at any time, and is then what it was before step 1.
//!
//! # Which life it is
//! What comes back may be the memory of old, behind a process that was silent for long. Nothing in
//! that may ever be used: others have written since. A life is made after a loss, and the loss
//! comes after every life before it; so [`Life::is_since`] tells them apart. The first life, with
//! which the cluster began, has no number.

use lotus_fabric::ids::{Epoch, NodeId, ShardId};
use lotus_router::Placement;

use super::Membership;

/// One life of a memory node: the epoch in which its memory was made ready, and a random number.
/// As a word it is never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life(u64);

impl Life {
    /// One that begins in `epoch`; `random` tells it from others that do.
    pub fn new(epoch: Epoch, random: u32) -> Self {
        Self(u64::from(epoch.0) << 32 | u64::from(random))
    }

    /// The life that this word names; `None` for the first one's, which is 0.
    pub fn from_word(word: u64) -> Option<Self> {
        (word >> 32 != 0).then_some(Self(word))
    }

    /// Its word.
    pub fn word(self) -> u64 {
        self.0
    }

    /// Whether it began after a loss that began this epoch.
    pub fn is_since(self, lost: Epoch) -> bool {
        self.0 >> 32 >= u64::from(lost.0)
    }
}

/// A memory node that has come back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Return {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub life: Life,
    /// How far it has come.
    pub stage: Stage,
}

/// How far a memory node has come that is back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stage {
    /// These reach it. It is still lost.
    Found(Vec<NodeId>),
    /// It gets every write, and what it missed is copied.
    Joining(Copied),
    /// It has all that it is to have.
    Whole,
}

/// Which shards a memory node has been given since it joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copied(pub(super) Box<[u64; Self::WORDS]>);

impl Copied {
    pub(super) const WORDS: usize = ShardId::COUNT as usize / u64::BITS as usize;

    /// None of them.
    pub fn none() -> Self {
        Self(Box::new([0; Self::WORDS]))
    }

    fn bit(shard: ShardId) -> (usize, u64) {
        let number = usize::from(shard.raw());
        (number / u64::BITS as usize, 1 << (number % u64::BITS as usize))
    }

    /// Whether this shard is among them.
    pub fn contains(&self, shard: ShardId) -> bool {
        let (word, bit) = Self::bit(shard);
        self.0[word] & bit != 0
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// This one as well.
    pub fn add(&mut self, shard: ShardId) {
        let (word, bit) = Self::bit(shard);
        self.0[word] |= bit;
    }
}

/// The shards that have a copy on a memory node, by the placement of the beginning.
pub fn shards_on(node: NodeId, first: &Placement) -> impl Iterator<Item = ShardId> {
    let has = move |shard: &ShardId| {
        let members = first.replicas(first.group_of(*shard)).members();
        members.iter().any(|member| member.node == node)
    };
    ShardId::all().filter(has)
}

impl Membership {
    /// The memory nodes that have been lost and come back.
    pub fn returns(&self) -> &[Return] {
        &self.returns
    }

    /// Those that are being filled.
    pub fn joining(&self) -> impl Iterator<Item = &Return> {
        self.returns.iter().filter(|one| matches!(one.stage, Stage::Joining(_)))
    }

    /// Which life of a memory node is in use, if not its first. `None` of one that is lost, too.
    pub fn life_of(&self, node: NodeId) -> Option<Life> {
        let used = |one: &&Return| one.node == node && !matches!(one.stage, Stage::Found(_));
        self.returns.iter().find(used).map(|one| one.life)
    }

    /// Since when a memory node is lost, if it may be made ready to be used again: nobody who takes
    /// part uses it by a placement of before its loss, and of nobody who is out anything is in
    /// doubt.
    pub fn awaited(&self, node: NodeId) -> Option<Epoch> {
        let lost = self.lost.iter().find(|lost| lost.node == node)?;
        self.may_resume().then_some(lost.since)
    }

    /// `by` reaches a memory node that is lost, and reads this life there. `None` if that is
    /// nothing new, or no life since the loss.
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
            // Who had found another one has to look again.
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

    /// `by` has filled this life of a memory node with these shards. With the last one it is whole.
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
