//! The nodes of a trial, and the cores that keep locks.

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, LaneId, NodeId};
use lotus_fabric::rpc::Rpc;
use lotus_fabric::transport::Fabric;
use lotus_locks::{Member, Roster};

use super::ServerTrial;
use super::faults::FaultPlan;
use super::load::MEMORY;
use super::load::Plan;
use super::locker::AnyLocker;
use crate::locker::Split;
use crate::redlock::rules::Times;
use crate::redlock::{RedLockClient, RedisCore, RpcLink, SharedRedis};
use crate::servers::{CoreRole, Layout, ServerClient, ServerCore, ServerLock, ServiceNodes};
use crate::switched::{Machine, MachineLanes, Places, SwitchOptions, SwitchedLocker};

/// Lane of the membership, which runs recoveries.
pub(super) const MEMBERSHIP: Endpoint = Endpoint { node: MEMORY, lane: LaneId(0) };
/// Node of the switch; with racks, of the first rack's switch.
pub(super) const SWITCH: NodeId = NodeId(1);
/// Node of the server, or of the Redis.
pub(super) const SERVER: NodeId = NodeId(2);
/// Node of the first machine.
pub(super) const FIRST: u16 = 3;
/// Lanes of a machine in one life: first the agent's two, then the clients' lanes.
pub(super) const LANES_A_LIFE: u16 = 16;
pub(super) const AGENT_LANES: u16 = 2;
/// Lane of a machine that keeps a table of locks.
const TABLE_LANE: u16 = 120;
/// Hot locks with their slots in a switch: fewer slots than clients.
const HOT: [(u64, u32); 2] = [(0, 3), (2, 4)];

/// Node of a machine.
pub(super) const fn node_of(machine: u16) -> NodeId {
    NodeId(FIRST + machine)
}

/// Node of a rack's switch: the switches of later racks are numbered behind the machines.
pub(super) const fn switch_of(plan: &Plan, rack: u16) -> NodeId {
    match rack {
        0 => SWITCH,
        _ => NodeId(FIRST + plan.machines + rack - 1),
    }
}

/// Nodes of all switches.
pub(super) fn switches(plan: &Plan) -> impl Iterator<Item = NodeId> {
    (0..plan.racks).map(|rack| switch_of(plan, rack))
}

/// Number of nodes.
pub(super) const fn nodes(plan: &Plan) -> u16 {
    FIRST + plan.machines + plan.racks - 1
}

/// A core that keeps locks, to be opened on its node.
pub(super) type OpenCore =
    Box<dyn FnOnce(&mut Executor, &dyn Fabric, Roster) -> Box<dyn Any> + Send>;

/// The lock servers of a trial: switches, servers or a Redis. Clones share tables and pools.
#[derive(Clone)]
pub(super) struct LockServers {
    server_lock: ServerLock,
    /// For locks of a switch: the places of the switch and of the machines by number.
    pub(super) places: Option<Places>,
    /// The pools of the machines, by number.
    pub(super) pools: Vec<Arc<Machine>>,
    layout: Option<Layout>,
    redis: SharedRedis,
    times: Times,
    /// Number of locks.
    locks: u64,
    /// The switch keeps the locks below this number.
    below: u64,
}

impl LockServers {
    /// Returns the lock servers of a trial, with numbers reserved for returning machines.
    pub(super) fn new(trial: &ServerTrial, fault_plan: &FaultPlan, options: SwitchOptions) -> Self {
        let machines = trial.plan.machines;
        let below = match trial.server_lock {
            ServerLock::FissParLock => trial.plan.locks.div_ceil(2),
            _ => trial.plan.locks,
        };
        let lives = (0..machines).map(|machine| (machine, 0));
        let lives = lives.chain(fault_plan.returns.iter().map(|machine| (*machine, 1)));
        let lanes = |(machine, life)| {
            let (node, first) = (node_of(machine), life * LANES_A_LIFE);
            MachineLanes {
                agent: Endpoint { node, lane: LaneId(first) },
                clients: LaneId(first + AGENT_LANES),
                cores: (LANES_A_LIFE - AGENT_LANES) as u8,
            }
        };
        let switch = |node| Endpoint { node, lane: LaneId(0) };
        let places = trial.server_lock.is_switched().then(|| {
            let switches = switches(&trial.plan).map(switch).collect();
            let places = Places::new(switches, lives.map(lanes).collect(), below);
            places.expect("there is room for them").with_coordinator(MEMBERSHIP)
        });
        let pools = places.iter().flat_map(|places| {
            let numbers = 0..places.machines() as u8;
            numbers.map(move |number| Arc::new(Machine::new(number, places, options)))
        });
        let pools = pools.collect();
        let (redis, times, locks) = (SharedRedis::default(), trial.times, trial.plan.locks);
        let mut lock_servers = Self {
            server_lock: trial.server_lock,
            places,
            pools,
            layout: None,
            redis,
            times,
            locks,
            below,
        };
        lock_servers.clear(machines);
        lock_servers
    }

