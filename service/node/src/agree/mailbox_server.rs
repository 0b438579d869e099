//! The nodes' side of a mailbox, polled by the daemon.

use lotus_authority::Authority;

use super::rest::Rest;

/// Polled part of a daemon, for answering questions.
pub trait MailboxServer {
    /// Reports, before the node begins to serve, an order to rest. Ignored by default.
    fn find(&mut self, _rest: Rest) {}

    /// Answers the next unanswered question, if any.
    fn look(&mut self, authority: &dyn Authority);

    /// Called more often than [`Self::look`], for questions whose asker waits. Does nothing by
    /// default.
    fn glance(&mut self, _authority: &dyn Authority) {}

    /// Called once, when the node was told to end. Does nothing by default.
    fn end(&mut self, _authority: &dyn Authority) {}
}
