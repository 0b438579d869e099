//! Membership: beats, leases, expulsion, and what a survivor does about expelled nodes.
//!
//! # What it is
//! With a lease configured, every coordinator checks a few times in each lease what its node knows
//! of the membership ([`lotus_recovery::membership`]), and coordinator 0 keeps that up to date. A
//! turn of coordinator 0:
//!
//! 1. It counts up its node's beat on every memory node, and reads all beats in the same batch.
//!    Past its own lease the node begins no transactions until a beat has landed somewhere and it
//!    still takes part.
//! 2. It expels suspected nodes, complains of memory nodes that do not answer, and learns which
//!    nodes others have expelled, and which memory nodes are lost.
//! 3. Its node treats the shards of expelled nodes as unowned from now on: an attempt that holds a
//!    lock of theirs and has not begun to commit will not (H4), and no coordinator asks them for
//!    more locks. Their words in the memory pool do not count any more.
//! 4. Once all its coordinators have [stopped](crate::configuration) for a lost memory node, it
//!    says so; once they have [taken note](Coordinator::take_note), it acknowledges.
//! 5. It drops the locks that resolved nodes held in this node's table.
//! 6. It takes over the expelled nodes' shards that it is the heir of, if adoption is allowed.
//! 7. It resolves a part of the expelled nodes' logs ([`crate::recover`]), beside all this.
//! 8. It looks for lost memory nodes ([`crate::returning`]), and reports which shards of those that
//!    are back its node has filled ([`crate::filling`]).
//!
//! # If it stops anywhere
//! Every step finds out anew whether there is anything to do, and repeating one changes nothing. A
//! node that is expelled meanwhile learns so from its next beat, or from any verb that was refused,
//! and ends: it has no vote any more, and its verbs no effect.
//!
//! # What it is not
//! Needed for safety: suspecting a node too early costs work and breaks nothing. Nor is it how a
//! node returns ([`crate::rejoin`]).
//!
//! # Memory nodes
//! A memory node that has not answered for a lease, while another one has, is complained of, and is
//! lost when half of the compute nodes complain. A compute node that is alone with its complaint
//! cannot commit what has a copy there, nor end what it has begun: after [`PATIENCE_LEASES`] more
//! it expels itself, and is recovered. It is alone if another node, which beats, does not complain.
//! If the others were never started no node would recover it, so it waits for them.
//!
//! # The authority
//! A round trip to the authority takes time, and it may not answer for a while, so step 1 goes on
//! beside the others: a node beats, and is believed alive, while its [council](crate::council)
//! waits.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Epoch, Incarnation, NodeId, RemoteAddr, ShardId};
use lotus_locktable::{LockMode, LockSpace, NO_OWNER};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::{BEATS_OFFSET, MAX_BEATS};
use lotus_points::point;
use lotus_recovery::membership::{self, FIRST_EPOCH, Member, MembershipError, Outcome, Step};
use lotus_recovery::{Beat, Contradiction, Membership};
use lotus_router::{
    Authority, AuthorityError, GroupId, MAX_COMPUTE_NODES, NOBODY, Owner, Placement,
};
use lotus_sabotage::{Rule, broken};

use crate::absent::Absent;
use crate::coordinator::{Coordinator, Locks, beside};
use crate::oracle;
use crate::ownership::{Fenced, Transfer};
use crate::recover;
use crate::shared::{ComputeNode, Peer, Shared};
use crate::watch::Watch;

/// Turns in a lease, and so the beats that may be late before a node is suspected.
const TURNS_PER_LEASE: u32 = 8;
/// Turns in a lease while a memory node is being left: all nodes wait for one another then.
const TURNS_WHILE_CHANGING: u32 = 64;
/// Most owners' words swapped in one batch: compare-and-swaps are the slowest verbs of memory
/// nodes, and other verbs, beats among them, wait behind them.
pub(crate) const ADOPTED_AT_ONCE: usize = 16;
/// Pause after taking over a batch of shards, as a multiple of the time it took; at most one turn,
/// so that losing a memory node meanwhile does not make the pause long.
const ADOPTION_PAUSES: u32 = 3;
/// Leases that a compute node may be alone with a complaint.
const PATIENCE_LEASES: u32 = 4;

