//! Taking slabs from the memory nodes: the only allocation that needs the network.
//!
//! The cursor in a group's header page on the primary is advanced by compare-and-swap: a
//! fetch-and-add followed by a check would push the cursor past the end of a full region. After
//! taking slabs, the coordinator enters them in the directory of every replica. Offsets mean the
//! same on every replica, so replicas stay byte for byte alike (`docs/memory-layout.md`). A slab
//! is used only once every directory names it. A node that dies between the two steps leaks only
//! the slabs it took.
//!
//! # The reserve
//! The last slabs of a group are for overflow buckets alone ([`RegionLayout::reserved_slabs`]):
//! rows that are inserted in the place of deleted rows need no record slab, but now and then a
//! bucket. Other uses leave as many slabs marked free as are missing from the reserve.
//!
//! # Slabs of dropped tables
//! When the cursor has reached the end, slabs that were marked free
//! ([`crate::memory_nodes::clearing`]) are taken: the word in the primary's directory is swapped
//! for the entry, which makes the slab the taker's, then the entry is written on every replica. A
//! slab that the primary shows as free is free, and zeroed, on every replica. Entries carry the
//! number of the allocation: a coordinator without an answer to its swap repeats the swap, and
//! recognises its own entry if the first swap took effect.
//!
//! # Promoted copies
//! A backup's cursor stays at its initial value. After a promotion, a coordinator raises the cursor
//! beyond every slab in the directory before its first allocation. No further slab is about to be
//! entered at that time: before transactions resume, slabs being taken are entered, and entries
//! that dead nodes made on some copy are made on all copies ([`crate::memory_nodes::changes`]). An
//! allocation that overlaps a promotion therefore completes with the old primary's cursor, or gives
//! up.

use std::cell::RefCell;
use std::rc::Rc;

use lotus_fabric::lane::{BatchError, Lane};
use lotus_fabric::verbs::{MAX_VERB_BYTES, VerbError};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::{
    CURSOR_OFFSET, FREE_SLAB, RegionLayout, SLAB_BYTES, SlabEntry, SlabKind,
};
use lotus_mvcc::slab::Purpose;
use lotus_points::point;
use lotus_router::{GroupId, Replica, ReplicaSet};
use lotus_sabotage::{Rule, broken};

use crate::api::error::TxnError;
use crate::node::coordinator::Coordinator;
use crate::node::verbs::RETRY_PAUSE;

/// Directory words swapped in one batch.
const SWAPS_AT_ONCE: usize = 256;
/// Intervals of the horizon between two searches of a full group.
const SEARCH_PAUSE: u32 = 64;
/// Number of times that a thread other than a coordinator posts a batch to an unresponsive node.
const TRIES: usize = 3;
/// Size of a stretch, the unit in which regions are pre-faulted: two huge pages.
const STRETCH_BYTES: u64 = 4 << 20;

/// Returns the offset of the next stretch, to pre-fault it, if the slab is the first of its
/// stretch. `None` otherwise.
fn stretch_ahead(slab: u64) -> Option<u64> {
    (slab % STRETCH_BYTES < SLAB_BYTES).then(|| slab - slab % STRETCH_BYTES + STRETCH_BYTES)
}

/// Error of an allocation of slabs.
#[derive(Debug)]
pub(crate) enum SlabError {
    /// The region has no room for the slabs; none was taken.
    Full,
    /// The memory nodes did not answer.
    Fabric(BatchError),
}

impl From<BatchError> for SlabError {
    fn from(error: BatchError) -> Self {
        Self::Fabric(error)
    }
}

/// Error of advancing a cursor.
enum CursorError {
    /// No room before the end for this use; the cursor is at this offset.
    Full(u64),
    /// The memory node did not answer.
    Fabric(BatchError),
}

impl From<BatchError> for CursorError {
    fn from(error: BatchError) -> Self {
        Self::Fabric(error)
    }
}

