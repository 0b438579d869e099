//! Clients of one lock system: the clients start together on the lanes of all compute nodes, are
//! counted for a time, and end. Afterwards one more node inspects the memory.
//!
//! A `Load` defines the work of the clients; a lane runs its part, a `Work`. `locks`, `index`,
//! `bank` and `two_phase` define a load each. A lane that has ended still answers lock resets until
//! all lanes have ended.
//!
//! `lane`: work of each lane; `findings`: findings of an audit.

mod findings;
mod lane;

use std::future::Future;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use hdrhistogram::Histogram;
use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::progress::{Phase, Progress};
use lotus_fabric::counters::VerbCounters;
use lotus_fabric::env::Nanos;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{NodeId, RegionId, RemoteAddr};
use lotus_fabric::machines::{Core, Machines, MachinesExt, Program};
use lotus_fabric::region::Rights;
use lotus_fabric::sim::Report;
use lotus_fabric::transport::Fabric;
use lotus_locks::{Client, Counts, LockSystem, Member, Roster};
use lotus_locksystems::fisslock::Preference;
use lotus_locksystems::fisslock::capacity::{Fallback, Placement};
use lotus_locksystems::local::{Access, Counters, LocalClient, LocalTable, Policy, Transfers};
use lotus_locksystems::servers::ServerLock;
use lotus_locksystems::systems::Choice;

pub(crate) use findings::Findings;
pub(crate) use lane::{LaneClient, LaneLocks, Load, Mark, ServerLane, Work, nanos};

/// The memory node.
pub(crate) const MEMORY: NodeId = NodeId(0);
pub(crate) const REGION: RegionId = RegionId(0);
/// Least bytes of a lock object in any lock system.
pub(crate) const OBJECT: u64 = 16;
/// Counters by which nodes set their clocks, one counter per epoch; more than a run has epochs.
const CLOCKS: u32 = 128;
/// Largest distinguishable latency, in nanoseconds.
const MAX_LATENCY_NS: u64 = 60_000_000_000;
/// Time from the start of a run, on machines that are loaded if necessary, until the clients begin.
/// Lanes start in this time.
pub const START: Duration = Duration::from_millis(20);

/// Clients of a lock system, and their measured time.
#[derive(Clone, Debug)]
pub struct Clients {
    /// The lock system.
    pub choice: Choice,
    /// The lock service that keeps the locks; if present, there is no lock system.
    pub server_lock: Option<ServerLock>,
    /// Options of the lock service.
    pub server_options: ServerOptions,
    /// The policy by which the clients of a node share the node's locks, if they share locks.
    pub policy: Option<Policy>,
    /// Compute nodes.
    pub cns: u16,
    /// Lanes of each compute node.
    pub threads: u16,
    /// Clients of each lane.
    pub coroutines: u16,
    /// Time before requests are measured, in seconds.
    pub warmup: f64,
    /// Time in which requests are measured, in seconds.
    pub secs: f64,
}

/// How a lock service keeps locks.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Addresses of real Redis servers for [`ServerLock::RedLock`]; without addresses a node is the
    /// server.
    pub redis: Option<Arc<[SocketAddr]>>,
    /// Time to live of the keys of [`ServerLock::RedLock`], in place of the load's own.
    pub ttl: Option<Duration>,
    /// Preference of [`ServerLock::FissLock`] and [`ServerLock::FissLockLocal`], in place of
    /// readers.
    pub prefer: Option<Preference>,
    /// Number of racks of [`ServerLock::FissLock`] and [`ServerLock::FissLockLocal`], each with a
    /// switch, in place of one rack.
    pub racks: Option<u16>,
    /// Core time of a server for a request and its release, where time is virtual. A machine of
    /// [`ServerLock::FissLock`] takes half of this time for a packet: a server's request is two
    /// messages.
    pub request: Duration,
}

impl Clients {
    /// Number of nodes that the machines must have: the memory node, the compute nodes, one node
    /// that loads, audits and keeps locks, and the switches, if there are any.
    pub fn nodes(&self) -> u16 {
        self.cns + 2 + self.racks()
    }

    /// Switches of the locks, one per rack; on simulated fabrics they have to be declared as
    /// switches.
    pub fn switches(&self) -> Vec<NodeId> {
        let first = self.cns + 2;
        (first..first + self.racks()).map(NodeId).collect()
    }

