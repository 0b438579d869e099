//! Load on locks that a service keeps: the cores of the service, its clients, and the audit.
//!
//! Memory nodes hold only the data that the locks protect. At the end no core of the service has a
//! lock that is held or waited for.

use std::cell::{Cell, RefCell};
use std::ops::AddAssign;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Receiver;
use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::zipf::KeyChooser;
use lotus_fabric::env::{Nanos, SmallRng};
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, RemoteAddr};
use lotus_fabric::lane::Lane;
use lotus_fabric::machines::{Core, Machines, Program};
use lotus_fabric::rpc::Rpc;
use lotus_fabric::transport::{Fabric, FabricError};
use lotus_locks::{LockSpace, Member, Mode, NotHeld, Wait};
use lotus_locksystems::fisslock::capacity::{Fallback, Placement};
use lotus_locksystems::redlock::rules::Times;
use lotus_locksystems::servers::{
    CoreRole, Demand, Layout, SWITCH_SLOTS, ServerClient, ServerCore, ServerLock, ServiceNodes,
    allot,
};
use lotus_locksystems::{Locker, Split};

use super::lane::{Intent, audit, expel_the_lost};
use super::operation::{Operation, post};
use super::redis::{RealRedis, RedisService};
use super::switched::Switched;
use super::{LockLoad, LockOutcome, LockTally, LossRecovery, Shared, with_noted};
use crate::lanes::{
    self, Clients, Done, LaneClient, Looking, MEMORY, Mark, OBJECT, REGION, RunContext, ServerLane,
    Work, refused,
};

/// Requests of each client in the trace from which a switch learns the hot locks. With this number,
/// and equal popularity, each of a million locks has ten contenders of 160 clients, and 1 % of the
/// locks have queues (FissLock §7.2).
const TRACED: f64 = 62_500.0;

/// Number of concurrent requests of a lane for locks that it holds to the end.
const KEPT_AT_A_TIME: u32 = 32;

/// A lock service that can be run on machines.
pub(crate) trait Service: Send + Sync + 'static {
    /// A lane's use of the service's locks.
    type Locker: Locker;

    /// Starts the service's cores, each on a node; cores end when the sender of `stopped` is
    /// dropped.
    fn start(
        &self,
        machines: &dyn Machines,
        run_context: &Arc<RunContext>,
        stopped: &Receiver<()>,
    ) -> Result<Vec<(NodeId, Core)>, DeployError>;

    /// Opens the use of the service's locks on the lane of `rpc`, which belongs to a member.
    fn open(&self, rpc: &Rpc, member: Member, run_context: &RunContext) -> Self::Locker;

    /// Number of locks that are held or waited for.
    ///
    /// # Errors
    /// A sentence that says why the number is unknown.
    fn used(&self) -> Result<usize, String>;

    /// The last recovery from a lost node, if the service recovers.
    fn recovery(&self) -> Option<LossRecovery> {
        None
    }
}

/// A use of any service.
pub(crate) trait ServiceVisitor {
    /// Result of the use.
    type Output;

    /// Uses the service.
    fn visit<S: Service>(self, service: S) -> Self::Output;
}

/// Prior knowledge of a switch about the most wanted locks.
pub(crate) struct Popular {
    /// The locks, with their shares of the requests.
    pub(crate) locks: Vec<(u64, f64)>,
    /// Largest number of slots of a lock's queue.
    pub(crate) most_slots: u64,
}

impl Popular {
    /// Locks whose queues have a slot for each client that may ask.
    pub(crate) const fn each_with_all_clients(locks: Vec<(u64, f64)>) -> Self {
        Self { locks, most_slots: u64::MAX }
    }
}