/// Takes enough contiguous slabs for `bytes` in the group stored at `replicas` and enters them
/// everywhere; returns the offset of the first slab. For threads other than coordinators: memory
/// nodes that do not answer within some tries may keep the slabs taken.
pub(crate) async fn take_slabs(
    lane: &Lane,
    replicas: &ReplicaSet,
    layout: &RegionLayout,
    bytes: u64,
    entry: SlabEntry,
) -> Result<u64, SlabError> {
    let primary = replicas.primary();
    raise_cursor(lane, primary, layout).await?;
    let offset = match advance_cursor(lane, primary, layout, bytes, entry.kind).await {
        Ok(offset) => offset,
        Err(CursorError::Full(cursor)) => {
            let (count, from) = (bytes.div_ceil(SLAB_BYTES), layout.first_slab());
            let left = layout.kept_back(entry.kind, cursor);
            loop {
                let found = find_free(lane, primary, layout, count, left, from).await?;
                let first = found.ok_or(SlabError::Full)?;
                if claim_all(lane, primary, first, count, entry).await? {
                    break first;
                }
                // Another coordinator took one of the slabs.
            }
        }
        Err(CursorError::Fabric(error)) => return Err(error.into()),
    };
    enter_with_retries(lane, replicas, offset, bytes, entry).await?;
    Ok(offset)
}

/// Reads the cursor of a copy.
async fn read_cursor(lane: &Lane, replica: Replica) -> Result<u64, BatchError> {
    let mut batch = lane.batch();
    let cursor = batch.read(replica.at(CURSOR_OFFSET), WORD_BYTES);
    Ok(batch.post().await?.words(cursor)[0])
}

/// Looks for `count` contiguous slabs that the primary's directory shows as free, from offset
/// `from` on, if at least `left` further slabs are free. Returns the offset of the first slab;
/// `None` if the search fails.
async fn find_free(
    lane: &Lane,
    primary: Replica,
    layout: &RegionLayout,
    count: u64,
    left: u64,
    from: u64,
) -> Result<Option<u64>, BatchError> {
    let (mut slab, mut run, mut free, mut first) = (from, 0, 0, None);
    while slab < layout.end() {
        for word in directory_from(lane, primary, layout, slab).await? {
            slab += SLAB_BYTES;
            run = if word == FREE_SLAB { run + 1 } else { 0 };
            free += u64::from(word == FREE_SLAB);
            if run == count && first.is_none() {
                debug_assert!(slab <= layout.end(), "I20: a free slab is whole");
                first = Some(slab - run * SLAB_BYTES);
            }
            if first.is_some() && free >= count + left {
                return Ok(first);
            }
        }
    }
    Ok(None)
}

/// Swaps the words of free slabs in the primary's directory for `entry`. Returns the slabs that
/// hold `entry` now. May be repeated after an error: the entry's number identifies a swap of this
/// caller whose answer was lost.
async fn claim(
    lane: &Lane,
    primary: Replica,
    slabs: &[u64],
    entry: SlabEntry,
) -> Result<Vec<u64>, BatchError> {
    let (free, own) = (FREE_SLAB, entry.encode());
    let mut batch = lane.batch();
    let word = |slab: u64| primary.at(RegionLayout::directory_word(slab));
    let swap = |slab: &u64| (*slab, batch.compare_and_swap(word(*slab), free, own));
    let swaps: Vec<_> = slabs.iter().map(swap).collect();
    let done = batch.post().await?;
    let is_own = |found: u64| found == free || (found == own && !broken(Rule::OwnTakesAreKnown));
    let taken = swaps.into_iter().filter(|(_, held)| is_own(done.words(*held)[0]));
    Ok(taken.map(|(slab, _)| slab).collect())
}

/// Claims `count` contiguous slabs: all or none. Returns whether every slab was free.
async fn claim_all(
    lane: &Lane,
    primary: Replica,
    first: u64,
    count: u64,
    entry: SlabEntry,
) -> Result<bool, BatchError> {
    let slabs: Vec<u64> = (0..count).map(|index| first + index * SLAB_BYTES).collect();
    let mut claimed = Vec::new();
    for some in slabs.chunks(SWAPS_AT_ONCE) {
        claimed.extend(repeat(lane, async || claim(lane, primary, some, entry).await).await?);
    }
    if claimed.len() == slabs.len() {
        return Ok(true);
    }
    for some in claimed.chunks(SWAPS_AT_ONCE) {
        repeat(lane, async || free(lane, primary, some, entry).await).await?;
    }
    Ok(false)
}

/// Repeats a batch of a thread other than a coordinator, over new connections, for some tries.
async fn repeat<T>(
    lane: &Lane,
    post: impl AsyncFn() -> Result<T, BatchError>,
) -> Result<T, BatchError> {
    let mut left = TRIES;
    loop {
        left -= 1;
        match post().await {
            Err(error) if left > 0 => {
                for failure in error.failures() {
                    // The next try shows whether the reconnection has helped.
                    let _ = lane.reconnect(failure.node).await;
                }
            }
            outcome => return outcome,
        }
    }
}

