//! Nodes of a cluster in network namespaces of this machine, which act as hosts of their own, with
//! cables that can be pulled.
//!
//! # What it is
//! `scripts/cables.sh`, for instance, creates them under a common name: `NAME-mn-0`, `NAME-cn-0`
//! and so on, and `NAME-switch`, where the other end of each node's cable has the node's name. Here
//! nodes are started in theirs, and cables are pulled and plugged in again, by `ip` of iproute2,
//! which needs root.
//!
//! # What it is not
//! Set-up: no namespace is created or removed here, and this process stays in the namespace in
//! which it was started, from which it must reach the nodes.

use std::path::Path;
use std::process::{Command, Stdio};

use super::name::NodeName;

/// Directory in which iproute2 keeps the names of namespaces.
const NAMES: &str = "/run/netns";

/// Network namespaces of one cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespaces {
    name: String,
}

impl Namespaces {
    /// Finds the namespaces of this name; there must be one for each node, and a switch.
    ///
    /// # Errors
    /// A sentence that names a missing one.
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
        let ran = Command::new("ip")
            .args(["-n", &self.switch(), "link", "set", &cable, state])
            .stdin(Stdio::null())
            .output();
        let ran = ran.map_err(|error| format!("cannot run ip: {error}"))?;
        if ran.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&ran.stderr);
        Err(format!("cannot set the cable of {cable} {state}: {}", why.trim()))
    }

    fn of(&self, node: NodeName) -> String {
        format!("{}-{node}", self.name)
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.name)
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
