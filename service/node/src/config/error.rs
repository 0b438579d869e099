//! Errors of a cluster's file, and of files named in the file.

use std::path::PathBuf;

use super::address::Unknown;
use super::key::KeyError;

/// Invalid cluster file. The message names the correction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A line of the file is invalid.
    #[error("{}, line {line}: {why}", path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Line number, counted from one.
        line: usize,
        /// Error message, without the place.
        why: String,
    },
    /// The key file is unusable.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The TLS files are unusable.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Tls(#[from] lotus_security::TlsError),
    /// This build lacks the feature `tls`.
    #[cfg(not(feature = "tls"))]
    #[error("TLS is not available in this build")]
    NoTls,
    /// Applications must show certificates, and the file names no certificate for them.
    #[error(
        "{}: [tls] names no client_certificate and client_key, which applications must show",
        .0.display()
    )]
    NoClient(PathBuf),
    /// A host name cannot be resolved here, perhaps not yet.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// The engine refuses the combination of individually valid settings.
    #[error("{}: {why}", path.display())]
    Settings {
        /// Path of the file.
        path: PathBuf,
        /// Error message of the engine.
        why: String,
    },
}
