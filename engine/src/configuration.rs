//! Changes of the memory nodes in use: when one is lost, joins or becomes whole (H23).
//!
//! # The steps, and their purpose
//! The membership says which memory nodes are lost, and how far every compute node has come with
//! that ([`lotus_recovery::membership`]). Coordinator 0 of each node follows it
//! ([`crate::members`]) and publishes it here to the others, which follow in their own turns.
//!
//! 1. *Stop.* The coordinator begins no transactions, and gives up those that have not begun to
//!    commit: an attempt's reads no longer count. So no transaction relies on a read from the lost
//!    node, where others do not write any more.
//! 2. *Finish.* When every node has stopped, the coordinator uses the placement that is left.
//!    Commits under way end without the lost node; so do slab allocations, hand-overs, and
//!    recoveries of dead nodes, which begin anew. Coordinator 0 carries over the words that were
//!    certain only on the lost node's copy, and fences every expelled node at memory nodes that
//!    have come back ([`Coordinator::carry_over`]). Then it acknowledges the epoch.
//! 3. *Resume.* When every node has acknowledged, and no expelled node's transaction is in doubt,
//!    transactions begin again. So a promoted copy shows nothing that another may lack (H3).
//!
//! # Promotion
//! The first copy of a group that is left is its primary from step 2 on. Cells hold offsets within
//! the group, so nothing moves. Only words that stood on the primary alone need care:
//!
//! | word | treatment |
//! |---|---|
//! | cursor of slabs | raised beyond the last slab in the directory, before a slab is taken |
//! | owners of shards | raised by every node to what it knows, on all copies |
//! | floors | written by each node before it acknowledges; removed, for expelled nodes, when read |
//! | loads, rates, changes | written again |
//!
//! # Returns
//! A memory node that comes back ([`crate::returning`]) joins by the same three steps, as the last
//! copy of its groups: when transactions begin again, every write goes there, too. When it has been
//! [filled](crate::filling) all nodes go through the steps once more, and it gets its original
//! place back. It counts as promoted there, because its header says no more than a backup's.
//!
//! # If a node stops anywhere
//! An expelled node is not waited for, except until its transactions are settled. The loss of
//! another memory node begins step 1 anew.
//!
//! # What it is not
//! It decides about no loss, and copies no data.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lotus_fabric::ids::{Epoch, NodeId, ShardId};
use lotus_fabric::lane::Batch;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::FLOORS_OFFSET;
use lotus_points::point;
use lotus_recovery::Membership;
use lotus_recovery::membership::returns::{Life, Return, Stage};
use lotus_recovery::membership::{self, FIRST_EPOCH, MembershipError};
use lotus_router::{GroupId, Owner, Placement, Replica, ReplicaSet};
use lotus_sabotage::{Rule, broken};

use crate::coordinator::Coordinator;
use crate::error::TxnError;
use crate::ownership::{Fenced, Transfer};
use crate::recover::{Stop, fence_at};
use crate::shared::Shared;

/// Group whose header page has the floors.
pub(crate) const FLOORS_GROUP: GroupId = GroupId(0);
/// Times in a lease that a member checks whether another one has raised the words of owners.
const LOOKS_PER_LEASE: u32 = 16;
/// Floor of a node that reads nothing any more.
pub(crate) const NO_FLOOR: u64 = u64::MAX;

/// Progress of the three steps, each as the epoch of the last change that has reached it.
#[derive(Clone, Debug)]
struct Progress {
    /// Reads by the placement before this change no longer count.
    stop: Epoch,
    /// All nodes have stopped for this change, and `placement` is in use.
    finish: Epoch,
    placement: Arc<Placement>,
    /// Transactions may begin by the placement of this change.
    resume: Epoch,
    /// Silent memory nodes that are not given up, because they have the last copies of a group.
    out_of_reach: Vec<NodeId>,
    /// Memory nodes that have come back, as far as this node knows.
    returns: Arc<[Return]>,
}

/// State of the memory nodes in use, shared by the coordinators of a compute node.
#[derive(Debug)]
pub(crate) struct NodeConfiguration {
    progress: Mutex<Progress>,
    /// Last change for which each coordinator has stopped.
    stopped: Box<[AtomicU32]>,
    /// Last change after which [`Coordinator::carry_over`] is done.
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
            returns: Arc::new([]),
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

