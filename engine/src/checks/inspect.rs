//! Invariants of memory that hold at any moment, while transactions are under way.
//!
//! A simulator can stop all nodes between any two events and check. Recovery from a node's death at
//! that moment would rely on these properties.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lotus_fabric::ids::{Epoch, Key, NodeId, RemoteAddr, ShardId, TxnId};
use lotus_fabric::lane::BatchError;
use lotus_locktable::{LockKey, LockMode};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::bucket::Bucket;
use lotus_mvcc::layout::cvt::{HEADER_WORDS, Slot, Version};
use lotus_mvcc::{TableDef, Timestamp};
use lotus_recovery::membership::FIRST_EPOCH;
use lotus_recovery::membership::returns::{Return, Stage};
use lotus_recovery::{LogEntry, Membership, membership};
use lotus_router::placement::LOG_REGION;
use lotus_router::{GroupId, Replica};

use crate::api::config::{LockKind, VisibleOrder};
use crate::api::error::{ClusterError, unreachable_nodes};
use crate::checks::audit::{Finding, IndexBlocks, Scan, Tally};
use crate::cluster::handle::Cluster;
use crate::node::memory::configuration::{FLOORS_GROUP, NO_FLOOR, floor_word};
use crate::node::memory::memory_life::{HEADER_BYTES, life_at};
use crate::node::shared::{ComputeNode, Shared};

/// Name of the finding on H12. Every property has a named finding.
pub const LOGGED: &str = "wherever a cell is INVISIBLE, a whole log names it";
/// Name of the finding on H3; see [`LOGGED`].
pub const BACKED: &str = "what the primary shows, every backup has";
/// Name of the finding on H3 and H10; see [`LOGGED`].
pub const LOCKED: &str = "wherever a cell is INVISIBLE, its writer holds the row's lock";
/// Name of the finding on H11; see [`LOGGED`].
pub const CACHED: &str = "a cached CVT is the primary's, or its row is locked to write";
/// Name of the finding on H19; see [`LOGGED`].
pub const OWNED: &str = "no two compute nodes grant the locks of one shard";
/// Name of the finding on H13; see [`LOGGED`].
pub const FLOORED: &str = "every node that may read counts in the horizon";

/// Name of the finding on H2; see [`LOGGED`].
pub const FENCED: &str = "every memory node that serves fences all expelled nodes";

/// Number of cached CVTs compared in one batch.
const COMPARED_AT_ONCE: usize = 64;

impl Cluster {
    /// Checks the cells of all replicas, the logs and the caches at this moment. No core may run
    /// meanwhile, but transactions may be under way. Skips memory nodes that do not answer.
    ///
    /// # Errors
    /// `Unreachable`, if a memory node cannot be read.
    pub fn inspect(&self) -> Result<Vec<Finding>, ClusterError> {
        let shared = &*self.shared;
        let placement = &shared.surviving();
        // While a memory node is being removed no transaction reads a copy that is to be promoted.
        let now = membership::read(shared.async_authority.authority());
        let reduced = now.map_or(FIRST_EPOCH, |now| now.reduced());
        let read = shared.nodes.iter().any(|node| node.configuration.has_resumed(reduced));
        let inspected = shared.control.with_lane(|lane| async move {
            let scan = Scan { shared, placement, lane };
            let (mut logged, mut backed) = (Tally::new(LOGGED), Tally::new(BACKED));
            let (mut locked, holders) = (Tally::new(LOCKED), shared.write_holders());
            let members: Vec<_> = shared.members().collect();
            for table in shared.all_tables() {
                for (group, replicas) in placement.groups() {
                    let mut copies = Vec::new();
                    for replica in replicas.members() {
                        if !scan.answers(*replica).await {
                            continue;
                        }
                        let rows = scan.cells(&table, group, *replica).await?;
                        scan.check_logged(&table, (group, *replica), &rows, &mut logged).await?;
                        if shared.config.locks == LockKind::Lotus {
                            check_locked(&table, &rows, &holders, &members, &mut locked);
                        }
                        copies.push(rows);
                    }
                    let whole = copies.len() == replicas.members().len();
                    let ordered = shared.config.visible_order == VisibleOrder::BackupsFirst;
                    if whole && read && ordered {
                        check_backed(&copies, &mut backed);
                    }
                }
            }
            let cached = scan.check_cached().await?;
            let owned = shared.check_owned();
            let floored = scan.check_floored().await;
            let fenced = scan.check_fenced().await;
            let tallies = [logged, backed, locked, cached, owned, floored, fenced];
            Ok(tallies.map(Tally::finish))
        })?;
        Ok(inspected.map_err(unreachable_nodes)?.into())
    }
}

