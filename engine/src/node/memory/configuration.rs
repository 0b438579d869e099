//! Memory nodes in use, from the view of a compute node and its coordinators
//! ([`crate::memory_nodes::changes`]).

use crate::api::error::TxnError;
use lotus_fabric::ids::{Epoch, NodeId};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::FLOORS_OFFSET;
use lotus_recovery::Membership;
use lotus_recovery::membership::FIRST_EPOCH;
use lotus_recovery::membership::returns::{Life, Return, Stage};
use lotus_router::{GroupId, Placement};
use lotus_sabotage::{Rule, broken};
use std::cell::{Cell, Ref, RefCell};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Group whose header page has the floors.
pub(crate) const FLOORS_GROUP: GroupId = GroupId(0);

/// Epoch of no attempt.
const NO_EPOCH: Epoch = Epoch(0);
const _: () = assert!(FIRST_EPOCH.0 > NO_EPOCH.0, "attempts have epochs from the first on");

/// Floor of a node that has stopped reading for good.
pub(crate) const NO_FLOOR: u64 = u64::MAX;

/// Offset of a compute node's floor in its group's region, by the node's place.
pub(crate) fn floor_word(index: usize) -> u64 {
    FLOORS_OFFSET + (index * WORD_BYTES) as u64
}

/// Progress of the three steps, as the epoch of the last change to reach each step.
#[derive(Clone, Debug)]
struct Progress {
    /// Reads by the placement before this change no longer count.
    stop: Epoch,
    /// All nodes have stopped for this change, and `placement` is in use.
    finish: Epoch,
    placement: Arc<Placement>,
    /// Transactions may begin by this change's placement.
    resume: Epoch,
    /// Silent memory nodes not given up, because they have the last copies of a group.
    out_of_reach: Vec<NodeId>,
    /// Lost memory nodes, except nodes in use again.
    lost: Arc<[NodeId]>,
    /// Returned memory nodes, as far as known here.
    returns: Arc<[Return]>,
    /// Whether the memory of a dropped table is being given back.
    clearing: bool,
    /// Last change, and number of tables cleared, in the membership that set `clearing`.
    clearing_at: (Epoch, u32),
}

/// State of the memory nodes in use, shared by the coordinators of a compute node.
#[derive(Debug)]
pub(crate) struct NodeConfiguration {
    progress: Mutex<Progress>,
    /// Last change for which each coordinator has stopped.
    stopped: Box<[AtomicU32]>,
    /// Last change after which `Coordinator::carry_over` is done.
    carried: AtomicU32,
}