    /// Takes over the progress of a membership; `placement` is the cluster's original one.
    pub(crate) fn learn(&self, now: &Membership, placement: &Placement) {
        let reduced = now.reduced();
        let mut progress = self.lock();
        progress.stop = progress.stop.max(reduced);
        let hasty = broken(Rule::AllStopFirst) || broken(Rule::ResumptionWaits);
        if progress.finish < reduced && (now.all_have_stopped() || hasty) {
            progress.placement = Arc::new(now.surviving(placement));
            progress.finish = reduced;
        }
        if progress.finish == reduced && (now.may_resume() || broken(Rule::ResumptionWaits)) {
            progress.resume = progress.resume.max(reduced);
        }
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

    /// Memory nodes that have come back, as far as this node knows.
    pub(crate) fn returns(&self) -> Arc<[Return]> {
        Arc::clone(&self.lock().returns)
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

    /// Whether transactions may run, as far as this node knows.
    pub(crate) fn is_open(&self) -> bool {
        let progress = self.lock();
        progress.resume == progress.stop
    }

    /// Whether transactions run by the placement after this change, or a later one.
    pub(crate) fn has_resumed(&self, since: Epoch) -> bool {
        self.lock().resume >= since
    }

    /// Placement in use.
    pub(crate) fn placement(&self) -> Arc<Placement> {
        Arc::clone(&self.lock().placement)
    }

    /// Memory nodes that have last copies, but do not answer half of the compute nodes.
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
    /// Whether transactions may begin.
    open: Cell<bool>,
    placement: RefCell<Arc<Placement>>,
    /// Last change that `placement` includes.
    placed: Cell<Epoch>,
    /// Number of slab allocations under way.
    takes: Cell<usize>,
    /// Bit set of groups whose cursor was raised since `placed`.
    raised: Cell<u64>,
    /// Lives of the memory nodes in use that are not in their first life.
    lives: RefCell<Vec<(NodeId, Life)>>,
    /// Number of joined memory nodes that the coordinator is not connected to yet.
    unattached: Cell<usize>,
}

impl Configuration {
    pub(crate) fn of(node: &NodeConfiguration) -> Self {
        let progress = node.lock();
        Self {
            epoch: Cell::new(progress.stop),
            open: Cell::new(progress.resume == progress.stop),
            placement: RefCell::new(Arc::clone(&progress.placement)),
            placed: Cell::new(progress.finish),
            takes: Cell::new(0),
            raised: Cell::new(0),
            lives: RefCell::new(lives_of(&progress)),
            unattached: Cell::new(0),
        }
    }

    /// Life of a memory node in use; `None` for its first.
    pub(crate) fn life_of(&self, node: NodeId) -> Option<Life> {
        let lives = self.lives.borrow();
        lives.iter().find(|(known, _)| *known == node).map(|(_, life)| *life)
    }

    /// Adds `more` to the number of joined memory nodes that are not connected yet.
    pub(crate) fn attaches(&self, more: isize) {
        self.unattached.set(self.unattached.get().saturating_add_signed(more));
    }

    /// Last change that the placement in use includes.
    pub(crate) fn placed(&self) -> Epoch {
        self.placed.get()
    }
}

/// Lives of the returned memory nodes that the placement uses.
fn lives_of(progress: &Progress) -> Vec<(NodeId, Life)> {
    let used = progress.placement.nodes();
    let returns = progress.returns.iter().filter(|one| used.contains(&one.node));
    returns.map(|one| (one.node, one.life)).collect()
}

/// Guard of a slab allocation under way.
pub(crate) struct Taking<'a>(&'a Cell<usize>);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Coordinator {
    /// Placement in use. Do not hold it across an await.
    #[inline]
    pub(crate) fn placement(&self) -> Ref<'_, Placement> {
        Ref::map(self.configuration.placement.borrow(), |placement| &**placement)
    }

    /// Copies of a group that are in use.
    pub(crate) fn replicas(&self, group: GroupId) -> ReplicaSet {
        *self.placement().replicas(group)
    }

    /// Primary of a group.
    pub(crate) fn primary(&self, group: GroupId) -> Replica {
        self.placement().replicas(group).primary()
    }

    /// Whether the placement in use lacks a memory node.
    pub(crate) fn has_left(&self, memory_node: NodeId) -> bool {
        let placed = self.configuration.placed.get();
        placed != FIRST_EPOCH && !self.placement().nodes().contains(&memory_node)
    }

