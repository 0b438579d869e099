//! Orders: requests to the owner of shards, on any node, to give the shards away.
//!
//! # What it is
//! Every node accepts requests to move shards of any owner. A node that does not own the shards
//! reads the owner from the memory pool, and asks the owner's coordinator 0, which [hands
//! over](crate::shards::hand_over) as for a local request. The asker repeats its message until the
//! answer is an outcome:
//!
//! | message | words |
//! |---|---|
//! | order | its number; the receiver; for each shard, its number and the epoch of its owner |
//! | under way | [`UNDER_WAY`] |
//! | done | [`DONE`], the interruption in nanoseconds, the stragglers |
//! | refused | [`REFUSED`], the error, its shard or node |
//!
//! # Why repeated or late messages do no harm
//! A node has one order under way at a time, and numbers its orders. The owner remembers the last
//! order of each asker: a repeated number is answered with the state of the order, and a lower
//! number is ignored. Moreover, an order names epochs. Once a shard has moved, by this order or
//! another, its epoch has changed, and the order is refused.
//!
//! # If a node stops anywhere
//! An order is carried out even if its asker stops. If the owner does not answer, the asker reads
//! the memory pool again: if the words show the move, the order was carried out. Otherwise the
//! outcome is unknown ([`MoveError::NoAnswer`]), unless the owner is expelled.
//!
//! # What it is not
//! Needed for anything but convenience: an owner's own decisions to give shards away
//! ([`crate::shards::balance`]) do not use orders.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use async_channel::Receiver;
use lotus_fabric::ids::{Endpoint, Incarnation, LaneId, NodeId, ShardId};
use lotus_fabric::rpc::Service;
use lotus_router::{Owner, ShardEpoch};

use crate::api::moves::{MoveError, Moved};
use crate::node::coordinator::Coordinator;
use crate::node::messages::{decode, encode};
use crate::node::peers::moves::Order;
use crate::node::verbs::Fenced;
use crate::shards::hand_over::MOST_AT_ONCE;

/// RPC service for orders.
const SERVICE: Service = Service(4);
/// Interval between an asker's queries for the outcome of an order.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Bits of an order's number below the bits of the asker's life.
const ORDER_BITS: u32 = 48;

const UNDER_WAY: u64 = 1;
const DONE: u64 = 2;
const REFUSED: u64 = 3;

/// State of an order at its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OrderAnswer {
    UnderWay,
    Over(Result<Moved, MoveError>),
}

/// Last order of each asker, remembered at the owner.
#[derive(Default)]
struct ReceivedOrders {
    last: BTreeMap<NodeId, ReceivedOrder>,
}

struct ReceivedOrder {
    number: u64,
    outcome: Receiver<Result<Moved, MoveError>>,
    /// Outcome received from the channel.
    known: Option<Result<Moved, MoveError>>,
}

impl ReceivedOrders {
    /// Returns the answer to an order, and the order itself if new. Outdated or malformed orders
    /// get no answer.
    fn receive(&mut self, from: NodeId, message: &[u64]) -> (Option<OrderAnswer>, Option<Order>) {
        let [number, to, claims @ ..] = message else { return (None, None) };
        let (claims, rest) = claims.as_chunks();
        let last = self.last.get_mut(&from).filter(|last| last.number >= *number);
        if let Some(last) = last {
            return ((last.number == *number).then(|| last.answer()), None);
        }
        let to = u16::try_from(*to).ok().filter(|_| rest.is_empty());
        let (1..=MOST_AT_ONCE, Some(to)) = (claims.len(), to) else { return (None, None) };
        let (reply, outcome) = async_channel::bounded(1);
        self.last.insert(from, ReceivedOrder { number: *number, outcome, known: None });
        let shards = claims.iter().map(|[shard, _]| ShardId::from_low_bits(*shard)).collect();
        let since = claims.iter().map(|[_, epoch]| ShardEpoch(*epoch as u32)).collect();
        (Some(OrderAnswer::UnderWay), Some(Order { shards, since, to: NodeId(to), reply }))
    }
}

