//! The disk, with a fault point behind every step of a snapshot's file.

use std::io::{self, Write};
use std::path::Path;

use lotus_files::{Disk, Existing, Files, Readers, Unfinished};
use lotus_points::point_here;

/// [`Disk`], with fault points at which a process may be struck.
pub struct FaultDisk;

impl Files for FaultDisk {
    fn create(
        &self,
        directory: &Path,
        prefix: &str,
        readers: Readers,
    ) -> io::Result<Box<dyn Unfinished>> {
        let file = Disk.create(directory, prefix, readers)?;
        point_here!(0, SnapshotOpened);
        Ok(Box::new(FaultFile(file)))
    }

    fn make_directory(&self, directory: &Path) -> io::Result<()> {
        Disk.make_directory(directory)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        Disk.sync_directory(directory)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Disk.remove(path)
    }
}

struct FaultFile(Box<dyn Unfinished>);

impl Write for FaultFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.0.write(bytes)?;
        point_here!(0, SnapshotWritten);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Unfinished for FaultFile {
    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()?;
        point_here!(0, SnapshotSynced);
        Ok(())
    }

    fn rename(self: Box<Self>, to: &Path, existing: Existing) -> io::Result<()> {
        self.0.rename(to, existing)?;
        point_here!(0, SnapshotNamed);
        Ok(())
    }
}
