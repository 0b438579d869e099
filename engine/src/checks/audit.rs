//! Invariants of the memory nodes and lock tables that hold when no transaction runs.
//!
//! Every check reads the memory itself, through an ordinary lane, and trusts no state of the
//! coordinators. Run the audit only while nothing else runs.

use std::collections::{BTreeMap, BTreeSet};

use lotus_fabric::ids::{RemoteAddr, ShardId, TableId, TxnId};
use lotus_fabric::lane::{BatchError, Lane};
use lotus_fabric::verbs::MAX_VERB_BYTES;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::bucket::Bucket;
use lotus_mvcc::layout::cvt::{Cell, Contents, Slot, Version};
use lotus_mvcc::layout::record::Record;
use lotus_mvcc::layout::region::{FREE_SLAB, HEADER_BYTES, SLAB_BYTES, SlabEntry, SlabKind};
use lotus_mvcc::{PrimaryKey, RowName, TableDef, Timestamp};
use lotus_recovery::log::{LogEntry, LogError, WriteKind};
use lotus_recovery::unresolved;
use lotus_router::placement::LOG_REGION;
use lotus_router::{GroupId, Placement, Replica};
use zerocopy::IntoBytes;

use crate::api::config::Config;
use crate::api::error::{ClusterError, unreachable_nodes};
use crate::cluster::handle::Cluster;
use crate::cluster::memory_status::{MemoryStanding, MemoryStatus};
use crate::node::shared::Shared;
use crate::space::slabs;
use lotus_recovery::membership;

/// Result of checking one property.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The property that must hold.
    pub name: &'static str,
    /// Whether it holds.
    pub passed: bool,
    /// Number of items checked, and the first violation.
    pub detail: String,
}

/// Memory allocated to the tables. Slabs that were given back do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryUse {
    /// Bytes allocated in all groups, for one replica per group.
    pub replica_bytes: u64,
    /// Bytes allocated on all memory nodes together, logs not included.
    pub total_bytes: u64,
}

/// Called with a row's primary key, newest committed value, and its writer (`None` for the loader).
pub type RowVisitor<'a> = dyn FnMut(&PrimaryKey, &[u8], Option<TxnId>) + 'a;

impl Cluster {
    /// Checks every replica, cell, record, log entry and lock. Let the cluster
    /// [settle](Cluster::settle) first: otherwise rows that a coordinator is purging have cells
    /// INVISIBLE, differ between replicas, and are locked, although all commits were reported.
    ///
    /// # Errors
    /// If the memory nodes cannot be read. Violations are not errors: they are in the findings.
    pub fn audit(&self) -> Result<Vec<Finding>, ClusterError> {
        let mut findings = memory(&self.shared)?;
        findings.extend(self.locks_left());
        findings.extend(self.lock_objects_left(&self.shared.surviving())?);
        findings.push(self.contradictions());
        findings.push(self.suspicions_left()?);
        findings.push(self.copies_left()?);
        findings.push(self.trees()?);
        Ok(findings)
    }

    /// Visits the newest version of every existing row of a table, for an audit, when nothing runs:
    /// beside writers the visit may show some rows before and some after a write. Let the cluster
    /// [settle](Cluster::settle) first. [`Cluster::scan`] serves other purposes.
    ///
    /// # Errors
    /// An unknown table, or memory nodes that cannot be read.
    pub fn audit_scan(
        &self,
        table: TableId,
        visit: &mut RowVisitor<'_>,
    ) -> Result<(), ClusterError> {
        visit_rows(&self.shared, table, visit)
    }

    /// Memory allocated to the tables.
    ///
    /// # Errors
    /// If the memory nodes cannot be read.
    pub fn memory_use(&self) -> Result<MemoryUse, ClusterError> {
        let shared = &*self.shared;
        let placement = &shared.surviving();
        let used = shared.control.with_lane(|lane| async move {
            let scan = Scan { shared, placement, lane };
            let mut used = MemoryUse { replica_bytes: 0, total_bytes: 0 };
            for (group, replicas) in placement.groups() {
                let (primary, layout) = (scan.primary(group), &shared.region);
                let free = slabs::marked_free(&scan.lane, primary, layout).await?;
                let bytes = scan.end(group).await? - layout.first_slab() - free;
                used.replica_bytes += bytes;
                used.total_bytes += bytes * replicas.members().len() as u64;
            }
            Ok(used)
        })?;
        used.map_err(unreachable_nodes)
    }

