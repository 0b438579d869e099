//! Orders to move shards, waiting at a node.

use crate::api::moves::{MoveError, Moved};
use async_channel::Sender;
use lotus_fabric::ids::{NodeId, ShardId};
use lotus_router::ShardEpoch;

/// Shards to give away, and the channel for the outcome.
pub(crate) struct Order {
    pub(crate) shards: Vec<ShardId>,
    /// Shard epochs that must still hold; empty for an order to any owner in any epoch.
    pub(crate) since: Vec<ShardEpoch>,
    pub(crate) to: NodeId,
    pub(crate) reply: Sender<Result<Moved, MoveError>>,
}
