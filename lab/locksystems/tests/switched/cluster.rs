//! A cluster: a memory node, a switch, and machines with clients that take locks.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use lotus_fabric::exec::{Executor, Handle};
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId};
use lotus_fabric::lane::Lane;
use lotus_fabric::machines::{Core, Machines, MachinesExt, Program};
use lotus_fabric::region::Rights;
use lotus_fabric::rpc::Rpc;
use lotus_fabric::transport::Fabric;
use lotus_locks::word::Claimant;
use lotus_locks::{Mode, Wait};
use lotus_locksystems::Locker;
use lotus_locksystems::switched::{
    AgentProgram, Machine, MachineLanes, Places, Start, SwitchOptions, SwitchProgram,
    SwitchedLocker,
};
use lotus_locksystems::trial::Referee;
use lotus_locksystems::trial::server_locks::{Done, LockUser, MEMORY, Plan, REGION};

pub const SWITCH: NodeId = NodeId(1);
/// Lane of the core that recovers.
pub const COORDINATOR: Endpoint = Endpoint { node: MEMORY, lane: LaneId(0) };
/// Node of the first machine.
const FIRST: u16 = 2;
/// First lane of a machine for clients; those before are the agent's.
const LANES: u16 = 2;

/// Most visitors of all machines.
const VISITORS: u8 = 8;

/// Number of nodes of a cluster.
pub const fn nodes(plan: &Plan) -> u16 {
    FIRST + plan.machines + plan.racks - 1
}

/// Node of a rack's switch: that of others than the first is behind the machines.
pub const fn switch_of(plan: &Plan, rack: u16) -> NodeId {
    match rack {
        0 => SWITCH,
        _ => NodeId(FIRST + plan.machines + rack - 1),
    }
}

/// Nodes of all switches.
pub fn switches(plan: &Plan) -> Vec<NodeId> {
    (0..plan.racks).map(|rack| switch_of(plan, rack)).collect()
}

pub const fn node_of(machine: u8) -> NodeId {
    NodeId(FIRST + machine as u16)
}

/// A machine's name for the judges.
pub fn life_of(machine: u8) -> Claimant {
    Claimant::new(machine, 1)
}

/// What a lane of a machine has done.
type Report = (u8, Done);

/// A cluster that runs.
pub struct Cluster {
    pub plan: Plan,
    pub options: SwitchOptions,
    pub places: Places,
    pub referee: Arc<Referee>,
    machines: Vec<Arc<Machine>>,
    visitors: u16,
    /// Cores that run until the end.
    serving: Vec<Core>,
    /// By machine.
    clients: Vec<(u8, Core)>,
    /// Closed at the end.
    is_over: (Sender<()>, Receiver<()>),
    reporter: Sender<Report>,
    reports: Receiver<Report>,
}

impl Cluster {
    /// Starts the switch, the machines, and their clients.
    pub fn start(machines: &dyn Machines, plan: Plan, options: SwitchOptions) -> Self {
        let at = |node| Endpoint { node, lane: LaneId(0) };
        // One more audits, and some visit.
        let (clients, cores) = (LaneId(LANES), plan.lanes as u8 + 1 + VISITORS);
        let lanes = |number| MachineLanes { agent: at(node_of(number)), clients, cores };
        let all = (0..plan.machines as u8).map(lanes).collect();
        let switches = switches(&plan).into_iter().map(at).collect();
        let places = Places::new(switches, all, plan.locks);
        let places = places.expect("the switch serves them").with_coordinator(COORDINATOR);
        machines.fabric().register(MEMORY, REGION, 4096, Rights::ALL).expect("there is room");
        let machine = |number| Arc::new(Machine::new(number, &places, options));
        let (reporter, reports) = async_channel::unbounded();
        let mut cluster = Self {
            plan,
            options,
            referee: Arc::new(Referee::new(plan.locks)),
            machines: (0..plan.machines as u8).map(machine).collect(),
            places,
            visitors: 0,
            serving: Vec::new(),
            clients: Vec::new(),
            is_over: async_channel::bounded(1),
            reporter,
            reports,
        };
        (0..plan.racks).for_each(|rack| cluster.start_switch(machines, rack, Start::First));
        (0..plan.machines as u8).for_each(|number| cluster.start_agent(machines, number));
        for number in 0..plan.machines as u8 {
            (0..plan.lanes).for_each(|lane| cluster.start_lane(machines, number, lane));
        }
        cluster
    }

