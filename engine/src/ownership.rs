//! Who owns which shard: one word for each in the memory pool, and every node's copy of them
//! (LOTUS §4.2, H19).
//!
//! # What it is
//! The words stand in the header of the first group's region, on all of its replicas
//! ([`OWNERS_OFFSET`]). The primary's decide: a shard changes hands by one compare-and-swap there
//! ([`Coordinator::give`]). The backups' follow before anybody is told, so that whoever serves a
//! shard does so by a word that outlives a memory node.
//!
//! # Who may change a word
//! A live owner's own node alone, once nobody holds a lock of the shard any more
//! ([`crate::hand_over`]). An owner that has been expelled is replaced by the shard's heir
//! ([`crate::members`]), when nobody can still act on what it had granted (H4). So nothing that
//! happens to shards waits for the authority, and yet the authority is above the words: an owner
//! that it has expelled is none, whatever its words say. A node that knows of the expulsion takes
//! no such word in ([`ComputeNode::learn`]).
//!
//! # How others learn
//! By being refused: whoever is asked for a lock of a shard that is not its own says who has it.
//! By a word that counts the changes, which every node reads with the horizon; when it has moved,
//! the node reads all owners. It also does so now and then without being moved, because who changes
//! an owner may die before it has counted. A new owner is told by the old one.
//!
//! What is learned late, twice or out of order does no harm: the later epoch counts, and it never
//! comes back.

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

/// Whose header has the words.
pub(crate) const OWNERS_GROUP: GroupId = GroupId(0);
/// How many words are swapped in one batch.
const SWAPS_AT_ONCE: usize = 256;

/// How many READs bring the words of all shards.
const READS: usize = ShardId::COUNT as usize * WORD_BYTES / MAX_VERB_BYTES;

const _: () = assert!(READS * MAX_VERB_BYTES == ShardId::COUNT as usize * WORD_BYTES);

/// How long a failed verb waits before it is tried again.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// A shard that is to change hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Transfer {
    pub(crate) shard: ShardId,
    pub(crate) from: Owner,
    pub(crate) to: Owner,
}

impl Transfer {
    /// `None` if the shard has been moved as often as it can be.
    pub(crate) fn new(shard: ShardId, from: Owner, to: NodeId) -> Option<Self> {
        from.next(to).map(|to| Self { shard, from, to })
    }
}

/// This node has been fenced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fenced;

/// Why something is not tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Halted {
    /// This node has been fenced.
    Fenced,
    /// A memory node did not answer, and is lost.
    Left,
}

fn word_of(replica: Replica, shard: ShardId) -> RemoteAddr {
    replica.at(OWNERS_OFFSET + u64::from(shard.raw()) * WORD_BYTES as u64)
}

impl Shared {
    /// Puts the words of the first split into a batch that formats memory.
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

/// Who owns every shard, by the words.
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
    /// Takes note that `owner` has `shard`, if that is news; nobody has it if its owner is known to
    /// be out.
    pub(crate) fn learn(&self, shard: ShardId, owner: Owner) {
        if self.shards.owner(shard).epoch >= owner.epoch {
            return;
        }
        // No expulsion can be noted between the question and the answer.
        self.members.with_expelled(|expelled| {
            let out = expelled.iter().any(|(node, _)| *node == owner.node);
            let node = if out { NOBODY } else { owner.node };
            self.shards.learn(shard, Owner { node, ..owner });
            self.routes.learn(shard, Owner { node, ..owner });
        });
    }

    /// Whether it knows the owners of all shards.
    pub(crate) fn knows_all_owners(&self) -> bool {
        ShardId::all().all(|shard| self.shards.owner(shard).node != NOBODY)
    }
}

impl Coordinator {
    /// Reads who owns what, and tells the node and `hear`. Allocates nothing: it runs now and then
    /// beside transactions.
    pub(crate) async fn refresh_owners(
        &self,
        mut hear: impl FnMut(ShardId, Owner),
    ) -> Result<(), Fenced> {
        let (done, buffers) = loop {
            let placed = self.configuration.placed();
            let read = |batch: &mut Batch| read_words(batch, self.primary(OWNERS_GROUP));
            let (done, buffers) = self.insist(read).await?;
            // What a memory node said that was lost meanwhile is not what others go by.
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

    /// Lets shards change hands, all at once; whether each did, or had done so already. The node
    /// knows the outcome.
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

    /// Lets a backup's words follow, from wherever they are: their movers may have died.
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

    /// Swaps words of the primary, whichever that is when it is done.
    async fn swap_primary(&self, wanted: &[(Transfer, Owner)]) -> Result<Vec<Owner>, Fenced> {
        loop {
            let primary = self.primary(OWNERS_GROUP);
            let found = self.swap(primary, wanted).await?;
            if let Some(found) = found.filter(|_| primary == self.primary(OWNERS_GROUP)) {
                return Ok(found);
            }
        }
    }

    /// Swaps words that hold what is expected; what each holds afterwards. `None` if the memory
    /// node is lost.
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

    /// Who owns every shard, by the words of one copy; `None` if its memory node is lost.
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

    /// Posts what `add` puts into a batch, again and again until every verb has taken effect; each
    /// must be one that may be repeated, and go where the placement says at that moment. What `add`
    /// has returned names what was read.
    pub(crate) async fn insist<T>(
        &self,
        add: impl Fn(&mut Batch) -> T,
    ) -> Result<(Completed, T), Fenced> {
        loop {
            match self.insist_here(&add).await {
                Ok(done) => return Ok(done),
                Err(Halted::Fenced) => return Err(Fenced),
                // Whatever takes its place.
                Err(Halted::Left) => {}
            }
        }
    }

    /// As [`Self::insist`], until a memory node that does not answer is lost: also if it is back
    /// before anybody looks, with empty memory.
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
