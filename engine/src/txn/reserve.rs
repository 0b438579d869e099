//! Reservation of memory for a transaction's writes, before anything is written (H12).
//!
//! A record goes into a slot of its own if its cell has none yet, or if the version that it
//! displaces may still be needed ([`lotus_mvcc::retention`]); otherwise over that version. First
//! choice are slots that have been retired for long enough, then free ones
//! ([`crate::space::slots`]), then another slab. Where all memory is taken,
//! - a displaced version is given up if there is no slot for it; a snapshot that needs it fails
//!   with `SnapshotTooOld`;
//! - a deletion does without a record if its cell has no slot;
//! - an update waits for a while: earlier ones give up their rows' older slots
//!   ([`crate::upkeep::trim`]), and deleted rows are purged;
//! - an insert fails.

use std::rc::Rc;

use lotus_mvcc::slab::{Purpose, SlotKind};
use lotus_router::GroupId;

use crate::api::config::Retention;
use crate::api::error::TxnError;
use crate::node::coordinator::Coordinator;
use crate::node::shared::NodeTable;
use crate::node::slots::Use;
use crate::txn::body::{Body, Change, Row, purpose};
use crate::txn::slot::Slot;

/// Multiples of the horizon's [notice](Coordinator::notice) that an update waits for a slot.
const PATIENCE: u32 = 4;

/// Reason why a write takes a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Its cell has none.
    New,
    /// Its cell's slot holds a version that may still be needed.
    Keep,
    /// No slot is needed: the write overwrites what its cell names.
    None,
}

impl Body {
    /// Takes a record slot for every write that needs one, so that no write can fail for want of
    /// memory once the first remote write is posted.
    pub(crate) async fn reserve(&mut self, slot: &Slot) -> Result<(), TxnError> {
        self.take_slots(slot).await?;
        debug_assert!(
            self.rows.iter().all(|row| {
                let writes_value = matches!(row.change, Change::Put(_));
                let target = row.target.filter(|_| writes_value);
                target.is_none_or(|target| row.reserved.is_some() || target.cell.record != 0)
            }),
            "I12: every value has a slot before anything is written"
        );
        Ok(())
    }

    async fn take_slots(&mut self, slot: &Slot) -> Result<(), TxnError> {
        let coordinator = &slot.coordinator;
        for index in 0..self.rows.len() {
            let row = &self.rows[index];
            let tables = self.tables.as_ref().expect("a row was added");
            let known = &tables[usize::from(row.table.0)];
            let need = need(coordinator, row, known);
            if need == Need::None {
                continue;
            }
            debug_assert!(self.rows[index].reserved.is_none(), "I201: a write takes one slot");
            let bytes = known.def.slot_bytes();
            let (group, wanted) = (row.group, row.wants(need));
            let records = purpose(row.table, group, SlotKind::Record);
            match allocate(coordinator, wanted, records, group, bytes).await {
                Ok(taken) => self.rows[index].reserved = Some(taken),
                Err(TxnError::TableFull { .. }) if wanted == Use::Spare => {}
                Err(TxnError::TableFull { .. }) if wanted == Use::Update => {
                    let waited = Box::pin(wait_for_slot(slot, records, group, bytes));
                    self.rows[index].reserved = Some(waited.await?);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Row {
    fn wants(&self, need: Need) -> Use {
        match self.change {
            _ if need == Need::Keep => Use::Spare,
            Change::Delete => Use::Spare,
            // An insert over a tombstone counts as an insert.
            _ if self.value.is_none() => Use::Insert,
            _ => Use::Update,
        }
    }
}

#[inline]
fn need(coordinator: &Coordinator, row: &Row, table: &NodeTable) -> Need {
    let writes = matches!(row.change, Change::Put(_) | Change::Delete);
    let Some(target) = row.target.filter(|_| writes && row.reserved.is_none()) else {
        return Need::None;
    };
    if target.cell.record == 0 {
        return Need::New;
    }
    let Some(successor) = target.successor else { return Need::None };
    if coordinator.shared.config.retention == Retention::None {
        return Need::None;
    }
    let horizon = coordinator.node.horizon.get();
    let records = purpose(row.table, row.group, SlotKind::Record);
    let patient = coordinator.node.horizon.is_patient();
    let limit = if patient { table.patient_limit } else { table.retired_limit };
    let kept = coordinator.retired.borrow().keeps(records, successor, horizon, limit);
    if kept { Need::Keep } else { Need::None }
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
    // All rows have been read: release the snapshot, as it may hold back the slots waited for.
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
