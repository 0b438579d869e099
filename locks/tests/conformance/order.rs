//! Locks that promise an order are granted in that of the requests.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId, RemoteAddr};
use lotus_fabric::lane::Lane;
use lotus_fabric::machines::Machines;
use lotus_fabric::region::Rights;
use lotus_fabric::rpc::{Rpc, Service};
use lotus_fabric::sim::{Config, Profile, SimMachines, World};
use lotus_locks::systems::{Choice, Kind, Visitor};
use lotus_locks::{Client, Identity, Limits, LockSystem, Mode, Recovery, Roster};

const CLIENTS: usize = 16;

/// Has clients ask one after another while the first holds the lock; the order in which they hold
/// it, or `None` if the system promises none.
struct InOrder;

impl Visitor for InOrder {
    type Output = Option<Vec<usize>>;

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self::Output {
        if !make().promises().in_order {
            return None;
        }
        let (memory, node) = (NodeId(0), NodeId(1));
        let world = World::new(Config::new(1, 2, Profile::named("cx3-56g").expect("built in")));
        let machines = SimMachines::new(world.expect("a valid world"));
        let fabric = machines.fabric();
        fabric.register(memory, RegionId(0), 4096, Rights::ALL).expect("there is room");
        let roster = Roster::default();
        let member = roster.join(node, 1).expect("there is room");
        let (send, held) = async_channel::bounded(1);
        let program = move |executor: &mut lotus_fabric::exec::Executor| {
            let at = Endpoint { node, lane: LaneId(0) };
            let waker = executor.handle().waker();
            let transport = fabric.open_lane(at, Epoch(1), waker).expect("nobody has it");
            let lane = Lane::new(at, executor.handle().clone(), transport);
            executor.add_driver(lane.driver());
            let identity = Identity { member, peers: Rc::new(roster), service: Service(0) };
            let client = Client::new(make(), Rpc::new(lane), identity);
            let timer = executor.handle().clone();
            let life: std::pin::Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
                let order = Rc::new(RefCell::new(Vec::new()));
                for number in 0..CLIENTS {
                    let (client, order) = (client.clone(), Rc::clone(&order));
                    let clock = timer.clone();
                    timer.spawn(async move {
                        let lock = RemoteAddr::new(memory, RegionId(0), 64);
                        let mode = Mode::Exclusive;
                        let hold = client.acquire(lock, mode, Limits::PATIENT).await;
                        let hold = hold.expect("nothing fails");
                        order.borrow_mut().push(number);
                        // The first holds it until all have asked.
                        let waits = if number == 0 { 10 * CLIENTS as u64 } else { 1 };
                        clock.sleep(Duration::from_micros(waits)).await;
                        client.release(hold).await.expect("nothing fails");
                    });
                    timer.sleep(Duration::from_micros(7)).await;
                }
                client.quiet().await;
                send.send(order.take()).await.expect("it is awaited");
            });
            life
        };
        let core = machines.start(node, "clients", Box::new(program)).expect("it has cores");
        let order = machines.wait(&held).expect("they end");
        machines.join(core);
        Some(order)
    }
}

#[test]
fn queues_are_served_in_order() {
    for recovery in [Recovery::Fenced, Recovery::Paper] {
        for kind in Kind::ALL {
            let order = Choice { recovery, ..Choice::of(kind) }.visit(InOrder);
            let promised = matches!(kind, Kind::Dslr | Kind::DslrPlus | Kind::Mcs);
            assert_eq!(order, promised.then(|| (0..CLIENTS).collect()), "{kind} {recovery:?}");
        }
    }
}
