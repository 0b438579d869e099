//! Timestamp service of the configured kind (`docs/protocol.md`).

use lotus_mvcc::oracle::{OracleAnswer, OracleServer};
use lotus_points::point_here;
use std::sync::Arc;

use lotus_fabric::exec::Handle;
use lotus_fabric::ids::NodeId;
use lotus_fabric::rpc::Rpc;
use lotus_mvcc::Timestamp;
use lotus_mvcc::oracle::OracleClient;
use lotus_points::point;
use lotus_sabotage::{Rule, broken};

use crate::api::config::TimestampKind;
use crate::api::error::TxnError;
use crate::node::shared::{ComputeNode, Shared};
use crate::node::verbs::RETRY_PAUSE;

/// Lag of snapshots when their freshness is sabotaged, in nanoseconds.
const LAG_NS: u64 = 20_000;

pub(crate) enum Timestamps {
    Clock { shared: Arc<Shared>, executor: Handle },
    Oracle(OracleClient),
}

impl Timestamps {
    pub(crate) fn new(shared: &Arc<Shared>, node: &Arc<ComputeNode>, rpc: &Rpc) -> Self {
        match shared.config.timestamps {
            TimestampKind::Clock => {
                let executor = rpc.lane().executor().clone();
                Self::Clock { shared: Arc::clone(shared), executor }
            }
            TimestampKind::Oracle => {
                serve(shared, node, rpc);
                let oracle = node.members.eldest().unwrap_or(shared.peers[0].id);
                let (life, lease) = (node.incarnation, shared.config.lease);
                Self::Oracle(OracleClient::new(rpc.clone(), oracle, life, lease))
            }
        }
    }

    /// Draws a commit timestamp: later than every snapshot drawn before.
    #[inline]
    pub(crate) async fn commit(&self) -> Result<Timestamp, TxnError> {
        match self {
            // A recent time suffices: it only keeps timestamps near physical time.
            Self::Clock { shared, executor } => Ok(shared.clock.next(executor.recent().0)),
            Self::Oracle(client) => client.timestamp().await.map_err(|_| TxnError::Timeout),
        }
    }

    /// Returns a timestamp known to be issued: a lower bound of every snapshot drawn from now on.
    #[inline]
    pub(crate) fn issued(&self) -> Timestamp {
        match self {
            Self::Clock { shared, .. } => shared.clock.latest(),
            Self::Oracle(client) => client.latest(),
        }
    }

    /// Sends requests to `oracle` from now on, the first soon.
    pub(crate) fn turn_to(&self, oracle: NodeId, node: &Arc<ComputeNode>, executor: &Handle) {
        let Self::Oracle(client) = self else { return };
        if !client.turn_to(oracle) {
            return;
        }
        let (client, node, clock) = (client.clone(), Arc::clone(node), executor.clone());
        executor.spawn(async move {
            point!(node.id.0, Turn);
            while client.timestamp().await.is_err() && !node.has_failed() {
                // The request may have failed at once, for want of room.
                clock.sleep(RETRY_PAUSE).await;
            }
        });
    }

    /// Learns of timestamps issued to others, in the absence of own requests.
    pub(crate) async fn refresh(&self) {
        if let Self::Oracle(client) = self {
            // Without an answer the last known timestamp stays valid.
            let _ = client.timestamp().await;
        }
    }

    /// Draws a snapshot: at least every timestamp issued before this call (H18).
    #[inline]
    pub(crate) async fn snapshot(&self) -> Result<Timestamp, TxnError> {
        let latest = match self {
            Self::Clock { shared, .. } => shared.clock.latest(),
            Self::Oracle(client) => client.timestamp().await.map_err(|_| TxnError::Timeout)?,
        };
        if broken(Rule::SnapshotsAreFresh) {
            let stale = Timestamp::new(latest.raw().saturating_sub(LAG_NS)).unwrap_or(latest);
            return Ok(stale.max(Timestamp::LOADED));
        }
        Ok(latest)
    }
}

/// Answers timestamp requests at this coordinator, once this node may serve.
pub(crate) fn serve(shared: &Arc<Shared>, node: &Arc<ComputeNode>, rpc: &Rpc) {
    if shared.config.lease.is_none() && node.index == 0 {
        node.oracle.open(Timestamp::MAX);
    }
    let (shared, node) = (Arc::clone(shared), Arc::clone(node));
    OracleServer::serve(rpc, move |asker, now| {
        let Some(place) = shared.index_of(asker.at.node) else { return OracleAnswer::Refused };
        let answer = node.oracle.answer(place, asker, now);
        point_here!(node.id.0, Answer);
        answer
    });
}
