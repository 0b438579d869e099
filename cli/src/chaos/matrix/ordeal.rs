//! One run of the matrix: a blow, and the operator's reaction.

use std::process::Child;

use lotus_points::{Family, FaultPoint};
use serde_json::Value;

use super::ground::{Ground, LEASE, Nodes};
use super::{Actor, Blow, Coordinate};
use lotus_node::config::name::{NodeKind, NodeName};

/// Maximum number of restarts of nodes that end on their own.
const RESTARTS: usize = 8;
/// Node that hosts the authority: if it ends, the whole cluster must start anew.
const HOST: NodeName = NodeName { kind: NodeKind::Memory, index: 0 };

/// Strikes at a coordinate, and checks the result.
///
/// # Errors
/// A sentence: no process was struck, data is lost, or the cluster does not serve in the end.
pub fn undergo(ground: &Ground, coordinate: &Coordinate) -> Result<(), String> {
    ground.reset()?;
    let undergone = match (coordinate.point, coordinate.point.family()) {
        (FaultPoint::Announced | FaultPoint::TakenIn, _) => returns(ground, coordinate),
        (_, Family::Start) => starts(ground, coordinate),
        (_, Family::Snapshot) => is_copied(ground, coordinate),
        _ => is_ended(ground, coordinate),
    };
    // Dropping `_nodes` kills processes started by hand.
    let _nodes = undergone?;
    ground.check_served()?;
    ground.done(&["down"])?;
    ground.check_kept()
}

fn armed(coordinate: &Coordinate) -> Result<(NodeName, String), String> {
    match coordinate.actor {
        Actor::Node(node) => Ok((node, coordinate.armed())),
        Actor::Command => Err("a command starts nothing".to_owned()),
    }
}

/// Strikes a node while the cluster starts from its snapshot.
fn starts(ground: &Ground, coordinate: &Coordinate) -> Result<Nodes, String> {
    let (node, at) = armed(coordinate)?;
    let mut nodes = Nodes::start(ground, Some((node, &at)))?;
    ground.await_blow(nodes.of(node), coordinate.blow, nothing)?;
    if (node, coordinate.blow) == (HOST, Blow::Kill) {
        return begin_anew(ground, nodes);
    }
    recover(ground, nodes)
}

/// Strikes a node while it rejoins.
fn returns(ground: &Ground, coordinate: &Coordinate) -> Result<Nodes, String> {
    let (node, at) = armed(coordinate)?;
    let mut nodes = Nodes::start(ground, None)?;
    await_health(ground)?;
    nodes.kill(node)?;
    nodes.put(node, ground.node(node, Some(&at))?);
    ground.await_blow(nodes.of(node), coordinate.blow, nothing)?;
    recover(ground, nodes)
}

/// Strikes a node during a snapshot.
fn is_copied(ground: &Ground, coordinate: &Coordinate) -> Result<Nodes, String> {
    let (node, at) = armed(coordinate)?;
    let mut nodes = Nodes::start(ground, Some((node, &at)))?;
    await_health(ground)?;
    let mut command = ground.begin(&["snapshot", "--wait", "60"], None)?;
    let struck = ground.await_blow(nodes.of(node), coordinate.blow, nothing);
    // Checked at once, before any process tidies up the files.
    let kept = ground.check_kept();
    let recovered = recover(ground, nodes);
    await_end(ground, &mut command)?;
    struck.and(kept).and(recovered)
}

