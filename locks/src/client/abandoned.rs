//! Loss of a memory node's memory (DecLock appendix B).
//!
//! With the words of the locks, all places in queues are lost: a waiter would wait for ever, and a
//! holder would hold a lock that other lanes find free. So every lane of every member abandons the
//! memory node. Once every lane has, no lock on the node is held and no verb is under way. The node
//! may then return with zeroed memory, where all locks are free, and the lanes resume. Ghosts end
//! like waiters, without taking a turn.
//!
//! A member that does not answer is expelled. The memory node has lost its fences too: they have to
//! be set again before a lane resumes.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::ids::{NodeId, RemoteAddr};
use lotus_fabric::verbs::VerbError;
use lotus_points::{point, point_here};
use lotus_sabotage::{Rule, broken};

use super::{Client, Core};
use crate::contract::{LockSystem, NotHeld};

/// Time between two looks at the uses that have not ended.
const LOOK: Duration = Duration::from_micros(10);

impl<S: LockSystem> Client<S> {
    /// Ends all uses of locks on a memory node that has lost its memory, from the call on: waits,
    /// ghosts, releases and resets end where they are, and requests are refused with
    /// [`NotHeld::Unavailable`], until [`Self::resume`]. Holders are not ended; [`Self::is_valid`]
    /// informs the holders. The future returns when the holders have released their locks.
    ///
    /// When the future has returned on all lanes of all members, also with `Unavailable`, the node
    /// may be used again with zeroed memory, and not earlier (I299). The node has to refuse the
    /// nodes that were expelled before.
    ///
    /// # Errors
    /// [`NotHeld::Unavailable`] if the memory node does not answer. Verbs posted before may still
    /// take effect, unless the memory node really has lost its memory, and with it its connections.
    /// [`NotHeld::Expelled`] if the memory node refuses this node: an expelled node is no member,
    /// and not awaited.
    pub fn abandon(&self, memory: NodeId) -> impl Future<Output = Result<(), NotHeld>> + use<S> {
        self.abandon_beside(memory, || 0)
    }

    /// As [`Self::abandon`], but does not wait for the number of holders that `holders` returns.
    /// These holders no longer rely on their locks. Holders may release the locks at any time, also
    /// after [`Self::resume`]: the release posts no verb.
    ///
    /// # Errors
    /// See [`Self::abandon`].
    pub fn abandon_beside<F: Fn() -> usize>(
        &self,
        memory: NodeId,
        holders: F,
    ) -> impl Future<Output = Result<(), NotHeld>> + use<S, F> {
        let core = Rc::clone(&self.core);
        core.interrupt(memory);
        async move {
            let executor = core.lane.executor();
            point!(core.lane.at().node.0, LocksAbandoned);
            while core.uses(memory, holders()) && !broken(Rule::LossesEndUses) {
                executor.sleep(LOOK).await;
            }
            point!(core.lane.at().node.0, LocksLeft);
            core.shut.borrow_mut().retain(|at, _| at.node() != memory);
            let used = core.connections.current(memory);
            match core.mend(memory, used).await {
                Ok(()) => Ok(()),
                Err(VerbError::Revoked) => Err(NotHeld::Expelled),
                Err(_) => Err(NotHeld::Unavailable),
            }
        }
    }

    /// Uses locks on a memory node again, or for the first time, in the given life of its memory: 0
    /// at first, and one more after each loss. No node has used the life before the loss. The
    /// caller ensures zeroed memory, and that every member had abandoned the node before.
    ///
    /// Notices of earlier lives are dropped: an old notice might match the state of a lock in the
    /// new life.
    pub fn resume(&self, memory: NodeId, life: u32) {
        self.core.abandoned.borrow_mut().remove(&memory);
        self.core.lives.borrow_mut().insert(memory, life);
        self.core.note_interruptions();
        point_here!(self.core.lane.at().node.0, LocksResumed);
    }
}

impl<S: LockSystem> Core<S> {
    /// Whether this lane uses no locks on a memory node for now.
    #[inline]
    pub(super) fn has_abandoned(&self, memory: NodeId) -> bool {
        self.is_interrupted.get() && self.abandoned.borrow().contains(&memory)
    }

    /// Life of a memory node.
    pub(super) fn life_of(&self, memory: NodeId) -> u32 {
        self.lives.borrow().get(&memory).copied().unwrap_or(0)
    }

    /// Updates `is_interrupted`: whether a reset or an abandoned memory node still interrupts the
    /// lane's uses.
    pub(super) fn note_interruptions(&self) {
        let is = !self.told.borrow().is_empty()
            || !self.abandoned.borrow().is_empty()
            || self.slots.borrow().has_abandoned();
        self.is_interrupted.set(is);
    }

    /// Notes an interruption of the lane's uses.
    pub(super) fn interrupted(&self) {
        self.is_interrupted.set(true);
        self.watcher.get().into_iter().for_each(|task| self.lane.executor().wake(task));
    }

    /// Tells the uses of locks on a memory node to end.
    fn interrupt(&self, memory: NodeId) {
        self.abandoned.borrow_mut().insert(memory);
        self.interrupted();
        self.notices.borrow_mut().forget_all(memory);
        self.homes.borrow_mut().forget_all(memory);
        let executor = self.lane.executor();
        for slot in self.slots.borrow_mut().on(memory) {
            slot.is_abandoned = true;
            slot.task.into_iter().for_each(|task| executor.wake(task));
        }
        self.wake_answers(memory);
    }

    /// Whether this lane has anything under way on a memory node, or more than `holders` uses.
    fn uses(&self, memory: NodeId, holders: usize) -> bool {
        let is_there = |at: &RemoteAddr| at.node() == memory;
        self.slots.borrow_mut().on(memory).count() > holders
            || self.resetting.borrow().iter().any(is_there)
            || self.told.borrow().keys().any(is_there)
    }
}
