//! A compute node's mark on its host: that the cluster has lived, and the newest snapshot, on any
//! host ([`super::holding`]).
//!
//! A node writes the mark before it serves, and again when it learns of a newer snapshot. A
//! snapshot is reported as taken only when the other nodes can learn of it.

use std::path::{Path, PathBuf};

use lotus::SnapshotLife;
use lotus_authority::{Authority, AuthorityError};
use lotus_files::Disk;
use tracing::warn;

use super::holding::{ClusterMark, KnownSnapshot};
use super::{LIFE, RESTORED, Snapshot};
use crate::agree::mailbox_server::MailboxServer;
use crate::agree::records;
use crate::config::name::NodeName;

/// Key of the newest snapshot that was taken in this life ([`KnownSnapshot`]).
const TAKEN: &str = "snapshots/taken";
/// Number of daemon polls between two looks at the newest snapshot.
const LOOKS: u32 = 10;

/// Tells all nodes of a whole snapshot on the disk.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub fn tell_taken(
    node: NodeName,
    snapshot: &Snapshot,
    authority: &dyn Authority,
) -> Result<(), AuthorityError> {
    let taken = known(node, snapshot);
    let newer = |newest: &mut Option<KnownSnapshot>| {
        if newest.as_ref().is_none_or(|newest| newest.rank < taken.rank) {
            *newest = Some(taken.clone());
        }
    };
    records::update(authority, TAKEN, newer).map(drop)
}

fn known(node: NodeName, snapshot: &Snapshot) -> KnownSnapshot {
    KnownSnapshot { rank: snapshot.rank(), node, path: snapshot.path.clone() }
}

/// Keeps a node's mark up to date.
pub struct Marker {
    node: NodeName,
    state: PathBuf,
    written: Option<ClusterMark>,
    looks: u32,
}

impl Marker {
    /// Creates the marker of a node with the state directory `state`.
    pub fn new(node: NodeName, state: &Path) -> Self {
        Self { node, state: state.to_owned(), written: None, looks: 0 }
    }

    /// Writes the mark, unless it is up to date.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn write(&mut self, authority: &dyn Authority) -> Result<(), AuthorityError> {
        // The cluster's founder writes the life if the cluster takes snapshots.
        let Some(life) = records::read::<SnapshotLife>(authority, LIFE)?.1 else { return Ok(()) };
        let restored = records::read::<Snapshot>(authority, RESTORED)?.1;
        let restored = restored.map(|restored| known(NodeName::compute(0), &restored));
        let taken = records::read::<Option<KnownSnapshot>>(authority, TAKEN)?.1.flatten();
        let mark = ClusterMark { life, newest: taken.or(restored) };
        if self.written.as_ref() != Some(&mark) {
            match mark.write(&Disk, &self.state, self.node) {
                Ok(()) => self.written = Some(mark),
                Err(error) => {
                    let state = self.state.display();
                    warn!(%error, "{state} does not remember that the cluster has lived");
                }
            }
        }
        Ok(())
    }
}

impl MailboxServer for Marker {
    fn look(&mut self, authority: &dyn Authority) {
        self.looks = (self.looks + 1) % LOOKS;
        if self.looks == 0 {
            // The next look may have an answer.
            let _ = self.write(authority);
        }
    }

    fn end(&mut self, authority: &dyn Authority) {
        // If the authority has gone first, the mark stays as it was.
        let _ = self.write(authority);
    }
}
