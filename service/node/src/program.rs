//! A node with its application.

use std::fmt;
use std::path::Path;

use clap::Parser;
use lotus::TableSpec;
use lotus_server::Registry;

use crate::application::{Application, TableIds, Tables};
use crate::command_line::CommandLine;
use crate::config::error::FileError;
use crate::config::file::ClusterFile;
use crate::config::name::NodeName;
use crate::daemon;

/// A node of a cluster, with its application. The crate's page has an example.
pub struct Node<A = Tables> {
    file: ClusterFile,
    name: NodeName,
    application: A,
}

/// Reason why a node does not start, or has ended with an error.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The cluster file, or a file that it names, is invalid.
    #[error(transparent)]
    File(#[from] FileError),
    /// The node could not start or go on; the text names the cause.
    #[error("{0}")]
    Failed(String),
}

/// Writes the message: `main` prints a returned error with `Debug`.
impl fmt::Debug for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Node {
    /// Creates the node that the command line of this process names: `cn --file FILE --node N`, as
    /// `lotus cluster up` starts it, or `mn` for a memory node. Ends the process with an
    /// explanation if the command line has another form.
    ///
    /// # Errors
    /// As [`Self::from_file`].
    pub fn from_command_line() -> Result<Self, NodeError> {
        let CommandLine { node } = CommandLine::parse();
        let mut file = node.place().read()?;
        node.beginning().choose(&mut file).map_err(NodeError::Failed)?;
        Self::of(file, node.name())
    }

    /// Reads the description of the cluster in which this process is the node `name`. Tables and
    /// stored transactions are added by [`Self::tables`] and [`Self::procedures`].
    ///
    /// # Errors
    /// [`NodeError::File`]: the file cannot be read, has an invalid line, or loads a workload of
    /// `lotus bench`, which only the `lotus` command serves.
    pub fn from_file(path: impl AsRef<Path>, name: NodeName) -> Result<Self, NodeError> {
        Self::of(ClusterFile::read(path.as_ref(), None)?, name)
    }

    fn of(file: ClusterFile, name: NodeName) -> Result<Self, NodeError> {
        if let Some(load) = &file.load {
            let why = "this program has tables of its own, and [load] is for lotus bench";
            return Err(load.wrong(why).into());
        }
        Ok(Self::new(file, name, Tables::default()))
    }

    /// Adds tables to the tables of the file. The first compute node creates the tables when it
    /// founds the cluster. All compute nodes of a cluster need the same tables.
    #[must_use]
    pub fn tables(mut self, specs: impl IntoIterator<Item = TableSpec>) -> Self {
        self.application.specs.extend(specs);
        self
    }

    /// Sets the stored transactions, given the numbers of the tables. All compute nodes of a
    /// cluster need the same stored transactions.
    #[must_use]
    pub fn procedures(
        mut self,
        registry: impl Fn(&TableIds) -> Registry + Send + Sync + 'static,
    ) -> Self {
        self.application.procedures = Box::new(registry);
        self
    }
}

impl<A: Application> Node<A> {
    /// Creates a node of the cluster that `file` describes, with an application of any kind.
    pub fn new(file: ClusterFile, name: NodeName, application: A) -> Self {
        Self { file, name, application }
    }

    /// Runs the node until SIGTERM or SIGINT, and logs to standard error unless the program has set
    /// a `tracing` subscriber. Nodes start in any order: a node waits for the nodes that it needs.
    ///
    /// # Errors
    /// [`NodeError::Failed`]: the file does not describe the node, its address or memory is taken,
    /// other nodes do not answer in time, a table of the application is missing, or this node was
    /// expelled.
    pub fn run(self) -> Result<(), NodeError> {
        daemon::run(&self.file, self.name, &self.application).map_err(NodeError::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "fabric = \"shm\"\nmemory = \"64M\"\n[[memory_node]]\n[[compute_node]]\n";

    fn node(text: &str, name: &str) -> Result<Node, NodeError> {
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join("orders.toml");
        std::fs::write(&path, text).expect("there is room");
        Node::from_file(&path, name.parse().expect("a name"))
    }

    #[test]
    fn a_load_of_the_benchmarks_is_refused_with_its_line() {
        let error = node(&format!("{FILE}[load.kvs]\nkeys = 5\n"), "cn-0").err();
        let error = error.expect("it is not ours").to_string();
        assert!(
            error.contains("orders.toml, line 5: this program has tables of its own"),
            "{error}"
        );
    }

    #[test]
    fn a_node_that_the_file_does_not_describe_does_not_run() {
        let error = node(FILE, "cn-7").expect("the file is sound").run().expect_err("no such node");
        assert!(error.to_string().contains("describes no compute node 7: there are 1"), "{error}");
    }
}
