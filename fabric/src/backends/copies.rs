//! Verbs that the initiator carries out as copies: the part that `local` and `shm` share.
//!
//! # What it is
//! An [`Initiator`] is the verb side of one lane. A posted batch is only *queued*; its verbs take
//! effect when the lane is polled, after every other coroutine has run. The poll goes through the
//! whole queue twice. The first pass finds, checks and prefetches the words that each verb moves,
//! so that the processor waits for many cache lines and address translations at once: memory
//! latency is hidden like network latency. The second pass copies and cannot fail.
//!
//! # What it is not
//! The initiator does not know where the memory comes from, which process may map the memory, or
//! how lanes send messages: the back ends know, and provide access through [`Targets`].
//!
//! # Fencing
//! Checking an epoch and then copying would race with the fencer. So a lane inside a [`Round`] of
//! copies publishes the round in a word that the fencer can read. The lane stores the word, then
//! loads the epoch; the fencer stores the epoch, then loads the word; every access is sequentially
//! consistent. So the fencer sees the round and waits for its end, or the round sees the epoch and
//! refuses (H2, I30).

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::contract::ids::{Epoch, NodeId, RegionId, RemoteAddr};
use crate::contract::region::{Memory, Rights, View, WORD_BYTES, Words};
use crate::contract::transport::{Sink, Token};
use crate::contract::verbs::{VerbError, VerbKind, Work, first_word};

/// Number of regions that a node may have.
pub(crate) const REGIONS_PER_NODE: usize = 256;

/// Registered memory, from the initiator's side.
pub(crate) struct Region {
    pub(crate) mapping: Mapping,
    /// Bytes that were registered; the mapping may be larger.
    pub(crate) bytes: u64,
    rights: Rights,
    /// By [`VerbKind`]: the lowest end offset at which a verb is refused; zero if every verb of the
    /// kind is refused.
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

    /// Finds and prefetches the words that a verb at byte `offset` moves; `None` if the verb is
    /// refused, before any memory is touched (I31). A read-only mapping refuses every verb but
    /// READs.
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

/// A lane's round of copies. The round ends when this guard is dropped, also by a panic.
pub(crate) struct Round<'a> {
    word: &'a AtomicU64,
    after: u64,
}

impl<'a> Round<'a> {
    /// Starts a round of the lane that owns `word`; the word is odd until the round ends.
    #[inline]
    pub(crate) fn enter(word: &'a AtomicU64) -> Self {
        // SeqCst, and so a full barrier: the fencer sees the round, or the round sees the new
        // epoch.
        let before = word.fetch_add(1, Ordering::SeqCst);
        debug_assert_eq!(before % 2, 0, "rounds do not nest");
        Self { word, after: before + 2 }
    }

    /// Waits until the round that `load` shows, if any, has ended, or `give_up` returns true.
    /// Returns whether the round has ended. Must be called after the epoch was raised.
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
        // Release: a fencer that sees this value sees the round's writes. Only the lane stores to
        // the word.
        self.word.store(self.after, Ordering::Release);
    }
}

/// The verb side of one lane: its connections, and the posted batches, in order.
pub(crate) struct Initiator<T> {
    /// By node. Dropped before `targets`, because the targets' connections may end only after all
    /// memory is unmapped.
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
    /// Number of the last round in which the node admitted verbs; zero if a verb has failed since.
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
        // All batches are resolved before the first copy: address translations and cache misses
        // overlap only without other work in between, and a TLB miss delays every later access.
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

    /// Makes a new connection. The old connection has no verbs left: each has taken effect or
    /// failed.
    pub(crate) fn reconnect(&mut self, node: NodeId) -> Result<(), VerbError> {
        self.forget(node);
        self.set_broken(node, false);
        let result = self.admit(node).map(drop);
        self.set_broken(node, result.is_err());
        result
    }

    /// Releases the regions of `node`.
    pub(crate) fn forget(&mut self, node: NodeId) {
        if let Some(connection) = self.connections.get_mut(usize::from(node.0)) {
            connection.regions.iter_mut().for_each(|region| drop(region.take()));
        }
    }

    /// Marks the connection to `node` as broken, which refuses verbs, or as usable again.
    pub(crate) fn set_broken(&self, node: NodeId, broken: bool) {
        if let Some(connection) = self.connections.get(usize::from(node.0)) {
            connection.broken.set(broken);
            connection.admitted.set(0);
        }
    }

    /// Finds and prefetches the words that a verb moves. A refusal breaks the connection: later
    /// verbs are refused as well (I32).
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

    /// Slow path of `find`: the first verb of a round to a node or of a lane to a region, and
    /// refused verbs. Not inlined: the slow path's values would take registers from the fast path.
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
    /// waits for the round's end, so one load of the epoch is enough.
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

/// Empties a list and keeps its allocation for reuse.
#[inline]
fn emptied(mut list: Vec<Words<'_>>) -> Vec<Words<'static>> {
    list.clear();
    list.into_iter().map(|_| Words::NONE).collect()
}
