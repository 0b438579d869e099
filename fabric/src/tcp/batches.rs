//! The batches of a lane that are in flight, and which of their parts are not yet over.

use slab::Slab;

use crate::ids::NodeId;
use crate::transport::{Sink, Token};
use crate::verbs::{VerbError, Work};

/// Names a batch of the lane until its last part is over.
pub(super) type BatchId = usize;

struct Batch {
    token: Token,
    work: Box<Work>,
    /// Nodes that have not yet answered all of their verbs.
    parts_left: usize,
}

/// See the module's essay.
#[derive(Default)]
pub(super) struct Batches {
    slots: Slab<Batch>,
    /// No part is left.
    over: Vec<BatchId>,
}

impl Batches {
    /// Adds a batch that has a part for each of `parts` nodes.
    #[inline]
    pub(super) fn add(&mut self, token: Token, work: Box<Work>, parts: usize) -> BatchId {
        let id = self.slots.insert(Batch { token, work, parts_left: parts });
        if parts == 0 {
            self.over.push(id);
        }
        id
    }

    #[inline]
    pub(super) fn work(&self, id: BatchId) -> &Work {
        &self.slots[id].work
    }

    #[inline]
    pub(super) fn work_mut(&mut self, id: BatchId) -> &mut Work {
        &mut self.slots[id].work
    }

    /// One part is over.
    #[inline]
    pub(super) fn part_over(&mut self, id: BatchId) {
        let batch = &mut self.slots[id];
        batch.parts_left -= 1;
        if batch.parts_left == 0 {
            self.over.push(id);
        }
    }

    /// The `nth` verb to `node` at or behind `first`, and none behind it, completed. What was
    /// reported first stands.
    pub(super) fn fail(
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

    /// Whether a batch is over and not yet handed over.
    pub(super) fn has_news(&self) -> bool {
        !self.over.is_empty()
    }

    /// Hands over the batches that are over.
    #[inline]
    pub(super) fn deliver(&mut self, sink: &mut dyn Sink) {
        for id in self.over.drain(..) {
            let Batch { token, work, .. } = self.slots.remove(id);
            sink.completed(token, work);
        }
    }
}
