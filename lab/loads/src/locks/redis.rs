//! Load on RedLock: a node that is a Redis, or real servers, and the clients' links to the servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Receiver;
use lotus_benchmarks::deployment::DeployError;
use lotus_fabric::ids::{Endpoint, LaneId, NodeId};
use lotus_fabric::machines::{Core, Machines, Program};
use lotus_fabric::rpc::Rpc;
use lotus_locks::Member;
use lotus_locksystems::redlock::rules::Times;
use lotus_locksystems::redlock::{
    Prefix, RedLockClient, RedisCore, RedisLink, RedisServers, Replies, RpcLink, SharedRedis,
    SocketLink,
};

use super::server_locks::Service;
use crate::lanes::{RunContext, refused};

/// First random stream of tokens: streams of clients have lower numbers.
const TOKENS: u64 = 1 << 56;

/// A node that is a Redis server.
pub(super) struct RedisService {
    at: Endpoint,
    redis: SharedRedis,
    times: Times,
    /// Time of a command.
    cost: Duration,
}

impl RedisService {
    /// A server on this node, which takes time `cost` for a command.
    pub(super) fn new(node: NodeId, times: Times, cost: Duration) -> Self {
        let at = Endpoint { node, lane: LaneId(0) };
        Self { at, redis: SharedRedis::default(), times, cost }
    }
}

impl Service for RedisService {
    type Locker = RedLockClient;

    fn start(
        &self,
        machines: &dyn Machines,
        run_context: &Arc<RunContext>,
        stopped: &Receiver<()>,
    ) -> Result<Vec<(NodeId, Core)>, DeployError> {
        let (fabric, run_context, stopped) =
            (machines.fabric(), Arc::clone(run_context), stopped.clone());
        let (at, redis, cost, cpu_charge) =
            (self.at, self.redis.clone(), self.cost, machines.cpu_charge());
        let program: Program = Box::new(move |executor| {
            let cpu_charge =
                cpu_charge.map(|charge| -> Box<dyn Fn()> { Box::new(move || charge(cost)) });
            let core = RedisCore::open(executor, &*fabric, at, redis, cpu_charge);
            if let Err(error) = &core {
                run_context.progress().fail(error.to_string());
            }
            Box::pin(async move {
                // The core serves until the end.
                let _ = stopped.recv().await;
                drop(core);
            })
        });
        Ok(vec![(at.node, machines.start(at.node, "redis", program).map_err(refused)?)])
    }

    fn open(&self, rpc: &Rpc, member: Member, _run_context: &RunContext) -> RedLockClient {
        client(rpc, member, self.times, |replies| RpcLink::open(rpc, [self.at], replies))
    }

    fn used(&self) -> Result<usize, String> {
        Ok(self.redis.used())
    }
}

/// A lane's client over its link.
fn client(
    rpc: &Rpc,
    member: Member,
    times: Times,
    link: impl FnOnce(Replies) -> Box<dyn RedisLink>,
) -> RedLockClient {
    let executor = rpc.lane().executor().clone();
    let lane = rpc.lane().at().lane.0;
    let rng = executor.env().rng(TOKENS | u64::from(member.node.0) << 16 | u64::from(lane));
    RedLockClient::new(executor, (member.life, lane), times, rng, link)
}

/// Real servers, outside of the machines.
pub(super) struct RealRedis {
    servers: RedisServers,
    times: Times,
}

impl RealRedis {
    /// The servers at these addresses. The run has locks of its own: clients of other runs may use
    /// the same servers.
    ///
    /// # Errors
    /// [`DeployError`] if a server is missing or unsuitable, or time is virtual.
    pub(super) fn new(
        machines: &dyn Machines,
        addresses: &[SocketAddr],
        times: Times,
    ) -> Result<Self, DeployError> {
        if machines.cpu_charge().is_some() {
            return Err(refused("redis answers in real time, and these machines have none"));
        }
        let life = machines.outside().begin_counting();
        let run = format!("lotus-{}-{life:x}", std::process::id());
        let servers = RedisServers::new(addresses, Prefix::New(&run)).map_err(refused)?;
        servers.check().map_err(refused)?;
        Ok(Self { servers, times })
    }
}

impl Service for RealRedis {
    type Locker = RedLockClient;

    fn start(
        &self,
        _machines: &dyn Machines,
        _run_context: &Arc<RunContext>,
        _stopped: &Receiver<()>,
    ) -> Result<Vec<(NodeId, Core)>, DeployError> {
        Ok(Vec::new())
    }

    /// The use of the servers by a lane. Without a majority of the servers the run is over.
    fn open(&self, rpc: &Rpc, member: Member, run_context: &RunContext) -> RedLockClient {
        let (executor, progress) =
            (rpc.lane().executor().clone(), Arc::clone(run_context.progress()));
        client(rpc, member, self.times, |replies| {
            let loses = move |why| progress.fail(why);
            SocketLink::open(&self.servers, &executor, self.times, replies, loses)
        })
    }

    fn used(&self) -> Result<usize, String> {
        self.servers.used().map_err(|error| error.to_string())
    }
}
