//! The commit phase: log, data, timestamp, visible, unlock (LOTUS §5.1, phase 2).
//!
//! # The steps, and their purpose
//! 1. One batch to every memory node that holds a replica of a written row: the log entry, the
//!    records, the cells as INVISIBLE. Verbs of one connection take effect in order, so every node
//!    that has a cell also has the log entry, which names the whole write set (H12). A record for
//!    its cell's home slot travels in one WRITE with the cell.
//! 2. When every replica has these writes: the commit timestamp, while all locks are held (H1).
//! 3. The version words on all backups; wait. Now the outcome is certain.
//! 4. The version words on the primaries, which serve snapshot reads; wait (H3). The caller is told
//!    now, and not before: a memory node may be lost meanwhile (decision 0036).
//! 5. The rows' entries in this node's version table cache are renewed (H11), and the locks are
//!    released, remote locks by message. The slots of displaced versions become free for any use.
//!    Not earlier: until every copy of the cell names another slot, undoing the commit would leave
//!    two cells with one slot.
//!
//! # When something fails
//! Every refusal happens before step 1: cells, slots and memory are reserved by then. After that a
//! commit only goes forward. A failed verb is repeated after its connection was closed and re-made,
//! so that the first try cannot land later (H22); every verb of a commit may be repeated. Past the
//! deadline the caller is told `Unknown` and the slot keeps trying, with all locks held. Once this
//! node is fenced, the commit stops permanently, and recovery decides.

mod batches;
pub(crate) mod copy;
#[cfg(feature = "sabotage")]
mod pretend;
pub(crate) mod purge;
pub(crate) mod trim;

use std::cell::Cell;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Epoch, NodeId, NodeSet, RemoteAddr, TxnId};
use lotus_fabric::lane::{Batch, BatchError};
use lotus_fabric::verbs::VerbError;
use lotus_locktable::LockService;
use lotus_mvcc::Timestamp;
use lotus_mvcc::layout::cvt::Version;
use lotus_points::{point, posted};
use lotus_router::placement::LOG_REGION;
use lotus_router::{Replica, ReplicaSet};
use lotus_sabotage::{Rule, broken};

use crate::api::config::VisibleOrder;
use crate::api::error::TxnError;
use crate::node::coordinator::Coordinator;
use crate::node::verbs::{Fenced, RETRY_PAUSE};
use crate::txn::body::{Body, Change, Receipt};
use crate::txn::slot::Slot;

/// Commits the write set in `body`, and releases its locks.
pub(crate) async fn carry_out(slot: &Slot, mut body: Box<Body>) {
    #[cfg(feature = "sabotage")]
    if body.is_beside {
        return pretend::carry_out(slot, body).await;
    }
    let commit = Commit::of(slot, &body);
    let outcome = match broken(Rule::CellsBeginInvisible) {
        false => commit.carry_out(&mut body).await,
        true => commit.carry_out_in_one_step(&mut body).await,
    };
    match outcome {
        Ok(()) => slot.finish(body),
        // The buffers go with the slot: recovery releases their locks.
        Err(Fenced) => slot.expelled(commit.txn),
    }
}

/// Replicas that receive the version words of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replicas {
    /// All but the primary. A group with only one whole copy left includes that copy too: a commit
    /// must be on a whole copy before the caller is told.
    Backups,
    Primaries,
    All,
}

impl Replicas {
    /// Replicas to write last, after a first set was written by the placement of `placed`. If the
    /// placement has changed since, all replicas: primary and backup may have swapped roles,
    /// because a returning memory node takes its first place again (H23, I159).
    pub(crate) fn as_the_rest(self, coordinator: &Coordinator, placed: Epoch) -> Self {
        let same =
            placed == coordinator.configuration.placed() || broken(Rule::FormerPrimariesAreWritten);
        if same { self } else { Self::All }
    }

    pub(crate) fn of(self, set: &ReplicaSet) -> &[Replica] {
        debug_assert!(!set.members().is_empty(), "I101: every replica group keeps a copy");
        match self {
            Self::Backups if set.whole().len() == 1 => set.members(),
            Self::Backups => set.backups(),
            Self::Primaries => &set.members()[..1],
            Self::All => set.members(),
        }
    }

    /// Nodes of the replicas that [`Self::of`] returns.
    #[inline]
    fn nodes(self, set: &ReplicaSet) -> NodeSet {
        let primary = set.primary().node;
        let nodes = match self {
            Self::Backups if set.whole().len() > 1 => set.nodes().without(primary),
            Self::Primaries => primary.into(),
            Self::Backups | Self::All => set.nodes(),
        };
        debug_assert!(
            self.of(set).iter().map(|replica| replica.node).collect::<NodeSet>() == nodes,
            "the nodes are those of the replicas"
        );
        nodes
    }
}