    /// Starts the core of a rack's switch.
    pub fn start_switch(&mut self, machines: &dyn Machines, rack: u16, start: Start) {
        let (places, options, fabric) = (self.places.clone(), self.options, machines.fabric());
        self.serve(machines, switch_of(&self.plan, rack), "switch", move |executor| {
            let number = rack as u8;
            let program = SwitchProgram::open(number, start, &places, options, executor, &*fabric);
            executor.handle().spawn(program.expect("its lanes are free").run());
        });
    }

    fn start_agent(&mut self, machines: &dyn Machines, number: u8) {
        let (places, fabric) = (self.places.clone(), machines.fabric());
        let machine = Arc::clone(&self.machines[usize::from(number)]);
        self.serve(machines, node_of(number), "agent", move |executor| {
            let program = AgentProgram::open(machine, &places, executor, &*fabric, None);
            executor.handle().spawn(program.expect("its lanes are free").run());
        });
    }

    /// Starts a core that runs until the end.
    pub fn serve(
        &mut self,
        machines: &dyn Machines,
        node: NodeId,
        name: &str,
        set_up: impl FnOnce(&mut Executor) + Send + 'static,
    ) {
        let is_over = self.is_over.1.clone();
        let program: Program = Box::new(move |executor| {
            set_up(executor);
            Box::pin(async move {
                // An error: it is only closed.
                let _closed = is_over.recv().await;
            })
        });
        self.serving.push(machines.start(node, name, program).expect("there is a thread"));
    }