/// Marks the slabs that hold `entry` as free in the directory of one replica. May be repeated.
async fn free(
    lane: &Lane,
    replica: Replica,
    slabs: &[u64],
    entry: SlabEntry,
) -> Result<(), BatchError> {
    let mut batch = lane.batch();
    for slab in slabs {
        let word = replica.at(RegionLayout::directory_word(*slab));
        batch.compare_and_swap(word, entry.encode(), FREE_SLAB);
    }
    batch.post().await.map(drop)
}

async fn advance_cursor(
    lane: &Lane,
    primary: Replica,
    layout: &RegionLayout,
    bytes: u64,
    kind: SlabKind,
) -> Result<u64, CursorError> {
    let (bytes, end) = (bytes.next_multiple_of(SLAB_BYTES), layout.end_for(kind));
    let cursor = primary.at(CURSOR_OFFSET);
    let mut offset = read_cursor(lane, primary).await?;
    loop {
        if bytes > end || offset + bytes > end {
            return Err(CursorError::Full(offset));
        }
        let mut batch = lane.batch();
        let held = batch.compare_and_swap(cursor, offset, offset + bytes);
        match batch.post().await?.words(held)[0] {
            found if found == offset || broken(Rule::SlabsAreTakenOnce) => return Ok(offset),
            // Another coordinator came first.
            found => offset = found,
        }
    }
}

/// Reads directory words from the word of `slab` on: as many as one READ brings.
pub(crate) async fn directory_from(
    lane: &Lane,
    replica: Replica,
    layout: &RegionLayout,
    slab: u64,
) -> Result<Vec<u64>, BatchError> {
    let left = ((layout.end() - slab) / SLAB_BYTES) as usize * WORD_BYTES;
    let mut batch = lane.batch();
    let at = replica.at(RegionLayout::directory_word(slab));
    let words = batch.read(at, left.min(MAX_VERB_BYTES));
    Ok(batch.post().await?.words(words).to_vec())
}

/// Reads the end of the allocated part of a group from one of its copies, whether the copy ever was
/// the primary or not.
pub(crate) async fn allocated_end(
    lane: &Lane,
    replica: Replica,
    layout: &RegionLayout,
) -> Result<u64, BatchError> {
    let mut batch = lane.batch();
    let cursor = batch.read(replica.at(CURSOR_OFFSET), WORD_BYTES);
    // Allocations that found no room may have left the cursor beyond the end.
    let mut end = batch.post().await?.words(cursor)[0].min(layout.end());
    let mut slab = end;
    while slab < layout.end() {
        let entries = directory_from(lane, replica, layout, slab).await?;
        if let Some(last) = entries.iter().rposition(|entry| *entry != 0) {
            end = slab + (last as u64 + 1) * SLAB_BYTES;
        }
        slab += entries.len() as u64 * SLAB_BYTES;
    }
    Ok(end)
}

/// Bytes of the slabs that a copy's directory shows as free again.
pub(crate) async fn marked_free(
    lane: &Lane,
    replica: Replica,
    layout: &RegionLayout,
) -> Result<u64, BatchError> {
    let (mut slab, mut free) = (layout.first_slab(), 0);
    while slab < layout.end() {
        let words = directory_from(lane, replica, layout, slab).await?;
        free += words.iter().filter(|word| **word == FREE_SLAB).count() as u64 * SLAB_BYTES;
        slab += words.len() as u64 * SLAB_BYTES;
    }
    debug_assert!(free <= slab - layout.first_slab(), "I20: a free slab is one of the group's");
    Ok(free)
}

/// Raises the cursor of a copy beyond every slab in its directory.
async fn raise_cursor(
    lane: &Lane,
    replica: Replica,
    layout: &RegionLayout,
) -> Result<(), BatchError> {
    let end = allocated_end(lane, replica, layout).await?;
    let mut seen = 0;
    while seen < end && !broken(Rule::PromotedCursorsAreRaised) {
        let mut batch = lane.batch();
        let held = batch.compare_and_swap(replica.at(CURSOR_OFFSET), seen, end);
        match batch.post().await?.words(held)[0] {
            found if found == seen => break,
            // The first guess was wrong, or another coordinator came first.
            found => seen = found,
        }
    }
    Ok(())
}

/// Enters slabs in the directory of every replica, for threads other than coordinators.
pub(crate) async fn enter_with_retries(
    lane: &Lane,
    replicas: &ReplicaSet,
    offset: u64,
    bytes: u64,
    entry: SlabEntry,
) -> Result<(), BatchError> {
    repeat(lane, async || enter(lane, replicas, offset, bytes, entry).await).await
}

