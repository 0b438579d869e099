//! Verbs that the initiator carries out itself, as copies: the part that `local` and `shm` share.
//!
//! # What it is
//! An [`Initiator`] is the verb side of one lane. A posted batch is only *queued*; it takes effect
//! when the lane is polled, after every other coroutine has run. The poll prefetches for the whole
//! queue before it copies, so that the processor waits for many cache lines and address
//! translations at once: memory latency is hidden the way network latency is.
//!
//! # What it is not
//! It does not know where the memory comes from, which process may map it, or how lanes send
//! messages: the back ends know, and provide access through [`Targets`].
//!
//! # Fencing
//! Checking an epoch and then copying would race with the fencer. So a lane publishes that it is
//! inside a [`Round`] of copies, in a word that the fencer can read. The lane stores the word, then
//! loads the epoch; the fencer stores the epoch, then loads the word; all of it sequentially
//! consistent. So the fencer sees the round and waits for its end, or the round sees the epoch and
//! refuses (H2).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::contract::ids::{Epoch, NodeId, RegionId};
use crate::contract::region::{Memory, Rights, View, WORD_BYTES};
use crate::contract::transport::{Sink, Token};
use crate::contract::verbs::{Buffers, Op, VerbError, VerbKind, Work, WorkRequest};

/// Number of regions that a node may have.
pub(crate) const REGIONS_PER_NODE: usize = 256;

/// Registered memory as an initiator reaches it.
pub(crate) struct Region {
    pub(crate) mapping: Mapping,
    /// Bytes that were registered; the mapping may be larger.
    pub(crate) bytes: u64,
    pub(crate) rights: Rights,
}

/// Access that the hardware grants the initiator.
pub(crate) enum Mapping {
    Writable(Memory),
    ReadOnly(View),
}

impl Mapping {
    #[inline]
    fn view(&self) -> &View {
        match self {
            Self::Writable(memory) => memory.view(),
            Self::ReadOnly(view) => view,
        }
    }

    #[inline]
    fn memory(&self) -> Result<&Memory, VerbError> {
        match self {
            Self::Writable(memory) => Ok(memory),
            Self::ReadOnly(_) => Err(VerbError::AccessDenied),
        }
    }
}

/// A node that holds regions.
pub(crate) trait Target {
    /// Epoch below which verbs of `initiator` are refused. A sequentially consistent load.
    fn fence(&self, initiator: NodeId) -> Epoch;
    /// Whether the node is reachable.
    fn answers(&self) -> bool;
    /// A region, if it is registered.
    fn region(&self, region: RegionId) -> Option<&Region>;
}

/// The nodes that a lane has connections to.
pub(crate) trait Targets {
    type Target: Target;
    fn target(&self, node: NodeId) -> Option<&Self::Target>;
}

/// A lane's round of copies. It ends when this is dropped, also by a panic.
pub(crate) struct Round<'a> {
    word: &'a AtomicU64,
    after: u64,
}

impl<'a> Round<'a> {
    /// Starts a round of the lane that owns `word`; the word is odd until the round ends.
    #[inline]
    pub(crate) fn enter(word: &'a AtomicU64) -> Self {
        // SeqCst, and so a full barrier: the fencer sees the round, or we see its epoch.
        let before = word.fetch_add(1, Ordering::SeqCst);
        debug_assert_eq!(before % 2, 0, "rounds do not nest");
        Self { word, after: before + 2 }
    }

    /// Waits until the round that `load` shows, if any, has ended, or `give_up` returns true.
    /// Returns whether it has ended. Call it after raising the epoch.
    pub(crate) fn wait(load: impl Fn() -> u64, mut give_up: impl FnMut() -> bool) -> bool {
        let seen = load();
        while seen % 2 == 1 && load() == seen {
            if give_up() {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }
}

impl Drop for Round<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: a fencer that sees this sees what the round wrote. Only the lane stores.
        self.word.store(self.after, Ordering::Release);
    }
}

/// The verb side of one lane: its connections, and the posted batches, in order.
pub(crate) struct Initiator<T> {
    pub(crate) targets: T,
    node: NodeId,
    epoch: Epoch,
    /// By node: whether a verb failed and the connection has not been re-made.
    broken: Vec<bool>,
    started: Vec<(Token, Box<Work>)>,
}

impl<T: Targets> Initiator<T> {
    /// A lane of `node` in a fabric of `nodes` nodes.
    pub(crate) fn new(targets: T, node: NodeId, epoch: Epoch, nodes: usize) -> Self {
        Self { targets, node, epoch, broken: vec![false; nodes], started: Vec::new() }
    }

