//! A running trial: cores by node, and the audit.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId};
use lotus_fabric::lane::Lane;
use lotus_fabric::machines::{Core, Machines, MachinesExt, Program};
use lotus_fabric::region::Rights;
use lotus_fabric::rpc::Rpc;
use lotus_fabric::sim::{SimMachines, Stop};
use lotus_fabric::transport::Fabric;
use lotus_locks::word::Mode;
use lotus_locks::{Member, Roster, Wait};

use super::super::{Referee, TrialError, TrialResult};
use super::ServerTrial;
use super::faults::FaultPlan;
use super::load::{Done, LockUser, LostLocks, MEMORY, Plan, REGION};
use super::lock_servers::{
    AGENT_LANES, LANES_A_LIFE, LockServers, MEMBERSHIP, SERVER, SWITCH, node_of, switch_of,
    switches,
};
use super::locker::AnyLocker;
use super::membership::{Membership, Unsettled};
use crate::fisslock::Homes;
use crate::locker::Locker;
use crate::servers::ServerLock;
use crate::switched::{AgentProgram, Places, Start, SwitchOptions, SwitchProgram};

/// Time without an acknowledgement after which machines repeat packets.
const REPEAT: Duration = Duration::from_micros(20);
/// Time between two checks for events.
const STEP: Duration = Duration::from_micros(20);
/// Number of steps that servers have for forgetting expelled machines.
const LAST_STEPS: u32 = 1_000;

/// State shared by all cores of a trial.
pub(super) struct Shared {
    pub(super) referee: Arc<Referee>,
    pub(super) roster: Roster,
    pub(super) lost_locks: Arc<LostLocks>,
    lost: Mutex<BTreeSet<NodeId>>,
    lives: Mutex<Vec<(u8, Member)>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Records the permanent loss of a node with its locks.
    pub(super) fn lose(&self, node: NodeId) {
        locked(&self.lost).insert(node);
    }

    fn is_lost(&self, node: NodeId) -> bool {
        locked(&self.lost).contains(&node)
    }

    /// All lives so far, with machine numbers.
    pub(super) fn lives(&self) -> Vec<(u8, Member)> {
        locked(&self.lives).clone()
    }
}

/// A lane's report, with the number of its machine.
type LaneDone = (u8, Done);

/// A running trial.
pub(super) struct Cluster<'a> {
    machines: &'a SimMachines,
    trial: ServerTrial,
    plan: Plan,
    options: SwitchOptions,
    fault_plan: FaultPlan,
    lock_servers: LockServers,
    shared: Arc<Shared>,
    unsettled: Unsettled,
    /// Cores that run until the end.
    serving: Vec<Core>,
    /// Clients' cores by machine number.
    clients: Vec<(u8, Core)>,
    /// Closed at the end.
    is_over: (Sender<()>, Receiver<()>),
    reporter: Sender<LaneDone>,
    reports: Receiver<LaneDone>,
}

impl<'a> Cluster<'a> {
    /// Starts the lock servers, the machines with their clients, and the membership.
    pub(super) fn start(
        machines: &'a SimMachines,
        trial: &ServerTrial,
        fault_plan: FaultPlan,
    ) -> Result<Self, TrialError> {
        let ServerTrial { plan, preference, rules, .. } = *trial;
        let may_be_cut_off = trial.faults.may_cut_off();
        // A paused machine misses deadlines.
        let late = if trial.faults.pauses > 0 { trial.faults.pause } else { Duration::ZERO };
        let plan = Plan { may_be_cut_off, late: plan.late + late, ..plan };
        let bytes = (plan.locks * 16).next_multiple_of(4096);
        machines.fabric().register(MEMORY, REGION, bytes, Rights::ALL)?;
        let homes = match trial.server_lock {
            ServerLock::FissLockLocal => {
                Homes::Blocks { locks: plan.locks as u32, machines: plan.machines as u8 }
            }
            _ => Homes::Nowhere,
        };
        let options = SwitchOptions { preference, homes, repeat: REPEAT, rules };
        let (reporter, reports) = async_channel::unbounded();
        let shared = Shared {
            referee: Arc::new(Referee::new(plan.locks)),
            roster: Roster::default(),
            lost_locks: Arc::default(),
            lost: Mutex::default(),
            lives: Mutex::default(),
        };
        let mut cluster = Self {
            machines,
            trial: trial.clone(),
            plan,
            options,
            lock_servers: LockServers::new(trial, &fault_plan, options),
            fault_plan,
            shared: Arc::new(shared),
            unsettled: Unsettled::default(),
            serving: Vec::new(),
            clients: Vec::new(),
            is_over: async_channel::bounded(1),
            reporter,
            reports,
        };
        cluster.start_membership()?;
        if let Some(places) = cluster.lock_servers.places.clone() {
            for rack in 0..plan.racks {
                cluster.start_switch(rack, places.clone(), Start::First)?;
            }
        }
        cluster.start_lock_servers(|_| true)?;
        for machine in 0..plan.machines {
            cluster.start_machine(machine, machine as u8, 0)?;
        }
        Ok(cluster)
    }

