//! Who is let in, and by what: at the nodes, and at the doors for applications.
//!
//! Two borders, two secrets: whoever passes the first can read and change all memory, whoever
//! passes the second can run transactions (docs/security.md). So nothing here lets the secret of
//! one stand for that of the other.

use std::path::{Path, PathBuf};

use lotus_router::remote::Security;
use serde::Deserialize;

use super::file::FileError;
use super::key;

/// PEM files, as the cluster's file names them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificates of the authority that has signed all others.
    ca: PathBuf,
    /// This host's chain of certificates, as a node.
    certificate: PathBuf,
    /// Its private key.
    key: PathBuf,
    /// The cluster's name, which all certificates bear.
    cluster: String,
    /// What this host shows as an application.
    client_certificate: Option<PathBuf>,
    /// Its private key.
    client_key: Option<PathBuf>,
}

/// Who is let in at one of the borders.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trust {
    /// Everybody, on loopback addresses.
    Loopback,
    /// Whoever has the key in this file.
    KeyFile(PathBuf),
    /// Whoever has a certificate.
    Tls(Identity),
}

/// What somebody shows of himself, and whom he believes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    cluster: String,
}

impl TlsFiles {
    /// As a node, with paths relative to the directory of the cluster's file.
    pub fn of_node(&self, home: &Path) -> Identity {
        self.identity(home, &self.certificate, &self.key)
    }

    /// As an application; `None` if the file names no files for that.
    ///
    /// # Errors
    /// A sentence: one of both is missing.
    pub fn of_application(&self, home: &Path) -> Result<Option<Identity>, &'static str> {
        match (&self.client_certificate, &self.client_key) {
            (Some(certificate), Some(key)) => Ok(Some(self.identity(home, certificate, key))),
            (None, None) => Ok(None),
            _ => Err("a client_certificate needs a client_key, and the other way round"),
        }
    }

    fn identity(&self, home: &Path, certificate: &Path, key: &Path) -> Identity {
        let [ca, certificate, key] = [&self.ca, certificate, key].map(|path| home.join(path));
        Identity { ca, certificate, key, cluster: self.cluster.clone() }
    }
}

impl Trust {
    /// What is demanded and shown.
    ///
    /// # Errors
    /// [`FileError::Key`], or what is wrong with the files of TLS.
    pub fn security(&self) -> Result<Security, FileError> {
        match self {
            Self::Loopback => Ok(Security::PlainOnLoopback),
            Self::KeyFile(path) => Ok(Security::SharedKey(key::read(path)?)),
            #[cfg(feature = "tls")]
            Self::Tls(Identity { ca, certificate, key, cluster }) => {
                let tls = lotus_fabric::tcp::Tls::from_files(ca, certificate, key, cluster)?;
                Ok(Security::Tls(tls))
            }
            #[cfg(not(feature = "tls"))]
            Self::Tls(_) => Err(FileError::NoTls),
        }
    }

    /// The key file, if there is to be one.
    pub fn key_file(&self) -> Option<&Path> {
        match self {
            Self::KeyFile(path) => Some(path),
            Self::Loopback | Self::Tls(_) => None,
        }
    }
}
