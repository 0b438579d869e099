//! Machines and the switch are lost, and a coordinator recovers.
//!
//! The coordinator is a core of the memory node, which stands for the membership: it has nodes
//! crash, or takes a machine that is cut off for dead, fences the lost at the memory, and recovers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use lotus_fabric::env::SmallRng;
use lotus_fabric::exec::{Executor, Handle};
use lotus_fabric::ids::{Epoch, NodeId};
use lotus_fabric::machines::Machines;
use lotus_fabric::rpc::{RetryPolicy, Rpc};
use lotus_fabric::sim::{
    Config, Fault, Limits, MemoryFate, Profile, Rates, SimFabric, SimMachines, Stop, World,
};
use lotus_fabric::transport::Fabric;
use lotus_locks::Roster;
use lotus_locksystems::switched::{Places, Start, SwitchOptions, recover, recover_losses};
use lotus_locksystems::trial::Referee;
use lotus_locksystems::trial::server_locks::{MEMORY, Plan, before};
use rand::Rng;

use super::cluster::{COORDINATOR, Cluster, life_of, node_of, nodes, open, switch_of, switches};
use super::families::{SIMULATED, homes, seeds, simulated};

/// What happens, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    /// A machine crashes.
    Machine(u8),
    /// A machine is cut off from all others, and is expelled. It is back when that is over.
    CutOff(u8),
    /// The cores of a machine stand still for longer than it takes to expel it.
    Paused(u8),
    /// The switch of a rack crashes, and returns without its state.
    Switch,
    /// The switch of a rack crashes, and a machine beside it.
    Both(u8),
    /// No loss, but a recovery begins, and another one before it is over.
    Nobody,
}

impl Loss {
    /// The machine that is lost, if one is.
    const fn machine(self) -> Option<u8> {
        match self {
            Self::Machine(machine)
            | Self::CutOff(machine)
            | Self::Paused(machine)
            | Self::Both(machine) => Some(machine),
            Self::Switch | Self::Nobody => None,
        }
    }
}

/// The membership.
struct Coordinator {
    plan: Plan,
    fabric: SimFabric,
    rpc: Rpc,
    places: Places,
    referee: Arc<Referee>,
    timer: Handle,
    rng: SmallRng,
    survivors: Vec<u8>,
    epoch: u32,
    /// Losses that were recovered from.
    recovered: Arc<AtomicUsize>,
}

/// Tries of one call: they end soon enough for a switch that returns meanwhile.
const PATIENCE: RetryPolicy = RetryPolicy::constant(Duration::from_micros(20), 50);

impl Coordinator {
    async fn sleep(&mut self, micros: std::ops::Range<u64>) {
        let micros = self.rng.random_range(micros);
        self.timer.sleep(Duration::from_micros(micros)).await;
    }

    fn inject(&self, fault: Fault) {
        self.fabric.inject(fault).expect("there is such a node");
    }

    fn crash(&self, node: NodeId) {
        self.inject(Fault::Crash { node, memory: MemoryFate::Lost });
    }

    /// Expels a machine: nothing that it does has an effect any more.
    fn expel(&mut self, machine: u8) {
        self.survivors.retain(|other| *other != machine);
        let fenced = self.fabric.fence(MEMORY, node_of(machine), Epoch(2));
        fenced.expect("the memory is there");
        self.referee.expel(life_of(machine));
    }

    async fn run(mut self, losses: Vec<Loss>) {
        for loss in losses {
            self.sleep(20..200).await;
            let rack = self.rng.random_range(0..self.plan.racks);
            let switch = switch_of(&self.plan, rack);
            match loss {
                Loss::Machine(machine) => self.crash(node_of(machine)),
                Loss::CutOff(machine) => self.inject(Fault::Isolate { node: node_of(machine) }),
                Loss::Paused(machine) => {
                    let lasting = Duration::from_micros(self.rng.random_range(200..600));
                    self.inject(Fault::Pause { node: node_of(machine), lasting });
                }
                Loss::Switch => self.crash(switch),
                Loss::Both(machine) => {
                    self.crash(switch);
                    self.sleep(1..30).await;
                    self.crash(node_of(machine));
                }
                Loss::Nobody => {}
            }
            // Until the loss is found.
            self.sleep(10..100).await;
            if let Some(machine) = loss.machine() {
                self.expel(machine);
            }
            if let Loss::Switch | Loss::Both(_) = loss {
                self.inject(Fault::Restart { node: switch });
            }
            if loss == Loss::Nobody || self.rng.random_bool(0.3) {
                self.begin_in_vain().await;
            }
            self.recover().await;
            if let Loss::CutOff(machine) = loss {
                self.inject(Fault::Rejoin { node: node_of(machine) });
            }
        }
    }

