//! Nodes in simulation whose clients share locks, for what is to happen in a certain order.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::{Executor, Handle};
use lotus_fabric::ids::NodeId;
use lotus_fabric::lane::Lane;
use lotus_fabric::machines::{Machines, MachinesExt, Program};
use lotus_fabric::region::Rights;
use lotus_fabric::rpc::Service;
use lotus_fabric::sim::{Config, Profile, SimMachines, World};
use lotus_locks::systems::Declock;
use lotus_locks::{Client, Identity, Limits, Mode, Recovery, Roster};
use lotus_locksystems::local::{Counters, LocalClient, LocalTable, Policy, synchronise};

use super::lane::lock;

/// Lanes of each node.
const LANES: u16 = 2;
/// Longer than any of the tests needs the lock.
const END: Duration = Duration::from_millis(3);

/// A lane of a node.
struct Place {
    client: LocalClient<Declock>,
    verbs: Lane,
    timer: Handle,
    node: u16,
    lane: u16,
    log: Log,
}

/// One use of the lock.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Used {
    node: u16,
    mode: Mode,
    asked: Nanos,
    held: Nanos,
    left: Nanos,
}

/// Uses of the lock, by all nodes.
type Log = Arc<Mutex<Vec<Used>>>;

impl Place {
    /// Takes the lock, and holds it for so many microseconds.
    async fn take(&self, mode: Mode, micros: u64) -> Used {
        let asked = self.timer.now();
        let hold = self.client.acquire(lock(), mode, Limits::PATIENT).await.expect("no fault");
        let held = self.timer.now();
        self.timer.sleep(Duration::from_micros(micros)).await;
        let used = Used { node: self.node, mode, asked, held, left: self.timer.now() };
        self.log.lock().expect("no panic").push(used);
        self.client.release(hold).await.expect("no fault");
        used
    }

    fn is_over(&self, began: Nanos) -> bool {
        self.timer.now().since(began) > END
    }
}

/// Runs `life` on each lane of two nodes; returns the uses of the lock, in the order of their ends.
fn on_nodes<F: Future<Output = ()> + 'static>(
    policy: Policy,
    life: impl Fn(Rc<Place>) -> F + Send + Clone + 'static,
) -> Vec<Used> {
    let world = World::new(Config::new(1, 3, Profile::named("cx3-56g").expect("built in")));
    let machines = SimMachines::new(world.expect("a valid world"));
    let fabric = machines.fabric();
    fabric.register(lock().node(), lock().region(), 1 << 14, Rights::ALL).expect("there is room");
    let (roster, log) = (Roster::default(), Log::default());
    let (send, ended) = async_channel::unbounded();
    let (stop, stopped) = async_channel::bounded::<()>(1);
    let nodes = [1, 2].map(|node| (node, roster.join(NodeId(node), LANES).expect("there is room")));
    for (node, member) in nodes {
        let table = Arc::new(LocalTable::new(policy, LANES));
        for lane in 0..LANES {
            let (fabric, roster, table) = (machines.fabric(), roster.clone(), Arc::clone(&table));
            let (life, send, log) = (life.clone(), send.clone(), Arc::clone(&log));
            let stopped = stopped.clone();
            let program = move |executor: &mut Executor| -> Pin<Box<dyn Future<Output = ()>>> {
                let timer = executor.handle().clone();
                let identity = Identity { member, peers: Rc::new(roster), service: Service(0) };
                let declock = Declock::new(Recovery::Fenced, 8);
                let opened = Client::open(declock, executor, &*fabric, lane, identity);
                let (client, verbs) = opened.expect("nobody has the lane");
                let client = LocalClient::new(client, table);
                let place = Rc::new(Place { client, verbs, timer, node, lane, log });
                Box::pin(async move {
                    life(Rc::clone(&place)).await;
                    send.send(()).await.expect("it is awaited");
                    // It gives up what other lanes leave.
                    let _ = stopped.recv().await;
                })
            };
            let program: Program = Box::new(program);
            machines.start(NodeId(node), &format!("{node}-{lane}"), program).expect("it has cores");
        }
    }
    for _ in 0..2 * LANES {
        machines.wait(&ended).expect("it ends");
    }
    drop(stop);
    std::mem::take(&mut *log.lock().expect("no panic"))
}

/// Readers of one node that overlap all the time let a writer of another one in, in time.
#[test]
fn a_remote_writer_is_served_beside_readers_that_never_stop() {
    for policy in [Policy::LocalPrefer, Policy::TsTf, Policy::TsPf] {
        let uses = on_nodes(policy, |place| async move {
            let began = place.timer.now();
            if place.node == 2 {
                while place.lane == 0 && !place.is_over(began) {
                    place.timer.sleep(Duration::from_micros(50)).await;
                    place.take(Mode::Exclusive, 1).await;
                }
                return;
            }
            // Four readers of a lane, each a while after the other.
            let running = Rc::new(());
            for number in 0..4 {
                let (place, running) = (Rc::clone(&place), Rc::clone(&running));
                place.timer.clone().spawn(async move {
                    place.timer.sleep(Duration::from_micros(3 * number)).await;
                    while !place.is_over(began) {
                        place.take(Mode::Shared, 10).await;
                    }
                    drop(running);
                });
            }
            while Rc::strong_count(&running) > 1 {
                place.timer.sleep(Duration::from_micros(50)).await;
            }
        });
        let writers = uses.iter().filter(|used| used.mode == Mode::Exclusive);
        let waits: Vec<Duration> = writers.map(|used| used.held.since(used.asked)).collect();
        let longest = waits.iter().max().copied().expect("there are writers");
        // The time until a look, that of the look, a reader's, and those of two hand-overs.
        assert!(longest < Duration::from_micros(60), "{policy}: {longest:?} of {waits:?}");
        assert!(waits.len() > 20, "{policy}: {} writers", waits.len());
    }
}