impl NodeConfiguration {
    pub(crate) fn new(placement: &Placement, threads: usize) -> Self {
        let progress = Progress {
            stop: FIRST_EPOCH,
            finish: FIRST_EPOCH,
            placement: Arc::new(placement.clone()),
            resume: FIRST_EPOCH,
            out_of_reach: Vec::new(),
            lost: Arc::new([]),
            returns: Arc::new([]),
            clearing: false,
            clearing_at: (FIRST_EPOCH, 0),
        };
        Self {
            progress: Mutex::new(progress),
            stopped: (0..threads).map(|_| AtomicU32::new(FIRST_EPOCH.0)).collect(),
            carried: AtomicU32::new(FIRST_EPOCH.0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adopts the progress of a membership; `placement` is the cluster's original placement.
    pub(crate) fn learn(&self, now: &Membership, placement: &Placement) {
        let reduced = now.reduced();
        let mut progress = self.lock();
        if progress.stop < reduced {
            progress.lost = now.lost_memory().iter().map(|lost| lost.node).collect();
            progress.stop = reduced;
        }
        let hasty = broken(Rule::AllStopFirst) || broken(Rule::ResumptionWaits);
        if progress.finish < reduced && (now.all_have_stopped() || hasty) {
            progress.placement = Arc::new(now.surviving(placement));
            progress.finish = reduced;
        }
        if progress.finish == reduced && (now.may_resume() || broken(Rule::ResumptionWaits)) {
            progress.resume = progress.resume.max(reduced);
        }
        debug_assert!(
            progress.finish <= progress.stop,
            "I102: all stop before a placement is used"
        );
        debug_assert!(
            progress.resume <= progress.finish,
            "I103: transactions run by a placement in use"
        );
        // Memberships may arrive out of order.
        let at = (reduced, now.cleared());
        if at >= progress.clearing_at {
            (progress.clearing, progress.clearing_at) = (now.clearing().is_some(), at);
        }
        debug_assert!(
            !progress.clearing || progress.stop > FIRST_EPOCH,
            "I290: all stop before the memory of a table is given back"
        );
        progress.out_of_reach = now.out_of_reach(placement);
        if *progress.returns != *now.returns() {
            progress.returns = now.returns().into();
        }
    }

    /// Whether a lost memory node is in use again, or about to be, as far as this node knows.
    pub(crate) fn uses_again(&self, node: NodeId) -> bool {
        let used = |one: &Return| one.node == node && !matches!(one.stage, Stage::Found(_));
        self.lock().returns.iter().any(used)
    }

    /// Returned memory nodes, as far as this node knows.
    pub(crate) fn returns(&self) -> Arc<[Return]> {
        Arc::clone(&self.lock().returns)
    }

    /// Notes that a coordinator has stopped for the changes up to `epoch`.
    pub(crate) fn has_stopped(&self, thread: usize, epoch: Epoch) {
        self.stopped[thread].store(epoch.0, Ordering::Release);
    }

    /// Last change for which all coordinators have stopped.
    pub(crate) fn stopped_by_all(&self) -> Epoch {
        let stopped = self.stopped.iter().map(|stopped| stopped.load(Ordering::Acquire));
        Epoch(stopped.min().expect("a node has a coordinator"))
    }

    /// Last change after which everything was carried over.
    pub(crate) fn carried(&self) -> Epoch {
        Epoch(self.carried.load(Ordering::Acquire))
    }

    /// Notes that everything was carried over after the change `placed`.
    pub(crate) fn set_carried(&self, placed: Epoch) {
        debug_assert!(self.carried() <= placed, "I106: what was carried over stays so");
        self.carried.store(placed.0, Ordering::Release);
    }

    /// Whether transactions may run, as far as this node knows.
    pub(crate) fn is_open(&self) -> bool {
        let progress = self.lock();
        progress.resume == progress.stop
    }

    /// Whether a dropped table is being cleared.
    pub(crate) fn is_clearing(&self) -> bool {
        self.lock().clearing
    }

    /// Whether transactions run by the placement after this change, or a later one.
    pub(crate) fn has_resumed(&self, since: Epoch) -> bool {
        self.lock().resume >= since
    }

    /// Placement in use.
    pub(crate) fn placement(&self) -> Arc<Placement> {
        Arc::clone(&self.lock().placement)
    }

    /// Memory nodes with last copies that do not answer half of the compute nodes.
    pub(crate) fn out_of_reach(&self) -> Vec<NodeId> {
        self.lock().out_of_reach.clone()
    }

    /// Error for an attempt that failed because a memory node does not answer.
    #[cold]
    pub(crate) fn why_timeout(&self) -> TxnError {
        match self.lock().out_of_reach.first() {
            Some(node) => TxnError::DataLost { memory_node: usize::from(node.0) },
            None => TxnError::Timeout,
        }
    }
}

/// One coordinator's view of the memory nodes in use.
pub(crate) struct Configuration {
    /// Last change for which the coordinator has stopped.
    epoch: Cell<Epoch>,
    /// Epoch of the attempts that may go on: `epoch`, or [`NO_EPOCH`] while commits are blocked.
    valid: Cell<Epoch>,
    /// Whether transactions may begin.
    open: Cell<bool>,
    placement: RefCell<Arc<Placement>>,
    /// Last change that `placement` includes.
    placed: Cell<Epoch>,
    /// Number of slab allocations under way.
    takes: Cell<usize>,
    /// Bit set of groups whose cursor was raised since `placed`.
    raised: Cell<u64>,
    /// Lost memory nodes for which the coordinator has stopped.
    lost: RefCell<Arc<[NodeId]>>,
    /// Lives of the memory nodes in use and not in their first life.
    lives: RefCell<Vec<(NodeId, Life)>>,
    /// Number of joined memory nodes to which the coordinator is not connected yet.
    unattached: Cell<usize>,
}

impl Configuration {
    pub(crate) fn of(node: &NodeConfiguration) -> Self {
        let progress = node.lock();
        Self {
            epoch: Cell::new(progress.stop),
            valid: Cell::new(progress.stop),
            open: Cell::new(progress.resume == progress.stop),
            placement: RefCell::new(Arc::clone(&progress.placement)),
            placed: Cell::new(progress.finish),
            takes: Cell::new(0),
            raised: Cell::new(0),
            lost: RefCell::new(Arc::clone(&progress.lost)),
            lives: RefCell::new(lives_of(&progress)),
            unattached: Cell::new(0),
        }
    }

    /// Last change for which the coordinator has stopped.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch.get()
    }

    /// Life of a memory node in use; `None` for the first life.
    pub(crate) fn life_of(&self, node: NodeId) -> Option<Life> {
        let lives = self.lives.borrow();
        lives.iter().find(|(known, _)| *known == node).map(|(_, life)| *life)
    }

    /// Adds `more` to the number of joined memory nodes not connected yet.
    pub(crate) fn attaches(&self, more: isize) {
        debug_assert!(
            self.unattached.get().checked_add_signed(more).is_some(),
            "I140: a memory node is attached once"
        );
        self.unattached.set(self.unattached.get().saturating_add_signed(more));
    }

    /// Catches up with the node's progress. Returns the memory nodes that join. The coordinator has
    /// stopped when it [says so](NodeConfiguration::has_stopped).
    pub(crate) fn follow(&self, node: &NodeConfiguration) -> Vec<NodeId> {
        let mut joining = Vec::new();
        if self.epoch.get() == FIRST_EPOCH && node.lock().stop == FIRST_EPOCH {
            return joining;
        }
        let progress = node.lock().clone();
        if self.epoch.get() < progress.stop {
            self.epoch.set(progress.stop);
            if !self.is_muted() {
                self.valid.set(progress.stop);
            }
            self.open.set(false);
            *self.lost.borrow_mut() = Arc::clone(&progress.lost);
        }
        if self.placed.get() < progress.finish {
            *self.placement.borrow_mut() = Arc::clone(&progress.placement);
            self.placed.set(progress.finish);
            self.raised.set(0);
            let lives = lives_of(&progress);
            let before = self.lives.replace(lives.clone());
            let new = lives.iter().filter(|one| !before.contains(one));
            joining.extend(new.map(|(node, _)| *node));
        }
        if self.epoch.get() == progress.resume {
            self.open.set(true);
        }
        debug_assert!(
            self.placed.get() <= self.epoch.get(),
            "I104: reads stop before a placement changes"
        );
        joining
    }

    /// Blocks commits, or lets the attempts already begun go on.
    pub(crate) fn mute(&self, is_muted: bool) {
        self.valid.set(if is_muted { NO_EPOCH } else { self.epoch.get() });
    }

    /// Whether commits are blocked.
    pub(crate) fn is_muted(&self) -> bool {
        self.valid.get() == NO_EPOCH
    }

    /// Whether transactions may begin.
    pub(crate) fn is_open(&self) -> bool {
        self.open.get()
    }

    /// Lost memory nodes for which the coordinator has stopped.
    pub(crate) fn lost(&self) -> Arc<[NodeId]> {
        Arc::clone(&self.lost.borrow())
    }

    /// Lives of the memory nodes in use and not in their first life.
    pub(crate) fn lives(&self) -> Ref<'_, [(NodeId, Life)]> {
        Ref::map(self.lives.borrow(), |lives| &lives[..])
    }

    /// Whether all work by the previous placement has ended, except commits.
    pub(crate) fn has_finished(&self, slab_allocations: &SlabAllocations) -> bool {
        let idle = || self.takes.get() == 0 && slab_allocations.are_idle();
        self.open.get() || (self.unattached.get() == 0 && idle())
    }

    /// Memory nodes in use and not in their first life.
    pub(crate) fn returned(&self) -> Vec<NodeId> {
        self.lives.borrow().iter().map(|(node, _)| *node).collect()
    }

    /// Last change that the placement in use includes.
    pub(crate) fn placed(&self) -> Epoch {
        self.placed.get()
    }

    /// Placement in use. Do not hold it across an await.
    #[inline]
    pub(crate) fn placement(&self) -> Ref<'_, Placement> {
        Ref::map(self.placement.borrow(), |placement| &**placement)
    }