    fn start_membership(&mut self) -> Result<(), TrialError> {
        let membership = Membership {
            trial: self.trial.clone(),
            fault_plan: self.fault_plan.clone(),
            lock_servers: self.lock_servers.clone(),
            shared: Arc::clone(&self.shared),
            fabric: self.machines.world().fabric().clone(),
            unsettled: self.unsettled.clone(),
        };
        let fabric = self.machines.fabric();
        self.serve(MEMORY, "membership", move |executor| {
            membership.start(Rpc::new(open(executor, &*fabric, MEMBERSHIP, Epoch(1))));
        })
    }

    /// Starts the switch of a rack.
    fn start_switch(&mut self, rack: u16, places: Places, start: Start) -> Result<(), TrialError> {
        let (options, fabric) = (self.options, self.machines.fabric());
        // The number of racks is at most the number of machines.
        let number = rack as u8;
        self.serve(switch_of(&self.plan, rack), "switch", move |executor| {
            let program = SwitchProgram::open(number, start, &places, options, executor, &*fabric);
            executor.handle().spawn(program.expect("its lanes are free").run());
        })
    }

    /// Starts the server cores of selected nodes.
    fn start_lock_servers(&mut self, is_there: impl Fn(NodeId) -> bool) -> Result<(), TrialError> {
        let cores = self.lock_servers.cores().into_iter().filter(|(at, _)| is_there(at.node));
        for (at, open) in cores {
            let (fabric, roster) = (self.machines.fabric(), self.shared.roster.clone());
            self.serve(at.node, &format!("server-{}", at.lane.0), move |executor| {
                let core = open(executor, &*fabric, roster);
                // The core serves until dropped.
                executor.handle().spawn(async move {
                    std::future::pending::<()>().await;
                    drop(core);
                });
            })?;
        }
        Ok(())
    }

    /// Starts a core that runs until the end.
    fn serve(
        &mut self,
        node: NodeId,
        name: &str,
        set_up: impl FnOnce(&mut Executor) + Send + 'static,
    ) -> Result<(), TrialError> {
        let is_over = self.is_over.1.clone();
        let program: Program = Box::new(move |executor| {
            set_up(executor);
            Box::pin(async move {
                // An error only means that the channel is closed.
                let _closed = is_over.recv().await;
            })
        });
        self.serving.push(self.machines.start(node, name, program)?);
        Ok(())
    }

    /// Starts a life of a machine, under an unused number.
    fn start_machine(&mut self, machine: u16, number: u8, life: u16) -> Result<(), TrialError> {
        let node = node_of(machine);
        let member = self.shared.roster.join(node, self.plan.lanes);
        let member = member.ok_or(TrialError::TooManyNodes)?;
        locked(&self.shared.lives).push((number, member));
        if let Some(places) = self.lock_servers.places.clone() {
            let pool = Arc::clone(&self.lock_servers.pools[usize::from(number)]);
            let fabric = self.machines.fabric();
            self.serve(node, "agent", move |executor| {
                let program = AgentProgram::open(pool, &places, executor, &*fabric, None);
                executor.handle().spawn(program.expect("its lanes are free").run());
            })?;
        }
        for lane in 0..self.plan.lanes {
            let lane = LaneId(life * LANES_A_LIFE + AGENT_LANES + lane);
            self.start_lane(member, number, Endpoint { node, lane })?;
        }
        Ok(())
    }

