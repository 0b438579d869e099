//! Shard ownership: one word for each shard in the memory pool, and every node's copy of the words
//! (LOTUS §4.2, H19).
//!
//! # What it is
//! The words stand in the header of the first group's region, on all of its replicas
//! ([`OWNERS_OFFSET`]). The primary's decide: a shard changes hands by one compare-and-swap there
//! ([`Coordinator::give`]). The backups' follow before any node learns of it, so a node serves a
//! shard only by a word that outlives a memory node.
//!
//! # Changing a word
//! A live owner's own node alone, once no transaction holds a lock of the shard any more
//! ([`crate::hand_over`]). An owner that has been expelled is replaced by the shard's heir
//! ([`crate::members`]), when no node can still act on what it had granted (H4). So nothing that
//! happens to shards waits for the authority, and yet the authority is above the words: an owner
//! that it has expelled is none, whatever its words say. A node that knows of the expulsion ignores
//! such words ([`ComputeNode::learn`]).
//!
//! # How others learn
//! A node that is asked for a lock of a shard it does not own answers with the owner. A word in the
//! header counts the changes, and every node reads it with the horizon; when the count has moved,
//! the node reads all owners. It also does so now and then with the count unchanged, because a node
//! that changes an owner may die before it has counted. A new owner is told by the old one.
//!
//! Learning late, twice or out of order does no harm: the later epoch counts, and epochs are never
//! reused.

use std::time::Duration;

use lotus_fabric::ids::{NodeId, RemoteAddr, ShardId};
use lotus_fabric::lane::{Batch, BatchError, Completed, Lane};
use lotus_fabric::verbs::{Buffer, MAX_VERB_BYTES, VerbError};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::{CHANGES_OFFSET, OWNERS_OFFSET};
use lotus_points::{point, posted};
use lotus_router::{GroupId, NOBODY, Owner, Placement, Replica};

use crate::coordinator::Coordinator;
use crate::shared::{ComputeNode, Shared};

/// Group with the owners' words in its header.
pub(crate) const OWNERS_GROUP: GroupId = GroupId(0);
/// Most words swapped in one batch.
const SWAPS_AT_ONCE: usize = 256;

/// READs for the words of all shards.
const READS: usize = ShardId::COUNT as usize * WORD_BYTES / MAX_VERB_BYTES;

const _: () = assert!(READS * MAX_VERB_BYTES == ShardId::COUNT as usize * WORD_BYTES);

/// Pause before a failed verb is tried again.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(1);

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

/// Error of a node that has been fenced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fenced;

/// Reason why a batch is not repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Halted {
    /// A fence has refused this node.
    Fenced,
    /// A memory node did not answer, and is lost.
    Left,
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

impl ComputeNode {
    /// Learns that `owner` has `shard`, unless a later epoch is known. An owner known to be
    /// expelled counts as none.
    pub(crate) fn learn(&self, shard: ShardId, owner: Owner) {
        if self.shards.owner(shard).epoch >= owner.epoch {
            return;
        }
        // Hold the list of expelled nodes, so that no expulsion is noted between check and update.
        self.members.with_expelled(|expelled| {
            let out = expelled.iter().any(|(node, _)| *node == owner.node);
            let node = if out { NOBODY } else { owner.node };
            self.shards.learn(shard, Owner { node, ..owner });
            self.routes.learn(shard, Owner { node, ..owner });
        });
    }

    /// Whether this node knows an owner of every shard.
    pub(crate) fn knows_all_owners(&self) -> bool {
        ShardId::all().all(|shard| self.shards.owner(shard).node != NOBODY)
    }
}

impl Coordinator {
    /// Reads the owners of all shards, and passes them to the node and to `hear`. Allocates
    /// nothing, since it runs now and then beside transactions.
    pub(crate) async fn refresh_owners(
        &self,
        mut hear: impl FnMut(ShardId, Owner),
    ) -> Result<(), Fenced> {
        let (done, buffers) = loop {
            let placed = self.configuration.placed();
            let read = |batch: &mut Batch| read_words(batch, self.primary(OWNERS_GROUP));
            let (done, buffers) = self.insist(read).await?;
            // If the memory node was lost meanwhile, others do not go by its words.
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

    /// Changes the owners of shards, all at once. Returns for each whether it has changed as
    /// wanted, now or before. The node learns the outcome.
    pub(crate) async fn give(&self, transfers: &[Transfer]) -> Result<Vec<bool>, Fenced> {
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
        let changes = || self.primary(OWNERS_GROUP).at(CHANGES_OFFSET);
        self.insist(|batch| batch.fetch_and_add(changes(), 1)).await?;
        Ok(given)
    }

    /// Raises a backup's words to those of `transfers`, whatever they are: earlier movers may have
    /// died.
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

    /// Swaps words of the primary; again, if another copy is the primary by then.
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

    /// Repeats the batch that `add` fills until every verb has taken effect. The verbs must be
    /// repeatable, and `add` must follow the placement of the moment. Returns the completed batch
    /// and the result of `add`, which names the buffers read.
    pub(crate) async fn insist<T>(
        &self,
        add: impl Fn(&mut Batch) -> T,
    ) -> Result<(Completed, T), Fenced> {
        loop {
            match self.insist_here(&add).await {
                Ok(done) => return Ok(done),
                Err(Halted::Fenced) => return Err(Fenced),
                // Try again with the node that takes its place.
                Err(Halted::Left) => {}
            }
        }
    }

    /// As [`Self::insist`], but returns [`Halted::Left`] once a memory node that does not answer is
    /// lost, even if that node is back already, with empty memory.
    pub(crate) async fn insist_here<T>(
        &self,
        add: impl Fn(&mut Batch) -> T,
    ) -> Result<(Completed, T), Halted> {
        let placed = self.configuration.placed();
        loop {
            let mut batch = self.lane.batch();
            let added = add(&mut batch);
            let error = match posted!(batch.post()) {
                Ok(done) => return Ok((done, added)),
                Err(error) => error,
            };
            for failure in error.failures() {
                let mut outcome = Err(failure.error);
                loop {
                    if outcome == Err(VerbError::Revoked) || self.node.has_failed() {
                        return Err(Halted::Fenced);
                    }
                    if self.has_left_since(failure.node, placed) {
                        return Err(Halted::Left);
                    }
                    if outcome.is_ok() {
                        break;
                    }
                    self.executor.sleep(RETRY_PAUSE).await;
                    outcome = self.reconnect(failure.node).await;
                }
            }
        }
    }
}
