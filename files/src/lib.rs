//! Files that appear under their final names complete and synced, or not at all.
//!
//! # What it is
//! A [`Part`] is an unfinished file with a temporary name that ends in `.part`, in the directory of
//! the target. [`Part::publish`] syncs and renames the part, and syncs the directory. Snapshots and
//! state files (process ids, keys, reports, histories) are written as parts.
//!
//! # Safety from other writers
//! A part is created exclusively, so two writers never share a part, and it is only written before
//! the rename to its final name (I195). A writer that resumes after a pause still holds its own
//! part. After the first error nothing more is written: the buffer is dropped, and the part
//! removed.
//!
//! # Leftover parts
//! A process that dies leaves its part behind. Every part is locked while its writer lives, so the
//! next writer of the file removes unlocked parts ([`Part::create`]).
//!
//! # Faults
//! Every operation goes through [`Files`]. [`Disk`] carries operations out; [`faults::Faulty`]
//! makes a chosen operation fail, for tests.
//!
//! # What it is not
//! The crate does not cover logs and sockets, which are appended to and bound in place, nor values
//! at the authority.

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

/// Users with permission to read a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readers {
    /// The owner only: mode 0600.
    Owner,
    /// Users allowed by the process's file mode creation mask: mode 0666 without the masked bits.
    Mask,
    /// Users according to an explicit mode, regardless of the mask: the mode of a replaced file.
    Mode(u32),
}

/// Treatment of an existing file with the same name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    /// The existing file stays, and the new one is refused with [`io::ErrorKind::AlreadyExists`].
    Kept,
    /// The new file atomically replaces the existing file.
    Replaced,
}

/// Operations for writing whole files. Every operation is one step at which a process may die or
/// the disk may refuse.
pub trait Files: Send + Sync {
    /// Creates a file in `directory`, exclusively; the name is `prefix`, random letters and
    /// `.part`. The file stays locked until dropped.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn create(
        &self,
        directory: &Path,
        prefix: &str,
        readers: Readers,
    ) -> io::Result<Box<dyn Unfinished>>;

    /// Creates a directory that only its owner can enter; the parent must exist.
    ///
    /// # Errors
    /// Errors of the operating system; [`io::ErrorKind::AlreadyExists`] if the name is taken.
    fn make_directory(&self, directory: &Path) -> io::Result<()>;

    /// Syncs a directory: waits until its names are on the disk.
    ///
    /// # Errors
    /// Errors of the operating system; changed names may then be lost in a power failure.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// A file without its final name; removed if dropped.
pub trait Unfinished: Write + Send {
    /// Syncs the file: waits until its bytes are on the disk.
    ///
    /// # Errors
    /// Errors of the operating system. Bytes may be lost then, and a second sync does not restore
    /// them.
    fn sync(&mut self) -> io::Result<()>;

    /// Renames the file to its final name, in the same directory.
    ///
    /// # Errors
    /// Errors of the operating system; the file is removed.
    fn rename(self: Box<Self>, to: &Path, existing: Existing) -> io::Result<()>;
}