    #[inline]
    pub(crate) fn post(&mut self, token: Token, work: Box<Work>) {
        self.started.push((token, work));
    }

    /// Whether nothing was posted since the last round.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.started.is_empty()
    }

    /// Carries out all posted batches. Must be called inside a round.
    #[inline]
    pub(crate) fn carry_out(&mut self, sink: &mut dyn Sink) {
        // Prefetch for all batches before copying: address translations and cache misses overlap
        // only if nothing is between them, and one TLB miss holds up all that follows.
        for (_, work) in &self.started {
            self.prefetch(work);
        }
        // The fencer waits until the round is over, so one look at its epoch is enough.
        let mut admitted = None;
        let mut started = std::mem::take(&mut self.started);
        for (token, mut work) in started.drain(..) {
            self.execute(&mut work, &mut admitted);
            sink.completed(token, work);
        }
        self.started = started;
    }

    /// Makes a new connection. No verb of the old one is left: each has taken effect or failed.
    pub(crate) fn reconnect(&mut self, node: NodeId) -> Result<(), VerbError> {
        self.set_broken(node, false);
        let result = self.admit(node);
        self.set_broken(node, result.is_err());
        result
    }

    /// Marks the connection to `node` as broken, so that verbs are refused, or as usable again.
    pub(crate) fn set_broken(&mut self, node: NodeId, broken: bool) {
        if let Some(known) = self.broken.get_mut(usize::from(node.0)) {
            *known = broken;
        }
    }

    /// Checks that the connection to `node` admits verbs.
    fn admit(&self, node: NodeId) -> Result<(), VerbError> {
        let Some(target) = self.targets.target(node) else {
            return Err(VerbError::Unreachable);
        };
        if target.fence(self.node) > self.epoch {
            return Err(VerbError::Revoked);
        }
        if self.broken[usize::from(node.0)] {
            return Err(VerbError::Broken);
        }
        if target.answers() { Ok(()) } else { Err(VerbError::Unreachable) }
    }

    /// Carries out the verbs of a batch, up to the first failure on each connection. `admitted` is
    /// the node last found to admit verbs in the same round.
    #[inline]
    fn execute(&mut self, work: &mut Work, admitted: &mut Option<NodeId>) {
        work.execute(|request, buffers| {
            let node = request.addr.node();
            if *admitted != Some(node) {
                self.admit(node).inspect_err(|_| self.set_broken(node, true))?;
                *admitted = Some(node);
            }
            self.apply(request, buffers).inspect_err(|_| {
                self.set_broken(node, true);
                *admitted = None;
            })
        });
    }

    #[inline]
    fn region(&self, request: &WorkRequest) -> Option<&Region> {
        self.targets.target(request.addr.node())?.region(request.addr.region())
    }

    #[inline]
    fn apply(&self, request: &WorkRequest, buffers: &mut Buffers) -> Result<(), VerbError> {
        let region = self.region(request).ok_or(VerbError::OutOfBounds)?;
        let word = request.first_word(region.bytes, region.rights)?;
        let mapping = &region.mapping;
        match request.op {
            Op::Read => mapping.view().read(word, buffers.words_mut(request.local)),
            Op::ReadStable => mapping.view().read_stable(word, buffers.words_mut(request.local)),
            Op::Write => mapping.memory()?.write(word, buffers.words(request.local)),
            Op::WriteWord { value } => mapping.memory()?.write(word, &[value]),
            Op::CompareAndSwap { expected, new } => {
                let held = mapping.memory()?.compare_and_swap(word, expected, new);
                buffers.words_mut(request.local)[0] = held;
            }
            Op::FetchAndAdd { addend } => {
                let held = mapping.memory()?.fetch_and_add(word, addend);
                buffers.words_mut(request.local)[0] = held;
            }
        }
        Ok(())
    }

    /// Prefetches the cache lines that `work` touches.
    #[inline]
    fn prefetch(&self, work: &Work) {
        for request in work.requests() {
            let Some(region) = self.region(request) else { continue };
            let word = request.addr.offset() as usize / WORD_BYTES;
            let words = request.bytes() / WORD_BYTES;
            match (request.kind(), &region.mapping) {
                (VerbKind::Read, mapping) => mapping.view().prefetch(word, words),
                (_, Mapping::Writable(memory)) => memory.prefetch_for_write(word, words),
                (_, Mapping::ReadOnly(_)) => {}
            }
        }
    }
}
