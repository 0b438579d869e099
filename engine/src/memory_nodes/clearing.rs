//! Clearing: gives back the memory of dropped tables (H13, H20; decision 0084).
//!
//! # The order of the steps, and its purpose
//! 1. The catalogue marks the table as dropped, and its name no longer leads to a table.
//! 2. A member whose process knows of the drop begins. All nodes stop, finish and resume as for a
//!    loss of a memory node ([`crate::memory_nodes::changes`]): an attempt from before relies on no
//!    later read, and a later attempt does not find the table. So when transactions run again, no
//!    reader, commit or slab of the table is under way on a live node, and no transaction of a dead
//!    node is in doubt ([`lotus_recovery::membership::clearing`]).
//! 3. One member claims the work. From then on recovery leaves the table's rows alone: a log entry
//!    still naming them belongs to a finished transaction.
//! 4. Slab by slab the member zeroes the table's memory on every replica, then marks the slab free
//!    in the directories, from the last replica to the primary: once free on the primary, the slab
//!    may be taken for any table ([`crate::space::slabs`]). Replicas succeed the primary in order,
//!    so when a promoted copy shows a slab as free, all later copies do.
//! 5. The catalogue marks the table as gone, and then the membership ends the clearing. Nodes that
//!    have found memory full look for slabs again.
//!
//! # If a node stops at any step
//! After step 1 any process reading the catalogue goes on; every process reads the catalogue now
//! and then, and before creating a table. After step 3 the claiming member goes on; if the claimer
//! is expelled another member repeats the work, once the claimer's transactions are settled and no
//! verb of the claimer can land any more. A slab belongs to the table as long as the primary says
//! so: marks are swaps of the table's own entry, and a repeated mark leaves a slab unchanged that
//! another table has got. If a memory node is lost, the work begins anew on the remaining nodes.
//!
//! # Limits
//! Clearing is slow: half of the time is left to transactions. Memory that a process took for an
//! index and lost is not freed: only the index that the catalogue names is cleared.

use std::rc::Rc;
use std::sync::PoisonError;
use std::time::Duration;

use lotus_authority::Authority;
use lotus_fabric::ids::TableId;
use lotus_fabric::lane::Batch;
use lotus_fabric::verbs::MAX_VERB_BYTES;
use lotus_mvcc::TableDef;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::{FREE_SLAB, RegionLayout, SLAB_BYTES, SlabEntry, SlabKind};
use lotus_points::point;
use lotus_recovery::Membership;
use lotus_router::{GroupId, Placement};
use lotus_sabotage::{Rule, broken};

use crate::memory_nodes::fence::{Stop, until_done};
use crate::node::agreed::catalogue::{Catalogue, Demotion};
use crate::node::coordinator::Coordinator;
use crate::node::shared::Shared;
use crate::node::verbs::{Halted, RETRY_PAUSE};

/// Begins to clear a dropped table, if any, and if the cluster is at rest. Returns the current
/// membership, unless it is `now`.
pub(crate) async fn begin(coordinator: &Coordinator, now: &Membership) -> Option<Membership> {
    let (me, shared) = (coordinator.node.id, &coordinator.shared);
    if now.clearing().is_some() || !now.may_resume() || shared.dropped_table().is_none() {
        return None;
    }
    // Another member may have cleared the table since this process read the catalogue.
    if !shared.learn_tables_apart().await {
        return None;
    }
    let table = shared.dropped_table()?;
    // If the authority does not answer, the next turn tries again.
    let begun = coordinator.change(|now| now.begin_clearing(me, table)).await.ok()?.membership();
    point!(me.0, ClearingBegun, if begun.clearing().is_some());
    Some(begun)
}

/// Clears the dropped table in a task beside the turns, if the work is claimed by this node or by
/// nobody.
pub(crate) fn tend(coordinator: &Rc<Coordinator>, now: &Membership) {
    let me = coordinator.node.id;
    let concerns = now.clearing().is_some_and(|clearing| clearing.by() == Some(me))
        || now.claim_clearing(me).is_some();
    if !concerns || coordinator.clears.replace(true) {
        return;
    }
    let of = Rc::clone(coordinator);
    coordinator.executor.spawn(async move {
        match clear(&of).await {
            // A memory node was lost, or the authority does not answer: a later turn begins anew.
            None | Some(Ok(()) | Err(Stop::Halted(Halted::Left))) => {}
            Some(Err(_)) => of.node.expel(),
        }
        of.clears.set(false);
    });
}

