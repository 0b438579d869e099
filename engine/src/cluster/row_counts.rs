//! Number of rows of each table, counted in a sample of its index.
//!
//! # What it is
//! The home buckets of a table lie side by side, shard by shard, and a hash spreads the rows of a
//! shard over its buckets. So the rows in a sample of buckets, a few side by side from each of
//! [`STRETCHES`] equal stretches of the index, give an estimate of the total. Writes keep no
//! counts, so a restart loses none: the sample reads memory itself.
//!
//! # How good it is
//! Where a group has no more than [`MOST_READ`] home buckets all are read, and the number is exact
//! except for rows being written. In larger tables it has a standard error of one divided by the
//! square root of the rows that were counted: 1% where 10,000 were. A row counts from its insert's
//! commit to its deletion's.

use lotus_fabric::ids::{ShardId, TableId};
use lotus_fabric::lane::BatchError;
use lotus_fabric::machines::Machines;
use lotus_mvcc::TableDef;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::bucket::Bucket;
use lotus_mvcc::layout::cvt::{CellState, Cvt, Slot as CvtSlot, Version};
use lotus_router::{GroupId, Placement, Replica};
use rand::Rng;

use crate::api::seat::Seat;
use crate::cluster::handle::Cluster;
use crate::node::coordinator::Coordinator;
use crate::txn::submit::Submitted;

/// Most home buckets of a table that are read in each group.
const MOST_READ: u64 = 4096;
/// Most buckets read side by side.
const SIDE_BY_SIDE: u64 = 8;
/// Stretches of an index in each group.
const STRETCHES: u64 = MOST_READ / SIDE_BY_SIDE;
/// READs in one batch: few, since a batch of many bytes keeps the thread from its transactions.
const AT_ONCE: usize = 8;

/// Row count of one table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableRows {
    /// The table.
    pub table: TableId,
    /// Estimated number of rows, of an ordered table the number of its tree's nodes; see
    /// [`Cluster::row_counts`].
    pub rows: u64,
}

impl<M: Machines> Cluster<M> {
    /// Estimates the number of rows of each table, in the order of the tables. Coordinator 0 of a
    /// compute node reads up to 4,096 buckets of each table's index in each replica group, some 2
    /// MiB, between transactions. The number is exact for a table with no more buckets there and no
    /// writes under way; for larger ones its standard error is about 1% where half of the index is
    /// used.
    ///
    /// The result is an error if a memory node that is in use cannot be read.
    ///
    /// # Panics
    /// If this process has no such compute node.
    pub fn row_counts(&self, compute_node: usize) -> Submitted<Vec<TableRows>> {
        self.submit(Seat { compute_node, thread: 0 }, |session| async move {
            let coordinator = session.coordinator();
            match row_counts(coordinator).await {
                Ok(counts) => Ok(counts),
                Err(error) => Err(coordinator.after_failure(error).await),
            }
        })
    }
}

async fn row_counts(coordinator: &Coordinator) -> Result<Vec<TableRows>, BatchError> {
    let mut counts = Vec::new();
    let placement = Placement::clone(&coordinator.placement());
    for table in coordinator.shared.all_tables() {
        let mut rows = 0;
        for (group, replicas) in placement.groups() {
            rows += rows_in_group(coordinator, &table, group, replicas.primary()).await?;
        }
        counts.push(TableRows { table: table.id(), rows });
    }
    Ok(counts)
}

async fn rows_in_group(
    coordinator: &Coordinator,
    table: &TableDef,
    group: GroupId,
    primary: Replica,
) -> Result<u64, BatchError> {
    let geometry = table.geometry();
    let bucket_bytes = table.bucket_words() * WORD_BYTES;
    let buckets = geometry.shape().index_bytes(usize::from(group.0)) / bucket_bytes as u64;
    if buckets == 0 {
        return Ok(0);
    }
    // The group's first shard has the group's own number.
    let base = geometry.shard_base(ShardId::from_low_bits(u64::from(group.0)));
    let drawn = sample(buckets, &mut *coordinator.rng.borrow_mut());
    let sampled: u64 = drawn.iter().map(|(_, count)| count).sum();
    let at = |bucket: u64| base + bucket * bucket_bytes as u64;
    let mut pending: Vec<(u64, u64)> =
        drawn.into_iter().map(|(first, count)| (at(first), count)).collect();
    let mut counted = 0;
    while !pending.is_empty() {
        let some = pending.split_off(pending.len().saturating_sub(AT_ONCE));
        let mut batch = coordinator.lane.batch();
        let mut read = |(offset, count): &(u64, u64)| {
            batch.read(primary.at(*offset), *count as usize * bucket_bytes)
        };
        let buffers: Vec<_> = some.iter().map(&mut read).collect();
        let done = batch.post().await?;
        for words in buffers.into_iter().map(|buffer| done.words(buffer)) {
            for bucket in words.chunks_exact(table.bucket_words()) {
                let bucket = Bucket::new(bucket, table.cvt());
                let rows = bucket.cvts().filter(|cvt| is_row(*cvt));
                counted += rows.count() as u64;
                let behind = bucket.overflow();
                pending.extend(behind.map(|behind| (behind.first(), behind.buckets() as u64)));
            }
        }
    }
    let scaled = u128::from(counted) * u128::from(buckets) / u128::from(sampled);
    Ok(scaled as u64)
}

/// Draws some buckets side by side from each of [`STRETCHES`] stretches of nearly equal length: the
/// first one's number, and the count. All, if there are no more than [`MOST_READ`].
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

/// Whether the newest committed version is a value. A cell being written is ignored: a purge marks
/// one beside the tombstone.
fn is_row(cvt: Cvt<'_>) -> bool {
    if !matches!(cvt.slot(), CvtSlot::Used(_)) {
        return false;
    }
    let committed = cvt.cells().flatten().filter_map(|cell| match cell.version {
        Version::Committed(time) => Some((time, cell.state)),
        Version::None | Version::Invisible(_) => None,
    });
    committed.max_by_key(|(time, _)| *time).is_some_and(|(_, state)| state == CellState::Valid)
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
