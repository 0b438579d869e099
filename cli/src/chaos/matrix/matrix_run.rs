//! One run of the matrix: a fault, and the operator's reaction.

use std::process::Child;

use lotus_points::{Family, FaultPoint};
use serde_json::Value;

use super::test_cluster::{LEASE, Nodes, TestCluster};
use super::{Actor, Coordinate, ProcessFault};
use lotus_node::config::name::{NodeKind, NodeName};

/// Maximum number of restarts of nodes that end on their own.
const RESTARTS: usize = 8;
/// Node that hosts the authority: if it ends, the whole cluster must start anew.
const HOST: NodeName = NodeName { kind: NodeKind::Memory, index: 0 };

/// Strikes at a coordinate, and checks the result.
///
/// # Errors
/// A sentence: no process was struck, data is lost, or the cluster does not serve in the end.
pub fn run(cluster: &TestCluster, coordinate: &Coordinate) -> Result<(), String> {
    cluster.reset()?;
    let undergone = match (coordinate.point, coordinate.point.family()) {
        (FaultPoint::Announced | FaultPoint::TakenIn, _) => returns(cluster, coordinate),
        (_, Family::Start) => starts(cluster, coordinate),
        (_, Family::Snapshot) => is_copied(cluster, coordinate),
        _ => is_ended(cluster, coordinate),
    };
    // Dropping `_nodes` kills processes started by hand.
    let _nodes = undergone?;
    cluster.check_served()?;
    cluster.done(&["down"])?;
    cluster.check_kept()
}

fn armed(coordinate: &Coordinate) -> Result<(NodeName, String), String> {
    match coordinate.actor {
        Actor::Node(node) => Ok((node, coordinate.armed())),
        Actor::Command => Err("a command starts nothing".to_owned()),
    }
}

/// Strikes a node while the cluster starts from its snapshot.
fn starts(cluster: &TestCluster, coordinate: &Coordinate) -> Result<Nodes, String> {
    let (node, at) = armed(coordinate)?;
    let mut nodes = Nodes::start(cluster, Some((node, &at)))?;
    cluster.await_fault(nodes.of(node), coordinate.fault, nothing)?;
    if (node, coordinate.fault) == (HOST, ProcessFault::Kill) {
        return begin_anew(cluster, nodes);
    }
    recover(cluster, nodes)
}

/// Strikes a node while it rejoins.
fn returns(cluster: &TestCluster, coordinate: &Coordinate) -> Result<Nodes, String> {
    let (node, at) = armed(coordinate)?;
    let mut nodes = Nodes::start(cluster, None)?;
    await_health(cluster)?;
    nodes.kill(node)?;
    nodes.put(node, cluster.node(node, Some(&at))?);
    cluster.await_fault(nodes.of(node), coordinate.fault, nothing)?;
    recover(cluster, nodes)
}

/// Strikes a node during a snapshot.
fn is_copied(cluster: &TestCluster, coordinate: &Coordinate) -> Result<Nodes, String> {
    let (node, at) = armed(coordinate)?;
    let mut nodes = Nodes::start(cluster, Some((node, &at)))?;
    await_health(cluster)?;
    let mut command = cluster.begin(&["snapshot", "--wait", "60"], None)?;
    let struck = cluster.await_fault(nodes.of(node), coordinate.fault, nothing);
    // Checked at once, before any process tidies up the files.
    let kept = cluster.check_kept();
    let recovered = recover(cluster, nodes);
    await_end(cluster, &mut command)?;
    struck.and(kept).and(recovered)
}

/// Strikes a node, or the command, while the cluster shuts down.
fn is_ended(cluster: &TestCluster, coordinate: &Coordinate) -> Result<Nodes, String> {
    let at = coordinate.armed();
    let node = match coordinate.actor {
        Actor::Node(node) => Some(node),
        Actor::Command => None,
    };
    let mut nodes = Nodes::start(cluster, node.map(|node| (node, at.as_str())))?;
    await_health(cluster)?;
    let command = node.is_none().then_some(at.as_str());
    let mut down = cluster.begin(&["down", "--wait", "60"], command)?;
    let struck = match (node, coordinate.point) {
        (Some(node), _) => cluster.await_fault(nodes.of(node), coordinate.fault, nothing),
        (None, FaultPoint::RestAgreed) => {
            let begins = || begins_to_rest(cluster, &mut nodes);
            cluster.await_fault(&mut down, coordinate.fault, begins)
        }
        (None, _) => cluster.await_fault(&mut down, coordinate.fault, nothing),
    };
    struck?;
    if let (Some(node), ProcessFault::Kill) = (node, coordinate.fault) {
        // The node's next process reports that the outcome of the snapshot request is unknown.
        nodes.put(node, cluster.node(node, None)?);
    }
    await_end(cluster, &mut down)?;
    cluster.check_kept()?;
    let ended = nodes.ended();
    match [0, 1].map(NodeName::compute).iter().all(|node| ended.contains(node)) {
        // The cluster has shut down as asked, and no node is left that could admit a restarted
        // node.
        true => begin_anew(cluster, nodes),
        false => recover(cluster, nodes),
    }
}

