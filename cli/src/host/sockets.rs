//! Sockets of a cluster's nodes on this host: their directory and their names.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// No directory could be made for what the nodes share.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a directory in {}: {source}", path.display())]
pub struct NoDirectory {
    /// The directory's parent.
    path: PathBuf,
    /// The system's error.
    source: io::Error,
}

/// A directory for the sockets of one cluster, which only this user can enter. Removed when
/// dropped, and by the last of the nodes otherwise.
pub struct Sockets {
    path: PathBuf,
    nodes: u16,
}

impl Sockets {
    /// Makes one for a cluster of `nodes` nodes.
    ///
    /// # Errors
    /// [`NoDirectory`].
    pub fn new(nodes: u16) -> Result<Self, NoDirectory> {
        let parent = std::env::temp_dir();
        let mut number = 0;
        loop {
            let path = parent.join(format!("lotus-{}-{number}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path, nodes }),
                // An earlier process of the same id has left it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(source) => return Err(NoDirectory { path: parent, source }),
            }
        }
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        remove_sockets(&self.path, self.nodes);
    }
}

/// The name of the socket at which compute node `index` of a cluster serves applications of this
/// host.
pub fn client_socket(index: usize) -> String {
    format!("client-{index}.sock")
}

/// Removes what a cluster leaves in its directory, and the directory if that was all.
pub fn remove_sockets(directory: &Path, nodes: u16) {
    for node in 0..nodes {
        let own = ["sock", "lock"].map(|extension| format!("node-{node}.{extension}"));
        for name in own.into_iter().chain([client_socket(node.into())]) {
            // A missing file is no error.
            let _ = fs::remove_file(directory.join(name));
        }
    }
    let _ = fs::remove_dir(directory);
}
