//! Trimming: rows updated in a full group give up the slot of their older version (H13).
//!
//! # What it is
//! A row written once has one slot. The first update takes a second slot, which the row keeps for
//! its next version. In a full group the second slot may come from the reserve
//! ([`crate::space::slots`]). The coordinator therefore notes the row, and when few slots are free,
//! or an insert finds none, removes the older version: its slot becomes free memory, in place of
//! the slot that was taken.
//!
//! # The order, and its purpose
//! 1. The row is locked to write, and read. Its newest version is left alone.
//! 2. On all replicas: a log entry, then the cell's version word as INVISIBLE. The rest of the cell
//!    is unchanged at this step: a version word must never stand beside later words.
//! 3. On all replicas: the remaining words of the cell, without a slot, then its version word as 0.
//! 4. The row is dropped from the version table cache, the lock is released, and the slot is free.
//!
//! Recovery that finds the tag undoes the transaction like an update, which empties the cell on all
//! replicas and leaves it without a slot, as step 3 would have done.
//!
//! # When
//! Once the horizon has reached the successor of the version to remove, as the row is found under
//! its lock: then no snapshot needs the older version. A row that has been written since the note
//! is left alone until the horizon has reached the later version.
//!
//! At once while an update waits for a slot, here or at a node that has asked for slots, and for
//! [`URGENT`] intervals of the horizon afterwards. Snapshots that need the older version then fail
//! as too old, as when a version is overwritten ([`lotus_mvcc::retention`]).

use lotus_fabric::env::Nanos;
use lotus_mvcc::Timestamp;
use lotus_mvcc::slab::reserve;

use crate::api::error::TxnError;
use crate::api::isolation::Isolation;
use crate::node::coordinator::Coordinator;
use crate::node::memory::slots::Use;
use crate::node::memory::trims::Noted;
use crate::txn::body::{Access, Change};
use crate::txn::session::Session;
use crate::upkeep::pieces::is_over;

/// Limit of the rows per trim transaction.
const BATCH: usize = 16;
/// Rows tried at once after a larger batch has met a conflict.
const PIECE: usize = 1;
/// Horizon intervals for which a miss of a slot counts as recent.
const URGENT: u32 = 16;

/// Takes the rows to trim now. Rows keep their slots while more than twice the reserve is free, and
/// no insert has missed a slot. Also returns the horizon that applies: the maximum if trims must
/// not wait.
fn trims_due(coordinator: &Coordinator) -> (Vec<Noted>, Timestamp) {
    let slots = &coordinator.node.slots;
    let now = coordinator.executor.now();
    let window = coordinator.shared.config.horizon_interval * URGENT;
    let is_recent = |missed: Nanos| missed.0 > 0 && now < missed.after(window);
    let is_urgent = is_recent(slots.missed(Use::Update));
    let is_wanted = is_urgent || is_recent(slots.missed(Use::Insert));
    let horizon = if is_urgent { Timestamp::MAX } else { coordinator.node.horizon.get() };
    let shared = slots.lock();
    let is_scarce = |row: &Noted| {
        is_wanted || shared.available(row.slots, row.bytes) < 2 * reserve(row.bytes).max(1)
    };
    let limit = BATCH.min(usize::from(coordinator.shared.log.max_writes()));
    let mut due = coordinator.trims.take_due(horizon, limit, is_scarce);
    // A commit that was under way when its table was dropped may have noted rows since.
    due.retain(|row| coordinator.serves_table(row.slots.table));
    (due, horizon)
}

impl Session {
    /// Trims the rows that are due; returns whether any piece is over.
    pub(crate) async fn trim_due(&mut self) -> bool {
        if self.coordinator().settled.get() {
            return false;
        }
        let (due, horizon) = trims_due(self.coordinator());
        if due.is_empty() {
            return false;
        }
        let trim = async |session: &mut Self, rows: &[Noted]| session.trim(rows, horizon).await;
        let put_back = |coordinator: &Coordinator, rows: &[Noted]| {
            rows.iter().for_each(|row| coordinator.trims.note(*row));
        };
        self.upkeep(&due, PIECE, trim, put_back).await
    }