    fn start_lane(&mut self, member: Member, number: u8, at: Endpoint) -> Result<(), TrialError> {
        let (plan, is_over) = (self.plan, self.is_over.1.clone());
        let (open, done) = (self.opening(member, number, at, plan), self.reporter.clone());
        let program: Program = Box::new(move |executor| {
            let user = open(executor);
            let (timer, locker) = (executor.handle().clone(), user(0).locker);
            let (ended, all) = async_channel::unbounded();
            let users: Vec<_> = (0..plan.clients).map(user).collect();
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
                sum.counts = locker.counts();
                // Not received if the trial was given up.
                let _ = done.send((number, sum)).await;
                // Releases may go on.
                let _closed = is_over.recv().await;
            })
        });
        self.clients.push((number, self.machines.start(at.node, "clients", program)?));
        Ok(())
    }

    /// Opens a machine's lane; the returned function makes the users of the lane by number.
    fn opening(
        &self,
        member: Member,
        number: u8,
        at: Endpoint,
        plan: Plan,
    ) -> impl FnOnce(&mut Executor) -> Box<dyn Fn(u16) -> LockUser<AnyLocker>> + Send + use<> {
        let (fabric, lock_servers) = (self.machines.fabric(), self.lock_servers.clone());
        let shared = Arc::clone(&self.shared);
        move |executor| {
            let lane = open(executor, &*fabric, at, Epoch(member.life.incarnation()));
            let locker =
                lock_servers.locker(&Rpc::new(lane.clone()), member, number, &shared.roster);
            let env = executor.handle().env().clone();
            let stream = u64::from(at.node.0) << 32 | u64::from(at.lane.0) << 16;
            Box::new(move |user| LockUser {
                locker: locker.clone(),
                lane: lane.clone(),
                life: member.life,
                referee: Arc::clone(&shared.referee),
                lost_locks: Arc::clone(&shared.lost_locks),
                plan,
                rng: env.rng(stream | u64::from(user)),
            })
        }
    }

    /// Numbers of machines that survive to the end.
    fn living(&self) -> Vec<u8> {
        let first =
            (0..self.plan.machines).filter(|machine| !self.fault_plan.lost.contains(machine));
        let later = self.plan.machines..self.plan.machines + self.fault_plan.returns.len() as u16;
        first.chain(later).map(|number| number as u8).collect()
    }

    /// Starts the cores of a node that has restarted.
    fn restarted(&mut self, node: NodeId) -> Result<(), TrialError> {
        let rack = switches(&self.plan).position(|switch| switch == node);
        if let Some((rack, places)) = rack.zip(self.lock_servers.places.clone()) {
            return self.start_switch(rack as u16, places, Start::Again);
        }
        if node == SWITCH || node == SERVER {
            self.lock_servers.clear(self.plan.machines);
            return self.start_lock_servers(|at| at == node);
        }
        let returns = self.fault_plan.returns.iter().position(|machine| node_of(*machine) == node);
        let place = returns.expect("it was to return") as u16;
        self.start_machine(node.0 - node_of(0).0, (self.plan.machines + place) as u8, 1)
    }

    /// Runs the trial, waits for the surviving clients, and audits.
    pub(super) fn finish(mut self) -> Result<TrialResult, TrialError> {
        let living = self.living();
        let mut verdict = TrialResult::default();
        let mut left = living.len() * usize::from(self.plan.lanes);
        let referee = Arc::clone(&self.shared.referee);
        // After a violation, further results say nothing new, and may take long.
        while (left > 0 || !self.unsettled.is_over()) && !referee.has_violations() {
            match self.machines.run_for(STEP) {
                Some(Stop::Restarted(node)) => self.restarted(node)?,
                Some(_) => {}
                None => break,
            }
            while let Ok((number, done)) = self.reports.try_recv() {
                verdict.counts += done.counts;
                verdict.refused += done.refused;
                verdict.late = verdict.late.max(done.late);
                left -= usize::from(living.contains(&number));
            }
        }
        if let Some(failure) = self.machines.failure() {
            referee.violate(format!("{left} lanes do not end: {failure}"));
        } else if !referee.has_violations() {
            self.look_at_the_end(&living)?;
        }
        verdict.violations = referee.violations();
        verdict.entered = referee.entered();
        verdict.together = referee.together();
        Ok(verdict)
    }

    /// Audits after the clients have ended: each surviving machine can write under every kept lock,
    /// and no lock is left held. Then ends all cores.
    fn look_at_the_end(self, living: &[u8]) -> Result<(), TrialError> {
        for (number, member) in self.shared.lives() {
            if living.contains(&number) {
                self.audit(number, member)?;
            }
        }
        let is_used = || self.lock_servers.used(|node| self.shared.is_lost(node)) > 0;
        let mut steps = 0;
        while is_used() && steps < LAST_STEPS && self.machines.failure().is_none() {
            self.machines.run_for(Duration::from_millis(1));
            steps += 1;
        }
        if is_used() {
            self.shared
                .referee
                .violate("a server has locks in the end that are not free".to_owned());
        }
        let Self { machines, is_over, serving, clients, .. } = self;
        is_over.0.close();
        // Cores of machines that are cut off wait in vain.
        let ended = clients.into_iter().filter(|(number, _)| living.contains(number));
        for core in ended.map(|(_, core)| core).chain(serving) {
            machines.join(core);
        }
        Ok(())
    }

    fn audit(&self, number: u8, member: Member) -> Result<(), TrialError> {
        let life = u16::from(u16::from(number) >= self.plan.machines);
        let at = Endpoint { node: member.node, lane: LaneId((life + 1) * LANES_A_LIFE - 1) };
        let plan = Plan { hold: Duration::ZERO, ..self.plan };
        let open = self.opening(member, number, at, plan);
        let pool = self.lock_servers.pools.get(usize::from(number)).cloned();
        let (done, ended) = async_channel::bounded(1);
        let program: Program = Box::new(move |executor| {
            let mut user = open(executor)(0);
            let body: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
                user.audit(number).await;
                let timer = user.lane.executor().clone();
                let until = timer.now().after(plan.patience);
                if let Some(pool) = pool {
                    while !pool.is_idle() && timer.now() < until {
                        timer.sleep(STEP).await;
                    }
                    if !pool.is_idle() {
                        user.referee.violate(format!("machine {number} is not idle"));
                    }
                }
                // Not received if the trial was given up.
                let _ = done.send(()).await;
            });
            body
        });
        let core = self.machines.start(at.node, "audit", program)?;
        if self.machines.wait(&ended).is_none() {
            self.shared.referee.violate("an audit does not end".to_owned());
        }
        self.machines.join(core);
        Ok(())
    }
}

