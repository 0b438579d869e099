//! Free slots of a compute node: storage places and permitted uses.
//!
//! # Places
//! Each coordinator cuts slots from its own slabs and keeps the slots released by its transactions,
//! so an ordinary commit involves no other thread. Surplus slots go to an allocator shared by the
//! node's coordinators, which is tried before a new slab is taken.
//!
//! Once a group has no slab left for records
//! ([`NodeSlots::is_full`](crate::node::memory::slots::NodeSlots::is_full)), every free slot of the
//! group is shared: a coordinator gives its free slots to the node as soon as it notices, and takes
//! slots one by one. Overflow buckets still have a reserve of slabs ([`crate::space::slabs`]). If
//! the node has neither slot nor slab, it searches the group at intervals for slabs that have been
//! marked free since, and asks the other nodes ([`crate::space::lending`]).
//!
//! # Permitted uses
//! | use | with slabs left | in a full group |
//! |---|---|---|
//! | [`Use::Insert`] | beyond the reserve, or another slab | beyond the reserve, or others' |
//! | [`Use::Update`] | any, or another slab | any, another node's, and those soon to be freed |
//! | [`Use::Spare`] | beyond the reserve, or another slab | beyond the reserve, or none |
//!
//! Slots given by another node for inserts do not fill up this node's reserve: inserts take them,
//! here or at a third node, or updates do.
//!
//! The reserve ([`lotus_mvcc::slab::reserve`]) is for the second slot of rows that have been
//! written once. An update that takes a reserve slot in a full group gives up the row's older slot
//! soon afterwards ([`crate::upkeep::trim`]), so that the reserve does not run out. A delete never
//! fails for lack of a slot: it leaves a tombstone without a record.
//!
//! # If a node stops
//! Its free slots are lost, because its slabs are not searched yet. They are unknown to other
//! nodes, so no slot is ever used twice.

use std::rc::Rc;

use lotus_mvcc::slab::Purpose;
use lotus_router::GroupId;

use crate::api::error::TxnError;
use crate::node::coordinator::Coordinator;
use crate::node::memory::slots::Use;

/// Number of slots that move between a coordinator and its node at a time.
const AT_ONCE: usize = 64;

impl Coordinator {
    /// Takes a slot that is free at this coordinator or the node.
    #[inline]
    pub(crate) fn take_slot(&self, wanted: Use, purpose: Purpose, bytes: u64) -> Option<u64> {
        if self.node.slots.is_full(purpose.group) {
            return self.take_shared(wanted, purpose, bytes);
        }
        let mut own = self.slabs.borrow_mut();
        if let Some(slot) = wanted.take(&mut own, purpose, bytes) {
            return Some(slot);
        }
        let mut shared = self.node.slots.lock();
        shared.spill(purpose, AT_ONCE, &mut own);
        let slot = wanted.take(&mut own, purpose, bytes);
        slot.or_else(|| wanted.take(&mut shared, purpose, bytes))
    }

    /// Takes a shared slot of the node, after sharing this coordinator's own slots.
    #[cold]
    fn take_shared(&self, wanted: Use, purpose: Purpose, bytes: u64) -> Option<u64> {
        let mut shared = self.node.slots.lock();
        self.slabs.borrow_mut().hand_over(purpose.group, &mut shared);
        wanted.take(&mut shared, purpose, bytes)
    }

    /// Releases a slot that is no longer named by a cell.
    #[inline]
    pub(crate) fn release_slot(&self, purpose: Purpose, slot: u64) {
        debug_assert!(slot != 0, "I202: only a slot that a cell has named is released");
        if self.node.slots.is_full(purpose.group) {
            return self.node.slots.lock().release(purpose, slot);
        }
        let mut own = self.slabs.borrow_mut();
        own.release(purpose, slot);
        if own.given_back(purpose) >= 2 * AT_ONCE {
            own.spill(purpose, AT_ONCE, &mut self.node.slots.lock());
        }
    }

    /// Gives the node this coordinator's free slots of full groups, and the slots of displaced
    /// versions that no snapshot needs any more.
    pub(crate) fn share_slots(&self) {
        let horizon = self.node.horizon.get();
        for (GroupId(group), _) in self.shared.placement.groups() {
            let group = u16::from(group);
            if self.node.slots.is_full(group) {
                let mut shared = self.node.slots.lock();
                self.slabs.borrow_mut().hand_over(group, &mut shared);
                let mut retired = self.retired.borrow_mut();
                retired.reuse_all(group, horizon, |purpose, slot| shared.release(purpose, slot));
            }
        }
    }

    /// Looks for slots after [`Self::take_slot`] has found none: in a further slab, or at other
    /// nodes. After `Ok`, slots may be available.
    #[cold]
    pub(crate) async fn find_slots(
        self: &Rc<Self>,
        wanted: Use,
        purpose: Purpose,
        group: GroupId,
        bytes: u64,
    ) -> Result<(), TxnError> {
        if !self.node.slots.is_full_for(purpose) {
            // A slab of the reserve is the last choice.
            if self.node.slots.is_full(purpose.group)
                && self.borrow_slots(wanted, purpose, bytes).await
            {
                return Ok(());
            }
            // Read before the search, so that memory given back during the search is looked at
            // again.
            let cleared = self.node.slots.cleared();
            let taken = self.take_slab(purpose, group, bytes).await;
            if !matches!(taken, Err(TxnError::TableFull { .. })) {
                return taken;
            }
            self.node.slots.set_full(purpose, cleared);
            return Ok(());
        }
        if self.finds_free_slab(purpose, group).await? {
            return Ok(());
        }
        let full = TxnError::TableFull { table: purpose.table };
        match wanted {
            Use::Spare => return Err(full),
            Use::Insert => self.node.slots.miss(wanted, self.executor.now()),
            // Counted as a miss only once the update has to wait.
            Use::Update => {}
        }
        if self.borrow_slots(wanted, purpose, bytes).await { Ok(()) } else { Err(full) }
    }
}