/// Passes the service named `server_lock`, for these clients and `locks` locks, to `visitor`.
/// `popular` returns the most wanted locks, for switches that have to know them.
///
/// # Errors
/// [`DeployError`] if the service is not available, or the error of the visitor.
pub(crate) fn visit<V, T>(
    machines: &dyn Machines,
    server_lock: ServerLock,
    clients: &Clients,
    locks: u64,
    redlock: Times,
    popular: impl FnOnce() -> Popular,
    visitor: V,
) -> Result<T, DeployError>
where
    V: ServiceVisitor<Output = Result<T, DeployError>>,
{
    let request = clients.server_options.request;
    let redlock = Times { ttl: clients.server_options.ttl.unwrap_or(redlock.ttl), ..redlock };
    match server_lock {
        ServerLock::RedLock => match &clients.server_options.redis {
            Some(servers) => visitor.visit(RealRedis::new(machines, servers, redlock)?),
            // A request is two commands, the second of which releases the lock.
            None => visitor.visit(RedisService::new(clients.outsider(), redlock, request / 2)),
        },
        ServerLock::FissLock | ServerLock::FissLockLocal => {
            let has_homes = server_lock == ServerLock::FissLockLocal;
            visitor.visit(Switched::new(machines, clients, locks, has_homes)?)
        }
        ServerLock::FissParLock => {
            let room = Placement::new(usize::from(clients.cns), 1, locks, Fallback::ParLock);
            let below = u64::from(room.map_err(refused)?.on_switch());
            let first = Switched::new(machines, clients, below, false)?;
            let lanes = clients.threads + Switched::LANES;
            let rest =
                Served::new(ServerLock::ParLock, clients, (locks, lanes), request, Vec::new());
            visitor.visit(Both { first, rest, below })
        }
        _ => {
            let hot =
                if server_lock.has_hot_locks() { hot(popular(), clients.count()) } else { vec![] };
            let sizes = (locks, clients.threads);
            visitor.visit(Served::new(server_lock, clients, sizes, request, hot))
        }
    }
}

/// One service for the locks below a number, and a second service for the remaining locks.
struct Both<A, B> {
    first: A,
    rest: B,
    below: u64,
}

impl<A: Service, B: Service> Service for Both<A, B> {
    type Locker = Split<A::Locker, B::Locker>;

    fn start(
        &self,
        machines: &dyn Machines,
        run_context: &Arc<RunContext>,
        stopped: &Receiver<()>,
    ) -> Result<Vec<(NodeId, Core)>, DeployError> {
        let mut cores = self.first.start(machines, run_context, stopped)?;
        cores.extend(self.rest.start(machines, run_context, stopped)?);
        Ok(cores)
    }

    fn open(&self, rpc: &Rpc, member: Member, run_context: &RunContext) -> Self::Locker {
        let (first, rest) = (&self.first, &self.rest);
        Split::new(
            first.open(rpc, member, run_context),
            rest.open(rpc, member, run_context),
            self.below,
        )
    }

    fn used(&self) -> Result<usize, String> {
        Ok(self.first.used()? + self.rest.used()?)
    }

    fn recovery(&self) -> Option<LossRecovery> {
        self.first.recovery()
    }
}

/// Returns a finding about the locks of a service when nothing runs, unless all locks are free.
pub(crate) fn used<S: Service>(service: &S) -> Option<String> {
    match service.used() {
        Ok(0) => None,
        Ok(used) => Some(format!("{used} locks are held or waited for in the end")),
        Err(why) => Some(why),
    }
}

/// Runs lanes on the locks of a service, and ends the service's cores.
pub(crate) fn run_lanes<S, W>(
    machines: &dyn Machines,
    run_context: &Arc<RunContext>,
    service: &Arc<S>,
    work: impl Fn(LaneClient<ServerLane<S::Locker>>) -> W + Clone + Send + 'static,
    lost: Option<NodeId>,
) -> Result<Done<W::Tally>, DeployError>
where
    S: Service,
    W: Work<Access = ServerLane<S::Locker>>,
    W::Tally: Default + AddAssign + Send + 'static,
{
    let (stop, stopped) = async_channel::bounded::<()>(1);
    let cores = service.start(machines, run_context, &stopped)?;
    drop(stopped);
    let mut opened = Vec::new();
    for member in run_context.members()? {
        for lane in 0..run_context.clients().threads {
            opened.push((
                member,
                lane,
                open(service, run_context, machines.fabric(), member, lane),
            ));
        }
    }
    let running = run_context.start(machines, opened, work)?;
    let done = run_context.finish(machines, running, lost);
    drop(stop);
    let joined = cores.into_iter().map(|(node, core)| machines.join(core) | (lost == Some(node)));
    let ended_well = joined.fold(true, |all, one| all & one);
    let done = done?;
    match ended_well {
        true => Ok(done),
        false => Err(DeployError::Failed("a core that keeps locks broke".to_owned())),
    }
}

