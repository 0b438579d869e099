//! Waits for locks that a keeper frees, as published.

use std::rc::Rc;

use lotus_fabric::env::Nanos;

use super::{Core, DriveEnd, Run, RunState};
use crate::contract::{Event, KeeperRules, LockSystem, NotHeld, Step};

impl<S: LockSystem> Run<S> {
    /// Whether a waiter is to look at its lock now.
    pub(super) fn is_to_watch(&self, core: &Core<S>, now: Nanos) -> bool {
        let is_due = self.next_look != Nanos(0) && now >= self.next_look;
        S::KEEPS && is_due && core.system.keeper_rules().is_some()
    }

    /// Looks at the lock, has its keeper free it if it is time, and goes on with the wait; from the
    /// beginning if the lock was freed.
    pub(super) async fn watch(
        &mut self,
        core: &Rc<Core<S>>,
        keeper_rules: KeeperRules,
    ) -> Option<DriveEnd> {
        let looked = core.watch(self.slot, self.at, keeper_rules).await;
        if looked == Err(NotHeld::Expelled) {
            return Some(self.end(core, Err(NotHeld::Expelled)));
        }
        if looked.is_ok_and(|words| core.system.was_freed(&self.state, words)) {
            core.watches.borrow_mut().forget(self.slot);
            self.doing = RunState::Next(match self.is_leaving {
                true => Step::Gone(Err(NotHeld::Reset)),
                false => Step::Barred,
            });
        } else if matches!(self.doing, RunState::Watching) {
            let step = self.step(core, Event::Paused);
            self.doing = RunState::Next(step);
        }
        None
    }
}
