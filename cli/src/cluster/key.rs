//! Files with secrets: the key that all nodes of a cluster share, that of its applications.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use lotus_fabric::tcp::{Key, WeakKey, nonce};

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It cannot be read. `lotus cluster up` makes one; other hosts need a copy.
    #[error("cannot read the key file {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Others could read it: `chmod 600`.
    #[error("the key file {} can be read by other users; let nobody but its owner", .0.display())]
    Public(PathBuf),
    /// It is no secret.
    #[error("the key file {}: {source}", path.display())]
    Weak {
        /// Which file.
        path: PathBuf,
        /// Why.
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

/// Reads a file that nobody but its owner may read.
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

/// Makes a file with a random key, for its owner only, if there is none.
///
/// # Errors
/// What the operating system says.
pub fn make(path: &Path) -> io::Result<()> {
    let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match made {
        Ok(mut file) => nonce()?.iter().try_for_each(|word| file.write_all(&word.to_le_bytes())),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}