/// Runs the load on a service.
pub(super) fn run(
    machines: &dyn Machines,
    load: &LockLoad,
    progress: &Arc<Progress>,
    server_lock: ServerLock,
) -> Result<LockOutcome, DeployError> {
    let alone = Alone { machines, load, progress };
    let popular = || match load.hot {
        // As published, all hot locks have queues: the switch serves half of the requests.
        Some(hot) => Popular { locks: hot.first(), most_slots: SWITCH_SLOTS / hot.count },
        None => {
            let chooser = KeyChooser::new(load.drawn(), load.zipf);
            Popular::each_with_all_clients(chooser.by_popularity(SWITCH_SLOTS as usize))
        }
    };
    visit(machines, server_lock, &load.clients, load.count, Times::LOCKS, popular, alone)
}

/// The load on locks alone.
struct Alone<'a> {
    machines: &'a dyn Machines,
    load: &'a LockLoad,
    progress: &'a Arc<Progress>,
}

impl ServiceVisitor for Alone<'_> {
    type Output = Result<LockOutcome, DeployError>;

    fn visit<S: Service>(self, service: S) -> Self::Output {
        run_service(self.machines, self.load, self.progress, service)
    }
}

/// Locks that get queues in the switch, with their slots, chosen from the locks most popular with
/// `clients` clients.
fn hot(popular: Popular, clients: u32) -> Vec<(u64, u32)> {
    let Popular { locks, most_slots } = popular;
    let (clients, most) = (f64::from(clients), u32::try_from(most_slots).unwrap_or(u32::MAX));
    let demand = |(lock, frequency): (u64, f64)| {
        let asks = 1.0 - (1.0 - frequency).powf(TRACED);
        let contenders = (clients * asks).ceil().clamp(1.0, clients) as u32;
        let contenders = contenders.min(most.max(1));
        Demand { lock, frequency, contenders }
    };
    allot(locks.into_iter().map(demand).collect(), SWITCH_SLOTS)
}

/// Runs the load on a service.
fn run_service<S: Service>(
    machines: &dyn Machines,
    load: &LockLoad,
    progress: &Arc<Progress>,
    service: S,
) -> Result<LockOutcome, DeployError> {
    let stride = OBJECT + load.object_bytes;
    let space = LockSpace::new(RemoteAddr::new(MEMORY, REGION, 0), OBJECT, stride, load.count);
    let space = space.map_err(refused)?;
    lanes::register(machines, space.bytes())?;
    let (service, shared) = (Arc::new(service), Arc::new(Shared::new(load, space)));
    let run_context = RunContext::new(machines, load.clients.clone(), progress);
    let noted = Arc::clone(&shared);
    let work = move |context| {
        let (shared, held_locks) = (Arc::clone(&noted), RefCell::default());
        ServerLocking { context, shared, held_locks }
    };
    let done = run_lanes(machines, &run_context, &service, work, load.lost_node())?;
    let findings = match load.audit {
        true => Some(judge(machines, &run_context, &shared, used(&*service))?),
        false => None,
    };
    let lanes::Done { tally, used, utilisation, .. } = done;
    Ok(LockOutcome { tally, used, findings, utilisation, recovery: service.recovery() })
}

/// Opens a lane on its core; a failure to open the lane is a failure of the run.
fn open<S: Service>(
    service: &Arc<S>,
    run_context: &Arc<RunContext>,
    fabric: Arc<dyn Fabric>,
    member: Member,
    lane: u16,
) -> impl FnOnce(&mut Executor) -> Option<LaneClient<ServerLane<S::Locker>>> + Send + use<S> {
    let (service, run_context) = (Arc::clone(service), Arc::clone(run_context));
    move |executor| {
        let at = Endpoint { node: member.node, lane: LaneId(lane) };
        let lane = open_lane(executor, &*fabric, at, Epoch(member.life.incarnation()));
        let lane = lane.map_err(|error| run_context.progress().fail(error.to_string())).ok()?;
        let rpc = Rpc::new(lane.clone());
        let locker = service.open(&rpc, member, &run_context);
        Some(LaneClient::new(&run_context, lane, ServerLane(locker, rpc)))
    }
}

fn open_lane(
    executor: &mut Executor,
    fabric: &dyn Fabric,
    at: Endpoint,
    epoch: Epoch,
) -> Result<Lane, FabricError> {
    let transport = fabric.open_lane(at, epoch, executor.handle().waker())?;
    let lane = Lane::new(at, executor.handle().clone(), transport);
    executor.add_driver(lane.driver());
    Ok(lane)
}

