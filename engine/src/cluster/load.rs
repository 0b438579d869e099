//! Loading a table before the first transaction: whole shards at once, in parallel, no locks.
//!
//! Every worker owns the shards whose number it is congruent to, so nothing is shared. It places
//! the rows of a shard in local bucket images, packs their records into slabs of its own, and
//! writes both to all replicas in large WRITEs. Slabs are taken as in a transaction, so that later
//! data fits behind them; slots left over in the last ones go to the node
//! ([`crate::space::slots`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lotus_fabric::ids::{Key, ShardId};
use lotus_fabric::lane::{BatchResult, Lane, Posted};
use lotus_fabric::verbs::MAX_VERB_BYTES;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::bucket::Overflow;
use lotus_mvcc::layout::record::RecordHeader;
use lotus_mvcc::layout::region::{SLAB_BYTES, SlabEntry};
use lotus_mvcc::loader::{LoadedRecord, LoadedRow, PlaceError, ShardImage};
use lotus_mvcc::slab::{Purpose, SlabAllocator, SlotKind};
use lotus_mvcc::{PrimaryKey, TableDef, Timestamp};
use lotus_points::point;
use lotus_router::{Placement, ReplicaSet};

use crate::api::error::ClusterError;
use crate::node::shared::{NodeTable, Shared};
use crate::space::slabs::{self, SlabError};

/// Number of batches that a worker keeps under way.
const BATCHES_IN_FLIGHT: usize = 16;

/// Writes the value of row number `n` of a load into the empty buffer and returns its primary key.
/// Called several times for a row, from several threads: it must be a function of `n`.
pub type RowSource<'a> = dyn Fn(u64, &mut Vec<u8>) -> PrimaryKey + Sync + 'a;

/// Share of one worker in a load.
pub(crate) struct Loader<'a> {
    pub(crate) shared: &'a Shared,
    /// Placement over the memory nodes that are left.
    pub(crate) placement: &'a Placement,
    pub(crate) lane: Lane,
    pub(crate) table: Arc<TableDef>,
    pub(crate) source: &'a RowSource<'a>,
    /// Rows loaded so far, by all workers.
    pub(crate) loaded: &'a AtomicU64,
    /// The table on the compute nodes that are told where its rows are.
    pub(crate) told: &'a [Arc<NodeTable>],
}

impl Loader<'_> {
    /// Loads those rows of `0..rows` that belong to a shard congruent to `worker` modulo `workers`.
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
            writer.load_shard(shard).await?;
            for count in [self.loaded, &self.shared.rows_loaded] {
                count.fetch_add(shard.len() as u64, Ordering::Relaxed);
            }
            point!(self.shared.nodes.first().id.0, RowsLoaded);
        }
        writer.settle(0).await?;
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
}

/// Packs records and keeps WRITEs under way.
struct Writer<'a> {
    loader: &'a Loader<'a>,
    slabs: SlabAllocator,
    in_flight: VecDeque<Posted>,
    /// Adjacent records that are not written yet, and the offset of the first.
    run: Vec<u64>,
    run_at: u64,
}

impl<'a> Writer<'a> {
    fn new(loader: &'a Loader<'a>) -> Self {
        let slabs = SlabAllocator::new(loader.shared.placement.group_count() as u16);
        Self { loader, slabs, in_flight: VecDeque::new(), run: Vec::new(), run_at: 0 }
    }

    async fn load_shard(&mut self, rows: &[(Key, u64)]) -> Result<(), ClusterError> {
        let loader = self.loader;
        let table = &*loader.table;
        debug_assert!(!rows.is_empty(), "I243: a shard that is loaded has rows");
        let shard = rows[0].0.shard();
        let replicas = *loader.placement.replicas(loader.placement.group_of(shard));
        let mut image = ShardImage::new(table, shard);
        let (mut value, mut record) = (Vec::new(), Vec::new());
        for (key, number) in rows {
            value.clear();
            let primary_key = (loader.source)(*number, &mut value);
            let name = table.name(&primary_key);
            let slot = match table.spec().is_inline() {
                true => None,
                false => Some(self.allocate(shard, SlotKind::Record).await?),
            };
            record.clear();
            record.resize(table.slot_bytes() as usize / WORD_BYTES, 0);
            let id = table.id();
            let header =
                RecordHeader { writer: None, previous: Timestamp::ZERO, predecessor: 0, table: id };
            let used = header.encode(*key, &primary_key, Some(&value), &mut record);
            let place = slot.map_or(LoadedRecord::InCell(&record[..used]), LoadedRecord::At);
            let row = LoadedRow { record: place, length: value.len() as u32 };
            loop {
                match image.place(name, row) {
                    Ok(cvt) => {
                        debug_assert!(cvt != 0, "I9: a loaded row has an address");
                        let id = table.id();
                        loader
                            .told
                            .iter()
                            .for_each(|node| _ = node.addresses.insert(id, *key, cvt));
                        break;
                    }
                    Err(PlaceError::NeedsOverflow(kind)) => {
                        let first = self.allocate(shard, kind).await?;
                        image.add_overflow(match kind {
                            SlotKind::Fan => Overflow::fan(first),
                            _ => Overflow::bucket(first),
                        });
                    }
                    Err(error) => {
                        let reason = error.to_string();
                        return Err(ClusterError::Row { row: *number, reason });
                    }
                }
            }
            if let Some(slot) = slot {
                self.add_record(&replicas, slot, &record).await?;
            }
        }
        self.flush_run(&replicas).await?;
        for (offset, words) in image.images() {
            self.write(&replicas, offset, words).await?;
        }
        Ok(())
    }

    async fn allocate(&mut self, shard: ShardId, slots: SlotKind) -> Result<u64, ClusterError> {
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
                return Ok(offset);
            }
            let (kind, node) = (slots.slab(), shared.nodes.first());
            let (owner, take) = (node.incarnation, node.slots.next_take());
            let entry = SlabEntry { kind, table, owner, take };
            let replicas = self.loader.placement.replicas(group);
            let lane = &self.loader.lane;
            let taken = slabs::take_slabs(lane, replicas, &shared.region, bytes, entry).await;
            let offset = taken.map_err(|error| match error {
                SlabError::Full => ClusterError::OutOfMemory { table, needed: bytes },
                SlabError::Fabric(error) => ClusterError::Unreachable(error.to_string()),
            })?;
            debug_assert!(bytes <= SLAB_BYTES, "I20: a slot fits a slab");
            let cut_into = match slots {
                SlotKind::Bucket => SlotKind::Fan,
                slots => slots,
            };
            self.slabs.add_slab(Purpose { slots: cut_into, ..purpose }, offset, SLAB_BYTES);
        }
    }

    /// Gives the unused slots of its slabs to the compute node that they are entered for.
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
    ) -> Result<(), ClusterError> {
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

    async fn flush_run(&mut self, replicas: &ReplicaSet) -> Result<(), ClusterError> {
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
    ) -> Result<(), ClusterError> {
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

    /// Waits until at most `left` batches are under way.
    async fn settle(&mut self, left: usize) -> Result<(), ClusterError> {
        while self.in_flight.len() > left {
            let Some(oldest) = self.in_flight.pop_front() else { break };
            let done: BatchResult = oldest.await;
            done.map_err(|error| ClusterError::Unreachable(error.to_string()))?;
        }
        Ok(())
    }
}
