//! Who may have machines and a switch recover.

use std::time::Duration;

use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, LaneId};
use lotus_fabric::machines::Machines;
use lotus_fabric::rpc::{Patience, Rpc, RpcError};
use lotus_fabric::sim::{Rates, SimMachines};
use lotus_locks::switched::{RecoveryError, recover};
use lotus_locks::trial::keepers::{MEMORY, Plan};
use lotus_locks::{Locker, Mode, Wait};

use super::cluster::{COORDINATOR, Cluster, node_of, open};
use super::families::{SIMULATED, simulated};

const PLAN: Plan = Plan { lanes: 0, ..Plan::SMALL };

/// Recovers from a lane, which the machines may know or not: what came of it.
fn recover_from(
    cluster: &mut Cluster<SimMachines>,
    machines: &SimMachines,
    lane: Endpoint,
    epoch: u32,
    survivors: &'static [u8],
) -> Result<(), RecoveryError> {
    let (tried, is_tried) = async_channel::bounded(1);
    let (fabric, places) = (machines.fabric(), cluster.places.clone());
    cluster.serve(machines, lane.node, "coordinator", move |executor: &mut Executor| {
        let rpc = Rpc::new(open(executor, &*fabric, lane));
        executor.handle().spawn(async move {
            let patience = Patience::constant(Duration::from_micros(20), 10);
            let recovered = recover(&rpc, &places, epoch, survivors, patience).await;
            tried.send(recovered.map(|_| ())).await.expect("it is awaited");
        });
    });
    machines.wait(&is_tried).expect("it ends")
}

/// Whether a machine is granted a lock.
fn is_granted(cluster: &mut Cluster<SimMachines>, machines: &SimMachines, machine: u8) -> bool {
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
    // A lane beside the coordinator's, and one of a machine that is not its control lane.
    let strangers = [(MEMORY, 1), (node_of(1), 2)];
    let strangers = strangers.map(|(node, lane)| Endpoint { node, lane: LaneId(lane) });
    for stranger in strangers {
        let tried = recover_from(&mut cluster, &machines, stranger, 1, all);
        assert_eq!(tried, Err(RecoveryError::Machine(0, late)));
        assert!(is_granted(&mut cluster, &machines, 0), "it has not stopped");
    }
    for lane in [3, 4] {
        let stranger = Endpoint { node: MEMORY, lane: LaneId(lane) };
        let tried = recover_from(&mut cluster, &machines, stranger, 2, &[]);
        assert_eq!(tried, Err(RecoveryError::Switch(0, late)));
        assert!(is_granted(&mut cluster, &machines, 0), "the switch serves it");
    }
    assert_eq!(recover_from(&mut cluster, &machines, COORDINATOR, 1, all), Ok(()));
    assert!((0..4).all(|machine| is_granted(&mut cluster, &machines, machine)));
}
