//! Output files: checked before a run, written after it.
//!
//! A regular file is written beside its place under a temporary name and renamed ([`lotus_files`]),
//! so that the file is either complete or untouched. A special file (a pipe, a null device) is
//! written directly. [`Output::check`] tests before the run that the file can be written, and
//! leaves no trace.

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use lotus_files::{Disk, Existing, Part, Readers, write_whole};

use super::stream::{ClosedPipeTolerant, StandardOutput};

/// Largest number of symbolic links followed one after another, as in the system.
const LINKS: usize = 40;

/// Reason why a file cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The path names a directory. Name a file.
    #[error("cannot write {0}: it is a directory")]
    Directory(PathBuf),
    /// The path's directory does not exist. Create the directory, or name another.
    #[error("cannot write {0}: its directory does not exist")]
    NoParent(PathBuf),
    /// The system refuses, with its error.
    #[error("cannot write {0}: {1}")]
    Refused(PathBuf, io::Error),
}

/// Destination of a result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// The standard output.
    Stdout,
    /// A regular file, which may not exist yet.
    Regular(PathBuf),
    /// A pipe, device or stream, which cannot be replaced by renaming.
    Special(PathBuf),
}

impl Output {
    /// Checks that `path` can be written (`-` is the standard output).
    ///
    /// # Errors
    /// [`OutputError`] if the path cannot be written.
    pub fn check(path: &Path) -> Result<Self, OutputError> {
        if path.as_os_str() == "-" {
            return Ok(Self::Stdout);
        }
        let refused = |error| OutputError::Refused(path.to_owned(), error);
        let metadata = match fs::metadata(path) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(refused(error)),
        };
        match metadata {
            Some(metadata) if metadata.is_dir() => Err(OutputError::Directory(path.to_owned())),
            // Opening a pipe would wait for its reader, so special files are taken on trust.
            Some(metadata) if !metadata.is_file() || is_stream_alias(path) => {
                Ok(Self::Special(path.to_owned()))
            }
            Some(_) => {
                OpenOptions::new().append(true).open(path).map_err(refused)?;
                let target = path.canonicalize().map_err(refused)?;
                try_creating_beside(&target).map_err(refused)?;
                Ok(Self::Regular(target))
            }
            None => {
                let path = &through_links(path).map_err(refused)?;
                let (parent, name) = (parent_of(path), path.file_name());
                let Some(name) = name.filter(|_| parent.is_dir()) else {
                    return Err(OutputError::NoParent(path.to_owned()));
                };
                let target = parent.canonicalize().map_err(refused)?.join(name);
                try_creating_beside(&target).map_err(refused)?;
                Ok(Self::Regular(target))
            }
        }
    }

    /// Whether two results may share the output: a pipe or a null device accepts any number.
    pub fn is_special(&self) -> bool {
        matches!(self, Self::Special(_))
    }

    /// Writes the whole result with `body`.
    ///
    /// # Errors
    /// [`OutputError`] if the system refuses; a regular file then keeps its old contents.
    pub fn write(
        &self,
        body: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), OutputError> {
        match self {
            Self::Stdout => buffered(StandardOutput, body)
                .map_err(|error| OutputError::Refused("the standard output".into(), error)),
            Self::Special(path) => OpenOptions::new()
                .append(true)
                .open(path)
                .and_then(|file| buffered(ClosedPipeTolerant(file), body))
                .map_err(|error| OutputError::Refused(path.clone(), error)),
            Self::Regular(path) => {
                write_whole(&Disk, path, Readers::Mask, Existing::Replaced, body)
                    .map_err(|error| OutputError::Refused(path.clone(), error))
            }
        }
    }
}

/// Resolves a path that names no file by following symbolic links; the links stay.
fn through_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        if !path.is_symlink() {
            return Ok(path);
        }
        path = parent_of(&path).join(fs::read_link(&path)?);
    }
    Err(io::Error::other("too many symbolic links"))
}