/// Replicas that show a commit, and the placement by which they were written.
#[derive(Clone, Copy)]
struct Shown {
    on: Replicas,
    placed: Epoch,
}

pub(crate) struct Commit<'a> {
    pub(crate) slot: &'a Slot,
    txn: TxnId,
    /// End of the caller's wait; set at the first failure, since most commits see none.
    deadline: Cell<Option<Nanos>>,
}

impl<'a> Commit<'a> {
    pub(crate) fn of(slot: &'a Slot, body: &Body) -> Self {
        Self { slot, txn: body.held.txn(), deadline: Cell::new(None) }
    }

    pub(crate) fn txn(&self) -> TxnId {
        self.txn
    }

    /// Carries out the steps of the module docs in order. After the last step no replica has an
    /// INVISIBLE cell of the commit (I21).
    async fn carry_out(&self, body: &mut Body) -> Result<(), Fenced> {
        body.plan_commit(self.coordinator());
        self.write_invisible(body).await?;
        if broken(Rule::CommitsOutliveCallers) && !self.slot.awaits(self.txn) {
            self.coordinator().locks.release(&mut body.held);
            return Ok(());
        }
        let commit_ts = self.draw_timestamp().await?;
        body.check_timestamp(commit_ts);
        let shown = self.show_on_backups(body, commit_ts).await?;
        self.show_on_primaries(body, commit_ts, shown).await?;
        self.reply(body, commit_ts);
        self.unlock(body, commit_ts).await;
        Ok(())
    }

    /// Step 1: the log entry, the records, and the cells as INVISIBLE, on every replica.
    #[inline]
    async fn write_invisible(&self, body: &mut Body) -> Result<(), Fenced> {
        let coordinator = self.coordinator();
        if broken(Rule::LocksCoverCommit) {
            coordinator.locks.release(&mut body.held);
        }
        let version = Version::Invisible(self.txn);
        if broken(Rule::TimestampAfterCells) {
            let mut batch = coordinator.lane.batch();
            body.add_data(coordinator, self, version, &mut batch);
            drop(batch.post());
        } else {
            self.until_done(|batch| body.add_data(coordinator, self, version, batch)).await?;
        }
        point!(coordinator.node.id.0, CellsLanded);
        Ok(())
    }

    /// Step 3: the version words on the backups, or on all replicas if the order does not matter.
    #[inline]
    async fn show_on_backups(
        &self,
        body: &mut Body,
        commit_ts: Timestamp,
    ) -> Result<Shown, Fenced> {
        let coordinator = self.coordinator();
        let config = &coordinator.shared.config;
        let on = match config.visible_order {
            _ if broken(Rule::BackupsFirst) => Replicas::All,
            VisibleOrder::BackupsFirst if config.replicas > 1 => Replicas::Backups,
            _ => Replicas::All,
        };
        let placed = coordinator.configuration.placed();
        self.until_done(|batch| body.add_versions(coordinator, commit_ts, on, batch)).await?;
        if broken(Rule::UnlockLast) {
            coordinator.locks.release(&mut body.held);
        }
        if broken(Rule::RepliesComeLast) {
            self.reply(body, commit_ts);
        }
        Ok(Shown { on, placed })
    }

    /// Step 4: the version words on the primaries, unless they were written with the others.
    #[inline]
    async fn show_on_primaries(
        &self,
        body: &mut Body,
        commit_ts: Timestamp,
        shown: Shown,
    ) -> Result<(), Fenced> {
        if shown.on != Replicas::Backups {
            return Ok(());
        }
        let coordinator = self.coordinator();
        self.until_done(|batch| {
            let last = Replicas::Primaries.as_the_rest(coordinator, shown.placed);
            body.add_versions(coordinator, commit_ts, last, batch);
        })
        .await
    }

    /// Tells the caller, only when every copy shows the commit (I167). The backups may all be on
    /// lost memory nodes that only this node still reaches, because this node was expelled and does
    /// not know (H2, H3).
    fn reply(&self, body: &Body, commit_ts: Timestamp) {
        let receipt = Receipt { commit_ts: Some(commit_ts), snapshot: body.snapshot };
        self.slot.decide(self.txn, Ok(receipt));
    }

    /// Step 5: renews the cached CVTs of the rows, and releases the locks.
    #[inline]
    async fn unlock(&self, body: &mut Body, commit_ts: Timestamp) {
        let coordinator = self.coordinator();
        debug_assert!(self.slot.is_decided(), "I14: the caller is told before the locks go");
        point!(coordinator.node.id.0, Reply);
        body.renew_cached(coordinator, self.txn, commit_ts);
        for row in body.rows.iter().filter(|row| row.change == Change::Delete) {
            coordinator.tombstones.note(row.table, row.primary_key, commit_ts);
        }
        body.leave_slots(coordinator, commit_ts);
        coordinator.locks.release(&mut body.held);
        point!(coordinator.node.id.0, LocksReleased);
        coordinator.lane.mark_transaction();
    }

