//! Nodes of a cluster in network namespaces of this machine, which act as hosts with pluggable
//! cables.
//!
//! # What it is
//! `scripts/cables.sh`, for instance, creates the namespaces under a common name: `NAME-mn-0`,
//! `NAME-cn-0` and so on, and `NAME-switch`, where the far end of a node's cable has the node's
//! name; in the node's own namespace the cable is `eth0`. This module starts nodes in namespaces,
//! and pulls and plugs cables, by `ip` of iproute2, which needs root.
//!
//! The path between two nodes is cut by false neighbour entries: each node maps the address of its
//! peer to a nonexistent station. Packets between the two are lost on the way, without an error, as
//! if a switch dropped them; paths to third nodes stay open.
//!
//! # What it is not
//! Set-up: this module creates and removes no namespaces, and the process stays in its initial
//! namespace, from which it must reach the nodes.

use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use super::name::NodeName;

/// Directory in which iproute2 keeps the names of namespaces.
const NAMES: &str = "/run/netns";
/// A node's end of its cable.
const DEVICE: &str = "eth0";
/// MAC address of a nonexistent station: locally administered, assigned to no vendor.
const NOBODY: &str = "02:00:00:00:00:00";

/// State of the path between two nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathState {
    /// Packets between the nodes arrive.
    Open,
    /// Packets between the nodes are lost.
    Cut,
}

/// Network namespaces of one cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespaces {
    name: String,
}

impl Namespaces {
    /// Finds the namespaces of this name; every node and the switch must have a namespace.
    ///
    /// # Errors
    /// A sentence naming a missing namespace.
    pub fn find(name: &str, nodes: impl Iterator<Item = NodeName>) -> Result<Self, String> {
        let namespaces = Self { name: name.to_owned() };
        let mut wanted = nodes.map(|node| namespaces.of(node)).chain([namespaces.switch()]);
        match wanted.find(|wanted| !Path::new(NAMES).join(wanted).exists()) {
            Some(missing) => Err(format!("there is no network namespace {missing}")),
            None => Ok(namespaces),
        }
    }

    /// Command that runs `program` in a node's namespace.
    pub fn enter(&self, node: NodeName, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.of(node)]).arg(program);
        command
    }

    /// Pulls a node's cable, or plugs it in again.
    ///
    /// # Errors
    /// A sentence.
    pub fn set_cable(&self, node: NodeName, plugged: bool) -> Result<(), String> {
        let cable = node.to_string();
        let state = if plugged { "up" } else { "down" };
        let arguments = ["-n", &self.switch(), "link", "set", &cable, state];
        ip(&arguments).map_err(|why| format!("cannot set the cable of {cable} {state}: {why}"))
    }

    /// Cuts or heals the path between two nodes, in both directions.
    ///
    /// # Errors
    /// A sentence.
    pub fn set_path(&self, ends: [(NodeName, IpAddr); 2], path: PathState) -> Result<(), String> {
        let [one, two] = ends;
        [(one, two), (two, one)].into_iter().try_for_each(|((node, _), (other, address))| {
            let (space, address) = (self.of(node), address.to_string());
            let ran = match path {
                PathState::Cut => ip(&cut(&space, &address)),
                PathState::Open => ip(&[&heal(&space)[..], &["to", &address]].concat()),
            };
            ran.map_err(|why| format!("cannot set the path from {node} to {other}: {why}"))
        })
    }

    /// Heals the outgoing paths of a node.
    ///
    /// # Errors
    /// A sentence.
    pub fn heal_paths(&self, node: NodeName) -> Result<(), String> {
        let healed = ip(&heal(&self.of(node)));
        healed.map_err(|why| format!("cannot heal the paths of {node}: {why}"))
    }

    fn of(&self, node: NodeName) -> String {
        format!("{}-{node}", self.name)
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.name)
    }
}

/// Arguments of `ip` that divert packets for an address to a nonexistent station.
fn cut<'a>(space: &'a str, address: &'a str) -> [&'a str; 11] {
    let (to, at) = (address, NOBODY);
    ["-n", space, "neigh", "replace", to, "lladdr", at, "nud", "permanent", "dev", DEVICE]
}

/// Arguments of `ip` that remove false entries: only false entries are permanent.
fn heal(space: &str) -> [&str; 8] {
    ["-n", space, "neigh", "flush", "dev", DEVICE, "nud", "permanent"]
}

/// Runs `ip`; returns the error output of a failed run.
fn ip(arguments: &[&str]) -> Result<(), String> {
    let ran = Command::new("ip").args(arguments).stdin(Stdio::null()).output();
    let ran = ran.map_err(|error| format!("cannot run ip: {error}"))?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&ran.stderr).trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_is_missing_is_named() {
        let refused = Namespaces::find("lotus-nowhere", [NodeName::compute(3)].into_iter());
        assert_eq!(refused, Err("there is no network namespace lotus-nowhere-cn-3".to_owned()));
    }

    #[test]
    fn a_node_is_started_in_its_namespace() {
        let namespaces = Namespaces { name: "bank".to_owned() };
        let command = namespaces.enter(NodeName::compute(1), Path::new("/bin/lotus"));
        let arguments: Vec<_> = command.get_args().collect();
        assert_eq!(command.get_program(), "ip");
        assert_eq!(arguments, ["netns", "exec", "bank-cn-1", "/bin/lotus"]);
    }
}
