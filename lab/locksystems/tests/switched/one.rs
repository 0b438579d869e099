//! What one request sees, in simulation: deadlines without a switch, dropped futures and holds,
//! requests that do not wait, a writer among readers, garbage.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::{Executor, Handle};
use lotus_fabric::ids::{Endpoint, LaneId, NodeId};
use lotus_fabric::machines::{Machines, MachinesExt, Program};
use lotus_fabric::rpc::Rpc;
use lotus_fabric::sim::{Config, Fault, Profile, SimFabric, SimMachines, World};
use lotus_locks::{Mode, NotHeld, Wait};
use lotus_locksystems::Locker;
use lotus_locksystems::fisslock::Preference;
use lotus_locksystems::switched::{
    AgentProgram, Machine, MachineLanes, PACKETS, Places, Start, SwitchOptions, SwitchProgram,
    SwitchedLocker,
};
use lotus_locksystems::trial::server_locks::before;

use super::cluster::open;
use super::families::SIMULATED;

const SWITCH: NodeId = NodeId(0);
const MACHINES: u16 = 3;
/// A machine's lane behind those of its agent.
const CLIENT: LaneId = LaneId(2);

/// Everything that a test has in hand: one program on the last node uses all machines' locks.
struct Hand {
    /// The locks by machine.
    lockers: Vec<SwitchedLocker>,
    machines: Vec<Arc<Machine>>,
    fabric: SimFabric,
    timer: Handle,
    /// A lane of a node that is no machine.
    stranger: Rpc,
    places: Vec<Endpoint>,
}

impl Hand {
    fn after(&self, micros: u64) -> Wait {
        Wait::Until(self.timer.now().after(Duration::from_micros(micros)))
    }

    async fn sleep(&self, micros: u64) {
        self.timer.sleep(Duration::from_micros(micros)).await;
    }

    async fn take(&self, machine: usize, mode: Mode) -> <SwitchedLocker as Locker>::Held {
        let held = self.lockers[machine].acquire(0, mode, self.after(100)).await;
        held.expect("it is free, or shared")
    }

    /// Nothing is left after all releases.
    async fn is_left_free(&self) {
        self.sleep(500).await;
        assert!(self.machines.iter().all(|machine| machine.is_idle()));
        drop(self.take(1, Mode::Exclusive).await);
        self.sleep(500).await;
    }
}

fn start(machines: &SimMachines, node: NodeId, program: Program) {
    machines.start(node, "one", program).expect("a core");
}

/// Runs `body` to its end.
fn with<F: Future<Output = ()> + 'static>(
    options: SwitchOptions,
    body: impl FnOnce(Rc<Hand>) -> F + Send + 'static,
) {
    let profile = Profile::named("tofino-cx5").expect("built in");
    let switches = vec![SWITCH];
    let world = World::new(Config { switches, ..Config::new(1, MACHINES + 2, profile) });
    let machines = SimMachines::new(world.expect("a valid world"));
    let at = |node| Endpoint { node: NodeId(node), lane: LaneId(0) };
    let all: Vec<_> = (1..=MACHINES).map(at).collect();
    let lanes = |agent| MachineLanes { agent, clients: CLIENT, cores: 1 };
    let places =
        Places::new(vec![at(0)], all.iter().copied().map(lanes).collect(), 4).expect("few");
    let fabric = machines.world().fabric().clone();
    let (to, opens) = (places.clone(), fabric.clone());
    let switch: Program = Box::new(move |executor| {
        let program = SwitchProgram::open(0, Start::First, &to, options, executor, &opens);
        Box::pin(program.expect("its lanes are free").run())
    });
    start(&machines, SWITCH, switch);
    let machine = |number| Arc::new(Machine::new(number, &places, options));
    let pools: Vec<_> = (0..MACHINES as u8).map(machine).collect();
    for (machine, at) in pools.iter().zip(&all) {
        let (machine, to, opens) = (Arc::clone(machine), places.clone(), fabric.clone());
        let agent: Program = Box::new(move |executor| {
            let program = AgentProgram::open(machine, &to, executor, &opens, None);
            Box::pin(program.expect("its lanes are free").run())
        });
        start(&machines, at.node, agent);
    }
    let (done, ended) = async_channel::bounded(1);
    let node = NodeId(MACHINES + 1);
    let program: Program = Box::new(move |executor: &mut Executor| {
        let stranger = Rpc::new(open(executor, &fabric, Endpoint { node, lane: LaneId(0) }));
        let timer = executor.handle().clone();
        let lockers = pools.iter().zip(&all).map(|(machine, at)| {
            let lane = open(executor, &fabric, Endpoint { lane: CLIENT, ..*at });
            SwitchedLocker::open(Arc::clone(machine), &places, &Rpc::new(lane), None)
        });
        let lockers = lockers.collect();
        let hand = Hand { lockers, machines: pools, fabric, timer, stranger, places: all };
        let life: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
            body(Rc::new(hand)).await;
            done.send(()).await.expect("it is awaited");
        });
        life
    });
    start(&machines, node, program);
    machines.wait(&ended).expect("the body ends");
}

