//! Memory for what a transaction will write, taken before anything is written (H12).
//!
//! A record goes into a slot of its own if its cell has none yet, or if the version that it
//! displaces may still be needed ([`lotus_mvcc::retention`]); otherwise over that version. Slots
//! that have been retired for long enough are used again first, then those that this coordinator
//! has been given back, then its slabs; and only then another slab is taken. Where there is none
//! for the sake of a displaced version, that version is given up; whoever needs it is told so.

use std::rc::Rc;

use lotus_fabric::ids::TableId;
use lotus_mvcc::slab::{Purpose, SlotKind};
use lotus_router::GroupId;

use crate::config::Retention;
use crate::coordinator::Coordinator;
use crate::error::TxnError;
use crate::shared::NodeTable;
use crate::txn::{Body, Change, Row};

/// Why a write takes a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Its cell has none.
    New,
    /// The one of its cell has a version that may still be needed.
    Keep,
    /// It takes none: it overwrites what its cell names.
    None,
}

impl Body {
    /// Takes a record slot for every write that needs one, so that nothing can fail for want of
    /// memory once the first remote write is out.
    pub(crate) async fn reserve(&mut self, coordinator: &Rc<Coordinator>) -> Result<(), TxnError> {
        for index in 0..self.rows.len() {
            let row = &self.rows[index];
            let tables = self.tables.as_ref().expect("a row was added");
            let known = &tables[usize::from(row.table.0)];
            let need = coordinator.need(row, known);
            if need == Need::None {
                continue;
            }
            let bytes = known.def.slot_bytes();
            let (table, group) = (row.table, row.group);
            match allocate(coordinator, SlotKind::Record, table, group, bytes).await {
                Ok(slot) => self.rows[index].reserved = Some(slot),
                Err(TxnError::TableFull { .. }) if need == Need::Keep => {
                    let records = purpose(table, group, SlotKind::Record);
                    coordinator.retired.borrow_mut().stop(records);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Coordinator {
    #[inline]
    fn need(&self, row: &Row, table: &NodeTable) -> Need {
        let writes = matches!(row.change, Change::Put(_) | Change::Delete);
        let Some(target) = row.target.filter(|_| writes && row.reserved.is_none()) else {
            return Need::None;
        };
        if target.cell.record == 0 {
            return Need::New;
        }
        let Some(successor) = target.successor else { return Need::None };
        if self.shared.config.retention == Retention::None {
            return Need::None;
        }
        let horizon = self.node.horizon.get();
        let records = purpose(row.table, row.group, SlotKind::Record);
        let patient = self.node.horizon.is_patient();
        let limit = if patient { table.patient_limit } else { table.retired_limit };
        let kept = self.retired.borrow().keeps(records, successor, horizon, limit);
        if kept { Need::Keep } else { Need::None }
    }
}

pub(crate) fn purpose(table: TableId, group: GroupId, slots: SlotKind) -> Purpose {
    Purpose { table, group: u16::from(group.0), slots }
}

/// Takes one slot of `bytes` for a table in a group.
pub(crate) async fn allocate(
    coordinator: &Rc<Coordinator>,
    slots: SlotKind,
    table: TableId,
    group: GroupId,
    bytes: u64,
) -> Result<u64, TxnError> {
    let purpose = purpose(table, group, slots);
    if slots == SlotKind::Record {
        let horizon = coordinator.node.horizon.get();
        let reused = coordinator.retired.borrow_mut().reuse(purpose, horizon);
        if let Some(slot) = reused {
            return Ok(slot);
        }
    }
    loop {
        if let Some(offset) = coordinator.slabs.borrow_mut().alloc(purpose, bytes) {
            return Ok(offset);
        }
        // Boxed, because it happens once in thousands of times.
        Box::pin(coordinator.take_slab(purpose, group, bytes)).await?;
    }
}