    /// Number of switches.
    fn racks(&self) -> u16 {
        match self.server_lock {
            Some(server_lock) if server_lock.has_switch() => self.server_options.racks.unwrap_or(1),
            _ => 0,
        }
    }

    /// Name of the lock system or of the lock service.
    pub const fn name(&self) -> &'static str {
        match self.server_lock {
            Some(server_lock) => server_lock.name(),
            None => self.choice.kind.name(),
        }
    }

    /// Refuses more locks than a switch has room for, if a switch grants the locks.
    pub(crate) fn check_room(&self, locks: u64) -> Result<(), String> {
        let fallback = match self.server_lock {
            Some(ServerLock::FissLock | ServerLock::FissLockLocal) => Fallback::None,
            Some(ServerLock::FissParLock) => Fallback::ParLock,
            _ => return Ok(()),
        };
        let room = Placement::new(self.cns.into(), self.racks().into(), locks, fallback);
        room.map(drop).map_err(|error| error.to_string())
    }

    /// Refuses options that the chosen lock service does not have.
    fn check_server_options(&self) -> Result<(), String> {
        let (ServerOptions { redis, ttl, prefer, racks, .. }, name) =
            (&self.server_options, self.name());
        if self.server_lock != Some(ServerLock::RedLock) && (redis.is_some() || ttl.is_some()) {
            return Err(format!("only redlock has servers of redis and times to live, not {name}"));
        }
        let is_fisslock =
            matches!(self.server_lock, Some(ServerLock::FissLock | ServerLock::FissLockLocal));
        if prefer.is_some() && !is_fisslock {
            return Err(format!("only fisslock and fisslock-local have a preference, not {name}"));
        }
        if racks.is_some() && !is_fisslock {
            return Err(format!("only fisslock and fisslock-local have racks, not {name}"));
        }
        Ok(())
    }

    /// Number of clients.
    pub const fn count(&self) -> u32 {
        self.cns as u32 * self.threads as u32 * self.coroutines as u32
    }

    /// The node that loads and audits.
    pub(crate) const fn outsider(&self) -> NodeId {
        NodeId(self.cns + 1)
    }

    /// Refuses contradictory options, and more clients than a lock can count if each client asks
    /// for `terms` lease terms.
    pub(crate) fn check(&self, terms: u32) -> Result<(), String> {
        self.check_server_options()?;
        if let Some(server_lock) = self.server_lock {
            return match self.policy {
                None => Ok(()),
                Some(_) => Err(format!("{server_lock} keeps no locks that a node's clients share")),
            };
        }
        let kind = self.choice.kind;
        kind.check(self.choice.recovery).map_err(|error| error.to_string())?;
        if let Some(policy) = self.policy {
            policy.check(self.choice).map_err(|error| error.to_string())?;
        }
        // Number of clients that ask the memory node.
        let clients = self.policy.map_or(self.count(), |_| u32::from(self.cns));
        match self.choice.capacity() {
            Some(most) if clients * terms > most => Err(format!(
                "{clients} clients are more than a lock of {kind} can count: at most {}",
                most / terms
            )),
            _ => Ok(()),
        }
    }
}

/// Latencies in nanoseconds.
pub type Latencies = Histogram<u64>;

/// An empty histogram. Histograms from this function can be added up.
pub(crate) fn latencies() -> Latencies {
    Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).expect("the bounds are sound constants")
}

/// Adds latencies to other latencies.
pub(crate) fn add(to: &mut Latencies, from: &Latencies) {
    to.add(from).expect("histograms of the same bounds add up");
}

/// Use of the lock system and the fabric by lanes in the measured time.
#[derive(Clone, Debug, Default)]
pub struct Used {
    /// Counts of the lock system.
    pub counts: Counts,
    /// Locks that clients got from their own nodes, and from the memory node.
    pub transfers: Transfers,
    /// Verbs and messages.
    pub verbs: VerbCounters,
    /// The measured time, in seconds: the time of the lane that took longest.
    pub secs: f64,
}

impl AddAssign for Used {
    fn add_assign(&mut self, other: Self) {
        self.counts += other.counts;
        self.transfers += other.transfers;
        self.verbs += &other.verbs;
        self.secs = self.secs.max(other.secs);
    }
}

