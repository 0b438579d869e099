//! Purging: reclaiming the memory of rows that were deleted long ago (H13, H20).
//!
//! # What it is
//! A coordinator notes the deletions of its transactions. Once the horizon has reached a deletion,
//! no snapshot can see the row, and the coordinator removes it by a transaction in a dedicated
//! slot. CVT and record slots become free memory for any row.
//!
//! # The order, and its purpose
//! 1. The group's *purge time* is raised to the horizon on every replica. A snapshot that finds a
//!    row absent reads the purge time afterwards and gives up if the snapshot is older; an insert
//!    records the purge time as the time since which its row was absent. A wrong horizon therefore
//!    cannot mislead a snapshot, which at worst gives up.
//! 2. A transaction locks row and bucket as an insert would, and reads the row: it continues only
//!    if the deletion still is the newest version.
//! 3. On all replicas: a log entry, then one cell as INVISIBLE. Readers wait from this step on.
//! 4. On the primary, then on the backups: the CVT is zeroed except for the cell's version word,
//!    then the version word as well. A recoverer that finds the tag also finds a log; without a
//!    tag, nothing needs repair. If the placement has changed since the primary's zeroes, all
//!    replicas are zeroed: the new primary may have been a backup (H23).
//! 5. The locks are released, and the slots are free.
//!
//! # What it is not
//! A promise. Rows that cannot be locked are tried again; if the coordinator is gone, a deleted row
//! stays a tombstone until it is inserted and deleted again.
//!
//! The slots become free at the purging coordinator, and move from there to the coordinators that
//! need slots ([`crate::space::slots`]). In the same turn the coordinator shares its free slots of
//! full groups, and [trims](crate::upkeep::trim) rows.

use std::rc::Rc;

use lotus_fabric::ids::RemoteAddr;
use lotus_fabric::lane::BatchError;
use lotus_mvcc::Timestamp;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::PURGE_TIME_OFFSET;
use lotus_points::point;
use lotus_router::GroupId;

use crate::api::error::TxnError;
use crate::api::isolation::Isolation;
use crate::memory_nodes::filling::Filler;
use crate::node::coordinator::Coordinator;
use crate::node::memory::tombstones::Tombstone;
use crate::txn::body::{Access, Change};
use crate::txn::session::{Job, Session};
use crate::txn::slot::Slot;

/// Limit of the rows per purge transaction, which takes as many round trips as for a single row.
const BATCH: usize = 64;
/// Rows tried at once after a larger batch has met a conflict.
const PIECE: usize = 4;
/// Horizon intervals until the next look if there was nothing to purge.
const IDLE_INTERVALS: u32 = 8;

/// Purges this coordinator's deletions, in a dedicated slot, until the node is expelled.
pub(crate) async fn keep(coordinator: Rc<Coordinator>) {
    let config = &coordinator.shared.config;
    let number = config.threads * config.coroutines + coordinator.thread;
    let slot = Slot::new(Rc::clone(&coordinator), config.coroutines, number as u16);
    let (jobs, inbox) = async_channel::bounded(1);
    let job: Job = Box::new(|session| Box::pin(work(session)));
    // The channel has room for one job.
    let _ = jobs.try_send(job);
    slot.serve(inbox).await;
}

async fn work(mut session: Session) {
    let mut filler = Filler::default();
    while !session.coordinator().node.has_failed() {
        // The coordinator also fills returning memory nodes.
        let fills = session.fill(&mut filler).await;
        session.coordinator().share_slots();
        let trimmed = session.trim_due().await;
        let due = session.due();
        let put_back =
            |coordinator: &Coordinator, rows: &[_]| coordinator.tombstones.put_back(rows);
        let purged = session.upkeep(&due, PIECE, Session::purge, put_back).await;
        let coordinator = session.coordinator();
        let interval = coordinator.shared.config.horizon_interval;
        if due.is_empty() && !fills && !trimmed {
            coordinator.executor.sleep(interval * IDLE_INTERVALS).await;
        } else if !purged && !fills && !trimmed {
            coordinator.executor.sleep(interval).await;
        }
    }
}

impl Session {
    /// Takes the rows that may be purged now.
    fn due(&self) -> Vec<Tombstone> {
        let coordinator = self.coordinator();
        if coordinator.settled.get() {
            return Vec::new();
        }
        let limit = BATCH.min(usize::from(coordinator.shared.log.max_writes()));
        let mut due = coordinator.tombstones.take_due(coordinator.node.horizon.get(), limit);
        // A commit that was under way when its table was dropped may have noted rows since.
        due.retain(|row| coordinator.serves_table(row.table));
        due
    }

    /// Purges the rows of `due` that have not been inserted again; all or none.
    async fn purge(&mut self, due: &[Tombstone]) -> Result<(), TxnError> {
        if due.is_empty() {
            return Ok(());
        }
        let room = usize::from(self.coordinator().shared.log.max_writes());
        debug_assert!(due.len() <= room, "I12: a purge fits a log entry");
        let horizon = self.coordinator().node.horizon.get();
        let mut txn = self.begin(Isolation::Serializable).await?;
        // A row deleted several times is one row of the transaction.
        let mut items = Vec::with_capacity(due.len());
        for row in due {
            items.push(txn.add(row.table, row.key, Access::Purge, 0)?);
        }
        let coordinator = self.coordinator();
        let groups: Vec<GroupId> = txn.body_mut()?.rows.iter().map(|row| row.group).collect();
        for group in groups {
            if let Err(error) = raise_purge_time(coordinator, group, horizon).await {
                return Err(coordinator.after_failure(error).await);
            }
        }
        txn.execute().await?;
        let body = txn.body_mut()?;
        body.purges = true;
        for (item, tombstone) in items.into_iter().zip(due) {
            let row = &mut body.rows[item.index() as usize];
            let newest = row.target.map(|target| target.previous);
            if newest == Some(tombstone.deleted_at) && row.value.is_none() {
                row.change = Change::Purge;
            }
        }
        if body.rows.iter().all(|row| row.change == Change::None) {
            // Every row has been inserted again. Not a commit, which would count as a client's
            // transaction.
            txn.abort();
            return Ok(());
        }
        txn.commit().await.map(drop)
    }
}

