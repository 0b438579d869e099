//! Writes of a commit, determined before the first verb.

use lotus_fabric::ids::NodeSet;
use lotus_fabric::verbs::Buffer;
use lotus_recovery::log::LoggedWrite;
use lotus_router::GroupId;

/// Writes of one commit, determined before the first verb.
#[derive(Default)]
pub(crate) struct CommitPlan {
    pub(crate) writes: Vec<PlannedWrite>,
    /// Links from chains to new overflow buckets.
    pub(crate) links: Vec<PlannedLink>,
    pub(crate) logged: Vec<LoggedWrite>,
    /// Memory nodes that hold a replica of a written row.
    pub(crate) nodes: NodeSet,
}

/// Write of one row, to the row's [`Target`](crate::txn::body::Target). Offsets are in the group's
/// region.
#[derive(Clone, Copy)]
pub(crate) struct PlannedWrite {
    /// Index in [`Body::rows`](crate::txn::body::Body::rows).
    pub(crate) row: usize,
    pub(crate) group: GroupId,
    pub(crate) record: u64,
    /// Whether the record goes to the cell's home slot, and therefore into one WRITE with the cell.
    pub(crate) goes_home: bool,
    /// Offset of the cell, which begins with its version word.
    pub(crate) version_word: u64,
    /// Offset of the words in [`StagedWrite::cell`].
    pub(crate) cell_begins: u64,
    /// Set while a batch is built.
    pub(crate) buffers: Option<StagedWrite>,
}

/// Link to new overflow buckets: `word` is written at `link`.
pub(crate) struct PlannedLink {
    pub(crate) group: GroupId,
    pub(crate) link: u64,
    pub(crate) word: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct StagedWrite {
    /// `None` for a deletion without a record, and for a record in the cell's home slot.
    pub(crate) record: Option<Buffer>,
    /// The cell, preceded by the CVT's header if the CVT is new, and followed by the record if the
    /// record goes to the cell's home slot.
    pub(crate) cell: Buffer,
}

impl CommitPlan {
    pub(crate) fn clear(&mut self) {
        self.writes.clear();
        self.links.clear();
        self.logged.clear();
        self.nodes = NodeSet::EMPTY;
    }
}
