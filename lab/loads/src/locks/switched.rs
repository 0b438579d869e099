//! Load on FissLock: the cores of switches and agents, each on a node of the machines.
//!
//! The switches are the nodes behind the auditing node. The agent of a compute node has the two
//! lanes behind the lanes of its clients, which are the machine's cores.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_channel::Receiver;
use lotus_benchmarks::deployment::DeployError;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, LaneId, NodeId};
use lotus_fabric::machines::{Core, CpuCharge as TimedCharge, Machines, Program};
use lotus_fabric::rpc::{RetryPolicy, Rpc};
use lotus_fabric::transport::{Fabric, FabricError};
use lotus_locks::Member;
use lotus_locksystems::fisslock::Homes;
use lotus_locksystems::fisslock::capacity::CapacityError;
use lotus_locksystems::servers::CpuCharge;
use lotus_locksystems::switched::{
    AgentProgram, Machine, MachineLanes, Places, Recovered, Start, SwitchOptions, SwitchProgram,
    SwitchedLocker, recover_losses,
};

use super::LossRecovery;
use super::server_locks::Service;
use crate::lanes::{Clients, RunContext, refused};

/// Time without an acknowledgement after which packets are repeated, where time is virtual. Packets
/// are lost there only with their node; an agent that all clients ask at once is late by about this
/// time.
const REPEAT_SIMULATED: Duration = Duration::from_micros(100);
/// The same time for real clocks: threads may pause for longer, and then repeat in vain.
const REPEAT: Duration = Duration::from_millis(2);

/// Number of repetition intervals between two checks of the membership for losses.
const LOOKS: u32 = 5;
/// Tries of a message of a recovery.
const TRIES: u32 = 100;

/// A switch and its machines.
pub(super) struct Switched {
    places: Places,
    options: SwitchOptions,
    /// State shared by the lanes of each compute node.
    pools: Vec<Arc<Machine>>,
    /// Charges a core of a machine for a packet.
    charge: Option<(TimedCharge, Duration)>,
    /// The last completed recovery.
    recovery: Arc<Mutex<Option<LossRecovery>>>,
}

impl Switched {
    /// Lanes of an agent.
    pub(super) const LANES: u16 = 2;

    /// Creates a switch for these clients and `locks` locks, which may have homes.
    ///
    /// # Errors
    /// [`DeployError`] if the switch has no room for the clients or locks.
    pub(super) fn new(
        machines: &dyn Machines,
        clients: &Clients,
        locks: u64,
        has_homes: bool,
    ) -> Result<Self, DeployError> {
        let threads = clients.threads;
        let cores = u8::try_from(threads).map_err(|_| CapacityError::Cores(threads.into()));
        let cores = cores.map_err(refused)?;
        let machine = |node| {
            let agent = Endpoint { node: NodeId(node), lane: LaneId(threads) };
            MachineLanes { agent, clients: LaneId(0), cores }
        };
        let switch = |node| Endpoint { node, lane: LaneId(0) };
        let switches = clients.switches().into_iter().map(switch).collect();
        let places = Places::new(switches, (1..=clients.cns).map(machine).collect(), locks);
        let places = places.map_err(refused)?;
        let repeat = if machines.cpu_charge().is_some() { REPEAT_SIMULATED } else { REPEAT };
        let homes = match has_homes {
            // There are at most 255 machines.
            true => Homes::Blocks { locks: places.locks(), machines: clients.cns as u8 },
            false => Homes::Nowhere,
        };
        let usual = SwitchOptions::repeating_after(repeat);
        let preference = clients.server_options.prefer.unwrap_or(usual.preference);
        let options = SwitchOptions { homes, preference, ..usual };
        // There are at most 255 machines.
        let numbers = 0..clients.cns as u8;
        let pools = numbers.map(|number| Arc::new(Machine::new(number, &places, options)));
        let pools = pools.collect();
        let charge =
            machines.cpu_charge().map(|charge| (charge, clients.server_options.request / 2));
        Ok(Self { places, options, pools, charge, recovery: Arc::default() })
    }
}

impl Service for Switched {
    type Locker = SwitchedLocker;

    fn start(
        &self,
        machines: &dyn Machines,
        run_context: &Arc<RunContext>,
        stopped: &Receiver<()>,
    ) -> Result<Vec<(NodeId, Core)>, DeployError> {
        let mut cores = Vec::new();
        for rack in 0..self.places.racks() {
            let (places, options) = (self.places.clone(), self.options);
            let switch = serve(run_context, machines.fabric(), stopped, move |executor, fabric| {
                let start = Start::First;
                let program = SwitchProgram::open(rack, start, &places, options, executor, fabric)?;
                executor.handle().spawn(program.run());
                Ok(())
            });
            let (name, node) = (format!("switch-{rack}"), self.places.switch(rack).node);
            cores.push((node, machines.start(node, &name, switch).map_err(refused)?));
        }
        for (pool, node) in self.pools.iter().zip(1..) {
            let (pool, places) = (Arc::clone(pool), self.places.clone());
            // The first compute node is never lost.
            let peers = (node == 1).then(|| run_context.roster().clone());
            let (repeat, charge) = (self.options.repeat, self.charge.clone());
            let recovery = Arc::clone(&self.recovery);
            let agent = serve(run_context, machines.fabric(), stopped, move |executor, fabric| {
                let program =
                    AgentProgram::open(pool, &places, executor, fabric, cpu_charge(charge))?;
                let spawner = executor.handle().clone();
                if let Some(peers) = peers {
                    let rpc = program.control().clone();
                    let patience = RetryPolicy::constant(repeat, TRIES);
                    let note = move |over: Recovered, took| {
                        let mut last = recovery.lock().unwrap_or_else(PoisonError::into_inner);
                        *last = Some(LossRecovery { over, took });
                    };
                    spawner.spawn(async move {
                        let every = LOOKS * repeat;
                        recover_losses(&rpc, &places, &peers, every, patience, note).await;
                    });
                }
                spawner.spawn(program.run());
                Ok(())
            });
            let (name, node) = (format!("agent-{node}"), NodeId(node));
            cores.push((node, machines.start(node, &name, agent).map_err(refused)?));
        }
        Ok(cores)
    }

    fn open(&self, rpc: &Rpc, member: Member, _run_context: &RunContext) -> SwitchedLocker {
        let pool = &self.pools[usize::from(member.node.0 - 1)];
        SwitchedLocker::open(Arc::clone(pool), &self.places, rpc, cpu_charge(self.charge.clone()))
    }

    fn used(&self) -> Result<usize, String> {
        Ok(self.pools.iter().map(|pool| pool.in_use()).sum())
    }

    fn recovery(&self) -> Option<LossRecovery> {
        *self.recovery.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Charge of a core for each packet.
fn cpu_charge(charge: Option<(TimedCharge, Duration)>) -> Option<CpuCharge> {
    charge.map(|(charge, cost)| -> CpuCharge { Box::new(move || charge(cost)) })
}

/// The program of a core that serves until the end; a failure of `open` fails the run.
fn serve(
    run_context: &Arc<RunContext>,
    fabric: Arc<dyn Fabric>,
    stopped: &Receiver<()>,
    open: impl FnOnce(&mut Executor, &dyn Fabric) -> Result<(), FabricError> + Send + 'static,
) -> Program {
    let (run_context, stopped) = (Arc::clone(run_context), stopped.clone());
    Box::new(move |executor| {
        if let Err(error) = open(executor, &*fabric) {
            run_context.progress().fail(error.to_string());
        }
        Box::pin(async move {
            // The core serves until the end.
            let _ = stopped.recv().await;
        })
    })
}
