//! The control path: refusals during set-up, and operations that may be repeated.

use super::{CLIENT, Cluster, Coordinator, LIMIT, MEMORY, PEER, REGION, REGION_BYTES, properties};
use crate::contract::ids::{Endpoint, Epoch, LaneId, NodeId};
use crate::contract::region::Rights;
use crate::contract::transport::FabricError;
use crate::run::exec::Executor;

properties! {
    a_region_is_registered_once,
    a_lane_has_one_owner_at_a_time,
    unknown_nodes_are_refused,
}

fn a_region_is_registered_once(cluster: &Cluster) {
    cluster.with_regions();
    let again = cluster.harness.fabric().register(MEMORY[0], REGION, 64, Rights::READ_ONLY);
    let taken = |error: FabricError| matches!(error, FabricError::RegionTaken(..));
    assert!(again.is_err_and(taken), "registered twice");
    // The first region keeps its size and rights.
    cluster.solo(async |lane| super::write(&lane, super::word(MEMORY[0], 100), 1).await);
}

fn a_lane_has_one_owner_at_a_time(cluster: &Cluster) {
    let harness = cluster.harness.clone();
    let body = move |lane: crate::lane::Lane| async move {
        let (fabric, wake) = (harness.fabric(), lane.executor().waker());
        let again = fabric.open_lane(CLIENT, Epoch(2), wake.clone()).err();
        assert!(matches!(again, Some(FabricError::LaneTaken(at)) if at == CLIENT), "opened twice");
        for at in [Endpoint { lane: LaneId(1), ..CLIENT }, PEER] {
            assert!(fabric.open_lane(at, Epoch(1), wake.clone()).is_ok(), "another lane");
        }
        let executor = lane.executor().clone();
        executor.clone().spawn(async move {
            executor.sleep(2 * LIMIT).await;
            drop(lane);
        });
    };
    // Twice: a lane is free again after the drop of its executor, even with unfinished tasks.
    cluster.run([Coordinator::new(CLIENT, body.clone())]);
    cluster.run([Coordinator::new(CLIENT, body)]);
}

fn unknown_nodes_are_refused(cluster: &Cluster) {
    let fabric = cluster.harness.fabric();
    let beyond = NodeId(cluster.harness.node_count());
    let wake = Executor::new(cluster.harness.env()).handle().waker();
    let at = Endpoint { node: beyond, lane: LaneId(0) };
    let refusals = [
        fabric.register(beyond, REGION, REGION_BYTES, Rights::ALL).err(),
        fabric.open_lane(at, Epoch(1), wake).err(),
        fabric.fence(beyond, CLIENT.node, Epoch(2)).err(),
        fabric.fence(MEMORY[0], beyond, Epoch(2)).err(),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, Some(FabricError::UnknownNode(node)) if node == beyond));
    }
}
