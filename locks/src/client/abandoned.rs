//! Memory nodes that have lost their memory (DecLock appendix B).
//!
//! With the words of the locks, all places in queues are lost: a waiter would wait for ever, and a
//! holder would hold a lock that others find free. So every lane of every member abandons the
//! memory node. When all have, no lock there is held and no verb is under way; then the node may
//! return with zeroed memory, in which all locks are free, and the lanes resume. Ghosts do not take
//! their turns: they end like waiters.
//!
//! A member that does not answer is expelled. The memory node has lost its fences too, and has to
//! have them again before any lane resumes.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::ids::{NodeId, RemoteAddr};
use lotus_fabric::verbs::VerbError;
use lotus_points::{point, point_here};
use lotus_sabotage::{Rule, broken};

use super::{Client, Core};
use crate::contract::{LockSystem, NotHeld};

/// Time between two looks at what is still used.
const LOOK: Duration = Duration::from_micros(10);

impl<S: LockSystem> Client<S> {
    /// Ends all uses of locks on a memory node whose memory is lost, from the call on: waits,
    /// ghosts, releases and resets end where they are, and requests are refused with
    /// [`NotHeld::Unavailable`], until [`Self::resume`]. The holders are not ended, only told by
    /// [`Self::is_valid`]; this returns when they have released their locks.
    ///
    /// When it has returned on all lanes of all members, also if with `Unavailable`, the node may
    /// be used again with zeroed memory. It has to refuse those who were expelled before.
    ///
    /// # Errors
    /// [`NotHeld::Unavailable`] if the memory node does not answer. Verbs that were posted before
    /// may take effect still, unless it really has lost its memory, and its connections with it.
    /// [`NotHeld::Expelled`] if it refuses this node; which is no member any more, and not awaited.
    pub fn abandon(&self, memory: NodeId) -> impl Future<Output = Result<(), NotHeld>> + use<S> {
        self.abandon_beside(memory, || 0)
    }

    /// The same, without waiting for so many holders, which rely on their locks no more. They may
    /// release them at any time, also after [`Self::resume`]: that posts nothing.
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

    /// Uses locks on a memory node again, or for the first time, in a life that no node has used
    /// before it lost its memory: 0 at first, and one more after each loss. The caller makes sure
    /// that its memory is zeroed, and that all members had abandoned it before.
    ///
    /// Notices of earlier lives are dropped: they may say what is true of a lock in this one.
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

    /// Looks whether anything interrupts the uses of this lane still.
    pub(super) fn note_interruptions(&self) {
        let is = !self.told.borrow().is_empty()
            || !self.abandoned.borrow().is_empty()
            || self.slots.borrow().has_abandoned();
        self.is_interrupted.set(is);
    }

    /// Notes that something interrupts the uses of this lane.
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

    /// Whether anything of this lane is under way on a memory node, or held but for so many locks.
    fn uses(&self, memory: NodeId, holders: usize) -> bool {
        let is_there = |at: &RemoteAddr| at.node() == memory;
        self.slots.borrow_mut().on(memory).count() > holders
            || self.resetting.borrow().iter().any(is_there)
            || self.told.borrow().keys().any(is_there)
    }
}
