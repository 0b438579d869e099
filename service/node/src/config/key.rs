//! Key files: the shared key of a cluster's nodes, and the key of its applications.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use lotus_files::{Disk, Existing, Files, Readers, write_whole};
use lotus_security::{Key, WeakKey, nonce};

/// Reason why a key file is unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file cannot be read. `lotus cluster up` creates a key file; other hosts need a copy.
    #[error("cannot read the key file {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Other users could read the file: `chmod 600`.
    #[error("the key file {} can be read by other users; let only its owner read it", .0.display())]
    Public(PathBuf),
    /// The key is too weak.
    #[error("the key file {}: {source}", path.display())]
    Weak {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        source: WeakKey,
    },
}

/// Reads the key: all bytes of the file.
///
/// # Errors
/// [`KeyError`].
pub fn read(path: &Path) -> Result<Key, KeyError> {
    let bytes = read_secret(path)?;
    Key::new(&bytes).map_err(|source| KeyError::Weak { path: path.to_owned(), source })
}

/// Reads a file that must be private to its owner.
///
/// # Errors
/// [`KeyError`].
pub fn read_secret(path: &Path) -> Result<Vec<u8>, KeyError> {
    let failed = |source| KeyError::Read { path: path.to_owned(), source };
    let file = fs::metadata(path).map_err(failed)?;
    if file.permissions().mode() & 0o077 != 0 {
        return Err(KeyError::Public(path.to_owned()));
    }
    fs::read(path).map_err(failed)
}

/// Creates a file with a random key, readable for its owner only, unless the file exists.
///
/// # Errors
/// Errors of the operating system.
pub fn make(path: &Path) -> io::Result<()> {
    make_through(&Disk, path)
}

fn make_through(files: &dyn Files, path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let words = nonce()?;
    let made = write_whole(files, path, Readers::Owner, Existing::Kept, |file| {
        words.iter().try_for_each(|word| file.write_all(&word.to_le_bytes()))
    });
    match made {
        // A concurrent command created the file first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_files::faults::{Fault, Faulty, Op};

    /// A process that died between creating a key file and writing it used to leave an empty one,
    /// which every later command refused.
    #[test]
    fn whatever_fails_a_key_file_has_a_whole_key_or_is_made_by_the_next_command() {
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join("key");
        let sound = Faulty::sound();
        make_through(&sound, &path).expect("no fault");
        let done = sound.done();
        assert!([Op::Create, Op::Write, Op::Sync, Op::Rename].iter().all(|op| done.contains(op)));
        let cases = (0..done.len()).flat_map(|at| Fault::ALL.map(|fault| (at, fault)));
        for (at, fault) in cases {
            fs::remove_file(&path).expect("it is there");
            let made = make_through(&Faulty::at(at, fault), &path);
            assert!(made.is_err() || path.exists(), "{fault:?} at {at}");
            assert!(!path.exists() || read(&path).is_ok(), "{fault:?} at {at}: no key");
            make(&path).expect("nothing fails any more");
            read(&path).expect("a key");
        }
    }

    #[test]
    fn a_key_that_is_there_stays() {
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join("key");
        make(&path).expect("there is room");
        let before = fs::read(&path).expect("it is there");
        make(&path).expect("there is nothing to do");
        assert_eq!(fs::read(&path).expect("it is there"), before);
    }
}