/// Raises the purge time of a group to at least `to`, on every replica.
async fn raise_purge_time(
    coordinator: &Coordinator,
    group: GroupId,
    to: Timestamp,
) -> Result<(), BatchError> {
    if coordinator.tombstones.purge_time(group) >= to {
        return Ok(());
    }
    loop {
        let placed = coordinator.configuration.placed();
        let replicas = coordinator.replicas(group);
        let copies = replicas.members().len();
        for (place, replica) in replicas.members().iter().enumerate() {
            raise_time(coordinator, replica.at(PURGE_TIME_OFFSET), to).await?;
            point!(coordinator.node.id.0, PurgeTimeRaised, place, copies);
        }
        // A copy that joined meanwhile may have been filled with the primary's earlier time.
        if placed == coordinator.configuration.placed() {
            break;
        }
    }
    coordinator.tombstones.learn_purge_time(group, to);
    Ok(())
}

/// Raises the time in this word to at least `to`.
async fn raise_time(
    coordinator: &Coordinator,
    word: RemoteAddr,
    to: Timestamp,
) -> Result<(), BatchError> {
    let mut batch = coordinator.lane.batch();
    let seen = batch.read(word, WORD_BYTES);
    let mut time = batch.post().await?.words(seen)[0];
    while time < to.raw() {
        let mut batch = coordinator.lane.batch();
        let held = batch.compare_and_swap(word, time, to.raw());
        match batch.post().await?.words(held)[0] {
            found if found == time => break,
            // Another coordinator came first.
            found => time = found,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lotus_mvcc::PrimaryKey;

    use super::*;
    use crate::{Cluster, CoordinatorId, TableSpec};

    /// The list of deletions may name a row several times, in any order: rows that could not be
    /// purged go to the end. Here row 3 was inserted by the transaction that deleted row 2.
    #[test]
    fn a_row_is_purged_for_its_own_deletion_alone() {
        let builder = Cluster::embedded().memory_nodes(2).compute_nodes(1).replicas(2);
        // No other purge runs.
        let cluster = builder.horizon_interval(Duration::from_secs(3600)).start().unwrap();
        let table =
            cluster.create_table(TableSpec::new("rows").record_bytes(8).capacity(100)).unwrap();
        let job = move |mut session: Session| async move {
            let mut deleted_at = Vec::new();
            for (delete, insert) in [(9, 3), (3, 0), (0, 2), (2, 3)] {
                let mut txn = session.begin(Isolation::Serializable).await?;
                let old = txn.add_rw(table, delete)?;
                txn.insert(table, insert, &[7; 8])?;
                txn.execute().await?;
                if txn.value(old).is_some() {
                    txn.delete(old)?;
                }
                let committed = txn.commit().await?.commit_ts.expect("it has written");
                let key = PrimaryKey::from(delete);
                deleted_at.push(Tombstone { table, key, deleted_at: committed });
            }
            let [_, row_3, row_0, row_2] = deleted_at[..] else { unreachable!() };
            session.purge(&[row_0, row_0, row_2, row_3]).await?;

            let mut txn = session.begin_read_only().await?;
            let items = [0, 2, 3].map(|row| txn.add_ro(table, row).expect("it fits"));
            txn.execute().await?;
            Ok(items.map(|item| txn.value(item).is_some()))
        };
        let found =
            cluster.submit(CoordinatorId { compute_node: 0, thread: 0 }, job).wait().unwrap();
        assert_eq!(found, [false, false, true]);
        cluster.stop().unwrap();
    }

    /// The purge time alone protects readers, even if the horizon is wrong.
    #[test]
    fn a_snapshot_older_than_a_purge_believes_no_absence() {
        let cluster = Cluster::embedded().memory_nodes(2).replicas(2).start().unwrap();
        let table =
            cluster.create_table(TableSpec::new("rows").record_bytes(8).capacity(100)).unwrap();
        let job = move |mut session: Session| async move {
            let mut txn = session.begin(Isolation::Serializable).await?;
            txn.insert(table, 1, &[7; 8])?;
            txn.execute().await?;
            let inserted_at = txn.commit().await?.commit_ts.expect("it has written");
            let mut seen = Vec::new();
            for purged_until in [inserted_at, Timestamp::MAX] {
                let coordinator = session.coordinator();
                for (group, _) in coordinator.shared.placement.groups() {
                    let raised = raise_purge_time(coordinator, group, purged_until).await;
                    raised.expect("the memory nodes answer");
                }
                for row in [1, 2] {
                    let mut txn = session.begin_read_only().await?;
                    let item = txn.add_ro(table, row)?;
                    seen.push(txn.execute().await.map(|()| txn.value(item).is_some()));
                }
            }
            Ok(seen)
        };
        let seen =
            cluster.submit(CoordinatorId { compute_node: 0, thread: 0 }, job).wait().unwrap();
        assert_eq!(seen[..3], [Ok(true), Ok(false), Ok(true)]);
        assert!(matches!(seen[3], Err(TxnError::SnapshotTooOld { .. })), "{:?}", seen[3]);
        cluster.stop().unwrap();
    }
}
