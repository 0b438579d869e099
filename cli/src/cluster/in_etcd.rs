//! A cluster's authority in etcd: its members, as the file names them, and the cluster's life there
//! (see `seat`).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lotus_router::authority::{Version, Versioned};
use lotus_router::etcd::{ConnectError, EtcdAuthority, Options, Tls};
use lotus_router::{Authority, AuthorityError};

use super::file::WrittenEtcd;
use super::key;
use super::seat::{PATIENCE, Unreached};

/// The word by which a life begins and ends, below the prefix of the file.
const LIFE: &str = "life";
const BEGUN: &[u8] = b"begun";
const ENDED: &[u8] = b"ended";

/// How etcd is reached.
#[derive(Clone, Debug)]
pub struct Members {
    written: WrittenEtcd,
    home: PathBuf,
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written.endpoints.join(", "))
    }
}

impl Members {
    /// What the file says; paths are relative to its directory.
    pub fn new(written: &WrittenEtcd, home: &Path) -> Self {
        Self { written: written.clone(), home: home.to_owned() }
    }

    fn options(&self) -> Result<Options, String> {
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

/// A connection that is made when it is needed, to the life that goes on then.
pub struct InEtcd {
    options: Options,
    life: Mutex<Option<Arc<EtcdAuthority>>>,
}

impl InEtcd {
    /// Nobody has been asked yet.
    ///
    /// # Errors
    /// A sentence: a file cannot be read.
    pub fn new(members: &Members) -> Result<Self, String> {
        Ok(Self { options: members.options()?, life: Mutex::default() })
    }

    /// Finds the life that goes on.
    ///
    /// # Errors
    /// [`Unreached`].
    pub fn connect(&self) -> Result<(), Unreached> {
        self.found(&mut self.lock()).map(drop)
    }

    /// The life that goes on, or was cut short.
    ///
    /// # Errors
    /// [`Unreached`].
    pub fn life(&self) -> Result<Option<Version>, Unreached> {
        going_on(&EtcdAuthority::connect(self.options.clone())?)
    }

    /// Begins a life.
    ///
    /// # Errors
    /// [`Unreached`].
    pub fn begin(&self) -> Result<(), Unreached> {
        let mut life = self.lock();
        let etcd = EtcdAuthority::connect(self.options.clone())?;
        let version = say(&etcd, BEGUN).map_err(silent)?;
        *life = Some(Arc::new(etcd.below(&of(version))));
        Ok(())
    }

    /// Ends the life that goes on, if one does.
    ///
    /// # Errors
    /// [`Unreached`].
    pub fn end(&self) -> Result<(), Unreached> {
        *self.lock() = None;
        let etcd = EtcdAuthority::connect(self.options.clone())?;
        match going_on(&etcd)? {
            Some(_) => say(&etcd, ENDED).map(drop).map_err(silent),
            None => Ok(()),
        }
    }

    fn found(
        &self,
        life: &mut Option<Arc<EtcdAuthority>>,
    ) -> Result<Arc<EtcdAuthority>, Unreached> {
        if let Some(found) = life {
            return Ok(Arc::clone(found));
        }
        let etcd = EtcdAuthority::connect(self.options.clone())?;
        let Some(version) = going_on(&etcd)? else {
            let (at, prefix) = (self.options.endpoints.join(", "), &self.options.prefix);
            let why = format!("no cluster runs below {prefix} of etcd at {at}");
            return Err(Unreached::Silent(why));
        };
        let found = Arc::new(etcd.below(&of(version)));
        *life = Some(Arc::clone(&found));
        Ok(found)
    }

    fn ask(&self) -> Result<Arc<EtcdAuthority>, AuthorityError> {
        self.found(&mut self.lock()).map_err(|_| AuthorityError::Unavailable)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<EtcdAuthority>>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Authority for InEtcd {
    fn read(&self, key: &str) -> Result<Option<Versioned>, AuthorityError> {
        self.ask()?.read(key)
    }

    fn compare_and_swap(
        &self,
        key: &str,
        expected: Version,
        value: &[u8],
    ) -> Result<Version, AuthorityError> {
        self.ask()?.compare_and_swap(key, expected, value)
    }
}

impl From<ConnectError> for Unreached {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Refused { .. } => Self::Refused(error.to_string()),
            _ => Self::Silent(error.to_string()),
        }
    }
}

fn silent(error: AuthorityError) -> Unreached {
    Unreached::Silent(format!("etcd: {error}"))
}

/// The life of which nobody has said that it has ended.
fn going_on(etcd: &EtcdAuthority) -> Result<Option<Version>, Unreached> {
    let found = etcd.read(LIFE).map_err(silent)?;
    Ok(found.filter(|found| found.value == BEGUN).map(|found| found.version))
}

/// What comes between the prefix of the file and the keys of a life.
fn of(version: Version) -> String {
    format!("{}/", version.0)
}

/// Writes the word of lives, whatever it was. Its version.
fn say(etcd: &EtcdAuthority, word: &[u8]) -> Result<Version, AuthorityError> {
    let mut seen = etcd.read(LIFE)?.map_or(Version::ABSENT, |found| found.version);
    loop {
        match etcd.compare_and_swap(LIFE, seen, word) {
            Err(AuthorityError::Conflict { current }) => seen = current,
            outcome => return outcome,
        }
    }
}