/// Claims the work and does it; `None` if another member has the claim, or the authority does not
/// answer.
async fn clear(coordinator: &Coordinator) -> Option<Result<(), Stop>> {
    let me = coordinator.node.id;
    let claimed = coordinator.change(|now| now.claim_clearing(me)).await.ok()?.membership();
    let table = claimed.clearing().filter(|clearing| clearing.by() == Some(me))?.table();
    let placed = coordinator.configuration.placed();
    let is_open = placed >= claimed.reduced() && claimed.may_resume();
    if !is_open && !broken(Rule::AllLetGoFirst) {
        // This coordinator has not heard of all acknowledgements yet; or the work was claimed
        // before, and not all have acknowledged the loss of a memory node since: a later turn goes
        // on.
        return None;
    }
    debug_assert!(
        claimed.may_resume() || broken(Rule::AllLetGoFirst),
        "I290: memory is given back when no node has anything under way on its table"
    );
    point!(me.0, ClearingClaimed);
    let learn = |shared: &Shared| shared.learn_tables().is_ok();
    if let Err(stop) = until_done(coordinator, || false, learn).await {
        return Some(Err(stop));
    }
    if let Some(def) = coordinator.shared.table_with_memory(table) {
        let placement = Placement::clone(&coordinator.placement());
        for (group, _) in placement.groups() {
            if let Err(why) = clear_group(coordinator, &def, group).await {
                return Some(Err(why.into()));
            }
        }
        if placed != coordinator.configuration.placed() {
            return Some(Err(Halted::Left.into()));
        }
        note_gone(coordinator, table).await?;
    }
    while !coordinator.node.has_failed() {
        if coordinator.change(|now| now.finish_clearing(me, table)).await.is_ok() {
            break;
        }
        coordinator.executor.sleep(RETRY_PAUSE).await;
    }
    Some(Ok(()))
}

/// Says in the catalogue that a table is gone, and repeats this until the authority answers. `None`
/// once the node has failed.
async fn note_gone(coordinator: &Coordinator, table: TableId) -> Option<()> {
    let shared = &coordinator.shared;
    let named = (shared.placement.group_count(), shared.names.proposed());
    while !coordinator.node.has_failed() {
        let demote = move |authority: &dyn Authority| {
            Ok(Catalogue::demote(authority, named, table, Demotion::Clear))
        };
        if let Ok(Ok(catalogue)) = coordinator.consult(demote).await {
            // The returned catalogue may be outdated by now, which does no harm.
            coordinator.shared.install(&catalogue).ok()?;
            point!(coordinator.node.id.0, TableGone);
            return Some(());
        }
        coordinator.executor.sleep(RETRY_PAUSE).await;
    }
    None
}

/// Zeroes a table's slabs in a group on all replicas, and marks the slabs free.
async fn clear_group(
    coordinator: &Coordinator,
    table: &TableDef,
    group: GroupId,
) -> Result<(), Halted> {
    let slabs = slabs_of(coordinator, table, group).await?;
    let all = slabs.len();
    for (place, (slab, entry)) in slabs.into_iter().enumerate() {
        let begun = coordinator.executor.now();
        if !broken(Rule::FreeSlabsAreZero) {
            for at in (slab..slab + SLAB_BYTES).step_by(AT_ONCE * MAX_VERB_BYTES) {
                let end = slab + SLAB_BYTES;
                coordinator.insist_here(|batch| zero(coordinator, batch, group, at, end)).await?;
            }
        }
        point!(coordinator.node.id.0, SlabZeroed, place, all);
        mark_free(coordinator, group, slab, entry).await?;
        point!(coordinator.node.id.0, SlabFreed, place, all);
        let spent = coordinator.executor.now().since(begun);
        // Without the limit, a memory node that was slow to answer would make the pause as long.
        coordinator.executor.sleep(spent.min(LONGEST_PAUSE)).await;
    }
    Ok(())
}

