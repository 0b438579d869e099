//! Shard ownership: one word per shard in the memory pool, and every node's copy of the words
//! (LOTUS §4.2, H19).
//!
//! # What it is
//! The words are in the header of the first group's region, on all of the group's replicas
//! ([`OWNERS_OFFSET`]). The primary's words decide: a shard changes hands by a compare-and-swap on
//! the primary ([`Coordinator::give`]). The backups' words follow before any node learns of the
//! change, so a node serves a shard only by a word that outlives the loss of a memory node.
//!
//! # Changing a word
//! Only a live owner's own node changes its words, once no transaction holds a lock of the shard
//! any more ([`crate::shards::hand_over`]). An expelled owner is replaced by the shard's heir
//! ([`crate::membership::members`]), when no node can still act on locks granted by that owner
//! (H4). So changes of shards never wait for the authority, and yet the authority is above the
//! words: an owner expelled by the authority is no owner, regardless of its words. A node that
//! knows of the expulsion ignores such words
//! ([`ComputeNode::learn`](crate::node::shared::ComputeNode::learn)).
//!
//! # How others learn
//! A node asked for a lock of a foreign shard answers with the owner. A word in the header counts
//! the changes, and every node reads the count with the horizon; when the count has moved, the node
//! reads all owners. A node also reads all owners now and then with the count unchanged, because a
//! node that changes an owner may die before counting. The old owner tells the new owner.
//!
//! Learning late, twice or out of order does no harm: the later epoch counts, and epochs are never
//! reused.

use lotus_fabric::ids::{NodeId, RemoteAddr, ShardId};
use lotus_fabric::lane::{Batch, BatchError, Lane};
use lotus_fabric::verbs::{Buffer, MAX_VERB_BYTES};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::{CHANGES_OFFSET, OWNERS_OFFSET};
use lotus_points::point;
use lotus_router::{GroupId, Owner, Placement, Replica};

use crate::node::coordinator::Coordinator;
use crate::node::shared::Shared;
use crate::node::verbs::{Fenced, Halted};

/// Group with the owners' words in its header.
pub(crate) const OWNERS_GROUP: GroupId = GroupId(0);
/// Most words swapped in one batch.
const SWAPS_AT_ONCE: usize = 256;

/// READs for the words of all shards.
const READS: usize = ShardId::COUNT as usize * WORD_BYTES / MAX_VERB_BYTES;

const _: () = assert!(READS * MAX_VERB_BYTES == ShardId::COUNT as usize * WORD_BYTES);

/// Change of a shard's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Transfer {
    pub(crate) shard: ShardId,
    pub(crate) from: Owner,
    pub(crate) to: Owner,
}

impl Transfer {
    /// Creates the change to the next epoch; `None` if the epochs are used up.
    pub(crate) fn new(shard: ShardId, from: Owner, to: NodeId) -> Option<Self> {
        from.next(to).map(|to| Self { shard, from, to })
    }
}

fn word_of(replica: Replica, shard: ShardId) -> RemoteAddr {
    replica.at(OWNERS_OFFSET + u64::from(shard.raw()) * WORD_BYTES as u64)
}

impl Shared {
    /// Adds the words of the initial split to a batch that formats memory.
    pub(crate) fn write_first_owners(&self, batch: &mut Batch) {
        let owners: Vec<Owner> = ShardId::all().map(|shard| self.shards.owner(shard)).collect();
        for replica in self.placement.replicas(OWNERS_GROUP).members() {
            write_owners(batch, *replica, &owners);
        }
    }
}

/// Adds WRITEs of the words of all shards on one copy.
pub(crate) fn write_owners(batch: &mut Batch, replica: Replica, owners: &[Owner]) {
    debug_assert_eq!(
        owners.len(),
        usize::from(ShardId::COUNT),
        "I46: each shard has an owner's word"
    );
    let all: Vec<(ShardId, &Owner)> = ShardId::all().zip(owners).collect();
    for some in all.chunks(MAX_VERB_BYTES / WORD_BYTES) {
        let staged = batch.stage(some.len() * WORD_BYTES);
        for (word, (_, owner)) in batch.words_mut(staged).iter_mut().zip(some) {
            *word = owner.to_word();
        }
        batch.write(word_of(replica, some[0].0), staged);
    }
}

/// Reads the owners of all shards from the primary's words.
pub(crate) async fn read_owners(
    lane: &Lane,
    placement: &Placement,
) -> Result<Vec<Owner>, BatchError> {
    let primary = placement.replicas(OWNERS_GROUP).primary();
    let mut batch = lane.batch();
    let pieces = read_words(&mut batch, primary);
    let done = batch.post().await?;
    let words = pieces.iter().flat_map(|piece| done.words(*piece));
    Ok(words.map(|word| Owner::from_word(*word)).collect())
}

fn read_words(batch: &mut Batch, primary: Replica) -> [Buffer; READS] {
    std::array::from_fn(|piece| {
        let offset = OWNERS_OFFSET + (piece * MAX_VERB_BYTES) as u64;
        batch.read(primary.at(offset), MAX_VERB_BYTES)
    })
}

