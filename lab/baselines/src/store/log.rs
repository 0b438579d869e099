//! The log of a coroutine: a ring in shared memory, at the same offset on all memory nodes.
//!
//! The log is written and never read, since no engine here recovers.

use lotus_benchmarks::TxnError;
use lotus_fabric::ids::NodeSet;
use lotus_fabric::lane::Batch;
use lotus_fabric::verbs::MAX_VERB_BYTES;

use super::rows::FULL;
use super::thread_context::ThreadContext;
use super::{SHARED_REGION, System};

const WORD: usize = 8;
/// Bytes of a ring.
const RING_BYTES: u64 = 128 << 10;

/// The ring of one coroutine.
#[derive(Debug, Default)]
pub(crate) struct LogRing {
    /// Offset of the ring; `None` until the first use.
    first: Option<u64>,
    used: u64,
}

impl LogRing {
    /// Adds the WRITE of an entry to a batch, for each node of `nodes`; several WRITEs if the entry
    /// exceeds the size of a verb.
    ///
    /// # Errors
    /// [`FULL`] if there is no memory for the ring.
    pub(crate) fn put<S: System>(
        &mut self,
        context: &ThreadContext<S>,
        batch: &mut Batch,
        nodes: NodeSet,
        entry: &[u64],
    ) -> Result<(), TxnError> {
        for part in entry.chunks(MAX_VERB_BYTES / WORD) {
            let bytes = part.len() * WORD;
            let offset = self.place(context, bytes as u64)?;
            let staged = batch.stage(bytes);
            batch.words_mut(staged).copy_from_slice(part);
            batch.write_all(nodes, SHARED_REGION, offset, staged);
        }
        Ok(())
    }

    /// Offset of the next `bytes` bytes.
    fn place<S: System>(
        &mut self,
        context: &ThreadContext<S>,
        bytes: u64,
    ) -> Result<u64, TxnError> {
        let first = match self.first {
            Some(first) => first,
            None => context.take(RING_BYTES).ok_or(FULL)?,
        };
        let at = if self.used + bytes <= RING_BYTES { self.used } else { 0 };
        (self.first, self.used) = (Some(first), at + bytes);
        Ok(first + at)
    }
}
