//! Recovery of a dead compute node by a survivor: fence, read its log, settle every transaction.
//!
//! # The order, and what it is for
//! 1. A part of the dead node's log slots is claimed, so that one member at a time works on it.
//! 2. Everybody who is out is fenced at every memory node (H2): the dead node, and whoever had
//!    claimed the part before. From then on nothing of theirs takes effect; only now is anything
//!    read.
//! 3. Slot by slot, what [`lotus_recovery::resolve`] decides is carried out on all replicas
//!    (`transaction`).
//! 4. With the first part goes what the node as a whole has left: its floor, which held the horizon
//!    back (H13), and slabs that it had entered in some directories and not in others.
//! 5. The part is finished. When all are, its locks may go, and shards find heirs
//!    ([`crate::members`]).
//!
//! # If it stops anywhere
//! The claim is void once its holder is out, and the next one begins the part anew. All that was
//! done is found done; what was decided is found decided, in the logs. So it is when a memory node
//! is lost meanwhile: the part is begun anew, on what is left ([`crate::configuration`]).
//!
//! # What stays lost
//! Memory: the slots that were free at the dead node, slots that it had displaced and not used
//! again, and deleted rows that it had not purged.

mod transaction;

use std::rc::Rc;
use std::sync::Arc;

use lotus_fabric::ids::{Epoch, NodeId, RemoteAddr};
use lotus_fabric::lane::{Batch, Completed};
use lotus_fabric::verbs::{Buffer, MAX_VERB_BYTES};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::{CURSOR_OFFSET, RegionLayout};
use lotus_points::point;
use lotus_recovery::membership::Outcome;
use lotus_recovery::{Contradiction, Membership, PartId};
use lotus_router::{GroupId, Placement, ReplicaSet};
use lotus_sabotage::{Rule, broken};

use crate::configuration::{FLOORS_GROUP, NO_FLOOR, floor_word};
use crate::coordinator::Coordinator;
use crate::ownership::{Halted, RETRY_PAUSE};
use crate::shared::{Peer, Shared};

/// Why a recoverer stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// It has been expelled itself. Another one takes over.
    Expelled,
    /// A memory node is lost. It begins anew with those that are left (H15).
    Restart,
    /// It has met what the protocol rules out. Nothing more is touched.
    Contradiction(Contradiction),
}

impl From<Contradiction> for Stop {
    fn from(what: Contradiction) -> Self {
        Self::Contradiction(what)
    }
}

/// Resolves parts of dead nodes' logs until there are none left for this node.
pub(crate) async fn recover(coordinator: &Rc<Coordinator>) {
    let node = &coordinator.node;
    while let Some((part, now)) = claim(coordinator).await {
        point!(node.id.0, Claim);
        let placed = coordinator.configuration.placed();
        match resolve_part(coordinator, part, &now).await {
            Ok(()) if placed == coordinator.configuration.placed() => {
                finish(coordinator, part).await;
                point!(node.id.0, Finished);
            }
            // Whoever does not answer, and is not known to be lost, is asked again.
            Err(Stop::Restart) if placed == coordinator.configuration.placed() => {
                coordinator.executor.sleep(RETRY_PAUSE).await;
            }
            Ok(()) | Err(Stop::Restart) => {}
            Err(Stop::Expelled) => return node.expel(),
            Err(Stop::Contradiction(what)) => return node.members.report(what),
        }
    }
}

/// Claims a part, and learns who is out at that moment; `None` if there is none, or no answer.
async fn claim(coordinator: &Coordinator) -> Option<(PartId, Membership)> {
    let me = coordinator.node.id;
    if coordinator.node.has_failed() || coordinator.node.members.contradiction().is_some() {
        return None;
    }
    let claim = move |now: &Membership| now.claim(me, now.claimable(me)?);
    match coordinator.change(claim).await.ok()? {
        // Whoever has claimed a part may work on that one first.
        Outcome::Changed(now) => Some((now.claimable(me)?, now)),
        Outcome::Unchanged(_) => None,
    }
}

