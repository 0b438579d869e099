//! Names of nodes: a kind, and an index within the kind.

use std::fmt;
use std::str::FromStr;

use lotus_fabric::ids::NodeId;
use serde::{Deserialize, Serialize};

use super::file::ClusterFile;

/// Kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NodeKind {
    /// Memory node: lends memory.
    Memory,
    /// Compute node: runs transactions.
    Compute,
}

/// A node of a cluster. Displayed as `mn-0` or `cn-0`, like the names of its files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct NodeName {
    /// Kind of the node.
    pub kind: NodeKind,
    /// Index within the kind, from zero.
    pub index: u16,
}

impl NodeName {
    /// All nodes, in the order in which they start.
    pub fn all(file: &ClusterFile) -> impl Iterator<Item = Self> + use<> {
        let of = |kind, count: usize| (0..count as u16).map(move |index| Self { kind, index });
        of(NodeKind::Memory, file.settings.memory_nodes)
            .chain(of(NodeKind::Compute, file.settings.compute_nodes))
    }

    /// Compute node with this index.
    pub const fn compute(index: u16) -> Self {
        Self { kind: NodeKind::Compute, index }
    }

    /// Id of the node in the fabric.
    pub fn id(self, file: &ClusterFile) -> NodeId {
        match self.kind {
            NodeKind::Memory => NodeId(self.index),
            NodeKind::Compute => NodeId(file.settings.memory_nodes as u16 + self.index),
        }
    }

    /// Node with this id in the fabric.
    pub fn of(id: NodeId, file: &ClusterFile) -> Self {
        match id.0.checked_sub(file.settings.memory_nodes as u16) {
            None => Self { kind: NodeKind::Memory, index: id.0 },
            Some(index) => Self { kind: NodeKind::Compute, index },
        }
    }

    /// Name for messages, such as `memory node 0`.
    pub fn in_words(self) -> String {
        match self.kind {
            NodeKind::Memory => format!("memory node {}", self.index),
            NodeKind::Compute => format!("compute node {}", self.index),
        }
    }

    /// Subcommand that runs the node.
    pub fn command(self) -> &'static str {
        match self.kind {
            NodeKind::Memory => "mn",
            NodeKind::Compute => "cn",
        }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.command(), self.index)
    }
}

impl FromStr for NodeName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let wrong = || format!("`{name}` is no node: they are called cn-0, mn-0 and so on");
        let (kind, index) = name.split_once('-').ok_or_else(wrong)?;
        let kind = match kind {
            "mn" => NodeKind::Memory,
            "cn" => NodeKind::Compute,
            _ => return Err(wrong()),
        };
        Ok(Self { kind, index: index.parse().map_err(|_| wrong())? })
    }
}

impl TryFrom<String> for NodeName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<NodeName> for String {
    fn from(node: NodeName) -> Self {
        node.to_string()
    }
}
