//! The commit phase: log, data, timestamp, visible, unlock (LOTUS §5.1, phase 2).
//!
//! # The steps, and their purpose
//! 1. One batch to every memory node that holds a replica of a written row: the log entry, the
//!    records, the cells as INVISIBLE. Verbs of one connection take effect in order, so wherever a
//!    cell has landed, the log names the whole write set (H12). A record that goes to its cell's
//!    home slot travels in one WRITE with the cell.
//! 2. When all replicas have everything: the commit timestamp, while all locks are held (H1).
//! 3. The version words on all backups; wait. Now the outcome is certain.
//! 4. The version words on the primaries, which are what snapshots read; wait (H3). The caller is
//!    told now, and not before: a memory node may be lost meanwhile (decision 0036).
//! 5. The rows' entries in this node's version table cache are renewed (H11), and the locks are
//!    released, remote ones by message. The slots of displaced versions become free for any use.
//!    Not earlier: until every copy of the cell names another slot, undoing the commit would leave
//!    two cells with one slot.
//!
//! # When something fails
//! Everything that could be refused has been refused before step 1: cells, slots and memory are
//! reserved. From then on a commit only goes forward. A failed verb is repeated after its
//! connection was closed and re-made, so that the first try can not land later (H22); every verb
//! here may be repeated. Past the deadline the caller is told `Unknown` and the slot keeps trying,
//! with all locks held. Once this node is fenced, the commit stops for good, and recovery decides.

pub(crate) mod copy;
pub(crate) mod purge;
pub(crate) mod trim;

use std::cell::Cell;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Epoch, NodeId, NodeSet, RemoteAddr, TxnId};
use lotus_fabric::lane::{Batch, BatchError};
use lotus_fabric::verbs::{Buffer, VerbError};
use lotus_locktable::LockService;
use lotus_mvcc::Timestamp;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::bucket::overflow_offset;
use lotus_mvcc::layout::cvt::{CELL_WORDS, Cell as CvtCell, Contents, HEADER_WORDS, Version};
use lotus_mvcc::layout::record::{RecordHeader, record_words};
use lotus_points::{cut, may_cut, point, posted};
use lotus_recovery::log::{LogEntry, LoggedWrite, WriteKind, entry_words};
use lotus_router::placement::LOG_REGION;
use lotus_router::{Replica, ReplicaSet};
use lotus_sabotage::{Rule, any_broken, broken};

use crate::api::config::VisibleOrder;
use crate::api::error::TxnError;
use crate::node::coordinator::Coordinator;
use crate::node::trims::Noted;
use crate::node::verbs::{Fenced, RETRY_PAUSE};
use crate::txn::body::{Body, Change, Receipt, Row, Target};
use crate::txn::plan::{PlannedLink, PlannedWrite, StagedWrite};
use crate::txn::slot::Slot;

/// Commits the write set in `body`, and releases its locks.
pub(crate) async fn carry_out(slot: &Slot, mut body: Box<Body>) {
    let commit = Commit::of(slot, &body);
    let outcome = match broken(Rule::CellsBeginInvisible) {
        false => commit.carry_out(&mut body).await,
        true => commit.carry_out_in_one_step(&mut body).await,
    };
    match outcome {
        Ok(()) => slot.finish(body),
        // The buffers go with the slot: their locks are for recovery to release.
        Err(Fenced) => slot.expelled(commit.txn),
    }
}

/// Replicas that get the version words of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replicas {
    /// All but the primary. In a group with one whole copy left, that copy too: a commit must be on
    /// a whole copy before the caller is told.
    Backups,
    Primaries,
    All,
}

impl Replicas {
    /// Replicas to write last, after others were written by the placement of `placed`. If the
    /// placement has changed since, all: the former primary may be a backup now, and the other way
    /// round, as a memory node that returns takes its first place again (H23).
    pub(crate) fn as_the_rest(self, coordinator: &Coordinator, placed: Epoch) -> Self {
        let same =
            placed == coordinator.configuration.placed() || broken(Rule::FormerPrimariesAreWritten);
        if same { self } else { Self::All }
    }

