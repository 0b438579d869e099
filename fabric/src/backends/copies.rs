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

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::contract::ids::{Epoch, NodeId, NodeSet, RegionId, RemoteAddr};
use crate::contract::region::{Memory, Rights, View, WORD_BYTES};
use crate::contract::transport::{Sink, Token};
use crate::contract::verbs::{Transfer, VerbError, VerbKind, Work, first_word};

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
    fn region(&self, region: RegionId) -> Option<&Arc<Region>>;
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
    /// Regions by [`RemoteAddr::flat_region`], found at their first use. Dropped before `targets`,
    /// whose connections may end only once nothing is mapped any more.
    regions: Vec<Option<Arc<Region>>>,
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
        let regions = std::iter::repeat_with(|| None).take(nodes * REGIONS_PER_NODE).collect();
        let (broken, started) = (vec![false; nodes], Vec::new());
        Self { regions, targets, node, epoch, broken, started }
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
        let mut started = std::mem::take(&mut self.started);
        // Prefetch for all batches before copying: address translations and cache misses overlap
        // only if nothing is between them, and one TLB miss holds up all that follows.
        for (_, work) in &started {
            self.prefetch(work);
        }
        // The fencer waits until the round is over, so one look at its epoch is enough.
        let mut admitted = NodeSet::EMPTY;
        for (token, mut work) in started.drain(..) {
            self.execute(&mut work, &mut admitted);
            sink.completed(token, work);
        }
        self.started = started;
    }

    /// Makes a new connection. No verb of the old one is left: each has taken effect or failed.
    pub(crate) fn reconnect(&mut self, node: NodeId) -> Result<(), VerbError> {
        self.forget(node);
        self.set_broken(node, false);
        let result = self.admit(node);
        self.set_broken(node, result.is_err());
        result
    }

    /// Lets go of the regions of `node`.
    pub(crate) fn forget(&mut self, node: NodeId) {
        let first = usize::from(node.0) * REGIONS_PER_NODE;
        let regions = self.regions.get_mut(first..first + REGIONS_PER_NODE);
        regions.into_iter().flatten().for_each(|region| *region = None);
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

    /// Carries out the verbs of a batch, up to the first failure on each connection. `admitted` are
    /// the nodes that the round has found to admit verbs.
    #[inline]
    fn execute(&mut self, work: &mut Work, admitted: &mut NodeSet) {
        work.execute(|addr, transfer| {
            let node = addr.node();
            if !admitted.contains(node) {
                self.admit(node).inspect_err(|_| self.set_broken(node, true))?;
                // A node that no set holds is asked each time.
                if node.0 < NodeSet::LIMIT {
                    admitted.insert(node);
                }
            }
            let region = self.regions.get(addr.flat_region()).and_then(Option::as_deref);
            let carried = match region {
                Some(region) => region.carry(addr.offset(), transfer),
                None => Err(VerbError::OutOfBounds),
            };
            carried.inspect_err(|_| {
                self.set_broken(node, true);
                *admitted = admitted.without(node);
            })
        });
    }

    /// Prefetches the cache lines that `work` touches, and finds its regions.
    #[inline]
    fn prefetch(&mut self, work: &Work) {
        for request in work.requests() {
            let (reads, bytes) = (request.kind() == VerbKind::Read, request.bytes());
            request.each_address(|addr| {
                if let Some(region) = self.region(addr) {
                    region.prefetch(addr.offset(), bytes, reads);
                }
            });
        }
    }

    #[inline]
    fn region(&mut self, addr: RemoteAddr) -> Option<&Region> {
        let known = self.regions.get_mut(addr.flat_region())?;
        if known.is_none() {
            *known = self.targets.target(addr.node())?.region(addr.region()).cloned();
        }
        known.as_deref()
    }
}

impl Region {
    /// Carries out a verb at byte `offset`.
    #[inline(always)]
    fn carry(&self, offset: u64, transfer: Transfer<'_>) -> Result<(), VerbError> {
        let mapping = &self.mapping;
        let word = |words: usize, kind| {
            first_word(offset, (words * WORD_BYTES) as u64, kind, self.bytes, self.rights)
        };
        match transfer {
            Transfer::Read(into) => mapping.view().read(word(into.len(), VerbKind::Read)?, into),
            Transfer::ReadStable(into) => {
                mapping.view().read_stable(word(into.len(), VerbKind::Read)?, into);
            }
            Transfer::Write(from) => {
                let word = word(from.len(), VerbKind::Write)?;
                mapping.memory()?.write(word, from);
            }
            Transfer::CompareAndSwap { expected, new, held } => {
                let word = word(1, VerbKind::CompareAndSwap)?;
                *held = mapping.memory()?.compare_and_swap(word, expected, new);
            }
            Transfer::FetchAndAdd { addend, held } => {
                let word = word(1, VerbKind::FetchAndAdd)?;
                *held = mapping.memory()?.fetch_and_add(word, addend);
            }
        }
        Ok(())
    }

    /// Prefetches the cache lines of the `bytes` from `offset` on.
    #[inline]
    fn prefetch(&self, offset: u64, bytes: usize, reads: bool) {
        let (word, words) = (offset as usize / WORD_BYTES, bytes / WORD_BYTES);
        match &self.mapping {
            mapping if reads => mapping.view().prefetch(word, words),
            Mapping::Writable(memory) => memory.prefetch_for_write(word, words),
            Mapping::ReadOnly(_) => {}
        }
    }
}