    /// Has a program on a lane of its own use a machine's locks.
    pub fn visit<F: Future<Output = ()> + 'static>(
        &mut self,
        machines: &dyn Machines,
        number: u8,
        body: impl FnOnce(SwitchedLocker, Handle) -> F + Send + 'static,
    ) {
        let machine = Arc::clone(&self.machines[usize::from(number)]);
        let lane = LaneId(LANES + self.plan.lanes + 1 + self.visitors);
        self.visitors += 1;
        let at = Endpoint { node: node_of(number), lane };
        let (places, fabric) = (self.places.clone(), machines.fabric());
        self.serve(machines, at.node, "visitor", move |executor| {
            let handle = executor.handle().clone();
            let lane = Rpc::new(open(executor, &*fabric, at));
            let locker = SwitchedLocker::open(machine, &places, &lane, None);
            handle.spawn(body(locker, handle.clone()));
        });
    }

    fn start_lane(&mut self, machines: &dyn Machines, number: u8, lane: u16) {
        let node = node_of(number);
        let (plan, referee) = (self.plan, Arc::clone(&self.referee));
        let machine = Arc::clone(&self.machines[usize::from(number)]);
        let (fabric, done) = (machines.fabric(), self.reporter.clone());
        let places = self.places.clone();
        let program: Program = Box::new(move |executor| {
            let lane = open(executor, &*fabric, Endpoint { node, lane: LaneId(LANES + lane) });
            let locker = SwitchedLocker::open(machine, &places, &Rpc::new(lane.clone()), None);
            let timer = executor.handle().clone();
            let user = |client: u16| LockUser {
                locker: locker.clone(),
                lane: lane.clone(),
                life: life_of(number),
                referee: Arc::clone(&referee),
                lost_locks: Arc::default(),
                plan,
                rng: timer.env().rng(u64::from(lane.at().lane.0) << 16 | u64::from(client)),
            };
            let users: Vec<_> = (0..plan.clients).map(user).collect();
            let (ended, all) = async_channel::unbounded();
            Box::pin(async move {
                for user in users {
                    let ended = ended.clone();
                    timer.spawn(async move {
                        // Received below.
                        let _ = ended.send(user.run().await).await;
                    });
                }
                let mut sum = Done::default();
                for _ in 0..plan.clients {
                    sum += all.recv().await.expect("all end");
                }
                // Not received if the trial was given up.
                let _ = done.send((number, sum)).await;
            })
        });
        let core = machines.start(node, "clients", program).expect("there is a thread");
        self.clients.push((number, core));
    }

    /// Reports of lanes that have ended.
    pub const fn reports(&self) -> &Receiver<Report> {
        &self.reports
    }

    /// Waits for the reports of all lanes.
    pub fn wait(&self, machines: &dyn Machines) -> Done {
        let mut sum = Done::default();
        for _ in 0..self.clients.len() {
            let Some((_, done)) = machines.wait(&self.reports) else {
                self.referee.violate("the clients do not end".to_owned());
                break;
            };
            sum += done;
        }
        sum
    }

    /// Audits when the clients have ended: the living machines become idle, and each of them can
    /// write under every lock. Then ends all cores; returns what must not have been.
    pub fn finish(self, machines: &dyn Machines, living: &[u8]) -> Vec<String> {
        let auditors = self.machines.iter().filter(|machine| living.contains(&machine.number()));
        for machine in auditors {
            self.audit(machines, machine);
        }
        let Self { is_over, serving, clients, referee, .. } = self;
        is_over.0.close();
        // Those of a machine that is cut off wait in vain.
        let ended = clients.into_iter().filter(|(machine, _)| living.contains(machine));
        for core in ended.map(|(_, core)| core).chain(serving) {
            machines.join(core);
        }
        referee.violations()
    }

    fn audit(&self, machines: &dyn Machines, machine: &Arc<Machine>) {
        let number = machine.number();
        let at = Endpoint { node: node_of(number), lane: LaneId(LANES + self.plan.lanes) };
        let (done, ended) = async_channel::bounded(1);
        let (plan, referee) = (self.plan, Arc::clone(&self.referee));
        let all: Vec<_> = self.machines.iter().map(Arc::clone).collect();
        let (machine, fabric) = (Arc::clone(machine), machines.fabric());
        let places = self.places.clone();
        let program: Program = Box::new(move |executor| {
            let lane = open(executor, &*fabric, at);
            let timer = executor.handle().clone();
            let locker =
                SwitchedLocker::open(Arc::clone(&machine), &places, &Rpc::new(lane.clone()), None);
            let (rng, life) = (timer.env().rng(99), life_of(number));
            let plan = Plan { hold: Duration::ZERO, ..plan };
            let lost_locks = Arc::default();
            let mut user = LockUser { locker, lane, life, referee, lost_locks, plan, rng };
            let body: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
                let until = timer.now().after(plan.patience);
                for lock in 0..plan.locks {
                    let locker = user.locker.clone();
                    match locker.acquire(lock, Mode::Exclusive, Wait::Until(until)).await {
                        Ok(held) => {
                            user.use_lock(lock, Mode::Exclusive).await;
                            drop(held);
                        }
                        Err(why) => user.referee.violate(format!("lock {lock} at {number}: {why}")),
                    }
                }
                user.locker.quiet().await;
                while !all[usize::from(number)].is_idle() && timer.now() < until {
                    timer.sleep(plan.think).await;
                }
                if !all[usize::from(number)].is_idle() {
                    user.referee.violate(format!("machine {number} is not idle"));
                }
                // Not received if the trial was given up.
                let _ = done.send(()).await;
            });
            body
        });
        let core = machines.start(at.node, "audit", program).expect("there is a thread");
        if machines.wait(&ended).is_none() {
            self.referee.violate("an audit does not end".to_owned());
        }
        machines.join(core);
    }
}

/// Opens a lane.
pub fn open(executor: &mut Executor, fabric: &dyn Fabric, at: Endpoint) -> Lane {
    let opened = fabric.open_lane(at, Epoch(1), executor.handle().waker());
    let lane = Lane::new(at, executor.handle().clone(), opened.expect("the lane is free"));
    executor.add_driver(lane.driver());
    lane
}