    /// Commits without in-doubt cells, to measure the cost of the visible step: draws the timestamp
    /// first and writes the cells with it. Recovery could not resolve such a commit.
    async fn carry_out_in_one_step(&self, body: &mut Body) -> Result<(), Fenced> {
        body.plan_commit(self.coordinator());
        let commit_ts = self.draw_timestamp().await?;
        let version = Version::Committed(commit_ts);
        self.until_done(|batch| body.add_data(self.coordinator(), self, version, batch)).await?;
        self.reply(body, commit_ts);
        self.unlock(body, commit_ts).await;
        Ok(())
    }

    pub(crate) fn coordinator(&self) -> &Coordinator {
        &self.slot.coordinator
    }

    /// Address of this slot's log entry on a memory node.
    #[inline]
    pub(crate) fn log_place(&self, memory_node: NodeId) -> RemoteAddr {
        RemoteAddr::new(memory_node, LOG_REGION, self.log_offset())
    }

    /// Offset of the log entry in the log region of every memory node.
    #[inline]
    fn log_offset(&self) -> u64 {
        let coordinator = self.coordinator();
        let slot = if broken(Rule::LogSlotsAreOwn) { 0 } else { self.slot.number };
        coordinator.shared.log.offset(coordinator.node.index as u16, slot)
    }

    /// Posts a batch built by `add`, and repeats it until every verb has taken effect.
    #[inline]
    pub(crate) async fn until_done(&self, mut add: impl FnMut(&mut Batch)) -> Result<(), Fenced> {
        let lane = &self.coordinator().lane;
        loop {
            let mut batch = lane.batch();
            add(&mut batch);
            let posted = posted!(batch.post());
            self.slot.step();
            match posted {
                Ok(_) => return Ok(()),
                Err(error) => Box::pin(self.recover(error)).await?,
            }
            if broken(Rule::FailedWritesAreRepeated) {
                return Ok(());
            }
        }
    }

    /// Re-makes the connections of failed verbs, however long it takes. The verbs are repeated only
    /// afterwards (I22).
    #[cold]
    async fn recover(&self, error: BatchError) -> Result<(), Fenced> {
        let coordinator = self.coordinator();
        for failure in error.failures() {
            let mut outcome = Err(failure.error);
            while let Err(error) = outcome {
                // An expelled node could wait for a memory node that the members have given up
                // (I155).
                if error == VerbError::Revoked || coordinator.node.has_failed() {
                    return Err(Fenced);
                }
                if coordinator.configuration.has_left(failure.node) {
                    break;
                }
                self.check_deadline();
                coordinator.executor.sleep(RETRY_PAUSE).await;
                outcome = coordinator.reconnect(failure.node).await;
            }
        }
        Ok(())
    }

    /// Step 2: draws the commit timestamp, and repeats the request until it is answered.
    #[inline]
    async fn draw_timestamp(&self) -> Result<Timestamp, Fenced> {
        let coordinator = self.coordinator();
        loop {
            let drawn = coordinator.timestamps.commit().await;
            // An expelled node may have asked an oracle that is expelled as well (I155). Even with
            // an answer, the node must make nothing visible any more: recovery decides.
            if coordinator.node.has_failed() {
                return Err(Fenced);
            }
            if let Ok(timestamp) = drawn {
                debug_assert!(
                    timestamp > Timestamp::LOADED,
                    "I154: a commit is later than what was loaded"
                );
                point!(coordinator.node.id.0, TimestampDrawn);
                return Ok(timestamp);
            }
            self.check_deadline();
            coordinator.executor.sleep(RETRY_PAUSE).await;
        }
    }

    /// Past the deadline, tells the caller that the outcome is unknown; the commit goes on, so
    /// "aborted" might be wrong (I23).
    #[cold]
    fn check_deadline(&self) {
        let coordinator = self.coordinator();
        let now = coordinator.executor.now();
        let limit = || now.after(coordinator.shared.config.commit_timeout);
        let deadline = self.deadline.get().unwrap_or_else(limit);
        self.deadline.set(Some(deadline));
        // While the authority is down, it is unknown whether a commit can be kept.
        if now >= deadline || coordinator.configuration.is_muted() {
            let aborted = broken(Rule::UnknownIsNotAborted);
            let error = if aborted { TxnError::Timeout } else { TxnError::Unknown(self.txn) };
            self.slot.decide(self.txn, Err(error));
        }
    }
}
