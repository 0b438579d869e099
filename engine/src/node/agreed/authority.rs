//! Requests of a coordinator to the authority.

use std::time::Duration;

use crate::node::coordinator::Coordinator;
use lotus_authority::{Authority, AuthorityError};
use lotus_recovery::Membership;
use lotus_recovery::membership::{self, ChangeOutcome, ChangeStep, MembershipError};

impl Coordinator {
    /// Whether the authority may have ended with all its values: it has been silent for a lease, or
    /// is known to have ended.
    pub(crate) fn lacks_authority(&self, lease: Duration) -> bool {
        self.shared.async_authority.authority().silence() >= lease
    }

    /// Blocks commits while the authority may have ended (I358): the cluster would end with the
    /// authority, and no node could take in the committed data.
    pub(crate) fn heed_authority(&self, lease: Duration) {
        let lacks_authority = self.lacks_authority(lease);
        if lacks_authority {
            self.node.suspend();
        }
        if lacks_authority != self.configuration.is_muted() {
            self.configuration.mute(lacks_authority);
        }
    }

    /// Reads the membership, at the state of some moment after the call.
    pub(crate) async fn membership(&self) -> Result<Membership, MembershipError> {
        Ok(self.change(|_| None).await?.membership())
    }

    /// Changes the membership on behalf of this life of the node. Other nodes may change the
    /// membership between the requests to the authority; after an error the change may or may not
    /// have been made. A caller decides anew, and a change made twice does no harm (I185).
    pub(crate) async fn change(
        &self,
        mut decide: impl FnMut(&Membership) -> Option<Membership>,
    ) -> Result<ChangeOutcome, MembershipError> {
        let life = (self.node.id, self.node.incarnation);
        loop {
            let stored = self.consult(|authority| authority.read(membership::KEY)).await?;
            let swap = match membership::step(stored, |now| now.decided_by(life, &mut decide))? {
                ChangeStep::Rest(now) => return Ok(ChangeOutcome::Unchanged(now)),
                ChangeStep::Swap(swap) => swap,
            };
            debug_assert!(swap.next.live().next().is_some(), "I69: one member stays");
            let (expected, value) = (swap.expected, swap.value);
            let swapped = move |authority: &dyn Authority| {
                authority.compare_and_swap(membership::KEY, expected, &value)
            };
            match self.consult(swapped).await {
                Ok(_) => return Ok(ChangeOutcome::Changed(swap.next)),
                Err(AuthorityError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Asks the authority `question` asynchronously.
    pub(crate) async fn consult<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Authority) -> Result<T, AuthorityError> + Send + 'static,
    ) -> Result<T, AuthorityError> {
        self.shared.async_authority.consult(self.node.id, &self.executor, question).await
    }
}
