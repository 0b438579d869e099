//! Recoveries of many locks: what is reported and told is longer than a message.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use lotus_fabric::exec::{Executor, Handle};
use lotus_fabric::machines::MachinesExt;
use lotus_fabric::rpc::{RetryPolicy, Rpc};
use lotus_fabric::sim::{
    Config, Fault, Limits, MemoryFate, Profile, Rates, SimMachines, Stop, World,
};
use lotus_locks::{Mode, NotHeld, Wait};
use lotus_locksystems::Locker;
use lotus_locksystems::switched::{Start, SwitchedLocker, recover};
use lotus_locksystems::trial::server_locks::{MEMORY, Plan};

use super::cluster::{COORDINATOR, Cluster, SWITCH, node_of, nodes, open};
use super::families::{SIMULATED, seeds};

/// The machine that holds the most locks, the one that is lost, and the one that looks.
const HOLDER: u8 = 0;
const LOST: u8 = 1;
const OTHER: u8 = 2;
/// Requests of a machine at a time.
const AT_A_TIME: u64 = 64;

type Held = <SwitchedLocker as Locker>::Held;

/// Asks for all locks of a range, some at a time: the answers.
async fn ask_all(
    locker: &SwitchedLocker,
    timer: &Handle,
    locks: std::ops::Range<u64>,
    wait: fn(&Handle) -> Wait,
) -> Vec<Result<Held, NotHeld>> {
    let (answer, answers) = async_channel::unbounded();
    let next = Rc::new(Cell::new(locks.start));
    for _ in 0..AT_A_TIME {
        let (locker, timer, next) = (locker.clone(), timer.clone(), Rc::clone(&next));
        let (answer, end) = (answer.clone(), locks.end);
        timer.clone().spawn(async move {
            while next.get() < end {
                let lock = next.replace(next.get() + 1);
                let asked = locker.acquire(lock, Mode::Exclusive, wait(&timer)).await;
                answer.send(asked).await.expect("it is received");
            }
        });
    }
    let mut all = Vec::new();
    for _ in locks {
        all.push(answers.recv().await.expect("all are answered"));
    }
    all
}

fn soon(timer: &Handle) -> Wait {
    Wait::Until(timer.now().after(Duration::from_millis(100)))
}

/// Has a machine hold all locks of a range until the second channel is closed.
fn hold(
    cluster: &mut Cluster,
    machines: &SimMachines,
    machine: u8,
    locks: std::ops::Range<u64>,
) -> (Receiver<()>, Sender<()>) {
    let ((held, is_held), (enough, is_enough)) =
        (async_channel::bounded(1), async_channel::bounded::<()>(1));
    cluster.visit(machines, machine, move |locker, timer| async move {
        let all = ask_all(&locker, &timer, locks, soon).await;
        assert!(all.iter().all(Result::is_ok), "nobody else wants them");
        held.send(()).await.expect("it is awaited");
        // An error: it is only closed.
        let _closed = is_enough.recv().await;
        drop(all);
    });
    (is_held, enough)
}

/// Has a machine ask for all locks of a range: the number of those that it got.
fn count(
    cluster: &mut Cluster,
    machines: &SimMachines,
    locks: std::ops::Range<u64>,
    wait: fn(&Handle) -> Wait,
) -> usize {
    let (sent, got) = async_channel::bounded(1);
    cluster.visit(machines, OTHER, move |locker, timer| async move {
        let all = ask_all(&locker, &timer, locks, wait).await;
        sent.send(all.iter().filter(|asked| asked.is_ok()).count()).await.expect("it is awaited");
    });
    machines.wait(&got).expect("all are answered")
}

