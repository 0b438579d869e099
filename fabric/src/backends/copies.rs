//! Verbs that the initiator carries out itself, as copies: the part that `local` and `shm` share.
//!
//! # What it is
//! An [`Initiator`] is the verb side of one lane. A posted batch is only *queued*; it takes effect
//! when the lane is polled, after every other coroutine has run. The poll goes through the whole
//! queue twice. First it finds the words that each verb moves, checks them and prefetches them, so
//! that the processor waits for many cache lines and address translations at once: memory latency
//! is hidden the way network latency is. Then it copies, which cannot fail any more.
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

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::contract::ids::{Epoch, NodeId, RegionId, RemoteAddr};
use crate::contract::region::{Memory, Rights, View, WORD_BYTES, Words};
use crate::contract::transport::{Sink, Token};
use crate::contract::verbs::{VerbError, VerbKind, Work, first_word};

/// Number of regions that a node may have.
pub(crate) const REGIONS_PER_NODE: usize = 256;

/// Registered memory as an initiator reaches it.
pub(crate) struct Region {
    pub(crate) mapping: Mapping,
    /// Bytes that were registered; the mapping may be larger.
    pub(crate) bytes: u64,
    rights: Rights,
    /// By [`VerbKind`]: the first end of a verb that is refused; zero where all are.
    beyond: [u64; 4],
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
}

impl Region {
    pub(crate) fn new(mapping: Mapping, bytes: u64, rights: Rights) -> Self {
        let mut beyond = [0; 4];
        for kind in VerbKind::ALL {
            let possible = kind == VerbKind::Read || matches!(mapping, Mapping::Writable(_));
            if possible && rights.allow(kind) {
                beyond[kind as usize] = bytes + 1;
            }
        }
        Self { mapping, bytes, rights, beyond }
    }

    /// Words that a verb at byte `offset` moves, prefetched; `None` if it is refused. Those of a
    /// mapping that is read-only are found for READs alone.
    #[inline(always)]
    fn words(&self, offset: u64, bytes: usize, kind: VerbKind) -> Option<Words<'_>> {
        let aligned = offset.is_multiple_of(WORD_BYTES as u64);
        if !aligned || offset + bytes as u64 >= self.beyond[kind as usize] {
            return None;
        }
        let words = self.mapping.view().words(offset as usize / WORD_BYTES, bytes / WORD_BYTES);
        match kind {
            VerbKind::Read => words.prefetch(),
            _ => words.prefetch_for_write(),
        }
        Some(words)
    }

    /// Reason for which [`Region::words`] refuses a verb.
    fn refusal(&self, offset: u64, bytes: usize, kind: VerbKind) -> VerbError {
        let checked = first_word(offset, bytes as u64, kind, self.bytes, self.rights);
        checked.err().unwrap_or(VerbError::AccessDenied)
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
    /// By node. Dropped before `targets`, whose connections may end only once nothing is mapped any
    /// more.
    connections: Vec<Connection>,
    pub(crate) targets: T,
    node: NodeId,
    epoch: Epoch,
    started: Vec<(Token, Box<Work>)>,
    /// Number of the current round; the first one is 1.
    round: u64,
    /// Empty; the allocation for the words that a round moves.
    spare: Vec<Words<'static>>,
}

/// Connection to one node.
struct Connection {
    /// Regions of the node, found at their first use.
    regions: [OnceCell<Arc<Region>>; REGIONS_PER_NODE],
    /// Number of the last round that found the node to admit verbs; zero if a verb has failed
    /// since.
    admitted: Cell<u64>,
    /// Whether a verb failed and the connection has not been re-made.
    broken: Cell<bool>,
}