/// Address of the beat of the compute node at place `index`, on the memory node at place `memory`:
/// in the header page of the group that has its first primary there.
pub(crate) fn beat_word(first: &Placement, memory: usize, index: usize) -> RemoteAddr {
    let primary = first.replicas(GroupId(memory as u8)).primary();
    primary.at(BEATS_OFFSET + (index * WORD_BYTES) as u64)
}

const _: () = assert!(MAX_COMPUTE_NODES <= MAX_BEATS, "each has a word");
const _: () = assert!(NO_OWNER.0 == NOBODY.0, "who owns nothing has one name");

/// State of the membership that the coordinators of a node share.
#[derive(Debug)]
pub(crate) struct NodeMembers {
    /// Epoch that coordinator 0 has seen; nodes expelled up to it own nothing any more.
    seen: AtomicU32,
    /// Members and expelled nodes at that epoch.
    known: Mutex<Known>,
    /// Last epoch that each coordinator has taken note of.
    noted: Box<[AtomicU32]>,
    /// Every live member knows of this node's life.
    admitted: AtomicBool,
    /// Contradiction that recovery has met, leaving the data as it was.
    contradiction: Mutex<Option<Contradiction>>,
    /// Send time of the latest beat that has landed; 0 before the first.
    last_beat: AtomicU64,
}

/// Membership as a node knows it.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Expelled nodes.
    expelled: Vec<(NodeId, Incarnation)>,
    /// Live nodes, the eldest first.
    live: Vec<(NodeId, Incarnation)>,
    /// Epoch at which each of them was admitted.
    lives: Vec<Suspect>,
    /// Live nodes that some member has not acknowledged yet.
    newcomers: Vec<NodeId>,
    /// Incarnations that take part no more.
    over: Vec<Incarnation>,
}

impl Known {
    fn of(now: &Membership) -> Self {
        let named = |member: &Member| (member.node, member.incarnation);
        Self {
            expelled: now.expelled().map(|(member, _)| named(member)).collect(),
            live: now.by_age().into_iter().map(named).collect(),
            lives: now.live().map(Suspect::of).collect(),
            newcomers: newcomers(now),
            over: now.over().map(|(life, _)| life).collect(),
        }
    }
}

fn newcomers(now: &Membership) -> Vec<NodeId> {
    now.live().map(|member| member.node).filter(|node| now.is_newcomer(*node)).collect()
}

impl NodeMembers {
    pub(crate) fn new(threads: usize, now: &Membership) -> Self {
        // Nodes expelled already are noted in the first turn, as if newly expelled.
        let known = Known { expelled: Vec::new(), ..Known::of(now) };
        Self {
            seen: AtomicU32::new(FIRST_EPOCH.0),
            known: Mutex::new(known),
            admitted: AtomicBool::new(false),
            noted: (0..threads).map(|_| AtomicU32::new(FIRST_EPOCH.0)).collect(),
            contradiction: Mutex::default(),
            last_beat: AtomicU64::new(0),
        }
    }

    /// Notes that a beat sent at `sent` has landed.
    pub(crate) fn note_beat(&self, sent: Nanos) {
        // Diagnostic only: nothing follows from it.
        self.last_beat.store(sent.0, Ordering::Relaxed);
    }

    /// Send time of the latest beat that has landed; `None` before the first.
    pub(crate) fn last_beat(&self) -> Option<Nanos> {
        let sent = self.last_beat.load(Ordering::Relaxed);
        (sent > 0).then_some(Nanos(sent))
    }

    fn seen(&self) -> Epoch {
        // Acquire: seeing the epoch implies seeing the expulsions and that their shards are
        // unowned.
        Epoch(self.seen.load(Ordering::Acquire))
    }