/// Loses a machine, and recovers: the number of recoveries that this took. The switch is lost as
/// well, and returns without its state, so long after the first of them began; there is one more
/// recovery then.
fn lose(cluster: &mut Cluster, machines: &SimMachines, switch: Option<Duration>) -> u32 {
    let (recovered, is_recovered) = async_channel::bounded(1);
    let (fabric, places) = (machines.world().fabric().clone(), cluster.places.clone());
    cluster.serve(machines, MEMORY, "coordinator", move |executor: &mut Executor| {
        let rpc = Rpc::new(open(executor, &fabric, COORDINATOR));
        let crash = Fault::Crash { node: node_of(LOST), memory: MemoryFate::Lost };
        fabric.inject(crash).expect("there is such a node");
        let (timer, task) = (executor.handle().clone(), executor.handle().clone());
        executor.handle().spawn(async move {
            let Some(switch) = switch else { return };
            task.sleep(switch).await;
            let crash = Fault::Crash { node: SWITCH, memory: MemoryFate::Lost };
            fabric.inject(crash).expect("there is such a node");
            fabric.inject(Fault::Restart { node: SWITCH }).expect("it has crashed");
        });
        executor.handle().spawn(async move {
            let patience = RetryPolicy::constant(Duration::from_micros(50), 100);
            let mut epoch = 0;
            // The loss of the switch is noticed later, and is one of its own.
            for pause in std::iter::once(Duration::ZERO).chain(switch.map(|at| at * 10)) {
                timer.sleep(pause).await;
                epoch += 1;
                let survivors = [HOLDER, OTHER];
                while let Err(why) = recover(&rpc, &places, epoch, &survivors, patience).await {
                    assert!(epoch < 10, "{why}");
                    epoch += 1;
                }
            }
            recovered.send(epoch).await.expect("it is awaited");
        });
    });
    loop {
        if machines.run_for(Duration::from_micros(1)) == Some(Stop::Restarted(SWITCH)) {
            cluster.start_switch(machines, 0, Start::Again);
        }
        if let Ok(epoch) = is_recovered.try_recv() {
            return epoch;
        }
    }
}

/// One machine holds `held` locks; another one that holds `lost` of them is lost. Returns the
/// number of recoveries.
#[expect(clippy::print_stdout, reason = "the table is what the suite has to say")]
fn trial(seed: u64, rates: Rates, held: u64, lost: u64, switch: Option<Duration>) -> u32 {
    let plan = Plan { lanes: 0, locks: held + lost, machines: 3, ..Plan::SMALL };
    let limits = Limits { time: Duration::from_secs(100), ..Limits::default() };
    let profile = Profile::named("tofino-cx5").expect("built in");
    let config = Config {
        rates,
        limits,
        switches: vec![SWITCH],
        ..Config::new(seed, nodes(&plan), profile)
    };
    let machines = SimMachines::new(World::new(config).expect("a valid world"));
    let mut cluster = Cluster::start(&machines, plan, SIMULATED);
    let (is_held, enough) = hold(&mut cluster, &machines, HOLDER, 0..held);
    machines.wait(&is_held).expect("it holds them");
    let (is_held, _never) = hold(&mut cluster, &machines, LOST, held..held + lost);
    machines.wait(&is_held).expect("it holds them");
    let began = machines.world().now();
    let tries = lose(&mut cluster, &machines, switch);
    let ended = machines.world().now();
    println!("{held} locks, {tries} tries, {:?}", ended - began);
    // The others are not asked for, because of the time that it takes.
    let some = 0..held.min(10_000);
    assert_eq!(count(&mut cluster, &machines, some.clone(), |_| Wait::No), 0, "they are held");
    assert_eq!(count(&mut cluster, &machines, held..held + lost, soon), lost as usize, "free");
    drop(enough);
    let released = count(&mut cluster, &machines, some.clone(), soon);
    assert_eq!(released as u64, some.end, "released");
    let violations = cluster.finish(&machines, &[]);
    assert!(violations.is_empty(), "{violations:#?}");
    tries
}

#[test]
fn a_machine_that_holds_a_hundred_thousand_locks_goes_on_holding_them() {
    trial(1, Rates::default(), 100_000, 1_000, None);
}

#[test]
fn pages_that_are_lost_doubled_and_late_are_asked_for_again() {
    let rates = Rates {
        message_loss: 0.1,
        message_duplication: 0.1,
        message_delay: 0.1,
        message_delay_max: Duration::from_micros(60),
        ..Rates::default()
    };
    for seed in 0..seeds() {
        trial(seed, rates.clone(), 2_000, 500, None);
    }
}

#[test]
fn a_switch_that_is_lost_between_pages_is_rewritten_with_all_of_them() {
    let mut again = 0;
    for micros in (15..50).step_by(5) {
        let switch = Some(Duration::from_micros(micros));
        again += u32::from(trial(1, Rates::default(), 10_000, 100, switch) > 2);
    }
    assert!(again > 0, "a rewrite was under way");
}
