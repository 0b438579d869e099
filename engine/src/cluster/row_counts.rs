//! Row counts of tables, estimated from a sample of the index.
//!
//! # What it is
//! The home buckets of a table lie side by side, shard by shard, and a hash spreads the rows of a
//! shard over its buckets. So the rows in a sample of buckets, a few adjacent buckets from each of
//! [`STRETCHES`] equal stretches of the index, give an estimate of the total. Writes maintain no
//! counts, so a restart loses no counts: the sample reads memory itself.
//!
//! The rows of an ordered table lie in the leaves of its tree, and the first word of a leaf
//! contains its row count. Of the nodes found in the sample of the index, up to [`MOST_NODES`] are
//! read.
//!
//! # How good it is
//! If a group has at most [`MOST_READ`] home buckets, every bucket is read, and the number is exact
//! except for rows being written. In larger tables the standard error is one divided by the square
//! root of the number of counted rows, or nodes: 1% for 10,000. For an ordered table with more than
//! [`MOST_NODES`] nodes in a group the error is some 2%. A row counts from the commit of its insert
//! to the commit of its deletion.

use std::time::Duration;

use lotus_fabric::ids::ShardId;
use lotus_fabric::lane::BatchError;
use lotus_mvcc::TableDef;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::bucket::Bucket;
use lotus_mvcc::layout::cvt::{Cell, CellState, Cvt, Slot as CvtSlot, Version};
use lotus_mvcc::layout::record::{GLIMPSE_OFFSET, GLIMPSE_WORDS, glimpse};
use lotus_router::{GroupId, Placement, Replica};
use rand::Rng;
use rand::seq::SliceRandom;

use crate::api::coordinator_id::CoordinatorId;
use crate::cluster::handle::Cluster;
use crate::node::agreed::counted::{RowCounts, TableRows};
use crate::node::coordinator::Coordinator;
use crate::txn::submit::Submitted;

/// Most home buckets of a table that are read in a group.
const MOST_READ: u64 = 4096;
/// Most adjacent buckets read from a stretch.
const SIDE_BY_SIDE: u64 = 8;
/// Stretches of an index in a group.
const STRETCHES: u64 = MOST_READ / SIDE_BY_SIDE;
/// READs in one batch: few, since a batch of many bytes keeps the thread from its transactions.
const AT_ONCE: usize = 8;
/// Most nodes of an ordered table whose row counts are read in a group.
const MOST_NODES: usize = 2048;
/// Nodes read in one batch, by READs of a few words.
const NODES_AT_ONCE: usize = 64;

/// Rows of one table in one group.
#[derive(Clone, Copy, Default)]
struct Counted {
    rows: u64,
    is_estimate: bool,
}

impl Cluster {
    /// Estimates the number of rows of every table, in the order of the tables. Between
    /// transactions, coordinator 0 of a compute node reads up to 4,096 buckets, some 2 MiB, of a
    /// table's index in every replica group, and for an ordered table also a word of up to 2,048
    /// nodes. The number is exact for a table within these limits and without writes under way; for
    /// larger tables the standard error is about 1% if half of the index is used, or 2% if the
    /// table is ordered ([`TableRows::is_estimate`]).
    ///
    /// The result is an error if a memory node in use cannot be read.
    ///
    /// # Panics
    /// If the compute node is not in this process.
    pub fn row_counts(&self, compute_node: usize) -> Submitted<Vec<TableRows>> {
        self.submit(CoordinatorId { compute_node, thread: 0 }, |session| async move {
            let coordinator = session.coordinator();
            match row_counts(coordinator).await {
                Ok(counts) => Ok(counts),
                Err(error) => Err(coordinator.after_failure(error).await),
            }
        })
    }