impl ReceivedOrder {
    fn answer(&mut self) -> OrderAnswer {
        if self.known.is_none() {
            self.known = match self.outcome.try_recv() {
                Ok(outcome) => Some(outcome),
                Err(async_channel::TryRecvError::Empty) => None,
                Err(async_channel::TryRecvError::Closed) => Some(Err(MoveError::Failed)),
            };
        }
        self.known.map_or(OrderAnswer::UnderWay, OrderAnswer::Over)
    }
}

impl OrderAnswer {
    fn to_words(self) -> Vec<u64> {
        match self {
            Self::UnderWay => vec![UNDER_WAY],
            Self::Over(Ok(moved)) => {
                vec![DONE, moved.interruption.as_nanos() as u64, moved.stragglers as u64]
            }
            Self::Over(Err(error)) => {
                let (code, detail) = match error {
                    MoveError::NoSuchNode(node) => (1, node as u64),
                    MoveError::NoOwners => (2, 0),
                    MoveError::NotOwner(shard) => (3, u64::from(shard.raw())),
                    MoveError::Unreachable => (4, 0),
                    MoveError::Held => (5, 0),
                    MoveError::Failed => (6, 0),
                    MoveError::Exhausted => (7, 0),
                    // Requests refused to the caller never became orders.
                    MoveError::NoAnswer | MoveError::Misuse(_) => (8, 0),
                };
                vec![REFUSED, code, detail]
            }
        }
    }

    /// Decodes an answer; `None` if malformed.
    fn from_words(words: &[u64]) -> Option<Self> {
        let error = |code, detail: u64| {
            Some(match code {
                1 => MoveError::NoSuchNode(detail as usize),
                2 => MoveError::NoOwners,
                3 => MoveError::NotOwner(ShardId::from_low_bits(detail)),
                4 => MoveError::Unreachable,
                5 => MoveError::Held,
                6 => MoveError::Failed,
                7 => MoveError::Exhausted,
                8 => MoveError::NoAnswer,
                _ => return None,
            })
        };
        match *words {
            [UNDER_WAY] => Some(Self::UnderWay),
            [DONE, interruption, stragglers] => {
                let interruption = Duration::from_nanos(interruption);
                Some(Self::Over(Ok(Moved { interruption, stragglers: stragglers as usize })))
            }
            [REFUSED, code, detail] => error(code, detail).map(|error| Self::Over(Err(error))),
            _ => None,
        }
    }
}

/// Serves orders of other nodes, at coordinator 0.
pub(crate) fn serve(coordinator: &Rc<Coordinator>) {
    if coordinator.thread != 0 {
        return;
    }
    let (serving, mut received) = (Rc::downgrade(coordinator), ReceivedOrders::default());
    let mut receive = move |from: NodeId, message: &[u8]| {
        let coordinator = serving.upgrade().filter(|one| !one.node.has_failed())?;
        let (answer, order) = received.receive(from, &decode(message)?);
        // The node takes orders as long as it lives.
        order.into_iter().for_each(|order| _ = coordinator.node.orders.0.try_send(order));
        answer
    };
    coordinator.rpc.serve(
        SERVICE,
        Box::new(move |responder, message| {
            if let Some(answer) = receive(responder.from().node, message) {
                responder.respond(&encode(&answer.to_words()));
            }
        }),
    );
}

/// Number before the first order of a life, above the numbers of earlier lives, which an owner may
/// remember. Clocks may be set back between two lives.
fn first_number(life: Incarnation) -> u64 {
    u64::from(life.raw()) << ORDER_BITS
}

/// Forwards move requests for shards of other owners, for as long as this node lives.
pub(crate) async fn keep(coordinator: &Coordinator) {
    if coordinator.thread != 0 {
        return;
    }
    let mut number = first_number(coordinator.node.incarnation);
    while let Ok(order) = coordinator.node.passed_on.1.recv().await {
        number += 1;
        coordinator.pass_on(number, order).await;
    }
}

impl Coordinator {
    /// Whether another node must carry out an order.
    pub(crate) fn is_for_another(&self, order: &Order) -> bool {
        debug_assert!(!order.shards.is_empty(), "I95: an order names shards");
        order.since.is_empty() && !self.node.shards.keeps(order.shards[0], self.node.id)
    }