impl Coordinator {
    /// Reads the owners of all shards, and passes them to the node and to `hear`. Does not
    /// allocate, since it runs periodically beside transactions.
    pub(crate) async fn refresh_owners(
        &self,
        mut hear: impl FnMut(ShardId, Owner),
    ) -> Result<(), Fenced> {
        let (done, buffers) = loop {
            let placed = self.configuration.placed();
            let read = |batch: &mut Batch| read_words(batch, self.primary(OWNERS_GROUP));
            let (done, buffers) = self.insist(read).await?;
            // If the memory node was lost meanwhile, its words no longer count.
            if placed == self.configuration.placed() {
                break (done, buffers);
            }
        };
        let words = buffers.iter().flat_map(|buffer| done.words(*buffer));
        for (shard, word) in ShardId::all().zip(words) {
            let owner = Owner::from_word(*word);
            self.node.learn(shard, owner);
            hear(shard, owner);
        }
        Ok(())
    }

    /// Changes the owners of shards, all at once. Returns for each shard whether the wanted change
    /// has happened, now or before. The node learns the outcome.
    pub(crate) async fn give(&self, transfers: &[Transfer]) -> Result<Vec<bool>, Fenced> {
        debug_assert!(
            transfers.iter().all(|one| one.from.epoch < one.to.epoch),
            "I46: a shard's epoch rises with every owner"
        );
        let mut given = Vec::new();
        for some in transfers.chunks(SWAPS_AT_ONCE) {
            let wanted: Vec<_> = some.iter().map(|one| (*one, one.from)).collect();
            let found = self.swap_primary(&wanted).await?;
            let done: Vec<_> = found.iter().zip(some).map(|(now, to)| *now == to.to).collect();
            let replicas = self.replicas(OWNERS_GROUP);
            let (me, copies) = (self.node.id.0, replicas.members().len());
            point!(me, OwnersSwapped, 0, copies);
            for (place, backup) in (1..).zip(replicas.backups()) {
                let agreed = some.iter().zip(&done).filter(|(_, done)| **done);
                self.raise(*backup, agreed.map(|(transfer, _)| *transfer).collect()).await?;
                point!(me, OwnersSwapped, place, copies);
            }
            for (transfer, now) in some.iter().zip(found) {
                self.node.learn(transfer.shard, now);
            }
            given.extend(done);
        }
        debug_assert_eq!(
            given.len(),
            transfers.len(),
            "I46: each change of an owner has an outcome"
        );
        let changes = || self.primary(OWNERS_GROUP).at(CHANGES_OFFSET);
        self.insist(|batch| batch.fetch_and_add(changes(), 1)).await?;
        Ok(given)
    }

    /// Raises a backup's words to the values in `transfers`, from any earlier value: earlier movers
    /// may have died.
    pub(crate) async fn raise(
        &self,
        backup: Replica,
        transfers: Vec<Transfer>,
    ) -> Result<(), Fenced> {
        let mut wanted: Vec<_> = transfers.iter().map(|one| (*one, one.from)).collect();
        while !wanted.is_empty() {
            let Some(found) = self.swap(backup, &wanted).await? else { return Ok(()) };
            let behind = |(now, transfer): (Owner, Transfer)| {
                (now.epoch < transfer.to.epoch).then_some((transfer, now))
            };
            wanted = found
                .into_iter()
                .zip(wanted.into_iter().map(|one| one.0))
                .filter_map(behind)
                .collect();
        }
        Ok(())
    }

    /// Swaps words of the primary; repeats if the primary has changed by then.
    async fn swap_primary(&self, wanted: &[(Transfer, Owner)]) -> Result<Vec<Owner>, Fenced> {
        loop {
            let primary = self.primary(OWNERS_GROUP);
            let found = self.swap(primary, wanted).await?;
            if let Some(found) = found.filter(|_| primary == self.primary(OWNERS_GROUP)) {
                return Ok(found);
            }
        }
    }

    /// Swaps words that hold the expected owner; returns the owners held afterwards. `None` if the
    /// memory node is lost.
    async fn swap(
        &self,
        replica: Replica,
        wanted: &[(Transfer, Owner)],
    ) -> Result<Option<Vec<Owner>>, Fenced> {
        debug_assert!(
            wanted.iter().all(|(change, expected)| expected.epoch < change.to.epoch),
            "I46: an owner's word never goes back"
        );
        let swap_all = |batch: &mut Batch| -> Vec<Buffer> {
            let swap = |(Transfer { shard, to, .. }, expected): &(Transfer, Owner)| {
                batch.compare_and_swap(word_of(replica, *shard), expected.to_word(), to.to_word())
            };
            wanted.iter().map(swap).collect()
        };
        let (done, buffers) = match self.insist_here(swap_all).await {
            Ok(swapped) => swapped,
            Err(Halted::Left) => return Ok(None),
            Err(Halted::Fenced) => return Err(Fenced),
        };
        let held = wanted.iter().zip(buffers).map(|((transfer, expected), buffer)| {
            let found = Owner::from_word(done.words(buffer)[0]);
            if found == *expected { transfer.to } else { found }
        });
        Ok(Some(held.collect()))
    }

    /// Reads the owners of all shards from one copy; `None` if its memory node is lost.
    pub(crate) async fn read_owners_of(
        &self,
        replica: Replica,
    ) -> Result<Option<Vec<Owner>>, Fenced> {
        match self.insist_here(|batch| read_words(batch, replica)).await {
            Ok((done, buffers)) => {
                let words = buffers.iter().flat_map(|buffer| done.words(*buffer));
                Ok(Some(words.map(|word| Owner::from_word(*word)).collect()))
            }
            Err(Halted::Left) => Ok(None),
            Err(Halted::Fenced) => Err(Fenced),
        }
    }
}

/// Most owners' words swapped in one batch: compare-and-swaps are the slowest verbs of memory
/// nodes, and other verbs, including beats, queue behind them.
pub(crate) const ADOPTED_AT_ONCE: usize = 16;