/// Audits the data that the locks protect, when nothing runs, and the notes of this process.
fn judge(
    machines: &dyn Machines,
    run_context: &Arc<RunContext>,
    shared: &Arc<Shared>,
    used: Option<String>,
) -> Result<Vec<String>, DeployError> {
    // The lanes of servers have the lower numbers.
    let at =
        Endpoint { node: run_context.clients().outsider(), lane: LaneId(ServerLock::SERVER_CORES) };
    let (fabric, run, noted) = (machines.fabric(), Arc::clone(run_context), Arc::clone(shared));
    let mut found = run_context.audit(machines, move |executor| {
        let lane = open_lane(executor, &*fabric, at, Epoch(1));
        let lane = lane.map_err(|error| run.progress().fail(error.to_string())).ok()?;
        let look = async move { audit(&lane, &noted, OBJECT, |words| words == [0, 0]).await };
        Some(Box::pin(look) as Looking<Vec<String>>)
    })?;
    found.extend(used);
    Ok(with_noted(found, shared))
}

/// A lane's part in the load.
struct ServerLocking<L: Locker> {
    context: LaneClient<ServerLane<L>>,
    shared: Arc<Shared>,
    /// Locks that the lane holds from the beginning to the end.
    held_locks: RefCell<Vec<L::Held>>,
}

impl<L: Locker> Work for ServerLocking<L> {
    type Access = ServerLane<L>;
    type Tally = LockTally;
    type Failed = NotHeld;

    fn context(&self) -> &LaneClient<ServerLane<L>> {
        &self.context
    }

    async fn operate(&self, rng: &mut SmallRng, tally: &RefCell<LockTally>) -> Result<(), NotHeld> {
        self.use_one(rng, tally).await?;
        let think = self.shared.load.behaviour.think;
        if !think.is_zero() {
            self.context.executor().sleep(think).await;
        }
        Ok(())
    }

    fn mark(self: &Rc<Self>, mark: Mark, tally: &mut LockTally) {
        match mark {
            Mark::Begin => {
                expel_the_lost(self, &self.shared);
                self.keep();
            }
            Mark::From | Mark::To => {}
            Mark::End => tally.put_together(),
        }
    }
}

impl<L: Locker> ServerLocking<L> {
    /// Takes the lane's part of the locks that are held to the end, a few at a time.
    fn keep(self: &Rc<Self>) {
        let load = &self.shared.load;
        let (first, end) = (load.drawn(), load.count);
        let Clients { cns, threads, .. } = load.clients;
        let lanes = u64::from(cns) * u64::from(threads);
        let next = Rc::new(Cell::new(first + self.context.index() as u64));
        let tasks = if first < end { KEPT_AT_A_TIME } else { 0 };
        for _ in 0..tasks {
            let (lane, next) = (Rc::clone(self), Rc::clone(&next));
            self.context.executor().spawn(async move {
                while next.get() < end {
                    let lock = next.replace(next.get() + lanes);
                    let locker = &lane.context.client().0;
                    let wait = Wait::Until(Nanos::NEVER);
                    match locker.acquire(lock, Mode::Exclusive, wait).await {
                        Ok(held) => lane.held_locks.borrow_mut().push(held),
                        Err(why) => {
                            return lane.context.run_context().progress().fail(why.to_string());
                        }
                    }
                }
            });
        }
    }

    /// Takes one lock, uses the protected data, and releases the lock.
    async fn use_one(&self, rng: &mut SmallRng, tally: &RefCell<LockTally>) -> Result<(), NotHeld> {
        let (shared, load) = (&*self.shared, &self.shared.load);
        let (executor, locker) = (self.context.executor(), &self.context.client().0);
        let began = executor.now();
        let elapsed = began.since(self.context.times().begins);
        let Intent { lock, mode: wanted, stays, .. } = Intent::draw(shared, elapsed, rng);
        let counts = began >= self.context.times().counts_from;
        let ledger = shared.ledger.as_ref();
        let arrival = ledger.map(|ledger| ledger.request(lock));
        let until = load.patience.map_or(Nanos::NEVER, |patience| began.after(patience));
        let held_lock = match locker.acquire(lock, wanted, Wait::Until(until)).await {
            Ok(held) => held,
            Err(why) => {
                let tally = &mut *tally.borrow_mut();
                return shared.tally_refusal(tally, lock, arrival, counts, why);
            }
        };
        let held = executor.now();
        let noted = ledger.zip(arrival);
        let fairness = noted.map(|(ledger, arrival)| ledger.enter(lock, wanted, wanted, arrival));
        if !stays.is_zero() {
            executor.sleep(stays).await;
        }
        let used = if load.section > 0 { self.use_lock(lock, wanted).await } else { Ok(()) };
        if let Some(ledger) = ledger {
            ledger.leave(lock, wanted);
        }
        used?;
        let leaves = executor.now();
        let released = locker.release(held_lock).await;
        let ended = executor.now();
        self.context.tick(began, ended);
        let operation = Operation { lock, wanted, began, held, leaves, ended };
        shared.tally(&mut tally.borrow_mut(), &operation, counts, fairness, released)
    }

