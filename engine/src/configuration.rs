//! Which memory nodes are used, and how that changes when one is lost, joins or is whole (H23).
//!
//! # The order, and what it is for
//! The membership says which memory nodes are lost, and how far everybody has come with it
//! ([`lotus_recovery::membership`]). Coordinator 0 of each node keeps that up to date
//! ([`crate::members`]) and lets the others know here; each follows in turns of its own.
//!
//! 1. *Stop.* The coordinator begins no transactions, and gives up those that have not begun to
//!    commit: what an attempt reads from now on counts for nothing. So nobody reads from the lost
//!    node what others do not write there any more.
//! 2. *Finish.* When every node has stopped, it uses the placement that is left. Commits under way
//!    end without the lost node; so do slabs that are being taken, hand-overs, and recoveries of
//!    dead nodes, which begin anew. Coordinator 0 brings along what only the lost node's copy said
//!    for certain, and fences everybody who is out at memory nodes that have come back
//!    ([`Coordinator::carry_over`]). Then the epoch is acknowledged.
//! 3. *Resume.* When every node has, and nothing is in doubt of those who are out, transactions
//!    begin again. So a promoted copy shows nothing that another copy may lack (H3).
//!
//! # What is promoted
//! The first copy that is left of a group is its primary from step 2 on. Cells hold offsets within
//! the group, so nothing moves. Only words that stood on the primary alone need care:
//!
//! | word | what becomes of it |
//! |---|---|
//! | cursor of slabs | raised beyond the last slab that the directory names, before one is taken |
//! | owners of shards | every node raises them to what it knows, on all copies |
//! | floors | written by each node before it acknowledges; taken out, for who is out, when read |
//! | loads, rates, changes | written again |
//!
//! # Returns
//! One that comes back ([`crate::returning`]) joins by the same three steps, behind the copies that
//! there are: when transactions begin again, everybody writes there what it writes. When it has
//! been [filled](crate::filling) all go through them once more, and it has the place that it had at
//! first again. It counts as promoted there, because its header says no more than a backup's.
//!
//! # If somebody stops anywhere
//! Who is expelled is not waited for, but until its transactions are settled. Another memory node
//! that is lost begins with step 1 anew.
//!
//! # What it is not
//! It decides about no loss, and copies nothing.

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

/// Whose header page has the floors.
pub(crate) const FLOORS_GROUP: GroupId = GroupId(0);
/// So often in a lease a member looks whether another one has raised the words of owners.
const LOOKS_PER_LEASE: u32 = 16;
/// The floor of who reads nothing any more.
pub(crate) const NO_FLOOR: u64 = u64::MAX;

/// How far the cluster has come with the losses of memory nodes, each by the epoch of the last one.
#[derive(Clone, Debug)]
struct Progress {
    /// Nothing more is read by the placement of before.
    stop: Epoch,
    /// All have stopped, and `placement` is what is left.
    finish: Epoch,
    placement: Arc<Placement>,
    /// Transactions may begin.
    resume: Epoch,
    /// What is lost, unless these come back: they have last copies, and do not answer.
    out_of_reach: Vec<NodeId>,
    /// Memory nodes that are back, as far as is known.
    returns: Arc<[Return]>,
}

/// What the coordinators of a node tell each other about it.
#[derive(Debug)]
pub(crate) struct NodeConfiguration {
    progress: Mutex<Progress>,
    /// The last loss for which each coordinator has stopped.
    stopped: Box<[AtomicU32]>,
    /// The last loss after which everything was carried over.
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

    /// Learns of memory nodes that are lost; `placement` is the one of the beginning.
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

    /// Whether a memory node that was lost is used again, or about to be, as far as is known.
    pub(crate) fn uses_again(&self, node: NodeId) -> bool {
        let used = |one: &Return| one.node == node && !matches!(one.stage, Stage::Found(_));
        self.lock().returns.iter().any(used)
    }

