//! Outstanding requests of a lane.

use lotus_fabric::exec::TaskId;
use lotus_fabric::ids::{NodeId, RemoteAddr};

use crate::contract::Waiter;

/// A slot: gives its request a name and tells the request of resets.
#[derive(Clone, Copy, Debug)]
pub(super) struct UseSlot {
    /// The lock; `None` if the slot is free.
    pub(super) at: Option<RemoteAddr>,
    /// Task that waits for an event other than a verb, if any.
    pub(super) task: Option<TaskId>,
    /// Whether the use holds nothing and has no verb under way: it waits for the end of a reset.
    pub(super) is_quiet: bool,
    /// Generation whose reset the use was told of, until the reset is over.
    pub(super) told: Option<u64>,
    /// Number of ended resets that the use was told of.
    pub(super) resets: u32,
    /// Whether the lane has abandoned the lock's memory node.
    pub(super) is_abandoned: bool,
}

const FREE: UseSlot =
    UseSlot { at: None, task: None, is_quiet: false, told: None, resets: 0, is_abandoned: false };

/// The slots of a lane.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<UseSlot>,
    free: Vec<u16>,
}

impl Slots {
    /// Takes a slot for a request; `None` if no slot is left.
    #[inline]
    pub(super) fn take(&mut self, at: RemoteAddr) -> Option<u16> {
        let taken = UseSlot { at: Some(at), ..FREE };
        if let Some(slot) = self.free.pop() {
            self.slots[usize::from(slot)] = taken;
            return Some(slot);
        }
        let slot = self.slots.len() as u16;
        if slot == Waiter::SLOTS {
            return None;
        }
        self.slots.push(taken);
        Some(slot)
    }

    #[inline]
    pub(super) fn free(&mut self, slot: u16) {
        let freed = std::mem::replace(&mut self.slots[usize::from(slot)], FREE);
        assert!(freed.at.is_some(), "a slot is freed once");
        self.free.push(slot);
    }

    #[inline]
    pub(super) fn get(&mut self, slot: u16) -> &mut UseSlot {
        &mut self.slots[usize::from(slot)]
    }

    /// The slots of requests for a lock.
    pub(super) fn of(&mut self, at: RemoteAddr) -> impl Iterator<Item = &mut UseSlot> {
        self.slots.iter_mut().filter(move |slot| slot.at == Some(at))
    }

    /// The slots of requests for locks on a memory node.
    pub(super) fn on(&mut self, memory: NodeId) -> impl Iterator<Item = &mut UseSlot> {
        self.slots.iter_mut().filter(move |slot| slot.at.is_some_and(|at| at.node() == memory))
    }

    /// Whether a use on an abandoned memory node has not ended: a holder's use.
    pub(super) fn has_abandoned(&self) -> bool {
        self.slots.iter().any(|slot| slot.is_abandoned)
    }

    /// Number of taken slots.
    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
