//! Who may have machines and a switch recover.

use std::time::Duration;

use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, LaneId};
use lotus_fabric::machines::{Machines, MachinesExt};
use lotus_fabric::rpc::{RetryPolicy, Rpc, RpcError, Service};
use lotus_fabric::sim::{Rates, SimMachines};
use lotus_locks::{Mode, Wait};
use lotus_locksystems::Locker;
use lotus_locksystems::switched::{MachineLanes, Places, RecoveryError, recover};
use lotus_locksystems::trial::server_locks::{MEMORY, Plan};

use super::cluster::{COORDINATOR, Cluster, node_of, open};
use super::families::{SIMULATED, simulated};

const PLAN: Plan = Plan { lanes: 0, ..Plan::SMALL };

/// Recovers from a lane, which the machines may know or not: what came of it.
fn recover_from(
    cluster: &mut Cluster,
    machines: &SimMachines,
    places: Places,
    lane: Endpoint,
    epoch: u32,
    survivors: &'static [u8],
) -> Result<(), RecoveryError> {
    let (tried, is_tried) = async_channel::bounded(1);
    let fabric = machines.fabric();
    cluster.serve(machines, lane.node, "coordinator", move |executor: &mut Executor| {
        let rpc = Rpc::new(open(executor, &*fabric, lane));
        executor.handle().spawn(async move {
            let patience = RetryPolicy::constant(Duration::from_micros(20), 10);
            let recovered = recover(&rpc, &places, epoch, survivors, patience).await;
            tried.send(recovered.map(|_| ())).await.expect("it is awaited");
        });
    });
    machines.wait(&is_tried).expect("it ends")
}

/// The same machines with another switch, whose control lane answers whoever asks.
fn with_a_switch_that_answers(cluster: &mut Cluster, machines: &SimMachines) -> Places {
    let switch = Endpoint { node: MEMORY, lane: LaneId(8) };
    let control = Endpoint { lane: LaneId(9), ..switch };
    let fabric = machines.fabric();
    cluster.serve(machines, control.node, "switch", move |executor: &mut Executor| {
        let rpc = Rpc::new(open(executor, &*fabric, control));
        rpc.serve(Service(0), Box::new(|responder, _| responder.respond(&[0; 8])));
        executor.handle().spawn(async move {
            std::future::pending::<()>().await;
            drop(rpc);
        });
    });
    let lanes = |machine| {
        let agent = Endpoint { node: node_of(machine), lane: LaneId(0) };
        MachineLanes { agent, clients: LaneId(2), cores: 1 }
    };
    Places::new(vec![switch], (0..4).map(lanes).collect(), PLAN.locks).expect("few")
}

/// Whether a machine is granted a lock.
fn is_granted(cluster: &mut Cluster, machines: &SimMachines, machine: u8) -> bool {
    let (asked, is_asked) = async_channel::bounded(1);
    cluster.visit(machines, machine, move |locker, timer| async move {
        let until = Wait::Until(timer.now().after(Duration::from_millis(1)));
        let held = locker.acquire(0, Mode::Exclusive, until).await;
        asked.send(held.is_ok()).await.expect("it is awaited");
    });
    machines.wait(&is_asked).expect("it is answered")
}

#[test]
fn strangers_get_no_answer_and_stop_nobody() {
    let machines = simulated(1, &PLAN, Rates::default());
    let mut cluster = Cluster::start(&machines, PLAN, SIMULATED);
    let all: &[u8] = &[0, 1, 2, 3];
    let late = RpcError::TimedOut;
    // Lanes beside the coordinator's, and one of a machine that is not its control lane.
    let at = |node, lane| Endpoint { node, lane: LaneId(lane) };
    let known = cluster.places.clone();
    for stranger in [at(MEMORY, 1), at(node_of(1), 12)] {
        let tried = recover_from(&mut cluster, &machines, known.clone(), stranger, 1, all);
        assert_eq!(tried, Err(RecoveryError::Switch(0, late)));
        assert!(is_granted(&mut cluster, &machines, 0), "the switch serves it");
    }
    let pliant = with_a_switch_that_answers(&mut cluster, &machines);
    for stranger in [at(MEMORY, 3), at(node_of(1), 13)] {
        let tried = recover_from(&mut cluster, &machines, pliant.clone(), stranger, 1, all);
        assert_eq!(tried, Err(RecoveryError::Machine(0, late)));
        assert!(is_granted(&mut cluster, &machines, 0), "it has not stopped");
    }
    assert_eq!(recover_from(&mut cluster, &machines, known, COORDINATOR, 1, all), Ok(()));
    assert!((0..4).all(|machine| is_granted(&mut cluster, &machines, machine)));
}