    /// The memory nodes that are back, as far as is known.
    pub(crate) fn returns(&self) -> Arc<[Return]> {
        Arc::clone(&self.lock().returns)
    }

    /// The last loss for which all coordinators have stopped.
    pub(crate) fn stopped_by_all(&self) -> Epoch {
        let stopped = self.stopped.iter().map(|stopped| stopped.load(Ordering::Acquire));
        Epoch(stopped.min().expect("a node has a coordinator"))
    }

    /// The last loss after which everything was carried over.
    pub(crate) fn carried(&self) -> Epoch {
        Epoch(self.carried.load(Ordering::Acquire))
    }

    /// Whether transactions run, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        let progress = self.lock();
        progress.resume == progress.stop
    }

    /// Whether transactions run by the placement of after this loss, or a later one.
    pub(crate) fn has_resumed(&self, since: Epoch) -> bool {
        self.lock().resume >= since
    }

    /// The placement in use.
    pub(crate) fn placement(&self) -> Arc<Placement> {
        Arc::clone(&self.lock().placement)
    }

    /// Memory nodes that have last copies, and that half of the compute nodes get no answer from.
    pub(crate) fn out_of_reach(&self) -> Vec<NodeId> {
        self.lock().out_of_reach.clone()
    }

    /// What an attempt is told to which a memory node does not answer, or to whose node none does.
    #[cold]
    pub(crate) fn why_timeout(&self) -> TxnError {
        match self.lock().out_of_reach.first() {
            Some(node) => TxnError::DataLost { memory_node: usize::from(node.0) },
            None => TxnError::Timeout,
        }
    }
}

/// What one coordinator goes by.
pub(crate) struct Configuration {
    /// The last loss for which it has stopped.
    epoch: Cell<Epoch>,
    /// Whether transactions may begin.
    open: Cell<bool>,
    placement: RefCell<Arc<Placement>>,
    /// The last loss without which the placement is.
    placed: Cell<Epoch>,
    /// Slabs that are being taken.
    takes: Cell<usize>,
    /// A bit for each group whose cursor was raised since.
    raised: Cell<u64>,
    /// Which lives of memory nodes are used, where those are not their first.
    lives: RefCell<Vec<(NodeId, Life)>>,
    /// To how many that have joined it is not connected yet.
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

    /// The life of a memory node that is used, if it is not the first.
    pub(crate) fn life_of(&self, node: NodeId) -> Option<Life> {
        let lives = self.lives.borrow();
        lives.iter().find(|(known, _)| *known == node).map(|(_, life)| *life)
    }

    /// It begins to connect to so many more, or fewer.
    pub(crate) fn attaches(&self, more: isize) {
        self.unattached.set(self.unattached.get().saturating_add_signed(more));
    }

    /// The last loss without which the placement is.
    pub(crate) fn placed(&self) -> Epoch {
        self.placed.get()
    }
}

/// The lives of those that are used by the placement in use.
fn lives_of(progress: &Progress) -> Vec<(NodeId, Life)> {
    let used = progress.placement.nodes();
    let returns = progress.returns.iter().filter(|one| used.contains(&one.node));
    returns.map(|one| (one.node, one.life)).collect()
}