/// One row on one replica.
struct InspectedRow {
    /// `None` if the header is torn.
    key: Option<Key>,
    /// Version words of the row's cells.
    versions: Vec<Version>,
}

/// Rows by the offset of their CVTs.
type Rows = BTreeMap<u64, InspectedRow>;

impl Shared {
    /// Holders of write locks, according to all lock tables.
    fn write_holders(&self) -> BTreeSet<(TxnId, LockKey)> {
        let mut holders = BTreeSet::new();
        for node in self.nodes.iter().filter(|node| !node.has_failed()) {
            node.locks.for_each_holder(|holder| {
                if holder.mode == LockMode::Write {
                    holders.insert((holder.txn, holder.name));
                }
            });
        }
        holders
    }
}

impl Shared {
    /// Nodes that take part. An expelled node may not know of its expulsion yet; no member asks it
    /// for locks (H4).
    fn members(&self) -> impl Iterator<Item = Arc<ComputeNode>> {
        let now = membership::read(self.async_authority.authority());
        let takes_part = move |node: &Arc<ComputeNode>| {
            !node.has_failed() && now.as_ref().is_ok_and(|now| now.is_live(node.id))
        };
        self.nodes.iter().filter(takes_part)
    }

    /// H19: a shard has one owner, and a lock is in one table.
    fn check_owned(&self) -> Tally {
        let mut tally = Tally::new(OWNED);
        let mut owners = BTreeMap::new();
        let mut keepers: BTreeMap<LockKey, (usize, LockMode)> = BTreeMap::new();
        for node in self.members() {
            let here = node.index;
            for shard in ShardId::all().filter(|shard| node.shards.owner(*shard).node == node.id) {
                tally.seen += 1;
                if let Some(other) = owners.insert(shard.raw(), here) {
                    tally.complain(|| format!("nodes {other} and {here} own {shard:?}"));
                }
            }
            node.locks.for_each_holder(|holder| {
                let kept = (here, holder.mode);
                let Some((other, mode)) = keepers.insert(holder.name, kept) else { return };
                let written = [mode, holder.mode].contains(&LockMode::Write);
                if other != here && written {
                    let name = holder.name;
                    tally.complain(|| format!("nodes {other} and {here} keep locks of {name:?}"));
                }
            });
        }
        tally
    }
}

