//! Loading a table before the first transaction: whole shards at once, in parallel, no locks.
//!
//! A worker owns the shards whose number is congruent to the worker's number, so workers share
//! nothing. The worker places the rows of a shard in local bucket images, packs their records into
//! slabs of its own, and writes both to all replicas (I17) in large WRITEs. Slabs are taken as in a
//! transaction, so that later data fits behind them; slots left over in the last slabs go to the
//! node ([`crate::space::slots`]).
//!
//! # Beside changes of the cluster
//! A load takes no locks, so it must not write while a memory node is lost, joins or is filled, or
//! while the memory of a table is given back: a change waits for the load, and the load for the
//! change. A load writes in pieces of [`PIECE`] and gives way between two pieces. If the memory
//! nodes in use change, or a memory node does not answer, the worker writes its present shard anew.
//! So a load waits, and goes on.
//!
//! # What it is not
//! Patient without limit: a cluster that stands still for a minute fails the load, and so does a
//! drop of the loaded table.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Key, NodeId, ShardId};
use lotus_fabric::lane::{BatchError, BatchResult, Lane, Posted};
use lotus_fabric::verbs::MAX_VERB_BYTES;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::bucket::Overflow;
use lotus_mvcc::layout::record::RecordHeader;
use lotus_mvcc::layout::region::{SLAB_BYTES, SlabEntry};
use lotus_mvcc::loader::{LoadedRecord, LoadedRow, PlaceError, ShardImage};
use lotus_mvcc::naming::RowName;
use lotus_mvcc::slab::{Purpose, SlabAllocator, SlotKind};
use lotus_mvcc::{PrimaryKey, TableDef, Timestamp};
use lotus_points::point;
use lotus_recovery::membership::returns::Life;
use lotus_router::ReplicaSet;

use crate::api::error::{ClusterError, leaving, unreachable_nodes};
use crate::cluster::once;
use crate::memory_nodes::changes::ControlAllocation;
use crate::node::shared::{NodeTable, Shared};
use crate::space::slabs::{self, SlabError};

/// Number of batches that a worker keeps under way.
const BATCHES_IN_FLIGHT: usize = 16;
/// Time for which a worker writes before it gives way to changes of the cluster.
const PIECE: Duration = Duration::from_millis(20);
/// Number of rows between two looks at the clock.
const ROWS_AT_ONCE: usize = 64;

/// Writes the value of row number `n` of a load into the empty buffer and returns the row's primary
/// key. Called several times for a row, from several threads: the result must be a function of `n`.
pub type RowSource<'a> = dyn Fn(u64, &mut Vec<u8>) -> PrimaryKey + Sync + 'a;

/// Share of one worker in a load.
pub(crate) struct Loader<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) lane: Lane,
    pub(crate) table: Arc<TableDef>,
    pub(crate) source: &'a RowSource<'a>,
    /// Rows loaded so far by all workers.
    pub(crate) loaded: &'a AtomicU64,
    /// The table's state on the compute nodes that learn the addresses of its rows.
    pub(crate) told: &'a [Arc<NodeTable>],
}

/// Reason why a shard was not loaded.
#[derive(Debug)]
enum Interrupted {
    /// The memory nodes in use have changed since the shard was begun.
    Changed,
    /// A memory node does not answer.
    Broken(BatchError),
    /// An error that ends the load.
    Failed(ClusterError),
}

impl From<ClusterError> for Interrupted {
    fn from(error: ClusterError) -> Self {
        Self::Failed(error)
    }
}

impl From<BatchError> for Interrupted {
    fn from(error: BatchError) -> Self {
        Self::Broken(error)
    }
}

impl<'a> Loader<'a> {
    /// Loads the rows of `0..rows` whose shard is congruent to `worker` modulo `workers`.
    pub(crate) async fn run(
        &self,
        rows: u64,
        worker: usize,
        workers: usize,
    ) -> Result<(), ClusterError> {
        let mut mine = self.keys(rows, worker, workers)?;
        mine.sort_unstable_by_key(|(key, _)| (key.shard(), key.hash()));
        let mut writer = Writer::new(self);
        for shard in mine.chunk_by(|(a, _), (b, _)| a.shard() == b.shard()) {
            let rows = writer.load_shard(shard).await?;
            for count in [self.loaded, &self.shared.rows_loaded] {
                count.fetch_add(rows, Ordering::Relaxed);
            }
            point!(self.shared.nodes.first().id.0, RowsLoaded);
        }
        writer.leave_slots();
        Ok(())
    }

