//! Recovery of a dead compute node by a survivor: fence the node, read its log, settle every
//! transaction.
//!
//! # The steps, and their purpose
//! 1. The survivor claims a part of the dead node's log slots, so that a single member works on the
//!    part at a time.
//! 2. All expelled nodes are fenced at every memory node (H2): the dead node, and earlier holders
//!    of the claim. After the fence no verb of an expelled node takes effect; nothing is read
//!    before the fence.
//! 3. Slot by slot, the decision of [`lotus_recovery::resolve`] is carried out on all replicas
//!    (`transaction`).
//! 4. The first part includes the state of the node as a whole: its floor, which held the horizon
//!    back (H13), and slabs entered in some directories and missing in others.
//! 5. The part is finished. When all parts are finished, the dead node's locks may be dropped, and
//!    its shards find heirs ([`crate::membership::members`]).
//!
//! # If it stops anywhere
//! The claim is void once its holder is expelled, and the next holder begins the part anew.
//! Finished work is recognised as finished; decisions are found in the logs. After the loss of a
//! memory node, too, the part begins anew (I107), on the remaining nodes
//! ([`crate::memory_nodes::changes`]).
//!
//! # What stays lost
//! Memory: the dead node's free slots, slots displaced by the node and not reused, and deleted rows
//! not yet purged.

mod transaction;

use std::rc::Rc;

use lotus_fabric::ids::{NodeSet, RemoteAddr};
use lotus_fabric::lane::{Batch, Completed};
use lotus_fabric::verbs::{Buffer, MAX_VERB_BYTES};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::{CURSOR_OFFSET, FREE_SLAB, RegionLayout, SlabEntry};
use lotus_points::point;
use lotus_recovery::membership::ChangeOutcome;
use lotus_recovery::{Membership, PartId};
use lotus_router::{GroupId, Placement, ReplicaSet};
use lotus_sabotage::{Rule, broken};

use crate::memory_nodes::fence::{Stop, fence_at, until_done};
use crate::node::coordinator::Coordinator;
use crate::node::memory::configuration::{FLOORS_GROUP, NO_FLOOR, floor_word};
use crate::node::shared::Peer;
use crate::node::verbs::{Halted, RETRY_PAUSE};

/// Resolves parts of dead nodes' logs until this node can claim no further part.
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
            // A memory node that does not answer, and is not known to be lost, is asked again.
            Err(Stop::Halted(Halted::Left)) if placed == coordinator.configuration.placed() => {
                coordinator.executor.sleep(RETRY_PAUSE).await;
            }
            Ok(()) | Err(Stop::Halted(Halted::Left)) => {}
            Err(Stop::Halted(Halted::Fenced)) => return node.expel(),
            Err(Stop::Contradiction(what)) => return node.members.report(what),
        }
    }
}

/// Claims a part, and reads the membership of that moment; `None` without a claimable part, or
/// without an answer.
async fn claim(coordinator: &Coordinator) -> Option<(PartId, Membership)> {
    let me = coordinator.node.id;
    if coordinator.node.has_failed() || coordinator.node.members.contradiction().is_some() {
        return None;
    }
    let claim = move |now: &Membership| now.claim(me, now.claimable(me)?);
    match coordinator.change(claim).await.ok()? {
        // A member with a claimed part is offered that part first.
        ChangeOutcome::Changed(now) => Some((now.claimable(me)?, now)),
        ChangeOutcome::Unchanged(_) => None,
    }
}

/// Reports a part as resolved, until the authority has accepted the report.
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
    debug_assert!(part.of != coordinator.node.id, "I68: no life settles its own log");
    let parts = now.parts_of(part.of);
    let placement = Placement::clone(&coordinator.placement());
    let recoverer = Recoverer { coordinator, now, dead, nodes: placement.nodes(), placement };
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

