//! The operating system's files.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use tempfile::{NamedTempFile, TempPath};

use crate::{Existing, Files, Readers, Unfinished};

/// Random letters in the name of a part.
pub(crate) const RANDOM_LETTERS: usize = 6;
/// Ending of the name of a part.
pub(crate) const SUFFIX: &str = ".part";

/// The operating system's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Disk;

/// An unfinished file, removed when dropped.
pub(crate) struct DiskPart {
    file: File,
    path: TempPath,
}

impl DiskPart {
    pub(crate) fn create(directory: &Path, prefix: &str, readers: Readers) -> io::Result<Self> {
        let mode = match readers {
            Readers::Owner => 0o600,
            Readers::Mask => 0o666,
            Readers::Mode(mode) => mode,
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(prefix).suffix(SUFFIX).rand_bytes(RANDOM_LETTERS);
        builder.permissions(Permissions::from_mode(mode));
        loop {
            let created = builder.tempfile_in(directory)?;
            if let Readers::Mode(mode) = readers {
                // Overrides the process's mask.
                created.as_file().set_permissions(Permissions::from_mode(mode))?;
            }
            if is_held(&created)? {
                let (file, path) = created.into_parts();
                return Ok(Self { file, path });
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the file in place, unlocked, like a process that dies.
    pub(crate) fn leave(self) {
        // If `keep` fails, the file is removed, which is also a possible result of a death.
        let _ = self.path.keep();
    }
}

/// Locks a newly created part. Returns false if a concurrent writer mistook the part for the
/// leftover of a dead process, and has removed it or is about to.
fn is_held(created: &NamedTempFile) -> io::Result<bool> {
    match created.as_file().try_lock() {
        Err(TryLockError::WouldBlock) => Ok(false),
        // If files cannot be locked, parts are never removed either.
        Err(TryLockError::Error(_)) => Ok(true),
        Ok(()) => Ok(created.as_file().metadata()?.nlink() > 0),
    }
}

/// Returns whether the writer of a part has died.
pub(crate) fn is_left(part: &Path) -> bool {
    File::open(part).is_ok_and(|file| file.try_lock().is_ok())
}

impl Write for DiskPart {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Unfinished for DiskPart {
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn rename(self: Box<Self>, to: &Path, existing: Existing) -> io::Result<()> {
        let Self { file: _locked, path } = *self;
        let renamed = match existing {
            Existing::Kept => path.persist_noclobber(to),
            Existing::Replaced => path.persist(to),
        };
        renamed.map_err(|refused| refused.error)
    }
}

impl Files for Disk {
    fn create(
        &self,
        directory: &Path,
        prefix: &str,
        readers: Readers,
    ) -> io::Result<Box<dyn Unfinished>> {
        Ok(Box::new(DiskPart::create(directory, prefix, readers)?))
    }

    fn make_directory(&self, directory: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(directory)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}