    /// Whether a memory node was lost since the placement of this epoch. It may be in use again by
    /// now, in another life, which then began after `placed`.
    pub(crate) fn has_left_since(&self, memory_node: NodeId, placed: Epoch) -> bool {
        let is_another = |life: Life| life.is_since(placed);
        self.has_left(memory_node)
            || self.configuration.life_of(memory_node).is_some_and(is_another)
    }

    /// Epoch of an attempt that begins now, for [`Self::check_epoch`].
    ///
    /// # Errors
    /// `Timeout`, while a memory node is being removed.
    #[inline]
    pub(crate) fn enter_epoch(&self) -> Result<Epoch, TxnError> {
        let Configuration { open, epoch, .. } = &self.configuration;
        if open.get() { Ok(epoch.get()) } else { Err(TxnError::Timeout) }
    }

    /// Checks that the reads of an attempt of this epoch still count.
    ///
    /// # Errors
    /// `Timeout`, if a memory node was lost meanwhile.
    #[inline]
    pub(crate) fn check_epoch(&self, epoch: Epoch) -> Result<(), TxnError> {
        let current = epoch == self.configuration.epoch.get();
        if current || broken(Rule::AllStopFirst) { Ok(()) } else { Err(TxnError::Timeout) }
    }

    /// Registers a slab allocation; it lasts until the guard is dropped.
    ///
    /// # Errors
    /// `Timeout`, while a memory node is being removed.
    pub(crate) fn begin_taking(&self) -> Result<Taking<'_>, TxnError> {
        self.enter_epoch()?;
        let takes = &self.configuration.takes;
        takes.set(takes.get() + 1);
        Ok(Taking(takes))
    }

    /// Whether a group's cursor must be raised before a slab is taken: its copy was promoted.
    pub(crate) fn must_raise_cursor(&self, group: GroupId) -> bool {
        self.is_promoted(group) && self.configuration.raised.get() & (1 << group.0) == 0
    }

    /// Whether the primary of a group is another one, or in another life, than at the beginning.
    pub(crate) fn is_promoted(&self, group: GroupId) -> bool {
        let primary = self.primary(group);
        let first = self.shared.placement.replicas(group).primary();
        primary != first || self.configuration.life_of(primary.node).is_some()
    }

    /// Notes that the group's cursor was raised on the primary of the placement `placed`.
    pub(crate) fn has_raised_cursor(&self, group: GroupId, placed: Epoch) {
        let Configuration { raised, placed: now, .. } = &self.configuration;
        if placed == now.get() {
            raised.set(raised.get() | 1 << group.0);
        }
    }

    /// Follows the node's progress with changes of memory nodes, as far as it has come.
    pub(crate) fn follow(self: &Rc<Self>) {
        let (node, mine) = (&self.node.configuration, &self.configuration);
        if mine.epoch.get() == FIRST_EPOCH && node.lock().stop == FIRST_EPOCH {
            return;
        }
        let progress = node.lock().clone();
        if mine.epoch.get() < progress.stop {
            mine.epoch.set(progress.stop);
            mine.open.set(false);
        }
        if mine.placed.get() < progress.finish {
            *mine.placement.borrow_mut() = Arc::clone(&progress.placement);
            mine.placed.set(progress.finish);
            mine.raised.set(0);
            let lives = lives_of(&progress);
            let before = mine.lives.replace(lives.clone());
            for (joining, _) in lives.iter().filter(|one| !before.contains(one)) {
                self.attach(*joining);
            }
        }
        if mine.epoch.get() == progress.resume {
            mine.open.set(true);
        }
        node.stopped[self.thread].store(mine.epoch.get().0, Ordering::Release);
    }

    /// Whether no work besides commits is under way that uses the previous placement.
    pub(crate) fn has_finished(&self) -> bool {
        let mine = &self.configuration;
        let idle = || mine.takes.get() == 0 && self.shared.takers.are_idle();
        mine.open.get() || (mine.unattached.get() == 0 && idle())
    }

    /// Carries over the words that were certain only on the former primary; see the module's
    /// documentation. Done by coordinator 0, before it acknowledges the change.
    pub(crate) async fn carry_over(&self, now: &Membership) -> Result<(), Fenced> {
        self.take_floors_out(now).await?;
        let (placed, carried) = (self.configuration.placed.get(), &self.node.configuration.carried);
        // Only a membership as late as the placement names all nodes to fence at joining ones.
        if placed == FIRST_EPOCH || now.epoch() < placed {
            return Ok(());
        }
        if self.node.configuration.carried() < placed {
            match self.fence_at_the_returned(now).await {
                Ok(()) => {}
                Err(Stop::Expelled) => return Err(Fenced),
                // The memory node is lost again: all this begins anew.
                Err(_) => return Ok(()),
            }
            // The word there may be from this node's former life, which was expelled.
            if !broken(Rule::FloorsAreCarried) {
                self.write_floor(self.node.index, self.node.horizon.word()).await?;
            }
            self.raise_owners(now).await?;
            // If another memory node was lost meanwhile, all this is done again.
            carried.store(placed.0, Ordering::Release);
        }
        Ok(())
    }

    /// Fences all expelled nodes at memory nodes that have joined (H2): those were made ready
    /// earlier, and nodes recovered since were fenced only at the memory nodes in use then.
    async fn fence_at_the_returned(&self, now: &Membership) -> Result<(), Stop> {
        if broken(Rule::JoiningNodesFence) {
            return Ok(());
        }
        let used = self.configuration.lives.borrow().clone();
        let targets: Vec<NodeId> = used.into_iter().map(|(node, _)| node).collect();
        fence_at(self, now.refused(), &targets).await
    }

    /// Raises the owner words of all copies to the latest owner that this node or a copy knows: the
    /// nodes that moved shards may have died. All members see what a copy shows; the eldest raises
    /// those words, and the others do it themselves after a lease.
    async fn raise_owners(&self, now: &Membership) -> Result<(), Fenced> {
        let lease = self.shared.config.lease.unwrap_or_default();
        let is_eldest = now.by_age().first().is_some_and(|eldest| eldest.node == self.node.id);
        let deadline = self.executor.now().after(lease);
        loop {
            let seen = self.read_all_owners().await?;
            let all = is_eldest || self.executor.now() >= deadline;
            let copies: Vec<&[Owner]> = seen.iter().map(|(_, owners)| &**owners).collect();
            let behind = behind(&copies, |shard| self.node.shards.owner(shard));
            let waits = !all && behind.iter().flatten().any(|late| late.shown);
            for (place, ((replica, _), late)) in seen.iter().zip(behind).enumerate() {
                point!(self.node.id.0, CarryOver, place, seen.len());
                let mine = late.into_iter().filter(|late| all || !late.shown);
                let mine: Vec<Transfer> = mine.map(|late| late.transfer).collect();
                for some in mine.chunks(crate::members::ADOPTED_AT_ONCE) {
                    self.raise(*replica, some.to_vec()).await?;
                }
            }
            if !waits {
                return Ok(());
            }
            self.executor.sleep(lease / LOOKS_PER_LEASE).await;
        }
    }

    /// Reads the owners of all shards from each copy; the node learns them.
    async fn read_all_owners(&self) -> Result<Vec<(Replica, Vec<Owner>)>, Fenced> {
        let mut seen = Vec::new();
        for replica in self.replicas(crate::ownership::OWNERS_GROUP).members() {
            // A copy that is lost by now needs no words.
            let Some(owners) = self.read_owners_of(*replica).await? else { continue };
            for (shard, owner) in ShardId::all().zip(&owners) {
                self.node.learn(shard, *owner);
            }
            seen.push((*replica, owners));
        }
        Ok(seen)
    }

    /// Removes the floors of expelled and resolved nodes that were there when last read: another
    /// copy may have been promoted, or a new process of the node may have announced itself and
    /// ended before it was taken in ([`crate::rejoin`]).
    ///
    /// A life that is taken in meanwhile may lose the floor that it was announced with. It reads
    /// nothing before it has written another one, which it does only once no member uses a
    /// membership any more in which it was out, and every expelled node is fenced
    /// ([`is_admitted`](Self::is_admitted)).
    async fn take_floors_out(&self, now: &Membership) -> Result<(), Fenced> {
        let resolved = now.expelled().filter(|(member, _)| now.is_resolved(member.node));
        let floors = resolved.filter_map(|(member, _)| {
            let index = self.shared.index_of(member.node).expect("every member is a compute node");
            let floor = self.node.horizon.heard(index)?;
            (floor != NO_FLOOR).then_some((floor_word(index), floor))
        });
        let floors: Vec<(u64, u64)> = floors.collect();
        if floors.is_empty() {
            return Ok(());
        }
        let add = |batch: &mut Batch| {
            for (word, floor) in &floors {
                let at = self.primary(FLOORS_GROUP).at(*word);
                batch.compare_and_swap(at, *floor, NO_FLOOR);
            }
        };
        self.insist(add).await.map(drop)
    }

    async fn write_floor(&self, index: usize, floor: u64) -> Result<(), Fenced> {
        let word = floor_word(index);
        // The primary at the time of the write: the first one may be lost meanwhile.
        let add = |batch: &mut Batch| batch.write_word(self.primary(FLOORS_GROUP).at(word), floor);
        self.insist(add).await.map(drop)
    }
}