    pub(crate) fn of(self, set: &ReplicaSet) -> &[Replica] {
        debug_assert!(!set.members().is_empty(), "I101: every replica group keeps a copy");
        match self {
            Self::Backups if set.whole().len() == 1 => set.members(),
            Self::Backups => set.backups(),
            Self::Primaries => &set.members()[..1],
            Self::All => set.members(),
        }
    }

    /// Nodes of [`Self::of`].
    #[inline]
    fn nodes(self, set: &ReplicaSet) -> NodeSet {
        let primary = set.primary().node;
        let nodes = match self {
            Self::Backups if set.whole().len() > 1 => set.nodes().without(primary),
            Self::Primaries => primary.into(),
            Self::Backups | Self::All => set.nodes(),
        };
        debug_assert!(
            self.of(set).iter().map(|replica| replica.node).collect::<NodeSet>() == nodes,
            "the nodes are those of the replicas"
        );
        nodes
    }
}

/// Replicas that show a commit, and the placement by which they were written.
#[derive(Clone, Copy)]
struct Shown {
    on: Replicas,
    placed: Epoch,
}

/// The nodes as a batch goes through them: all at once, or one after the other where a fault point
/// may end the batch in between. What each node gets, and in what order, is the same.
fn parts(nodes: NodeSet) -> impl Iterator<Item = NodeSet> + Clone {
    let (all, each) = match may_cut() {
        false => (Some(nodes), NodeSet::EMPTY),
        true => (None, nodes),
    };
    all.into_iter().chain(each.into_iter().map(NodeSet::from))
}

pub(crate) struct Commit<'a> {
    pub(crate) slot: &'a Slot,
    txn: TxnId,
    /// End of the caller's wait; set at the first failure, since most commits see none.
    deadline: Cell<Option<Nanos>>,
}

impl<'a> Commit<'a> {
    pub(crate) fn of(slot: &'a Slot, body: &Body) -> Self {
        Self { slot, txn: body.held.txn(), deadline: Cell::new(None) }
    }

    pub(crate) fn txn(&self) -> TxnId {
        self.txn
    }

    /// Carries out the steps of the module docs, in their order.
    async fn carry_out(&self, body: &mut Body) -> Result<(), Fenced> {
        body.plan_commit(self.coordinator());
        self.write_invisible(body).await?;
        if broken(Rule::CommitsOutliveCallers) && !self.slot.awaits(self.txn) {
            self.coordinator().locks.release(&mut body.held);
            return Ok(());
        }
        let commit_ts = self.draw_timestamp().await?;
        body.check_timestamp(commit_ts);
        let shown = self.show_on_backups(body, commit_ts).await?;
        self.show_on_primaries(body, commit_ts, shown).await?;
        self.reply(body, commit_ts);
        self.unlock(body, commit_ts).await;
        Ok(())
    }

    /// Step 1: the log entry, the records, and the cells as INVISIBLE, on every replica.
    #[inline]
    async fn write_invisible(&self, body: &mut Body) -> Result<(), Fenced> {
        let coordinator = self.coordinator();
        if broken(Rule::LocksCoverCommit) {
            coordinator.locks.release(&mut body.held);
        }
        let version = Version::Invisible(self.txn);
        if broken(Rule::TimestampAfterCells) {
            let mut batch = coordinator.lane.batch();
            body.add_data(coordinator, self, version, &mut batch);
            drop(batch.post());
        } else {
            self.until_done(|batch| body.add_data(coordinator, self, version, batch)).await?;
        }
        point!(coordinator.node.id.0, CellsLanded);
        Ok(())
    }

