//! The membership of a trial: a core of the memory node that injects the faults, expels lost
//! machines, and starts FissLock's recoveries.
//!
//! Faults also happen during a recovery, so two tasks share the core. The first injects faults at
//! their times and leaves notices; the second recovers as long as there are notices.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use lotus_fabric::env::SmallRng;
use lotus_fabric::exec::Handle;
use lotus_fabric::ids::{Epoch, NodeId};
use lotus_fabric::rpc::{RetryPolicy, Rpc};
use lotus_fabric::sim::{Fault, MemoryFate, SimFabric};
use lotus_fabric::transport::Fabric;
use rand::Rng;

use super::faults::{FaultEvent, FaultPlan};
use super::load::{MEMORY, before};
use super::lock_servers::{LockServers, SERVER, SWITCH, node_of, switch_of};
use super::{ServerTrial, cluster::Shared};
use crate::servers::ServerLock;
use crate::switched::{Places, recover};

/// Patience of a recovery call: short enough for a switch that returns meanwhile.
const PATIENCE: RetryPolicy = RetryPolicy::constant(Duration::from_micros(20), 50);
/// Number of recoveries after which a trial is given up.
const MOST_TRIES: u32 = 1_000;

/// Number of pending items: the injecting task and unhandled notices.
#[derive(Clone, Debug, Default)]
pub(super) struct Unsettled(Arc<AtomicU32>);

impl Unsettled {
    fn add(&self, count: u32) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn take(&self, count: u32) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// Whether nothing is pending.
    pub(super) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// The membership before the start of its core.
pub(super) struct Membership {
    pub(super) trial: ServerTrial,
    pub(super) fault_plan: FaultPlan,
    pub(super) lock_servers: LockServers,
    pub(super) shared: Arc<Shared>,
    pub(super) fabric: SimFabric,
    pub(super) unsettled: Unsettled,
}

/// Numbers of the machines that FissLock's recoveries count on.
type Survivors = Rc<RefCell<Vec<u8>>>;

impl Membership {
    /// Starts both tasks on a core of the memory node, with the lane of `rpc`.
    pub(super) fn start(self, rpc: Rpc) {
        let timer = rpc.lane().executor().clone();
        let (notices, noticed) = async_channel::unbounded();
        let survivors: Survivors =
            Rc::new(RefCell::new((0..self.trial.plan.machines as u8).collect()));
        // Counts the first task until its end.
        self.unsettled.add(1);
        if let Some(places) = self.lock_servers.places.clone() {
            let recovering = Recovering {
                rpc,
                places,
                survivors: Rc::clone(&survivors),
                noticed,
                unfinished: self.trial.faults.unfinished,
                unsettled: self.unsettled.clone(),
                shared: Arc::clone(&self.shared),
                timer: timer.clone(),
                rng: timer.env().rng(1),
                epoch: 0,
            };
            timer.spawn(recovering.run());
        }
        let task = FaultTask { membership: self, survivors, notices, timer: timer.clone() };
        timer.spawn(task.run());
    }
}

/// The task that injects faults.
struct FaultTask {
    membership: Membership,
    survivors: Survivors,
    notices: Sender<()>,
    timer: Handle,
}

impl FaultTask {
    async fn run(self) {
        let began = self.timer.now();
        for (at, event) in self.membership.fault_plan.events.clone() {
            self.timer.sleep_until(began.after(at)).await;
            self.carry_out(event);
        }
        self.membership.unsettled.take(1);
    }

    fn inject(&self, fault: Fault) {
        let injected = self.membership.fabric.inject(fault);
        injected.unwrap_or_else(|error| panic!("a fault: {error}"));
    }

    /// Crashes a node, whose locks are lost.
    fn crash(&self, node: NodeId) {
        let Membership { lock_servers, shared, trial, .. } = &self.membership;
        self.inject(Fault::Crash { node, memory: MemoryFate::Lost });
        if !trial.faults.server_returns {
            shared.lost_locks.lose(lock_servers.lost_with(node, trial.plan.locks));
            shared.lose(node);
        }
    }