/// Results of the lanes of a run.
#[derive(Debug, Default)]
pub(crate) struct Done<T> {
    pub(crate) tally: T,
    pub(crate) used: Used,
    /// Reason why a client ended early.
    ended: Option<String>,
    /// Utilisation of NICs, links and cores since clients have begun, in simulation.
    pub(crate) utilisation: Option<Report>,
}

impl<T> Done<T> {
    /// Reason why a client has ended before its time.
    #[cfg(test)]
    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }
}

impl<T: AddAssign> AddAssign for Done<T> {
    fn add_assign(&mut self, other: Self) {
        self.tally += other.tally;
        self.used += other.used;
        self.ended = self.ended.take().or(other.ended);
    }
}

/// Times at which clients begin, their requests begin to count, and clients end.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) begins: Nanos,
    pub(crate) counts_from: Nanos,
    pub(crate) ends: Nanos,
}

/// Makes a lock system, on each lane.
pub(crate) type Make<S> = Arc<dyn Fn() -> S + Send + Sync>;

/// Offset of the data that a lock protects, behind the lock object.
pub(crate) fn offset_of_data<S: LockSystem>(system: &S) -> u64 {
    system.object_bytes().max(OBJECT)
}

pub(crate) fn refused(error: impl std::fmt::Display) -> DeployError {
    DeployError::Refused(error.to_string())
}

/// Registers `bytes` bytes of the memory node, and the counters of clocks behind them.
pub(crate) fn register(machines: &dyn Machines, bytes: u64) -> Result<Counters, DeployError> {
    let clocks = Counters { base: RemoteAddr::new(MEMORY, REGION, bytes), count: CLOCKS };
    let bytes = (bytes + clocks.bytes()).next_multiple_of(4096);
    machines.fabric().register(MEMORY, REGION, bytes, Rights::ALL).map_err(refused)?;
    Ok(clocks)
}

/// State shared by all lanes of a run, independent of the lock system.
pub(crate) struct RunContext {
    clients: Clients,
    times: Times,
    progress: Arc<Progress>,
    roster: Roster,
    /// Utilisation before the clients have begun.
    before: Option<Report>,
}

/// A run of clients of a lock system.
pub(crate) struct Run<S> {
    run_context: Arc<RunContext>,
    clocks: Counters,
    make: Make<S>,
}

/// Lanes that run.
pub(crate) struct Running<C, T> {
    cores: Vec<(NodeId, C)>,
    pub(crate) reports: Receiver<Done<T>>,
    /// Dropping the sender ends the lanes.
    stop: Sender<()>,
}

impl RunContext {
    /// Creates a run whose clients begin after [`START`].
    pub(crate) fn new(
        machines: &dyn Machines,
        clients: Clients,
        progress: &Arc<Progress>,
    ) -> Arc<Self> {
        let begins = machines.outside().now().after(START);
        let counts_from = begins.after(Duration::from_secs_f64(clients.warmup));
        let ends = counts_from.after(Duration::from_secs_f64(clients.secs));
        progress.set_span(begins.0, ends.0);
        progress.enter(Phase::Running);
        let (times, progress) = (Times { begins, counts_from, ends }, Arc::clone(progress));
        let (roster, before) = (Roster::default(), machines.utilisation());
        Arc::new(Self { clients, times, progress, roster, before })
    }

