//! Memory nodes that were lost and come back: who looks for them, and what makes one ready.
//!
//! # What it is
//! Now and then coordinator 0 of each node looks at the memory nodes that are lost. What answers is
//! one of these:
//!
//! | its memory | what it is | what is done |
//! |---|---|---|
//! | no regions | a process made anew | the first member makes it ready |
//! | blank regions | the same, half-way ready | the first member goes on |
//! | a [`Life`] since its loss | ready | everybody says so in the membership |
//! | anything else | the memory of old | nothing, for ever: others have written since |
//!
//! When all have said so it joins ([`lotus_recovery::membership::returns`]), by the same steps as
//! those by which a lost one is left ([`crate::configuration`]), and is filled
//! ([`crate::filling`]).
//!
//! # The order in which one is made ready
//! Only when nobody who takes part uses it by the placement of before its loss, and nothing is in
//! doubt of those who are out. These are fenced there first, then it gets regions, then its life:
//! so nobody who has missed its loss ever finds empty memory and believes it. If the one who makes
//! it ready is expelled, the next one begins with the fence, so nothing late lands in what it made.
//! Whoever is expelled after that, and before it joins, never uses it: a node learns no placement
//! by a membership that it is not in. It is fenced there all the same before that placement is
//! acknowledged ([`Coordinator::carry_over`]), and by its recovery, which fences also at what has
//! joined and is not used yet.
//!
//! # Owners' words of a maker that was late
//! The words are WRITEs in front of the swap of the life, so a maker whose swap fails has replaced
//! words of the one whose swap did not, by older ones maybe. No one relies on them yet. A member
//! says that it has found a life only when its own batch has ended, and without that the memory
//! node does not join; a maker that is expelled meanwhile is fenced there before any member raises
//! the words that are behind ([`Coordinator::carry_over`]), and another life of its node is refused
//! by the fences for the one before. Of the same maker nothing lands behind a reconnect (H22),
//! which comes before each look. So whatever replaces words comes before they are raised.
//!
//! # Connections
//! A lane may still be connected to an earlier life. So before a coordinator takes note of one that
//! joins it connects anew, and finds the right life there, and so it does whenever it connects to
//! it later ([`Coordinator::reconnect`]).

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::ids::{Epoch, NodeId};
use lotus_fabric::region::Rights;
use lotus_fabric::transport::{Fabric, FabricError};
use lotus_fabric::verbs::VerbError;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::{LIFE_OFFSET, RegionLayout};
use lotus_recovery::LogGeometry;
use lotus_recovery::membership::Membership;
use lotus_recovery::membership::returns::Life;
use lotus_router::placement::LOG_REGION;
use lotus_router::{GroupId, Placement, Replica};
use lotus_sabotage::{Rule, broken};
use rand::Rng;

use crate::coordinator::Coordinator;
use crate::ownership::{OWNERS_GROUP, write_owners};
use crate::shared::Shared;

/// The words of a header that tell what a region is: as far as the life.
const HEADER_WORDS: usize = LIFE_OFFSET as usize / WORD_BYTES + 1;
/// The bytes of these.
pub(crate) const HEADER_BYTES: usize = HEADER_WORDS * WORD_BYTES;

/// What a memory node's memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    NoRegions,
    Blank,
    Ready(Life),
    /// Of a life that nobody may use.
    Old,
}

impl Found {
    /// By the header of one of its regions.
    fn of(header: &[u64]) -> Self {
        let life = header[HEADER_WORDS - 1];
        match Life::from_word(life) {
            Some(life) => Self::Ready(life),
            None if header.iter().all(|word| *word == 0) => Self::Blank,
            None => Self::Old,
        }
    }
}