/// Says that a part is resolved, until somebody has heard it.
async fn finish(coordinator: &Coordinator, part: PartId) {
    let me = coordinator.node.id;
    while !coordinator.node.has_failed() {
        if coordinator.change(|now| now.finish(me, part)).await.is_ok() {
            return;
        }
        coordinator.executor.sleep(RETRY_PAUSE).await;
    }
}

async fn resolve_part(
    coordinator: &Coordinator,
    part: PartId,
    now: &Membership,
) -> Result<(), Stop> {
    let shared = &coordinator.shared;
    let dead = shared.peers.iter().find(|peer| peer.id == part.of);
    let dead = *dead.expect("every member is a compute node");
    let parts = now.parts_of(part.of);
    let placement = Placement::clone(&coordinator.placement());
    let recoverer = Recoverer { coordinator, dead, nodes: placement.nodes(), placement };
    let late = broken(Rule::FencesComeFirst);
    if !late {
        fence(coordinator, now).await?;
    }
    recoverer.learn_tables().await?;
    if part.index == 0 {
        recoverer.take_floor_out().await?;
        for (group, replicas) in recoverer.placement.groups() {
            recoverer.complete_directories(group, replicas).await?;
        }
    }
    for slot in (part.index..shared.config.slots()).step_by(parts) {
        recoverer.resolve_slot(slot as u16).await?;
    }
    if late {
        fence(coordinator, now).await?;
    }
    Ok(())
}

/// Lets no verb of a node that is out take effect any more at any memory node that is used, or is
/// about to be: by this membership, or by the placement that this coordinator goes by.
pub(crate) async fn fence(coordinator: &Coordinator, now: &Membership) -> Result<(), Stop> {
    if broken(Rule::NodesAreFenced) {
        return Ok(());
    }
    let mut targets = coordinator.placement().nodes();
    let used = now.surviving(&coordinator.shared.placement).nodes();
    targets.extend(used.into_iter().filter(|node| coordinator.has_left(*node)));
    fence_at(coordinator, now.expelled().map(|(member, since)| (member.node, since)), &targets)
        .await
}

/// Lets no verb of these nodes, of an epoch before theirs, take effect any more at any of these
/// memory nodes.
pub(crate) async fn fence_at(
    coordinator: &Coordinator,
    out: impl Iterator<Item = (NodeId, Epoch)>,
    targets: &[NodeId],
) -> Result<(), Stop> {
    let uses = |target| coordinator.node.configuration.uses_again(target);
    for (node, since) in out {
        for (place, &target) in targets.iter().enumerate() {
            let fence = move |shared: &Shared| shared.fabric.fence(target, node, since).is_ok();
            let is_lost = || coordinator.has_left(target) && !uses(target);
            until_done(coordinator, is_lost, fence).await?;
            point!(coordinator.node.id.0, Fence, place, targets.len());
        }
    }
    Ok(())
}

/// Has the council do something until it is done, or is `out_of_place`. A node that does not answer
/// may do so later.
async fn until_done(
    coordinator: &Coordinator,
    out_of_place: impl Fn() -> bool,
    work: impl Fn(&Shared) -> bool + Copy + Send + 'static,
) -> Result<(), Stop> {
    loop {
        let shared = Arc::clone(&coordinator.shared);
        if coordinator.shared.council.apart(move || work(&shared)).await == Ok(true) {
            return Ok(());
        }
        if coordinator.node.has_failed() {
            return Err(Stop::Expelled);
        }
        if out_of_place() {
            return Err(Stop::Restart);
        }
        coordinator.executor.sleep(RETRY_PAUSE).await;
    }
}

/// Settles what one dead node has left.
struct Recoverer<'a> {
    coordinator: &'a Coordinator,
    dead: Peer,
    /// Every memory node that is left.
    nodes: Vec<NodeId>,
    placement: Placement,
}

