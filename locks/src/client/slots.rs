//! Requests that a lane has outstanding.

use lotus_fabric::exec::TaskId;
use lotus_fabric::ids::{NodeId, RemoteAddr};

use crate::contract::Waiter;

/// A slot, which gives its request a name and tells it of resets.
#[derive(Clone, Copy, Debug)]
pub(super) struct UseSlot {
    /// The lock; `None` if the slot is free.
    pub(super) at: Option<RemoteAddr>,
    /// Task that waits for something else than a verb, if one does.
    pub(super) task: Option<TaskId>,
    /// Whether it holds nothing, and no verb of it is under way: it waits for the end of a reset.
    pub(super) is_quiet: bool,
    /// Generation whose reset it was told of, until that is over.
    pub(super) told: Option<u64>,
    /// Number of resets that it was told of and that are over.
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
    /// Takes a slot for a request; `None` if there is none.
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

    /// Whether a use has not ended whose memory node was abandoned: a holder's.
    pub(super) fn has_abandoned(&self) -> bool {
        self.slots.iter().any(|slot| slot.is_abandoned)
    }

    /// Number of slots that are taken.
    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
