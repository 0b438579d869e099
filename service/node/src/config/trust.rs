//! Authentication: between nodes, and of applications by compute nodes.
//!
//! Nodes and applications have separate secrets: the nodes' secret opens all memory to reading and
//! changes, the applications' secret lets its holder run transactions (docs/security.md). This
//! module never accepts one secret in place of the other.

use std::path::{Path, PathBuf};

use lotus_authority::remote::Security;
use serde::Deserialize;

use super::error::FileError;
use super::key;

/// PEM files, as the cluster's file names them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// Certificate of the CA that has signed all other certificates.
    ca: PathBuf,
    /// Certificate chain of this host, as a node.
    certificate: PathBuf,
    /// Private key of `certificate`.
    key: PathBuf,
    /// Name of the cluster, which all certificates bear.
    cluster: String,
    /// Certificate chain of this host, as an application.
    client_certificate: Option<PathBuf>,
    /// Private key of `client_certificate`.
    client_key: Option<PathBuf>,
}

/// Credentials that are demanded of a peer, and shown to the peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trust {
    /// None: loopback addresses only.
    Loopback,
    /// The shared key in this file.
    KeyFile(PathBuf),
    /// A certificate signed by the CA, for the cluster's name.
    Tls(Identity),
}

/// A certificate to show, and the CA that must have signed a peer's certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    cluster: String,
}

impl TlsFiles {
    /// Identity as a node; paths are relative to the directory of the cluster's file.
    pub fn of_node(&self, home: &Path) -> Identity {
        self.identity(home, &self.certificate, &self.key)
    }

    /// Identity as an application; `None` if the file names no application certificate.
    ///
    /// # Errors
    /// A sentence: either the certificate or the key is missing.
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
    /// Loads the credentials.
    ///
    /// # Errors
    /// [`FileError::Key`], or an error in the TLS files.
    pub fn security(&self) -> Result<Security, FileError> {
        match self {
            Self::Loopback => Ok(Security::PlainOnLoopback),
            Self::KeyFile(path) => Ok(Security::SharedKey(key::read(path)?)),
            #[cfg(feature = "tls")]
            Self::Tls(Identity { ca, certificate, key, cluster }) => {
                let tls = lotus_security::Tls::from_files(ca, certificate, key, cluster)?;
                Ok(Security::Tls(tls))
            }
            #[cfg(not(feature = "tls"))]
            Self::Tls(_) => Err(FileError::NoTls),
        }
    }

    /// Path of the key file, if keys are used.
    pub fn key_file(&self) -> Option<&Path> {
        match self {
            Self::KeyFile(path) => Some(path),
            Self::Loopback | Self::Tls(_) => None,
        }
    }
}