    /// Resets the locks of all servers to free.
    pub(super) fn clear(&mut self, machines: u16) {
        let tables = match self.server_lock {
            ServerLock::FissLock | ServerLock::FissLockLocal | ServerLock::RedLock => None,
            ServerLock::FissParLock => Some(ServerLock::ParLock),
            server_lock => Some(server_lock),
        };
        let clients = (0..machines).map(node_of).collect();
        let (server, switch) = (SERVER, SWITCH);
        let locks = self.locks;
        let nodes = ServiceNodes { clients, lanes: TABLE_LANE, server, switch, locks };
        self.layout = tables.map(|server_lock| Layout::new(server_lock, &nodes, HOT.to_vec()));
        self.redis = SharedRedis::default();
    }

    /// The cores that keep locks, with addresses; FissLock's switch is not included.
    pub(super) fn cores(&self) -> Vec<(Endpoint, OpenCore)> {
        if self.server_lock == ServerLock::RedLock {
            let (at, redis) = (self.redis_at(), self.redis.clone());
            let open: OpenCore = Box::new(move |executor, fabric, _| {
                let core = RedisCore::open(executor, fabric, at, redis, None);
                Box::new(core.expect("the lane is free"))
            });
            return vec![(at, open)];
        }
        let open = |(at, role): (Endpoint, CoreRole)| -> (Endpoint, OpenCore) {
            let open: OpenCore = Box::new(move |executor, fabric, roster| {
                let core = ServerCore::open(executor, fabric, at, role, Rc::new(roster), None);
                Box::new(core.expect("the lane is free"))
            });
            (at, open)
        };
        self.layout.iter().flat_map(Layout::cores).map(open).collect()
    }

    const fn redis_at(&self) -> Endpoint {
        Endpoint { node: SERVER, lane: LaneId(0) }
    }

    /// Number of locks that are held or waited for at cores of surviving nodes.
    pub(super) fn used(&self, is_lost: impl Fn(NodeId) -> bool) -> usize {
        if self.server_lock == ServerLock::RedLock {
            return if is_lost(SERVER) { 0 } else { self.redis.used() };
        }
        let cores = self.layout.iter().flat_map(Layout::cores);
        cores.filter(|(at, _)| !is_lost(at.node)).map(|(_, role)| role.used()).sum()
    }

    /// Locks among the first `locks` that are lost with a node.
    pub(super) fn lost_with(&self, node: NodeId, locks: u64) -> Vec<u64> {
        let is_in_front = node == SWITCH && self.server_lock == ServerLock::NetLock;
        if is_in_front || node == SERVER && self.server_lock.has_server() {
            return (0..locks).collect();
        }
        let Some(layout) = &self.layout else { return Vec::new() };
        let placement = layout.servers(node).placement;
        let first = if self.server_lock == ServerLock::FissParLock { self.below } else { 0 };
        (first..locks).filter(|lock| placement.core_of(*lock).node == node).collect()
    }

    /// Returns the locker of a machine, by number, on the lane of `rpc`.
    pub(super) fn locker(
        &self,
        rpc: &Rpc,
        member: Member,
        number: u8,
        roster: &Roster,
    ) -> AnyLocker {
        let executor = rpc.lane().executor().clone();
        let switched = || {
            let pool = Arc::clone(&self.pools[usize::from(number)]);
            let places = self.places.as_ref().expect("a switch has places");
            SwitchedLocker::open(pool, places, rpc, None)
        };
        let served = |layout: &Layout| {
            let servers = layout.servers(member.node);
            ServerClient::new(rpc.clone(), member, Rc::new(roster.clone()), servers)
        };
        match (&self.layout, self.server_lock.is_switched()) {
            (None, true) => AnyLocker::Switched(switched()),
            (Some(layout), true) => {
                AnyLocker::Both(Split::new(switched(), served(layout), self.below))
            }
            (Some(layout), false) => AnyLocker::Served(served(layout)),
            (None, false) => {
                let lane = rpc.lane().at().lane.0;
                let stream = u64::from(member.node.0) << 32 | u64::from(lane) | 1 << 48;
                let rng = executor.env().rng(stream);
                let name = (member.life, lane);
                let servers = [self.redis_at()];
                AnyLocker::Redis(RedLockClient::new(executor, name, self.times, rng, |replies| {
                    RpcLink::open(rpc, servers, replies)
                }))
            }
        }
    }
}