    /// Step 3: the version words on the backups, or on all replicas if the order does not matter.
    #[inline]
    async fn show_on_backups(
        &self,
        body: &mut Body,
        commit_ts: Timestamp,
    ) -> Result<Shown, Fenced> {
        let coordinator = self.coordinator();
        let config = &coordinator.shared.config;
        let on = match config.visible_order {
            _ if broken(Rule::BackupsFirst) => Replicas::All,
            VisibleOrder::BackupsFirst if config.replicas > 1 => Replicas::Backups,
            _ => Replicas::All,
        };
        let placed = coordinator.configuration.placed();
        self.until_done(|batch| body.add_versions(coordinator, commit_ts, on, batch)).await?;
        if broken(Rule::UnlockLast) {
            coordinator.locks.release(&mut body.held);
        }
        if broken(Rule::RepliesComeLast) {
            self.reply(body, commit_ts);
        }
        Ok(Shown { on, placed })
    }

    /// Step 4: the version words on the primaries, unless they were written with the others.
    #[inline]
    async fn show_on_primaries(
        &self,
        body: &mut Body,
        commit_ts: Timestamp,
        shown: Shown,
    ) -> Result<(), Fenced> {
        if shown.on != Replicas::Backups {
            return Ok(());
        }
        let coordinator = self.coordinator();
        self.until_done(|batch| {
            let last = Replicas::Primaries.as_the_rest(coordinator, shown.placed);
            body.add_versions(coordinator, commit_ts, last, batch);
        })
        .await
    }

    /// Tells the caller. Only when every copy shows the commit: the backups may all be on memory
    /// nodes that are lost by now, and that only this node still reaches, because it is out and
    /// does not know (H2, H3).
    fn reply(&self, body: &Body, commit_ts: Timestamp) {
        let receipt = Receipt { commit_ts: Some(commit_ts), snapshot: body.snapshot };
        self.slot.decide(self.txn, Ok(receipt));
    }

    /// Step 5: renews what is cached of the rows, and releases the locks.
    #[inline]
    async fn unlock(&self, body: &mut Body, commit_ts: Timestamp) {
        let coordinator = self.coordinator();
        debug_assert!(self.slot.is_decided(), "I14: the caller is told before the locks go");
        point!(coordinator.node.id.0, Reply);
        body.renew_cached(coordinator, self.txn, commit_ts);
        for row in body.rows.iter().filter(|row| row.change == Change::Delete) {
            coordinator.tombstones.note(row.table, row.primary_key, commit_ts);
        }
        body.leave_slots(coordinator, commit_ts);
        coordinator.locks.release(&mut body.held);
        point!(coordinator.node.id.0, LocksReleased);
        coordinator.lane.mark_transaction();
    }

    /// Commits without in-doubt cells, to measure what the visible step costs: draws the timestamp
    /// first and writes the cells with it. Recovery could not resolve such a commit.
    async fn carry_out_in_one_step(&self, body: &mut Body) -> Result<(), Fenced> {
        body.plan_commit(self.coordinator());
        let commit_ts = self.draw_timestamp().await?;
        let version = Version::Committed(commit_ts);
        self.until_done(|batch| body.add_data(self.coordinator(), self, version, batch)).await?;
        self.reply(body, commit_ts);
        self.unlock(body, commit_ts).await;
        Ok(())
    }

    pub(crate) fn coordinator(&self) -> &Coordinator {
        &self.slot.coordinator
    }

    /// Address of the log entry of its slot on a memory node.
    #[inline]
    pub(crate) fn log_place(&self, memory_node: NodeId) -> RemoteAddr {
        RemoteAddr::new(memory_node, LOG_REGION, self.log_offset())
    }

    /// Offset of that entry in the log region of every memory node.
    #[inline]
    fn log_offset(&self) -> u64 {
        let coordinator = self.coordinator();
        let slot = if broken(Rule::LogSlotsAreOwn) { 0 } else { self.slot.number };
        coordinator.shared.log.offset(coordinator.node.index as u16, slot)
    }