#[test]
fn a_free_lock_takes_one_path_and_the_pipeline() {
    with(SIMULATED, |hand| async move {
        let begun = hand.timer.now();
        let held = hand.take(0, Mode::Exclusive).await;
        let took = hand.timer.now().since(begun);
        // 1.6 µs, and what the agent's core and the NICs take.
        assert!((1_600..2_600).contains(&took.as_nanos()), "{took:?}");
        drop(held);
        hand.is_left_free().await;
    });
}

#[test]
fn a_lock_whose_agent_is_here_needs_no_packet() {
    with(SIMULATED, |hand| async move {
        let reader = hand.take(0, Mode::Shared).await;
        let begun = hand.timer.now();
        let other = hand.take(0, Mode::Shared).await;
        assert_eq!(hand.timer.now().since(begun), Duration::ZERO);
        drop((reader, other));
        hand.is_left_free().await;
    });
}

#[test]
fn a_request_that_does_not_wait_is_refused_when_it_would() {
    with(SIMULATED, |hand| async move {
        let held = hand.take(0, Mode::Exclusive).await;
        for machine in [0, 1] {
            for mode in [Mode::Shared, Mode::Exclusive, Mode::Update] {
                let begun = hand.timer.now();
                let refused = hand.lockers[machine].acquire(0, mode, Wait::No).await;
                assert_eq!(refused.err(), Some(NotHeld::Conflict), "{mode:?} at {machine}");
                assert!(hand.timer.now().since(begun) < Duration::from_micros(10));
            }
        }
        // Behind one of its machine that waits.
        let waits = Rc::clone(&hand);
        hand.timer.spawn(async move {
            let outcome = waits.lockers[2].acquire(0, Mode::Exclusive, waits.after(300)).await;
            drop(outcome.expect("it is released before"));
        });
        hand.sleep(20).await;
        let refused = hand.lockers[2].acquire(0, Mode::Exclusive, Wait::No).await;
        assert_eq!(refused.err(), Some(NotHeld::Conflict));
        drop(held);
        hand.sleep(50).await;
        let free = hand.lockers[1].acquire(0, Mode::Exclusive, Wait::No).await;
        drop(free.expect("it is free"));
        assert_eq!(hand.lockers[1].counts().acquired, 1);
        assert_eq!(hand.lockers[2].counts().waited, 1);
        hand.is_left_free().await;
    });
}

#[test]
fn a_dropped_request_holds_nothing_and_a_dropped_hold_is_released() {
    with(SIMULATED, |hand| async move {
        let held = hand.take(0, Mode::Exclusive).await;
        for machine in 0..3 {
            let acquiring = hand.lockers[machine].acquire(0, Mode::Exclusive, hand.after(1_000));
            let ended = before(acquiring, hand.timer.sleep(Duration::from_micros(10))).await;
            assert!(ended.is_none(), "it waits");
        }
        drop(held);
        // Dropped when it was granted, and its task has not looked yet.
        for nanos in (0..4_000).step_by(100) {
            let acquiring = hand.lockers[2].acquire(0, Mode::Exclusive, hand.after(1_000));
            let ended = before(acquiring, hand.timer.sleep(Duration::from_nanos(nanos))).await;
            drop(ended);
            hand.sleep(30).await;
        }
        hand.is_left_free().await;
    });
}

