//! Fences at memory nodes (H2): after a fence no verb of the expelled node takes effect.

use std::sync::Arc;

use lotus_fabric::ids::{Epoch, NodeId};
use lotus_points::point;
use lotus_recovery::Contradiction;

use crate::node::coordinator::Coordinator;
use crate::node::shared::Shared;
use crate::node::verbs::{Halted, RETRY_PAUSE};

/// Reason why a recoverer stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The recoverer is expelled, and another node takes over; or a memory node is lost, and
    /// recovery begins anew with the remaining memory nodes (H15).
    Halted(Halted),
    /// State that the protocol rules out. Recovery touches nothing more.
    Contradiction(Contradiction),
}

impl From<Halted> for Stop {
    fn from(why: Halted) -> Self {
        Self::Halted(why)
    }
}

impl From<Contradiction> for Stop {
    fn from(what: Contradiction) -> Self {
        Self::Contradiction(what)
    }
}

/// Fences the nodes of `out` at the memory nodes of `targets`: a verb from before its node's given
/// epoch takes no effect any more.
pub(crate) async fn fence_at(
    coordinator: &Coordinator,
    out: impl Iterator<Item = (NodeId, Epoch)>,
    targets: &[NodeId],
) -> Result<(), Stop> {
    let uses = |target| coordinator.node.configuration.uses_again(target);
    for (node, since) in out {
        for (place, &target) in targets.iter().enumerate() {
            let fence = move |shared: &Shared| shared.fabric.fence(target, node, since).is_ok();
            let is_lost = || coordinator.configuration.has_left(target) && !uses(target);
            until_done(coordinator, is_lost, fence).await?;
            point!(coordinator.node.id.0, Fence, place, targets.len());
        }
    }
    Ok(())
}

/// Repeats `work` on the authority thread until it succeeds or the target leaves the placement. A
/// node that does not answer now may answer later.
pub(crate) async fn until_done(
    coordinator: &Coordinator,
    out_of_place: impl Fn() -> bool,
    work: impl Fn(&Shared) -> bool + Copy + Send + 'static,
) -> Result<(), Stop> {
    loop {
        let shared = Arc::clone(&coordinator.shared);
        if coordinator.shared.async_authority.apart(move || work(&shared)).await == Ok(true) {
            return Ok(());
        }
        if coordinator.node.has_failed() {
            return Err(Halted::Fenced.into());
        }
        if out_of_place() {
            return Err(Halted::Left.into());
        }
        coordinator.executor.sleep(RETRY_PAUSE).await;
    }
}
