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
//! 2. It expels suspected nodes, complains of memory nodes that do not answer, reports members that
//!    it does not reach, and learns which nodes others have expelled, and which memory nodes are
//!    lost.
//! 3. Its node treats the shards of expelled nodes as unowned from now on: an attempt that holds a
//!    lock of theirs and has not begun to commit will not (H4), and no coordinator asks them for
//!    more locks. Their words in the memory pool do not count any more.
//! 4. Once all its coordinators have [stopped](crate::memory_nodes::changes) for a lost memory
//!    node, it says so; once they have [taken note](take_note), it acknowledges.
//! 5. It drops the locks that resolved nodes held in this node's table.
//! 6. It takes over the expelled nodes' shards that it is the heir of, if adoption is allowed.
//! 7. It resolves a part of the expelled nodes' logs ([`crate::membership::recover`]), beside all
//!    this.
//! 8. It looks for lost memory nodes ([`crate::memory_nodes::returning`]), and reports which shards
//!    of those that are back its node has filled ([`crate::memory_nodes::filling`]).
//! 9. It gives back the memory of tables that were dropped ([`crate::memory_nodes::clearing`]).
//!
//! # If it stops anywhere
//! Every step finds out anew whether there is anything to do, and repeating one changes nothing. A
//! node that is expelled meanwhile learns so from its next beat, or from any verb that was refused,
//! and ends: it has no vote any more, and its verbs no effect.
//!
//! # What it is not
//! Needed for safety: suspecting a node too early costs work and breaks nothing. Nor is it how a
//! node returns ([`crate::cluster::rejoin`]).
//!
//! # Memory nodes
//! A memory node that has not answered for a lease, while another one has, is complained of, and is
//! lost when half of the compute nodes complain. A compute node that is alone with its complaint
//! cannot commit what has a copy there, nor end what it has begun: after [`PATIENCE_LEASES`] more
//! it expels itself, and is recovered. It is alone if another node, which beats, does not complain.
//! If the others have not been started yet no node would recover it, so it waits for them, until
//! they [are given up](absent).
//!
//! # Paths between compute nodes
//! Beats say nothing about the paths between compute nodes. A node reports members that its
//! messages have not reached for a lease, as its fabric knows it, and once a report has stood for a
//! lease one of the two nodes [gives way](lotus_recovery::membership::cuts): a member expels it.
//!
//! # The authority
//! A round trip to the authority takes time, and it may not answer for a while, so step 1 goes on
//! beside the others: a node beats, and is believed alive, while its
//! [council](crate::node::council) waits.
//!
//! An authority in a node's process may have ended when it is silent. Once that is so
//! for a lease, or its process is known to have ended, every coordinator lets nothing commit until
//! it answers again ([`Coordinator::heed_authority`]): without it no loss is survived any more.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_authority::Authority;
use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Epoch, Incarnation, NodeId, RemoteAddr, ShardId};
use lotus_locktable::{LockMode, LockSpace, NO_OWNER};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::{BEATS_OFFSET, MAX_BEATS};
use lotus_points::point;
use lotus_recovery::membership::{self, ChangeOutcome, FIRST_EPOCH};
use lotus_recovery::{Membership, Standoff};
use lotus_router::{GroupId, MAX_COMPUTE_NODES, NOBODY, Owner, Placement};
use lotus_sabotage::{Rule, broken};

use crate::membership::absent::Absent;
use crate::membership::floors::exchange_floors;
use crate::membership::watch::Watch;
use crate::membership::{oracle, recover};
use crate::memory_nodes::clearing;
use crate::node::coordinator::Coordinator;
use crate::node::locks::Locks;
use crate::node::members::{Known, Suspect, newcomers};
use crate::node::shared::{ComputeNode, Peer, Shared};
use crate::node::tasks::beside;
use crate::node::verbs::Fenced;
use crate::shards::ownership::{ADOPTED_AT_ONCE, Transfer};

