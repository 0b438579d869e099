//! The command line of a program that runs nodes: `PROGRAM cn --file FILE --node N`, as
//! `lotus cluster up` starts it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::error::FileError;
use crate::config::file::ClusterFile;
use crate::config::name::{NodeKind, NodeName};
use crate::config::snapshots::IfDamaged;

/// Command line of a program that only runs nodes.
#[derive(Debug, Parser)]
#[command(arg_required_else_help = true)]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) node: NodeCommand,
}

/// Subcommand that runs one node.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Runs a memory node of a cluster until a signal ends it.
    Mn(NodeArgs),
    /// Runs a compute node of a cluster until a signal ends it.
    Cn(ComputeNodeArgs),
}

/// A node of a cluster.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Cluster of the node.
    #[command(flatten)]
    pub place: ClusterPlace,
    /// Index among the nodes of its kind, from 0.
    #[arg(long, value_name = "N")]
    pub node: u16,
}

/// A compute node of a cluster.
#[derive(Debug, Args)]
pub struct ComputeNodeArgs {
    /// The node.
    #[command(flatten)]
    pub node: NodeArgs,
    /// Data that a new cluster starts with.
    #[command(flatten)]
    pub beginning: BeginningArgs,
}

/// A cluster's description, and the state on this host.
#[derive(Debug, Args)]
pub struct ClusterPlace {
    /// Description of the cluster.
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Directory of process ids, logs and sockets on this host
    /// [default: beside the file, ending in .state].
    #[arg(long, value_name = "DIRECTORY")]
    pub state: Option<PathBuf>,
}

/// Choice of the data that a cluster starts with.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct BeginningArgs {
    /// If the newest snapshot is damaged or out of reach, begins with the newest snapshot that is
    /// whole and at hand; later commits are lost.
    #[arg(long)]
    pub older_snapshot: bool,
    /// Begins with the data of the cluster's file, even if snapshots exist, may exist, or have
    /// existed; earlier commits are lost.
    #[arg(long, conflicts_with = "older_snapshot")]
    pub fresh: bool,
}

impl ClusterPlace {
    /// Reads the description.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn read(&self) -> Result<ClusterFile, FileError> {
        ClusterFile::read(&self.file, self.state.as_deref())
    }
}

impl BeginningArgs {
    /// Sets the choice in the cluster's description.
    ///
    /// # Errors
    /// A sentence: the cluster takes no snapshots.
    pub fn choose(self, file: &mut ClusterFile) -> Result<(), String> {
        match (&mut file.snapshots, self.older_snapshot, self.fresh) {
            (Some(snapshots), _, true) => snapshots.if_damaged = IfDamaged::Afresh,
            (Some(snapshots), true, _) => snapshots.if_damaged = IfDamaged::UseOlder,
            (None, true, _) => {
                return Err(format!("{} has no [snapshots] directory", file.path.display()));
            }
            // Without snapshots every beginning is a fresh beginning.
            (None, ..) | (Some(_), false, false) => {}
        }
        Ok(())
    }
}

impl NodeCommand {
    /// Cluster of the node.
    pub fn place(&self) -> &ClusterPlace {
        &self.node().place
    }

    /// Name of the node.
    pub fn name(&self) -> NodeName {
        let kind = match self {
            Self::Mn(_) => NodeKind::Memory,
            Self::Cn(_) => NodeKind::Compute,
        };
        NodeName { kind, index: self.node().node }
    }

    /// Data that a new cluster starts with, if this node founds the cluster.
    pub fn beginning(&self) -> BeginningArgs {
        match self {
            Self::Mn(_) => BeginningArgs::default(),
            Self::Cn(args) => args.beginning,
        }
    }

    fn node(&self) -> &NodeArgs {
        match self {
            Self::Mn(args) => args,
            Self::Cn(args) => &args.node,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        CommandLine::command().debug_assert();
    }

    #[test]
    fn a_node_is_named_as_lotus_cluster_up_names_it() {
        let read = |line: &str| CommandLine::try_parse_from(line.split(' '));
        let line = read("orders cn --file o.toml --node 1 --older-snapshot").expect("sound");
        assert_eq!(line.node.name(), NodeName::compute(1));
        assert!(line.node.beginning().older_snapshot);
        let line = read("orders mn --file o.toml --node 0 --state s").expect("sound");
        assert_eq!(line.node.name().to_string(), "mn-0");
        assert_eq!(line.node.place().state, Some("s".into()));
        for wrong in ["orders", "orders cn --node 1", "orders cn --file o.toml --node x"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
