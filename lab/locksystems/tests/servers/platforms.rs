//! Clients of lock services on a fabric, and a judge of what they hold.

use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use lotus_fabric::env::{Env, Nanos, SmallRng};
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId, RemoteAddr};
use lotus_fabric::lane::Lane;
use lotus_fabric::machines::{Core, Machines, MachinesExt, Program, Threads};
use lotus_fabric::region::Rights;
use lotus_fabric::rpc::Rpc;
use lotus_fabric::sim::{Config, Profile, Rates, SimMachines, World};
use lotus_fabric::tcp::{self, TcpFabric};
use lotus_fabric::transport::Fabric;
use lotus_locks::{Counts, Member, Mode, NotHeld, Roster, Wait};
use lotus_locksystems::Locker;
use lotus_locksystems::redlock::rules::Times;
use lotus_locksystems::redlock::{RedLockClient, RedisCore, RpcLink, SharedRedis};
use lotus_locksystems::servers::{Layout, ServerClient, ServerCore, ServerLock, ServiceNodes};
use lotus_locksystems::trial::Referee;
use rand::Rng;

const MEMORY: NodeId = NodeId(0);
const SERVER: NodeId = NodeId(1);
const CLIENTS: [NodeId; 3] = [NodeId(2), NodeId(3), NodeId(4)];
const SWITCH: NodeId = NodeId(5);
const NODES: u16 = 6;
/// Hot locks, and their slots in a switch: fewer than clients.
const HOT: [(u64, u32); 2] = [(0, 3), (2, 4)];
const LANES: u16 = 2;
const REGION: RegionId = RegionId(0);

/// What clients do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub clients: u16,
    pub locks: u64,
    pub rounds: u32,
    pub shared: f64,
    /// Share of requests that do not wait, that wait for a short time, and that are dropped.
    pub refusing: f64,
    pub hurried: f64,
    pub dropped: f64,
    pub hurry: Duration,
    /// The longest time for which a lock is held.
    pub hold: Duration,
}

pub const LOAD: Load = Load {
    clients: 3,
    locks: 3,
    rounds: 60,
    shared: 0.5,
    refusing: 0.0,
    hurried: 0.0,
    dropped: 0.0,
    hurry: Duration::from_micros(30),
    hold: Duration::from_micros(5),
};

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub counts: Counts,
    pub refused: u64,
    pub late: Duration,
    pub together: usize,
    pub violations: Vec<String>,
    /// Locks that are not free in the end.
    pub used: usize,
}

#[derive(Clone, Copy, Debug)]
pub enum Platform {
    Local,
    Tcp,
    Sim(u64),
    /// In simulation, a fifth of all messages is lost, others come twice, late or reordered.
    Lossy(u64),
}

/// Runs clients of a service.
pub fn run(server_lock: ServerLock, platform: Platform, load: Load) -> Outcome {
    match platform {
        Platform::Local => of(&Threads::new(NODES, 1), server_lock, load),
        Platform::Tcp => of(&over_sockets(), server_lock, load),
        Platform::Sim(seed) => of(&simulated(seed, Rates::default()), server_lock, load),
        Platform::Lossy(seed) => of(&simulated(seed, lossy()), server_lock, load),
    }
}

/// Runs clients of what keeps locks outside of the fabric, on a platform in real time.
#[cfg(feature = "redis")]
pub fn run_backend<K: LockBackend>(backend: K, platform: Platform, load: Load) -> Outcome {
    match platform {
        Platform::Local => on(&Threads::new(NODES, 1), backend, load),
        Platform::Tcp => on(&over_sockets(), backend, load),
        Platform::Sim(_) | Platform::Lossy(_) => panic!("{platform:?} is no platform in real time"),
    }
}

fn over_sockets() -> Threads {
    let env = Env::real(1);
    let fabric = TcpFabric::start(tcp::Config::loopback(NODES), env.clone());
    Threads::over(fabric.expect("loopback has free ports"), env)
}

fn of(machines: &dyn Machines, server_lock: ServerLock, load: Load) -> Outcome {
    match server_lock {
        ServerLock::RedLock => on(machines, Redises::new(1, Times::LOCKS), load),
        _ => on(machines, layout(server_lock), load),
    }
}

