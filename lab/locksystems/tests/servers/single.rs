//! What requests see one after another, in simulation: order of grants, and nodes that are lost.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::{Machines, MachinesExt, Program};
use lotus_fabric::sim::{Fault, MemoryFate, Rates, SimMachines};
use lotus_locks::{Mode, NotHeld, Wait};
use lotus_locksystems::Locker;
use lotus_locksystems::servers::ServerLock;

use super::platforms::{LOAD, LaneContext, LockBackend, Service, layout, simulated};

const PATIENT: Wait = Wait::Until(Nanos::NEVER);
const LOCK: u64 = 0;
const FIRST: NodeId = NodeId(2);
const SECOND: NodeId = NodeId(3);

/// Starts one lane of a node; what it sends in the end is received there.
pub fn start<K: LockBackend, T: Send + 'static, F: Future<Output = T> + 'static>(
    machines: &SimMachines,
    service: &Arc<Service<K>>,
    node: NodeId,
    life: impl FnOnce(Rc<LaneContext<K>>) -> F + Send + 'static,
) -> async_channel::Receiver<T> {
    let member = service.roster.join(node, 1).expect("there is room");
    let open = service.open(machines.fabric(), member, 0);
    let (sender, result) = async_channel::bounded(1);
    let program: Program = Box::new(move |executor| {
        let context = Rc::new(open(executor));
        Box::pin(async move {
            let _ = sender.send(life(context).await).await;
        })
    });
    machines.start(node, "lane", program).expect("a core");
    result
}

#[test]
fn requests_are_granted_in_the_order_in_which_they_came() {
    for server_lock in
        ServerLock::ALL.into_iter().filter(|server_lock| *server_lock != ServerLock::Rpc)
    {
        let machines = simulated(1, Rates::default());
        let service = Service::new(&machines, layout(server_lock), LOAD);
        let (_stop, stopped) = async_channel::bounded(1);
        service.serve(&machines, &stopped);
        let order = start(&machines, &service, FIRST, |context| async move {
            let order = Rc::new(RefCell::new(Vec::new()));
            let timer = context.lane.executor().clone();
            for number in 0..16_u64 {
                let (context, order) = (Rc::clone(&context), Rc::clone(&order));
                timer.spawn(async move {
                    let held = context.client.acquire(LOCK, Mode::Exclusive, PATIENT).await;
                    let held = held.expect("nothing fails");
                    order.borrow_mut().push(number);
                    // The first holds it until all have asked.
                    let waits = if number == 0 { 300 } else { 1 };
                    context.lane.executor().sleep(Duration::from_micros(waits)).await;
                    context.client.release(held).await.expect("nothing fails");
                });
                timer.sleep(Duration::from_micros(10)).await;
            }
            context.client.quiet().await;
            order.take()
        });
        let order = machines.wait(&order).expect("it ends");
        assert_eq!(order, (0..16).collect::<Vec<_>>(), "{server_lock}");
    }
}

/// A dead node keeps its lock until it is expelled and settled; a paused one that returns after
/// that is told so.
#[test]
fn locks_of_a_node_are_freed_when_it_is_expelled_and_not_before() {
    for dies in [true, false] {
        let machines = simulated(1, Rates::default());
        let service = Service::new(&machines, layout(ServerLock::SrvLock), LOAD);
        let (_stop, stopped) = async_channel::bounded(1);
        service.serve(&machines, &stopped);
        let lost = start(&machines, &service, FIRST, |context| async move {
            let held = context.client.acquire(LOCK, Mode::Exclusive, PATIENT).await;
            context.lane.executor().sleep(Duration::from_millis(10)).await;
            let released = context.client.release(held.expect("it is free")).await;
            (released, context.client.acquire(LOCK, Mode::Shared, Wait::No).await.err())
        });
        machines.run_for(Duration::from_millis(1));
        let hurried = start(&machines, &service, SECOND, |context| async move {
            let until = context.lane.executor().now().after(Duration::from_millis(4));
            let early = context.client.acquire(LOCK, Mode::Exclusive, Wait::Until(until)).await;
            let late = context.client.acquire(LOCK, Mode::Exclusive, PATIENT).await;
            (early.err(), late.err())
        });
        if dies {
            machines.world().crash(FIRST, MemoryFate::Lost).expect("it is up");
        }
        machines.run_for(Duration::from_millis(7));
        assert_eq!(service.backend.used(), 1);
        service.roster.settle(FIRST);
        let waited = machines.wait(&hurried).expect("it ends");
        assert_eq!(waited, (Some(NotHeld::TimedOut), None), "{dies}");
        if !dies {
            let told = machines.wait(&lost).expect("it ends");
            assert_eq!(told, (Err(NotHeld::Reset), Some(NotHeld::Expelled)));
        }
    }
}

/// A server that answers nothing is given up, and no request of it hangs.
#[test]
fn a_server_that_is_lost_is_told_to_those_who_wait() {
    let machines = simulated(1, Rates::default());
    let service = Service::new(&machines, layout(ServerLock::SrvLock), LOAD);
    let (_stop, stopped) = async_channel::bounded(1);
    service.serve(&machines, &stopped);
    let result = start(&machines, &service, FIRST, |context| async move {
        let held = context.client.acquire(LOCK, Mode::Exclusive, PATIENT).await;
        let held = held.expect("it is free");
        context.lane.executor().sleep(Duration::from_millis(1)).await;
        let released = context.client.release(held).await;
        (released, context.client.acquire(LOCK + 1, Mode::Shared, PATIENT).await.err())
    });
    machines.run_for(Duration::from_micros(500));
    let server = service.backend.cores().next().expect("it has cores").0.node;
    machines.world().inject(Fault::Isolate { node: server }).expect("there is such a node");
    let told = machines.wait(&result).expect("it ends");
    assert_eq!(told, (Err(NotHeld::Unavailable), Some(NotHeld::Unavailable)));
}
