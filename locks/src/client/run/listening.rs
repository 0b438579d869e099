//! Notices between uses: the parts of a run that only systems with notices need.

use std::rc::Rc;
use std::task::Poll;

use lotus_fabric::env::Nanos;
use lotus_points::may_cut;

use super::{Core, DriveEnd, Run, RunState};
use crate::contract::{Event, LockSystem, NotHeld, Notice, Step};

/// End of a wait for a notice.
pub(super) enum Listened {
    /// The next step is known.
    Next,
    /// The acquisition is given up.
    Turn(DriveEnd),
    /// It is time to check whether this node can still reach the memory.
    Look,
}

impl<S: LockSystem> Run<S> {
    /// Gives the use a new number, before it begins.
    pub(super) fn renumber(&mut self, core: &Core<S>) {
        let number = core.open(self.slot, self.at);
        core.system.renumber(&mut self.state, number);
    }

    /// Sends a notice. No answer is awaited, and the next step is known; unless the notice is for
    /// the home of the lock, and the home has to be found first.
    #[inline]
    pub(super) fn tell(&mut self, core: &Rc<Core<S>>, notice: Notice) {
        if S::HAS_HOMES && notice.kind().is_for_home() {
            return self.tell_home(core, notice);
        }
        let says = core.system.says(&self.state);
        match S::TELLS_ONCE {
            true => core.tell_once(self.at, self.slot, notice, says),
            false => core.tell(self.slot, notice, says),
        }
        let step = self.step(core, Event::Told);
        self.doing = RunState::Next(step);
        if may_cut() && self.is_leaving {
            self.has_told(core, notice);
        }
    }

    /// Waits for a notice, unless the acquisition is given up.
    pub(super) fn listen(&mut self, core: &Rc<Core<S>>, until: Nanos) -> Option<DriveEnd> {
        let now = core.lane.executor().now();
        if self.may_stop(core, now, until) {
            self.doing = RunState::Next(Step::Listen);
            return Some(DriveEnd::Stopped(NotHeld::TimedOut));
        }
        self.has_waited |= !self.is_leaving;
        self.look_for_losses(core, now);
        self.doing = RunState::Listening;
        None
    }

    /// Ready when there is a notice, when the use was told of a reset, or when the wait has lasted
    /// long enough.
    pub(super) fn poll_notice(&mut self, core: &Rc<Core<S>>, until: Nanos) -> Poll<Listened> {
        if self.is_told(core) {
            self.doing = RunState::Next(Step::Listen);
            return Poll::Ready(Listened::Next);
        }
        if let Some(step) = self.hear(core) {
            self.doing = RunState::Next(step);
            return Poll::Ready(Listened::Next);
        }
        let executor = core.lane.executor();
        let now = executor.now();
        if self.may_stop(core, now, until) {
            return Poll::Ready(Listened::Turn(DriveEnd::Stopped(NotHeld::TimedOut)));
        }
        if now >= self.next_look {
            return Poll::Ready(Listened::Look);
        }
        let stops = !self.is_leaving && !self.is_ghost;
        core.slots.borrow_mut().get(self.slot).task = Some(executor.current());
        let due = if stops { self.next_look.min(until) } else { self.next_look };
        executor.wake_at(due, executor.current());
        Poll::Pending
    }

    /// Asks for a reset if a node was lost, and learns from the memory node whether this node was
    /// lost: a use that only listens would never know.
    pub(super) async fn look(&mut self, core: &Rc<Core<S>>) -> Option<DriveEnd> {
        let now = core.lane.executor().now();
        self.look_for_losses(core, now);
        if S::KEEPS
            && let Some(keeper_rules) = core.system.keeper_rules()
        {
            return self.watch(core, keeper_rules).await;
        }
        match core.read_head(self.at).await {
            Err(NotHeld::Expelled) => Some(self.end(core, Err(NotHeld::Expelled))),
            Ok(_) | Err(_) => None,
        }
    }

    /// Lets a holder hear the notices that came meanwhile, before it leaves.
    pub(super) fn catch_up(&mut self, core: &Core<S>) {
        while self.hear(core).is_some() {}
    }

    /// Hears a notice, if any, and returns the step after it.
    pub(super) fn hear(&mut self, core: &Core<S>) -> Option<Step> {
        loop {
            let gathers = S::HAS_HOMES && core.system.gathers(&self.state);
            let (notice, says) = core.notices.borrow_mut().take(self.slot, gathers)?;
            if core.system.take_note(&mut self.state, notice, says) {
                return Some(core.system.hear(&mut self.state, notice));
            }
            core.notices.borrow_mut().refuse(self.slot, notice.kind());
        }
    }
}
