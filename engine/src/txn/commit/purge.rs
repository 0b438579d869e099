//! Commit of a purge: deleted rows vanish from every replica ([`crate::upkeep::purge`]).

use crate::node::coordinator::Coordinator;
use crate::node::verbs::Fenced;
use crate::txn::body::{Body, Change, Receipt};
use crate::txn::commit::{Commit, Replicas};
use crate::txn::slot::Slot;
use lotus_fabric::lane::Batch;
use lotus_locktable::LockService;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::cvt::{CELL_WORDS, Contents, Version};
use lotus_points::{cut, point};

/// Purges the rows in `body`, and unlocks.
pub(crate) async fn carry_out(slot: &Slot, mut body: Box<Body>) {
    let commit = Commit::of(slot, &body);
    match commit.purge(&mut body).await {
        Ok(()) => slot.finish(body),
        Err(Fenced) => slot.expelled(body.held.txn()),
    }
}

impl Commit<'_> {
    async fn purge(&self, body: &mut Body) -> Result<(), Fenced> {
        let coordinator = self.coordinator();
        debug_assert!(
            body.rows.iter().all(|row| matches!(row.change, Change::Purge | Change::None)),
            "I59: a purge changes no other rows"
        );
        body.plan_commit(coordinator);
        self.until_done(|batch| body.add_marks(coordinator, self, batch)).await?;
        let placed = coordinator.configuration.placed();
        self.until_done(|batch| body.add_zeroes(coordinator, self, Replicas::Primaries, batch))
            .await?;
        self.until_done(|batch| {
            let rest = Replicas::Backups.as_the_rest(coordinator, placed);
            body.add_zeroes(coordinator, self, rest, batch);
        })
        .await?;
        self.slot.decide(body.held.txn(), Ok(Receipt::default()));
        for row in &body.rows {
            // Reads under the lock may have been cached (H11).
            coordinator.node.versions.forget(row.table, row.key);
        }
        coordinator.locks.release(&mut body.held);
        point!(coordinator.node.id.0, PurgeReleased);
        coordinator.lane.mark_errand();
        // I242: from here on inserts may use the slots, also at other nodes.
        for (index, slot) in body.freed.drain(..) {
            let row = &body.rows[index];
            if row.change == Change::Purge {
                coordinator.release_slot(row.records(), slot);
            }
        }
        Ok(())
    }
}

impl Body {
    /// Adds the log entry and the INVISIBLE cells, in this order per memory node.
    fn add_marks(&self, coordinator: &Coordinator, commit: &Commit<'_>, batch: &mut Batch) {
        let log = self.stage_log(coordinator, commit, batch);
        let staged = self.plan.writes.iter().map(|write| {
            let target = self.target(write);
            // Any slot is correct, because no reader follows it; none if the row has none left.
            let record =
                if target.cell.record == 0 { target.predecessor } else { target.cell.record };
            let cell = target.cell.taken_by(commit.txn(), Contents::Deleted, record).encode();
            let buffer = batch.stage(CELL_WORDS * WORD_BYTES);
            batch.words_mut(buffer).copy_from_slice(&cell);
            (write, buffer)
        });
        let staged: Vec<_> = staged.collect();
        let placement = coordinator.placement();
        let (me, copies) = (coordinator.node.id.0, self.plan.nodes.len());
        for (place, node) in self.plan.nodes.into_iter().enumerate() {
            if coordinator.configuration.has_left(node) {
                continue;
            }
            batch.write(commit.log_place(node), log);
            if cut!(me, PurgeLogPosted, place, copies) {
                return;
            }
            for (write, cell) in &staged {
                let members = placement.replicas(write.group).members();
                if let Some(replica) = members.iter().find(|replica| replica.node == node) {
                    batch.write(replica.at(write.version_word), *cell);
                    if cut!(me, PurgeMarked, place, copies) {
                        return;
                    }
                }
            }
        }
    }

    /// Adds the zeroes for the CVTs: all words except the tagged version words, then the version
    /// words.
    fn add_zeroes(
        &self,
        coordinator: &Coordinator,
        commit: &Commit<'_>,
        replicas: Replicas,
        batch: &mut Batch,
    ) {
        let tag = Version::Invisible(commit.txn()).encode();
        let tables = self.tables.as_ref().expect("a row was added");
        let placement = coordinator.placement();
        let (me, rows) = (coordinator.node.id.0, self.plan.writes.len());
        for (row, write) in self.plan.writes.iter().enumerate() {
            let table = &tables[usize::from(self.rows[write.row].table.0)].def;
            let (begins, at) = (self.target(write).cvt, write.version_word);
            let cvt = batch.stage(table.cvt_words() * WORD_BYTES);
            let words = batch.words_mut(cvt);
            words.fill(0);
            words[(at - begins) as usize / WORD_BYTES] = tag;
            let members = replicas.of(placement.replicas(write.group));
            let first = replicas == Replicas::Primaries;
            for (copy, replica) in members.iter().enumerate() {
                let (place, all) = (row * members.len() + copy, rows * members.len());
                batch.write(replica.at(begins), cvt);
                if !first && cut!(me, PurgeHalfDone, place, all) {
                    return;
                }
                batch.write_word(replica.at(at), 0);
                let cut = match replicas {
                    Replicas::Primaries => cut!(me, PurgedOnPrimaries, place, all),
                    _ => cut!(me, PurgedOnBackups, place, all),
                };
                if cut {
                    return;
                }
            }
        }
    }
}
