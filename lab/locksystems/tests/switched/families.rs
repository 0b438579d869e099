//! What the locks promise, on each fabric.

use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_fabric::local::LocalFabric;
use lotus_fabric::machines::{Machines, MachinesExt, Threads};
use lotus_fabric::sim::{Config, Limits, Profile, Rates, SimMachines, World};
use lotus_fabric::tcp::{self, TcpFabric};
use lotus_fabric::transport::Fabric;
use lotus_locksystems::fisslock::{Homes, Preference};
use lotus_locksystems::switched::SwitchOptions;
use lotus_locksystems::trial::server_locks::{Done, Plan};

use super::cluster::{Cluster, nodes, switches};
use super::losses;
use super::lossy::Lossy;

/// Seeds of each family in simulation, if the environment does not say.
const SEEDS: u64 = 6;

pub fn seeds() -> u64 {
    std::env::var("LOTUS_LOCK_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

/// SwitchOptions on virtual time.
pub const SIMULATED: SwitchOptions = SwitchOptions::repeating_after(Duration::from_micros(20));
/// SwitchOptions on threads of a machine that is busy with other things.
const REAL: SwitchOptions = SwitchOptions::repeating_after(Duration::from_millis(2));

const CALM: [(&str, Plan); 6] = [
    ("readers and writers", Plan::SMALL),
    ("all kinds of requests", Plan::SMALL.mixed()),
    ("one lock", Plan { locks: 1, ..Plan::SMALL }),
    ("writers", Plan { shared: 0.0, ..Plan::SMALL.mixed() }),
    ("three racks", Plan { racks: 3, locks: 4, ..Plan::SMALL.mixed() }),
    ("mostly readers", Plan { shared: 0.9, locks: 1, ..Plan::SMALL.mixed() }),
];

/// A trial: what was done, and the largest number of holders of a lock at one time.
#[expect(clippy::print_stdout, reason = "the table is what the suite has to say")]
fn trial(machines: &dyn Machines, name: &str, plan: Plan, options: SwitchOptions) -> (Done, usize) {
    let cluster = Cluster::start(machines, plan, options);
    let done = cluster.wait(machines);
    let referee = std::sync::Arc::clone(&cluster.referee);
    let living: Vec<_> = (0..plan.machines as u8).collect();
    let violations = cluster.finish(machines, &living);
    println!("{name}: {} held, {} refused", done.entered, done.refused);
    assert!(violations.is_empty(), "{name}: {violations:#?}");
    (done, referee.together())
}

/// What must have happened in a trial without faults.
fn check(name: &str, plan: Plan, (done, together): (Done, usize), is_simulated: bool) {
    let all = u64::from(plan.machines * plan.lanes * plan.clients) * u64::from(plan.rounds);
    assert_eq!(done.entered + done.refused, all, "{name}");
    if plan.refusing + plan.hurried + plan.dropped == 0.0 {
        assert_eq!(done.refused, 0, "{name}: all wait for as long as it takes");
    } else {
        assert!(done.entered > all / 5, "{name}: {} of {all}", done.entered);
    }
    if is_simulated {
        assert_eq!(together > 1, plan.shared > 0.0, "{name}: readers share");
    }
}

pub fn simulated(seed: u64, plan: &Plan, rates: Rates) -> SimMachines {
    let profile = Profile::named("tofino-cx5").expect("built in");
    let limits = Limits { time: Duration::from_secs(5), ..Limits::default() };
    let config = Config {
        rates,
        limits,
        switches: switches(plan),
        ..Config::new(seed, nodes(plan), profile)
    };
    SimMachines::new(World::new(config).expect("a valid world"))
}

/// Homes of locks in the runs of every other seed.
pub fn homes(plan: &Plan, seed: u64) -> Homes {
    let (locks, machines) = (plan.locks as u32, plan.machines as u8);
    if seed % 2 == 1 { Homes::Blocks { locks, machines } } else { Homes::Nowhere }
}

#[test]
fn simulated_machines_keep_the_promises() {
    for preference in [Preference::Readers, Preference::Writers] {
        for (name, plan) in CALM {
            for seed in 0..seeds() {
                let options = SwitchOptions { preference, homes: homes(&plan, seed), ..SIMULATED };
                let machines = simulated(seed, &plan, Rates::default());
                let name = format!("sim, {name}, {preference:?} first, seed {seed}");
                check(&name, plan, trial(&machines, &name, plan, options), true);
            }
        }
    }
}

#[test]
fn lost_doubled_and_late_packets_break_no_promise() {
    let rates = Rates {
        message_loss: 0.2,
        message_duplication: 0.1,
        message_delay: 0.2,
        message_delay_max: Duration::from_micros(60),
        ..Rates::default()
    };
    for preference in [Preference::Readers, Preference::Writers] {
        for (name, plan) in CALM {
            // A request that is not to wait may be lost often before it is known that it would.
            for seed in 0..seeds() {
                let options = SwitchOptions { preference, homes: homes(&plan, seed), ..SIMULATED };
                let machines = simulated(seed, &plan, rates.clone());
                let name = format!("sim, lossy, {name}, {preference:?} first, seed {seed}");
                trial(&machines, &name, plan, options);
            }
        }
    }
}

/// A plan for threads, which may stand still for long.
fn on_threads(plan: Plan) -> Plan {
    Plan {
        machines: 3,
        hurry: Duration::from_millis(1),
        late: Duration::from_secs(5),
        patience: Duration::from_secs(20),
        ..plan
    }
}

fn threads<F: Fabric + Clone + 'static>(ground: &str, fabric: impl Fn(u16) -> F, seed: u64) {
    for (name, plan) in CALM {
        let plan = on_threads(plan);
        let machines = Threads::over(fabric(nodes(&plan)), Env::real(seed));
        let name = format!("{ground}, {name}");
        check(&name, plan, trial(&machines, &name, plan, REAL), false);
    }
}

fn lossy_threads<F: Fabric + Clone + 'static>(ground: &str, fabric: impl Fn(u16) -> F) {
    for (seed, (name, plan)) in (0..).zip(CALM) {
        let plan = Plan { rounds: 15, ..on_threads(plan) };
        let env = Env::real(seed);
        let fabric = Lossy { fabric: fabric(nodes(&plan)), env: env.clone() };
        let name = format!("{ground}, lossy, {name}");
        trial(&Threads::over(fabric, env), &name, plan, REAL);
    }
}