fn buffered(
    sink: impl Write,
    body: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut sink = BufWriter::new(sink);
    body(&mut sink)?;
    sink.flush()
}

fn try_creating_beside(path: &Path) -> io::Result<()> {
    Part::beside(&Disk, path, Readers::Mask).map(drop)
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Whether the path names an open stream, which may be a redirected regular file.
fn is_stream_alias(path: &Path) -> bool {
    ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"].iter().any(|alias| path.starts_with(alias))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory for one test, removed when it ends.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lotus-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("a scratch directory");
            Self(path)
        }

        fn files(&self) -> usize {
            fs::read_dir(&self.0).expect("it exists").count()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn checking_leaves_no_trace_and_truncates_nothing() {
        let dir = Scratch::new("check");
        let existing = dir.0.join("old");
        fs::write(&existing, "kept").expect("writable");
        for path in [dir.0.join("new"), existing.clone()] {
            assert!(matches!(Output::check(&path), Ok(Output::Regular(_))), "{path:?}");
        }
        assert_eq!(dir.files(), 1);
        assert_eq!(fs::read_to_string(&existing).expect("readable"), "kept");
    }

    #[test]
    fn impossible_paths_are_refused() {
        let dir = Scratch::new("refuse");
        assert!(matches!(Output::check(&dir.0), Err(OutputError::Directory(_))));
        let orphan = dir.0.join("missing/file");
        assert!(matches!(Output::check(&orphan), Err(OutputError::NoParent(_))));
        let file = dir.0.join("file");
        fs::write(&file, "").expect("writable");
        assert!(matches!(Output::check(&file.join("x")), Err(OutputError::Refused(..))));
        assert!(Output::check(Path::new("")).is_err());
    }

    #[test]
    fn a_failed_write_keeps_the_old_file() {
        let dir = Scratch::new("fail");
        let path = dir.0.join("file");
        fs::write(&path, "old").expect("writable");
        let output = Output::check(&path).expect("writable");
        let failed = output.write(|out| {
            out.write_all(b"half")?;
            Err(io::Error::other("no more"))
        });
        assert!(failed.is_err());
        assert_eq!(
            (fs::read_to_string(&path).expect("readable").as_str(), dir.files()),
            ("old", 1)
        );
        output.write(|out| out.write_all(b"new")).expect("writable");
        assert_eq!(
            (fs::read_to_string(&path).expect("readable").as_str(), dir.files()),
            ("new", 1)
        );
    }

    #[test]
    fn links_stay_and_files_keep_their_readers() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let dir = Scratch::new("links");
        let [target, link, further] = ["target", "link", "further"].map(|name| dir.0.join(name));
        // A link to nothing yet, by way of another.
        symlink("target", &link).expect("writable");
        symlink(&link, &further).expect("writable");
        let write = |text: &str| {
            let output = Output::check(&further).expect("writable");
            output.write(|out| out.write_all(text.as_bytes())).expect("writable");
            assert!(link.is_symlink() && further.is_symlink());
            assert_eq!(fs::read_to_string(&target).expect("readable"), text);
        };
        write("new");
        fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).expect("ours");
        write("newer");
        assert_eq!(fs::metadata(&target).expect("there").permissions().mode() & 0o777, 0o600);
        let lost = dir.0.join("lost");
        symlink("missing/file", &lost).expect("writable");
        assert!(matches!(Output::check(&lost), Err(OutputError::NoParent(_))));
        symlink("circle", dir.0.join("circle")).expect("writable");
        assert!(matches!(Output::check(&dir.0.join("circle")), Err(OutputError::Refused(..))));
    }

    #[test]
    fn a_null_device_is_written_directly() {
        let output = Output::check(Path::new("/dev/null")).expect("it is always there");
        assert!(matches!(output, Output::Special(_)));
        output.write(|out| out.write_all(b"gone")).expect("it takes everything");
    }
}
