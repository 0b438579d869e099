//! Place of the authority: in the process of memory node 0, or in etcd.

#[cfg(feature = "etcd")]
use std::fmt;
#[cfg(feature = "etcd")]
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "etcd")]
use lotus_authority::etcd::{Options, Tls};
use serde::Deserialize;

use super::address::Hosted;
#[cfg(feature = "etcd")]
use super::key;

/// Time limit for an answer of the authority.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Place of the authority.
#[derive(Clone, Debug)]
pub enum Place {
    /// The process of memory node 0, listening at this address.
    Hosted(Hosted),
    /// An etcd cluster.
    #[cfg(feature = "etcd")]
    Etcd(Members),
}

impl Place {
    /// Whether the authority may hold values of a cluster after the end of the cluster's processes.
    pub const fn outlives_the_cluster(&self) -> bool {
        !matches!(self, Self::Hosted(_))
    }
}

/// etcd cluster that stores the authority's values.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenEtcd {
    /// URLs of etcd's members.
    pub endpoints: Vec<String>,
    /// Prefix of all keys.
    pub prefix: String,
    /// User name.
    pub user: Option<String>,
    /// File with the user's password.
    pub password_file: Option<PathBuf>,
    /// File with the CA to trust.
    pub ca: Option<PathBuf>,
    /// File with the client's certificate.
    pub certificate: Option<PathBuf>,
    /// File with the certificate's key.
    pub key: Option<PathBuf>,
}

/// Connection settings of etcd.
#[cfg(feature = "etcd")]
#[derive(Clone, Debug)]
pub struct Members {
    written: WrittenEtcd,
    home: PathBuf,
}

#[cfg(feature = "etcd")]
impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written.endpoints.join(", "))
    }
}

#[cfg(feature = "etcd")]
impl Members {
    /// Takes the settings of the file; paths are relative to its directory.
    pub fn new(written: &WrittenEtcd, home: &Path) -> Self {
        Self { written: written.clone(), home: home.to_owned() }
    }

    /// Options of the connection.
    ///
    /// # Errors
    /// A sentence: a file cannot be read.
    pub fn options(&self) -> Result<Options, String> {
        let read = |path: &PathBuf| {
            let path = self.home.join(path);
            let text = std::fs::read_to_string(&path);
            text.map_err(|error| format!("cannot read {}: {error}", path.display()))
        };
        let mut options = Options::new(self.written.endpoints.clone(), self.written.prefix.clone());
        options.timeout = PATIENCE;
        if let (Some(user), Some(file)) = (&self.written.user, &self.written.password_file) {
            let password = key::read_secret(&self.home.join(file)).map_err(|e| e.to_string())?;
            let password = String::from_utf8(password);
            let password = password.map_err(|_| format!("{} is no text", file.display()))?;
            options.user = Some((user.clone(), password.trim_end().to_owned()));
        }
        if let Some(ca) = &self.written.ca {
            let identity = match (&self.written.certificate, &self.written.key) {
                (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
                _ => None,
            };
            options.tls = Some(Tls { ca: read(ca)?, identity });
        }
        Ok(options)
    }
}