/// Fences all expelled nodes at every memory node in use or about to be in use: by this membership,
/// or by this coordinator's placement.
pub(crate) async fn fence(coordinator: &Coordinator, now: &Membership) -> Result<(), Stop> {
    if broken(Rule::NodesAreFenced) {
        return Ok(());
    }
    let placed = coordinator.placement().nodes();
    debug_assert!(!placed.is_empty(), "I67: a dead node is fenced at some memory node");
    let targets = placed.or(now.surviving(&coordinator.shared.placement).nodes());
    let targets: Vec<_> = targets.into_iter().collect();
    fence_at(coordinator, now.expelled().map(|(member, since)| (member.node, since)), &targets)
        .await
}

/// Recovery of one dead node.
struct Recoverer<'a> {
    coordinator: &'a Coordinator,
    /// Membership in which the part was claimed.
    now: &'a Membership,
    dead: Peer,
    /// Remaining memory nodes.
    nodes: NodeSet,
    placement: Placement,
}

impl Recoverer<'_> {
    /// Reads the catalogue: the dead node may have used tables unknown to this process, and logged
    /// writes to tables gone by now. Read later than the membership, which names the table being
    /// cleared.
    async fn learn_tables(&self) -> Result<(), Stop> {
        if self.coordinator.shared.is_whole() {
            return Ok(());
        }
        until_done(self.coordinator, || false, |shared| shared.learn_tables().is_ok()).await
    }

    /// Removes the dead node's floor. The node is fenced, and reads nothing any more.
    async fn take_floor_out(&self) -> Result<(), Stop> {
        let primary = self.placement.replicas(FLOORS_GROUP).primary();
        debug_assert!(
            self.dead.id != self.coordinator.node.id,
            "I208: a node takes out no floor of its own"
        );
        let word = primary.at(floor_word(self.dead.index));
        self.post(|batch| batch.write_word(word, NO_FLOOR)).await.map(drop)
    }

    /// Enters slabs known to some directory in all directories, except slabs of live nodes: live
    /// nodes enter their slabs themselves, or are about to mark them free again, copy by copy.
    async fn complete_directories(
        &self,
        group: GroupId,
        replicas: &ReplicaSet,
    ) -> Result<(), Stop> {
        let layout = &self.coordinator.shared.region;
        // A promoted copy's cursor does not show the directory's end.
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
                let entry = words.clone().find_map(|word| Some((word, SlabEntry::decode(word)?)));
                let Some((word, entry)) = entry else { continue };
                let is_live = self.now.live().any(|member| member.incarnation == entry.owner);
                if is_live || self.now.is_released(entry.table) {
                    // The slab is being marked free, or may be.
                    continue;
                }
                let place = at + (index * WORD_BYTES) as u64;
                let others = members.iter().zip(words).filter(|(_, other)| *other != word);
                let swaps =
                    others.map(|(replica, other)| Swap::new(replica.at(place), other, word));
                missing.extend(swaps.filter(|swap| [0, FREE_SLAB].contains(&swap.from)));
            }
            drop(copies);
            self.swap(&missing).await?;
            at += bytes as u64;
        }
        Ok(())
    }

    /// Repeats the batch built by `add` until every verb has taken effect; every verb of recovery
    /// may be repeated. The result of `add` names the buffers read.
    async fn post<T>(&self, add: impl Fn(&mut Batch) -> T) -> Result<(Completed, T), Stop> {
        Ok(self.coordinator.insist_here(add).await?)
    }

    /// Swaps words, all at once. Returns whether every word now holds its new value.
    async fn swap(&self, swaps: &[Swap]) -> Result<bool, Stop> {
        self.swap_up_to(swaps, |_, _| false).await
    }

    /// As [`Self::swap`], but a batch ends at the first swap for which `cut` returns true, given
    /// its place and the batch's size.
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

/// Most words swapped in one batch.
const SWAPS_AT_ONCE: usize = 256;

/// Change of a word, provided that the word still has the value read.
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