/// Offset of a compute node's floor in its group's region, by the node's place.
pub(crate) fn floor_word(index: usize) -> u64 {
    FLOORS_OFFSET + (index * WORD_BYTES) as u64
}

/// Word of a copy that names an earlier owner of its shard than the latest known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Late {
    transfer: Transfer,
    /// Whether another copy shows the latest known owner.
    shown: bool,
}

/// Words of each copy that are behind what is `known`.
fn behind(copies: &[&[Owner]], known: impl Fn(ShardId) -> Owner) -> Vec<Vec<Late>> {
    let mut behind = vec![Vec::new(); copies.len()];
    for (place, shard) in ShardId::all().enumerate() {
        let to = known(shard);
        let shown = copies.iter().any(|owners| owners[place].epoch >= to.epoch);
        for (late, owners) in behind.iter_mut().zip(copies) {
            let from = owners[place];
            if from.epoch < to.epoch {
                late.push(Late { transfer: Transfer { shard, from, to }, shown });
            }
        }
    }
    behind
}

/// Number of control threads that take slabs.
#[derive(Debug, Default)]
pub(crate) struct Takers(AtomicUsize);

/// Guard of a control thread that takes slabs; no memory node is removed meanwhile.
pub(crate) struct ControlTaking<'a> {
    takers: &'a Takers,
    pub(crate) placement: Placement,
}