impl LockUser<AnyLocker> {
    /// Writes once under every kept lock.
    async fn audit(&mut self, number: u8) {
        let timer = self.lane.executor().clone();
        let until = timer.now().after(self.plan.patience);
        for lock in 0..self.plan.locks {
            if self.lost_locks.is_lost(lock) {
                continue;
            }
            match self.locker.acquire(lock, Mode::Exclusive, Wait::Until(until)).await {
                Ok(held) => {
                    self.use_lock(lock, Mode::Exclusive).await;
                    // Awaited to its end, as the lane is closed next.
                    if let Err(why) = self.locker.release(held).await {
                        let what = format!("lock {lock}: its release at {number} says that {why}");
                        self.referee.violate(what);
                    }
                }
                Err(why) => self.referee.violate(format!("lock {lock} at {number}: {why}")),
            }
        }
        if self.lost_locks.is_empty() {
            self.locker.quiet().await;
        }
    }
}

/// Opens a lane.
fn open(executor: &mut Executor, fabric: &dyn Fabric, at: Endpoint, epoch: Epoch) -> Lane {
    let opened = fabric.open_lane(at, epoch, executor.handle().waker());
    let lane = Lane::new(at, executor.handle().clone(), opened.expect("the lane is free"));
    executor.add_driver(lane.driver());
    lane
}