fn lossy() -> Rates {
    Rates {
        message_loss: 0.2,
        message_duplication: 0.1,
        message_delay: 0.2,
        message_delay_max: Duration::from_micros(100),
        ..Rates::default()
    }
}

pub fn simulated(seed: u64, rates: Rates) -> SimMachines {
    let profile = Profile::named("tofino-cx5").expect("built in");
    let switches = vec![SWITCH];
    let config = Config { rates, switches, ..Config::new(seed, NODES, profile) };
    SimMachines::new(World::new(config).expect("a valid world"))
}

/// What keeps the locks.
pub trait LockBackend: Send + Sync + 'static {
    type Locker: Locker;

    /// Opens its cores: for each the place, and the program that opens it, which serves until what
    /// it returns is dropped.
    fn cores(&self) -> Vec<(Endpoint, OpenCore)>;

    fn client(&self, rpc: Rpc, member: Member, roster: &Roster) -> Self::Locker;

    /// Number of locks that are not free.
    fn used(&self) -> usize;
}

pub type OpenCore = Box<dyn FnOnce(&mut Executor, &dyn Fabric, Roster) -> Box<dyn Any> + Send>;

impl LockBackend for Layout {
    type Locker = ServerClient;

    fn cores(&self) -> Vec<(Endpoint, OpenCore)> {
        let open = |(at, table)| -> (Endpoint, OpenCore) {
            let open: OpenCore = Box::new(move |executor, fabric, roster| {
                let core = ServerCore::open(executor, fabric, at, table, Rc::new(roster), None);
                Box::new(core.expect("the lane is free"))
            });
            (at, open)
        };
        self.cores().map(open).collect()
    }

    fn client(&self, rpc: Rpc, member: Member, roster: &Roster) -> ServerClient {
        ServerClient::new(rpc, member, Rc::new(roster.clone()), self.servers(member.node))
    }

    fn used(&self) -> usize {
        self.used()
    }
}

/// Lanes of the server that are a Redis each.
pub struct Redises {
    servers: Vec<(Endpoint, SharedRedis)>,
    times: Times,
}

impl Redises {
    pub fn new(servers: u16, times: Times) -> Self {
        // One on the server, and further ones on nodes that have nothing to do.
        let nodes = [SERVER, MEMORY, SWITCH];
        let at = |node: &NodeId| Endpoint { node: *node, lane: LaneId(7) };
        let nodes = nodes.iter().take(usize::from(servers));
        Self { servers: nodes.map(|node| (at(node), SharedRedis::default())).collect(), times }
    }
}

impl LockBackend for Redises {
    type Locker = RedLockClient;

    fn cores(&self) -> Vec<(Endpoint, OpenCore)> {
        let open = |(at, redis): &(Endpoint, SharedRedis)| -> (Endpoint, OpenCore) {
            let (at, redis) = (*at, redis.clone());
            let open: OpenCore = Box::new(move |executor, fabric, _| {
                let core = RedisCore::open(executor, fabric, at, redis, None);
                Box::new(core.expect("the lane is free"))
            });
            (at, open)
        };
        self.servers.iter().map(open).collect()
    }

    fn client(&self, rpc: Rpc, member: Member, _: &Roster) -> RedLockClient {
        let executor = rpc.lane().executor().clone();
        let at = rpc.lane().at();
        let rng = executor.env().rng(u64::from(at.node.0) << 32 | u64::from(at.lane.0) | 1 << 48);
        let servers: Vec<_> = self.servers.iter().map(|(at, _)| *at).collect();
        RedLockClient::new(executor, (member.life, at.lane.0), self.times, rng, |replies| {
            RpcLink::open(&rpc, servers, replies)
        })
    }

    fn used(&self) -> usize {
        self.servers.iter().map(|(_, redis)| redis.used()).sum()
    }
}

/// The cores of a service on the nodes of these tests.
pub fn layout(server_lock: ServerLock) -> Layout {
    let (clients, lanes) = (CLIENTS.to_vec(), LANES);
    let locks = LOAD.locks;
    let nodes = ServiceNodes { clients, lanes, server: SERVER, switch: SWITCH, locks };
    Layout::new(server_lock, &nodes, HOT.to_vec())
}

