//! Words of a group that are written to a returning memory node.

use lotus_fabric::ids::{NodeId, RemoteAddr};
use lotus_router::{GroupId, Replica};

/// Piece to write to one memory node.
pub(crate) struct Piece {
    pub(crate) node: NodeId,
    /// Stretches to write; records come before the chains that name them.
    pub(crate) writes: Vec<GroupWords>,
}

/// Words, and their offset in the region of a group.
pub(crate) struct GroupWords {
    pub(crate) group: GroupId,
    pub(crate) offset: u64,
    pub(crate) words: Vec<u64>,
}

impl GroupWords {
    /// Address of the words on a memory node.
    pub(crate) fn on(&self, node: NodeId) -> RemoteAddr {
        copy_on(node, self.group).at(self.offset)
    }
}

/// Copy of a group on a memory node.
pub(crate) fn copy_on(node: NodeId, group: GroupId) -> Replica {
    Replica { node, region: group.region() }
}