/// Enters slabs in the directory of every replica. May be repeated.
async fn enter(
    lane: &Lane,
    replicas: &ReplicaSet,
    offset: u64,
    bytes: u64,
    entry: SlabEntry,
) -> Result<(), BatchError> {
    let mut batch = lane.batch();
    for slab in (offset..offset + bytes).step_by(SLAB_BYTES as usize) {
        for replica in replicas.members() {
            batch.write_word(replica.at(RegionLayout::directory_word(slab)), entry.encode());
        }
    }
    batch.post().await.map(drop)
}

/// Marks slabs free that were taken, entered everywhere and not used. The primary's directory comes
/// last: slabs shown there as free may be taken by any node.
pub(crate) async fn give_back(
    lane: &Lane,
    replicas: &ReplicaSet,
    offset: u64,
    bytes: u64,
    entry: SlabEntry,
) -> Result<(), BatchError> {
    debug_assert!(entry.kind == SlabKind::Index, "I291: slots of other slabs may be in use");
    let slabs: Vec<u64> = (offset..offset + bytes).step_by(SLAB_BYTES as usize).collect();
    for replica in replicas.members().iter().rev() {
        for some in slabs.chunks(SWAPS_AT_ONCE) {
            repeat(lane, async || free(lane, *replica, some, entry).await).await?;
        }
    }
    Ok(())
}

/// Outcome of taking a slab.
type Taken = Result<(), TxnError>;
/// Answers the transaction that waits for a slab.
type Waiting = async_channel::Sender<Taken>;

/// Guard of a slab that was taken and is not yet entered everywhere.
struct Stalled<'a> {
    of: &'a RefCell<Vec<Purpose>>,
    purpose: Purpose,
}

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        self.of.borrow_mut().retain(|purpose| *purpose != self.purpose);
    }
}

impl Coordinator {
    /// Adds a slab for at least one slot of `bytes` to this coordinator's slabs.
    ///
    /// A task of the coordinator does the work, not the calling transaction: even if the
    /// transaction is dropped, a slab that was taken is entered in every directory and then used.
    #[cold]
    pub(crate) async fn take_slab(
        self: &Rc<Self>,
        purpose: Purpose,
        group: GroupId,
        bytes: u64,
    ) -> Taken {
        debug_assert!(bytes <= SLAB_BYTES, "I20: a slot fits a slab");
        if self.stalled.borrow().contains(&purpose) {
            // A slab is already taken and cannot be entered for now; a second slab could not be
            // either (I109).
            return Err(TxnError::Timeout);
        }
        let (sender, outcome) = async_channel::bounded(1);
        let coordinator = Rc::clone(self);
        self.executor.spawn(async move {
            let taken = coordinator.take_and_enter(purpose, group, &sender).await;
            // The receiver is gone if the transaction was dropped or has been answered already.
            let _ = sender.try_send(taken);
        });
        outcome.recv().await.unwrap_or(Err(TxnError::Fenced))
    }

    async fn take_and_enter(&self, purpose: Purpose, group: GroupId, waiting: &Waiting) -> Taken {
        let _taking = self.configuration.begin_taking()?;
        let (lane, layout) = (&self.lane, &self.shared.region);
        let entry = SlabEntry {
            kind: purpose.slots.slab(),
            table: purpose.table,
            owner: self.node.incarnation,
            take: self.node.slots.next_take(),
        };
        // Use this copy's cursor to the end. A copy promoted meanwhile has its own cursor, which is
        // not used before every slab of this cursor is entered.
        let (replicas, placed) = (self.replicas(group), self.configuration.placed());
        if self.must_raise_cursor(group) {
            if let Err(error) = raise_cursor(lane, replicas.primary(), layout).await {
                return Err(self.after_failure(error).await);
            }
            self.configuration.has_raised_cursor(group, placed);
            point!(self.node.id.0, Promote);
        }
        let _stalled = Stalled { of: &self.stalled, purpose };
        let advanced = advance_cursor(lane, replicas.primary(), layout, SLAB_BYTES, entry.kind);
        let offset = match advanced.await {
            Ok(offset) => offset,
            Err(CursorError::Full(cursor)) => {
                let left = layout.kept_back(entry.kind, cursor);
                self.take_free_slab(purpose, group, entry, left, waiting).await?
            }
            Err(CursorError::Fabric(error)) => return Err(self.after_failure(error).await),
        };
        debug_assert!(
            offset >= layout.first_slab() && offset + SLAB_BYTES <= layout.end(),
            "I20: a slab is one of the group's"
        );
        while let Err(error) = enter(lane, &self.replicas(group), offset, SLAB_BYTES, entry).await {
            self.stall(purpose, error, waiting).await?;
        }
        self.slabs.borrow_mut().add_slab(purpose, offset, SLAB_BYTES);
        if let Some(stretch) = stretch_ahead(offset) {
            for replica in self.replicas(group).members() {
                self.shared.fabric.prefault(replica.at(stretch), STRETCH_BYTES);
            }
        }
        Ok(())
    }

