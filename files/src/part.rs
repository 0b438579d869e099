//! An unfinished file, from its creation to its final name.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::disk::{RANDOM_LETTERS, SUFFIX, is_left};
use crate::{Existing, Files, Readers, Unfinished};

/// Size of the write buffer in bytes.
const BUFFER_BYTES: usize = 128 << 10;

/// Bits of a file's mode for reading, writing and executing. The set-user-id and set-group-id bits
/// are left out: a result is not a program that acts for its owner.
const PERMISSIONS: u32 = 0o777;

/// An unfinished, buffered file. Dropping it removes the file without writing the buffer.
pub struct Part<'a> {
    files: &'a dyn Files,
    directory: PathBuf,
    /// `None` after an error.
    sink: Option<BufWriter<Box<dyn Unfinished>>>,
}

impl<'a> Part<'a> {
    /// Creates a part in `directory` under a unique name that begins with `prefix`. Removes parts
    /// with the prefix left by dead writers.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn create(
        files: &'a dyn Files,
        directory: &Path,
        prefix: &str,
        readers: Readers,
    ) -> io::Result<Self> {
        remove_left(files, directory, prefix);
        let unfinished = files.create(directory, prefix, readers)?;
        let sink = Some(BufWriter::with_capacity(BUFFER_BYTES, unfinished));
        Ok(Self { files, directory: directory.to_owned(), sink })
    }

    /// Creates a part for the file `path`, under a hidden name in the same directory. With
    /// [`Readers::Mask`], an existing file at `path` decides the mode instead of the mask.
    ///
    /// # Errors
    /// As [`Self::create`]; `InvalidInput` if the path has no file name.
    pub fn beside(files: &'a dyn Files, path: &Path, readers: Readers) -> io::Result<Self> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let prefix = format!(".{}.lotus-", name_of(path)?.to_string_lossy());
        let readers = match (readers, fs::metadata(path)) {
            (Readers::Mask, Ok(there)) if there.is_file() => {
                Readers::Mode(there.permissions().mode() & PERMISSIONS)
            }
            (readers, _) => readers,
        };
        Self::create(files, directory.unwrap_or(Path::new(".")), &prefix, readers)
    }

    /// Syncs the part, renames it to its final name, and then syncs the directory.
    ///
    /// # Errors
    /// Errors of the operating system. If the last step fails, syncing the directory, the file is
    /// complete under its name, but a power failure may lose the name. After a failure of an
    /// earlier step, the part is removed, and the name is unchanged (I153).
    pub fn publish(mut self, name: impl AsRef<Path>, existing: Existing) -> io::Result<()> {
        self.flush()?;
        let mut unfinished = self.discard_buffer().ok_or_else(failed_before)?;
        unfinished.sync()?;
        unfinished.rename(&self.directory.join(name), existing)?;
        self.files.sync_directory(&self.directory)
    }

    fn discard_buffer(&mut self) -> Option<Box<dyn Unfinished>> {
        self.sink.take().map(|sink| sink.into_parts().0)
    }

    /// Runs `work` on the file. After an error the file is dropped, and every later call fails.
    fn attempt<T>(
        &mut self,
        work: impl FnOnce(&mut BufWriter<Box<dyn Unfinished>>) -> io::Result<T>,
    ) -> io::Result<T> {
        let done = work(self.sink.as_mut().ok_or_else(failed_before)?);
        if done.is_err() {
            drop(self.discard_buffer());
        }
        done
    }
}

fn failed_before() -> io::Error {
    io::Error::other("an earlier write to this file has failed")
}

impl Write for Part<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Writes all bytes: a caller that retries after an interruption must not find the part
        // closed.
        self.attempt(|sink| sink.write_all(bytes)).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.attempt(Write::flush)
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        // Dropping a buffered writer would write its buffer.
        drop(self.discard_buffer());
    }
}

/// Removes the parts of dead writers. Failures are ignored.
fn remove_left(files: &dyn Files, directory: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let random = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(SUFFIX));
        if random.is_some_and(|random| random.len() == RANDOM_LETTERS) && is_left(&path) {
            let _ = files.remove(&path);
        }
    }
}

/// Writes a whole file at `path`, through a hidden part.
///
/// # Errors
/// As [`Part::create`], [`Part::publish`] and `body`; `InvalidInput` if the path has no file name.
pub fn write_whole(
    files: &dyn Files,
    path: &Path,
    readers: Readers,
    existing: Existing,
    body: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut part = Part::beside(files, path, readers)?;
    body(&mut part)?;
    part.publish(name_of(path)?, existing)
}

fn name_of(path: &Path) -> io::Result<&OsStr> {
    let nameless = || io::Error::new(io::ErrorKind::InvalidInput, "a file needs a name");
    path.file_name().ok_or_else(nameless)
}

#[cfg(test)]
mod tests;
