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
    /// The node in one of its lives, as words name it.
    pub life: Claimant,
    /// Number of lanes of it that use locks.
    pub lanes: u16,
}

/// An answer of the membership.
pub type PeersFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The membership. A node uses a lock only once it is a member.
pub trait Peers {
    /// The nodes that may reach the memory, which are the members and those expelled that are not
    /// settled yet, and the epoch; asked of the authority and not of a cache. `None` if it does not
    /// answer now.
    fn members(&self) -> PeersFuture<'_, Option<(Epoch, Vec<Member>)>>;

    /// The last epoch, as far as this node knows, in which a member was expelled; zero if none was.
    fn last_loss(&self) -> Epoch;

    /// Whether this node knows that a node in this life was expelled, is fenced at every memory
    /// node, and that what it has left behind was dealt with.
    fn is_settled(&self, life: Claimant) -> bool;

    /// The node of a number among the users of locks.
    fn node(&self, number: u8) -> Option<NodeId>;
}
