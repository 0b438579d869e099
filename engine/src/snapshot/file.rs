//! A file that is there whole, or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What a file is called until it is whole: another name in the same directory.
fn part_of(path: &Path) -> io::Result<PathBuf> {
    let nameless = || io::Error::new(io::ErrorKind::InvalidInput, "it needs a file name");
    let mut name = path.file_name().ok_or_else(nameless)?.to_owned();
    name.push(".part");
    Ok(path.with_file_name(name))
}

/// Has `write` write a file of this name, readable for its owner only. If it fails, or the process
/// dies on the way, what had that name before is as it was; in the second case a file with the
/// ending `.part` is left, and the next one takes its place.
pub(crate) fn write_whole<T, E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    let part = part_of(path)?;
    let written = write_part(&part, write).and_then(|written| {
        fs::rename(&part, path)?;
        // The name must outlast the machine as well.
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(written)
    });
    if written.is_err() {
        // What is not there need not go.
        let _ = fs::remove_file(&part);
    }
    written
}

fn write_part<T, E: From<io::Error>>(
    part: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(part)?;
    let mut buffered = BufWriter::with_capacity(1 << 20, file);
    let written = write(&mut buffered)?;
    buffered.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(written)
}
