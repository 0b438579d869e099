//! Batches of a commit: the plan, the writes of each step, and the slots left behind.
//!
//! [`Commit`] fixes the order of the steps; this module has the bytes and nodes of each step.

use lotus_fabric::ids::{NodeSet, TxnId};
use lotus_fabric::lane::Batch;
use lotus_fabric::verbs::Buffer;
use lotus_mvcc::Timestamp;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::bucket::overflow_offset;
use lotus_mvcc::layout::cvt::{CELL_WORDS, Cell as CvtCell, Contents, HEADER_WORDS, Version};
use lotus_mvcc::layout::record::{RecordHeader, record_words};
use lotus_points::{cut, may_cut};
use lotus_recovery::log::{LogEntry, LoggedWrite, WriteKind, entry_words};
use lotus_router::placement::LOG_REGION;
use lotus_sabotage::{Rule, any_broken, broken};

use super::{Commit, Replicas};
use crate::node::coordinator::Coordinator;
use crate::node::memory::trims::Noted;
use crate::txn::body::{Body, Change, Row, Target};
use crate::txn::plan::{PlannedLink, PlannedWrite, StagedWrite};

/// Takes from `left` the nodes that a batch writes next: all nodes at once, or one by one if a
/// fault point may end the batch in between. Both ways post equal writes to a node, in equal order.
#[inline]
fn next_part(left: &mut NodeSet) -> Option<NodeSet> {
    match may_cut() {
        false => Some(std::mem::take(left)).filter(|all| !all.is_empty()),
        true => left.take_first().map(NodeSet::from),
    }
}

/// Retires the slot of a displaced version until no snapshot needs it, if the cell is now
/// `bound` to another slot. A home slot stays with its cell.
#[inline]
fn retire(coordinator: &Coordinator, row: &Row, target: &Target, bound: u64) {
    let left = target.cell.record;
    let is_left = left != 0 && left != bound && left != target.home;
    if let Some(successor) = target.successor.filter(|_| is_left) {
        debug_assert!(left != target.home, "I261: a home slot is never retired");
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
            let Some(target) = &row.target else { continue };
            if row.change == Change::None {
                continue;
            }
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
            let version_word = target.cvt + shape.cell_offset(target.cell_index);
            plan.writes.push(PlannedWrite {
                row: index,
                group,
                record: bound,
                goes_home: bound != 0 && bound == target.home,
                version_word,
                cell_begins: if target.new_cvt { target.cvt } else { version_word },
                buffers: None,
            });
            let set = placement.replicas(group);
            let nodes = match broken(Rule::JoiningGetsWrites) {
                false => set.nodes(),
                true => set.whole().iter().map(|replica| replica.node).collect(),
            };
            plan.nodes = plan.nodes.or(nodes);
        }
        // From here on, the overflow buckets belong to their chains.
        for grown in self.grown.drain(..) {
            let shape = tables[usize::from(grown.table.0)].def.cvt();
            let (group, link) = (grown.group, grown.tail + overflow_offset(shape));
            let word = grown.buckets.encode();
            plan.links.push(PlannedLink { group, link, word });
            plan.logged.push(LoggedWrite {
                group: group.0,
                table: grown.table,
                kind: WriteKind::Link,
                cvt: grown.tail,
                cell: 0,
                record: word,
            });
        }
        self.check_plan();
    }

    /// Target of a planned write.
    #[inline]
    pub(super) fn target(&self, write: &PlannedWrite) -> &Target {
        self.rows[write.row].target.as_ref().expect("a row that is written has a target")
    }

    /// Asserts that the log will name each write once, and that every reserved slot has a cell.
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

    /// Asserts that a commit is later than everything it has read.
    #[inline]
    pub(super) fn check_timestamp(&self, commit_ts: Timestamp) {
        debug_assert!(
            self.snapshot.is_none_or(|snapshot| snapshot < commit_ts) || any_broken(),
            "I2: a timestamp drawn later than a snapshot is larger"
        );
        debug_assert!(
            self.plan.writes.iter().all(|write| self.target(write).previous < commit_ts)
                || any_broken(),
            "I3: a version is later than the one that it follows"
        );
    }

    /// Retires the slots of displaced versions, which no copy names any more.
    #[inline]
    pub(super) fn leave_slots(&self, coordinator: &Coordinator, commit_ts: Timestamp) {
        for write in &self.plan.writes {
            let (row, target) = (&self.rows[write.row], self.target(write));
            retire(coordinator, row, target, write.record);
            let bound_anew = target.cell.record == 0 && !target.new_cvt && !write.goes_home;
            if bound_anew && matches!(row.change, Change::Put(_)) {
                self.note_trim(coordinator, row, commit_ts);
            }
        }
    }

    /// Bytes of a record slot of the row's table.
    fn slot_bytes(&self, row: &Row) -> u64 {
        self.table(row.table).def.slot_bytes()
    }

    /// Notes a row for trimming, if the group is full: the row has one slot more than before.
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

    /// Adds the log entry, records and cells of this version, in this order per memory node (H12).
    /// Every write goes to all members of its group, so replicas hold the same bytes (I17).
    #[inline]
    pub(super) fn add_data(
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
        let me = coordinator.node.id.0;
        let mut left = self.plan.nodes.and(placement.nodes());
        let copies = left.len();
        while let Some(nodes) = next_part(&mut left) {
            let place = copies - left.len() - 1;
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
                batch.write_all(here, write.group.region(), write.cell_begins, buffers.cell);
                if !here.is_empty() && cut!(me, CellsPosted, place, copies) {
                    return;
                }
            }
            if broken(Rule::LogBeforeCells) {
                batch.write_all(nodes, LOG_REGION, log_at, log);
            }
            for link in &self.plan.links {
                let here = placement.replicas(link.group).nodes().and(nodes);
                batch.write_word_all(here, link.group.region(), link.link, link.word);
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
        let target = self.target(write);
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
        let home_words = if write.goes_home { record_words } else { 0 };
        debug_assert!(
            home_words <= self.table(row.table).def.cvt().home_words(),
            "I261: a record that goes home ends where the next cell begins"
        );
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
            header.copy_from_slice(&self.table(row.table).def.header(row.name()).encode());
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
        self.target(write).cell.taken_by(txn, contents, write.record)
    }

    /// Updates the version table cache with the committed versions.
    #[inline]
    pub(super) fn renew_cached(&self, coordinator: &Coordinator, txn: TxnId, commit_ts: Timestamp) {
        for write in &self.plan.writes {
            let target = self.target(write);
            // Rows with home slots are not cached: one READ brings both CVT and record.
            if target.new_cvt || target.home != 0 {
                continue;
            }
            let row = &self.rows[write.row];
            let version = Version::Committed(commit_ts);
            let cell = CvtCell { version, ..self.cell(write, txn) };
            let changed = (target.cell_index, cell);
            coordinator.node.versions.renew(row.table, row.name(), target.cvt, changed);
        }
    }

    /// Adds the version words for `replicas`.
    #[inline]
    pub(super) fn add_versions(
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
        // Only a fault point needs the number of words.
        let counted = self.plan.writes.iter().filter(|_| may_cut());
        let words: usize = counted.map(|write| on(write).len()).sum();
        let mut left = placement.nodes();
        while let Some(nodes) = next_part(&mut left) {
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