    fn keys(
        &self,
        rows: u64,
        worker: usize,
        workers: usize,
    ) -> Result<Vec<(Key, u64)>, ClusterError> {
        let mut value = Vec::new();
        let mut mine = Vec::with_capacity((rows / workers as u64) as usize);
        for number in 0..rows {
            value.clear();
            let primary_key = (self.source)(number, &mut value);
            let checked = self.table.check_key(&primary_key);
            checked
                .and_then(|()| self.table.check_value(value.len()))
                .map_err(|error| ClusterError::Row { row: number, reason: error.to_string() })?;
            let key = self.table.key(&primary_key);
            if usize::from(key.shard().raw()) % workers == worker {
                mine.push((key, number));
            }
        }
        Ok(mine)
    }

    fn now(&self) -> Nanos {
        self.lane.executor().now()
    }

    /// Begins a piece, as soon as no change of the cluster is under way.
    ///
    /// # Errors
    /// `UnknownTable` if the table was dropped; `Unreachable` after a minute, or at once if no time
    /// passes during waits.
    async fn begin_piece(&self) -> Result<Piece<'a>, ClusterError> {
        let (shared, id) = (self.shared, self.table.id());
        let deadline = self.now().after(once::PATIENCE);
        loop {
            if let Some(taking) = shared.take_by_control() {
                debug_assert!(
                    !taking.placement.is_joined(),
                    "I319: a load writes to whole copies only"
                );
                // Looked up under the guard: the table's memory is not given back while the guard
                // is held.
                let is_there = shared.table(id).is_some();
                let begun = self.now();
                return match is_there {
                    true => Ok(Piece { taking, begun }),
                    false => Err(ClusterError::UnknownTable(id)),
                };
            }
            if !shared.control.is_in_time() || self.now() >= deadline {
                return Err(leaving());
            }
            self.lane.executor().sleep(once::PAUSE).await;
        }
    }
}

/// Replicas of a shard, and lives of memory nodes.
type Present = (ReplicaSet, Vec<(NodeId, Life)>);

/// Time in which no change of the cluster can disturb a load.
struct Piece<'a> {
    taking: ControlAllocation<'a>,
    begun: Nanos,
}

/// Packs records and keeps WRITEs under way.
struct Writer<'a> {
    loader: &'a Loader<'a>,
    slabs: SlabAllocator,
    /// Slots taken for the present shard.
    taken: Vec<(Purpose, u64)>,
    /// The present piece, if any.
    piece: Option<Piece<'a>>,
    in_flight: VecDeque<Posted>,
    /// Adjacent records not written yet, and the offset of the first.
    run: Vec<u64>,
    run_at: u64,
}

impl<'a> Writer<'a> {
    fn new(loader: &'a Loader<'a>) -> Self {
        let slabs = SlabAllocator::new(loader.shared.placement.group_count() as u16);
        let (taken, piece, in_flight) = (Vec::new(), None, VecDeque::new());
        Self { loader, slabs, taken, piece, in_flight, run: Vec::new(), run_at: 0 }
    }

    /// Loads the rows of a shard; repeats the load until the memory nodes were the same from the
    /// first row to the last. Returns the number of the application's rows among the stored rows.
    async fn load_shard(&mut self, rows: &[(Key, u64)]) -> Result<u64, ClusterError> {
        debug_assert!(!rows.is_empty(), "I243: a shard that is loaded has rows");
        let deadline = self.loader.now().after(once::PATIENCE);
        loop {
            let tried = self.try_shard(rows).await;
            // No write of an attempt is under way when the next attempt begins.
            let settled = self.settle(0).await;
            match tried.and_then(|count| settled.map(|()| count)) {
                Ok(count) => {
                    debug_assert!(
                        self.in_flight.is_empty() && self.run.is_empty(),
                        "I319: nothing of a shard is under way when it is done"
                    );
                    self.taken.clear();
                    return Ok(count);
                }
                Err(Interrupted::Failed(error)) => return Err(error),
                Err(Interrupted::Changed) => {
                    let taken = std::mem::take(&mut self.taken);
                    taken.into_iter().for_each(|(of, slot)| self.slabs.release(of, slot));
                }
                Err(Interrupted::Broken(error)) => {
                    self.piece = None;
                    let in_time = self.loader.shared.control.is_in_time();
                    if !in_time || self.loader.now() >= deadline {
                        return Err(unreachable_nodes(error));
                    }
                    // The attempt's slots are given up: a late WRITE may land in a slot.
                    self.taken.clear();
                    self.await_answers(&error, deadline).await;
                }
            }
            self.run.clear();
        }
    }

