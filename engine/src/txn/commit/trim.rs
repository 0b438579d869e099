//! Commit of a trim: cells give up the slots of older versions ([`crate::upkeep::trim`]).

use crate::node::coordinator::Coordinator;
use crate::node::verbs::Fenced;
use crate::txn::body::{Body, Change, Receipt};
use crate::txn::commit::{Commit, Replicas};
use crate::txn::plan::PlannedWrite;
use crate::txn::slot::Slot;
use lotus_fabric::lane::Batch;
use lotus_locktable::LockService;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::cvt::{CELL_WORDS, Version};
use lotus_points::{cut, point};
use lotus_sabotage::{Rule, broken};

/// Trims the rows in `body`, and unlocks.
pub(crate) async fn carry_out(slot: &Slot, mut body: Box<Body>) {
    let commit = Commit::of(slot, &body);
    match commit.trim(&mut body).await {
        Ok(()) => slot.finish(body),
        Err(Fenced) => slot.expelled(body.held.txn()),
    }
}

impl Commit<'_> {
    async fn trim(&self, body: &mut Body) -> Result<(), Fenced> {
        let coordinator = self.coordinator();
        debug_assert!(
            body.rows.iter().all(|row| matches!(row.change, Change::Trim | Change::None)),
            "I203: a trim changes no other rows"
        );
        body.plan_commit(coordinator);
        let is_newest = |write: &PlannedWrite| {
            let target = body.target(write);
            target.cell.version == Version::Committed(target.previous)
        };
        debug_assert!(
            !body.plan.writes.iter().any(is_newest),
            "I203: a trim never takes the newest version"
        );
        if broken(Rule::TrimsReachAllCopies) {
            self.until_done(|batch| body.add_trims(coordinator, self, Replicas::Primaries, batch))
                .await?;
        } else {
            self.until_done(|batch| body.add_trim_marks(coordinator, self, batch)).await?;
            self.until_done(|batch| body.add_trims(coordinator, self, Replicas::All, batch))
                .await?;
        }
        self.slot.decide(body.held.txn(), Ok(Receipt::default()));
        for row in &body.rows {
            // Reads under the lock may have been cached (H11).
            coordinator.node.versions.forget(row.table, row.key);
        }
        coordinator.locks.release(&mut body.held);
        point!(coordinator.node.id.0, TrimReleased);
        coordinator.lane.mark_errand();
        for write in &body.plan.writes {
            let slot = body.target(write).cell.record;
            coordinator.release_slot(body.rows[write.row].records(), slot);
        }
        Ok(())
    }
}

impl Body {
    /// Adds the log entry and INVISIBLE version words, in this order per memory node.
    fn add_trim_marks(&self, coordinator: &Coordinator, commit: &Commit<'_>, batch: &mut Batch) {
        let log = self.stage_log(coordinator, commit, batch);
        let tag = Version::Invisible(commit.txn()).encode();
        let placement = coordinator.placement();
        let (me, copies) = (coordinator.node.id.0, self.plan.nodes.len());
        for (place, node) in self.plan.nodes.into_iter().enumerate() {
            if coordinator.configuration.has_left(node) {
                continue;
            }
            batch.write(commit.log_place(node), log);
            if cut!(me, TrimLogPosted, place, copies) {
                return;
            }
            for write in &self.plan.writes {
                let members = placement.replicas(write.group).members();
                if let Some(replica) = members.iter().find(|replica| replica.node == node) {
                    batch.write_word(replica.at(write.version_word), tag);
                    if cut!(me, TrimMarked, place, copies) {
                        return;
                    }
                }
            }
        }
    }

    /// Adds the cells without slots: all words except the tagged version words, then the version
    /// words.
    fn add_trims(
        &self,
        coordinator: &Coordinator,
        commit: &Commit<'_>,
        replicas: Replicas,
        batch: &mut Batch,
    ) {
        let tag = Version::Invisible(commit.txn()).encode();
        let placement = coordinator.placement();
        let (me, rows) = (coordinator.node.id.0, self.plan.writes.len());
        for (row, write) in self.plan.writes.iter().enumerate() {
            let cell = batch.stage(CELL_WORDS * WORD_BYTES);
            let words = batch.words_mut(cell);
            words.copy_from_slice(&self.target(write).cell.trimmed().encode());
            words[0] = tag;
            let members = replicas.of(placement.replicas(write.group));
            for (copy, replica) in members.iter().enumerate() {
                let (place, all) = (row * members.len() + copy, rows * members.len());
                batch.write(replica.at(write.version_word), cell);
                if cut!(me, TrimEmptied, place, all) {
                    return;
                }
                batch.write_word(replica.at(write.version_word), 0);
                if cut!(me, TrimEnded, place, all) {
                    return;
                }
            }
        }
    }
}