    /// Returns the last count of the compute node's [`Self::row_counts`], or makes a new count if
    /// the last one is as old as `limit`: for frequent callers, such as metrics. A slow count is
    /// reused for ten times as long as it took, and no second count starts while one is under way.
    ///
    /// Fails like [`Self::row_counts`].
    ///
    /// # Panics
    /// If the compute node is not in this process.
    pub fn recent_row_counts(&self, compute_node: usize, limit: Duration) -> Submitted<RowCounts> {
        self.submit(CoordinatorId { compute_node, thread: 0 }, move |session| async move {
            let coordinator = session.coordinator();
            let node = &coordinator.node;
            if let Some(last) = node.counted.within(limit, node.env.now()) {
                return Ok(last);
            }
            let begun = node.env.now();
            match row_counts(coordinator).await {
                Ok(tables) => Ok(RowCounts { tables, age: node.env.now().since(begun) }),
                Err(error) => Err(coordinator.after_failure(error).await),
            }
        })
    }
}

async fn row_counts(coordinator: &Coordinator) -> Result<Vec<TableRows>, BatchError> {
    let (node, mut counts) = (&coordinator.node, Vec::new());
    let counting = node.counted.begin(node.env.now());
    let placement = Placement::clone(&coordinator.placement());
    for table in coordinator.shared.all_tables() {
        let mut all = TableRows { table: table.id(), rows: 0, is_estimate: false };
        for (group, replicas) in placement.groups() {
            let counted = rows_in_group(coordinator, &table, group, replicas.primary()).await;
            if !coordinator.serves_table(table.id()) {
                // Dropped meanwhile: another table may have its memory now.
                break;
            }
            let counted = counted?;
            all.rows += counted.rows;
            all.is_estimate |= counted.is_estimate;
        }
        if coordinator.serves_table(table.id()) {
            counts.push(all);
        }
    }
    counting.keep(node.env.now(), &counts);
    Ok(counts)
}

async fn rows_in_group(
    coordinator: &Coordinator,
    table: &TableDef,
    group: GroupId,
    primary: Replica,
) -> Result<Counted, BatchError> {
    let geometry = table.geometry();
    let bucket_bytes = table.bucket_words() * WORD_BYTES;
    let buckets = geometry.shape().index_bytes(usize::from(group.0)) / bucket_bytes as u64;
    if buckets == 0 {
        return Ok(Counted::default());
    }
    // The number of a group's first shard is the number of the group.
    let base = geometry.shard_base(ShardId::from_low_bits(u64::from(group.0)));
    let drawn = sample(buckets, &mut *coordinator.rng.borrow_mut());
    let sampled: u64 = drawn.iter().map(|(_, count)| count).sum();
    let at = |bucket: u64| base + bucket * bucket_bytes as u64;
    let mut pending: Vec<(u64, u64)> =
        drawn.into_iter().map(|(first, count)| (at(first), count)).collect();
    let (mut counted, mut nodes) = (0, Vec::new());
    while !pending.is_empty() && coordinator.serves_table(table.id()) {
        let some = pending.split_off(pending.len().saturating_sub(AT_ONCE));
        let mut batch = coordinator.lane.batch();
        let mut read = |(offset, count): &(u64, u64)| {
            batch.read(primary.at(*offset), *count as usize * bucket_bytes)
        };
        let buffers: Vec<_> = some.iter().map(&mut read).collect();
        let done = batch.post().await?;
        if !coordinator.serves_table(table.id()) {
            break;
        }
        for words in buffers.into_iter().map(|buffer| done.words(buffer)) {
            for bucket in words.chunks_exact(table.bucket_words()) {
                let bucket = Bucket::new(bucket, table.cvt());
                for row in bucket.cvts().filter_map(newest_value) {
                    counted += 1;
                    nodes.extend(table.is_ordered().then_some(row.record));
                }
                let behind = bucket.overflow();
                let offsets = behind.into_iter().flat_map(|behind| behind.offsets(table.cvt()));
                pending.extend(offsets.map(|next| (next, 1)));
            }
        }
    }
    let mut is_estimate = sampled < buckets;
    let mut share = (u128::from(buckets), u128::from(sampled));
    if table.is_ordered() && !nodes.is_empty() {
        let found = nodes.len() as u64;
        let (some, _) = nodes.partial_shuffle(&mut *coordinator.rng.borrow_mut(), MOST_NODES);
        let (leaves, asked) = rows_of_nodes(coordinator, table, primary, some).await?;
        is_estimate |= asked < found;
        counted = leaves;
        share = (share.0 * u128::from(found), share.1 * u128::from(asked.max(1)));
    }
    let scaled = u128::from(counted) * share.0 / share.1;
    Ok(Counted { rows: scaled as u64, is_estimate })
}