/// A service, its memory and its members.
pub struct Service<K = Layout> {
    pub backend: K,
    pub roster: Roster,
    pub referee: Arc<Referee>,
    load: Load,
}

impl<K: LockBackend> Service<K> {
    pub fn new(machines: &dyn Machines, backend: K, load: Load) -> Arc<Self> {
        let bytes = (load.locks * 16).next_multiple_of(4096);
        machines.fabric().register(MEMORY, REGION, bytes, Rights::ALL).expect("there is memory");
        let referee = Arc::new(Referee::new(load.locks));
        Arc::new(Self { backend, roster: Roster::default(), referee, load })
    }

    /// Starts the cores that keep the locks; they end when the other end of the channel is dropped.
    pub fn serve(&self, machines: &dyn Machines, stopped: &Receiver<()>) -> Vec<Core> {
        let start = |(at, open): (Endpoint, OpenCore)| {
            let (fabric, roster, stopped) =
                (machines.fabric(), self.roster.clone(), stopped.clone());
            let program: Program = Box::new(move |executor| {
                let core = open(executor, &*fabric, roster);
                Box::pin(async move {
                    let _ = stopped.recv().await;
                    drop(core);
                })
            });
            machines.start(at.node, &format!("server-{}", at.lane.0), program).expect("a thread")
        };
        self.backend.cores().into_iter().map(start).collect()
    }

    /// Opens a lane of a member.
    pub fn open(
        self: &Arc<Self>,
        fabric: Arc<dyn Fabric>,
        member: Member,
        lane: u16,
    ) -> impl FnOnce(&mut Executor) -> LaneContext<K> + Send + use<K> {
        let place = Arc::clone(self);
        move |executor| {
            let at = Endpoint { node: member.node, lane: LaneId(lane) };
            let epoch = Epoch(member.life.incarnation());
            let opened = fabric.open_lane(at, epoch, executor.handle().waker());
            let lane = Lane::new(at, executor.handle().clone(), opened.expect("the lane is free"));
            executor.add_driver(lane.driver());
            let client = place.backend.client(Rpc::new(lane.clone()), member, &place.roster);
            LaneContext { lane, client, member, place }
        }
    }
}

fn on<K: LockBackend>(machines: &dyn Machines, backend: K, load: Load) -> Outcome {
    let place = Service::new(machines, backend, load);
    let (stop, stopped) = async_channel::bounded::<()>(1);
    let mut cores = place.serve(machines, &stopped);
    let (sender, reports) = async_channel::unbounded();
    let members = CLIENTS.map(|node| place.roster.join(node, LANES).expect("there is room"));
    for member in members {
        for lane in 0..LANES {
            let open = place.open(machines.fabric(), member, lane);
            let program = program(open, sender.clone(), stopped.clone());
            cores.push(machines.start(member.node, "clients", program).expect("a thread"));
        }
    }
    drop(sender);
    let mut outcome = Outcome::default();
    for _ in 0..CLIENTS.len() * usize::from(LANES) {
        let (counts, refused, late) = machines.wait(&reports).expect("each lane ends");
        outcome.counts += counts;
        outcome.refused += refused;
        outcome.late = outcome.late.max(late);
    }
    drop((stop, stopped));
    assert!(cores.into_iter().fold(true, |well, core| machines.join(core) & well), "a core broke");
    outcome.used = place.backend.used();
    outcome.together = place.referee.together();
    outcome.violations = place.referee.violations();
    outcome
}

type Report = (Counts, u64, Duration);

