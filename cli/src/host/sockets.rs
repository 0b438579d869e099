//! A directory for the sockets of a benchmark's nodes.

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
}

impl Sockets {
    /// Makes one for the nodes of a cluster.
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
        // What cannot be removed stays in the system's directory for such files.
        let _ = fs::remove_dir_all(&self.path);
    }
}