/// Returns the rows of the nodes of an ordered table in these record slots, and the number of nodes
/// still present.
async fn rows_of_nodes(
    coordinator: &Coordinator,
    table: &TableDef,
    primary: Replica,
    nodes: &[u64],
) -> Result<(u64, u64), BatchError> {
    let (mut rows, mut asked) = (0, 0);
    for some in nodes.chunks(NODES_AT_ONCE) {
        let mut batch = coordinator.lane.batch();
        let mut read = |record: &u64| {
            batch.read(primary.at(record + GLIMPSE_OFFSET), GLIMPSE_WORDS * WORD_BYTES)
        };
        let buffers: Vec<_> = some.iter().map(&mut read).collect();
        let done = batch.post().await?;
        let first_words = buffers.into_iter().map(|buffer| done.words(buffer));
        for first in first_words.filter_map(|words| glimpse(table.id(), words)) {
            rows += lotus_tree::rows_of(first);
            asked += 1;
        }
    }
    Ok((rows, asked))
}

/// Draws a few adjacent buckets from each of [`STRETCHES`] stretches of nearly equal length.
/// Returns the number of the first bucket, and the count. Draws all buckets if the index has at
/// most [`MOST_READ`].
fn sample(buckets: u64, rng: &mut impl Rng) -> Vec<(u64, u64)> {
    let stretches = buckets.div_ceil(SIDE_BY_SIDE).min(STRETCHES);
    let begins = |stretch: u64| stretch * buckets / stretches;
    let draw = |stretch: u64| {
        let (from, to) = (begins(stretch), begins(stretch + 1));
        let count = (to - from).min(SIDE_BY_SIDE);
        (rng.random_range(from..=to - count), count)
    };
    (0..stretches).map(draw).collect()
}

/// Returns the cell of the newest committed version, if the version is a value. Ignores a cell
/// being written: a purge marks a cell beside the tombstone.
fn newest_value(cvt: Cvt<'_>) -> Option<Cell> {
    if !matches!(cvt.slot(), CvtSlot::Used(_)) {
        return None;
    }
    let committed = cvt.cells().flatten().filter_map(|cell| match cell.version {
        Version::Committed(time) => Some((time, cell)),
        Version::None | Version::Invisible(_) => None,
    });
    let (_, newest) = committed.max_by_key(|(time, _)| *time)?;
    (newest.state == CellState::Valid).then_some(newest)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    #[test]
    fn some_buckets_are_drawn_out_of_each_stretch_and_all_of_few() {
        let mut rng = SmallRng::seed_from_u64(7);
        for buckets in [1, 3, 8, 100, MOST_READ - 1, MOST_READ] {
            let drawn = sample(buckets, &mut rng);
            let all = drawn.iter().flat_map(|(first, count)| *first..first + count);
            assert!(all.eq(0..buckets), "{drawn:?}");
        }
        let drawn = sample(10 * MOST_READ, &mut rng);
        assert_eq!(drawn.len() as u64, STRETCHES);
        for (stretch, (first, count)) in (0..).zip(&drawn) {
            assert_eq!(*count, SIDE_BY_SIDE);
            assert_eq!([first / 80, (first + count - 1) / 80], [stretch; 2], "{drawn:?}");
        }
        assert!(drawn.iter().any(|(first, _)| first % 80 != 0), "not the first of each");
    }
}