fn program<K: LockBackend>(
    open: impl FnOnce(&mut Executor) -> LaneContext<K> + Send + 'static,
    sender: Sender<Report>,
    stopped: Receiver<()>,
) -> Program {
    Box::new(move |executor| {
        let context = Rc::new(open(executor));
        Box::pin(async move {
            let clients = context.place.load.clients;
            let report = Rc::new(Cell::new((0, Duration::ZERO)));
            let running = Rc::new(Cell::new(clients));
            for number in 0..clients {
                let (context, running) = (Rc::clone(&context), Rc::clone(&running));
                let report = Rc::clone(&report);
                context.lane.executor().clone().spawn(async move {
                    let at = context.lane.at();
                    let stream = u64::from(at.node.0) << 32 | u64::from(at.lane.0) << 16;
                    let mut rng = context.lane.executor().env().rng(stream | u64::from(number));
                    for _ in 0..context.place.load.rounds {
                        context.round(&mut rng, &report).await;
                    }
                    running.set(running.get() - 1);
                });
            }
            while running.get() > 0 {
                context.lane.executor().sleep(Duration::from_micros(50)).await;
            }
            context.client.quiet().await;
            let (refused, late) = report.get();
            let _ = sender.send((context.client.counts(), refused, late)).await;
            let _ = stopped.recv().await;
        })
    })
}

/// A lane of clients.
pub struct LaneContext<K: LockBackend = Layout> {
    pub lane: Lane,
    pub client: K::Locker,
    pub member: Member,
    pub place: Arc<Service<K>>,
}

impl<K: LockBackend> LaneContext<K> {
    async fn round(&self, rng: &mut SmallRng, report: &Cell<(u64, Duration)>) {
        let load = &self.place.load;
        let executor = self.lane.executor();
        let lock = rng.random_range(0..load.locks);
        let is_reader = rng.random_bool(load.shared);
        let mode = if is_reader { Mode::Shared } else { Mode::Exclusive };
        let (kind, hurry): (f64, _) = (rng.random(), load.hurry.mul_f64(rng.random()));
        let is_hurried = kind >= load.refusing && kind < load.refusing + load.hurried;
        let wait = match kind < load.refusing {
            true => Wait::No,
            false if is_hurried => Wait::Until(executor.now().after(hurry)),
            false => Wait::Until(Nanos::NEVER),
        };
        let asked = self.client.acquire(lock, mode, wait);
        let result = match kind > 1.0 - load.dropped {
            true => within(&self.lane, hurry, asked).await,
            false => Some(asked.await),
        };
        let hold = load.hold.mul_f64(rng.random());
        match result {
            None => {}
            Some(Ok(held)) => {
                self.use_lock(lock, mode, hold).await;
                self.client.release(held).await.expect("the server answers");
            }
            Some(Err(why)) => {
                let (refused, mut late) = report.get();
                let expected = if wait == Wait::No { NotHeld::Conflict } else { NotHeld::TimedOut };
                assert_eq!(why, expected);
                if let Wait::Until(until) = wait {
                    late = late.max(executor.now().since(until));
                }
                report.set((refused + 1, late));
            }
        }
    }

    /// Reads two words under a lock, and writes them if that is allowed.
    pub async fn use_lock(&self, lock: u64, mode: Mode, hold: Duration) {
        let (referee, life) = (&self.place.referee, self.member.life);
        referee.enter(lock, life, mode);
        let words = RemoteAddr::new(MEMORY, REGION, 16 * lock);
        let mut batch = self.lane.batch();
        let buffer = batch.read(words, 16);
        let done = batch.post().await.expect("the memory answers");
        let [first, second] = *done.words(buffer) else { unreachable!("two words") };
        referee.judge(lock, life, [first, second]);
        self.lane.executor().sleep(hold).await;
        if mode != Mode::Shared {
            for word in [words, words.plus(8)] {
                let mut batch = self.lane.batch();
                batch.write_word(word, first + 1);
                batch.post().await.expect("the memory answers");
            }
            referee.wrote(lock, life, first + 1);
        }
        referee.leave(lock, life, mode, false);
    }
}

/// Result of `future`, unless it takes longer than `time`; then it is dropped.
async fn within<T>(lane: &Lane, time: Duration, future: impl Future<Output = T>) -> Option<T> {
    let executor = lane.executor();
    let until = executor.now().after(time);
    let mut future = pin!(future);
    let mut is_armed = false;
    std::future::poll_fn(|context| {
        if let Poll::Ready(result) = future.as_mut().poll(context) {
            return Poll::Ready(Some(result));
        }
        if executor.now() >= until {
            return Poll::Ready(None);
        }
        if !std::mem::replace(&mut is_armed, true) {
            executor.wake_at(until, executor.current());
        }
        Poll::Pending
    })
    .await
}