/// Uses of the lock by writers, several of each lane, that never stop.
fn writers(policy: Policy) -> Vec<Used> {
    on_nodes(policy, |place| async move {
        let began = place.timer.now();
        let running = Rc::new(());
        for _ in 0..3 {
            let (place, running) = (Rc::clone(&place), Rc::clone(&running));
            place.timer.clone().spawn(async move {
                while !place.is_over(began) {
                    place.take(Mode::Exclusive, 2).await;
                }
                drop(running);
            });
        }
        while Rc::strong_count(&running) > 1 {
            place.timer.sleep(Duration::from_micros(50)).await;
        }
    })
}

/// The longest run of uses by one node while the other one was waiting all the time.
fn longest_run(uses: &[Used]) -> usize {
    // The last uses are of a node whose neighbour has ended.
    let end = uses[0].asked.after(END);
    let uses: Vec<_> = uses.iter().filter(|used| used.left < end).collect();
    let runs = uses.chunk_by(|one, next| one.node == next.node);
    runs.map(|run| run.len()).max().expect("there are uses")
}

#[test]
fn a_node_keeps_a_lock_for_as_many_clients_as_its_policy_says() {
    assert_eq!(longest_run(&writers(Policy::RemotePrefer)), 1);
    for most in [1, 2, 4] {
        // The one that has asked, and so many after it.
        assert_eq!(longest_run(&writers(Policy::LocalBound(most))), most as usize + 1);
    }
    assert!(longest_run(&writers(Policy::LocalPrefer)) > 100);
}

/// By times, a writer is passed only by requests that are later by less than what it takes to know
/// of one another: the precision of the clocks, and a hand-over.
#[test]
fn by_times_a_request_is_passed_by_few_later_ones() {
    for policy in [Policy::TsTf, Policy::TsPf] {
        let uses = writers(policy);
        let early = |(index, used): (usize, &Used)| {
            let later = uses[..index].iter().filter(|other| other.asked > used.asked);
            later.map(|other| other.asked.since(used.asked)).max().unwrap_or_default()
        };
        let longest = uses.iter().enumerate().map(early).max().expect("there are uses");
        assert!(longest < Duration::from_micros(20), "{policy}: {longest:?}");
        let runs = longest_run(&uses);
        assert!((2..=8).contains(&runs), "{policy}: {runs}");
    }
}

/// However late a node begins, its first round ends with those of the others.
#[test]
fn clocks_are_set_together_whenever_nodes_begin() {
    let counters = Counters { base: lock().plus(1024), count: 16 };
    let zeros = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&zeros);
    on_nodes(Policy::TsPf, move |place| {
        let noted = Arc::clone(&noted);
        async move {
            let (timer, client) = (place.timer.clone(), place.client.clone());
            if place.lane == 1 {
                return;
            }
            let before = client.table().clock().time(timer.now());
            timer.sleep(Duration::from_micros(700 * u64::from(place.node - 1))).await;
            timer.spawn(synchronise(client.clone(), counters));
            let began = timer.now();
            while client.table().clock().time(timer.now()) >= before {
                timer.sleep(Duration::from_micros(1)).await;
                assert!(!place.is_over(began), "its clock is not set");
            }
            noted.lock().expect("no panic").push(timer.now());
        }
    });
    let zeros = zeros.lock().expect("no panic");
    let apart = zeros[1].since(zeros[0]);
    // The first one looks every 50 µs by then.
    assert!(apart < Duration::from_micros(60), "{apart:?}");
}

/// Regression: a holder that was dropped left its lock to another lane of its node while its own
/// WRITE was under way, on another connection.
#[test]
fn what_a_dropped_holder_has_posted_lands_before_the_next_one_holds_the_lock() {
    const BYTES: usize = 8 << 10;
    let found = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&found);
    on_nodes(Policy::LocalPrefer, move |place| {
        let noted = Arc::clone(&noted);
        async move {
            let (data, last) = (lock().plus(1024), lock().plus(1024 + BYTES as u64));
            if place.node == 2 {
                return;
            }
            place.timer.sleep(Duration::from_micros(20 * u64::from(place.lane))).await;
            let asked = place.client.acquire(lock(), Mode::Exclusive, Limits::PATIENT);
            let hold = asked.await.expect("no fault");
            let mut batch = place.verbs.batch();
            if place.lane == 0 {
                // The other one waits by then.
                place.timer.sleep(Duration::from_micros(50)).await;
                for _ in 0..12 {
                    let buffer = batch.stage(BYTES);
                    batch.write(data, buffer);
                }
                batch.write_word(last, 7);
                let posted = batch.post();
                drop(hold);
                posted.await.expect("no fault");
            } else {
                let word = batch.read(last, 8);
                let done = batch.post().await.expect("no fault");
                noted.lock().expect("no panic").push(done.words(word)[0]);
                place.client.release(hold).await.expect("no fault");
            }
        }
    });
    assert_eq!(*found.lock().expect("no panic"), [7]);
}
