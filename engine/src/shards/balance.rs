//! Load balancing: measuring, publishing, and giving shards away (LOTUS §4.3).
//!
//! # What it is
//! With [`balance`](crate::ClusterBuilder::balance) every compute node measures the duration of its
//! transactions, and counts the lock requests for each of its shards. Once per interval the node's
//! coordinator 0 publishes both in the first group's header, reads the other nodes' figures, and
//! orders [hand-overs](crate::shards::hand_over) by the verdict of [`lotus_router::balance`].
//!
//! # What it is not
//! Exact. Counters are bumped without order, and a slow node publishes late; only speed depends on
//! the figures. Without the setting, counting and balancing are off.

use std::sync::atomic::Ordering;

use async_channel::{Receiver, TryRecvError};
use lotus_fabric::ids::ShardId;
use lotus_fabric::lane::{Batch, BatchError, Lane};
use lotus_fabric::verbs::MAX_VERB_BYTES;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::{LOADS_OFFSET, MAX_BEATS, RATES_OFFSET};
use lotus_router::balance::{Balancer, Gift, NodeLoad, ShardLoad, Verdict};
use lotus_router::{GroupId, MAX_COMPUTE_NODES, Placement};
use lotus_sabotage::{Rule, broken};

use crate::api::moves::{MoveError, Moved};
use crate::node::coordinator::Coordinator;
use crate::node::peers::load_counts::STUCK;
use crate::node::peers::moves::Order;
use crate::node::verbs::Fenced;

/// Group whose header page holds the words.
const LOADS_GROUP: GroupId = GroupId(0);
/// Number of words written in one batch.
const WRITES_AT_ONCE: usize = 256;
/// Result of an order.
type MoveOutcome = Result<Moved, MoveError>;

const _: () = assert!(MAX_COMPUTE_NODES <= MAX_BEATS, "each has a word");

/// Balances this node's load until the node is out; returns at once without the setting.
pub(crate) async fn keep(coordinator: &Coordinator) {
    let Some(interval) = coordinator.shared.config.balance else { return };
    let Some(counts) = coordinator.node.counts.as_ref().filter(|_| coordinator.thread == 0) else {
        return;
    };
    let (mut balancer, mut published) = (Balancer::default(), vec![0; usize::from(ShardId::COUNT)]);
    let mut ordered: Vec<Receiver<MoveOutcome>> = Vec::new();
    let mut placed = coordinator.configuration.placed();
    while !coordinator.node.has_failed() {
        coordinator.executor.sleep(interval).await;
        let (load, requests) = counts.take();
        if std::mem::replace(&mut placed, coordinator.configuration.placed())
            < coordinator.configuration.placed()
        {
            // A promoted copy has none of the published words: publish every word again.
            published.fill(u32::MAX);
        }
        let Ok(nodes) = coordinator.exchange_loads(load, &requests, &mut published).await else {
            return coordinator.node.expel();
        };
        ordered.retain(|outcome| matches!(outcome.try_recv(), Err(TryRecvError::Empty)));
        if !ordered.is_empty() {
            // Hand-overs under way change the loads: judge the loads after the hand-overs.
            balancer = Balancer::default();
            continue;
        }
        let node = &coordinator.node;
        let owned = |shard: &ShardId| node.shards.owner(*shard).node == node.id;
        let mine = ShardId::all().filter(owned).map(|shard| ShardLoad {
            shard,
            requests: u64::from(requests[usize::from(shard.raw())]),
        });
        let mut stuck = 0;
        if counts.is_paused() {
            balancer = Balancer::default();
            counts.stuck.store(stuck, Ordering::Relaxed);
            continue;
        }
        match balancer.judge(node.index, &nodes, &mine.collect::<Vec<_>>()) {
            Verdict::Keep => {}
            Verdict::Give(gifts) => ordered = coordinator.order(gifts),
            Verdict::TooHot(shard) => stuck = STUCK | u32::from(shard.raw()),
        }
        counts.stuck.store(stuck, Ordering::Relaxed);
    }
}

/// Reads the lock requests for each shard, as published by the shards' owners.
pub(crate) async fn read_rates(lane: &Lane, placement: &Placement) -> Result<Vec<u64>, BatchError> {
    let first = placement.replicas(LOADS_GROUP).primary().at(RATES_OFFSET);
    let bytes = usize::from(ShardId::COUNT) * WORD_BYTES;
    let mut batch = lane.batch();
    let piece = |at: usize| batch.read(first.plus(at as u64), MAX_VERB_BYTES.min(bytes - at));
    let pieces: Vec<_> = (0..bytes).step_by(MAX_VERB_BYTES).map(piece).collect();
    let done = batch.post().await?;
    Ok(pieces.into_iter().flat_map(|piece| done.words(piece).to_vec()).collect())
}

impl Coordinator {
    /// Publishes this node's load and reads the loads of all nodes; `None` for a node that is out.
    async fn exchange_loads(
        &self,
        load: NodeLoad,
        requests: &[u32],
        published: &mut [u32],
    ) -> Result<Vec<Option<NodeLoad>>, Fenced> {
        let (shared, node) = (&self.shared, &self.node);
        let changed: Vec<usize> =
            (0..requests.len()).filter(|shard| requests[*shard] != published[*shard]).collect();
        for some in changed.chunks(WRITES_AT_ONCE) {
            self.insist(|batch| {
                for shard in some {
                    let word = RATES_OFFSET + (shard * WORD_BYTES) as u64;
                    let primary = self.primary(LOADS_GROUP);
                    batch.write_word(primary.at(word), u64::from(requests[*shard]));
                }
            })
            .await?;
        }
        published.copy_from_slice(requests);
        let exchange = |batch: &mut Batch| {
            let primary = self.primary(LOADS_GROUP);
            let word = |index: usize| primary.at(LOADS_OFFSET + (index * WORD_BYTES) as u64);
            batch.write_word(word(node.index), load.to_word());
            batch.read(word(0), shared.peers.len() * WORD_BYTES)
        };
        let (done, all) = self.insist(exchange).await?;
        let loads = done.words(all).iter().enumerate().map(|(index, word)| {
            let load = NodeLoad::from_word(*word);
            let id = shared.peers[index].id;
            let counts = node.members.may_receive(id) || broken(Rule::TheLostReceiveNothing);
            (*word != 0 && counts).then_some(load)
        });
        Ok(loads.collect())
    }

    /// Orders the hand-over of shards, sequentially by receiver.
    fn order(&self, gifts: Vec<Gift>) -> Vec<Receiver<MoveOutcome>> {
        let order = |Gift { to, shards }| {
            debug_assert!(
                to != self.node.index && !shards.is_empty(),
                "I79: a gift moves shards to another node"
            );
            let (reply, outcome) = async_channel::bounded(1);
            let to = self.shared.peers[to].id;
            let since = shards.iter().map(|shard| self.node.shards.owner(*shard).epoch).collect();
            // The channel lives as long as the node.
            let _ = self.node.orders.0.try_send(Order { shards, since, to, reply });
            outcome
        };
        gifts.into_iter().map(order).collect()
    }
}
