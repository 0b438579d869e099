//! Fills a joined memory node with the data missed during its absence, while transactions run
//! (H23).
//!
//! # What it is
//! Each coordinator fills its share of the shards owned by the node, a few at once, in the slot
//! that also purges. Filling goes through the buckets of the index: a *piece* is a few chains of
//! these shards, with the records named by the chains.
//!
//! # A piece
//! 1. Read the chains, to learn their rows.
//! 2. Lock the chains' buckets and rows for reading: now no transaction inserts, writes or purges
//!    in the piece, and no write of an expelled node is in doubt.
//! 3. Read chains and records again, from the primary.
//! 4. Write the piece to the joining node, the way a commit writes: whatever happens to this node's
//!    coordinators, its locks are not released before the write has ended (H4).
//! 5. Read the piece back, and write it again if the bytes differ.
//! 6. Release the locks.
//!
//! Later writes go to the joining node, too; earlier writes are in the piece. So a piece may be
//! filled twice, or by two nodes at once, and if a shard's owner is lost half-way its heir begins
//! anew.
//!
//! # Data outside of rows
//! The directory of slabs only gains entries, and new entries are written to the joining node, too:
//! older entries are added by compare-and-swap. The purge time only grows, and is raised on every
//! replica. Both are filled with the group's first shard, once transactions run again. Owners'
//! words are raised before that ([`crate::memory_nodes::changes`]). Logs begin empty: the
//! transactions in the old logs are settled.
//!
//! # Data that is not copied
//! Versions displaced from the CVTs. A reader that looks for such a version on a newly made copy
//! finds no record with the right checksum, and gets `SnapshotTooOld`. Slots that no version names
//! may differ from copy to copy afterwards.
//!
//! # Pace
//! Every coordinator fills one piece at a time, followed by a pause as long. After a conflict with
//! writers the next piece is half as large, down to one chain.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use lotus_fabric::ids::{Key, NodeId, ShardId};
use lotus_fabric::lane::Batch;
use lotus_fabric::verbs::{Buffer, MAX_VERB_BYTES};
use lotus_locktable::LockKey;
use lotus_mvcc::TableDef;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::bucket::Bucket;
use lotus_mvcc::layout::cvt::{Slot as CvtSlot, Version};
use lotus_mvcc::layout::region::{CURSOR_OFFSET, PURGE_TIME_OFFSET, RegionLayout};
use lotus_recovery::membership::Membership;
use lotus_recovery::membership::returns::{Life, Return, Stage, shards_on};
use lotus_router::{GroupId, Replica};
use lotus_sabotage::{Rule, broken};

use crate::api::error::TxnError;
use crate::api::isolation::Isolation;
use crate::node::coordinator::Coordinator;
use crate::node::verbs::Halted;
use crate::txn::piece::{GroupWords, Piece, copy_on};
use crate::txn::session::Session;

/// Limit of the chains in a piece, and of the shards that are filled at once.
const CHAINS: u64 = 8;
/// Number of words read, or verbs posted, in one batch.
const AT_ONCE: usize = 64;

/// Filling progress of one coordinator.
#[derive(Default)]
pub(crate) struct Filler {
    /// Lives of the joining memory nodes.
    lives: Vec<Life>,
    /// All tables. No table is created while a memory node is being filled.
    tables: Rc<[Arc<TableDef>]>,
    /// Shards being filled, if any.
    at: Option<Filling>,
}

/// Shards being filled, and the progress.
struct Filling {
    node: NodeId,
    life: Life,
    shards: Vec<ShardId>,
    /// Whether data outside of rows is filled, if a shard here is the first of its group.
    begun: bool,
    /// Index of the current table, and the number of its filled chains: the first chains of all
    /// shards, then the second chains.
    table: usize,
    filled: u64,
    /// Number of chains to lock at once.
    at_once: u64,
}

impl Coordinator {
    /// Enters the shards filled by this node in the membership, in a separate task.
    pub(crate) fn report_filled(self: &Rc<Self>, now: &Membership) {
        self.node.filled.keep(|life| now.joining().any(|one| one.life == life));
        for Return { node, life, stage } in now.joining() {
            let filled = self.node.filled.of(*life);
            let Stage::Joining(copied) = stage else { continue };
            let news: Vec<ShardId> = ShardId::all()
                .filter(|shard| filled.contains(*shard) && !copied.contains(*shard))
                .collect();
            if news.is_empty() {
                continue;
            }
            let (of, me, node, life) = (Rc::clone(self), self.node.id, *node, *life);
            self.executor.spawn(async move {
                let shared = Arc::clone(&of.shared);
                let say =
                    move |now: &Membership| now.copied(me, node, life, &news, &shared.placement);
                // Without an answer, the next turn reports again.
                if let Ok(outcome) = of.change(say).await {
                    of.shared.learn_membership(&of.node, &outcome.membership());
                }
            });
        }
    }