    pub(crate) fn roster(&self) -> &Roster {
        &self.roster
    }

    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }

    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Returns the compute nodes as members: all nodes join before the first node uses a lock.
    ///
    /// # Errors
    /// [`DeployError`] if there are more compute nodes than locks can name.
    pub(crate) fn members(&self) -> Result<Vec<Member>, DeployError> {
        let Clients { cns, threads, .. } = self.clients;
        let members = (1..=cns).map(|node| self.roster.join(NodeId(node), threads));
        members.collect::<Option<_>>().ok_or_else(|| refused("locks name fewer compute nodes"))
    }

    /// Starts lanes of members, each opened on its core.
    pub(crate) fn start<O, A, W>(
        &self,
        machines: &dyn Machines,
        lanes: impl IntoIterator<Item = (Member, u16, O)>,
        work: impl Fn(LaneClient<A>) -> W + Clone + Send + 'static,
    ) -> Result<Running<Core, W::Tally>, DeployError>
    where
        O: FnOnce(&mut Executor) -> Option<LaneClient<A>> + Send + 'static,
        A: LaneLocks,
        W: Work<Access = A>,
        W::Tally: Default + Send + 'static,
    {
        let (sender, reports) = async_channel::unbounded();
        let (stop, stopped) = async_channel::bounded::<()>(1);
        let mut cores = Vec::new();
        for (member, lane, open) in lanes {
            let program = program(open, work.clone(), sender.clone(), stopped.clone());
            let name = format!("locks-{}-{lane}", member.node.0);
            let core = machines.start(member.node, &name, program).map_err(refused)?;
            cores.push((member.node, core));
        }
        Ok(Running { cores, reports, stop })
    }

    /// Waits until all lanes have ended, and adds up their results. Cores of the node `lost` during
    /// the run may end in any way.
    ///
    /// # Errors
    /// [`DeployError`] if a client or a lane ends early.
    pub(crate) fn finish<T: Default + AddAssign>(
        &self,
        machines: &dyn Machines,
        running: Running<Core, T>,
        lost: Option<NodeId>,
    ) -> Result<Done<T>, DeployError> {
        let Running { cores, reports, stop } = running;
        let mut done = Done::default();
        for _ in &cores {
            let Some(report) = machines.wait(&reports) else { break };
            done += report;
        }
        done.utilisation = machines.utilisation().map(|report| since(report, self.before.as_ref()));
        drop(stop);
        let joined =
            cores.into_iter().map(|(node, core)| machines.join(core) | (lost == Some(node)));
        let ended_well = joined.fold(true, |all, one| all & one);
        if let Some(why) = self.progress.failure() {
            return Err(DeployError::Failed(why.clone()));
        }
        if !ended_well {
            return Err(DeployError::Failed("a lane broke".to_owned()));
        }
        match done.ended.take() {
            None => Ok(done),
            Some(why) => {
                Err(DeployError::Failed(format!("a client has ended before its time: {why}")))
            }
        }
    }

    /// Runs `look` to its end on a core of the outsider node.
    ///
    /// # Errors
    /// [`DeployError`] if the machines refuse, or with the sentence of `look`.
    pub(crate) fn audit<R, F>(&self, machines: &dyn Machines, look: F) -> Result<R, DeployError>
    where
        R: 'static + Send,
        F: for<'a> FnOnce(&'a mut Executor) -> Option<Looking<R>> + Send + 'static,
    {
        self.progress.enter(Phase::Auditing);
        let (sender, found) = async_channel::bounded(1);
        let program: Program = Box::new(move |executor| {
            let Some(looking) = look(executor) else { return Box::pin(async {}) };
            Box::pin(async move {
                // The receiver waits for this message.
                let _ = sender.send(looking.await).await;
            })
        });
        let core = machines.start(self.clients.outsider(), "audit", program).map_err(refused)?;
        let found = machines.wait(&found);
        machines.join(core);
        let broke = || self.progress.failure().map_or("the audit broke", String::as_str);
        found.unwrap_or_else(|| Err(broke().to_owned())).map_err(DeployError::Failed)
    }
}

/// Findings of an audit, or a sentence that says why the audit cannot look.
pub(crate) type Looking<R> = Pin<Box<dyn Future<Output = Result<R, String>>>>;

impl<S: LockSystem> Run<S> {
    /// Creates a run whose clients begin after [`START`], on [registered](register), loaded memory.
    pub(crate) fn new(
        machines: &dyn Machines,
        clients: Clients,
        progress: &Arc<Progress>,
        clocks: Counters,
        make: Make<S>,
    ) -> Arc<Self> {
        Arc::new(Self { run_context: RunContext::new(machines, clients, progress), clocks, make })
    }

    #[cfg(test)]
    pub(crate) fn roster(&self) -> &Roster {
        &self.run_context.roster
    }

    /// Starts all lanes.
    pub(crate) fn start<L: Load>(
        self: &Arc<Self>,
        machines: &dyn Machines,
        load: &L,
    ) -> Result<Running<Core, L::Tally>, DeployError> {
        match self.run_context.clients.policy {
            None => self.start_lanes::<L, Client<S>>(machines, load, || ()),
            Some(policy) => {
                let table = || Arc::new(LocalTable::new(policy, self.run_context.clients.threads));
                self.start_lanes::<L, LocalClient<S>>(machines, load, table)
            }
        }
    }