    /// Posts a batch built by `add`, and repeats it until every verb has taken effect.
    #[inline]
    pub(crate) async fn until_done(&self, mut add: impl FnMut(&mut Batch)) -> Result<(), Fenced> {
        let lane = &self.coordinator().lane;
        loop {
            let mut batch = lane.batch();
            add(&mut batch);
            let posted = posted!(batch.post());
            self.slot.step();
            match posted {
                Ok(_) => return Ok(()),
                Err(error) => Box::pin(self.recover(error)).await?,
            }
            if broken(Rule::FailedWritesAreRepeated) {
                return Ok(());
            }
        }
    }

    /// Re-makes the connections of failed verbs, however long it takes.
    #[cold]
    async fn recover(&self, error: BatchError) -> Result<(), Fenced> {
        let coordinator = self.coordinator();
        for failure in error.failures() {
            let mut outcome = Err(failure.error);
            while let Err(error) = outcome {
                // A node that is out could wait for a memory node that the others have left.
                if error == VerbError::Revoked || coordinator.node.has_failed() {
                    return Err(Fenced);
                }
                if coordinator.configuration.has_left(failure.node) {
                    break;
                }
                self.check_deadline();
                coordinator.executor.sleep(RETRY_PAUSE).await;
                outcome = coordinator.reconnect(failure.node).await;
            }
        }
        Ok(())
    }

    /// Step 2: draws the commit timestamp, asking until there is an answer.
    #[inline]
    async fn draw_timestamp(&self) -> Result<Timestamp, Fenced> {
        let coordinator = self.coordinator();
        loop {
            let drawn = coordinator.timestamps.commit().await;
            // An expelled node may have asked an oracle that is expelled as well. Even with an
            // answer it must make nothing visible any more: recovery decides.
            if coordinator.node.has_failed() {
                return Err(Fenced);
            }
            if let Ok(timestamp) = drawn {
                debug_assert!(
                    timestamp > Timestamp::LOADED,
                    "I154: a commit is later than what was loaded"
                );
                point!(coordinator.node.id.0, TimestampDrawn);
                return Ok(timestamp);
            }
            self.check_deadline();
            coordinator.executor.sleep(RETRY_PAUSE).await;
        }
    }

    /// Past the deadline, tells the caller that the outcome is unknown; the commit goes on.
    #[cold]
    fn check_deadline(&self) {
        let coordinator = self.coordinator();
        let now = coordinator.executor.now();
        let limit = || now.after(coordinator.shared.config.commit_timeout);
        let deadline = self.deadline.get().unwrap_or_else(limit);
        self.deadline.set(Some(deadline));
        if now >= deadline {
            let aborted = broken(Rule::UnknownIsNotAborted);
            let error = if aborted { TxnError::Timeout } else { TxnError::Unknown(self.txn) };
            self.slot.decide(self.txn, Err(error));
        }
    }
}

/// Retires the slot of a displaced version until no snapshot needs it, if the cell is now
/// `bound` to another slot. A home slot stays with its cell.
#[inline]
fn retire(coordinator: &Coordinator, row: &Row, target: &Target, bound: u64) {
    let left = target.cell.record;
    let is_left = left != 0 && left != bound && left != target.home;
    if let Some(successor) = target.successor.filter(|_| is_left) {
        coordinator.retired.borrow_mut().retire(row.records(), left, successor);
    }
}