    /// A coordinator that is lost on its way.
    async fn begin_in_vain(&mut self) {
        self.epoch += 1;
        let (rpc, places, survivors) =
            (self.rpc.clone(), self.places.clone(), self.survivors.clone());
        let (epoch, timer) = (self.epoch, self.timer.clone());
        let task = timer.clone();
        let until = timer.now().after(Duration::from_micros(self.rng.random_range(1..20)));
        let first = recover(&rpc, &places, epoch, &survivors, PATIENCE);
        // Whether it is over before that does not matter.
        let _ = before(first, task.sleep_until(until)).await;
    }

    /// Recovers, whatever it takes.
    async fn recover(&mut self) {
        let mut failures = Vec::new();
        for _ in 0..50 {
            self.epoch += 1;
            let recovered =
                recover(&self.rpc, &self.places, self.epoch, &self.survivors, PATIENCE).await;
            let Err(why) = recovered else {
                self.recovered.fetch_add(1, Ordering::Relaxed);
                return;
            };
            failures.push(why.to_string());
            self.sleep(1..20).await;
        }
        failures.dedup();
        self.referee.violate(format!("no recovery succeeds: {failures:?}"));
    }
}

fn start_coordinator(
    cluster: &mut Cluster,
    machines: &SimMachines,
    losses: &[Loss],
    seed: u64,
) -> Arc<AtomicUsize> {
    let recovered = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&recovered);
    let (places, referee) = (cluster.places.clone(), Arc::clone(&cluster.referee));
    let fabric = machines.world().fabric().clone();
    let (plan, losses) = (cluster.plan, losses.to_vec());
    let all = 0..plan.machines as u8;
    cluster.serve(machines, MEMORY, "coordinator", move |executor: &mut Executor| {
        let rpc = Rpc::new(open(executor, &fabric, COORDINATOR));
        let timer = executor.handle().clone();
        let rng = timer.env().rng(seed);
        let (survivors, epoch) = (all.collect(), 0);
        let coordinator = Coordinator {
            plan,
            fabric,
            rpc,
            places,
            referee,
            timer,
            rng,
            survivors,
            epoch,
            recovered,
        };
        executor.handle().spawn(coordinator.run(losses));
    });
    counted
}

/// Starts a core that recovers again and again, without a loss, until the first of these
/// is closed; then the other one has the number of recoveries that were finished.
pub fn start_recovering(
    cluster: &mut Cluster,
    machines: &dyn Machines,
) -> (Sender<()>, Receiver<u32>) {
    let ((enough, is_enough), (count, counted)) =
        (async_channel::bounded(1), async_channel::bounded(1));
    let (places, referee) = (cluster.places.clone(), Arc::clone(&cluster.referee));
    let (fabric, all) = (machines.fabric(), 0..cluster.plan.machines as u8);
    cluster.serve(machines, MEMORY, "coordinator", move |executor: &mut Executor| {
        let rpc = Rpc::new(open(executor, &*fabric, COORDINATOR));
        let timer = executor.handle().clone();
        let survivors: Vec<_> = all.collect();
        executor.handle().spawn(async move {
            let patience = RetryPolicy::constant(Duration::from_millis(5), 1_000);
            let (mut epoch, mut finished) = (0, 0);
            while !is_enough.is_closed() {
                epoch += 1;
                match recover(&rpc, &places, epoch, &survivors, patience).await {
                    Ok(_) => finished += 1,
                    Err(why) => referee.violate(format!("a recovery fails: {why}")),
                }
                timer.sleep(Duration::from_millis(2)).await;
            }
            count.send(finished).await.expect("it is awaited");
        });
    });
    (enough, counted)
}

/// Lanes of machines that are lost report nothing.
fn lost(losses: &[Loss]) -> Vec<u8> {
    losses.iter().filter_map(|loss| loss.machine()).collect()
}

fn trial(losses: &[Loss], plan: Plan, rates: &Rates, seed: u64) {
    let profile = Profile::named("tofino-cx5").expect("built in");
    let limits = Limits { time: Duration::from_secs(5), ..Limits::default() };
    let config = Config {
        rates: rates.clone(),
        limits,
        switches: switches(&plan),
        ..Config::new(seed, nodes(&plan), profile)
    };
    let machines = SimMachines::new(World::new(config).expect("a valid world"));
    let options = SwitchOptions { homes: homes(&plan, seed), ..SIMULATED };
    let mut cluster = Cluster::start(&machines, plan, options);
    let recovered = start_coordinator(&mut cluster, &machines, losses, seed);
    let is_over = || recovered.load(Ordering::Relaxed) == losses.len();
    finish(cluster, &machines, &lost(losses), is_over, &format!("{losses:?}, seed {seed}"));
}