fn sockets(nodes: u16) -> TcpFabric {
    let fabric = TcpFabric::start(tcp::Config::loopback(nodes), Env::real(1));
    fabric.expect("loopback has free ports")
}

/// Recoveries one after another, without a loss, while threads take locks.
#[expect(clippy::print_stdout, reason = "the table is what the suite has to say")]
fn recovering_threads<F: Fabric + Clone + 'static>(ground: &str, fabric: impl Fn(u16) -> F) {
    let plan = Plan { rounds: 40, ..on_threads(Plan::SMALL.mixed()) };
    let env = Env::real(1);
    let fabric = Lossy { fabric: fabric(nodes(&plan)), env: env.clone() };
    let machines = Threads::over(fabric, env);
    let mut cluster = Cluster::start(&machines, plan, REAL);
    let (is_enough, count) = losses::start_recovering(&mut cluster, &machines);
    let done = cluster.wait(&machines);
    is_enough.close();
    let count = machines.wait(&count).expect("the coordinator ends");
    assert!(count > 0, "{ground}: no recovery is finished");
    let living: Vec<_> = (0..plan.machines as u8).collect();
    let violations = cluster.finish(&machines, &living);
    println!("{ground}: {} held, {count} recoveries", done.entered);
    assert!(violations.is_empty(), "{ground}: {violations:#?}");
}

#[test]
fn threads_of_one_process_keep_the_promises() {
    threads("local", LocalFabric::new, 1);
    lossy_threads("local", LocalFabric::new);
    recovering_threads("local", LocalFabric::new);
}

#[test]
fn machines_behind_sockets_keep_the_promises() {
    threads("tcp", sockets, 1);
    lossy_threads("tcp", sockets);
    recovering_threads("tcp", sockets);
}