    /// Checks that every row has a copy left, and names the memory nodes that are lost.
    fn copies_left(&self) -> Result<Finding, ClusterError> {
        let MemoryStatus { nodes, copies, .. } = self.memory_status()?;
        let fewest = copies.iter().copied().min().unwrap_or(0);
        let of = self.shared.placement.replica_count();
        let lost = |node: &usize| nodes[*node] != MemoryStanding::Serving;
        let lost: Vec<usize> = (0..nodes.len()).filter(lost).collect();
        let detail = format!("{fewest} of {of} copies at least; memory nodes lost: {lost:?}");
        Ok(Finding { name: "every row has a copy left", passed: fewest > 0, detail })
    }

    fn contradictions(&self) -> Finding {
        let mut met = Tally::new("recovery has met nothing that cannot be");
        for node in &self.shared.nodes {
            met.seen += 1;
            if let Some(what) = node.members.contradiction() {
                met.complain(|| format!("compute node {}: {what}", node.index));
            }
        }
        met.finish()
    }
}

/// Findings about the memory nodes.
fn memory(shared: &Shared) -> Result<Vec<Finding>, ClusterError> {
    let (placement, groups) = (&shared.surviving(), shared.placement.group_count());
    let by_group = shared.control.in_parallel(groups, |group| {
        let group = GroupId(group as u8);
        shared.control.with_lane(|lane| Scan { shared, placement, lane }.group(group))
    });
    let mut tallies = vec![
        Tally::new("every replica is byte for byte the same"),
        Tally::new("no cell is left INVISIBLE or torn"),
        Tally::new("every version has its record, whole and its own"),
        Tally::new("a slab that is free is all zeroes"),
    ];
    for group in by_group {
        let group = group?.map_err(unreachable_nodes)?;
        tallies.iter_mut().zip(group).for_each(|(all, part)| all.merge(part));
    }
    let rest = shared.control.with_lane(|lane| async move {
        let scan = Scan { shared, placement, lane };
        Ok([scan.check_cached().await?, scan.logs().await?])
    })?;
    tallies.extend(rest.map_err(unreachable_nodes)?);
    Ok(tallies.into_iter().map(Tally::finish).collect())
}

/// As [`Cluster::audit_scan`].
fn visit_rows(
    shared: &Shared,
    table: TableId,
    visit: &mut RowVisitor<'_>,
) -> Result<(), ClusterError> {
    let table = shared.table(table).ok_or(ClusterError::UnknownTable(table))?;
    let placement = &shared.surviving();
    let scanned = shared.control.with_lane(|lane| async move {
        let scan = Scan { shared, placement, lane };
        for (group, _) in placement.groups() {
            scan.rows(&table, group, &mut |row| {
                let Some((record, words)) = row.newest() else { return };
                if let (Some(value), Ok(key)) = (record.value_range(), record.primary_key()) {
                    visit(&key, &words.as_bytes()[value], record.header().writer);
                }
            })
            .await?;
        }
        Ok(())
    })?;
    scanned.map_err(unreachable_nodes)
}

/// Origin of a transaction, for the text of a violation: a transaction reported to a client must be
/// over, and upkeep is over once the cluster has settled.
pub(crate) fn whose(config: &Config, txn: TxnId) -> &'static str {
    if config.is_upkeep(txn.slot()) { "upkeep of a coordinator" } else { "of a client" }
}

/// Counts of one check: items seen and violations.
pub(crate) struct Tally {
    name: &'static str,
    pub(crate) seen: u64,
    wrong: u64,
    first: Option<String>,
}

impl Tally {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, seen: 0, wrong: 0, first: None }
    }

    pub(crate) fn complain(&mut self, what: impl FnOnce() -> String) {
        self.wrong += 1;
        self.first.get_or_insert_with(what);
    }

    fn merge(&mut self, other: Self) {
        self.seen += other.seen;
        self.wrong += other.wrong;
        self.first = self.first.take().or(other.first);
    }

    pub(crate) fn finish(self) -> Finding {
        let mut detail = format!("{} looked at, {} wrong", self.seen, self.wrong);
        if let Some(first) = self.first {
            detail.push_str("; the first: ");
            detail.push_str(&first);
        }
        Finding { name: self.name, passed: self.wrong == 0, detail }
    }
}