/// Checks that a node that starts to serve while all nodes are told to rest accepts no application.
fn begins_to_rest(cluster: &TestCluster, nodes: &mut Nodes) -> Result<(), String> {
    let node = NodeName::compute(1);
    nodes.kill(node)?;
    nodes.put(node, cluster.node(node, None)?);
    await_health(cluster)?;
    // The other node has not been asked to rest yet.
    match (cluster.is_open(NodeName::compute(0)), cluster.is_open(node)) {
        (true, false) => Ok(()),
        (false, _) => Err("a node rests that was not asked to".to_owned()),
        (true, true) => Err(format!("{node} serves, and all were told to rest")),
    }
}

fn nothing() -> Result<(), String> {
    Ok(())
}

fn await_end(cluster: &TestCluster, command: &mut Child) -> Result<(), String> {
    cluster.wait_until("the command ends", || matches!(command.try_wait(), Ok(Some(_))))
}

fn await_health(cluster: &TestCluster) -> Result<(), String> {
    cluster.wait_until("all nodes serve", || {
        cluster.status().is_ok_and(|status| status["healthy"] == true)
    })
}

/// Restarts nodes that have ended, until every node serves; starts the cluster anew if the status
/// says that restarts are no use.
fn recover(cluster: &TestCluster, mut nodes: Nodes) -> Result<Nodes, String> {
    let mut restarts = 0;
    let (mut not_whole, mut over) = (false, false);
    let mut failed = None;
    cluster.wait_until("all nodes serve, or never will", || {
        let Ok(status) = cluster.status() else { return false };
        not_whole = status["data"] == "not whole";
        over = not_whole || restarts >= RESTARTS;
        if over || status["healthy"] == true {
            return true;
        }
        if rests(&status) {
            failed = cluster.done(&["up"]).err();
            return failed.is_some();
        }
        for node in nodes.ended() {
            restarts += 1;
            over = over || node == HOST;
            match cluster.node(node, None) {
                Ok(child) => nodes.put(node, child),
                Err(why) => failed = Some(why),
            }
        }
        over || failed.is_some()
    })?;
    if let Some(why) = failed {
        return Err(why);
    }
    if not_whole {
        serves_nobody(cluster)?;
    }
    if over {
        return begin_anew(cluster, nodes);
    }
    // A paused node may learn only now that it was expelled.
    cluster.pause(LEASE * 2);
    match cluster.status()?["healthy"] == true {
        true => Ok(nodes),
        false => recover(cluster, nodes),
    }
}

/// Whether a killed `down` has left nodes at rest, waiting for a command.
fn rests(status: &Value) -> bool {
    let nodes = status["nodes"].as_array().into_iter().flatten();
    nodes.into_iter().any(|node| node["state"] == "resting")
}

/// Checks that a cluster with incomplete data stays closed, and takes no snapshot.
fn serves_nobody(cluster: &TestCluster) -> Result<(), String> {
    cluster.pause(LEASE * 3);
    if let Some(node) =
        [0, 1].map(NodeName::compute).into_iter().find(|node| cluster.is_open(*node))
    {
        return Err(format!("{node} serves data that is not whole"));
    }
    match cluster.done(&["snapshot"]) {
        Ok(said) => Err(format!("data that is not whole is copied: {said}")),
        Err(_) => cluster.check_kept(),
    }
}

/// Ends all nodes, and starts from the last snapshot.
fn begin_anew(cluster: &TestCluster, nodes: Nodes) -> Result<Nodes, String> {
    cluster.check_kept()?;
    cluster.done(&["down", "--no-snapshot"])?;
    drop(nodes);
    cluster.done(&["up", "--wait", "100"])?;
    Ok(Nodes::default())
}