/// A slab is being taken for as long as this is there.
pub(crate) struct Taking<'a>(&'a Cell<usize>);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Coordinator {
    /// The placement in use. Not to be kept while anything is waited for.
    #[inline]
    pub(crate) fn placement(&self) -> Ref<'_, Placement> {
        Ref::map(self.configuration.placement.borrow(), |placement| &**placement)
    }

    /// The copies of a group that are in use.
    pub(crate) fn replicas(&self, group: GroupId) -> ReplicaSet {
        *self.placement().replicas(group)
    }

    /// The primary of a group.
    pub(crate) fn primary(&self, group: GroupId) -> Replica {
        self.placement().replicas(group).primary()
    }

    /// Whether a memory node is not used any more.
    pub(crate) fn has_left(&self, memory_node: NodeId) -> bool {
        let placed = self.configuration.placed.get();
        placed != FIRST_EPOCH && !self.placement().nodes().contains(&memory_node)
    }

    /// Whether a memory node was left since the placement of this epoch. It may be used again by
    /// now, as another life; one that was used then had begun before.
    pub(crate) fn has_left_since(&self, memory_node: NodeId, placed: Epoch) -> bool {
        let is_another = |life: Life| life.is_since(placed);
        self.has_left(memory_node)
            || self.configuration.life_of(memory_node).is_some_and(is_another)
    }

    /// What an attempt has that begins now, for [`Self::check_epoch`].
    ///
    /// # Errors
    /// `Timeout`, while a memory node is being left.
    #[inline]
    pub(crate) fn enter_epoch(&self) -> Result<Epoch, TxnError> {
        let Configuration { open, epoch, .. } = &self.configuration;
        if open.get() { Ok(epoch.get()) } else { Err(TxnError::Timeout) }
    }

    /// Whether what was read by an attempt of this epoch counts.
    ///
    /// # Errors
    /// `Timeout`, if a memory node was lost meanwhile.
    #[inline]
    pub(crate) fn check_epoch(&self, epoch: Epoch) -> Result<(), TxnError> {
        let current = epoch == self.configuration.epoch.get();
        if current || broken(Rule::AllStopFirst) { Ok(()) } else { Err(TxnError::Timeout) }
    }

    /// A slab begins to be taken.
    ///
    /// # Errors
    /// `Timeout`, while a memory node is being left.
    pub(crate) fn begin_taking(&self) -> Result<Taking<'_>, TxnError> {
        self.enter_epoch()?;
        let takes = &self.configuration.takes;
        takes.set(takes.get() + 1);
        Ok(Taking(takes))
    }

    /// Whether the cursor of a group must be raised before a slab is taken: its copy was promoted.
    pub(crate) fn must_raise_cursor(&self, group: GroupId) -> bool {
        self.is_promoted(group) && self.configuration.raised.get() & (1 << group.0) == 0
    }

    /// Whether the primary of a group is not the one that it has had since the beginning.
    pub(crate) fn is_promoted(&self, group: GroupId) -> bool {
        let primary = self.primary(group);
        let first = self.shared.placement.replicas(group).primary();
        primary != first || self.configuration.life_of(primary.node).is_some()
    }

    /// The cursor was raised of the group's primary by the placement of then.
    pub(crate) fn has_raised_cursor(&self, group: GroupId, placed: Epoch) {
        let Configuration { raised, placed: now, .. } = &self.configuration;
        if placed == now.get() {
            raised.set(raised.get() | 1 << group.0);
        }
    }

    /// Goes as far with the losses of memory nodes as the node has come.
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

    /// Whether nothing is under way, besides commits, that the placement of before was for.
    pub(crate) fn has_finished(&self) -> bool {
        let mine = &self.configuration;
        let idle = || mine.takes.get() == 0 && self.shared.takers.are_idle();
        mine.open.get() || (mine.unattached.get() == 0 && idle())
    }

    /// Brings along what only the copy said for certain that was the primary: see the module's
    /// essay. By coordinator 0, before the loss is acknowledged.
    pub(crate) async fn carry_over(&self, now: &Membership) -> Result<(), Fenced> {
        self.take_floors_out(now).await?;
        let (placed, carried) = (self.configuration.placed.get(), &self.node.configuration.carried);
        // What joins by this placement is fenced by a membership of then, or later.
        if placed == FIRST_EPOCH || now.epoch() < placed {
            return Ok(());
        }
        if self.node.configuration.carried() < placed {
            match self.fence_at_the_returned(now).await {
                Ok(()) => {}
                Err(Stop::Expelled) => return Err(Fenced),
                // It is lost again: all this begins anew.
                Err(_) => return Ok(()),
            }
            // What stands there may be of a life before, when it was out.
            if !broken(Rule::FloorsAreCarried) {
                self.write_floor(self.node.index, self.node.horizon.word()).await?;
            }
            self.raise_owners(now).await?;
            // If another one was lost meanwhile, all this is done again.
            carried.store(placed.0, Ordering::Release);
        }
        Ok(())
    }

    /// Lets no verb of anybody who is out take effect at a memory node that has joined (H2). It was
    /// made ready before, and whoever has been recovered meanwhile was fenced where it was used.
    async fn fence_at_the_returned(&self, now: &Membership) -> Result<(), Stop> {
        if broken(Rule::JoiningNodesFence) {
            return Ok(());
        }
        let used = self.configuration.lives.borrow().clone();
        let targets: Vec<NodeId> = used.into_iter().map(|(node, _)| node).collect();
        fence_at(self, now.refused(), &targets).await
    }

    /// Lets the words of all copies say of each shard what its latest owner is, as far as this node
    /// or a copy knows: their movers may have died. What a copy shows all members see at once, and
    /// one of them, the eldest, raises; the others wait, and do it after a lease if it is not done.
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

    /// Who owns every shard by the words of each copy, which the node learns.
    async fn read_all_owners(&self) -> Result<Vec<(Replica, Vec<Owner>)>, Fenced> {
        let mut seen = Vec::new();
        for replica in self.replicas(crate::ownership::OWNERS_GROUP).members() {
            // A copy that is lost now is no concern of anybody.
            let Some(owners) = self.read_owners_of(*replica).await? else { continue };
            for (shard, owner) in ShardId::all().zip(&owners) {
                self.node.learn(shard, *owner);
            }
            seen.push((*replica, owners));
        }
        Ok(seen)
    }

    /// Takes those out of the horizon who are out, and resolved, and have a floor by what was read
    /// last: another copy may have been promoted, or a process of theirs may have announced itself
    /// and ended before it was taken in ([`crate::rejoin`]).
    ///
    /// A life that is taken in meanwhile may lose the floor that it was announced with. It reads
    /// nothing before it has written another one, and does that when no member goes by a membership
    /// any more in which it was out, and whoever is out is fenced
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
        // Whoever is the primary by then: the first one may be left meanwhile.
        let add = |batch: &mut Batch| batch.write_word(self.primary(FLOORS_GROUP).at(word), floor);
        self.insist(add).await.map(drop)
    }
}