    /// Runs `ask` on the expelled nodes, with `known` held so that no expulsion is noted meanwhile.
    pub(crate) fn with_expelled<T>(&self, ask: impl FnOnce(&[(NodeId, Incarnation)]) -> T) -> T {
        ask(&self.known().expelled)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Live node of this incarnation.
    pub(crate) fn node_of(&self, incarnation: Incarnation) -> Option<NodeId> {
        let known = self.known();
        known.live.iter().find(|(_, life)| *life == incarnation).map(|(node, _)| *node)
    }

    /// Whether this life takes part, as far as this node knows. A node about to be admitted beats
    /// already.
    pub(crate) fn knows(&self, life: Suspect) -> bool {
        self.known().lives.contains(&life)
    }

    /// Longest-serving live node.
    pub(crate) fn eldest(&self) -> Option<NodeId> {
        self.known().live.first().map(|(node, _)| *node)
    }

    /// Whether a node may be given shards: every live member knows that it takes part.
    pub(crate) fn may_receive(&self, node: NodeId) -> bool {
        let known = self.known();
        let is_out = known.expelled.iter().any(|(out, _)| *out == node);
        let is_new = known.newcomers.contains(&node) && !broken(Rule::ReturnsWait);
        !is_out && !is_new
    }

    /// Epoch seen, and number of nodes expelled up to it.
    pub(crate) fn losses(&self) -> (Epoch, usize) {
        (self.seen(), self.with_expelled(<[_]>::len))
    }

    /// Last epoch that all coordinators have taken note of.
    fn noted_by_all(&self) -> Epoch {
        let noted = self.noted.iter().map(|noted| noted.load(Ordering::Acquire));
        Epoch(noted.min().expect("a node has a coordinator"))
    }

    pub(crate) fn report(&self, what: Contradiction) {
        *self.contradiction.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
    }

    pub(crate) fn contradiction(&self) -> Option<Contradiction> {
        *self.contradiction.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes part in the membership until the node is expelled; does nothing without a lease.
pub(crate) async fn keep(coordinator: &Rc<Coordinator>) {
    let Some(lease) = coordinator.shared.config.lease else { return };
    let (heard, hearing) = async_channel::bounded(1);
    let beating = async {
        let mut watch = Watch::new(coordinator, lease);
        while !coordinator.node.has_failed() {
            let changing = !coordinator.node.configuration.is_open();
            let turns = if changing { TURNS_WHILE_CHANGING } else { TURNS_PER_LEASE };
            coordinator.executor.sleep(lease / turns).await;
            if coordinator.thread == 0
                && let Some(news) = watch.listen(coordinator)
            {
                // Full while the last turn waits for an answer; a silent node will still be silent.
                let _ = heard.try_send(news);
            }
            coordinator.take_note();
        }
    };
    let deliberating = async {
        let (mut released, mut absent) = (Vec::new(), Absent::default());
        if coordinator.thread == 0
            && let Ok(now) = coordinator.membership().await
            && coordinator.node.takes_part_in(&now)
        {
            // No timestamps are served before the first oracle has a bound.
            oracle::keep(coordinator, &now);
        }
        while let Ok(mut news) = hearing.recv().await {
            // News that waited for the last turn may be stale.
            if coordinator.executor.now().since(news.at) < lease {
                let unknown = absent.judge(coordinator, &mut news, lease);
                turn(coordinator, news, lease, &mut released).await;
                coordinator.take_note();
                // Only after the turn: news is stale by the time the authority answers.
                absent.look(coordinator, unknown).await;
            }
        }
    };
    beside(deliberating, beating).await;
}

/// News that beats have brought.
pub(crate) struct Heard {
    pub(crate) at: Nanos,
    /// Send time of the latest beat that has landed since the last turn, if any has: no node
    /// suspects this one until a lease after that.
    pub(crate) asked: Option<Nanos>,
    pub(crate) suspects: Vec<Suspect>,
    /// Places of compute nodes that have never beaten.
    pub(crate) unseen: Vec<usize>,
    /// Time since the life that beat last was first heard, by place.
    pub(crate) known_for: Vec<Duration>,
    /// Memory nodes that do not answer, and for how long.
    pub(crate) silent: Vec<(NodeId, Duration)>,
}

/// Life of a node, named by the epoch at which it was admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Suspect {
    pub(crate) node: NodeId,
    pub(crate) joined: Epoch,
}

impl Suspect {
    fn of(member: &Member) -> Self {
        Self { node: member.node, joined: member.joined }
    }

    /// Life of `node` that stopped at this beat.
    pub(crate) fn at(node: NodeId, beat: Beat) -> Self {
        Self { node, joined: beat.joined() }
    }
}

/// Runs steps 2 to 7. `released` lists the lives that have had their locks dropped here.
async fn turn(
    coordinator: &Rc<Coordinator>,
    Heard { asked, suspects, known_for, silent, .. }: Heard,
    lease: Duration,
    released: &mut Vec<Incarnation>,
) {
    let node = &coordinator.node;
    let (me, shared) = (node.id, Arc::clone(&coordinator.shared));
    let about: Vec<NodeId> = silent.iter().map(|(node, _)| *node).collect();
    let suspected = !suspects.is_empty();
    point!(me.0, Suspect, if suspected);
    for Suspect { node, joined } in suspects {
        // If the authority does not answer, the next turn tries again.
        let _ = coordinator.change(|now| now.expel_life(me, node, joined)).await;
    }
    let complain = move |now: &Membership| now.complain(me, &about, &shared.placement);
    let Ok(outcome) = coordinator.change(complain).await else { return };
    point!(me.0, Expel, if suspected);
    point!(me.0, Complain, if !silent.is_empty());
    let mut now = outcome.membership();
    if !node.takes_part_in(&now) || coordinator.is_alone(&now, &known_for, &silent, lease) {
        return node.expel();
    }
    // The answer may have come too late for the lease.
    let is_held = asked.is_some_and(|asked| coordinator.executor.now().since(asked) < lease);
    if is_held && coordinator.is_admitted(&now).await {
        node.resume();
    }
    if !node.learn_placement(&now, &coordinator.shared.placement) {
        return;
    }
    oracle::keep(coordinator, &now);
    if now.epoch() == FIRST_EPOCH {
        return;
    }
    coordinator.disown(&now);
    coordinator.take_note();
    let noted = node.members.noted_by_all();
    let stopped = node.configuration.stopped_by_all();
    let carried = node.configuration.carried() >= now.reduced();
    let over = noted >= now.epoch() && carried && coordinator.leaves_newcomers_alone(&now);
    let report = move |now: &Membership| {
        let stop = now.stop(me, stopped);
        let acknowledge = || stop.as_ref().unwrap_or(now).acknowledge(me, noted);
        if over { acknowledge().or(stop.clone()) } else { stop.clone() }
    };
    if let Ok(outcome) = coordinator.change(report).await {
        now = outcome.membership();
        // This node may have been expelled since it last looked.
        if !node.learn_placement(&now, &coordinator.shared.placement) {
            return;
        }
        point!(me.0, Acknowledge, if over && now.expelled().next().is_some());
        point!(me.0, Stop, if stopped >= now.reduced() && !node.configuration.is_open());
        point!(me.0, CarriedOver, if over && now.reduced() > FIRST_EPOCH);
        point!(me.0, Finish, if !node.configuration.is_open() && now.all_have_stopped());
        point!(me.0, Resume, if node.configuration.is_open() && now.reduced() > FIRST_EPOCH);
    }
    node.members.known().newcomers = newcomers(&now);
    let dropped = released.len();
    drop_locks(coordinator, &now, noted, released);
    point!(me.0, LocksDropped, if released.len() > dropped);
    coordinator.tend(&now);
    coordinator.look_for_the_lost(&now, lease);
    coordinator.report_filled(&now);
    if now.claimable(me).is_some() && !coordinator.recovers.replace(true) {
        let of = Rc::clone(coordinator);
        coordinator.executor.spawn(async move {
            recover::recover(&of).await;
            of.recovers.set(false);
        });
    }
}

/// Drops the locks that expelled nodes hold here once their transactions are settled. This node
/// serves them no more, so no new ones follow (H8).
fn drop_locks(
    coordinator: &Coordinator,
    now: &Membership,
    noted: Epoch,
    released: &mut Vec<Incarnation>,
) {
    let node = &coordinator.node;
    for (life, settled) in now.over() {
        // A life that has been replaced since was noted by every member.
        let out = now.expelled().find(|(member, _)| member.incarnation == life);
        let noted = out.is_none_or(|(_, since)| noted >= since);
        let settled = settled || broken(Rule::LocksOutlastRecovery);
        if !noted || !settled || released.contains(&life) {
            continue;
        }
        for holder in node.locks.holders_of(life) {
            if holder.mode == LockMode::Write && holder.name.space == LockSpace::Row {
                // Recovery may have changed the row (H11).
                node.versions.forget(holder.name.table, holder.name.key);
            }
            node.locks.unlock(holder.txn, &holder.name);
        }
        released.push(life);
    }
}

/// Whether nothing is left to do about failed nodes: each is expelled and resolved, its locks are
/// dropped, and every shard has an owner. True without a lease, as nothing will ever be done.
///
/// This process knows more than any of its nodes: which have failed before they are suspected, and
/// what is in their lock tables. So only a caller that waits for the whole cluster may ask. Of
/// nodes in other processes it knows what all members have agreed on.
pub(crate) async fn is_settled(shared: &Shared) -> bool {
    if shared.config.lease.is_none() {
        return true;
    }
    let read = |authority: &dyn Authority| membership::read(authority);
    let Ok(Ok(now)) = shared.council.ask(read).await else { return false };
    let has_failed = |peer: &Peer| shared.hosted(peer.index).map(|node| node.has_failed());
    let is_lost = |peer: &&Peer| has_failed(peer) == Some(true) || !now.is_live(peer.id);
    let lost: Vec<_> = shared.peers.iter().filter(is_lost).collect();
    let serving = || shared.nodes.iter().filter(|node| !node.has_failed());
    if !now.may_resume() || !serving().all(|node| node.configuration.is_open()) {
        return false;
    }
    if lost.is_empty() && now.live().all(|member| member.joined == FIRST_EPOCH) {
        return true;
    }
    let over: Vec<Incarnation> = now.over().map(|(life, _)| life).collect();
    let holds_none_of_theirs =
        |node: Arc<ComputeNode>| over.iter().all(|life| node.locks.holders_of(*life).is_empty());
    let all_owned = || match shared.is_whole() {
        true => ShardId::all().all(|shard| shared.keeper_of(shard).is_some()),
        // Another process may host the owner.
        false => serving().all(|node| node.knows_all_owners()),
    };
    // A node that is expelled and does not know it yet still has locks that it will never give
    // back.
    lost.iter().all(|peer| has_failed(peer) != Some(false) && now.is_resolved(peer.id))
        && now.may_adopt()
        && serving().all(holds_none_of_theirs)
        && all_owned()
}

impl ComputeNode {
    /// Whether this life of the node takes part: another life may have its place.
    pub(crate) fn takes_part_in(&self, now: &Membership) -> bool {
        now.has_life(self.id, self.incarnation)
    }

    /// Learns which memory nodes are used, and whether this node still takes part. An expelled node
    /// uses no memory node that joined since: it may not be fenced there yet (H2).
    pub(crate) fn learn_placement(&self, now: &Membership, first: &Placement) -> bool {
        let takes_part = self.takes_part_in(now);
        match takes_part {
            true => self.configuration.learn(now, first),
            false => self.expel(),
        }
        takes_part
    }
}

impl Coordinator {
    /// Reads the membership, as the authority has it at some moment from now on.
    pub(crate) async fn membership(&self) -> Result<Membership, MembershipError> {
        Ok(self.change(|_| None).await?.membership())
    }

    /// Changes the membership on behalf of this life of its node. Others may change it between the
    /// requests to the authority; after an error the change may have been made or not.
    pub(crate) async fn change(
        &self,
        mut decide: impl FnMut(&Membership) -> Option<Membership>,
    ) -> Result<Outcome, MembershipError> {
        let life = (self.node.id, self.node.incarnation);
        loop {
            let stored = self.consult(|authority| authority.read(membership::KEY)).await?;
            let swap = match membership::step(stored, |now| now.decided_by(life, &mut decide))? {
                Step::Rest(now) => return Ok(Outcome::Unchanged(now)),
                Step::Swap(swap) => swap,
            };
            let (expected, value) = (swap.expected, swap.value);
            let swapped = move |authority: &dyn Authority| {
                authority.compare_and_swap(membership::KEY, expected, &value)
            };
            match self.consult(swapped).await {
                Ok(_) => return Ok(Outcome::Changed(swap.next)),
                Err(AuthorityError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Runs `question` on the authority thread.
    pub(crate) async fn consult<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Authority) -> Result<T, AuthorityError> + Send + 'static,
    ) -> Result<T, AuthorityError> {
        self.shared.council.consult(self.node.id, &self.executor, question).await
    }

    /// Removes all ownership of expelled nodes at this node, and announces the epoch to its
    /// coordinators.
    fn disown(&self, now: &Membership) {
        let (node, members) = (&self.node, &self.node.members);
        if members.seen() >= now.epoch() {
            return;
        }
        // Hold `known`, so that `learn` cannot run between the two updates.
        let mut known = members.known();
        *known = Known::of(now);
        for (lost, _) in &known.expelled {
            node.shards.disown(*lost);
            node.routes.disown(*lost);
        }
        node.oracle.admit(now);
        members.seen.store(now.epoch().0, Ordering::Release);
    }

    /// Whether every live member knows of this node, and has its floor.
    async fn is_admitted(&self, now: &Membership) -> bool {
        let (node, admitted) = (&self.node, &self.node.members.admitted);
        if node.epoch != FIRST_EPOCH && !admitted.load(Ordering::Relaxed) {
            // A member may have removed the floor on account of the previous life until all knew of
            // this one; an expelled node may do so by a verb under way, until it is fenced.
            let certain = !now.is_newcomer(node.id) && now.are_all_resolved();
            let known = certain || broken(Rule::ReturnsWait);
            let is_in = known && self.exchange_floors().await.is_some();
            admitted.store(is_in, Ordering::Relaxed);
            return is_in;
        }
        true
    }

    /// Whether no work is under way here that began before a newcomer returned and could give that
    /// node a shard, or remove its floor.
    fn leaves_newcomers_alone(&self, now: &Membership) -> bool {
        let gives = self.gives.get().is_some_and(|to| !self.node.members.may_receive(to));
        let tends = self.tends.get() && !newcomers(now).is_empty();
        !gives && !tends
    }

    /// Whether this node depends on a memory node that another one can still reach. Members that
    /// were never started do not count, nor do those that may still complain themselves.
    fn is_alone(
        &self,
        now: &Membership,
        known_for: &[Duration],
        silent: &[(NodeId, Duration)],
        lease: Duration,
    ) -> bool {
        let Shared { placement, peers, .. } = &*self.shared;
        let patience = lease * (1 + PATIENCE_LEASES);
        let is_other = |peer: &&Peer| peer.id != self.node.id && now.is_live(peer.id);
        let others = || peers.iter().filter(is_other);
        let does_not_miss = |peer: &Peer, node: NodeId| {
            known_for[peer.index] >= patience && !now.complains(peer.id, node)
        };
        silent.iter().any(|(node, silent_for)| {
            let misses = now.lost_memory().iter().all(|lost| lost.node != *node);
            misses
                && *silent_for >= patience
                && now.can_do_without(*node, placement)
                && others().any(|peer| does_not_miss(peer, *node))
        })
    }

    /// Runs [`Self::carry_over`] and [`Self::adopt`] beside the turns: they may wait for memory
    /// nodes, and it takes turns to declare an unresponsive memory node lost.
    fn tend(self: &Rc<Self>, now: &Membership) {
        if self.tends.replace(true) {
            return;
        }
        let (of, now) = (Rc::clone(self), now.clone());
        self.executor.spawn(async move {
            let tended = match of.carry_over(&now).await {
                Ok(()) => of.adopt().await,
                Err(Fenced) => Err(Fenced),
            };
            if tended == Err(Fenced) {
                of.node.expel();
            }
            of.tends.set(false);
        });
    }

    /// Takes over the expelled nodes' shards that this node is the heir of, if adoption is allowed
    /// (H4), and learns which shards others have taken over.
    async fn adopt(&self) -> Result<(), Fenced> {
        if self.node.knows_all_owners() {
            return Ok(());
        }
        let mut owners = Vec::new();
        self.refresh_owners(|shard, owner| owners.push((shard, owner))).await?;
        // Read after the owners: if this membership allows adoption, all grants of an owner
        // expelled in it are settled, and it grants nothing more to any live member.
        let Ok(now) = self.membership().await else { return Ok(()) };
        let me = self.node.id;
        let takes_part = self.node.takes_part_in(&now);
        if !takes_part || !(now.may_adopt() || broken(Rule::AdoptionWaits)) {
            return Ok(());
        }
        let orphaned = |(shard, owner): (ShardId, Owner)| {
            let mine = !now.is_live(owner.node) && now.heir(shard) == me;
            mine.then(|| Transfer::new(shard, owner, me)).flatten()
        };
        let orphans: Vec<_> = owners.into_iter().filter_map(orphaned).collect();
        if !orphans.is_empty() {
            point!(me.0, Adopt);
        }
        let turn = self.shared.config.lease.unwrap_or_default() / TURNS_PER_LEASE;
        for some in orphans.chunks(ADOPTED_AT_ONCE) {
            let begun = self.executor.now();
            self.give(some).await?;
            let spent = self.executor.now().since(begun);
            self.executor.sleep((spent * ADOPTION_PAUSES).min(turn)).await;
        }
        Ok(())
    }

    /// Refuses expelled nodes, and notes the epoch once the commits that had begun before have
    /// ended: they may rest on locks of expelled nodes.
    fn take_note(self: &Rc<Self>) {
        let members = &self.node.members;
        let seen = members.seen();
        // Memory nodes lost up to `seen` are known: this coordinator stops for them first.
        self.follow();
        let noted = &members.noted[self.thread];
        if self.refused.get() < seen {
            let Known { expelled, live, over, .. } = members.known().clone();
            if let Locks::Lotus(locks) = &self.locks {
                let refused = over.iter().filter(|_| !broken(Rule::TheExpelledAreRefused));
                refused.for_each(|life| locks.refuse(*life));
                expelled.iter().for_each(|(node, _)| locks.forget(*node));
                live.iter().for_each(|(node, _)| locks.remember(*node));
            }
            self.turn_to_oracle();
            self.refused.set(seen);
        }
        if !self.grace.is_over() || !self.has_finished() {
            return;
        }
        // The grace period that ended covers epoch `waits_for`.
        noted.store(self.waits_for.get().0, Ordering::Release);
        if self.waits_for.get() < seen {
            self.grace.begin();
            self.waits_for.set(seen);
            if self.grace.is_over() {
                noted.store(seen.0, Ordering::Release);
            }
        }
    }

    /// Directs timestamp requests to the node that serves them, as far as this node knows.
    fn turn_to_oracle(&self) {
        if let Some(oracle) = self.node.members.eldest() {
            self.timestamps.turn_to(oracle, &self.node, &self.executor);
        }
    }
}