    fn carry_out(&self, event: FaultEvent) {
        match event {
            FaultEvent::Crash(machine) => self.crash(node_of(machine)),
            FaultEvent::Return(machine, place) => {
                self.inject(Fault::Restart { node: node_of(machine) });
                let number = usize::from(self.membership.trial.plan.machines) + place;
                self.survivors.borrow_mut().push(number as u8);
                self.notice();
            }
            FaultEvent::Pause(machine, lasting) => {
                self.inject(Fault::Pause { node: node_of(machine), lasting });
            }
            FaultEvent::Isolate(machine) => self.inject(Fault::Isolate { node: node_of(machine) }),
            FaultEvent::Rejoin(machine) => self.inject(Fault::Rejoin { node: node_of(machine) }),
            FaultEvent::Expel(machine) => {
                self.expel(machine);
                self.notice();
            }
            FaultEvent::LoseSwitch(rack) => {
                let node = switch_of(&self.membership.trial.plan, rack);
                self.inject(Fault::Crash { node, memory: MemoryFate::Lost });
            }
            FaultEvent::RegainSwitch(rack) => {
                let node = switch_of(&self.membership.trial.plan, rack);
                self.inject(Fault::Restart { node });
                self.notice();
            }
            FaultEvent::LoseServer => self.crash(self.server()),
            FaultEvent::RegainServer => self.inject(Fault::Restart { node: self.server() }),
            FaultEvent::Recover => self.notice(),
        }
    }

    /// The node that a server loss crashes.
    fn server(&self) -> NodeId {
        let is_in_front = self.membership.trial.server_lock == ServerLock::NetLock;
        if is_in_front && self.membership.trial.faults.server_returns { SWITCH } else { SERVER }
    }

    fn notice(&self) {
        if self.membership.lock_servers.places.is_some() {
            self.membership.unsettled.add(1);
            self.notices.try_send(()).expect("it has no bound, and is received");
        }
    }

    /// Expels a machine in its first life: from now on its actions have no effect.
    fn expel(&self, machine: u16) {
        let Membership { shared, fabric, .. } = &self.membership;
        let node = node_of(machine);
        self.survivors.borrow_mut().retain(|number| u16::from(*number) != machine);
        let lives = shared.lives();
        let newest = lives.iter().map(|(_, member)| member.life.incarnation()).max();
        let fenced = fabric.fence(MEMORY, node, Epoch(newest.unwrap_or(0) + 1));
        fenced.unwrap_or_else(|error| panic!("the memory is there: {error}"));
        let of_node = lives.iter().filter(|(_, member)| member.node == node);
        of_node.for_each(|(_, member)| shared.referee.expel(member.life));
        shared.roster.settle(node);
    }
}

/// The task that recovers.
struct Recovering {
    rpc: Rpc,
    places: Places,
    survivors: Survivors,
    noticed: Receiver<()>,
    unfinished: f64,
    unsettled: Unsettled,
    shared: Arc<Shared>,
    timer: Handle,
    rng: SmallRng,
    epoch: u32,
}

impl Recovering {
    async fn run(mut self) {
        while self.noticed.recv().await.is_ok() {
            if self.rng.random_bool(self.unfinished) {
                self.begin_in_vain().await;
            }
            let mut dealt_with = 1;
            let mut failures = Vec::new();
            loop {
                // The next recovery covers earlier notices.
                while self.noticed.try_recv().is_ok() {
                    dealt_with += 1;
                }
                self.epoch += 1;
                let survivors = self.survivors.borrow().clone();
                let recovered =
                    recover(&self.rpc, &self.places, self.epoch, &survivors, PATIENCE).await;
                let Err(why) = recovered else { break };
                failures.push(why.to_string());
                if self.epoch > MOST_TRIES {
                    failures.dedup();
                    self.shared.referee.violate(format!("no recovery succeeds: {failures:?}"));
                    break;
                }
                let micros = self.rng.random_range(1..20);
                self.timer.sleep(Duration::from_micros(micros)).await;
            }
            self.unsettled.take(dealt_with);
        }
    }

    /// Begins a recovery whose coordinator is lost before the end.
    async fn begin_in_vain(&mut self) {
        self.epoch += 1;
        let survivors = self.survivors.borrow().clone();
        let until = self.timer.now().after(Duration::from_micros(self.rng.random_range(1..20)));
        let first = recover(&self.rpc, &self.places, self.epoch, &survivors, PATIENCE);
        // A recovery that ends earlier does no harm.
        let _ = before(first, self.timer.sleep_until(until)).await;
    }
}