/// Longest pause between two slabs.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Marks a slab free, on the primary last. The slab is zero on all replicas.
async fn mark_free(
    coordinator: &Coordinator,
    group: GroupId,
    slab: u64,
    entry: SlabEntry,
) -> Result<(), Halted> {
    debug_assert!(slab.is_multiple_of(SLAB_BYTES), "I291: whole slabs are given back");
    let copies = coordinator.replicas(group).members().len();
    for copy in (0..copies).rev() {
        let swap = |batch: &mut Batch| {
            // Fewer copies, if a memory node was lost meanwhile: the remaining copies have moved
            // up.
            if let Some(replica) = coordinator.replicas(group).members().get(copy) {
                let word = replica.at(RegionLayout::directory_word(slab));
                batch.compare_and_swap(word, entry.encode(), FREE_SLAB);
            }
        };
        coordinator.insist_here(swap).await?;
    }
    Ok(())
}

/// Number of WRITEs of the largest size per replica in a batch.
const AT_ONCE: usize = 4;

/// Adds WRITEs of zeroes from `at` on, at most [`AT_ONCE`] for each replica, and none beyond `end`.
fn zero(coordinator: &Coordinator, batch: &mut Batch, group: GroupId, at: u64, end: u64) {
    for at in (at..end).step_by(MAX_VERB_BYTES).take(AT_ONCE) {
        let zeroes = batch.stage(MAX_VERB_BYTES.min((end - at) as usize));
        batch.words_mut(zeroes).fill(0);
        for replica in coordinator.replicas(group).members() {
            batch.write(replica.at(at), zeroes);
        }
    }
}

/// Slabs of a group that belong to the table by the primary's directory.
async fn slabs_of(
    coordinator: &Coordinator,
    table: &TableDef,
    group: GroupId,
) -> Result<Vec<(u64, SlabEntry)>, Halted> {
    let layout = &coordinator.shared.region;
    let place = usize::from(group.0);
    let base = table.geometry().bases()[place];
    let index = base..base + table.geometry().shape().index_bytes(place);
    // A stretch that was taken for an index and not used may carry the table's number.
    let is_its = |slab: u64, entry: &SlabEntry| {
        entry.table == table.id() && (entry.kind != SlabKind::Index || index.contains(&slab))
    };
    let mut slabs = Vec::new();
    let mut slab = layout.first_slab();
    while slab < layout.end() {
        let left = ((layout.end() - slab) / SLAB_BYTES) as usize * WORD_BYTES;
        let read = |batch: &mut Batch| {
            let at = coordinator.primary(group).at(RegionLayout::directory_word(slab));
            batch.read(at, left.min(MAX_VERB_BYTES))
        };
        let (done, words) = coordinator.insist_here(read).await?;
        for word in done.words(words) {
            let entry = SlabEntry::decode(*word).filter(|entry| is_its(slab, entry));
            slabs.extend(entry.map(|entry| (slab, entry)));
            slab += SLAB_BYTES;
        }
    }
    Ok(slabs)
}

impl Coordinator {
    /// Gives up the coordinator's state for dropped tables.
    pub(crate) fn forget_dropped(&self) {
        self.forget_tables();
        let dropped: Vec<TableId> = {
            let tables = self.node.tables.read().unwrap_or_else(PoisonError::into_inner);
            let dropped = tables.iter().filter(|table| table.is_dropped());
            dropped.map(|table| table.def.id()).collect()
        };
        for table in &dropped {
            self.slabs.borrow_mut().forget(*table);
            self.retired.borrow_mut().forget(*table);
            self.node.slots.lock().forget(*table);
        }
        if !dropped.is_empty() {
            let in_use = |table| dropped.binary_search(&table).is_err();
            self.tombstones.retain(in_use);
            self.trims.retain(in_use);
            self.inner_nodes.retain(in_use);
        }
    }
}