/// One row's CVT and the records of its committed versions.
struct SeenRow<'a> {
    offset: u64,
    /// Name of the row; `None` if the header is torn.
    name: Option<RowName>,
    /// `None` for a torn cell.
    cells: Vec<Option<SeenCell<'a>>>,
}

struct SeenCell<'a> {
    cell: Cell,
    /// Words of the record, for a committed version.
    record: Option<&'a [u64]>,
}

impl<'a> SeenRow<'a> {
    /// Record of the newest committed version, and its words.
    fn newest(&self) -> Option<(Record<'a>, &'a [u64])> {
        let cells = self.cells.iter().flatten();
        let newest = cells.max_by_key(|seen| match seen.cell.version {
            Version::Committed(time) => time,
            _ => Timestamp::ZERO,
        })?;
        let words = newest.record?;
        Some((Record::decode(self.name?.key, words).ok()?, words))
    }

    /// Begin and end of each home slot.
    fn homes(&self, table: &TableDef) -> impl Iterator<Item = (u64, u64)> {
        let (shape, offset) = (table.cvt(), self.offset);
        let bytes = (shape.home_words() * WORD_BYTES) as u64;
        let home = move |index| (shape.home(offset, index), shape.home(offset, index) + bytes);
        (0..shape.cells()).map(home).filter(|(begin, _)| *begin != 0)
    }

    /// Whether a record names the right slot for its predecessor, if the CVT still has the
    /// predecessor.
    fn follows(&self, record: &Record<'_>) -> bool {
        let previous = Version::Committed(record.previous());
        let mut before = self.cells.iter().flatten().map(|seen| seen.cell);
        before.all(|cell| cell.version != previous || cell.record == record.predecessor())
    }

    fn check(&self, of: (&TableDef, &Config), cells: &mut Tally, records: &mut Tally) {
        let (table, config) = of;
        let at = |index| self.offset + table.cvt().cell_offset(index);
        for (index, seen) in self.cells.iter().enumerate() {
            cells.seen += 1;
            let Some(seen) = seen else {
                cells.complain(|| format!("table {}: torn at {:#x}", table.id().0, at(index)));
                continue;
            };
            if let Version::Invisible(writer) = seen.cell.version {
                cells.complain(|| {
                    let (table, whose) = (table.id().0, whose(config, writer));
                    format!("table {table}: {writer:?}, {whose}, left {:#x} INVISIBLE", at(index))
                });
            }
            let Some(words) = seen.record else { continue };
            records.seen += 1;
            let Some(name) = self.name else { continue };
            let sound = Record::decode(name.key, words).is_ok_and(|record| {
                let contents = match seen.cell.state {
                    lotus_mvcc::layout::cvt::CellState::Valid => {
                        Contents::Value { length: seen.cell.length }
                    }
                    _ => Contents::Deleted,
                };
                let own = |key: PrimaryKey| table.name(&key) == name;
                record.table() == table.id()
                    && record.primary_key().is_ok_and(own)
                    && record.contents() == contents
                    && seen.cell.version.is_after(record.previous())
                    && self.follows(&record)
            });
            if !sound {
                records.complain(|| format!("table {}: cell {:#x}", table.id().0, at(index)));
            }
        }
    }
}

/// Reader of all memory nodes, through one lane.
pub(crate) struct Scan<'a> {
    pub(crate) shared: &'a Shared,
    /// Placement over the remaining memory nodes.
    pub(crate) placement: &'a Placement,
    pub(crate) lane: Lane,
}

/// The buckets of a table in one group, block by block; overflow buckets come after their links.
pub(crate) struct IndexBlocks {
    /// Offset and length in bytes of the unread blocks.
    pending: Vec<(u64, usize)>,
}