impl Recoverer<'_> {
    /// The dead node may have used tables that this process has never heard of.
    async fn learn_tables(&self) -> Result<(), Stop> {
        if self.coordinator.shared.is_whole() {
            return Ok(());
        }
        until_done(self.coordinator, || false, |shared| shared.learn_tables().is_ok()).await
    }

    /// The dead node reads nothing any more: it cannot, since it is fenced.
    async fn take_floor_out(&self) -> Result<(), Stop> {
        let primary = self.placement.replicas(FLOORS_GROUP).primary();
        let word = primary.at(floor_word(self.dead.index));
        self.post(|batch| batch.write_word(word, NO_FLOOR)).await.map(drop)
    }

    /// Enters slabs everywhere that are entered somewhere. Whoever lives enters the same.
    async fn complete_directories(
        &self,
        group: GroupId,
        replicas: &ReplicaSet,
    ) -> Result<(), Stop> {
        let layout = &self.coordinator.shared.region;
        // A promoted copy's cursor says nothing of where the directory ends.
        let end = match self.coordinator.is_promoted(group) {
            true => layout.end(),
            false => {
                let cursor = replicas.primary().at(CURSOR_OFFSET);
                let (seen, buffer) = self.post(|batch| batch.read(cursor, WORD_BYTES)).await?;
                seen.words(buffer)[0].min(layout.end())
            }
        };
        let end = RegionLayout::directory_word(end);
        let mut at = RegionLayout::directory_word(layout.first_slab());
        while at < end {
            let bytes = (end - at).min(MAX_VERB_BYTES as u64) as usize;
            let members = replicas.members();
            let read = |batch: &mut Batch| -> Vec<Buffer> {
                members.iter().map(|replica| batch.read(replica.at(at), bytes)).collect()
            };
            let (copies, buffers) = self.post(read).await?;
            let mut missing = Vec::new();
            for index in 0..bytes / WORD_BYTES {
                let words = buffers.iter().map(|buffer| copies.words(*buffer)[index]);
                let Some(entry) = words.clone().find(|word| *word != 0) else { continue };
                let place = at + (index * WORD_BYTES) as u64;
                let without = members.iter().zip(words).filter(|(_, word)| *word == 0);
                missing.extend(without.map(|(replica, _)| Swap::new(replica.at(place), 0, entry)));
            }
            drop(copies);
            self.swap(&missing).await?;
            at += bytes as u64;
        }
        Ok(())
    }

    /// Posts what `add` puts into a batch, again and again until every verb has taken effect; every
    /// verb of recovery may be repeated. What `add` has returned names what was read.
    async fn post<T>(&self, add: impl Fn(&mut Batch) -> T) -> Result<(Completed, T), Stop> {
        self.coordinator.insist_here(add).await.map_err(|halted| match halted {
            Halted::Fenced => Stop::Expelled,
            Halted::Left => Stop::Restart,
        })
    }

    /// Swaps words, all at once; whether each holds what it should now.
    async fn swap(&self, swaps: &[Swap]) -> Result<bool, Stop> {
        self.swap_up_to(swaps, |_, _| false).await
    }

    /// As [`Self::swap`]; of each batch only those up to the first whose place and count are to be
    /// `cut`, for now.
    async fn swap_up_to(
        &self,
        swaps: &[Swap],
        cut: impl Fn(usize, usize) -> bool,
    ) -> Result<bool, Stop> {
        let mut all = true;
        for some in swaps.chunks(SWAPS_AT_ONCE) {
            let (done, held) = self
                .post(|batch| {
                    let mut held = Vec::new();
                    for (place, swap) in some.iter().enumerate() {
                        held.push(batch.compare_and_swap(swap.at, swap.from, swap.to));
                        if cut(place, some.len()) {
                            break;
                        }
                    }
                    held
                })
                .await?;
            all &= some.iter().zip(held).all(|(swap, buffer)| {
                let found = done.words(buffer)[0];
                found == swap.from || found == swap.to
            });
        }
        Ok(all)
    }
}

/// How many words are swapped in one batch.
const SWAPS_AT_ONCE: usize = 256;

/// A word to change, if it is still what was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Swap {
    at: RemoteAddr,
    from: u64,
    to: u64,
}

impl Swap {
    fn new(at: RemoteAddr, from: u64, to: u64) -> Self {
        Self { at, from, to }
    }
}