/// Runs until all machines that live have done their part and all `is_over`, and audits.
#[expect(clippy::print_stdout, reason = "the table is what the suite has to say")]
fn finish(
    mut cluster: Cluster,
    machines: &SimMachines,
    lost: &[u8],
    is_over: impl Fn() -> bool,
    name: &str,
) {
    let plan = cluster.plan;
    let living: Vec<_> =
        (0..plan.machines as u8).filter(|machine| !lost.contains(machine)).collect();
    // Machines that are lost may have ended before.
    let reports = usize::from(plan.lanes) * living.len();
    let mut entered = 0;
    let mut left = reports;
    while left > 0 || !is_over() {
        match machines.run_for(Duration::from_micros(10)) {
            Some(Stop::Restarted(node)) => {
                let rack = switches(&plan).iter().position(|switch| *switch == node);
                let rack = rack.expect("nothing else returns") as u16;
                cluster.start_switch(machines, rack, Start::Again);
            }
            Some(_) => {}
            None => break,
        }
        while let Ok((machine, done)) = cluster.reports().try_recv() {
            entered += done.entered;
            left -= usize::from(living.contains(&machine));
        }
    }
    assert!(
        machines.failure().is_none(),
        "{name}, {left} do not end: {:?}, {:?}",
        machines.failure(),
        cluster.referee.violations()
    );
    let at = machines.world().now();
    let violations = cluster.finish(machines, &living);
    println!("{name}: {entered} held in {at:?}");
    assert!(violations.is_empty(), "{name}: {violations:#?}");
}

/// Long enough for all losses.
const PLAN: Plan = Plan { rounds: 150, may_be_cut_off: true, ..Plan::SMALL.mixed() };

fn trials(losses: &[Loss]) {
    let lossy = Rates {
        message_loss: 0.1,
        message_duplication: 0.1,
        message_delay: 0.1,
        message_delay_max: Duration::from_micros(60),
        ..Rates::default()
    };
    // A machine that stands still misses deadlines.
    let pauses = losses.iter().any(|loss| matches!(loss, Loss::Paused(_)));
    let late = if pauses { Duration::from_millis(1) } else { PLAN.late };
    let plan = Plan { late, ..PLAN };
    for seed in 0..seeds() {
        for rates in [&Rates::default(), &lossy] {
            trial(losses, plan, rates, seed);
            trial(losses, Plan { locks: 1, machines: 5, ..plan }, rates, seed);
            trial(losses, Plan { racks: 3, locks: 3, ..plan }, rates, seed);
        }
    }
}

#[test]
fn a_machine_is_lost() {
    trials(&[Loss::Machine(1)]);
}

#[test]
fn machines_are_lost_one_after_another() {
    trials(&[Loss::Machine(0), Loss::CutOff(2)]);
}

#[test]
fn a_machine_is_cut_off_and_goes_on_alone() {
    trials(&[Loss::CutOff(3), Loss::Nobody]);
}

#[test]
fn a_machine_stands_still_and_goes_on_when_it_is_expelled() {
    trials(&[Loss::Paused(1), Loss::Nobody]);
}

#[test]
fn the_switch_loses_its_state() {
    trials(&[Loss::Switch, Loss::Switch]);
}

#[test]
fn the_switch_and_a_machine_are_lost() {
    trials(&[Loss::Both(0), Loss::Machine(3)]);
}

#[test]
fn recoveries_that_are_not_finished_are_overtaken() {
    trials(&[Loss::Nobody, Loss::Nobody, Loss::Nobody]);
}

/// The membership tells of the loss. Each call of a recovery is tried once and messages are lost,
/// so that recoveries fail when some machines go on already.
#[test]
fn recoveries_that_fail_on_their_way_are_begun_again() {
    const LOST: u8 = 1;
    let rates = Rates { message_loss: 0.1, ..Rates::default() };
    for seed in 0..seeds() {
        let machines = simulated(seed, &PLAN, rates.clone());
        let mut cluster = Cluster::start(&machines, PLAN, SIMULATED);
        let (places, referee) = (cluster.places.clone(), Arc::clone(&cluster.referee));
        let fabric = machines.world().fabric().clone();
        cluster.serve(&machines, MEMORY, "membership", move |executor: &mut Executor| {
            let rpc = Rpc::new(open(executor, &fabric, COORDINATOR));
            let (roster, timer) = (Roster::default(), executor.handle().clone());
            for machine in 0..PLAN.machines as u8 {
                roster.join(node_of(machine), PLAN.lanes).expect("there are names for them");
            }
            let peers = roster.clone();
            executor.handle().spawn(async move {
                let (every, once) = (
                    Duration::from_micros(10),
                    RetryPolicy::constant(Duration::from_micros(20), 1),
                );
                recover_losses(&rpc, &places, &peers, every, once, |_, _| ()).await;
            });
            executor.handle().spawn(async move {
                timer.sleep(Duration::from_micros(100)).await;
                let crash = Fault::Crash { node: node_of(LOST), memory: MemoryFate::Lost };
                fabric.inject(crash).expect("there is such a node");
                timer.sleep(Duration::from_micros(50)).await;
                let fenced = fabric.fence(MEMORY, node_of(LOST), Epoch(2));
                fenced.expect("the memory is there");
                referee.expel(life_of(LOST));
                roster.settle(node_of(LOST));
            });
        });
        finish(cluster, &machines, &[LOST], || true, &format!("membership, seed {seed}"));
    }
}