impl Body {
    /// Plans all writes, links and log entries.
    pub(crate) fn plan_commit(&mut self, coordinator: &Coordinator) {
        let placement = coordinator.placement();
        let plan = &mut self.plan;
        let tables = self.tables.as_ref().expect("a row was added");
        for (index, row) in self.rows.iter_mut().enumerate() {
            let Some(target) = row.target.filter(|_| row.change != Change::None) else { continue };
            debug_assert!(row.executed, "I13: a row is locked and read before it is written");
            let group = row.group;
            // A reserved slot belongs to the cell from now on.
            let bound = match row.reserved.take() {
                Some(slot) => slot,
                None if row.change == Change::Trim => 0,
                None => target.slot,
            };
            let kind = match (&row.change, target.new_cvt) {
                (Change::Delete, _) => WriteKind::Delete,
                (Change::Purge, _) => WriteKind::Purge,
                (Change::Trim, _) => WriteKind::Trim,
                (_, true) => WriteKind::Insert,
                (_, false) => WriteKind::Update,
            };
            plan.logged.push(LoggedWrite {
                group: group.0,
                table: row.table,
                kind,
                cvt: target.cvt,
                cell: target.cell_index as u8,
                record: bound,
            });
            let shape = tables[usize::from(row.table.0)].def.cvt();
            plan.writes.push(PlannedWrite {
                row: index,
                group,
                record: bound,
                target,
                version_word: target.cvt + shape.cell_offset(target.cell_index),
                buffers: None,
            });
            let set = placement.replicas(group);
            let nodes = match broken(Rule::JoiningGetsWrites) {
                false => set.nodes(),
                true => set.whole().iter().map(|replica| replica.node).collect(),
            };
            plan.nodes = plan.nodes.or(nodes);
        }
        // From here on the overflow buckets belong to their chains.
        for grown in self.grown.drain(..) {
            let shape = tables[usize::from(grown.table.0)].def.cvt();
            let (group, link) = (grown.group, grown.tail + overflow_offset(shape));
            plan.links.push(PlannedLink { group, link, bucket: grown.bucket });
            plan.logged.push(LoggedWrite {
                group: group.0,
                table: grown.table,
                kind: WriteKind::Link,
                cvt: grown.tail,
                cell: 0,
                record: grown.bucket,
            });
        }
        self.check_plan();
    }

    /// Asserts that the log will name each write once, and that every slot taken has its cell.
    #[inline]
    fn check_plan(&self) {
        let plan = &self.plan;
        let (logged, written) = (plan.logged.len(), plan.writes.len() + plan.links.len());
        debug_assert_eq!(logged, written, "I11: the log names the whole write set");
        debug_assert!(
            self.rows.iter().all(|row| row.reserved.is_none()),
            "I20: a slot that was taken belongs to a cell of the plan"
        );
        debug_assert!(
            plan.writes.iter().enumerate().all(|(index, write)| {
                let cell = |write: &PlannedWrite| (write.group, write.version_word);
                plan.writes[..index].iter().all(|other| cell(other) != cell(write))
            }) || any_broken(),
            "I12: no two writes of a commit take one cell"
        );
    }

    /// Asserts that a commit is later than all that it has read.
    #[inline]
    fn check_timestamp(&self, commit_ts: Timestamp) {
        debug_assert!(
            self.snapshot.is_none_or(|snapshot| snapshot < commit_ts) || any_broken(),
            "I2: a timestamp drawn later than a snapshot is larger"
        );
        debug_assert!(
            self.plan.writes.iter().all(|write| write.target.previous < commit_ts) || any_broken(),
            "I3: a version is later than the one that it follows"
        );
    }

    /// Retires the slots of displaced versions, which no copy names any more.
    #[inline]
    fn leave_slots(&self, coordinator: &Coordinator, commit_ts: Timestamp) {
        for write in &self.plan.writes {
            let row = &self.rows[write.row];
            retire(coordinator, row, &write.target, write.record);
            let bound_anew =
                write.target.cell.record == 0 && !write.target.new_cvt && !write.goes_home();
            if bound_anew && matches!(row.change, Change::Put(_)) {
                self.note_trim(coordinator, row, commit_ts);
            }
        }
    }

    /// Bytes of a record slot of the row's table.
    fn slot_bytes(&self, row: &Row) -> u64 {
        self.table(row.table).def.slot_bytes()
    }