    /// Waits until the failed memory nodes answer again, or are not in use any more.
    async fn await_answers(&self, error: &BatchError, deadline: Nanos) {
        let (lane, shared) = (&self.loader.lane, self.loader.shared);
        let mut silent: Vec<NodeId> = error.failures().iter().map(|failed| failed.node).collect();
        while !silent.is_empty() && self.loader.now() < deadline {
            lane.executor().sleep(once::PAUSE).await;
            let used = shared.surviving().nodes();
            let mut still = Vec::new();
            for node in silent.into_iter().filter(|node| used.contains(*node)) {
                if lane.reconnect(node).await.is_err() {
                    still.push(node);
                }
            }
            silent = still;
        }
    }

    async fn try_shard(&mut self, rows: &[(Key, u64)]) -> Result<u64, Interrupted> {
        let loader = self.loader;
        let table = &*loader.table;
        let shard = rows[0].0.shard();
        let (replicas, lives) = self.present(shard).await?;
        let mut image = ShardImage::new(table, shard);
        let (mut value, mut record, mut count) = (Vec::new(), Vec::new(), 0);
        for some in rows.chunks(ROWS_AT_ONCE) {
            if self.gives_way(&replicas).await? {
                let (now, lives_now) = self.present(shard).await?;
                if now.members() != replicas.members() || lives_now != lives {
                    return Err(Interrupted::Changed);
                }
            }
            for (key, number) in some {
                value.clear();
                let primary_key = (loader.source)(*number, &mut value);
                count += table.spec().rows_in(&value);
                let slot = match table.spec().is_inline() {
                    true => None,
                    false => Some(self.allocate(shard, SlotKind::Record).await?),
                };
                record.clear();
                record.resize(table.slot_bytes() as usize / WORD_BYTES, 0);
                let (writer, previous, predecessor) = (None, Timestamp::ZERO, 0);
                let header = RecordHeader { writer, previous, predecessor, table: table.id() };
                let used = header.encode(*key, &primary_key, Some(&value), &mut record);
                let place = slot.map_or(LoadedRecord::InCell(&record[..used]), LoadedRecord::At);
                let row = LoadedRow { record: place, length: value.len() as u32 };
                self.place(&mut image, (table.name(&primary_key), *number), row).await?;
                if let Some(slot) = slot {
                    self.add_record(&replicas, slot, &record).await?;
                }
            }
        }
        self.flush_run(&replicas).await?;
        for (offset, words) in image.images() {
            self.write(&replicas, offset, words).await?;
        }
        Ok(count)
    }

    /// Places a row in the image of its shard, and adds overflow buckets if needed.
    async fn place(
        &mut self,
        image: &mut ShardImage<'_>,
        (name, number): (RowName, u64),
        row: LoadedRow<'_>,
    ) -> Result<(), Interrupted> {
        let loader = self.loader;
        loop {
            match image.place(name, row) {
                Ok(cvt) => {
                    debug_assert!(cvt != 0, "I9: a loaded row has an address");
                    let id = loader.table.id();
                    loader
                        .told
                        .iter()
                        .for_each(|node| _ = node.addresses.insert(id, name.key, cvt));
                    return Ok(());
                }
                Err(PlaceError::NeedsOverflow(kind)) => {
                    let first = self.allocate(name.key.shard(), kind).await?;
                    image.add_overflow(match kind {
                        SlotKind::Fan => Overflow::fan(first),
                        _ => Overflow::bucket(first),
                    });
                }
                Err(error) => {
                    let reason = error.to_string();
                    return Err(ClusterError::Row { row: number, reason }.into());
                }
            }
        }
    }

    /// Returns the replicas of a shard, and the lives of memory nodes, in the present piece. Begins
    /// a piece if needed.
    async fn present(&mut self, shard: ShardId) -> Result<Present, Interrupted> {
        if self.piece.is_none() {
            self.piece = Some(self.loader.begin_piece().await?);
        }
        let taking = &self.piece.as_ref().expect("it was begun").taking;
        let group = taking.placement.group_of(shard);
        Ok((*taking.placement.replicas(group), taking.lives.clone()))
    }

    /// Ends the piece if its time is over, after its WRITEs have completed. Returns whether the
    /// piece was ended.
    async fn gives_way(&mut self, replicas: &ReplicaSet) -> Result<bool, Interrupted> {
        let is_over = |piece: &Piece<'_>| self.loader.now() >= piece.begun.after(PIECE);
        if !self.piece.as_ref().is_some_and(is_over) {
            return Ok(false);
        }
        self.flush_run(replicas).await?;
        self.settle(0).await?;
        self.piece = None;
        Ok(true)
    }