/// Turns in a lease, and so the beats that may be late before a node is suspected.
const TURNS_PER_LEASE: u32 = 8;
/// Turns in a lease while a memory node is being left: all nodes wait for one another then.
const TURNS_WHILE_CHANGING: u32 = 64;
/// Pause after taking over a batch of shards, as a multiple of the time it took; at most one turn,
/// so that losing a memory node meanwhile does not make the pause long.
const ADOPTION_PAUSES: u32 = 3;
/// Intervals of the horizon between two looks of a cluster without a lease for tables to drop.
const IDLE_INTERVALS: u32 = 8;
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

/// Takes part in the membership until the node is expelled. Without a lease nothing is done about
/// failures.
pub(crate) async fn keep(coordinator: &Rc<Coordinator>) {
    let Some(lease) = coordinator.shared.config.lease else {
        if coordinator.shared.is_whole() {
            // A task of its own, so that nothing is polled for it until a table is dropped.
            coordinator.executor.spawn(keep_without_lease(Rc::clone(coordinator)));
        }
        return;
    };
    let (heard, hearing) = async_channel::bounded(1);
    let beating = async {
        let mut watch = Watch::new(coordinator, lease);
        while !coordinator.node.has_failed() {
            let changing = !coordinator.node.configuration.is_open();
            let turns = if changing { TURNS_WHILE_CHANGING } else { TURNS_PER_LEASE };
            coordinator.executor.sleep(lease / turns).await;
            coordinator.heed_authority(lease);
            if coordinator.thread == 0
                && let Some(news) = watch.listen(coordinator)
            {
                // Full while the last turn waits for an answer; a silent node will still be silent.
                let _ = heard.try_send(news);
            }
            take_note(coordinator);
        }
    };
    let deliberating = async {
        let (mut released, mut absent) = (Vec::new(), Absent::default());
        let mut standoff = Standoff::new(lease);
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
                turn(coordinator, news, lease, &mut standoff, &mut released).await;
                take_note(coordinator);
                // Only after the turn: news is stale by the time the authority answers.
                absent.look(coordinator, unknown, lease).await;
            }
        }
    };
    beside(deliberating, beating).await;
}

/// Gives back the memory of dropped tables, in a cluster within this process.
async fn keep_without_lease(coordinator: Rc<Coordinator>) {
    let (interval, drops) = (coordinator.shared.config.horizon_interval, &coordinator.shared.drops);
    // Nothing is ever sent: the channel closes with the first drop.
    let _ = drops.1.recv().await;
    while !coordinator.node.has_failed() {
        let is_open = coordinator.node.configuration.is_open();
        coordinator.executor.sleep(interval * if is_open { IDLE_INTERVALS } else { 1 }).await;
        if coordinator.thread == 0 {
            turn_without_lease(&coordinator).await;
        }
        take_note(&coordinator);
    }
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
    /// Life that beat last, by place.
    pub(crate) lives: Vec<Suspect>,
    /// Time since that life was first heard, by place.
    pub(crate) known_for: Vec<Duration>,
    /// Memory nodes that do not answer, and for how long.
    pub(crate) silent: Vec<(NodeId, Duration)>,
}