    /// Takes the slots of older versions from these rows; all or none. A row written since the
    /// note, whose older version a snapshot at or after the `horizon` may need, is noted again
    /// instead (I216).
    async fn trim(&mut self, due: &[Noted], horizon: Timestamp) -> Result<(), TxnError> {
        let room = usize::from(self.coordinator().shared.log.max_writes());
        debug_assert!(due.len() <= room, "I12: a trim fits a log entry");
        let mut txn = self.begin(Isolation::Serializable).await?;
        for row in due {
            txn.add(row.slots.table, row.key, Access::Trim, 0)?;
        }
        txn.execute().await?;
        let body = txn.body_mut()?;
        body.trims = true;
        let mut needed = Vec::new();
        for row in &mut body.rows {
            let Some(target) = row.target else { continue };
            match target.successor {
                Some(successor) if successor > horizon => {
                    needed.push((row.table, row.primary_key, successor));
                }
                _ => row.change = Change::Trim,
            }
        }
        let outcome = if body.rows.iter().all(|row| row.change == Change::None) {
            // Not a commit, which would count as a client's transaction.
            txn.abort();
            Ok(())
        } else {
            txn.commit().await.map(drop)
        };
        if is_over(&outcome) {
            self.coordinator().trims.note_again(due, &needed);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lotus_mvcc::slab::{Purpose, SlotKind};

    use super::*;
    use crate::{Cluster, CoordinatorId, Inline, TableSpec, Transaction};

    /// A row that is written often: noted with its first update, it has two later versions by the
    /// time that the horizon reaches that one. The slot that is taken away is used at once.
    #[test]
    fn a_version_that_a_protected_snapshot_needs_is_trimmed_once_the_horizon_has_passed_it() {
        let builder = Cluster::embedded().memory_nodes(2).compute_nodes(1).replicas(2);
        // No other trim runs, and the test sets the horizon.
        let cluster = builder.horizon_interval(Duration::from_secs(3600)).start().unwrap();
        let spec = TableSpec::new("rows").record_bytes(8).capacity(100).inline(Inline::Never);
        let table = cluster.create_table(spec).unwrap();
        let job = move |mut session: Session| async move {
            let mut written_at = Vec::new();
            for value in [1, 2, 3] {
                let mut txn = session.begin(Isolation::Serializable).await?;
                let item = txn.add_rw(table, 1)?;
                txn.execute().await?;
                txn.upsert(item, &[value; 8])?;
                written_at.push(txn.commit().await?.commit_ts.expect("it has written"));
            }
            let slots = Purpose { table, group: 0, slots: SlotKind::Record };
            let successor = written_at[1];
            let first = Noted { slots, bytes: 64, key: 1.into(), successor };
            session.coordinator().trims.note(first);
            let mut seen = Vec::new();
            for (horizon, insert) in [(written_at[1], 2), (written_at[2], 3)] {
                let horizon_of_node = &session.coordinator().node.horizon;
                horizon_of_node.raise(horizon);
                session.trim_due().await;
                let mut txn = session.begin(Isolation::Serializable).await?;
                txn.insert(table, insert, &[9; 8])?;
                txn.commit().await?;
                let mut txn = Transaction::begin_at(session.slot(), written_at[1]).await?;
                let item = txn.add_ro(table, 1)?;
                let read = txn.execute().await;
                seen.push(read.map(|()| txn.value(item).map(<[u8]>::to_vec)));
            }
            let left = session.coordinator().trims.take_due(Timestamp::MAX, 9, |_| true).len();
            Ok((seen, left))
        };
        let coordinator_id = CoordinatorId { compute_node: 0, thread: 0 };
        let (seen, left) = cluster.submit(coordinator_id, job).wait().unwrap();
        assert_eq!(seen[0], Ok(Some(vec![2; 8])), "the horizon protects it");
        assert!(matches!(seen[1], Err(TxnError::SnapshotTooOld { .. })), "{:?}", seen[1]);
        assert_eq!(left, 0);
        cluster.stop().unwrap();
    }
}
