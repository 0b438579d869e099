//! Membership: beats, leases, expulsion, and a survivor's duties after an expulsion.
//!
//! # What it is
//! With a lease configured, every coordinator checks a few times per lease what its node knows of
//! the membership ([`lotus_recovery::membership`]), and coordinator 0 keeps that knowledge up to
//! date. A turn of coordinator 0:
//!
//! 1. Counts up the node's beat on every memory node, and reads all beats in the same batch. Past
//!    its lease the node begins no transactions until a beat has landed somewhere and the node is
//!    still a member.
//! 2. Expels suspected nodes, complains of memory nodes that do not answer, reports unreachable
//!    members, and learns of expulsions by other nodes and of lost memory nodes.
//! 3. Treats the shards of expelled nodes as unowned from now on: an attempt that holds a lock of
//!    such a shard and has not begun to commit will not (H4), and no coordinator asks an expelled
//!    node for more locks. The owner words of expelled nodes in the memory pool no longer count.
//! 4. Reports the node as stopped once all its coordinators have
//!    [stopped](crate::memory_nodes::changes) for a lost memory node; acknowledges the epoch once
//!    all have [taken note](take_note).
//! 5. Drops the locks of resolved nodes in this node's table.
//! 6. Takes over shards of expelled nodes as their heir, if adoption is allowed.
//! 7. Resolves a part of the expelled nodes' logs ([`crate::membership::recover`]), concurrently
//!    with the other steps.
//! 8. Looks for lost memory nodes ([`crate::memory_nodes::returning`]), and reports which shards of
//!    returned memory nodes this node has filled ([`crate::memory_nodes::filling`]).
//! 9. Gives back the memory of dropped tables ([`crate::memory_nodes::clearing`]).
//!
//! # If it stops anywhere
//! Every step determines anew whether work is left, and repeating a step changes nothing. An
//! expelled node learns of the expulsion from the next beat, or from a refused verb, and ends: the
//! node has no vote any more, and its verbs have no effect.
//!
//! # What it is not
//! Needed for safety: suspecting a node too early costs work and breaks nothing. Nor does a node
//! return by this path ([`crate::cluster::rejoin`]).
//!
//! # Memory nodes
//! A node complains of a memory node that has not answered for a lease while another memory node
//! has. The memory node is lost when half of the compute nodes complain. A compute node alone with
//! its complaint cannot commit writes to copies on that memory node, nor end transactions already
//! begun: after [`PATIENCE_LEASES`] more leases the node expels itself, and is recovered. A node is
//! alone if another beating node does not complain. Before the rest of the cluster has been
//! started, no node would recover it, so it waits until the missing nodes [are given up](absent).
//!
//! # Paths between compute nodes
//! Beats say nothing about the paths between compute nodes. A node reports members that its
//! messages have not reached for a lease, according to the fabric. Once a report has stood for a
//! lease, one of the two nodes [gives way](lotus_recovery::membership::cuts): a member expels it.
//!
//! # The authority
//! A round trip to the authority takes time, and the authority may be silent for a while, so step 1
//! runs concurrently with the others: a node beats, and is believed alive, while its
//! [question to the authority](crate::node::agreed::async_authority) waits.
//!
//! A silent authority in a node's process may have ended. After a lease of silence, or when its
//! process, or the cluster's life in etcd, is known to have ended, every coordinator blocks commits
//! until the authority answers again ([`Coordinator::heed_authority`]): without the authority the
//! cluster survives no further loss.

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
use crate::node::peers::members::{Known, Suspect, newcomers};
use crate::node::shared::{ComputeNode, Peer, Shared};
use crate::node::threads::tasks::beside;
use crate::node::verbs::Fenced;
use crate::shards::ownership::{ADOPTED_AT_ONCE, Transfer};

/// Turns in a lease, and thus the number of late beats before a node is suspected.
const TURNS_PER_LEASE: u32 = 8;
/// Turns in a lease while a memory node is being left: all nodes then wait for each other.
const TURNS_WHILE_CHANGING: u32 = 64;
/// Pause after taking over a batch of shards, as a multiple of the batch's duration; at most a
/// turn, lest the loss of a memory node make the pause long.
const ADOPTION_PAUSES: u32 = 3;
/// Horizon intervals between two checks for dropped tables in a cluster without a lease.
const IDLE_INTERVALS: u32 = 8;
/// Leases for which a compute node may be alone with a complaint.
const PATIENCE_LEASES: u32 = 4;

/// Address of the beat of the compute node at place `index`, on the memory node at place `memory`:
/// in the header page of the group whose first primary is that memory node.
pub(crate) fn beat_word(first: &Placement, memory: usize, index: usize) -> RemoteAddr {
    let primary = first.replicas(GroupId(memory as u8)).primary();
    primary.at(BEATS_OFFSET + (index * WORD_BYTES) as u64)
}

const _: () = assert!(MAX_COMPUTE_NODES <= MAX_BEATS, "each has a word");
const _: () = assert!(NO_OWNER.0 == NOBODY.0, "who owns nothing has one name");

