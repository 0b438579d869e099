//! The nodes' side of a mailbox, as a daemon polls it.

use lotus_authority::Authority;

use super::rest::Rest;

/// Part of a daemon that answers questions when it is polled.
pub trait Look {
    /// Reports, before the node begins to serve, that all nodes are ordered to rest. Ignored by
    /// default.
    fn find(&mut self, _rest: Rest) {}

    /// Answers the next unanswered question, if there is one.
    fn look(&mut self, authority: &dyn Authority);

    /// Called more often than [`Self::look`], for questions with an asker that waits. Does nothing
    /// by default.
    fn glance(&mut self, _authority: &dyn Authority) {}

    /// Called once, when the node was told to end. Does nothing by default.
    fn end(&mut self, _authority: &dyn Authority) {}
}