impl IndexBlocks {
    pub(crate) fn new(table: &TableDef, group: GroupId) -> Self {
        let geometry = table.geometry();
        let bytes = geometry.shape().index_bytes(usize::from(group.0));
        if bytes == 0 {
            return Self { pending: Vec::new() };
        }
        // The group's first shard has the group's own number.
        let base = geometry.shard_base(ShardId::from_low_bits(u64::from(group.0)));
        let bucket_bytes = table.bucket_words() * WORD_BYTES;
        let block_bytes = MAX_VERB_BYTES / bucket_bytes * bucket_bytes;
        let blocks = (base..base + bytes).step_by(block_bytes);
        let length = |offset: u64| (base + bytes - offset).min(block_bytes as u64) as usize;
        Self { pending: blocks.map(|offset| (offset, length(offset))).collect() }
    }

    /// Returns the offset and words of the next block, read from `replica`; `None` at the end.
    pub(crate) async fn next(
        &mut self,
        scan: &Scan<'_>,
        table: &TableDef,
        replica: Replica,
    ) -> Result<Option<(u64, Vec<u64>)>, BatchError> {
        let Some((offset, bytes)) = self.pending.pop() else { return Ok(None) };
        let words = scan.read(replica.at(offset), bytes).await?;
        for bucket in words.chunks_exact(table.bucket_words()) {
            let behind = Bucket::new(bucket, table.cvt()).overflow();
            let offsets = behind.into_iter().flat_map(|behind| behind.offsets(table.cvt()));
            self.pending.extend(offsets.map(|next| (next, table.bucket_words() * WORD_BYTES)));
        }
        Ok(Some((offset, words)))
    }
}