/// Takes part in the membership until the node is expelled. Without a lease, does not handle
/// failures.
pub(crate) async fn keep(coordinator: &Rc<Coordinator>) {
    let Some(lease) = coordinator.shared.config.lease else {
        if coordinator.shared.is_whole() {
            // A separate task: not polled until a table is dropped.
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
                // Full while the last turn waits for an answer. A silent node will still be silent
                // later.
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
pub(crate) struct BeatReport {
    pub(crate) at: Nanos,
    /// Send time of the latest beat landed since the last turn, if any: no node suspects this node
    /// until a lease later.
    pub(crate) asked: Option<Nanos>,
    pub(crate) suspects: Vec<Suspect>,
    /// Places of compute nodes that have never beaten.
    pub(crate) unseen: Vec<usize>,
    /// Latest life heard, by place.
    pub(crate) lives: Vec<Suspect>,
    /// Time since that life was first heard, by place.
    pub(crate) known_for: Vec<Duration>,
    /// Memory nodes that do not answer, and for how long.
    pub(crate) silent: Vec<(NodeId, Duration)>,
}

/// Runs steps 2 to 9. `released` lists the lives whose locks have been dropped here.
async fn turn(
    coordinator: &Rc<Coordinator>,
    BeatReport { asked, suspects, lives, known_for, silent, .. }: BeatReport,
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

/// Beating members unreached by this node's messages for a lease. A member not started yet, or just
/// returned, listens nowhere; failures before a member's present life say nothing about the present
/// life.
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

/// Expels the member that must give way once cuts between members last; `None` if no cut lasts.
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

/// Turn of coordinator 0 in a cluster without a lease: failures are not handled, only tables are
/// dropped. All compute nodes are in this process.
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
        // This node may have been expelled since its last look.
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

/// Drops the local locks of expelled nodes whose transactions are settled. Expelled nodes are no
/// longer served, so no new locks follow (H8).
fn drop_locks(
    coordinator: &Coordinator,
    now: &Membership,
    noted: Epoch,
    released: &mut Vec<Incarnation>,
) {
    let node = &coordinator.node;
    for (life, settled) in now.over() {
        // A replaced life was noted by every member.
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

/// Whether failed nodes need no further work: each is expelled and resolved, its locks are dropped,
/// and every shard has an owner. True without a lease, as failures are never handled.
///
/// A process knows more than its nodes: failed nodes before suspicion, and the contents of their
/// lock tables. So only a caller waiting for the whole cluster may ask. About nodes of remote
/// processes it knows the facts agreed on by all members.
pub(crate) async fn is_settled(shared: &Shared) -> bool {
    if shared.dropped_table().is_some() {
        return false;
    }
    if shared.config.lease.is_none() {
        return true;
    }
    let read = |authority: &dyn Authority| membership::read(authority);
    let Ok(Ok(now)) = shared.async_authority.ask(read).await else { return false };
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
    // An expelled node unaware of the expulsion still has locks, and will never give them back.
    lost.iter().all(|peer| has_failed(peer) != Some(false) && now.is_resolved(peer.id))
        && now.may_adopt()
        && serving().all(holds_none_of_theirs)
        && all_owned()
}

/// Removes expelled nodes as owners at this node, and announces the epoch to the coordinators.
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
        // A member may have removed the floor because of the previous life until all members knew
        // of this life; an expelled node may remove it by a verb under way, until that node is
        // fenced.
        let certain = !now.is_newcomer(node.id) && now.are_all_resolved();
        let known = certain || broken(Rule::ReturnsWait);
        let is_in = known && exchange_floors(coordinator).await.is_some();
        node.members.set_admitted(is_in);
        return is_in;
    }
    true
}

/// Whether no local work begun before a newcomer's return could still give the newcomer a shard or
/// remove its floor.
fn leaves_newcomers_alone(coordinator: &Coordinator, now: &Membership) -> bool {
    let hands_over = coordinator
        .handover_target
        .get()
        .is_some_and(|to| !coordinator.node.members.may_receive(to));
    let adopts = coordinator.adoption_running.get() && !newcomers(now).is_empty();
    !hands_over && !adopts
}

/// Whether this node depends on a memory node reachable from another compute node. Members never
/// started do not count, nor do members that may still complain (I234).
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

/// Runs [`Coordinator::carry_over`] and [`adopt`] concurrently with the turns: both may wait for
/// memory nodes, and declaring an unresponsive memory node lost takes turns.
fn tend(coordinator: &Rc<Coordinator>, now: &Membership) {
    if coordinator.adoption_running.replace(true) {
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
        of.adoption_running.set(false);
    });
}

/// Takes over the expelled nodes' shards as their heir, if adoption is allowed (H4), and learns of
/// shards taken over by other nodes.
async fn adopt(coordinator: &Coordinator) -> Result<(), Fenced> {
    if coordinator.node.knows_all_owners() {
        return Ok(());
    }
    let mut owners = Vec::new();
    coordinator.refresh_owners(|shard, owner| owners.push((shard, owner))).await?;
    // Read after the owners: if this membership allows adoption, all grants of its expelled owners
    // are settled, and these owners grant no more locks to live members.
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

/// Refuses expelled nodes, and notes the epoch once the commits begun before have ended: they may
/// rest on locks of expelled nodes.
fn take_note(coordinator: &Rc<Coordinator>) {
    let members = &coordinator.node.members;
    let seen = members.seen();
    // Memory nodes lost up to `seen` are known: the coordinator stops for the losses first.
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

/// Directs timestamp requests to the serving node, to the best of this node's knowledge.
fn turn_to_oracle(coordinator: &Coordinator) {
    if let Some(oracle) = coordinator.node.members.eldest() {
        coordinator.timestamps.turn_to(oracle, &coordinator.node, &coordinator.executor);
    }
}
