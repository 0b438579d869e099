//! A cluster's authority in etcd: the connection, and the cluster's life in etcd (see `seat`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_authority::etcd::{ConnectError, EtcdAuthority, Options};
use lotus_authority::{Authority, AuthorityError};
use lotus_authority::{Version, Versioned};
use lotus_fabric::env::{Env, Nanos};
use tracing::error;

use super::seat::Unreached;
use crate::config::authority::Members;

/// Key that records the beginning and the end of a life, below the prefix of the file.
const LIFE: &str = "life";
const BEGUN: &[u8] = b"begun";
const ENDED: &[u8] = b"ended";
/// Interval between looks for a new life, by a process that follows the last life.
const LOOKS: Duration = Duration::from_secs(2);

/// Last entry about the lives of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastWord {
    version: Version,
    begun: bool,
}

impl LastWord {
    /// The life in progress, or cut short.
    pub fn life(self) -> Option<Version> {
        self.begun.then_some(self.version)
    }
}

/// A life with its values.
#[derive(Clone)]
struct Life {
    version: Version,
    values: Arc<EtcdAuthority>,
}

impl Life {
    /// Puts the version between the file's prefix and the keys of the life.
    fn new(etcd: EtcdAuthority, version: Version) -> Self {
        Self { version, values: Arc::new(etcd.below(&format!("{}/", version.0))) }
    }
}

/// Clock of a process that follows the last life, and the time of its last look for a new life.
struct Following {
    env: Env,
    looked: Nanos,
}

/// Authority in etcd; connects on first use, to the current life.
pub struct InEtcd {
    options: Options,
    life: Mutex<Option<Life>>,
    /// `None`: stays with the first life found.
    following: Mutex<Option<Following>>,
    /// Whether the error that etcd has gone back was logged.
    told: AtomicBool,
}

impl InEtcd {
    /// Creates the authority, without connecting.
    ///
    /// # Errors
    /// A sentence: a file cannot be read.
    pub fn new(members: &Members) -> Result<Self, String> {
        Ok(Self {
            options: members.options()?,
            life: Mutex::default(),
            following: Mutex::default(),
            told: AtomicBool::new(false),
        })
    }

    /// Switches to each new life from now on, until [`stay`](Self::stay) is called. A node that
    /// keeps the life of an ended founder would wait in vain.
    pub fn follow(&self, env: &Env) {
        *self.lock_following() = Some(Following { env: env.clone(), looked: env.now() });
    }

    /// Stays with the last life found.
    pub fn stay(&self) {
        *self.lock_following() = None;
    }

    /// Whether it is time to look for a new life.
    fn is_to_look(&self) -> bool {
        let mut following = self.lock_following();
        let Some(Following { env, looked }) = &mut *following else { return false };
        let now = env.now();
        let is_due = now.since(*looked) >= LOOKS;
        if is_due {
            *looked = now;
        }
        is_due
    }

    /// Connects, and finds the life that is under way.
    ///
    /// # Errors
    /// [`Unreached`].
    pub fn connect(&self) -> Result<(), Unreached> {
        self.found().map(drop)
    }

    /// Reads the last entry about lives.
    ///
    /// # Errors
    /// [`Unreached`].
    pub fn last_word(&self) -> Result<LastWord, Unreached> {
        last_word(&self.etcd()?)
    }

    /// Begins a life, if the entry is still `seen`.
    ///
    /// # Errors
    /// [`Unreached`]; `Refused` if a new life has begun, or the earlier life was ended.
    pub fn begin(&self, seen: LastWord) -> Result<(), Unreached> {
        let mut life = self.lock();
        let etcd = self.etcd()?;
        let version = match etcd.compare_and_swap(LIFE, seen.version, BEGUN) {
            Err(AuthorityError::Conflict { .. }) => {
                let why = "another life of the cluster has begun or ended meanwhile";
                return Err(Unreached::Refused(why.to_owned()));
            }
            outcome => outcome.map_err(silent)?,
        };
        *life = Some(Life::new(etcd, version));
        Ok(())
    }

    /// Ends the connected life, or else the life that is under way. A life that has already ended,
    /// or was followed by a newer life, stays as it is.
    ///
    /// # Errors
    /// [`Unreached`].
    pub fn end(&self) -> Result<(), Unreached> {
        let mut connected = self.lock();
        let etcd = self.etcd()?;
        let life = match &*connected {
            Some(life) => Some(life.version),
            None => last_word(&etcd)?.life(),
        };
        if let Some(version) = life {
            match etcd.compare_and_swap(LIFE, version, ENDED) {
                Ok(_) | Err(AuthorityError::Conflict { .. }) => {}
                Err(error) => return Err(silent(error)),
            }
        }
        *connected = None;
        Ok(())
    }

    fn found(&self) -> Result<Life, Unreached> {
        let mut life = self.lock();
        let is_to_look = self.is_to_look();
        if let Some(found) = life.as_ref().filter(|_| !is_to_look) {
            return Ok(found.clone());
        }
        let etcd = self.etcd()?;
        let Some(version) = last_word(&etcd)?.life() else {
            *life = None;
            let (at, prefix) = (self.options.endpoints.join(", "), &self.options.prefix);
            let why = format!("no cluster runs below {prefix} of etcd at {at}");
            return Err(Unreached::Silent(why));
        };
        if let Some(found) = life.as_ref().filter(|found| found.version == version) {
            return Ok(found.clone());
        }
        Ok(life.insert(Life::new(etcd, version)).clone())
    }

    fn ask(&self) -> Result<Arc<EtcdAuthority>, AuthorityError> {
        self.found().map(|life| life.values).map_err(|_| AuthorityError::Unavailable)
    }

    /// Logs an error once if etcd has gone back, as if restored from a backup.
    fn heed<T>(&self, answer: Result<T, AuthorityError>) -> Result<T, AuthorityError> {
        let has_gone_back = || self.lock().as_ref().is_some_and(|life| life.values.has_gone_back());
        if matches!(answer, Err(AuthorityError::Unavailable))
            && has_gone_back()
            && !self.told.swap(true, Ordering::Relaxed)
        {
            error!("etcd has gone back, as if restored from a backup: nothing it says is believed");
        }
        answer
    }

    fn etcd(&self) -> Result<EtcdAuthority, ConnectError> {
        EtcdAuthority::connect(self.options.clone())
    }

    fn lock_following(&self) -> MutexGuard<'_, Option<Following>> {
        self.following.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Life>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Authority for InEtcd {
    fn read(&self, key: &str) -> Result<Option<Versioned>, AuthorityError> {
        self.heed(self.ask()?.read(key))
    }

    fn compare_and_swap(
        &self,
        key: &str,
        expected: Version,
        value: &[u8],
    ) -> Result<Version, AuthorityError> {
        self.heed(self.ask()?.compare_and_swap(key, expected, value))
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

fn last_word(etcd: &EtcdAuthority) -> Result<LastWord, Unreached> {
    let word = etcd.read(LIFE).map_err(silent)?;
    let begun = word.as_ref().is_some_and(|word| word.value == BEGUN);
    Ok(LastWord { version: word.map_or(Version::ABSENT, |word| word.version), begun })
}

#[cfg(test)]
mod tests;