    /// Notes a row for trimming, if its group is full: it has one slot more than before.
    #[cold]
    fn note_trim(&self, coordinator: &Coordinator, row: &Row, commit_ts: Timestamp) {
        let slots = row.records();
        if coordinator.node.slots.is_full(slots.group) {
            let bytes = self.slot_bytes(row);
            let (key, successor) = (row.primary_key, commit_ts);
            coordinator.trims.note(Noted { slots, bytes, key, successor });
        }
    }

    /// Encodes the log entry into the batch.
    #[inline]
    pub(crate) fn stage_log(
        &self,
        coordinator: &Coordinator,
        commit: &Commit<'_>,
        batch: &mut Batch,
    ) -> Buffer {
        let count = if broken(Rule::LogNamesAll) { 1 } else { self.plan.logged.len() };
        let room = usize::from(coordinator.shared.log.max_writes());
        debug_assert!(count <= room, "I12: {count} writes in a log entry for {room}");
        let log = batch.stage(entry_words(count) * WORD_BYTES);
        let logged = self.plan.logged[..count].iter().copied();
        LogEntry::encode(batch.words_mut(log), commit.txn, coordinator.node.epoch, logged);
        log
    }

    /// Adds log entry, records and cells of this version, in this order for each memory node (H12).
    #[inline]
    fn add_data(
        &mut self,
        coordinator: &Coordinator,
        commit: &Commit<'_>,
        version: Version,
        batch: &mut Batch,
    ) {
        let placement = coordinator.placement();
        let log = self.stage_log(coordinator, commit, batch);
        for index in 0..self.plan.writes.len() {
            self.plan.writes[index].buffers = Some(self.stage(index, commit.txn, version, batch));
        }
        debug_assert!(
            !self.plan.nodes.is_empty(),
            "I11: a write set has a memory node with its log"
        );
        let nodes = self.plan.nodes.and(placement.nodes());
        let (me, parts) = (coordinator.node.id.0, parts(nodes));
        let copies = parts.clone().count();
        for (place, nodes) in parts.enumerate() {
            let log_at = commit.log_offset();
            if !broken(Rule::LogBeforeCells) && !broken(Rule::CommitsAreLogged) {
                batch.write_all(nodes, LOG_REGION, log_at, log);
            }
            if cut!(me, LogPosted, place, copies) {
                return;
            }
            let staged = self.plan.writes.iter().filter_map(|write| {
                let here = placement.replicas(write.group).nodes().and(nodes);
                Some((write, here, write.buffers.as_ref()?))
            });
            for (write, here, buffers) in staged.clone() {
                let Some(record) = buffers.record else { continue };
                batch.write_all(here, write.group.region(), write.record, record);
                if !here.is_empty() && cut!(me, RecordsPosted, place, copies) {
                    return;
                }
            }
            for (write, here, buffers) in staged {
                batch.write_all(here, write.group.region(), write.cell_begins(), buffers.cell);
                if !here.is_empty() && cut!(me, CellsPosted, place, copies) {
                    return;
                }
            }
            if broken(Rule::LogBeforeCells) {
                batch.write_all(nodes, LOG_REGION, log_at, log);
            }
            for link in &self.plan.links {
                let here = placement.replicas(link.group).nodes().and(nodes);
                batch.write_word_all(here, link.group.region(), link.link, link.bucket);
            }
        }
    }