/// Strikes a node, or the command, while the cluster shuts down.
fn is_ended(ground: &Ground, coordinate: &Coordinate) -> Result<Nodes, String> {
    let at = coordinate.armed();
    let node = match coordinate.actor {
        Actor::Node(node) => Some(node),
        Actor::Command => None,
    };
    let mut nodes = Nodes::start(ground, node.map(|node| (node, at.as_str())))?;
    await_health(ground)?;
    let command = node.is_none().then_some(at.as_str());
    let mut down = ground.begin(&["down", "--wait", "60"], command)?;
    let struck = match (node, coordinate.point) {
        (Some(node), _) => ground.await_blow(nodes.of(node), coordinate.blow, nothing),
        (None, FaultPoint::RestAgreed) => {
            let begins = || begins_to_rest(ground, &mut nodes);
            ground.await_blow(&mut down, coordinate.blow, begins)
        }
        (None, _) => ground.await_blow(&mut down, coordinate.blow, nothing),
    };
    struck?;
    if let (Some(node), Blow::Kill) = (node, coordinate.blow) {
        // The node's next process reports that the outcome of the snapshot request is unknown.
        nodes.put(node, ground.node(node, None)?);
    }
    await_end(ground, &mut down)?;
    ground.check_kept()?;
    let ended = nodes.ended();
    match [0, 1].map(NodeName::compute).iter().all(|node| ended.contains(node)) {
        // The cluster has shut down as asked, and no node is left that could admit a restarted
        // node.
        true => begin_anew(ground, nodes),
        false => recover(ground, nodes),
    }
}

/// Checks that a node that starts to serve while all nodes are told to rest accepts no application.
fn begins_to_rest(ground: &Ground, nodes: &mut Nodes) -> Result<(), String> {
    let node = NodeName::compute(1);
    nodes.kill(node)?;
    nodes.put(node, ground.node(node, None)?);
    await_health(ground)?;
    // The other node has not been asked to rest yet.
    match (ground.is_open(NodeName::compute(0)), ground.is_open(node)) {
        (true, false) => Ok(()),
        (false, _) => Err("a node rests that was not asked to".to_owned()),
        (true, true) => Err(format!("{node} serves, and all were told to rest")),
    }
}

fn nothing() -> Result<(), String> {
    Ok(())
}

fn await_end(ground: &Ground, command: &mut Child) -> Result<(), String> {
    ground.wait_until("the command ends", || matches!(command.try_wait(), Ok(Some(_))))
}

fn await_health(ground: &Ground) -> Result<(), String> {
    ground.wait_until("all nodes serve", || {
        ground.status().is_ok_and(|status| status["healthy"] == true)
    })
}

/// Restarts nodes that have ended, until every node serves; starts the cluster anew if the status
/// says that restarts are no use.
fn recover(ground: &Ground, mut nodes: Nodes) -> Result<Nodes, String> {
    let mut restarts = 0;
    let (mut not_whole, mut over) = (false, false);
    let mut failed = None;
    ground.wait_until("all nodes serve, or never will", || {
        let Ok(status) = ground.status() else { return false };
        not_whole = status["data"] == "not whole";
        over = not_whole || restarts >= RESTARTS;
        if over || status["healthy"] == true {
            return true;
        }
        if rests(&status) {
            failed = ground.done(&["up"]).err();
            return failed.is_some();
        }
        for node in nodes.ended() {
            restarts += 1;
            over = over || node == HOST;
            match ground.node(node, None) {
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
        serves_nobody(ground)?;
    }
    if over {
        return begin_anew(ground, nodes);
    }
    // A paused node may learn only now that it was expelled.
    ground.pause(LEASE * 2);
    match ground.status()?["healthy"] == true {
        true => Ok(nodes),
        false => recover(ground, nodes),
    }
}

/// Whether a killed `down` has left nodes at rest, waiting for a command.
fn rests(status: &Value) -> bool {
    let nodes = status["nodes"].as_array().into_iter().flatten();
    nodes.into_iter().any(|node| node["state"] == "resting")
}

/// Checks that a cluster with incomplete data stays closed, and takes no snapshot.
fn serves_nobody(ground: &Ground) -> Result<(), String> {
    ground.pause(LEASE * 3);
    if let Some(node) = [0, 1].map(NodeName::compute).into_iter().find(|node| ground.is_open(*node))
    {
        return Err(format!("{node} serves data that is not whole"));
    }
    match ground.done(&["snapshot"]) {
        Ok(said) => Err(format!("data that is not whole is copied: {said}")),
        Err(_) => ground.check_kept(),
    }
}

/// Ends all nodes, and starts from the last snapshot.
fn begin_anew(ground: &Ground, nodes: Nodes) -> Result<Nodes, String> {
    ground.check_kept()?;
    ground.done(&["down", "--no-snapshot"])?;
    drop(nodes);
    ground.done(&["up", "--wait", "100"])?;
    Ok(Nodes::default())
}