/// Runs steps 2 to 9. `released` lists the lives that have had their locks dropped here.
async fn turn(
    coordinator: &Rc<Coordinator>,
    Heard { asked, suspects, lives, known_for, silent, .. }: Heard,
    lease: Duration,
    standoff: &mut Standoff,
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
    let cut_off = cut_off(coordinator, &lives, &known_for, lease);
    let complain = move |now: &Membership| {
        let complained = now.complain(me, &about, &shared.placement);
        let cut = complained.as_ref().unwrap_or(now).cut_off(me, &cut_off);
        cut.or(complained)
    };
    let Ok(outcome) = coordinator.change(complain).await else { return };
    point!(me.0, Expel, if suspected);
    point!(me.0, Complain, if !silent.is_empty());
    let mut now = outcome.membership();
    if !node.takes_part_in(&now) || is_alone(coordinator, &now, &known_for, &silent, lease) {
        return node.expel();
    }
    if let Some(decided) = give_way(coordinator, &now, standoff).await {
        now = decided;
    }
    // The answer may have come too late for the lease.
    let is_held = asked.is_some_and(|asked| coordinator.executor.now().since(asked) < lease);
    if is_held && !coordinator.lacks_authority(lease) && is_admitted(coordinator, &now).await {
        node.resume();
    }
    if let Some(begun) = clearing::begin(coordinator, &now).await {
        now = begun;
    }
    follow(coordinator, now, released).await;
}

/// Members that messages of this node have not reached for a lease, though they beat. One that has
/// not been started yet, or has just returned, listens nowhere; and what failed before a member's
/// present life says nothing of that.
fn cut_off(
    coordinator: &Coordinator,
    lives: &[Suspect],
    known_for: &[Duration],
    lease: Duration,
) -> Vec<NodeId> {
    let (shared, members) = (&coordinator.shared, &coordinator.node.members);
    let has_failed = |at: usize, ago: Duration| {
        let in_this_life = known_for[at] >= ago + lease;
        in_this_life && members.knows(lives[at])
    };
    let unreached = shared.fabric.unreached(coordinator.node.id, lease).into_iter();
    let failed = |(node, ago): &(NodeId, Duration)| {
        shared.index_of(*node).is_some_and(|at| has_failed(at, *ago))
    };
    unreached.filter(failed).map(|(node, _)| node).collect()
}

/// Expels the member that is to give way once cuts between members last; `None` if none do.
async fn give_way(
    coordinator: &Coordinator,
    now: &Membership,
    standoff: &mut Standoff,
) -> Option<Membership> {
    let lasting = standoff.lasting(coordinator.executor.now(), now.cuts());
    if lasting.is_empty() || broken(Rule::TheCutOffGiveWay) {
        return None;
    }
    let me = coordinator.node.id;
    let decided = coordinator.change(move |now| now.give_way(me, &lasting)).await;
    let decided = decided.ok().map(ChangeOutcome::membership)?;
    debug_assert!(
        decided.live().next().is_some(),
        "I345: of nodes that do not reach each other one stays"
    );
    Some(decided)
}

/// Turn of coordinator 0 in a cluster without a lease, where nothing is done about failures: only
/// tables are dropped. All compute nodes are in this process.
async fn turn_without_lease(coordinator: &Rc<Coordinator>) {
    if let Ok(now) = coordinator.membership().await {
        let now = clearing::begin(coordinator, &now).await.unwrap_or(now);
        follow(coordinator, now, &mut Vec::new()).await;
    }
}