    /// Checks that the owner epochs named by an order, if any, are current.
    pub(crate) fn check_epochs(&self, order: &Order) -> Result<(), MoveError> {
        debug_assert!(
            order.since.is_empty() || order.since.len() == order.shards.len(),
            "I95: an order names the epoch of each shard, or none"
        );
        let mut named = order.shards.iter().zip(&order.since);
        let stale = named.find(|(shard, epoch)| self.node.shards.owner(**shard).epoch != **epoch);
        stale.map_or(Ok(()), |(shard, _)| Err(MoveError::NotOwner(*shard)))
    }

    async fn pass_on(&self, number: u64, order: Order) {
        let outcome = match self.only_owner(&order.shards).await {
            Ok((owner, since)) if owner == self.node.id => {
                // The node has only now learned of its ownership.
                let _ = self.node.orders.0.try_send(Order { since, ..order });
                return;
            }
            Ok((owner, since)) => self.ask(owner, number, &order, &since).await,
            Err(error) => Err(error),
        };
        // The caller may not be waiting for the outcome.
        let _ = order.reply.try_send(outcome);
    }

    /// Returns the single owner of these shards by the words in the memory pool, and the epochs.
    async fn only_owner(&self, shards: &[ShardId]) -> Result<(NodeId, Vec<ShardEpoch>), MoveError> {
        let owners = self.owners_in_pool(shards).await?;
        debug_assert_eq!(owners.len(), shards.len(), "I95: each shard of an order has an owner");
        let first = owners[0].node;
        let other = owners.iter().zip(shards).find(|(owner, _)| owner.node != first);
        match other {
            Some((_, shard)) => Err(MoveError::NotOwner(*shard)),
            None if self.is_out(first) => Err(MoveError::Failed),
            None => Ok((first, owners.iter().map(|owner| owner.epoch).collect())),
        }
    }

    async fn owners_in_pool(&self, shards: &[ShardId]) -> Result<Vec<Owner>, MoveError> {
        let mut all = Vec::with_capacity(usize::from(ShardId::COUNT));
        let read = self.refresh_owners(|_, owner| all.push(owner)).await;
        read.map_err(|Fenced| {
            self.node.expel();
            MoveError::NoAnswer
        })?;
        Ok(shards.iter().map(|shard| all[usize::from(shard.raw())]).collect())
    }

    fn is_out(&self, node: NodeId) -> bool {
        self.node.members.with_expelled(|out| out.iter().any(|(lost, _)| *lost == node))
    }

    /// Repeats the request to `owner` until the answer is an outcome, or the owner stays silent.
    async fn ask(
        &self,
        owner: NodeId,
        number: u64,
        order: &Order,
        since: &[ShardEpoch],
    ) -> Result<Moved, MoveError> {
        let at = Endpoint { node: owner, lane: LaneId(0) };
        let claims = order.shards.iter().zip(since);
        let claims = claims.flat_map(|(shard, epoch)| [u64::from(shard.raw()), u64::from(epoch.0)]);
        let words: Vec<u64> = [number, u64::from(order.to.0)].into_iter().chain(claims).collect();
        let message = encode(&words);
        while !self.node.has_failed() {
            let Ok(reply) = self.rpc.call(at, SERVICE, &message, self.patience()).await else {
                return self.what_became_of(order, since).await;
            };
            match decode(&reply).and_then(|words| OrderAnswer::from_words(&words)) {
                Some(OrderAnswer::UnderWay) => self.executor.sleep(LOOK_AGAIN).await,
                Some(OrderAnswer::Over(outcome)) => return outcome,
                None => break,
            }
        }
        Err(MoveError::NoAnswer)
    }