impl Scan<'_> {
    /// Whether a memory node answers.
    async fn answers(&self, replica: Replica) -> bool {
        self.read(replica.at(0), WORD_BYTES).await.is_ok()
    }

    /// Reads all rows of a table from one replica.
    async fn cells(
        &self,
        table: &TableDef,
        group: GroupId,
        replica: Replica,
    ) -> Result<Rows, BatchError> {
        let mut rows = Rows::new();
        let mut blocks = IndexBlocks::new(table, group);
        while let Some((offset, words)) = blocks.next(self, table, replica).await? {
            for (index, words) in words.chunks_exact(table.bucket_words()).enumerate() {
                let bucket = offset + (index * table.bucket_words() * WORD_BYTES) as u64;
                for (slot, cvt) in Bucket::new(words, table.cvt()).cvts().enumerate() {
                    let key = match cvt.slot() {
                        Slot::Free => continue,
                        Slot::Used(header) => Some(header.name.key),
                        Slot::Torn => None,
                    };
                    let versions = cvt.version_words().map(Version::decode);
                    let cvt = bucket + (slot * table.cvt_words() * WORD_BYTES) as u64;
                    rows.insert(cvt, InspectedRow { key, versions: versions.collect() });
                }
            }
        }
        Ok(rows)
    }

    /// H12: recovery finds a whole log entry for every cell that is not visible yet.
    async fn check_logged(
        &self,
        table: &TableDef,
        (group, replica): (GroupId, Replica),
        rows: &Rows,
        tally: &mut Tally,
    ) -> Result<(), BatchError> {
        for (cvt, row) in rows {
            for (index, version) in row.versions.iter().enumerate() {
                let Version::Invisible(writer) = *version else { continue };
                tally.seen += 1;
                let names = |entry: &LogEntry<'_>| {
                    entry.txn() == writer
                        && entry.writes().any(|write| {
                            (write.group, write.cvt) == (group.0, *cvt)
                                && usize::from(write.cell) == index
                        })
                };
                let words = self.log_of(writer, replica.node).await?;
                if !LogEntry::decode(&words).is_ok_and(|entry| names(&entry)) {
                    let node = replica.node.0;
                    let at = cvt + table.cvt().cell_offset(index);
                    tally.complain(|| format!("{writer:?} at {at:#x} of node {node}"));
                }
            }
        }
        Ok(())
    }

    /// H11: a cached CVT that differs from the primary's is not used, because its row is locked.
    pub(crate) async fn check_cached(&self) -> Result<Tally, BatchError> {
        let shared = self.shared;
        let mut tally = Tally::new(CACHED);
        // An expelled node, even before learning of the expulsion, cannot use its cache.
        for node in shared.members() {
            let mut cached = Vec::new();
            if let Some(cache) = node.versions.cache() {
                let owned = |key: Key| node.shards.owner(key.shard()).node == node.id;
                cache.for_each(|table, key, offset, cells| {
                    // Rows of a dropped table stay cached until other rows take their places.
                    if !owned(key) || shared.table(table).is_none() {
                        return;
                    }
                    cached.push((LockKey::row(table, key), offset, cells.to_vec()));
                });
            }
            for some in cached.chunks(COMPARED_AT_ONCE) {
                let mut batch = self.lane.batch();
                let read = |(name, offset, cells): &(LockKey, u64, Vec<u64>)| {
                    let group = shared.placement.group_of(name.shard());
                    let cells_at = offset + (HEADER_WORDS * WORD_BYTES) as u64;
                    let primary = self.placement.replicas(group).primary();
                    batch.read(primary.at(cells_at), cells.len() * WORD_BYTES)
                };
                let buffers: Vec<_> = some.iter().map(read).collect();
                // A silent memory node has not been noticed yet, or is waited for.
                let Ok(done) = batch.post().await else { continue };
                for ((name, offset, cells), buffer) in some.iter().zip(buffers) {
                    tally.seen += 1;
                    if done.words(buffer) != cells && !node.locks.is_write_locked(name) {
                        let node = node.index;
                        tally
                            .complain(|| format!("{name:?} at {offset:#x} on compute node {node}"));
                    }
                }
            }
        }
        Ok(tally)
    }

    /// H13: the horizon includes the floor of every member that may read.
    async fn check_floored(&self) -> Tally {
        let mut tally = Tally::new(FLOORED);
        for node in self.shared.members() {
            let reads = node.check_standing().is_ok() && node.configuration.is_open();
            let primary = node.configuration.placement().replicas(FLOORS_GROUP).primary();
            let word = primary.at(floor_word(node.index));
            // A silent memory node has not been noticed yet, or is waited for.
            let Ok(words) = self.read(word, WORD_BYTES).await else { continue };
            if reads {
                tally.seen += 1;
                if words[0] == NO_FLOOR {
                    tally.complain(|| format!("{:?} on {:?}", node.id, primary.node));
                }
            }
        }
        tally
    }

    /// H2: a memory node made ready refuses all nodes expelled by then; a memory node in use
    /// refuses all expelled nodes, once transactions run.
    async fn check_fenced(&self) -> Tally {
        let (shared, mut tally) = (self.shared, Tally::new(FENCED));
        let Ok(now) = membership::read(shared.async_authority.authority()) else { return tally };
        let used = now.surviving(&shared.placement).nodes();
        let used = used.into_iter().filter(|_| now.may_resume()).map(|node| (node, None));
        let found = |one: &&Return| matches!(one.stage, Stage::Found(_));
        let ready = now.returns().iter().filter(found).map(|one| (one.node, Some(one.life)));
        for (memory_node, life) in used.chain(ready) {
            // A memory node that has ended meanwhile has no memory to write to.
            let header = self.read(life_at(&shared.placement, memory_node).at(0), HEADER_BYTES);
            if !header.await.is_ok_and(|words| words.iter().any(|word| *word != 0)) {
                continue;
            }
            for (node, since) in now.refused() {
                let from = match life {
                    Some(life) if !life.is_since(since) => continue,
                    // The fence may date from before the node's return, when its first life ended.
                    None if now.is_live(node) => Epoch(FIRST_EPOCH.0 + 1),
                    _ => since,
                };
                let Some(fence) = shared.fabric.refused_below(memory_node, node) else { continue };
                tally.seen += 1;
                if fence < from {
                    tally.complain(|| {
                        format!("{memory_node:?} takes verbs of {node:?} from {fence:?} on")
                    });
                }
            }
        }
        tally
    }

    /// Words of the log slot that a transaction uses on one memory node.
    async fn log_of(&self, txn: TxnId, memory_node: NodeId) -> Result<Vec<u64>, BatchError> {
        let now = membership::read(self.shared.async_authority.authority()).ok();
        let members = now.iter().flat_map(Membership::members);
        let mut writers = members.filter(|member| member.incarnation == txn.incarnation());
        let place = writers.next().and_then(|writer| self.shared.index_of(writer.node));
        let Some(place) = place else { return Ok(Vec::new()) };
        let offset = self.shared.log.offset(place as u16, txn.slot());
        let addr = RemoteAddr::new(memory_node, LOG_REGION, offset);
        self.read(addr, self.shared.log.slot_bytes() as usize).await
    }
}