impl Drop for ControlTaking<'_> {
    fn drop(&mut self) {
        self.takers.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Takers {
    fn are_idle(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

impl Shared {
    /// Lets a control thread take slabs; `None` while a memory node is being removed or filled,
    /// because control threads fill tables without locks.
    pub(crate) fn take_by_control(&self) -> Option<ControlTaking<'_>> {
        // Counted before the look: a coordinator that stops after it finds this thread counted.
        self.takers.0.fetch_add(1, Ordering::AcqRel);
        let mut taking = ControlTaking { takers: &self.takers, placement: self.placement.clone() };
        taking.placement = self.surviving();
        let open = self.nodes.iter().all(|node| {
            let filling = node.configuration.placement().is_joined();
            node.configuration.is_open() && !filling
        });
        open.then_some(taking)
    }

    /// Lets this process's nodes learn the losses from before their start.
    ///
    /// # Errors
    /// The authority does not answer.
    pub(crate) fn learn_losses(&self) -> Result<(), MembershipError> {
        let now = membership::read(self.council.authority())?;
        for node in &self.nodes {
            node.learn_placement(&now, &self.placement);
        }
        Ok(())
    }

    /// Placement without memory nodes that are lost or not whole, as far as the authority, or else
    /// this process, knows.
    pub(crate) fn surviving(&self) -> Placement {
        match membership::read(self.council.authority()) {
            Ok(now) => now.kept(&self.placement),
            Err(_) => self.nodes.first().configuration.placement().of_whole(),
        }
    }
}

#[cfg(test)]
mod tests {
    use lotus_router::ShardEpoch;

    use super::*;

    #[test]
    fn words_that_are_behind_are_told_from_those_that_no_copy_shows() {
        let owner = |node, epoch| Owner { node: NodeId(node), epoch: ShardEpoch(epoch) };
        let first = vec![owner(1, 0); usize::from(ShardId::COUNT)];
        let (mut fresh, mut known) = (first.clone(), first.clone());
        // One shard has moved, and a copy says so; only this node knows of another move.
        (fresh[3], known[3]) = (owner(2, 1), owner(2, 1));
        known[5] = owner(4, 7);
        let behind = behind(&[&fresh, &first], |shard| known[usize::from(shard.raw())]);
        let named = |late: &Vec<Late>| -> Vec<(u16, bool)> {
            late.iter().map(|late| (late.transfer.shard.raw(), late.shown)).collect()
        };
        assert_eq!(named(&behind[0]), [(5, false)]);
        assert_eq!(named(&behind[1]), [(3, true), (5, false)]);
        assert_eq!(behind[1][0].transfer.to, owner(2, 1));
    }
}