#[test]
fn a_deadline_is_kept_without_the_switch() {
    with(SIMULATED, |hand| async move {
        hand.fabric.inject(Fault::Isolate { node: SWITCH }).expect("there is a switch");
        let until = hand.timer.now().after(Duration::from_micros(70));
        let late = hand.lockers[0].acquire(0, Mode::Shared, Wait::Until(until)).await;
        assert_eq!(late.err(), Some(NotHeld::TimedOut));
        assert_eq!(hand.timer.now(), until);
        hand.fabric.inject(Fault::Rejoin { node: SWITCH }).expect("there is a switch");
        assert_eq!(hand.lockers[0].counts().timed_out, 1);
        hand.is_left_free().await;
    });
}

/// Readers of all machines hold the lock at every moment. The agent looks for waiting writers every
/// 100 µs, and has the switch refuse further readers until the writer was served.
#[test]
fn a_writer_among_readers_is_passed_for_the_starve_period_only() {
    for (preference, bound) in [(Preference::Readers, 150), (Preference::Writers, 40)] {
        let options = SwitchOptions { preference, ..SIMULATED };
        with(options, move |hand| async move {
            let readers = Rc::new(RefCell::new((0_u32, 0_u64)));
            for (machine, task) in
                (0..3).flat_map(|machine| (0..3).map(move |task| (machine, task)))
            {
                let (here, counted) = (Rc::clone(&hand), Rc::clone(&readers));
                hand.timer.spawn(async move {
                    here.sleep(task * 3).await;
                    for _ in 0..100 {
                        let forever = Wait::Until(Nanos::NEVER);
                        let held = here.lockers[machine].acquire(0, Mode::Shared, forever).await;
                        let held = held.expect("it waits for as long as it takes");
                        counted.borrow_mut().0 += 1;
                        counted.borrow_mut().1 += 1;
                        here.sleep(10).await;
                        counted.borrow_mut().0 -= 1;
                        drop(held);
                    }
                });
            }
            hand.sleep(50).await;
            for _ in 0..5 {
                let (begun, passed) = (hand.timer.now(), readers.borrow().1);
                assert!(readers.borrow().0 > 0, "there are readers at every moment");
                let forever = Wait::Until(Nanos::NEVER);
                let held = hand.lockers[0].acquire(0, Mode::Exclusive, forever).await;
                let held = held.expect("it waits for as long as it takes");
                assert_eq!(readers.borrow().0, 0);
                let waited = hand.timer.now().since(begun);
                let passed = readers.borrow().1 - passed;
                assert!(waited < Duration::from_micros(bound), "{waited:?}, {passed} readers");
                drop(held);
                hand.sleep(30).await;
            }
            assert!(readers.borrow().1 > 100, "readers go on");
            hand.sleep(2_000).await;
            hand.is_left_free().await;
        });
    }
}

#[test]
fn garbage_and_strangers_are_ignored() {
    with(SIMULATED, |hand| async move {
        let held = hand.take(0, Mode::Exclusive).await;
        let switch = Endpoint { node: SWITCH, lane: LaneId(0) };
        let mut rng = hand.timer.env().rng(7);
        let all = hand.places.iter().copied().chain([switch]);
        let lanes =
            |at: Endpoint| [0, 1, CLIENT.0].map(|lane| Endpoint { lane: LaneId(lane), ..at });
        for to in all.flat_map(lanes) {
            for length in 0..80 {
                let bytes: Vec<u8> = (0..length).map(|_| rand::Rng::random(&mut rng)).collect();
                hand.stranger.lane().send(to, &bytes);
                hand.stranger.tell(to, PACKETS, &bytes).expect("it is short");
            }
            // A packet that would free the lock, or grant it, from one that is no machine.
            for kind in 1..=7 {
                let mut packet = [0_u8; 28];
                (packet[0], packet[20]) = (kind, 1);
                hand.stranger.tell(to, PACKETS, &packet).expect("it is short");
            }
        }
        hand.sleep(100).await;
        let refused = hand.lockers[1].acquire(0, Mode::Shared, Wait::No).await;
        assert_eq!(refused.err(), Some(NotHeld::Conflict), "it is held still");
        drop(held);
        hand.is_left_free().await;
    });
}
