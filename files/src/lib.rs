//! Files that appear under their names whole and on the disk, or not at all.
//!
//! # What it is
//! A [`Part`] is a file in the making: it has a name of its own that ends in `.part`, in the
//! directory of the file that it becomes. [`Part::publish`] syncs it, gives it its name, and syncs
//! the directory. Snapshots and state files (process ids, keys, reports, histories) are written so.
//!
//! # Why no writer damages a file of another
//! A part is created exclusively, so two writers never share one, and it is only ever written
//! before it has its final name. A writer that was paused wakes up holding its own part. Behind the
//! first error nothing is written: what was buffered is dropped, and the part removed.
//!
//! # Parts that are left
//! A process that dies leaves its part. Every part is locked for as long as its writer lives, so
//! the next writer of the same file removes those that are not ([`Part::create`]).
//!
//! # Faults
//! All operations go through [`Files`]. [`Disk`] carries them out; [`faults::Faulty`] lets any one
//! of them fail, for tests.
//!
//! # What it is not
//! Logs and sockets, which are appended to and bound in place; and values at the authority.

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
    /// Those that the process's file mode creation mask lets: mode 0666 without the mask.
    Mask,
}

/// Treatment of a file that has the name already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    /// It keeps the name, and the new file is refused with [`io::ErrorKind::AlreadyExists`].
    Kept,
    /// The new file takes its place, in one step.
    Replaced,
}

/// The operations on files that whole files are made of. Each is one step at which a process may
/// die or the disk may refuse.
pub trait Files: Send + Sync {
    /// Creates a file in `directory`, exclusively: its name is `prefix`, random letters and
    /// `.part`. It is locked until it is dropped.
    ///
    /// # Errors
    /// The operating system's.
    fn create(
        &self,
        directory: &Path,
        prefix: &str,
        readers: Readers,
    ) -> io::Result<Box<dyn Unfinished>>;

    /// Makes a directory that only its owner can enter, where the one above is there.
    ///
    /// # Errors
    /// The operating system's; [`io::ErrorKind::AlreadyExists`] if the name is taken.
    fn make_directory(&self, directory: &Path) -> io::Result<()>;

    /// Waits until the names in a directory are on the disk.
    ///
    /// # Errors
    /// The operating system's; names that were changed may be lost with the machine's power.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The operating system's.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// A file that has no final name yet. Dropped, it is removed.
pub trait Unfinished: Write + Send {
    /// Waits until all bytes are on the disk.
    ///
    /// # Errors
    /// The operating system's. Bytes may be lost then, and syncing again does not bring them back.
    fn sync(&mut self) -> io::Result<()>;

    /// Gives it its final name, in the same directory.
    ///
    /// # Errors
    /// The operating system's; the file is removed.
    fn rename(self: Box<Self>, to: &Path, existing: Existing) -> io::Result<()>;
}
