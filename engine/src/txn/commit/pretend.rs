//! Commit of an attempt whose rows another attempt uses concurrently: the idealized lock has let
//! both go on ([`lotus_locks::ideal`]).
//!
//! The verbs match a normal commit in number, order, size and memory nodes, but they write to a
//! place that is never read. The rows keep the values of the other attempt, and this attempt's
//! changes are lost as a whole.

use lotus_fabric::ids::NodeSet;
use lotus_fabric::lane::Batch;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::cvt::CELL_WORDS;
use lotus_mvcc::layout::record::record_words;
use lotus_recovery::log::entry_words;

use crate::api::config::VisibleOrder;
use crate::node::coordinator::Coordinator;
use crate::node::locks::SCRATCH_OFFSET;
use crate::node::shared::LOCK_REGION;
use crate::node::verbs::Fenced;
use crate::txn::body::{Body, Change};
use crate::txn::commit::{Commit, Replicas};
use crate::txn::slot::Slot;

/// Pretends to commit the write set in `body`, and releases its locks and slots.
pub(super) async fn carry_out(slot: &Slot, mut body: Box<Body>) {
    let commit = Commit::of(slot, &body);
    match commit.pretend(&body).await {
        Ok(()) => {
            body.release(&slot.coordinator);
            slot.coordinator.lane.mark_transaction();
            slot.finish(body);
        }
        Err(Fenced) => slot.expelled(commit.txn()),
    }
}

impl Commit<'_> {
    async fn pretend(&self, body: &Body) -> Result<(), Fenced> {
        let coordinator = self.coordinator();
        self.until_done(|batch| body.pretend_data(coordinator, batch)).await?;
        let commit_ts = self.draw_timestamp().await?;
        let in_order = coordinator.shared.config.visible_order == VisibleOrder::BackupsFirst;
        let steps: &[Replicas] = match in_order && coordinator.shared.config.replicas > 1 {
            true => &[Replicas::Backups, Replicas::Primaries],
            false => &[Replicas::All],
        };
        for on in steps {
            self.until_done(|batch| body.pretend_versions(coordinator, *on, batch)).await?;
        }
        self.reply(body, commit_ts);
        Ok(())
    }
}

impl Body {
    /// Adds as many WRITEs, with as many bytes, as the log entry, the records and the cells take.
    fn pretend_data(&self, coordinator: &Coordinator, batch: &mut Batch) {
        let placement = coordinator.placement();
        let changed = || self.rows.iter().filter(|row| row.change != Change::None);
        let on = changed().map(|row| placement.replicas(row.group).nodes());
        let all = on.fold(NodeSet::EMPTY, NodeSet::or);
        debug_assert!(!all.is_empty(), "I11: a write set has a memory node with its log");
        write(batch, all, entry_words(changed().count()));
        for row in changed() {
            let here = placement.replicas(row.group).nodes();
            let value_bytes = match &row.change {
                Change::Put(range) => range.len(),
                _ => 0,
            };
            let record = record_words(row.primary_key.byte_count(), value_bytes);
            match row.reserved {
                // The record would go to the cell's home slot, in one WRITE with the cell.
                None if self.table(row.table).def.cvt().home_words() > 0 => {
                    write(batch, here, CELL_WORDS + record);
                }
                _ => {
                    write(batch, here, record);
                    write(batch, here, CELL_WORDS);
                }
            }
        }
    }

    fn pretend_versions(&self, coordinator: &Coordinator, on: Replicas, batch: &mut Batch) {
        let placement = coordinator.placement();
        for row in self.rows.iter().filter(|row| row.change != Change::None) {
            let here = on.nodes(placement.replicas(row.group));
            batch.write_word_all(here, LOCK_REGION, SCRATCH_OFFSET, 0);
        }
    }
}

/// Adds a WRITE of `words` words to a place that is never read, on each of `nodes`.
fn write(batch: &mut Batch, nodes: NodeSet, words: usize) {
    let staged = batch.stage(words * WORD_BYTES);
    batch.words_mut(staged).fill(0);
    batch.write_all(nodes, LOCK_REGION, SCRATCH_OFFSET, staged);
}
