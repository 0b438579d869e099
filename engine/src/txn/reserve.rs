//! Reservation of memory for a transaction's writes, before anything is written (H12).
//!
//! A record goes to its cell's home slot if the table has home slots, or else to the slot that the
//! cell names. It goes to a different slot if the version there may still be needed, or if the cell
//! has no slot yet ([`lotus_mvcc::retention`]). First choice are slots that have been retired for
//! long enough, then free slots ([`crate::space::slots`]), then a new slab. When all memory is
//! taken,
//! - a displaced version is given up if no spare slot is free; a snapshot that needs the version
//!   fails with `SnapshotTooOld`;
//! - a deletion leaves no record if its cell has no slot (I200);
//! - an update waits for a while: rows updated earlier give up their older slots
//!   ([`crate::upkeep::trim`]), and deleted rows are purged;
//! - an insert fails.

use std::rc::Rc;

use lotus_mvcc::retention::{Destination, Fallback, destination};
use lotus_mvcc::slab::{Purpose, SlotKind};
use lotus_router::GroupId;

use crate::api::config::Retention;
use crate::api::error::TxnError;
use crate::node::coordinator::Coordinator;
use crate::node::memory::slots::Use;
use crate::node::shared::NodeTable;
use crate::txn::body::{Body, Change, Row, Target};
use crate::txn::slot::Slot;

/// Multiples of the horizon's [notice](Coordinator::notice) that an update waits for a slot.
const PATIENCE: u32 = 4;

impl Body {
    /// Takes a record slot for every write that needs one, so that no write can fail for lack of
    /// memory once the first remote write is posted.
    pub(crate) async fn reserve(&mut self, slot: &Slot) -> Result<(), TxnError> {
        self.take_slots(slot).await?;
        debug_assert!(
            self.rows.iter().all(|row| {
                let writes_value = matches!(row.change, Change::Put(_));
                let target = row.target.filter(|_| writes_value);
                target.is_none_or(|target| row.reserved.is_some() || target.slot != 0)
            }),
            "I12: every value has a slot before anything is written"
        );
        Ok(())
    }

    async fn take_slots(&mut self, slot: &Slot) -> Result<(), TxnError> {
        let coordinator = &slot.coordinator;
        for index in 0..self.rows.len() {
            let Some(wanted) = self.choose_slot(coordinator, index) else { continue };
            let row = &self.rows[index];
            debug_assert!(row.reserved.is_none(), "I201: a write takes one slot");
            let (group, records) = (row.group, row.records());
            let bytes = self.table(row.table).def.slot_bytes();
            let taken = match allocate(coordinator, wanted, records, group, bytes).await {
                Err(TxnError::TableFull { .. }) if wanted == Use::Spare => continue,
                Err(TxnError::TableFull { .. }) if wanted == Use::Update => {
                    Box::pin(wait_for_slot(slot, records, group, bytes)).await
                }
                taken => taken,
            };
            self.rows[index].reserved = Some(taken?);
        }
        Ok(())
    }

    /// Chooses the slot for the record of a row's write, if the write has a record. Returns the use
    /// of a free slot, if a free slot is wanted.
    #[inline]
    fn choose_slot(&mut self, coordinator: &Coordinator, index: usize) -> Option<Use> {
        let row = &self.rows[index];
        let target = row.target.as_ref()?;
        if row.reserved.is_some() || !matches!(row.change, Change::Put(_) | Change::Delete) {
            return None;
        }
        let table = self.table(row.table);
        let (slot, wanted) = match destination_of(coordinator, row, target, table) {
            Destination::Named => (target.cell.record, None),
            Destination::Home => (target.home, None),
            Destination::New => (0, Some(row.wants())),
            Destination::Another { otherwise: Fallback::Named } => {
                (target.cell.record, Some(Use::Spare))
            }
            Destination::Another { otherwise: Fallback::Home } => (target.home, Some(Use::Spare)),
        };
        debug_assert!(
            target.home == 0 || slot != 0,
            "I261: a cell with a home slot never lacks a slot"
        );
        self.rows[index].target.as_mut()?.slot = slot;
        wanted
    }
}

impl Row {
    /// Use of a slot for a record whose cell has no slot.
    fn wants(&self) -> Use {
        match self.change {
            Change::Delete => Use::Spare,
            // An insert over a tombstone counts as an insert.
            _ if self.value.is_none() => Use::Insert,
            _ => Use::Update,
        }
    }
}

/// Slot for the record of a write to `target`.
#[inline]
fn destination_of(
    coordinator: &Coordinator,
    row: &Row,
    target: &Target,
    table: &NodeTable,
) -> Destination {
    let node = &coordinator.node;
    let horizon = node.horizon.get();
    let keeps = |successor| {
        if coordinator.shared.config.retention == Retention::None {
            return false;
        }
        let limit =
            if node.horizon.is_patient() { table.patient_limit } else { table.retired_limit };
        coordinator.retired.borrow().keeps(row.records(), successor, horizon, limit)
    };
    destination(&target.cell, target.home, target.successor, horizon, keeps)
}

/// Allocates one slot of `bytes`.
pub(crate) async fn allocate(
    coordinator: &Rc<Coordinator>,
    wanted: Use,
    purpose: Purpose,
    group: GroupId,
    bytes: u64,
) -> Result<u64, TxnError> {
    if purpose.slots == SlotKind::Record {
        let horizon = coordinator.node.horizon.get();
        let reused = coordinator.retired.borrow_mut().reuse(purpose, horizon);
        if let Some(slot) = reused {
            debug_assert!(slot != 0, "I202: a retired slot was named by a cell");
            return Ok(slot);
        }
    }
    loop {
        if let Some(slot) = coordinator.take_slot(wanted, purpose, bytes) {
            debug_assert!(slot != 0, "I201: no slot begins where a region does");
            return Ok(slot);
        }
        // Boxed, because it happens once in thousands of times.
        Box::pin(coordinator.find_slots(wanted, purpose, group, bytes)).await?;
    }
}

/// Waits until there is a slot for an update in a full group, and takes it.
#[cold]
async fn wait_for_slot(
    slot: &Slot,
    purpose: Purpose,
    group: GroupId,
    bytes: u64,
) -> Result<u64, TxnError> {
    let coordinator = &slot.coordinator;
    let executor = &coordinator.executor;
    // All rows have been read: release the snapshot, which may hold back the slots that this update
    // waits for.
    coordinator.snapshots.borrow_mut().finish(slot.index);
    let deadline = executor.now().after(coordinator.notice() * PATIENCE);
    loop {
        coordinator.node.slots.miss(Use::Update, executor.now());
        executor.sleep(coordinator.shared.config.horizon_interval).await;
        match allocate(coordinator, Use::Update, purpose, group, bytes).await {
            Err(TxnError::TableFull { .. }) if executor.now() < deadline => {}
            outcome => return outcome,
        }
    }
}