    /// Takes a slab that was marked free.
    async fn take_free_slab(
        &self,
        purpose: Purpose,
        group: GroupId,
        entry: SlabEntry,
        left: u64,
        waiting: &Waiting,
    ) -> Result<u64, TxnError> {
        let (lane, layout, slots) = (&self.lane, &self.shared.region, &self.node.slots);
        let primary = || self.replicas(group).primary();
        let cleared = slots.cleared();
        let mut from = slots.free_from(purpose.group).max(layout.first_slab());
        loop {
            let found = match find_free(lane, primary(), layout, 1, left, from).await {
                Ok(found) => found,
                Err(error) => return Err(self.after_failure(error).await),
            };
            if found.is_some() || left == 0 {
                from = found.map_or(layout.end(), |slab| slab + SLAB_BYTES);
                slots.set_searched(purpose.group, cleared, from);
            }
            let slab = found.ok_or(TxnError::TableFull { table: purpose.table })?;
            // A swap whose answer was lost may have taken the slab for this coordinator.
            let claimed = loop {
                match claim(lane, primary(), &[slab], entry).await {
                    Ok(claimed) => break claimed,
                    Err(error) => self.stall(purpose, error, waiting).await?,
                }
            };
            if claimed == [slab] {
                return Ok(slab);
            }
            // Another coordinator came first.
        }
    }

    /// Searches a full group for slabs that were marked free since, unless the group has been
    /// searched a moment ago. Returns whether the search found a slab for this purpose; the group
    /// then allows slabs to be taken again.
    #[cold]
    pub(crate) async fn finds_free_slab(
        &self,
        purpose: Purpose,
        group: GroupId,
    ) -> Result<bool, TxnError> {
        let (lane, layout, slots) = (&self.lane, &self.shared.region, &self.node.slots);
        let place = purpose.group;
        let begun = self.executor.now();
        let pause = self.shared.config.horizon_interval * SEARCH_PAUSE;
        if !slots.begins_search(place, begun, pause) {
            return Ok(false);
        }
        let primary = self.replicas(group).primary();
        let search = async || {
            let free = marked_free(lane, primary, layout).await? / SLAB_BYTES;
            Ok((free, read_cursor(lane, primary).await?))
        };
        let (free, cursor) = match search().await {
            Ok(found) => found,
            Err(error) => return Err(self.after_failure(error).await),
        };
        let now = self.executor.now();
        slots.has_searched(place, now, now.since(begun));
        for kind in [SlabKind::Overflow, SlabKind::Records] {
            // A promoted copy's cursor may be below the one that this node has found at the end.
            let has_room = cursor + SLAB_BYTES <= layout.end_for(kind);
            if has_room || free > layout.kept_back(kind, cursor) {
                slots.search_again_in(place, kind);
            }
        }
        Ok(!slots.is_full_for(purpose))
    }

    /// Pauses after a failure in the middle of taking a slab, and answers the waiting transaction.
    ///
    /// # Errors
    /// `Fenced`, if the allocation of the slab ends.
    async fn stall(&self, purpose: Purpose, error: BatchError, waiting: &Waiting) -> Taken {
        self.stalled.borrow_mut().push(purpose);
        let revoked = error.failures().iter().any(|failure| failure.error == VerbError::Revoked);
        let told = self.after_failure(error).await;
        let _ = waiting.try_send(Err(told));
        if revoked || self.node.has_failed() {
            return Err(TxnError::Fenced);
        }
        self.executor.sleep(RETRY_PAUSE).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_slab_of_each_stretch_has_the_next_made_ready() {
        let slabs = (0..3 * STRETCH_BYTES).step_by(SLAB_BYTES as usize);
        let ahead: Vec<_> = slabs.filter_map(|slab| Some((slab, stretch_ahead(slab)?))).collect();
        let stretch = STRETCH_BYTES;
        assert_eq!(ahead, [(0, stretch), (stretch, 2 * stretch), (2 * stretch, 3 * stretch)]);
    }
}