/// Where a compute node's floor stands in its group's region, by the node's place.
pub(crate) fn floor_word(index: usize) -> u64 {
    FLOORS_OFFSET + (index * WORD_BYTES) as u64
}

/// A word of a copy that names an earlier owner of its shard than is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Late {
    transfer: Transfer,
    /// Another copy shows as much as is known.
    shown: bool,
}

/// By copy, the words that are behind what is `known`.
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

/// Control threads that take slabs.
#[derive(Debug, Default)]
pub(crate) struct Takers(AtomicUsize);

/// A control thread takes slabs for as long as this is there, and no memory node is left meanwhile.
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
    /// Lets a control thread take slabs; `None` while a memory node is being left, or filled: what
    /// it fills tables with it writes without locks.
    pub(crate) fn take_by_control(&self) -> Option<ControlTaking<'_>> {
        // Counted first: whoever stops after this look finds it counted.
        self.takers.0.fetch_add(1, Ordering::AcqRel);
        let mut taking = ControlTaking { takers: &self.takers, placement: self.placement.clone() };
        taking.placement = self.surviving();
        let open = self.nodes.iter().all(|node| {
            let filling = node.configuration.placement().is_joined();
            node.configuration.is_open() && !filling
        });
        open.then_some(taking)
    }

    /// Lets the nodes of this process know what was lost before they were started.
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

    /// The placement without what is lost or not whole, as far as the authority or this process
    /// knows.
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
        // One has moved, and a copy says so; of another one this node alone knows.
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