    /// Next shards for this coordinator to fill. Shards that no table uses count as filled at once.
    fn next_to_fill(&self, tables: &[Arc<TableDef>]) -> Option<Filling> {
        let returns = self.node.configuration.returns();
        for Return { node, life, stage } in returns.iter() {
            let Stage::Joining(copied) = stage else { continue };
            if self.configuration.life_of(*node) != Some(*life) {
                // The memory node has not joined yet, as far as this coordinator knows.
                continue;
            }
            let filled = self.node.filled.of(*life);
            let mine = |shard: &ShardId| {
                usize::from(shard.raw()) % self.shared.config.threads == self.thread
                    && self.node.shards.owner(*shard).node == self.node.id
            };
            let mut shards = Vec::new();
            for shard in shards_on(*node, &self.shared.placement).filter(mine) {
                if copied.contains(shard) || filled.contains(shard) {
                    continue;
                }
                if shards.len() as u64 == CHAINS {
                    break;
                }
                let has_rows = tables.iter().any(|table| has(table, shard));
                if has_rows || self.begins_group(shard) {
                    shards.push(shard);
                } else {
                    self.node.filled.add(*life, shard);
                }
            }
            if !shards.is_empty() {
                debug_assert!(
                    shards.len() as u64 <= CHAINS,
                    "I137: a piece has a chain of each shard"
                );
                let (node, life) = (*node, *life);
                let (table, filled, at_once) = (0, 0, CHAINS);
                return Some(Filling { node, life, shards, begun: false, table, filled, at_once });
            }
        }
        None
    }

    /// Whether a shard is the first of its group.
    fn begins_group(&self, shard: ShardId) -> bool {
        usize::from(shard.raw()) < self.shared.placement.group_count()
    }

    /// All tables of the cluster with memory: also dropped tables, because nodes without knowledge
    /// of the drop read and write their rows.
    async fn every_table(&self) -> Result<Rc<[Arc<TableDef>]>, TxnError> {
        if !self.shared.is_whole() && !self.shared.learn_tables_apart().await {
            return Err(TxnError::Timeout);
        }
        Ok(self.shared.all_tables_with_memory().into())
    }

    /// Fills the header page of a group's new copy: data outside of rows.
    async fn fill_header(&self, group: GroupId, to: Replica) -> Result<(), TxnError> {
        debug_assert!(
            self.configuration.life_of(to.node).is_some(),
            "I135: only a copy that is being made is filled"
        );
        let layout = &self.shared.region;
        let from = self.primary(group);
        let [magic, version, cursor, bytes] = layout.encode();
        let read = |batch: &mut Batch| batch.read(from.at(PURGE_TIME_OFFSET), WORD_BYTES);
        let time = self.insist_on(read).await?[0];
        let mut seen = 0;
        while seen < time {
            let swap =
                |batch: &mut Batch| batch.compare_and_swap(to.at(PURGE_TIME_OFFSET), seen, time);
            match self.insist_on(swap).await?[0] {
                found if found == seen => break,
                found => seen = found,
            }
        }
        self.insist_on(|batch| {
            batch.write_word(to.at(0), magic);
            batch.write_word(to.at(WORD_BYTES as u64), version);
            batch.write_word(to.at(3 * WORD_BYTES as u64), bytes);
            batch.compare_and_swap(to.at(CURSOR_OFFSET), 0, cursor)
        })
        .await?;
        let end = RegionLayout::directory_word(layout.end());
        let mut at = RegionLayout::directory_word(layout.first_slab());
        while at < end {
            let bytes = (end - at).min(MAX_VERB_BYTES as u64) as usize;
            let entries = self.insist_on(|batch| batch.read(from.at(at), bytes)).await?;
            let entered =
                (at..).step_by(WORD_BYTES).zip(&entries).filter(|(_, entry)| **entry != 0);
            for some in entered.collect::<Vec<_>>().chunks(AT_ONCE) {
                self.insist_on(|batch| {
                    let swap =
                        |(at, entry): &(u64, &u64)| batch.compare_and_swap(to.at(*at), 0, **entry);
                    some.iter().map(swap).last().expect("a chunk is not empty")
                })
                .await?;
            }
            at += bytes as u64;
        }
        Ok(())
    }

