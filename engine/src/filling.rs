//! A memory node that has joined gets what it missed, while transactions run (H23).
//!
//! # What it is
//! Each coordinator fills the shards that its node owns, those whose turn is its own, a few at
//! once, in the slot in which it purges. It goes by the buckets of the index: a *piece* is a few
//! chains of these shards, with the records that they name.
//!
//! # A piece
//! 1. The chains are read, to learn which rows are there.
//! 2. Their buckets and rows are locked to be read: nobody inserts, writes or purges there now, and
//!    nothing of a node that is out is in doubt there.
//! 3. Chains and records are read again, from the primary.
//! 4. They are written to the node that joins, as a commit is: whatever happens to this node's
//!    coordinators, nobody takes its locks for free before that has ended (H4).
//! 5. They are read back, and written again if they differ.
//! 6. The locks are released.
//!
//! What anybody writes after that it writes there, too; what it wrote before is in the piece. So a
//! piece may be filled twice, or by two at once, and a shard whose owner is lost half-way is begun
//! anew by its heir.
//!
//! # What belongs to no row
//! The directory of slabs only gains entries, and all that are entered now are entered there, too:
//! those of before are put beside them, by compare-and-swap. The purge time only grows, and is
//! raised on every replica. Both go with the group's first shard, once transactions run again.
//! Owners' words are raised when they begin again ([`crate::configuration`]), logs begin empty:
//! what they named is over.
//!
//! # What is not copied
//! Versions that have left their CVTs. Who looks for one on a copy that was made anew finds no
//! record of the right checksum, and is told `SnapshotTooOld`. Slots that no version names may
//! differ from copy to copy afterwards.
//!
//! # How much of it at once
//! One piece of each coordinator, and as long a pause behind it. Where writers are in the way the
//! next try is for half as many chains, down to one.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lotus_fabric::ids::{Key, NodeId, RemoteAddr, ShardId};
use lotus_fabric::lane::Batch;
use lotus_fabric::verbs::{Buffer, MAX_VERB_BYTES};
use lotus_locktable::{LockName, LockService};
use lotus_mvcc::TableDef;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::bucket::Bucket;
use lotus_mvcc::layout::cvt::{Cvt, Slot as CvtSlot, Version};
use lotus_mvcc::layout::region::{CURSOR_OFFSET, PURGE_TIME_OFFSET, RegionLayout};
use lotus_recovery::membership::Membership;
use lotus_recovery::membership::returns::{Copied, Life, Return, Stage, shards_on};
use lotus_router::{GroupId, Replica};
use lotus_sabotage::{Rule, broken};

use crate::commit::{Commit, Expelled};
use crate::coordinator::Coordinator;
use crate::error::TxnError;
use crate::ownership::Halted;
use crate::session::{Isolation, Session};
use crate::slot::Slot;
use crate::txn::{Body, Receipt};

/// The most chains in a piece, and shards that are filled at once.
const CHAINS: u64 = 8;
/// How many words are read, or verbs posted, in one batch.
const AT_ONCE: usize = 64;

/// What the coordinators of a node have filled, of which life of a memory node.
#[derive(Debug, Default)]
pub(crate) struct Filled(Mutex<Vec<(Life, Copied)>>);

impl Filled {
    fn lock(&self) -> MutexGuard<'_, Vec<(Life, Copied)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, life: Life) -> Copied {
        let filled = self.lock();
        let of = filled.iter().find(|(of, _)| *of == life);
        of.map_or_else(Copied::none, |(_, filled)| filled.clone())
    }

    fn add(&self, life: Life, shard: ShardId) {
        let mut filled = self.lock();
        match filled.iter_mut().find(|(of, _)| *of == life) {
            Some((_, filled)) => filled.add(shard),
            None => {
                let mut first = Copied::none();
                first.add(shard);
                filled.push((life, first));
            }
        }
    }

    /// Forgets lives that are over, or filled.
    fn keep(&self, mut is_filled: impl FnMut(Life) -> bool) {
        self.lock().retain(|(life, _)| is_filled(*life));
    }
}

/// What one coordinator goes by while it fills.
#[derive(Default)]
pub(crate) struct Filler {
    /// Those that join.
    lives: Vec<Life>,
    /// The tables that there are. No other is made while a memory node is filled.
    tables: Rc<[Arc<TableDef>]>,
    /// What it is at.
    at: Option<Filling>,
}

