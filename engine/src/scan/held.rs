//! A snapshot that is kept readable while it is in use: purges and trims wait for it.
//!
//! The slot has a place for its held snapshot among the coordinator's snapshots, beside the
//! snapshot of the slot's transactions. While a snapshot is held, all compute nodes keep more
//! displaced versions ([`crate::membership::floors`]).

use std::rc::Rc;

use lotus_mvcc::Timestamp;
use lotus_sabotage::{Rule, any_broken, broken};

use crate::api::error::TxnError;
use crate::txn::slot::Slot;

/// Snapshot that a scan reads from until the value is dropped. A slot holds one at a time.
pub(crate) struct Held {
    slot: Rc<Slot>,
    snapshot: Timestamp,
}

impl Held {
    /// Draws a snapshot, once all compute nodes keep displaced versions for it.
    pub(crate) async fn draw(slot: &Rc<Slot>) -> Result<Self, TxnError> {
        let coordinator = &*slot.coordinator;
        let mut held = Self::begin(slot);
        coordinator.executor.sleep(coordinator.notice()).await;
        coordinator.node.check_standing()?;
        let issued = coordinator.timestamps.issued();
        coordinator.snapshots.borrow_mut().register(held.place(), issued);
        held.snapshot = coordinator.timestamps.snapshot().await?;
        debug_assert!(
            held.snapshot >= issued || any_broken(),
            "I2: a snapshot is at least what was issued before it"
        );
        coordinator.snapshots.borrow_mut().activate(held.place(), held.snapshot);
        Ok(held)
    }

    /// Reads from a snapshot that was held before; `None` if the snapshot is too late to have been
    /// drawn.
    ///
    /// If the coordinator's floor has passed the snapshot meanwhile, nothing waits for the snapshot
    /// any more, and a needed version may be gone. Readers notice: a replaced version shows in its
    /// CVT, a purged row in the purge time (H13).
    pub(crate) async fn again(
        slot: &Rc<Slot>,
        snapshot: Timestamp,
    ) -> Result<Option<Self>, TxnError> {
        let coordinator = &*slot.coordinator;
        coordinator.node.check_standing()?;
        if coordinator.timestamps.snapshot().await? < snapshot {
            return Ok(None);
        }
        let mut held = Self::begin(slot);
        held.snapshot = snapshot;
        // Every node's horizon is at most this floor, so the snapshot was protected at all times.
        if coordinator.node.horizon.floor(coordinator.thread) <= snapshot {
            coordinator.snapshots.borrow_mut().activate(held.place(), snapshot);
        }
        Ok(Some(held))
    }

    /// Has more displaced versions kept from now on; dropping `self` ends this.
    fn begin(slot: &Rc<Slot>) -> Self {
        slot.coordinator.node.horizon.begin_reading_all();
        Self { slot: Rc::clone(slot), snapshot: Timestamp::ZERO }
    }

    /// Returns the snapshot.
    pub(crate) fn snapshot(&self) -> Timestamp {
        self.snapshot
    }

    /// Returns the timestamp to read rows at.
    pub(crate) fn at(&self) -> Timestamp {
        if broken(Rule::CopiesAreOfOneTime) { Timestamp::MAX } else { self.snapshot }
    }

    /// Returns the slot's place for a held snapshot among the coordinator's snapshots.
    fn place(&self) -> usize {
        self.slot.coordinator.place_of_held(self.slot.index)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let coordinator = &*self.slot.coordinator;
        coordinator.snapshots.borrow_mut().finish(self.place());
        coordinator.node.horizon.end_reading_all();
    }
}
