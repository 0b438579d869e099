//! Remains of the cluster's earlier lives on the host of a compute node: snapshots, and a mark.
//!
//! # The mark
//! A small file in the state directory, for each compute node of the host. The mark says that the
//! cluster has lived, and names the newest snapshot known to the node, on any host. So an empty
//! directory of snapshots can be told from a cluster that never lived, and an old snapshot from the
//! newest.
//!
//! # What it is not
//! A decision: compute node 0 decides, from the reports of all hosts ([`super::initial_data`]).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lotus::SnapshotLife;
use lotus_authority::{Authority, AuthorityError};
use lotus_files::{Existing, Files, Readers, write_whole};
use serde::{Deserialize, Serialize};

use super::snapshot_files::{self, Rank};
use crate::agree::records;
use crate::config::name::NodeName;

/// Extension of marks.
const EXTENSION: &str = "lived";
/// Largest number of snapshots that a node reports, the newest first.
const MOST_TOLD: usize = 64;

/// A snapshot in a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeldFile {
    /// Path of the file, on its host.
    pub path: PathBuf,
    /// Rank of the snapshot; `None` if neither head nor name is readable.
    pub rank: Option<Rank>,
    /// Date at which the snapshot was begun, in words; empty if the head cannot be read.
    pub time: String,
}

/// The newest snapshot known to a node, on any host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KnownSnapshot {
    /// Rank of the snapshot.
    pub rank: Rank,
    /// Node that took or restored the snapshot.
    pub node: NodeName,
    /// Path of the file, on the host of the node.
    pub path: PathBuf,
}

/// Mark of a cluster that has served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClusterMark {
    /// The cluster's last life.
    pub life: SnapshotLife,
    /// The newest snapshot; `None` if the life began afresh, and took no snapshot.
    pub newest: Option<KnownSnapshot>,
}

impl ClusterMark {
    fn order(&self) -> (SnapshotLife, Option<Rank>) {
        (self.life, self.newest.as_ref().map(|known| known.rank))
    }

    /// The later of two marks.
    pub(super) fn later(self, other: Self) -> Self {
        if other.order() > self.order() { other } else { self }
    }

    /// Reads the marks of a state directory; returns the latest.
    ///
    /// # Errors
    /// A sentence: a mark cannot be read, or has no meaning.
    fn read(state: &Path) -> Result<Option<Self>, String> {
        let failed = |path: &Path, error: &dyn std::fmt::Display| {
            format!("cannot read whether the cluster has lived in {}: {error}", path.display())
        };
        let entries = match fs::read_dir(state) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            entries => entries.map_err(|error| failed(state, &error))?,
        };
        let mut latest: Option<Self> = None;
        for entry in entries {
            let path = entry.map_err(|error| failed(state, &error))?.path();
            if path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            let bytes = fs::read(&path).map_err(|error| failed(&path, &error))?;
            let mark: Self =
                serde_json::from_slice(&bytes).map_err(|error| failed(&path, &error))?;
            latest = Some(latest.map_or(mark.clone(), |latest| latest.later(mark)));
        }
        Ok(latest)
    }

    /// Writes the mark of a node: all of the file is new, or the old mark stays.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) fn write(&self, files: &dyn Files, state: &Path, node: NodeName) -> io::Result<()> {
        let path = state.join(format!("{node}.{EXTENSION}"));
        let bytes = serde_json::to_vec(self).expect("strings and numbers");
        write_whole(files, &path, Readers::Owner, Existing::Replaced, |file| file.write_all(&bytes))
    }
}

/// Snapshots and mark of earlier lives on the host of a compute node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holding {
    /// The compute node.
    pub node: NodeName,
    /// Snapshots in its directory, the newest first.
    pub held: Vec<HeldFile>,
    /// Latest mark in its state directory.
    pub lived: Option<ClusterMark>,
}

fn key(node: NodeName) -> String {
    format!("snapshots/held/{node}")
}

impl Holding {
    /// Reads the snapshots and marks of this host.
    ///
    /// # Errors
    /// A sentence: a directory cannot be read.
    pub fn look(node: NodeName, directory: &Path, state: &Path) -> Result<Self, String> {
        let held = snapshot_files::all_held(directory).map_err(|error| {
            format!("cannot look for snapshots in {}: {error}", directory.display())
        })?;
        Ok(Self { node, held, lived: ClusterMark::read(state)? })
    }

    /// Publishes the holding for the other nodes.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn publish(&self, authority: &dyn Authority) -> Result<(), AuthorityError> {
        let held = self.held.iter().take(MOST_TOLD).cloned().collect();
        let told = Self { held, ..self.clone() };
        records::write(authority, &key(self.node), &told).map(drop)
    }

    /// Holdings that these nodes have published, by node.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn read_all(
        nodes: &[NodeName],
        authority: &dyn Authority,
    ) -> Result<BTreeMap<NodeName, Self>, AuthorityError> {
        let mut told = BTreeMap::new();
        for node in nodes {
            if let (_, Some(holding)) = records::read(authority, &key(*node))? {
                told.insert(*node, holding);
            }
        }
        Ok(told)
    }
}
