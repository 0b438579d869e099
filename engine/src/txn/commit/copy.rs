//! Commit of a piece of a returning memory node's copy ([`crate::memory_nodes::filling`]).

use crate::node::verbs::{Fenced, Halted};
use crate::txn::body::{Body, Receipt};
use crate::txn::commit::Commit;
use crate::txn::piece::{GroupWords, Piece};
use crate::txn::slot::Slot;
use lotus_fabric::lane::Batch;
use lotus_fabric::verbs::Buffer;
use lotus_locktable::LockService;
use lotus_mvcc::layout::WORD_BYTES;

/// Number of words read, or verbs posted, in one batch.
const AT_ONCE: usize = 64;

/// Writes the piece in `body` to its memory node, and releases the locks.
pub(crate) async fn carry_out(slot: &Slot, mut body: Box<Body>) {
    let commit = Commit::of(slot, &body);
    let piece = body.piece.take().expect("it was handed over");
    match commit.fill(&piece).await {
        Ok(()) => {
            slot.decide(commit.txn(), Ok(Receipt::default()));
            slot.coordinator.locks.release(&mut body.held);
            slot.coordinator.lane.mark_errand();
            slot.finish(body);
        }
        Err(Fenced) => slot.expelled(commit.txn()),
    }
}

impl Commit<'_> {
    /// Writes until the memory node has the piece, or is lost.
    async fn fill(&self, piece: &Piece) -> Result<(), Fenced> {
        let coordinator = self.coordinator();
        for some in piece.writes.chunks(AT_ONCE) {
            loop {
                let write = |batch: &mut Batch| {
                    for stretch in some {
                        debug_assert!(
                            !stretch.words.is_empty(),
                            "I137: each stretch of a copy has words"
                        );
                        let staged = batch.stage(stretch.words.len() * WORD_BYTES);
                        batch.words_mut(staged).copy_from_slice(&stretch.words);
                        batch.write(stretch.on(piece.node), staged);
                    }
                };
                let read = |batch: &mut Batch| -> Vec<Buffer> {
                    let read = |stretch: &GroupWords| {
                        batch.read(stretch.on(piece.node), stretch.words.len() * WORD_BYTES)
                    };
                    some.iter().map(read).collect()
                };
                let written = coordinator.insist_here(write).await.map(drop);
                let there = match written {
                    Ok(()) => coordinator.insist_here(read).await,
                    Err(halted) => Err(halted),
                };
                match there {
                    Ok((done, buffers)) => {
                        let mut pairs = some.iter().zip(buffers);
                        if pairs.all(|(stretch, buffer)| done.words(buffer) == stretch.words) {
                            break;
                        }
                    }
                    Err(Halted::Fenced) => return Err(Fenced),
                    // The memory node is lost with all its data.
                    Err(Halted::Left) => return Ok(()),
                }
            }
        }
        Ok(())
    }
}