    /// Repeats a batch until it has taken effect; returns the words of the buffer from `add`.
    async fn insist_on(&self, add: impl Fn(&mut Batch) -> Buffer) -> Result<Vec<u64>, TxnError> {
        let (done, buffer) = self.insist_here(add).await.map_err(halted)?;
        Ok(done.words(buffer).to_vec())
    }
}

/// Whether a table has rows in a shard.
fn has(table: &TableDef, shard: ShardId) -> bool {
    u32::from(shard.raw()) < table.spec().shards
}

impl Filling {
    /// Whether this coordinator still has to fill these shards.
    fn is_current(&self, coordinator: &Coordinator) -> bool {
        let owner = |shard: &ShardId| coordinator.node.shards.owner(*shard).node;
        coordinator.configuration.life_of(self.node) == Some(self.life)
            && self.shards.iter().all(|shard| owner(shard) == coordinator.node.id)
    }

    /// Advances to a table with remaining chains; false if no table has any.
    fn seek_table(&mut self, tables: &[Arc<TableDef>]) -> bool {
        while tables.get(self.table).is_some_and(|table| self.next_piece(table).is_empty()) {
            (self.table, self.filled) = (self.table + 1, 0);
        }
        self.table < tables.len()
    }

    /// Next chains of this table to fill, as shard and chain number.
    fn next_piece(&self, table: &TableDef) -> Vec<(ShardId, u64)> {
        let shards: Vec<_> =
            self.shards.iter().copied().filter(|shard| has(table, *shard)).collect();
        let per_shard = table.geometry().shape().buckets_per_shard();
        chains_of(&shards, per_shard, self.filled, self.at_once)
    }

    /// Adapts the size of pieces after a conflict, or a success.
    fn adapt(&mut self, conflict: bool) {
        // Rows that are written all the time can only be locked in small pieces.
        self.at_once = if conflict { self.at_once / 2 } else { self.at_once * 2 }.clamp(1, CHAINS);
    }
}

/// Next chains of these shards after the first `filled` ones, at most `at_most`, as shard and chain
/// number. First chains of all shards come first, then the second chains.
fn chains_of(shards: &[ShardId], per_shard: u64, filled: u64, at_most: u64) -> Vec<(ShardId, u64)> {
    let count = shards.len() as u64;
    let next = filled..(count * per_shard).min(filled + at_most);
    next.map(|chain| (shards[(chain % count) as usize], chain / count)).collect()
}

impl Session {
    /// Fills the coordinator's next piece; false if no memory node is joining or the coordinator
    /// has no shard to fill.
    pub(crate) async fn fill(&mut self, filler: &mut Filler) -> bool {
        let coordinator = self.coordinator();
        if !coordinator.node.configuration.placement().is_joined() {
            if !filler.lives.is_empty() {
                // Only if set: filling runs beside transactions, which do not allocate.
                *filler = Filler::default();
            }
            return false;
        }
        let begun = coordinator.executor.now();
        if filler.at.as_ref().is_none_or(|filling| !filling.is_current(coordinator)) {
            filler.at = self.begin_to_fill(filler).await;
        }
        let Some(filling) = &mut filler.at else { return false };
        let filled = self.go_on(filling, &filler.tables).await;
        let coordinator = self.coordinator();
        match filled {
            Ok(true) => {}
            Ok(false) => {
                let Filling { life, shards, .. } = filling;
                shards.iter().for_each(|shard| coordinator.node.filled.add(*life, *shard));
                filler.at = None;
            }
            // A writer holds a lock, or the placement is about to change.
            Err(_) => {
                filling.adapt(true);
                self.back_off(PAUSE_AFTER_CONFLICT).await;
            }
        }
        let spent = coordinator.executor.now().since(begun);
        coordinator.executor.sleep(spent).await;
        true
    }

    async fn begin_to_fill(&self, filler: &mut Filler) -> Option<Filling> {
        let coordinator = self.coordinator();
        let returns = coordinator.node.configuration.returns();
        let joining = returns.iter().filter(|one| matches!(one.stage, Stage::Joining(_)));
        let lives: Vec<Life> = joining.map(|one| one.life).collect();
        if filler.lives != lives {
            filler.tables = coordinator.every_table().await.ok()?;
            filler.lives = lives;
        }
        coordinator.next_to_fill(&filler.tables)
    }

