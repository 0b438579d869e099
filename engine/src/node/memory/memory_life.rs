//! Header of a memory node's first region, which identifies the node's life
//! ([`crate::memory_nodes::returning`]).

use crate::node::coordinator::Coordinator;
use lotus_fabric::ids::NodeId;
use lotus_fabric::verbs::VerbError;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::LIFE_OFFSET;
use lotus_recovery::membership::returns::Life;
use lotus_router::{Placement, Replica};

/// Header words up to the life: the state of a region.
pub(crate) const HEADER_WORDS: usize = LIFE_OFFSET as usize / WORD_BYTES + 1;
/// Size of these words, in bytes.
pub(crate) const HEADER_BYTES: usize = HEADER_WORDS * WORD_BYTES;

/// State of a memory node's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryState {
    NoRegions,
    Blank,
    Ready(Life),
    /// Memory of a life that must not be used any more.
    Old,
}

impl MemoryState {
    /// Derives the state from a region's header.
    fn of(header: &[u64]) -> Self {
        let life = header[HEADER_WORDS - 1];
        match Life::from_word(life) {
            Some(life) => Self::Ready(life),
            None if header.iter().all(|word| *word == 0) => Self::Blank,
            None => Self::Old,
        }
    }
}

/// Returns the replica whose header holds a memory node's life: of the group whose first primary is
/// that memory node.
pub(crate) fn life_at(first: &Placement, node: NodeId) -> Replica {
    let primaries = first.groups().map(|(_, set)| set.primary());
    primaries.into_iter().find(|replica| replica.node == node).expect("each is a primary at first")
}

impl Coordinator {
    /// Reads the state of a memory node's memory; `None` without an answer.
    pub(crate) async fn found(&self, node: NodeId) -> Option<MemoryState> {
        let mut batch = self.lane.batch();
        let at = life_at(&self.shared.placement, node).at(0);
        let header = batch.read(at, HEADER_BYTES);
        match batch.post().await {
            Ok(done) => Some(MemoryState::of(done.words(header))),
            Err(error) if error.first().error == VerbError::OutOfBounds => {
                Some(MemoryState::NoRegions)
            }
            Err(_) => None,
        }
    }

    /// Whether a newly connected memory node has the life used by the cluster, and not an earlier
    /// life.
    pub(crate) async fn is_in_use(&self, node: NodeId) -> bool {
        let Some(life) = self.configuration.life_of(node) else { return true };
        self.found(node).await == Some(MemoryState::Ready(life))
    }
}

#[cfg(test)]
mod tests {
    use lotus_fabric::ids::Epoch;
    use lotus_mvcc::layout::region::{MAGIC, RegionLayout, SLAB_BYTES};

    use super::*;

    #[test]
    fn memory_of_old_is_told_from_blank_memory_and_from_what_is_ready() {
        let life = Life::new(Epoch(7), 0);
        let formatted = RegionLayout::new(4 * SLAB_BYTES).expect("large enough").encode();
        let [magic, version, cursor, bytes] = formatted;
        let cases = [
            ([0; HEADER_WORDS], MemoryState::Blank),
            ([0, 0, 0, 0, 0, life.word()], MemoryState::Ready(life)),
            ([magic, version, cursor, bytes, 9, life.word()], MemoryState::Ready(life)),
            ([magic, version, cursor, bytes, 0, 0], MemoryState::Old),
            ([0, 0, 0, 0, 9, 0], MemoryState::Old),
            ([MAGIC, 0, 0, 0, 0, 5], MemoryState::Old),
        ];
        for (header, expected) in cases {
            assert_eq!(MemoryState::of(&header), expected, "{header:?}");
        }
    }
}