    /// Whether the placement in use lacks a memory node.
    pub(crate) fn has_left(&self, memory_node: NodeId) -> bool {
        let placed = self.placed.get();
        placed != FIRST_EPOCH && !self.placement().nodes().contains(memory_node)
    }

    /// Whether a memory node was lost since the placement of this epoch. The memory node may be in
    /// use again by now, in a later life begun after `placed`.
    pub(crate) fn has_left_since(&self, memory_node: NodeId, placed: Epoch) -> bool {
        let is_another = |life: Life| life.is_since(placed);
        self.has_left(memory_node) || self.life_of(memory_node).is_some_and(is_another)
    }

    /// Epoch of an attempt that begins now, for [`Self::check_epoch`].
    ///
    /// # Errors
    /// `Timeout`, while a memory node is being removed.
    #[inline]
    pub(crate) fn enter_epoch(&self) -> Result<Epoch, TxnError> {
        if self.open.get() { Ok(self.epoch.get()) } else { Err(TxnError::Timeout) }
    }

    /// Checks that an attempt's reads in this epoch still count, and that the attempt may commit.
    ///
    /// # Errors
    /// `Timeout`, if a memory node was lost meanwhile, or while commits are blocked.
    #[inline]
    pub(crate) fn check_epoch(&self, epoch: Epoch) -> Result<(), TxnError> {
        let current = epoch == self.valid.get();
        if current || broken(Rule::AllStopFirst) { Ok(()) } else { Err(TxnError::Timeout) }
    }