/// H3: no reader has seen a version that would be lost with the primary. The first copy is the
/// primary's.
fn check_backed(copies: &[Rows], tally: &mut Tally) {
    let Some((primary, backups)) = copies.split_first() else { return };
    for (cvt, row) in primary {
        tally.seen += 1;
        let shown = newest(&row.versions);
        for (number, backup) in (1..).zip(backups) {
            let has = backup.get(cvt).map_or(Timestamp::ZERO, |row| newest(&row.versions));
            if has < shown {
                tally.complain(|| {
                    format!("the row at {cvt:#x}: {shown:?}, but {has:?} on backup {number}")
                });
            }
        }
    }
}

/// H3, H10: no second transaction writes a row, or trusts the contents, before the writer is done.
/// Shards whose owner is not a member are skipped: the locks of a lost node are lost, and no node
/// grants locks until the shard is adopted (H4).
fn check_locked(
    table: &TableDef,
    rows: &Rows,
    holders: &BTreeSet<(TxnId, LockKey)>,
    members: &[Arc<ComputeNode>],
    tally: &mut Tally,
) {
    for (cvt, row) in rows {
        for version in &row.versions {
            let (Version::Invisible(writer), Some(key)) = (*version, row.key) else { continue };
            let keeps = |node: &&Arc<ComputeNode>| node.shards.keeps(key.shard(), node.id);
            let Some(keeper) = members.iter().find(keeps) else { continue };
            tally.seen += 1;
            if !holders.contains(&(writer, LockKey::row(table.id(), key))) {
                tally.complain(|| {
                    let asked = keeper.id;
                    format!("{writer:?} does not hold the row at {cvt:#x}, as {asked:?} knows")
                });
            }
        }
    }
}

/// The newest committed version.
fn newest(versions: &[Version]) -> Timestamp {
    let committed = versions.iter().map(|version| match version {
        Version::Committed(time) => *time,
        _ => Timestamp::ZERO,
    });
    committed.max().unwrap_or(Timestamp::ZERO)
}