    async fn allocate(&mut self, shard: ShardId, slots: SlotKind) -> Result<u64, Interrupted> {
        let shared = self.loader.shared;
        let bytes = self.loader.table.bytes_of(slots);
        let group = shared.placement.group_of(shard);
        let table = self.loader.table.id();
        let purpose = Purpose { table, group: u16::from(group.0), slots };
        loop {
            let free = match slots {
                SlotKind::Bucket => self.slabs.alloc_bucket(purpose, bytes),
                SlotKind::Record | SlotKind::Fan => self.slabs.alloc(purpose, bytes),
            };
            if let Some(offset) = free {
                self.taken.push((purpose, offset));
                return Ok(offset);
            }
            let (kind, node) = (slots.slab(), shared.nodes.first());
            let (owner, take) = (node.incarnation, node.slots.next_take());
            let entry = SlabEntry { kind, table, owner, take };
            let taking = &self.piece.as_ref().expect("slots are taken in a piece").taking;
            let (lane, replicas) = (&self.loader.lane, taking.placement.replicas(group));
            let taken = slabs::take_slabs(lane, replicas, &shared.region, bytes, entry).await;
            let offset = taken.map_err(|error| match error {
                SlabError::Full => ClusterError::OutOfMemory { table, needed: bytes }.into(),
                SlabError::Fabric(error) => Interrupted::Broken(error),
            })?;
            debug_assert!(bytes <= SLAB_BYTES, "I20: a slot fits a slab");
            let cut_into = match slots {
                SlotKind::Bucket => SlotKind::Fan,
                slots => slots,
            };
            self.slabs.add_slab(Purpose { slots: cut_into, ..purpose }, offset, SLAB_BYTES);
        }
    }

    /// Gives the unused slots of the worker's slabs to the compute node named in the slabs'
    /// directory entries.
    fn leave_slots(&mut self) {
        let shared = self.loader.shared;
        let node = shared.nodes.first();
        for (group, _) in shared.placement.groups() {
            self.slabs.hand_over(u16::from(group.0), &mut node.slots.lock());
        }
    }

    /// Adds a record, padded to a whole slot, to the run.
    async fn add_record(
        &mut self,
        replicas: &ReplicaSet,
        offset: u64,
        slot: &[u64],
    ) -> Result<(), Interrupted> {
        let follows = offset == self.run_at + (self.run.len() * WORD_BYTES) as u64;
        if !follows || (self.run.len() + slot.len()) * WORD_BYTES > MAX_VERB_BYTES {
            self.flush_run(replicas).await?;
            self.run_at = offset;
        }
        debug_assert!(
            offset == self.run_at + (self.run.len() * WORD_BYTES) as u64,
            "I243: records of a run lie side by side"
        );
        self.run.extend_from_slice(slot);
        Ok(())
    }

    async fn flush_run(&mut self, replicas: &ReplicaSet) -> Result<(), Interrupted> {
        let run = std::mem::take(&mut self.run);
        self.write(replicas, self.run_at, &run).await?;
        self.run = run;
        self.run.clear();
        Ok(())
    }

    /// Starts writing `words` to every replica.
    async fn write(
        &mut self,
        replicas: &ReplicaSet,
        offset: u64,
        words: &[u64],
    ) -> Result<(), Interrupted> {
        debug_assert!(
            self.piece.is_some(),
            "I319: a load writes while no change of the cluster is under way"
        );
        for (index, piece) in words.chunks(MAX_VERB_BYTES / WORD_BYTES).enumerate() {
            let mut batch = self.loader.lane.batch();
            let staged = batch.stage(piece.len() * WORD_BYTES);
            batch.words_mut(staged).copy_from_slice(piece);
            for replica in replicas.members() {
                batch.write(replica.at(offset + (index * MAX_VERB_BYTES) as u64), staged);
            }
            self.in_flight.push_back(batch.post());
            self.settle(BATCHES_IN_FLIGHT).await?;
        }
        Ok(())
    }

    /// Waits until at most `left` batches are under way; returns the first error of the completed
    /// batches.
    async fn settle(&mut self, left: usize) -> Result<(), Interrupted> {
        let mut outcome = Ok(());
        while self.in_flight.len() > left {
            let Some(oldest) = self.in_flight.pop_front() else { break };
            let done: BatchResult = oldest.await;
            outcome = outcome.and(done.map(drop));
        }
        Ok(outcome?)
    }
}