impl Scan<'_> {
    /// Checks the replicas, cells and records of one group.
    async fn group(self, group: GroupId) -> Result<[Tally; 4], BatchError> {
        let (mut replicas, mut cells) = (Tally::new(""), Tally::new(""));
        let (mut records, mut free) = (Tally::new(""), Tally::new(""));
        let (mut named, mut homes) = (BTreeMap::new(), BTreeMap::new());
        let tables = self.shared.all_tables();
        for table in tables {
            let mut slots = Vec::new();
            self.rows(&table, group, &mut |row| {
                row.check((&table, &self.shared.config), &mut cells, &mut records);
                slots.extend(row.cells.iter().flatten().map(|seen| seen.cell.record));
                let shown = row.cells.iter().flatten();
                named.extend(shown.filter_map(|seen| {
                    let bytes = (seen.record?.len() * WORD_BYTES) as u64;
                    Some((seen.cell.record, seen.cell.record + bytes))
                }));
                homes.extend(row.homes(&table));
            })
            .await?;
            slots.retain(|slot| *slot != 0);
            slots.sort_unstable();
            for pair in slots.windows(2).filter(|pair| pair[0] == pair[1]) {
                records.complain(|| format!("two cells name the slot at {:#x}", pair[0]));
            }
        }
        self.compare_replicas(group, &named, &homes, &mut replicas).await?;
        self.check_free_slabs(group, &mut free).await?;
        Ok([replicas, cells, records, free])
    }

    fn primary(&self, group: GroupId) -> Replica {
        self.placement.replicas(group).primary()
    }

    /// Offset of the end of a group's allocated memory.
    async fn end(&self, group: GroupId) -> Result<u64, BatchError> {
        slabs::allocated_end(&self.lane, self.primary(group), &self.shared.region).await
    }

    pub(crate) async fn read(
        &self,
        addr: RemoteAddr,
        bytes: usize,
    ) -> Result<Vec<u64>, BatchError> {
        let mut batch = self.lane.batch();
        let buffer = batch.read(addr, bytes);
        let done = batch.post().await?;
        Ok(done.words(buffer).to_vec())
    }

    /// Compares all allocated memory but the header page, of which only the primary's cursor
    /// counts. A failed node may have written a record on some replicas only, and a newly made copy
    /// has only the records that versions name. So once a node has failed, only the `named` records
    /// are compared in slabs for records and in `homes`: both map from begin to end.
    async fn compare_replicas(
        &self,
        group: GroupId,
        named: &BTreeMap<u64, u64>,
        homes: &BTreeMap<u64, u64>,
        tally: &mut Tally,
    ) -> Result<(), BatchError> {
        let end = self.end(group).await?;
        let failed = self.shared.has_lost_a_node();
        let records = self.record_slabs(group).await?;
        let members = self.placement.replicas(group).members();
        let within = |ranges: &BTreeMap<u64, u64>, at: u64| {
            ranges.range(..=at).next_back().is_some_and(|(_, end)| at < *end)
        };
        let counts = |at: u64| {
            let record = failed && (records.contains(&(at / SLAB_BYTES)) || within(homes, at));
            !record || within(named, at)
        };
        for offset in (HEADER_BYTES..end).step_by(MAX_VERB_BYTES) {
            let bytes = (end - offset).min(MAX_VERB_BYTES as u64) as usize;
            let mut batch = self.lane.batch();
            let copies: Vec<_> =
                members.iter().map(|replica| batch.read(replica.at(offset), bytes)).collect();
            let done = batch.post().await?;
            tally.seen += bytes as u64;
            let first = done.words(copies[0]);
            for (copy, replica) in copies.iter().zip(members).skip(1) {
                let at = |word: usize| offset + (word * WORD_BYTES) as u64;
                let pairs = done.words(*copy).iter().zip(first).enumerate();
                let mut differs = pairs.filter(|(_, (a, b))| a != b).map(|(word, _)| at(word));
                if let Some(at) = differs.find(|at| counts(*at)) {
                    tally.complain(|| {
                        format!("group {} differs on node {} at {at:#x}", group.0, replica.node.0)
                    });
                }
            }
        }
        Ok(())
    }

    /// Slabs of records, if a node has failed; otherwise empty, to compare all words.
    async fn record_slabs(&self, group: GroupId) -> Result<BTreeSet<u64>, BatchError> {
        if !self.shared.has_lost_a_node() {
            return Ok(BTreeSet::new());
        }
        let kind = |word| SlabEntry::decode(word).map(|entry| entry.kind);
        let directory = self.directory(group).await?.into_iter();
        let records = directory.filter(|(_, word)| kind(*word) == Some(SlabKind::Records));
        Ok(records.map(|(slab, _)| slab / SLAB_BYTES).collect())
    }

    /// Allocated slabs of a group, with their words in the primary's directory.
    async fn directory(&self, group: GroupId) -> Result<Vec<(u64, u64)>, BatchError> {
        let layout = &self.shared.region;
        let (mut slab, end, mut all) = (layout.first_slab(), self.end(group).await?, Vec::new());
        while slab < end {
            let words = slabs::directory_from(&self.lane, self.primary(group), layout, slab);
            for word in words.await? {
                all.push((slab, word));
                slab += SLAB_BYTES;
            }
        }
        all.retain(|(slab, _)| *slab < end);
        Ok(all)
    }

    /// Checks the slabs of dropped tables on the primary.
    async fn check_free_slabs(&self, group: GroupId, tally: &mut Tally) -> Result<(), BatchError> {
        let directory = self.directory(group).await?.into_iter();
        for (slab, _) in directory.filter(|(_, word)| *word == FREE_SLAB) {
            tally.seen += 1;
            for at in (slab..slab + SLAB_BYTES).step_by(MAX_VERB_BYTES) {
                let words = self.read(self.primary(group).at(at), MAX_VERB_BYTES).await?;
                if words.iter().any(|word| *word != 0) {
                    tally.complain(|| format!("group {}, within {at:#x}", group.0));
                    break;
                }
            }
        }
        Ok(())
    }

    /// Passes every CVT of a table in one group, with its records, to `visit`.
    async fn rows(
        &self,
        table: &TableDef,
        group: GroupId,
        visit: &mut dyn FnMut(&SeenRow<'_>),
    ) -> Result<(), BatchError> {
        let mut blocks = IndexBlocks::new(table, group);
        while let Some((offset, words)) = blocks.next(self, table, self.primary(group)).await? {
            self.buckets(table, group, offset, &words, visit).await?;
        }
        Ok(())
    }

    /// Passes the CVTs in adjacent buckets to `visit`.
    async fn buckets(
        &self,
        table: &TableDef,
        group: GroupId,
        offset: u64,
        words: &[u64],
        visit: &mut dyn FnMut(&SeenRow<'_>),
    ) -> Result<(), BatchError> {
        let cvt_bytes = (table.cvt_words() * WORD_BYTES) as u64;
        let bucket_bytes = (table.bucket_words() * WORD_BYTES) as u64;
        let mut batch = self.lane.batch();
        let mut found = Vec::new();
        for (number, bucket) in words.chunks_exact(table.bucket_words()).enumerate() {
            for (slot, cvt) in Bucket::new(bucket, table.cvt()).cvts().enumerate() {
                let name = match cvt.slot() {
                    Slot::Free => continue,
                    Slot::Used(header) => Some(header.name),
                    Slot::Torn => None,
                };
                let cells = cvt.cells().map(|cell| {
                    let cell = cell.ok()?;
                    let contents = Contents::Value { length: cell.length };
                    let bytes = table.record_words(contents) * WORD_BYTES;
                    // A deletion may have no record.
                    let has_record =
                        matches!(cell.version, Version::Committed(_)) && cell.record != 0;
                    let record =
                        has_record.then(|| batch.read(self.primary(group).at(cell.record), bytes));
                    Some((cell, record))
                });
                let at = offset + number as u64 * bucket_bytes + slot as u64 * cvt_bytes;
                found.push((at, name, cells.collect::<Vec<_>>()));
            }
        }
        let done = batch.post().await?;
        for (offset, name, cells) in found {
            let cells = cells.into_iter().map(|cell| {
                let (cell, record) = cell?;
                Some(SeenCell { cell, record: record.map(|buffer| done.words(buffer)) })
            });
            visit(&SeenRow { offset, name, cells: cells.collect() });
        }
        Ok(())
    }

    /// Checks every coroutine slot's log entry on every memory node.
    async fn logs(self) -> Result<Tally, BatchError> {
        let mut tally = Tally::new("nothing is unresolved in the logs");
        let log = self.shared.log;
        for memory_node in self.placement.nodes() {
            for node in &self.shared.peers {
                for slot in 0..self.shared.config.slots() as u16 {
                    let offset = log.offset(node.index as u16, slot);
                    let addr = RemoteAddr::new(memory_node, LOG_REGION, offset);
                    let words = self.read(addr, log.slot_bytes() as usize).await?;
                    match LogEntry::decode(&words) {
                        Ok(entry) => self.check_entry(&entry, &mut tally).await?,
                        Err(LogError::Empty) => {}
                        Err(error) => {
                            tally
                                .complain(|| format!("slot {slot} of node {}: {error}", node.id.0));
                        }
                    }
                }
            }
        }
        Ok(tally)
    }

    async fn check_entry(&self, entry: &LogEntry<'_>, tally: &mut Tally) -> Result<(), BatchError> {
        tally.seen += 1;
        let mut batch = self.lane.batch();
        let mut words = Vec::new();
        for write in entry.writes().filter(|write| write.kind != WriteKind::Link) {
            let Some(table) = self.shared.table(write.table) else { continue };
            let at = write.cvt + table.cvt().cell_offset(usize::from(write.cell));
            for replica in self.placement.replicas(GroupId(write.group)).members() {
                words.push(batch.read(replica.at(at), WORD_BYTES));
            }
        }
        let done = batch.post().await?;
        if unresolved(entry, words.into_iter().map(|buffer| done.words(buffer)[0])) {
            let (txn, whose) = (entry.txn(), whose(&self.shared.config, entry.txn()));
            tally.complain(|| format!("transaction {txn:?}, {whose}"));
        }
        Ok(())
    }
}

impl Cluster {
    /// Audit: no live member is suspected once all requests are answered.
    pub(crate) fn suspicions_left(&self) -> Result<Finding, ClusterError> {
        let mut left = Tally::new("no live node is suspected of being dead");
        let read = membership::read(self.shared.async_authority.authority());
        let now = read.map_err(|error| ClusterError::Unreachable(error.to_string()))?;
        for node in self.shared.nodes.iter().filter(|node| !node.has_failed()) {
            left.seen += 1;
            for suspect in node.suspects.nodes().filter(|suspect| now.is_live(*suspect)) {
                left.complain(|| format!("compute node {} suspects {suspect:?}", node.index));
            }
        }
        Ok(left.finish())
    }
}