/// The shards that are being filled, and how far that is.
struct Filling {
    node: NodeId,
    life: Life,
    shards: Vec<ShardId>,
    /// Whether what belongs to no row is done, if that goes with one of these shards.
    begun: bool,
    /// The place among the tables of the next chain's, and how many are filled of that table: the
    /// first of each shard, then the second.
    table: usize,
    filled: u64,
    /// How many chains to lock at once.
    at_once: u64,
}

/// What the driver writes to one memory node.
pub(crate) struct Piece {
    node: NodeId,
    /// Records before the chains that name them.
    writes: Vec<Stretch>,
}

/// Words, and where they belong in the region of a group.
struct Stretch {
    group: GroupId,
    offset: u64,
    words: Vec<u64>,
}

impl Stretch {
    /// Where they are on a memory node.
    fn on(&self, node: NodeId) -> RemoteAddr {
        copy_on(node, self.group).at(self.offset)
    }
}

/// The copy of a group on a memory node.
fn copy_on(node: NodeId, group: GroupId) -> Replica {
    Replica { node, region: group.region() }
}

impl Coordinator {
    /// Says which shards its node has filled, beside all else.
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
                // Unanswered, it is said again.
                if let Ok(outcome) = of.change(say).await {
                    of.node.learn_placement(&outcome.membership(), &of.shared.placement);
                }
            });
        }
    }

    /// The next shards that this coordinator is to fill. Those that no table has are filled by
    /// that.
    fn next_to_fill(&self, tables: &[Arc<TableDef>]) -> Option<Filling> {
        let returns = self.node.configuration.returns();
        for Return { node, life, stage } in returns.iter() {
            let Stage::Joining(copied) = stage else { continue };
            if self.configuration.life_of(*node) != Some(*life) {
                // It has not joined as far as this coordinator knows.
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

    /// The tables that there are.
    async fn every_table(&self) -> Result<Rc<[Arc<TableDef>]>, TxnError> {
        if !self.shared.is_whole() {
            let shared = Arc::clone(&self.shared);
            let learned = self.shared.council.apart(move || shared.learn_tables().is_ok()).await;
            learned.ok().filter(|learned| *learned).ok_or(TxnError::Timeout)?;
        }
        Ok(self.shared.all_tables().into())
    }

    /// Gives the copy of a group that is being made what belongs to no row.
    async fn fill_header(&self, group: GroupId, to: Replica) -> Result<(), TxnError> {
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

    /// Posts until all has taken effect, and gives the words of the buffer that `add` names.
    async fn insist_on(&self, add: impl Fn(&mut Batch) -> Buffer) -> Result<Vec<u64>, TxnError> {
        let (done, buffer) = self.insist_here(add).await.map_err(halted)?;
        Ok(done.words(buffer).to_vec())
    }
}

/// Whether a table has rows of a shard.
fn has(table: &TableDef, shard: ShardId) -> bool {
    u32::from(shard.raw()) < table.spec().shards
}

impl Filling {
    /// Whether what it fills is still to be filled, by this coordinator.
    fn is_current(&self, coordinator: &Coordinator) -> bool {
        let owner = |shard: &ShardId| coordinator.node.shards.owner(*shard).node;
        coordinator.configuration.life_of(self.node) == Some(self.life)
            && self.shards.iter().all(|shard| owner(shard) == coordinator.node.id)
    }

    /// Goes on to a table that has chains left; whether there is one.
    fn seek_table(&mut self, tables: &[Arc<TableDef>]) -> bool {
        while tables.get(self.table).is_some_and(|table| self.next_piece(table).is_empty()) {
            (self.table, self.filled) = (self.table + 1, 0);
        }
        self.table < tables.len()
    }

    /// The chains of this table that are filled next: of which shard, and the number there.
    fn next_piece(&self, table: &TableDef) -> Vec<(ShardId, u64)> {
        let shards: Vec<_> =
            self.shards.iter().copied().filter(|shard| has(table, *shard)).collect();
        let per_shard = table.geometry().shape().buckets_per_shard();
        chains_of(&shards, per_shard, self.filled, self.at_once)
    }

    /// What was to be filled next is in use, or is filled.
    fn adapt(&mut self, conflict: bool) {
        // Rows that are written all the time are only ever had in small pieces.
        self.at_once = if conflict { self.at_once / 2 } else { self.at_once * 2 }.clamp(1, CHAINS);
    }
}

/// The next chains of these shards behind the first `filled` ones, at most so many: of which shard,
/// and the number there. The first of each shard come first, then the second.
fn chains_of(shards: &[ShardId], per_shard: u64, filled: u64, at_most: u64) -> Vec<(ShardId, u64)> {
    let count = shards.len() as u64;
    let next = filled..(count * per_shard).min(filled + at_most);
    next.map(|chain| (shards[(chain % count) as usize], chain / count)).collect()
}

impl Session {
    /// Fills a piece of what this coordinator is to fill; whether there was anything to do.
    pub(crate) async fn fill(&mut self, filler: &mut Filler) -> bool {
        let coordinator = self.coordinator();
        if !coordinator.node.configuration.placement().is_joined() {
            if !filler.lives.is_empty() {
                // Not otherwise: this is asked beside transactions, which allocate nothing.
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
            // Somebody is in the way, or the placement is about to change.
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

    /// Fills the next piece; false if there is none left.
    async fn go_on(
        &mut self,
        filling: &mut Filling,
        tables: &[Arc<TableDef>],
    ) -> Result<bool, TxnError> {
        let coordinator = self.coordinator();
        let node = filling.node;
        if !filling.begun {
            // While transactions run: before that, somebody may still enter a slab by the placement
            // without this copy.
            let epoch = coordinator.enter_epoch()?;
            for shard in filling.shards.iter().filter(|shard| coordinator.begins_group(**shard)) {
                let group = coordinator.group_of(*shard);
                coordinator.fill_header(group, copy_on(node, group)).await?;
            }
            // A primary of before may be of another life by now, and know nothing itself.
            coordinator.check_epoch(epoch)?;
            filling.begun = true;
        }
        if !filling.seek_table(tables) {
            return Ok(false);
        }
        let table = Arc::clone(&tables[filling.table]);
        let shape = table.geometry().shape();
        let chains = filling.next_piece(&table);
        let home = |(shard, chain): &(ShardId, u64)| {
            (coordinator.group_of(*shard), table.geometry().bucket_at(*shard, *chain))
        };
        let homes: Vec<(GroupId, u64)> = chains.iter().map(home).collect();
        let before = coordinator.read_chains(&table, &homes).await?;
        let rows = rows_of(&table, &before).ok_or(TxnError::Timeout)?;
        let buckets = chains.iter().map(|(shard, chain)| shape.bucket_name(*shard, *chain));
        let buckets = buckets.map(|key| LockName::bucket(table.id(), key));
        let names = buckets.chain(rows.iter().map(|key| LockName::row(table.id(), *key)));
        let names: Vec<LockName> = names.collect();
        let mut txn = self.begin(Isolation::Serializable).await?;
        if !broken(Rule::CopiesAreLocked) {
            txn.lock_to_read(&names).await?;
        }
        let coordinator = self.coordinator();
        let now = coordinator.read_chains(&table, &homes).await?;
        let all_locked = |now: BTreeSet<Key>| now.is_subset(&rows);
        let whole = rows_of(&table, &now).is_some_and(all_locked);
        if !whole && !broken(Rule::CopiesAreLocked) {
            // A row has come meanwhile, or is in doubt.
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

/// How often [`Session::back_off`] doubles the longest pause after a conflict.
const PAUSE_AFTER_CONFLICT: u32 = 6;

/// The rows of these buckets; `None` if something is landing there, or in doubt.
fn rows_of(table: &TableDef, buckets: &[Stretch]) -> Option<BTreeSet<Key>> {
    let mut rows = BTreeSet::new();
    for bucket in buckets {
        for words in Bucket::new(&bucket.words, table.cell_count()).slots() {
            match Cvt::new(words).slot() {
                CvtSlot::Free => {}
                CvtSlot::Torn => return None,
                CvtSlot::Used(header) => _ = rows.insert(header.key),
            }
        }
    }
    Some(rows)
}

/// The slots of the records that versions in this bucket have. An error if a version is in doubt.
fn records_of(table: &TableDef, bucket: &Stretch) -> Result<Vec<(GroupId, u64)>, TxnError> {
    let mut places = Vec::new();
    let slots = Bucket::new(&bucket.words, table.cell_count()).slots();
    for cvt in slots.map(Cvt::new).filter(|cvt| cvt.slot() != CvtSlot::Free) {
        for cell in cvt.cells() {
            match cell {
                Ok(cell) if matches!(cell.version, Version::Committed(_)) => {
                    // A deletion may have none.
                    if cell.record != 0 {
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
    /// The buckets of the chains with these home buckets.
    async fn read_chains(
        &self,
        table: &TableDef,
        homes: &[(GroupId, u64)],
    ) -> Result<Vec<Stretch>, TxnError> {
        let bytes = table.bucket_words() * WORD_BYTES;
        let mut buckets = self.read_all(homes, bytes).await?;
        let mut looked = 0;
        while looked < buckets.len() {
            let next = buckets[looked..].iter().filter_map(|bucket| {
                let next = Bucket::new(&bucket.words, table.cell_count()).overflow();
                next.map(|next| (bucket.group, next))
            });
            let next: Vec<_> = next.collect();
            looked = buckets.len();
            buckets.extend(self.read_all(&next, bytes).await?);
        }
        Ok(buckets)
    }

    /// The records that versions in these buckets have.
    async fn read_records(
        &self,
        table: &TableDef,
        buckets: &[Stretch],
    ) -> Result<Vec<Stretch>, TxnError> {
        let places = buckets.iter().map(|bucket| records_of(table, bucket));
        let places = places.collect::<Result<Vec<_>, _>>()?.concat();
        self.read_all(&places, table.slot_bytes() as usize).await
    }

    /// So many bytes at each of these places, from the primaries.
    async fn read_all(
        &self,
        places: &[(GroupId, u64)],
        bytes: usize,
    ) -> Result<Vec<Stretch>, TxnError> {
        let mut all = Vec::new();
        for some in places.chunks(AT_ONCE) {
            let read = |batch: &mut Batch| -> Vec<Buffer> {
                let at = |(group, offset): &(GroupId, u64)| self.primary(*group).at(*offset);
                some.iter().map(|place| batch.read_stable(at(place), bytes)).collect()
            };
            let (done, buffers) = self.insist_here(read).await.map_err(halted)?;
            all.extend(some.iter().zip(buffers).map(|((group, offset), buffer)| Stretch {
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

/// Writes the piece in `body` where it belongs, and unlocks.
pub(crate) async fn carry_out(slot: &Slot, mut body: Box<Body>) {
    let commit = Commit::of(slot, &body);
    let piece = body.piece.take().expect("it was handed over");
    match commit.fill(&piece).await {
        Ok(()) => {
            slot.decide(commit.txn(), Ok(Receipt::default()));
            slot.coordinator.locks.release(&mut body.held);
            slot.coordinator.lane.mark_errand();
            slot.finish(body);
        }
        Err(Expelled) => slot.expelled(commit.txn()),
    }
}

impl Commit<'_> {
    /// Writes until what is there is what it should be, or the memory node is lost.
    async fn fill(&self, piece: &Piece) -> Result<(), Expelled> {
        let coordinator = self.coordinator();
        for some in piece.writes.chunks(AT_ONCE) {
            loop {
                let write = |batch: &mut Batch| {
                    for stretch in some {
                        let staged = batch.stage(stretch.words.len() * WORD_BYTES);
                        batch.words_mut(staged).copy_from_slice(&stretch.words);
                        batch.write(stretch.on(piece.node), staged);
                    }
                };
                let read = |batch: &mut Batch| -> Vec<Buffer> {
                    let read = |stretch: &Stretch| {
                        batch.read(stretch.on(piece.node), stretch.words.len() * WORD_BYTES)
                    };
                    some.iter().map(read).collect()
                };
                let written = coordinator.insist_here(write).await.map(drop);
                let there = match written {
                    Ok(()) => coordinator.insist_here(read).await,
                    Err(halted) => Err(halted),
                };
                match there {
                    Ok((done, buffers)) => {
                        let mut pairs = some.iter().zip(buffers);
                        if pairs.all(|(stretch, buffer)| done.words(buffer) == stretch.words) {
                            break;
                        }
                    }
                    Err(Halted::Fenced) => return Err(Expelled),
                    // All that it had is lost.
                    Err(Halted::Left) => return Ok(()),
                }
            }
        }
        Ok(())
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