/// Follows a membership: runs steps 3 to 9.
async fn follow(
    coordinator: &Rc<Coordinator>,
    mut now: Membership,
    released: &mut Vec<Incarnation>,
) {
    let node = &coordinator.node;
    let (me, lease) = (node.id, coordinator.shared.config.lease.unwrap_or_default());
    if !coordinator.shared.learn_membership(node, &now) {
        return;
    }
    oracle::keep(coordinator, &now);
    if now.epoch() == FIRST_EPOCH {
        return;
    }
    disown(coordinator, &now);
    take_note(coordinator);
    let noted = node.members.noted_by_all();
    debug_assert!(noted <= now.epoch(), "I71: only epochs of this membership are noted");
    let stopped = node.configuration.stopped_by_all();
    let carried = node.configuration.carried() >= now.reduced();
    let over = noted >= now.epoch() && carried && leaves_newcomers_alone(coordinator, &now);
    let report = move |now: &Membership| {
        let stop = now.stop(me, stopped);
        let acknowledge = || stop.as_ref().unwrap_or(now).acknowledge(me, noted);
        if over { acknowledge().or(stop.clone()) } else { stop.clone() }
    };
    if let Ok(outcome) = coordinator.change(report).await {
        now = outcome.membership();
        // This node may have been expelled since it last looked.
        if !coordinator.shared.learn_membership(node, &now) {
            return;
        }
        point!(me.0, Acknowledge, if over && now.expelled().next().is_some());
        point!(me.0, Stop, if stopped >= now.reduced() && !node.configuration.is_open());
        point!(me.0, CarriedOver, if over && now.reduced() > FIRST_EPOCH);
        point!(me.0, Finish, if !node.configuration.is_open() && now.all_have_stopped());
        point!(me.0, Resume, if node.configuration.is_open() && now.reduced() > FIRST_EPOCH);
    }
    node.members.learn_newcomers(&now);
    node.members.learn_settled(&now);
    let dropped = released.len();
    drop_locks(coordinator, &now, noted, released);
    point!(me.0, LocksDropped, if released.len() > dropped);
    tend(coordinator, &now);
    coordinator.look_for_the_lost(&now, lease);
    coordinator.report_filled(&now);
    if now.claimable(me).is_some() && !coordinator.recovers.replace(true) {
        let of = Rc::clone(coordinator);
        coordinator.executor.spawn(async move {
            recover::recover(&of).await;
            of.recovers.set(false);
        });
    }
    clearing::tend(coordinator, &now);
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
        debug_assert!(life != node.incarnation, "I70: a node drops none of its own locks");
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
    if shared.dropped_table().is_some() {
        return false;
    }
    if shared.config.lease.is_none() {
        return true;
    }
    let read = |authority: &dyn Authority| membership::read(authority);
    let Ok(Ok(now)) = shared.council.ask(read).await else { return false };
    let has_failed = |peer: &Peer| shared.hosted(peer.index).map(|node| node.has_failed());
    let is_lost = |peer: &&Peer| has_failed(peer) == Some(true) || !now.is_live(peer.id);
    let lost: Vec<_> = shared.peers.iter().filter(is_lost).collect();
    let serving = || shared.nodes.iter().filter(|node| !node.has_failed());
    let at_rest = now.may_resume() && now.clearing().is_none();
    if !at_rest || !serving().all(|node| node.configuration.is_open()) {
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

/// Removes all ownership of expelled nodes at this node, and announces the epoch to its
/// coordinators.
fn disown(coordinator: &Coordinator, now: &Membership) {
    let node = &coordinator.node;
    node.members.learn(now, |expelled| {
        for (lost, _) in expelled {
            node.shards.disown(*lost);
            node.routes.disown(*lost);
        }
        node.oracle.admit(now);
    });
    debug_assert!(
        node.members.seen() >= now.epoch(),
        "I78: an expulsion that was learned stays known"
    );
}

/// Whether every live member knows of this node, and has its floor.
async fn is_admitted(coordinator: &Coordinator, now: &Membership) -> bool {
    let node = &coordinator.node;
    if node.epoch != FIRST_EPOCH && !node.members.is_admitted() {
        // A member may have removed the floor on account of the previous life until all knew of
        // this one; an expelled node may do so by a verb under way, until it is fenced.
        let certain = !now.is_newcomer(node.id) && now.are_all_resolved();
        let known = certain || broken(Rule::ReturnsWait);
        let is_in = known && exchange_floors(coordinator).await.is_some();
        node.members.set_admitted(is_in);
        return is_in;
    }
    true
}

/// Whether no work is under way here that began before a newcomer returned and could give that
/// node a shard, or remove its floor.
fn leaves_newcomers_alone(coordinator: &Coordinator, now: &Membership) -> bool {
    let gives = coordinator.gives.get().is_some_and(|to| !coordinator.node.members.may_receive(to));
    let tends = coordinator.tends.get() && !newcomers(now).is_empty();
    !gives && !tends
}

/// Whether this node depends on a memory node that another one can still reach. Members that
/// were never started do not count, nor do those that may still complain themselves.
fn is_alone(
    coordinator: &Coordinator,
    now: &Membership,
    known_for: &[Duration],
    silent: &[(NodeId, Duration)],
    lease: Duration,
) -> bool {
    let Shared { placement, peers, .. } = &*coordinator.shared;
    let patience = lease * (1 + PATIENCE_LEASES);
    let is_other = |peer: &&Peer| peer.id != coordinator.node.id && now.is_live(peer.id);
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

/// Runs [`Coordinator::carry_over`] and [`adopt`] beside the turns: they may wait for memory
/// nodes, and it takes turns to declare an unresponsive memory node lost.
fn tend(coordinator: &Rc<Coordinator>, now: &Membership) {
    if coordinator.tends.replace(true) {
        return;
    }
    let (of, now) = (Rc::clone(coordinator), now.clone());
    coordinator.executor.spawn(async move {
        let tended = match of.carry_over(&now).await {
            Ok(()) => adopt(&of).await,
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
async fn adopt(coordinator: &Coordinator) -> Result<(), Fenced> {
    if coordinator.node.knows_all_owners() {
        return Ok(());
    }
    let mut owners = Vec::new();
    coordinator.refresh_owners(|shard, owner| owners.push((shard, owner))).await?;
    // Read after the owners: if this membership allows adoption, all grants of an owner
    // expelled in it are settled, and it grants nothing more to any live member.
    let Ok(now) = coordinator.membership().await else { return Ok(()) };
    let me = coordinator.node.id;
    let takes_part = coordinator.node.takes_part_in(&now);
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
    let turn = coordinator.shared.config.lease.unwrap_or_default() / TURNS_PER_LEASE;
    for some in orphans.chunks(ADOPTED_AT_ONCE) {
        let begun = coordinator.executor.now();
        coordinator.give(some).await?;
        let spent = coordinator.executor.now().since(begun);
        coordinator.executor.sleep((spent * ADOPTION_PAUSES).min(turn)).await;
    }
    Ok(())
}

/// Refuses expelled nodes, and notes the epoch once the commits that had begun before have
/// ended: they may rest on locks of expelled nodes.
fn take_note(coordinator: &Rc<Coordinator>) {
    let members = &coordinator.node.members;
    let seen = members.seen();
    // Memory nodes lost up to `seen` are known: this coordinator stops for them first.
    coordinator.follow();
    if coordinator.refused.get() < seen {
        let Known { expelled, live, over, .. } = members.at_seen();
        if let Locks::Lotus(locks) = &coordinator.locks {
            let refused = over.iter().filter(|_| !broken(Rule::TheExpelledAreRefused));
            refused.for_each(|life| locks.refuse(*life));
            expelled.iter().for_each(|(node, _)| locks.forget(*node));
            live.iter().for_each(|(node, _)| locks.remember(*node));
        }
        turn_to_oracle(coordinator);
        coordinator.refused.set(seen);
    }
    if !coordinator.grace.is_over() || !coordinator.has_finished() {
        return;
    }
    // The grace period that ended covers epoch `waits_for`.
    debug_assert!(
        coordinator.waits_for.get() <= seen,
        "I71: a grace period covers an epoch that was seen"
    );
    members.note(coordinator.thread, coordinator.waits_for.get());
    if coordinator.waits_for.get() < seen {
        coordinator.grace.begin();
        coordinator.waits_for.set(seen);
        if coordinator.grace.is_over() {
            members.note(coordinator.thread, seen);
        }
    }
}

/// Directs timestamp requests to the node that serves them, as far as this node knows.
fn turn_to_oracle(coordinator: &Coordinator) {
    if let Some(oracle) = coordinator.node.members.eldest() {
        coordinator.timestamps.turn_to(oracle, &coordinator.node, &coordinator.executor);
    }
}