impl<T: Targets> Initiator<T> {
    /// A lane of `node` in a fabric of `nodes` nodes.
    pub(crate) fn new(targets: T, node: NodeId, epoch: Epoch, nodes: usize) -> Self {
        let connection = || Connection {
            regions: std::array::from_fn(|_| OnceCell::new()),
            admitted: Cell::new(0),
            broken: Cell::new(false),
        };
        let connections = std::iter::repeat_with(connection).take(nodes).collect();
        let (started, spare) = (Vec::new(), Vec::new());
        Self { connections, targets, node, epoch, started, round: 0, spare }
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
        let mut found: Vec<Words<'_>> = std::mem::take(&mut self.spare);
        self.round += 1;
        // For all batches before the first copy: address translations and cache misses overlap only
        // if nothing is between them, and one TLB miss holds up all that follows.
        for (_, work) in &mut started {
            work.resolve(&mut found, |addr, bytes, kind| self.find(addr, bytes, kind));
        }
        let mut words = found.iter().copied();
        for (token, mut work) in started.drain(..) {
            work.carry_out(&mut words);
            sink.completed(token, work);
        }
        self.spare = emptied(found);
        self.started = started;
    }

    /// Makes a new connection. No verb of the old one is left: each has taken effect or failed.
    pub(crate) fn reconnect(&mut self, node: NodeId) -> Result<(), VerbError> {
        self.forget(node);
        self.set_broken(node, false);
        let result = self.admit(node).map(drop);
        self.set_broken(node, result.is_err());
        result
    }

    /// Lets go of the regions of `node`.
    pub(crate) fn forget(&mut self, node: NodeId) {
        if let Some(connection) = self.connections.get_mut(usize::from(node.0)) {
            connection.regions.iter_mut().for_each(|region| drop(region.take()));
        }
    }

    /// Marks the connection to `node` as broken, so that verbs are refused, or as usable again.
    pub(crate) fn set_broken(&self, node: NodeId, broken: bool) {
        if let Some(connection) = self.connections.get(usize::from(node.0)) {
            connection.broken.set(broken);
            connection.admitted.set(0);
        }
    }

    /// Finds and prefetches the words that a verb moves. A refusal breaks the connection.
    #[inline(always)]
    fn find(&self, addr: RemoteAddr, bytes: usize, kind: VerbKind) -> Result<Words<'_>, VerbError> {
        if let Some(connection) = self.connections.get(usize::from(addr.node().0))
            && connection.admitted.get() == self.round
            && let Some(region) = connection.regions[usize::from(addr.region().0)].get()
            && let Some(words) = region.words(addr.offset(), bytes, kind)
        {
            return Ok(words);
        }
        let found = self.find_anew(addr, bytes, kind);
        found.inspect_err(|_| self.set_broken(addr.node(), true))
    }

    /// As `find`, for the first verb of a round to a node or of a lane to a region, and for verbs
    /// that are refused. Not inlined: its values would take the registers of those that are found.
    #[cold]
    #[inline(never)]
    fn find_anew(
        &self,
        addr: RemoteAddr,
        bytes: usize,
        kind: VerbKind,
    ) -> Result<Words<'_>, VerbError> {
        let (connection, target) = self.admit(addr.node())?;
        let known = &connection.regions[usize::from(addr.region().0)];
        if let (None, Some(region)) = (known.get(), target.region(addr.region())) {
            let _unset = known.set(Arc::clone(region));
        }
        let region = known.get().ok_or(VerbError::OutOfBounds)?;
        let words = region.words(addr.offset(), bytes, kind);
        words.ok_or_else(|| region.refusal(addr.offset(), bytes, kind))
    }

    /// Checks that the connection to `node` admits verbs, from now until the round ends: the fencer
    /// waits for that end, so one look at its epoch is enough.
    fn admit(&self, node: NodeId) -> Result<(&Connection, &T::Target), VerbError> {
        let target = self.targets.target(node).ok_or(VerbError::Unreachable)?;
        let connection = &self.connections[usize::from(node.0)];
        if target.fence(self.node) > self.epoch {
            return Err(VerbError::Revoked);
        }
        if connection.broken.get() {
            return Err(VerbError::Broken);
        }
        if !target.answers() {
            return Err(VerbError::Unreachable);
        }
        connection.admitted.set(self.round);
        Ok((connection, target))
    }
}

/// The allocation of a list, for other words to come.
#[inline]
fn emptied(mut list: Vec<Words<'_>>) -> Vec<Words<'static>> {
    list.clear();
    list.into_iter().map(|_| Words::NONE).collect()
}
