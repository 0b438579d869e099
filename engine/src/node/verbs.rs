//! Verbs repeated until they have taken effect, and connections made anew (H22).

use std::time::Duration;

use lotus_fabric::ids::NodeId;
use lotus_fabric::lane::{Batch, BatchError, Completed};
use lotus_fabric::verbs::VerbError;
use lotus_points::posted;

use crate::api::error::TxnError;
use crate::node::coordinator::Coordinator;

/// Pause before a failed verb is tried again.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Error of a fenced node: its verbs no longer have an effect (H2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fenced;

/// Reason why a batch is not repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Halted {
    /// A fence has refused this node.
    Fenced,
    /// A memory node did not answer, and is lost.
    Left,
}

impl Coordinator {
    /// Repeats the batch built by `add` until every verb has taken effect. The verbs must be
    /// repeatable, and `add` must follow the current placement. Returns the completed batch and the
    /// result of `add`, which names the buffers read.
    pub(crate) async fn insist<T>(
        &self,
        add: impl Fn(&mut Batch) -> T,
    ) -> Result<(Completed, T), Fenced> {
        loop {
            match self.insist_here(&add).await {
                Ok(done) => return Ok(done),
                Err(Halted::Fenced) => return Err(Fenced),
                // Try again with the replacement node.
                Err(Halted::Left) => {}
            }
        }
    }

    /// As [`Self::insist`], but returns [`Halted::Left`] once a silent memory node is lost, even if
    /// the node is back already, with empty memory.
    pub(crate) async fn insist_here<T>(
        &self,
        add: impl Fn(&mut Batch) -> T,
    ) -> Result<(Completed, T), Halted> {
        let placed = self.configuration.placed();
        loop {
            let mut batch = self.lane.batch();
            let added = add(&mut batch);
            let error = match posted!(batch.post()) {
                Ok(done) => return Ok((done, added)),
                Err(error) => error,
            };
            for failure in error.failures() {
                let mut outcome = Err(failure.error);
                loop {
                    if outcome == Err(VerbError::Revoked) || self.node.has_failed() {
                        return Err(Halted::Fenced);
                    }
                    if self.configuration.has_left_since(failure.node, placed) {
                        return Err(Halted::Left);
                    }
                    if outcome.is_ok() {
                        break;
                    }
                    self.executor.sleep(RETRY_PAUSE).await;
                    outcome = self.reconnect(failure.node).await;
                }
            }
        }
    }

    /// Error for a transaction whose verbs failed before its first write. First closes and re-makes
    /// the broken connections, so that no verb of the batch can still take effect (H22) and the
    /// next transaction finds working connections.
    #[cold]
    pub(crate) async fn after_failure(&self, error: BatchError) -> TxnError {
        for failure in error.failures() {
            if self.configuration.has_left(failure.node) {
                continue;
            }
            // The next transaction tries a silent node again.
            let reconnected = self.reconnect(failure.node).await;
            if failure.error == VerbError::Revoked || reconnected == Err(VerbError::Revoked) {
                return TxnError::Fenced;
            }
        }
        self.node.configuration.why_timeout()
    }

    /// Closes and re-makes a broken connection (H22); notes for the node whether the peer answers.
    #[cold]
    pub(crate) async fn reconnect(&self, node: NodeId) -> Result<(), VerbError> {
        let mut outcome = self.lane.reconnect(node).await;
        if outcome.is_ok() && !self.is_in_use(node).await {
            outcome = Err(VerbError::Unreachable);
        }
        match outcome {
            Ok(()) => self.node.silent.answers(node),
            Err(VerbError::Revoked) => {}
            Err(_) => self.node.silent.is_silent(node),
        }
        outcome
    }
}