    /// Fills the next piece; false if no piece is left.
    async fn go_on(
        &mut self,
        filling: &mut Filling,
        tables: &[Arc<TableDef>],
    ) -> Result<bool, TxnError> {
        let coordinator = self.coordinator();
        let node = filling.node;
        if !filling.begun {
            // Filled while transactions run: earlier, a coordinator may still enter a slab by the
            // placement without this copy (I168).
            let epoch = coordinator.configuration.enter_epoch()?;
            for shard in filling.shards.iter().filter(|shard| coordinator.begins_group(**shard)) {
                let group = coordinator.group_of(*shard);
                coordinator.fill_header(group, copy_on(node, group)).await?;
            }
            // The primary may be in a new life by now, and incomplete.
            coordinator.configuration.check_epoch(epoch)?;
            filling.begun = true;
        }
        if !filling.seek_table(tables) {
            return Ok(false);
        }
        let table = Arc::clone(&tables[filling.table]);
        let shape = table.geometry().shape();
        let chains = filling.next_piece(&table);
        debug_assert!(!chains.is_empty(), "I138: a table to fill has chains left");
        let home = |(shard, chain): &(ShardId, u64)| {
            (coordinator.group_of(*shard), table.geometry().bucket_at(*shard, *chain))
        };
        let homes: Vec<(GroupId, u64)> = chains.iter().map(home).collect();
        let before = coordinator.read_chains(&table, &homes).await?;
        let rows = rows_of(&table, &before).ok_or(TxnError::Timeout)?;
        let buckets = chains.iter().map(|(shard, chain)| shape.bucket_name(*shard, *chain));
        let buckets = buckets.map(|key| LockKey::bucket(table.id(), key));
        let names = buckets.chain(rows.iter().map(|key| LockKey::row(table.id(), *key)));
        let names: Vec<LockKey> = names.collect();
        let mut txn = self.begin(Isolation::Serializable).await?;
        if !broken(Rule::CopiesAreLocked) {
            txn.lock_to_read(&names).await?;
        }
        let coordinator = self.coordinator();
        let now = coordinator.read_chains(&table, &homes).await?;
        let all_locked = |now: BTreeSet<Key>| now.is_subset(&rows);
        let whole = rows_of(&table, &now).is_some_and(all_locked);
        if !whole && !broken(Rule::CopiesAreLocked) {
            // A row has been added meanwhile, or is in doubt.
            return Err(TxnError::Timeout);
        }
        let mut writes = coordinator.read_records(&table, &now).await?;
        writes.extend(now);
        txn.fill(Piece { node, writes }).await?;
        filling.filled += chains.len() as u64;
        filling.adapt(false);
        Ok(true)
    }
}

/// Pause after a conflict, as the number of attempts for [`Session::back_off`].
const PAUSE_AFTER_CONFLICT: u32 = 6;

/// Names of the rows in these buckets; `None` if a CVT is torn, because its write is under way.
fn rows_of(table: &TableDef, buckets: &[GroupWords]) -> Option<BTreeSet<Key>> {
    let mut rows = BTreeSet::new();
    for bucket in buckets {
        for cvt in Bucket::new(&bucket.words, table.cvt()).cvts() {
            match cvt.slot() {
                CvtSlot::Free => {}
                CvtSlot::Torn => return None,
                CvtSlot::Used(header) => _ = rows.insert(header.name.key),
            }
        }
    }
    Some(rows)
}

/// Slots with the records of the bucket's versions, outside of the bucket. An error if a version is
/// in doubt.
fn records_of(table: &TableDef, bucket: &GroupWords) -> Result<Vec<(GroupId, u64)>, TxnError> {
    let mut places = Vec::new();
    let own = bucket.offset..bucket.offset + (bucket.words.len() * WORD_BYTES) as u64;
    let cvts = Bucket::new(&bucket.words, table.cvt()).cvts();
    for cvt in cvts.filter(|cvt| cvt.slot() != CvtSlot::Free) {
        for cell in cvt.cells() {
            match cell {
                Ok(cell) if matches!(cell.version, Version::Committed(_)) => {
                    // A deletion may have no record, and a home slot is part of the bucket.
                    if cell.record != 0 && !own.contains(&cell.record) {
                        places.push((bucket.group, cell.record));
                    }
                }
                Ok(cell) if cell.version == Version::None => {}
                _ if broken(Rule::CopiesAreLocked) => {}
                _ => return Err(TxnError::Timeout),
            }
        }
    }
    Ok(places)
}