    /// Registers a slab allocation, until the guard is dropped.
    ///
    /// # Errors
    /// `Timeout`, while a memory node is being removed.
    pub(crate) fn begin_taking(&self) -> Result<SlabAllocation<'_>, TxnError> {
        self.enter_epoch()?;
        let takes = &self.takes;
        takes.set(takes.get() + 1);
        Ok(SlabAllocation(takes))
    }

    /// Notes that the group's cursor was raised on the primary of the placement `placed`.
    pub(crate) fn has_raised_cursor(&self, group: GroupId, placed: Epoch) {
        if placed == self.placed.get() {
            debug_assert!(u32::from(group.0) < u64::BITS, "I105: each group has a bit");
            self.raised.set(self.raised.get() | 1 << group.0);
        }
    }

    /// Whether a group's cursor was raised on the primary of the placement in use.
    pub(crate) fn is_cursor_raised(&self, group: GroupId) -> bool {
        self.raised.get() & (1 << group.0) != 0
    }
}

/// Lives of returned memory nodes used by the placement.
fn lives_of(progress: &Progress) -> Vec<(NodeId, Life)> {
    let used = progress.placement.nodes();
    let returns = progress.returns.iter().filter(|one| used.contains(one.node));
    returns.map(|one| (one.node, one.life)).collect()
}

/// Guard of a slab allocation under way.
pub(crate) struct SlabAllocation<'a>(&'a Cell<usize>);

impl Drop for SlabAllocation<'_> {
    fn drop(&mut self) {
        debug_assert!(self.0.get() > 0, "I105: an allocation ends once");
        self.0.set(self.0.get() - 1);
    }
}

/// Number of control threads that take slabs.
#[derive(Debug, Default)]
pub(crate) struct SlabAllocations(AtomicUsize);

impl SlabAllocations {
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn end(&self) {
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "I105: a control thread ends what it began");
    }

    fn are_idle(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}
