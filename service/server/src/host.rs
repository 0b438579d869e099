//! The server's view of the cluster, independent of the machines.

use std::pin::Pin;
use std::time::Duration;

use lotus::{
    Cluster, ClusterError, CoordinatorFigures, Machines, MemoryFigures, MemoryStatus, Naming,
    NodeFigures, RowCounts, Seat, Session, ShardId, ShardOwner, Submitted, TableId, TableSpec,
};
use lotus_fabric::env::Env;

/// Time for which a transaction's code may hold up a thread before its node counts as unhealthy.
const HELD_UP: Duration = Duration::from_secs(1);

/// A job for one coroutine slot.
pub(crate) type SlotJob =
    Box<dyn FnOnce(Session) -> Pin<Box<dyn Future<Output = ()>>> + Send + 'static>;

/// The server's view of a cluster on any machines.
pub(crate) trait Host: Send + Sync {
    fn config(&self) -> &lotus::Config;
    fn clock(&self) -> Env;
    fn submit(&self, seat: Seat, job: SlotJob);
    fn tables(&self) -> Vec<(TableId, TableSpec)>;
    fn naming(&self) -> Option<Naming>;
    fn create_table(&self, spec: TableSpec, patience: Duration) -> Result<TableId, ClusterError>;
    fn drop_table(
        &self,
        name: &str,
        table: TableId,
        patience: Duration,
    ) -> Result<(), ClusterError>;
    fn shard_owner(&self, asked: usize, shard: ShardId) -> ShardOwner;
    fn node_figures(&self, compute_node: usize) -> NodeFigures;
    fn coordinator_figures(&self, seat: Seat) -> Submitted<CoordinatorFigures>;
    fn memory_figures(&self, compute_node: usize) -> Submitted<MemoryFigures>;
    fn recent_row_counts(&self, compute_node: usize, limit: Duration) -> Submitted<RowCounts>;
    fn takes_part(&self, compute_node: usize) -> bool;
    fn live_nodes(&self, asked: usize) -> Vec<(usize, u16)>;
    /// Whether a transaction's code holds up a coordinator of this node, and has for a while.
    fn is_held_up(&self, compute_node: usize) -> bool;
    fn silent_memory(&self, compute_node: usize) -> Vec<usize>;
    fn needed_memory(&self, compute_node: usize) -> Vec<usize>;
    fn memory_known(&self, compute_node: usize) -> MemoryStatus;
}

impl<M: Machines> Host for Cluster<M>
where
    Self: Send + Sync,
{
    fn config(&self) -> &lotus::Config {
        Self::config(self)
    }

    fn clock(&self) -> Env {
        self.machines().outside()
    }

    fn submit(&self, seat: Seat, job: SlotJob) {
        // The job reports its end to the waiting callers.
        let _: Submitted<()> = Self::submit(self, seat, |session| async move {
            job(session).await;
            Ok(())
        });
    }

    fn tables(&self) -> Vec<(TableId, TableSpec)> {
        Self::tables(self)
    }

    fn naming(&self) -> Option<Naming> {
        Self::naming(self)
    }

    fn create_table(&self, spec: TableSpec, patience: Duration) -> Result<TableId, ClusterError> {
        self.create_table_within(spec, patience)
    }

    fn drop_table(
        &self,
        name: &str,
        table: TableId,
        patience: Duration,
    ) -> Result<(), ClusterError> {
        self.drop_numbered(name, table, patience)
    }

    fn shard_owner(&self, asked: usize, shard: ShardId) -> ShardOwner {
        Self::shard_owner(self, asked, shard)
    }

    fn node_figures(&self, compute_node: usize) -> NodeFigures {
        Self::node_figures(self, compute_node)
    }

    fn coordinator_figures(&self, seat: Seat) -> Submitted<CoordinatorFigures> {
        Self::coordinator_figures(self, seat)
    }

    fn memory_figures(&self, compute_node: usize) -> Submitted<MemoryFigures> {
        Self::memory_figures(self, compute_node)
    }

    fn recent_row_counts(&self, compute_node: usize, limit: Duration) -> Submitted<RowCounts> {
        Self::recent_row_counts(self, compute_node, limit)
    }

    fn is_held_up(&self, compute_node: usize) -> bool {
        let held_up = Self::held_up(self);
        held_up.iter().any(|one| one.seat.compute_node == compute_node && one.since >= HELD_UP)
    }

    fn takes_part(&self, compute_node: usize) -> bool {
        Self::takes_part(self, compute_node)
    }

    fn live_nodes(&self, asked: usize) -> Vec<(usize, u16)> {
        Self::live_nodes(self, asked)
    }

    fn silent_memory(&self, compute_node: usize) -> Vec<usize> {
        Self::silent_memory(self, compute_node)
    }

    fn needed_memory(&self, compute_node: usize) -> Vec<usize> {
        Self::needed_memory(self, compute_node)
    }

    fn memory_known(&self, compute_node: usize) -> MemoryStatus {
        Self::memory_known(self, compute_node)
    }
}
