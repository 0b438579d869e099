//! Load on RedLock: a server that is a Redis, and the clients' way to it.

use std::sync::Arc;
use std::time::Duration;

use async_channel::Receiver;
use lotus_fabric::ids::{Endpoint, LaneId, NodeId};
use lotus_fabric::machines::{Machines, Program};
use lotus_fabric::rpc::Rpc;
use lotus_locks::Member;
use lotus_locks::redlock::rules::Times;
use lotus_locks::redlock::{RedLockClient, RedisCore, RpcLink, SharedRedis};

use super::kept::Service;
use crate::contract::deployment::DeployError;
use crate::lanes::{Course, refused};

/// Streams of random numbers from here on are those of tokens: streams of clients are below.
const TOKENS: u64 = 1 << 56;

/// One server.
pub(super) struct RedisService {
    at: Endpoint,
    redis: SharedRedis,
    times: Times,
    /// Time of a command.
    cost: Duration,
}

impl RedisService {
    /// A server on this node, which takes so long for a command.
    pub(super) fn new(node: NodeId, times: Times, cost: Duration) -> Self {
        let at = Endpoint { node, lane: LaneId(0) };
        Self { at, redis: SharedRedis::default(), times, cost }
    }
}

impl Service for RedisService {
    type Locker = RedLockClient;

    fn start<M: Machines>(
        &self,
        machines: &M,
        course: &Arc<Course>,
        stopped: &Receiver<()>,
    ) -> Result<Vec<(NodeId, M::Core)>, DeployError> {
        let (fabric, course, stopped) = (machines.fabric(), Arc::clone(course), stopped.clone());
        let (at, redis, cost, toll) = (self.at, self.redis.clone(), self.cost, machines.toll());
        let program: Program = Box::new(move |executor| {
            let toll = toll.map(|charge| -> Box<dyn Fn()> { Box::new(move || charge(cost)) });
            let core = RedisCore::open(executor, &*fabric, at, redis, toll);
            if let Err(error) = &core {
                course.progress().fail(error.to_string());
            }
            Box::pin(async move {
                // It serves until the end.
                let _ = stopped.recv().await;
                drop(core);
            })
        });
        Ok(vec![(at.node, machines.start(at.node, "redis", program).map_err(refused)?)])
    }

    fn open(&self, rpc: &Rpc, member: Member, _course: &Course) -> RedLockClient {
        let executor = rpc.lane().executor().clone();
        let lane = rpc.lane().at().lane.0;
        let rng = executor.env().rng(TOKENS | u64::from(member.node.0) << 16 | u64::from(lane));
        RedLockClient::new(executor, (member.life, lane), self.times, rng, |replies| {
            RpcLink::open(rpc, [self.at], replies)
        })
    }

    fn used(&self) -> usize {
        self.redis.used()
    }
}