    /// Derives the outcome of an unanswered order from the memory pool.
    async fn what_became_of(
        &self,
        order: &Order,
        since: &[ShardEpoch],
    ) -> Result<Moved, MoveError> {
        let owners = self.owners_in_pool(&order.shards).await?;
        let mut all = owners.iter().zip(since);
        let moved = |(now, since): (&Owner, &ShardEpoch)| {
            now.node == order.to && Some(now.epoch.0) == since.0.checked_add(1)
        };
        if all.all(moved) {
            return Ok(Moved { interruption: Duration::ZERO, stragglers: 0 });
        }
        let is_out = owners.iter().any(|owner| self.is_out(owner.node));
        Err(if is_out { MoveError::Failed } else { MoveError::NoAnswer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers were those of the clock: a node that came back after its clock had been set back
    /// moved no shards of others until the clock had caught up.
    #[test]
    fn orders_of_a_later_life_have_higher_numbers_whatever_the_clock_says() {
        let [earlier, later] =
            [7, 8].map(|life| first_number(Incarnation::new(life).expect("it fits")));
        let mut received = ReceivedOrders::default();
        let order = |number| [number, 2, 3, 9];
        assert!(received.receive(ASKER, &order(earlier + (1 << 40))).1.is_some());
        assert!(received.receive(ASKER, &order(later + 1)).1.is_some());
        assert_eq!(received.receive(ASKER, &order(earlier + (1 << 40) + 1)).0, None, "it is over");
    }

    const ASKER: NodeId = NodeId(7);
    const OTHER: NodeId = NodeId(8);
    /// Order 5: shard 3, under epoch 9, goes to node 2.
    const ORDER: [u64; 4] = [5, 2, 3, 9];

    #[test]
    fn an_order_that_comes_twice_is_carried_out_once() {
        let mut received = ReceivedOrders::default();
        let (answer, order) = received.receive(ASKER, &ORDER);
        let order = order.expect("it is new");
        assert_eq!(answer, Some(OrderAnswer::UnderWay));
        assert_eq!((order.to, &order.shards[..]), (NodeId(2), &[ShardId::from_low_bits(3)][..]));
        assert_eq!(order.since, [ShardEpoch(9)]);
        let again = |received: &mut ReceivedOrders| {
            let (answer, order) = received.receive(ASKER, &ORDER);
            assert!(order.is_none(), "once is enough");
            answer
        };
        assert_eq!(again(&mut received), Some(OrderAnswer::UnderWay));
        order.reply.try_send(Err(MoveError::Held)).expect("the order is waited for");
        for _ in 0..2 {
            assert_eq!(again(&mut received), Some(OrderAnswer::Over(Err(MoveError::Held))));
        }
        // The next number is a new order, even with the same contents.
        let next = [6, 2, 3, 9];
        assert!(received.receive(ASKER, &next).1.is_some());
        assert_eq!(again(&mut received), None, "nobody waits for that answer any more");
        assert!(received.receive(OTHER, &ORDER).1.is_some(), "askers have numbers of their own");
    }

    #[test]
    fn an_order_that_is_dropped_has_failed() {
        let mut received = ReceivedOrders::default();
        drop(received.receive(ASKER, &ORDER));
        let failed = OrderAnswer::Over(Err(MoveError::Failed));
        assert_eq!(received.receive(ASKER, &ORDER).0, Some(failed));
    }

    #[test]
    fn what_is_no_order_is_not_answered() {
        let mut received = ReceivedOrders::default();
        let too_many = [&[5, 2][..], &[1; 2 * (MOST_AT_ONCE + 1)]].concat();
        for words in [&[][..], &[5], &[5, 2], &[5, 2, 3], &[5, 1 << 16, 3, 9], &too_many] {
            let (answer, order) = received.receive(ASKER, words);
            assert!(answer.is_none() && order.is_none(), "{words:?}");
        }
    }

    #[test]
    fn answers_survive_the_way() {
        let moved = Moved { interruption: Duration::from_nanos(7), stragglers: 2 };
        let errors = [
            MoveError::NoSuchNode(3),
            MoveError::NoOwners,
            MoveError::NotOwner(ShardId::from_low_bits(5)),
            MoveError::Unreachable,
            MoveError::Held,
            MoveError::Failed,
            MoveError::Exhausted,
            MoveError::NoAnswer,
        ];
        let over = errors.into_iter().map(Err).chain([Ok(moved)]).map(OrderAnswer::Over);
        for answer in over.chain([OrderAnswer::UnderWay]) {
            assert_eq!(OrderAnswer::from_words(&answer.to_words()), Some(answer));
        }
        for words in [&[][..], &[9], &[UNDER_WAY, 1], &[REFUSED, 99, 0]] {
            assert_eq!(OrderAnswer::from_words(words), None, "{words:?}");
        }
    }
}
