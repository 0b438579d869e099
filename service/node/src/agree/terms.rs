//! The parts of the cluster's file that all nodes must share and the engine does not compare: a
//! node with another file is told the difference, and `lotus cluster status` judges by the file
//! that the cluster was founded with.

use lotus_authority::{Authority, AuthorityError};
use lotus_fabric::ids::NodeId;
use serde::{Deserialize, Serialize};

use super::records;
use crate::config::file::{Applications, ClusterFile};
use crate::config::name::{NodeKind, NodeName};

/// Key of the terms.
const KEY: &str = "file";

/// Terms of a cluster's file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Terms {
    /// Number of memory nodes.
    pub memory_nodes: u16,
    /// Number of compute nodes.
    pub compute_nodes: u16,
    /// Sentences about the rest, in a fixed order.
    said: Vec<String>,
}

impl Terms {
    /// Terms of a file.
    pub fn of(file: &ClusterFile) -> Self {
        let clients = file.compute_nodes.iter().zip(0..).map(|(node, index)| {
            let name = NodeName::compute(index).in_words();
            match &node.client {
                Some(client) => format!("{name} serves applications at {}", client.address),
                None => format!("{name} serves no applications"),
            }
        });
        let snapshots = file.snapshots.as_ref().map_or("no [snapshots]".to_owned(), |snapshots| {
            // Relative as in the file: the absolute path may differ between hosts.
            let home = file.path.parent().unwrap_or("".as_ref());
            let directory = &snapshots.directory;
            let directory = directory.strip_prefix(home).unwrap_or(directory).display();
            format!("[snapshots] in {directory}, of which {} stay", snapshots.keep)
        });
        // The number of connections may differ between nodes.
        let Applications { create_tables, drop_tables, interactive, connections: _ } =
            file.applications;
        let rights = format!(
            "[clients] with create_tables = {create_tables}, drop_tables = {drop_tables}, \
             interactive = {interactive}"
        );
        Self {
            memory_nodes: file.settings.memory_nodes as u16,
            compute_nodes: file.settings.compute_nodes as u16,
            said: clients.chain([snapshots, rights]).collect(),
        }
    }

    /// Terms of the file that the cluster was founded with; `None` if there is no cluster yet.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn read(authority: &dyn Authority) -> Result<Option<Self>, AuthorityError> {
        records::read(authority, KEY).map(|(_, found)| found)
    }

    /// Publishes the terms of the file that the cluster is founded with.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn write(&self, authority: &dyn Authority) -> Result<(), AuthorityError> {
        records::write(authority, KEY, self).map(drop)
    }

    fn counted(&self) -> String {
        let Self { memory_nodes, compute_nodes, .. } = self;
        format!("{memory_nodes} memory nodes and {compute_nodes} compute nodes")
    }

    /// First difference between the terms and `ours`, the terms of this host's file, in words.
    pub fn difference(&self, ours: &Self) -> Option<String> {
        let words = |one: &Self| [vec![one.counted()], one.said.clone()].concat();
        let (made, ours) = (words(self), words(ours));
        let differ = made.iter().zip(&ours).find(|(made, ours)| made != ours);
        differ.map(|(made, ours)| {
            format!("the cluster was made with a file of {made}, and this one is of {ours}")
        })
    }

    /// Id of a node in the cluster; `None` for a node that the cluster was founded without.
    pub fn id(&self, node: NodeName) -> Option<NodeId> {
        match node.kind {
            NodeKind::Memory => (node.index < self.memory_nodes).then_some(NodeId(node.index)),
            NodeKind::Compute => {
                (node.index < self.compute_nodes).then_some(NodeId(self.memory_nodes + node.index))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn terms(at: &str, nodes: &str, tail: &str) -> Terms {
        let node = "[[compute_node]]\nclient = \"127.0.0.1:7500\"\n";
        let text = format!("fabric = \"shm\"\nmemory = \"64M\"\n{nodes}{node}{tail}");
        let file = ClusterFile::parse(Path::new(at), &text, None).expect("sound");
        Terms::of(&file)
    }

    #[test]
    fn a_file_that_says_something_else_to_applications_is_told_apart() {
        const MEMORY: &str = "[[memory_node]]\n";
        let made = terms("/a/c.toml", MEMORY, "[snapshots]\ndirectory = \"kept\"\n");
        let elsewhere = terms("/b/c.toml", MEMORY, "[snapshots]\ndirectory = \"kept\"\n");
        assert_eq!((made.difference(&made), made.difference(&elsewhere)), (None, None));
        let node = "[[compute_node]]\nclient = \"127.0.0.1:7501\"\n";
        for (nodes, tail, said) in [
            (MEMORY, "", "no [snapshots]"),
            (MEMORY, "[snapshots]\ndirectory = \"other\"\n", "in other"),
            (MEMORY, "[snapshots]\ndirectory = \"kept\"\nkeep = 9\n", "9 stay"),
            (
                MEMORY,
                "[snapshots]\ndirectory = \"kept\"\n[clients]\ndrop_tables = true\n",
                "drop_tables = true",
            ),
            ("[[memory_node]]\n[[memory_node]]\n", "", "2 memory nodes and 1 compute nodes"),
            (&format!("{MEMORY}{node}"), "", "1 memory nodes and 2 compute nodes"),
        ] {
            let why = made.difference(&terms("/a/c.toml", nodes, tail)).expect(said);
            assert!(why.contains(said), "{why}");
        }
        let moved = terms("/a/c.toml", MEMORY, "[snapshots]\ndirectory = \"kept\"\n");
        let moved = Terms { said: vec!["compute node 0 serves no applications".into()], ..moved };
        let why = made.difference(&moved).expect("another port");
        assert!(why.contains("at 127.0.0.1:7500") && why.contains("no applications"), "{why}");
    }

    #[test]
    fn nodes_have_the_ids_of_the_file_that_the_cluster_was_made_with() {
        let made = terms("/a/c.toml", "[[memory_node]]\n", "");
        let compute = NodeName::compute;
        assert_eq!((made.id(compute(0)), made.id(compute(1))), (Some(NodeId(1)), None));
        let memory = |index| NodeName { kind: NodeKind::Memory, index };
        assert_eq!((made.id(memory(0)), made.id(memory(1))), (Some(NodeId(0)), None));
    }
}
