//! Batches of a lane in flight, and their unfinished parts.

use slab::Slab;

use crate::contract::ids::NodeId;
use crate::contract::transport::{Sink, Token};
use crate::contract::verbs::{VerbError, Work};

/// Identifies a batch of the lane until the last part is finished.
pub(crate) type BatchId = usize;

struct Batch {
    token: Token,
    work: Box<Work>,
    /// Number of nodes with unanswered verbs.
    parts_left: usize,
}

/// Batches of a lane in flight.
#[derive(Default)]
pub(crate) struct Batches {
    slots: Slab<Batch>,
    /// Batches without unfinished parts, not yet delivered.
    over: Vec<BatchId>,
}

impl Batches {
    /// Adds a batch with parts for `parts` nodes.
    #[inline]
    pub(crate) fn add(&mut self, token: Token, work: Box<Work>, parts: usize) -> BatchId {
        let id = self.slots.insert(Batch { token, work, parts_left: parts });
        if parts == 0 {
            self.over.push(id);
        }
        id
    }

    #[inline]
    pub(crate) fn work(&self, id: BatchId) -> &Work {
        &self.slots[id].work
    }

    #[inline]
    pub(crate) fn work_mut(&mut self, id: BatchId) -> &mut Work {
        &mut self.slots[id].work
    }

    /// Records the end of a part.
    #[inline]
    pub(crate) fn part_over(&mut self, id: BatchId) {
        let batch = &mut self.slots[id];
        batch.parts_left -= 1;
        if batch.parts_left == 0 {
            self.over.push(id);
        }
    }

    /// Records that the `nth` verb to `node`, counted from request `first` on, failed, and that no
    /// later verb completed. The first failure of a node stands.
    pub(crate) fn fail(
        &mut self,
        id: BatchId,
        node: NodeId,
        first: usize,
        nth: usize,
        error: VerbError,
    ) {
        let work = self.work_mut(id);
        if work.has_failed(node) {
            return;
        }
        let verbs = work.requests().iter().enumerate().skip(first);
        let mut of_node = verbs.filter(|(_, request)| request.addr.node() == node);
        let found = of_node.nth(nth).map(|(verb, _)| verb);
        work.fail(found.unwrap_or(first), error);
    }

    /// Whether a finished batch waits to be delivered.
    pub(crate) fn has_news(&self) -> bool {
        !self.over.is_empty()
    }

    /// Delivers the finished batches.
    #[inline]
    pub(crate) fn deliver(&mut self, sink: &mut dyn Sink) {
        for id in self.over.drain(..) {
            let Batch { token, work, .. } = self.slots.remove(id);
            sink.completed(token, work);
        }
    }
}