    /// Posts the verbs for which the lock is taken.
    async fn use_lock(&self, lock: u64, mode: Mode) -> Result<(), NotHeld> {
        let (load, ledger) = (&self.shared.load, self.shared.ledger.as_ref());
        let data = self.shared.space.object(lock).plus(OBJECT);
        let writes = mode != Mode::Shared;
        let value = ledger.filter(|_| writes).map(|ledger| ledger.next_value(lock));
        for _ in 0..load.section {
            let mut batch = self.context.lane().batch();
            if writes {
                let buffer = batch.stage(load.object_bytes as usize);
                batch.words_mut(buffer).fill(value.unwrap_or(1));
                batch.write(data, buffer);
                post(batch).await?;
                continue;
            }
            let words = batch.read(data, load.object_bytes as usize);
            let done = post(batch).await?;
            if let Some(ledger) = ledger {
                ledger.read(lock, done.words(words));
            }
        }
        Ok(())
    }
}

/// Servers that keep locks.
struct Served {
    layout: Layout,
    /// Time of a request and its release.
    request: Duration,
}

impl Served {
    /// A service for these clients and `locks` locks. If compute nodes keep the locks, they do so
    /// on the lane behind their first `lanes` lanes.
    fn new(
        server_lock: ServerLock,
        clients: &Clients,
        (locks, lanes): (u64, u16),
        request: Duration,
        hot: Vec<(u64, u32)>,
    ) -> Self {
        let nodes = ServiceNodes {
            clients: (1..=clients.cns).map(NodeId).collect(),
            lanes,
            locks,
            server: clients.outsider(),
            // Used only by services with a switch.
            switch: clients.switches().first().copied().unwrap_or(clients.outsider()),
        };
        Self { layout: Layout::new(server_lock, &nodes, hot), request }
    }
}

impl Service for Served {
    type Locker = ServerClient;

    fn start(
        &self,
        machines: &dyn Machines,
        run_context: &Arc<RunContext>,
        stopped: &Receiver<()>,
    ) -> Result<Vec<(NodeId, Core)>, DeployError> {
        // A request is two messages, the second of which releases the lock.
        let cost = self.request / 2;
        let start = |(at, role): (Endpoint, CoreRole)| {
            let (fabric, run_context) = (machines.fabric(), Arc::clone(run_context));
            let cpu_charge = machines.cpu_charge().filter(|_| !role.is_switch());
            let stopped = stopped.clone();
            let program: Program = Box::new(move |executor| {
                let peers = Rc::new(run_context.roster().clone());
                let cpu_charge =
                    cpu_charge.map(|charge| -> Box<dyn Fn()> { Box::new(move || charge(cost)) });
                let core = ServerCore::open(executor, &*fabric, at, role, peers, cpu_charge);
                if let Err(error) = &core {
                    run_context.progress().fail(error.to_string());
                }
                Box::pin(async move {
                    // The core serves until the end.
                    let _ = stopped.recv().await;
                    drop(core);
                })
            });
            let name = format!("server-{}-{}", at.node.0, at.lane.0);
            let core = machines.start(at.node, &name, program).map_err(refused)?;
            Ok((at.node, core))
        };
        self.layout.cores().map(start).collect()
    }

    fn open(&self, rpc: &Rpc, member: Member, run_context: &RunContext) -> ServerClient {
        let peers = Rc::new(run_context.roster().clone());
        let servers = self.layout.servers(member.node);
        ServerClient::new(rpc.clone(), member, peers, servers)
    }

    fn used(&self) -> Result<usize, String> {
        Ok(self.layout.used())
    }
}
