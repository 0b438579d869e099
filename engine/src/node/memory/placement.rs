//! Memory nodes in use, for a coordinator's transactions.

use crate::node::coordinator::Coordinator;
use lotus_router::{GroupId, Placement, Replica, ReplicaSet};
use std::cell::Ref;

impl Coordinator {
    /// Placement in use. Do not hold it across an await.
    #[inline]
    pub(crate) fn placement(&self) -> Ref<'_, Placement> {
        self.configuration.placement()
    }

    /// Copies of a group in use.
    pub(crate) fn replicas(&self, group: GroupId) -> ReplicaSet {
        *self.placement().replicas(group)
    }

    /// Primary of a group.
    pub(crate) fn primary(&self, group: GroupId) -> Replica {
        self.placement().replicas(group).primary()
    }

    /// Whether a group's cursor must be raised before a slab is taken: its copy was promoted.
    pub(crate) fn must_raise_cursor(&self, group: GroupId) -> bool {
        self.is_promoted(group) && !self.configuration.is_cursor_raised(group)
    }

    /// Whether a group's primary differs from the first primary, or is in a later life.
    pub(crate) fn is_promoted(&self, group: GroupId) -> bool {
        let primary = self.primary(group);
        let first = self.shared.placement.replicas(group).primary();
        primary != first || self.configuration.life_of(primary.node).is_some()
    }
}