impl Coordinator {
    /// Reads all buckets of the chains with the given home buckets.
    async fn read_chains(
        &self,
        table: &TableDef,
        homes: &[(GroupId, u64)],
    ) -> Result<Vec<GroupWords>, TxnError> {
        let bytes = table.bucket_words() * WORD_BYTES;
        let mut buckets = self.read_all(homes, bytes).await?;
        let mut looked = 0;
        while looked < buckets.len() {
            let next = buckets[looked..].iter().flat_map(|bucket| {
                let behind = Bucket::new(&bucket.words, table.cvt()).overflow();
                let offsets = behind.into_iter().flat_map(|behind| behind.offsets(table.cvt()));
                offsets.map(|next| (bucket.group, next))
            });
            let next: Vec<_> = next.collect();
            looked = buckets.len();
            buckets.extend(self.read_all(&next, bytes).await?);
        }
        Ok(buckets)
    }

    /// Reads the records named by versions in the buckets.
    async fn read_records(
        &self,
        table: &TableDef,
        buckets: &[GroupWords],
    ) -> Result<Vec<GroupWords>, TxnError> {
        let places = buckets.iter().map(|bucket| records_of(table, bucket));
        let places = places.collect::<Result<Vec<_>, _>>()?.concat();
        self.read_all(&places, table.slot_bytes() as usize).await
    }

    /// Reads `bytes` bytes at every place, from the primaries.
    async fn read_all(
        &self,
        places: &[(GroupId, u64)],
        bytes: usize,
    ) -> Result<Vec<GroupWords>, TxnError> {
        let mut all = Vec::new();
        for some in places.chunks(AT_ONCE) {
            let read = |batch: &mut Batch| -> Vec<Buffer> {
                let at = |(group, offset): &(GroupId, u64)| self.primary(*group).at(*offset);
                some.iter().map(|place| batch.read_stable(at(place), bytes)).collect()
            };
            let (done, buffers) = self.insist_here(read).await.map_err(halted)?;
            all.extend(some.iter().zip(buffers).map(|((group, offset), buffer)| GroupWords {
                group: *group,
                offset: *offset,
                words: done.words(buffer).to_vec(),
            }));
        }
        Ok(all)
    }
}

fn halted(why: Halted) -> TxnError {
    match why {
        Halted::Fenced => TxnError::Fenced,
        Halted::Left => TxnError::Timeout,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_size_have_every_chain_once() {
        let shards: Vec<ShardId> = ShardId::all().take(3).collect();
        let all = BTreeSet::from_iter(shards.iter().flat_map(|of| (0..5).map(|n| (of.raw(), n))));
        for size in 1..=CHAINS {
            let (mut seen, mut filled) = (Vec::new(), 0);
            loop {
                let piece = chains_of(&shards, 5, filled, size);
                assert!(piece.len() as u64 <= size);
                filled += piece.len() as u64;
                seen.extend(piece.iter().map(|(shard, chain)| (shard.raw(), *chain)));
                if piece.is_empty() {
                    break;
                }
            }
            assert_eq!(seen.len(), all.len(), "pieces of {size}");
            assert_eq!(BTreeSet::from_iter(seen), all, "pieces of {size}");
        }
        assert_eq!(chains_of(&[], 5, 0, 1), [], "a table without rows of these shards");
    }

    #[test]
    fn who_is_in_the_way_is_asked_for_less_down_to_one_chain() {
        let (node, shards) = (NodeId(0), Vec::new());
        let life = Life::new(lotus_fabric::ids::Epoch(1), 0);
        let mut filling =
            Filling { node, life, shards, begun: true, table: 0, filled: 0, at_once: CHAINS };
        for expected in [CHAINS / 2, CHAINS / 4, CHAINS / 8, 1] {
            filling.adapt(true);
            assert_eq!(filling.at_once, expected);
        }
        filling.adapt(false);
        assert_eq!(filling.at_once, 2);
        (0..9).for_each(|_| filling.adapt(false));
        assert_eq!(filling.at_once, CHAINS);
    }
}