    /// Encodes the record and the cell of one write, once for all replicas.
    #[inline]
    fn stage(&self, index: usize, txn: TxnId, version: Version, batch: &mut Batch) -> StagedWrite {
        let write = &self.plan.writes[index];
        let row = &self.rows[write.row];
        let value = match &row.change {
            Change::Put(range) => Some(&self.values[range.clone()]),
            _ => None,
        };
        let target = write.target;
        debug_assert!(
            value.is_none() || write.record != 0,
            "I12: a value is written into a slot that was reserved"
        );
        debug_assert!(
            write.record.is_multiple_of(WORD_BYTES as u64)
                && target.cvt.is_multiple_of(WORD_BYTES as u64),
            "I20: records and version tables begin at a word"
        );
        let record_words = match write.record {
            0 => 0,
            _ => record_words(row.primary_key.byte_count(), value.map_or(0, <[u8]>::len)),
        };
        debug_assert!(
            (record_words * WORD_BYTES) as u64 <= self.slot_bytes(row),
            "I12: a record fits the slot that was reserved for it"
        );
        let encode_record = |words: &mut [u64]| {
            let header = RecordHeader {
                writer: Some(txn),
                previous: target.previous,
                predecessor: target.predecessor,
                table: row.table,
            };
            header.encode(row.key, &row.primary_key, value, words);
        };
        let home_words = if write.goes_home() { record_words } else { 0 };
        let record = (record_words > home_words).then(|| {
            let buffer = batch.stage(record_words * WORD_BYTES);
            encode_record(batch.words_mut(buffer));
            buffer
        });
        let cell = CvtCell { version, ..self.cell(write, txn) }.encode();
        let header_words = if target.new_cvt { HEADER_WORDS } else { 0 };
        let buffer = batch.stage((header_words + CELL_WORDS + home_words) * WORD_BYTES);
        let (header, words) = batch.words_mut(buffer).split_at_mut(header_words);
        if target.new_cvt {
            header.copy_from_slice(&self.table(row.table).def.header(row.key).encode());
        }
        let (cell_words, home) = words.split_at_mut(CELL_WORDS);
        cell_words.copy_from_slice(&cell);
        if home_words > 0 {
            encode_record(home);
        }
        StagedWrite { record, cell: buffer }
    }

    /// Contents of the cell after a write, still INVISIBLE.
    #[inline]
    fn cell(&self, write: &PlannedWrite, txn: TxnId) -> CvtCell {
        let contents = match &self.rows[write.row].change {
            Change::Put(range) => Contents::Value { length: range.len() as u32 },
            _ => Contents::Deleted,
        };
        write.target.cell.taken_by(txn, contents, write.record)
    }

    /// Updates the version table cache with the committed versions.
    #[inline]
    fn renew_cached(&self, coordinator: &Coordinator, txn: TxnId, commit_ts: Timestamp) {
        // Rows beside their cells are not cached: one READ brings all of them.
        let cached = |write: &&PlannedWrite| !write.target.new_cvt && write.target.home == 0;
        for write in self.plan.writes.iter().filter(cached) {
            let Row { table, key, .. } = self.rows[write.row];
            let version = Version::Committed(commit_ts);
            let cell = CvtCell { version, ..self.cell(write, txn) };
            coordinator.node.versions.renew(table, key, write.target.cell_index, cell);
        }
    }

    /// Adds the version words for `replicas`.
    #[inline]
    fn add_versions(
        &self,
        coordinator: &Coordinator,
        commit_ts: Timestamp,
        replicas: Replicas,
        batch: &mut Batch,
    ) {
        debug_assert!(
            self.plan.writes.iter().all(|write| write.buffers.is_some()),
            "I13: what becomes visible was written INVISIBLE"
        );
        let word = Version::Committed(commit_ts).encode();
        let placement = coordinator.placement();
        let on = |write: &PlannedWrite| replicas.nodes(placement.replicas(write.group));
        let (me, mut place) = (coordinator.node.id.0, 0);
        // Only a fault point asks how many there are.
        let counted = self.plan.writes.iter().filter(|_| may_cut());
        let words: usize = counted.map(|write| on(write).len()).sum();
        for nodes in parts(placement.nodes()) {
            for write in &self.plan.writes {
                let here = on(write).and(nodes);
                if here.is_empty() {
                    continue;
                }
                batch.write_word_all(here, write.group.region(), write.version_word, word);
                let cut = match replicas {
                    Replicas::Backups => cut!(me, VisibleOnBackups, place, words),
                    _ => cut!(me, VisibleOnPrimaries, place, words),
                };
                if cut {
                    return;
                }
                place += here.len();
            }
        }
    }
}
