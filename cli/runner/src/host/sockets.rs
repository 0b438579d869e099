//! A directory for the sockets of a benchmark's nodes.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The directory for the nodes' sockets could not be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a directory in {}: {source}", path.display())]
pub struct NoDirectory {
    /// The directory's parent.
    path: PathBuf,
    /// The system's error.
    source: io::Error,
}

/// A directory for the sockets of one cluster, which only this user can enter. Removed when
/// dropped, or otherwise by the last of the nodes.
pub struct Sockets {
    path: PathBuf,
}

impl Sockets {
    /// Creates a directory for the nodes of a cluster.
    ///
    /// # Errors
    /// [`NoDirectory`].
    pub fn new() -> Result<Self, NoDirectory> {
        let parent = std::env::temp_dir();
        let mut number = 0;
        loop {
            let path = parent.join(format!("lotus-{}-{number}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                // The directory is left from an earlier process with the same id.
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
        // Files that cannot be removed stay in the system's temporary directory.
        let _ = fs::remove_dir_all(&self.path);
    }
}
