//! Questions to a run from a client whose node shares the lock among its clients.

use super::{Core, Run};
use crate::contract::LockSystem;

impl<S: LockSystem> Run<S> {
    /// Notes the time of the request.
    pub(in crate::client) fn stamp(&mut self, core: &Core<S>, time: u16) {
        core.system.stamp(&mut self.state, time);
    }

    /// Request time of the earliest waiter of another node, if the previous holder has sent it.
    pub(in crate::client) fn next_time(&self, core: &Core<S>) -> Option<u16> {
        core.system.next_time(&self.state)
    }

    /// Whether the use has found the lock taken.
    pub(in crate::client) const fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// See [`LockSystem::can_leave`].
    pub(in crate::client) fn can_leave(&self, core: &Core<S>) -> bool {
        core.system.can_leave(&self.state)
    }
}
