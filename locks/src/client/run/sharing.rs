//! What the client of a lock that the clients of a node share asks of a run.

use super::{Core, Run};
use crate::contract::LockSystem;

impl<S: LockSystem> Run<S> {
    /// Notes the time of the request.
    pub(in crate::client) fn stamp(&mut self, core: &Core<S>, time: u16) {
        core.system.stamp(&mut self.state, time);
    }

    /// Time of the earliest waiter of another node, if the one that has held the lock before has
    /// said it.
    pub(in crate::client) fn next_time(&self, core: &Core<S>) -> Option<u16> {
        core.system.next_time(&self.state)
    }

    /// Whether it has found the lock taken.
    pub(in crate::client) const fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// See [`LockSystem::can_leave`].
    pub(in crate::client) fn can_leave(&self, core: &Core<S>) -> bool {
        core.system.can_leave(&self.state)
    }
}
