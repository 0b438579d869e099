//! Files that appear under their names complete and on the disk, or not at all.
//!
//! # What it is
//! A [`Part`] is an unfinished file: it has a temporary name that ends in `.part`, in the directory
//! of its target. [`Part::publish`] syncs it, renames it, and syncs the directory. Snapshots and
//! state files (process ids, keys, reports, histories) are written this way.
//!
//! # Safety from other writers
//! A part is created exclusively, so two writers never share one, and it is only written before it
//! has its final name. A writer that resumes after a pause still holds its own part. After the
//! first error nothing is written: the buffer is dropped, and the part removed.
//!
//! # Leftover parts
//! A process that dies leaves its part. Every part is locked while its writer lives, so the next
//! writer of the same file removes the unlocked ones ([`Part::create`]).
//!
//! # Faults
//! All operations go through [`Files`]. [`Disk`] carries them out; [`faults::Faulty`] makes any one
//! of them fail, for tests.
//!
//! # What it is not
//! It does not cover logs and sockets, which are appended to and bound in place, nor values at the
//! authority.

#![forbid(unsafe_code)]

mod directory;
mod disk;
pub mod faults;
mod part;

use std::io::{self, Write};
use std::path::Path;

pub use directory::make_directory;
pub use disk::Disk;
pub use part::{Part, write_whole};

/// Users that may read a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readers {
    /// Its owner only: mode 0600.
    Owner,
    /// Users allowed by the process's file mode creation mask: mode 0666 without the masked bits.
    Mask,
    /// Users that this mode names, whatever the mask is: those of a file that is replaced.
    Mode(u32),
}

/// Treatment of an existing file with the same name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    /// The existing file stays, and the new one is refused with [`io::ErrorKind::AlreadyExists`].
    Kept,
    /// The new file replaces it atomically.
    Replaced,
}

/// Operations from which whole files are made. Each is one step at which a process may die or the
/// disk may refuse.
pub trait Files: Send + Sync {
    /// Creates a file in `directory`, exclusively: its name is `prefix`, random letters and
    /// `.part`. It stays locked until it is dropped.
    ///
    /// # Errors
    /// The operating system's.
    fn create(
        &self,
        directory: &Path,
        prefix: &str,
        readers: Readers,
    ) -> io::Result<Box<dyn Unfinished>>;

    /// Makes a directory that only its owner can enter; its parent must exist.
    ///
    /// # Errors
    /// The operating system's; [`io::ErrorKind::AlreadyExists`] if the name is taken.
    fn make_directory(&self, directory: &Path) -> io::Result<()>;

    /// Waits until the names in a directory are on the disk.
    ///
    /// # Errors
    /// The operating system's; changed names may then be lost if the machine loses power.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The operating system's.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// A file that has no final name yet; removed if dropped.
pub trait Unfinished: Write + Send {
    /// Waits until all bytes are on the disk.
    ///
    /// # Errors
    /// The operating system's. Bytes may be lost then, and syncing again does not bring them back.
    fn sync(&mut self) -> io::Result<()>;

    /// Renames it to its final name, in the same directory.
    ///
    /// # Errors
    /// The operating system's; the file is removed.
    fn rename(self: Box<Self>, to: &Path, existing: Existing) -> io::Result<()>;
}
