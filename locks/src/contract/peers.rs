//! The membership of a cluster as locks see it.

use std::future::Future;
use std::pin::Pin;

use lotus_fabric::ids::{Epoch, NodeId};

use crate::word::Claimant;

/// A compute node that uses locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// The node in its present life, as words name it.
    pub life: Claimant,
    /// Number of the node's lanes that use locks.
    pub lanes: u16,
}

/// A pending answer of the membership.
pub type PeersFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The membership. A node uses a lock only once it is a member.
pub trait Peers {
    /// Returns the nodes that may reach the memory, and the epoch. These nodes are the members, and
    /// expelled nodes that are not settled yet. The authority is asked, not a cache. `None` if the
    /// authority does not answer now.
    fn members(&self) -> PeersFuture<'_, Option<(Epoch, Vec<Member>)>>;

    /// Returns the last epoch, as far as this node knows, in which a member was expelled; zero if
    /// no member was.
    fn last_loss(&self) -> Epoch;

    /// Whether this node knows that a node in this life was expelled and is fenced at every memory
    /// node, and that its remains were dealt with.
    fn is_settled(&self, life: Claimant) -> bool;

    /// Returns the node with this number among the users of locks.
    fn node(&self, number: u8) -> Option<NodeId>;
}