    /// Starts all lanes with clients of kind `A`; `table` makes the state shared by the lanes of a
    /// node.
    fn start_lanes<L, A>(
        self: &Arc<Self>,
        machines: &dyn Machines,
        load: &L,
        table: impl Fn() -> A::Table,
    ) -> Result<Running<Core, L::Tally>, DeployError>
    where
        L: Load,
        A: Access<System = S>,
    {
        let mut lanes = Vec::new();
        for member in self.run_context.members()? {
            let table = table();
            for lane in 0..self.run_context.clients.threads {
                let open = self.open::<A>(machines.fabric(), member, lane, table.clone());
                lanes.push((member, lane, open));
            }
        }
        let load = load.clone();
        self.run_context.start(machines, lanes, move |context: LaneClient<A>| load.work(context))
    }

    /// Opens a lane on its core; a failure to open the lane is a failure of the run.
    pub(crate) fn open<A: Access<System = S>>(
        self: &Arc<Self>,
        fabric: Arc<dyn Fabric>,
        member: Member,
        lane: u16,
        table: A::Table,
    ) -> impl FnOnce(&mut Executor) -> Option<LaneClient<A>> + Send + use<S, A> {
        let run = Arc::clone(self);
        move |executor| {
            let context = LaneClient::open(&run, executor, &*fabric, member, lane, table);
            context.map_err(|error| run.run_context.progress.fail(error.to_string())).ok()
        }
    }

    /// Runs all lanes until their time is over. Cores of the node `lost` during the run may end in
    /// any way.
    ///
    /// # Errors
    /// [`DeployError`] if the machines refuse, or a client or a lane ends early.
    pub(crate) fn run<L: Load>(
        self: &Arc<Self>,
        machines: &dyn Machines,
        load: &L,
        lost: Option<NodeId>,
    ) -> Result<Done<L::Tally>, DeployError> {
        let running = self.start(machines, load)?;
        self.run_context.finish(machines, running, lost)
    }

    /// Inspects the state left by the clients, on a lane of the outsider node.
    ///
    /// # Errors
    /// [`DeployError`] if the machines refuse, or with the sentence of `look`.
    pub(crate) fn audit<R, F>(
        self: &Arc<Self>,
        machines: &dyn Machines,
        look: F,
    ) -> Result<R, DeployError>
    where
        R: 'static + Send,
        F: AsyncFnOnce(LaneClient<Client<S>>) -> Result<R, String> + Send + 'static,
    {
        let member = self.run_context.roster.join(self.run_context.clients.outsider(), 1);
        let member = member.ok_or_else(|| refused("locks name fewer nodes"))?;
        let open = self.open::<Client<S>>(machines.fabric(), member, 0, ());
        self.run_context.audit(machines, move |executor| {
            let context = open(executor)?;
            Some(Box::pin(async move { look(context).await }) as Looking<R>)
        })
    }
}

/// Utilisation since the clients have begun: without the use before the run, and without the time
/// in which lanes were opened.
fn since(mut report: Report, before: Option<&Report>) -> Report {
    let all = report.elapsed.as_secs_f64();
    let earlier = before.map_or(Duration::ZERO, |before| before.elapsed);
    report.elapsed = report.elapsed.saturating_sub(earlier + START);
    let elapsed = report.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    for entry in &mut report.resources {
        let used = before.map_or(0.0, |before| before.busy(entry.resource));
        let used = entry.busy * all - used * earlier.as_secs_f64();
        entry.busy = (used / elapsed).clamp(0.0, 1.0);
    }
    report
}

/// The program of a lane: runs the lane's clients, and sends their results.
fn program<A: LaneLocks, W: Work<Access = A>>(
    open: impl FnOnce(&mut Executor) -> Option<LaneClient<A>> + Send + 'static,
    work: impl FnOnce(LaneClient<A>) -> W + Send + 'static,
    sender: Sender<Done<W::Tally>>,
    stopped: Receiver<()>,
) -> Program
where
    W::Tally: Default + Send + 'static,
{
    Box::new(move |executor| {
        let Some(context) = open(executor) else { return Box::pin(async {}) };
        Box::pin(async move {
            let client = context.client().clone();
            // The report is not received if another lane broke.
            let _ = sender.send(lane::run(work(context)).await).await;
            // The reports end with the last lane that runs.
            drop(sender);
            // The client's answers to resets are needed until all lanes have ended.
            let _ = stopped.recv().await;
            drop(client);
        })
    })
}
