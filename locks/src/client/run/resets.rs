//! Behaviour of a use while its lock is reset: the use waits for the end of the reset, and asks for
//! the resets that it needs.

use std::rc::Rc;

use lotus_fabric::env::Nanos;
use lotus_sabotage::{Rule, broken};

use super::{BARRED, Core, DOUBT, DriveEnd, Message, Run, RunState, SEARCH};
use crate::contract::{LockSystem, NotHeld};

impl<S: LockSystem> Run<S> {
    /// Notes that the use holds nothing and has no verb under way. Returns the number of ended
    /// resets.
    pub(super) fn quiet(&self, core: &Core<S>) -> u32 {
        let mut slots = core.slots.borrow_mut();
        let slot = slots.get(self.slot);
        slot.is_quiet = true;
        let resets = slot.resets;
        drop(slots);
        core.wake_answer(self.at);
        resets
    }

    /// Waits until `due`, until the use is told of a reset, or until a reset is over.
    pub(super) async fn wait(&self, core: &Core<S>, due: Nanos) {
        let executor = core.lane.executor();
        let state = || {
            let mut slots = core.slots.borrow_mut();
            let slot = slots.get(self.slot);
            slot.task = Some(executor.current());
            (slot.told, slot.resets, slot.is_abandoned)
        };
        let before = state();
        while executor.now() < due && state() == before {
            executor.wake_at(due, executor.current());
            executor.suspend().await;
        }
    }

    /// Asks from time to time for a reset, if this use may wait for a lost node.
    pub(super) fn look_for_losses(&mut self, core: &Rc<Core<S>>, now: Nanos) {
        if now < self.next_look {
            return;
        }
        // The first look only sets the time of the next look.
        if self.next_look != Nanos(0) {
            core.want_reset(Message::Stalled, self.at);
        }
        let usual =
            core.system.keeper_rules().map_or(core.stall.get(), |keeper_rules| keeper_rules.look);
        self.next_look = now.after(if S::QUEUES && self.is_leaving { SEARCH } else { usual });
    }

    /// Waits for the end of a reset.
    pub(super) async fn barred(&mut self, core: &Rc<Core<S>>, until: Nanos) -> Option<DriveEnd> {
        if self.is_ghost {
            // Requests that do not wait would never learn that the reset is over.
            if S::QUEUES
                && let Ok(head) = core.read_head(self.at).await
            {
                core.stays_shut(self.at, head);
            }
            return Some(self.end(core, Err(NotHeld::Reset)));
        }
        loop {
            let RunState::Barred(pause, before) = self.doing else { unreachable!("it is barred") };
            if self.is_abandoned(core) {
                return Some(self.abandon(core));
            }
            let now = core.lane.executor().now();
            if now >= until {
                return Some(DriveEnd::Stopped(NotHeld::Reset));
            }
            self.look_for_losses(core, now);
            self.wait(core, now.after(pause).min(until)).await;
            self.doing = RunState::Barred((pause * 2).min(BARRED.1), before);
            match core.read_head(self.at).await {
                Ok(head) => {
                    let mut slots = core.slots.borrow_mut();
                    let slot = slots.get(self.slot);
                    let is_over = slot.resets != before || !core.is_resetting(head);
                    let is_shut = S::QUEUES && core.stays_shut(self.at, head);
                    if is_over && !is_shut && slot.told.is_none() {
                        slot.is_quiet = false;
                        core.begins_anew(self.at);
                        return None;
                    }
                }
                Err(NotHeld::Expelled) => return Some(self.end(core, Err(NotHeld::Expelled))),
                Err(why) => return Some(DriveEnd::Stopped(why)),
            }
        }
    }

    /// Waits for the end of a reset that this use was told of, after an atomic without an answer
    /// (I295).
    pub(super) async fn doubt(&mut self, core: &Rc<Core<S>>, before: u32) -> Option<DriveEnd> {
        loop {
            if self.is_abandoned(core) {
                return Some(self.abandon(core));
            }
            // An expelled node is told of nothing, and learns of its expulsion from the memory
            // node.
            if core.read_head(self.at).await == Err(NotHeld::Expelled) {
                return Some(self.end(core, Err(NotHeld::Expelled)));
            }
            let (told, resets) = {
                let mut slots = core.slots.borrow_mut();
                let slot = slots.get(self.slot);
                (slot.told, slot.resets)
            };
            let is_over = resets != before && told.is_none();
            if is_over || broken(Rule::DoubtsAreReset) {
                if self.is_leaving {
                    return Some(self.end(core, Ok(())));
                }
                if self.is_ghost {
                    return Some(self.end(core, Err(NotHeld::Reset)));
                }
                core.slots.borrow_mut().get(self.slot).is_quiet = false;
                return None;
            }
            if told.is_none() {
                core.want_reset(Message::Doubted, self.at);
            }
            let now = core.lane.executor().now();
            // The node that told of the reset may be lost.
            self.look_for_losses(core, now);
            self.wait(core, now.after(DOUBT)).await;
        }
    }
}