/// Registers the memory of a memory node: its groups', and that of the logs. The group whose first
/// primary it is comes last.
pub(crate) fn register(
    fabric: &dyn Fabric,
    node: NodeId,
    placement: &Placement,
    region: &RegionLayout,
    log: &LogGeometry,
) -> Result<(), FabricError> {
    let own = life_at(placement, node).region;
    let others = placement.hosted_by(node).map(GroupId::region).filter(|region| *region != own);
    let groups = others.chain([own]).map(|number| (number, region.bytes()));
    for (number, bytes) in [(LOG_REGION, log.region_bytes())].into_iter().chain(groups) {
        match fabric.register(node, number, bytes, Rights::ALL) {
            // Whoever began with it did not get to its end.
            Ok(()) | Err(FabricError::RegionTaken(..)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The region in whose header a memory node's life stands: that of the group whose first primary it
/// is.
pub(crate) fn life_at(first: &Placement, node: NodeId) -> Replica {
    let primaries = first.groups().map(|(_, set)| set.primary());
    primaries.into_iter().find(|replica| replica.node == node).expect("each is a primary at first")
}

impl Shared {
    /// Gives a memory node that was made anew its regions, once nobody of `out` can use them.
    fn make_ready(&self, node: NodeId, out: &[(NodeId, Epoch)]) -> bool {
        let mut out = out.iter().filter(|_| !broken(Rule::ReadyNodesFence));
        let fenced = out.all(|(other, since)| self.fabric.fence(node, *other, *since).is_ok());
        let register = || register(&*self.fabric, node, &self.placement, &self.region, &self.log);
        fenced && register().is_ok()
    }
}

impl Coordinator {
    /// Looks for memory nodes that are lost, beside all else, and not again for half a lease.
    pub(crate) fn look_for_the_lost(self: &Rc<Self>, now: &Membership, lease: Duration) {
        let lost = now.lost_memory().iter().map(|lost| lost.node);
        let lost: Vec<NodeId> = lost.filter(|node| now.awaited(*node).is_some()).collect();
        if lost.is_empty() || self.looks.replace(true) {
            return;
        }
        let (of, now) = (Rc::clone(self), now.clone());
        self.executor.spawn(async move {
            for node in lost {
                if let Some(life) = of.look_at(node, &now).await {
                    of.say_found(node, life).await;
                }
            }
            of.executor.sleep(lease / 2).await;
            of.looks.set(false);
        });
    }

    /// Looks at one that is lost: its life, if it is ready.
    async fn look_at(&self, node: NodeId, now: &Membership) -> Option<Life> {
        let makes_ready = now.live().next()?.node == self.node.id;
        self.lane.reconnect(node).await.ok()?;
        let mut found = self.found(node).await?;
        if makes_ready && matches!(found, Found::NoRegions | Found::Blank) {
            let out: Vec<_> = now.refused().collect();
            let shared = Arc::clone(&self.shared);
            let work = move || shared.make_ready(node, &out);
            self.shared.council.apart(work).await.ok().filter(|ready| *ready)?;
            self.lane.reconnect(node).await.ok()?;
            let life = Life::new(now.epoch(), self.rng.borrow_mut().random());
            self.begin_life(node, life).await?;
            found = self.found(node).await?;
        }
        match found {
            Found::Ready(life) => {
                now.awaited(node).filter(|lost| life.is_since(*lost)).map(|_| life)
            }
            _ => None,
        }
    }

    /// Writes a life into blank memory, if there is none, behind who owns which shard: that would
    /// be many swaps for each node later ([`crate::configuration`]).
    async fn begin_life(&self, node: NodeId, life: Life) -> Option<()> {
        let first = &self.shared.placement;
        let members = first.replicas(OWNERS_GROUP).members();
        let copy = members.iter().find(|replica| replica.node == node);
        let owners = self.read_owners_of(self.primary(OWNERS_GROUP)).await.ok()??;
        let mut batch = self.lane.batch();
        if let Some(copy) = copy {
            write_owners(&mut batch, *copy, &owners);
        }
        batch.compare_and_swap(life_at(first, node).at(LIFE_OFFSET), 0, life.word());
        batch.post().await.ok().map(drop)
    }

    /// What a memory node's memory is; `None` if it does not answer.
    async fn found(&self, node: NodeId) -> Option<Found> {
        let mut batch = self.lane.batch();
        let at = life_at(&self.shared.placement, node).at(0);
        let header = batch.read(at, HEADER_BYTES);
        match batch.post().await {
            Ok(done) => Some(Found::of(done.words(header))),
            Err(error) if error.first().error == VerbError::OutOfBounds => Some(Found::NoRegions),
            Err(_) => None,
        }
    }

    async fn say_found(&self, node: NodeId, life: Life) {
        let me = self.node.id;
        // Unanswered, it is said again.
        let _ = self.change(move |now| now.found(me, node, life)).await;
    }

    /// Whether a memory node, which this coordinator has just connected to, is the one that the
    /// cluster uses, and not an earlier life of it.
    pub(crate) async fn is_in_use(&self, node: NodeId) -> bool {
        let Some(life) = self.configuration.life_of(node) else { return true };
        self.found(node).await == Some(Found::Ready(life))
    }

    /// Connects to a memory node that joins, for as long as it is not lost again.
    pub(crate) fn attach(self: &Rc<Self>, node: NodeId) {
        let of = Rc::clone(self);
        self.configuration.attaches(1);
        self.executor.spawn(async move {
            while !of.has_left(node) && !of.node.has_failed() {
                if of.reconnect(node).await.is_ok() {
                    break;
                }
                of.executor.sleep(crate::ownership::RETRY_PAUSE).await;
            }
            of.configuration.attaches(-1);
        });
    }
}

#[cfg(test)]
mod tests {
    use lotus_mvcc::layout::region::{MAGIC, SLAB_BYTES};

    use super::*;

    #[test]
    fn memory_of_old_is_told_from_blank_memory_and_from_what_is_ready() {
        let life = Life::new(Epoch(7), 0);
        let formatted = RegionLayout::new(4 * SLAB_BYTES).expect("large enough").encode();
        let [magic, version, cursor, bytes] = formatted;
        let cases = [
            ([0; HEADER_WORDS], Found::Blank),
            ([0, 0, 0, 0, 0, life.word()], Found::Ready(life)),
            ([magic, version, cursor, bytes, 9, life.word()], Found::Ready(life)),
            ([magic, version, cursor, bytes, 0, 0], Found::Old),
            ([0, 0, 0, 0, 9, 0], Found::Old),
            ([MAGIC, 0, 0, 0, 0, 5], Found::Old),
        ];
        for (header, expected) in cases {
            assert_eq!(Found::of(&header), expected, "{header:?}");
        }
    }
}
