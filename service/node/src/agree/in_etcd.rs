//! A cluster's authority in etcd: the connection, and the cluster's life in etcd (see
//! `cluster_authority`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_authority::etcd::{ConnectError, EtcdAuthority, Options};
use lotus_authority::{Authority, AuthorityError};
use lotus_authority::{Version, Versioned};
use lotus_fabric::env::{Env, Nanos};
use tracing::error;

use super::cluster_authority::AuthorityUnreachable;
use crate::config::authority::Members;

/// Key that records the beginning and the end of a life, below the prefix of the file.
const LIFE: &str = "life";
const BEGUN: &[u8] = b"begun";
const ENDED: &[u8] = b"ended";
/// Interval between looks at the entry about lives.
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

/// A life, and the connection that found it.
#[derive(Clone)]
struct Life {
    version: Version,
    etcd: Arc<EtcdAuthority>,
}

impl Life {
    fn new(etcd: EtcdAuthority, version: Version) -> Self {
        Self { version, etcd: Arc::new(etcd) }
    }

    /// Puts the version between the file's prefix and a key of the life.
    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.version.0)
    }
}

/// Looks of a process at the entry about lives, while it has a life.
struct Looks {
    env: Env,
    last: Nanos,
    /// Whether the process stays with the life that it has, and otherwise goes over to a new one.
    stays: bool,
}

/// Authority in etcd; connects on first use, to the current life.
pub struct InEtcd {
    options: Options,
    life: Mutex<Option<Life>>,
    /// `None`: stays with the first life found, whatever becomes of it.
    looks: Mutex<Option<Looks>>,
    /// Whether the life that this process stays with has ended.
    is_over: AtomicBool,
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
            looks: Mutex::default(),
            is_over: AtomicBool::new(false),
            told: AtomicBool::new(false),
        })
    }

    /// Switches to each new life from now on, until [`stay`](Self::stay) is called. A node that
    /// keeps the life of an ended founder would wait in vain.
    pub fn follow(&self, env: &Env) {
        *self.lock_looks() = Some(Looks { env: env.clone(), last: env.now(), stays: false });
    }

    /// Stays with the last life found, until that ends: [`is_over`](Self::is_over).
    pub fn stay(&self, env: &Env) {
        *self.lock_looks() = Some(Looks { env: env.clone(), last: env.now(), stays: true });
    }

    /// Whether the life that this process stays with was ended, so that another may begin: an
    /// operator has said that this process had ended, or the members have expelled it. All further
    /// questions fail.
    pub fn is_over(&self) -> bool {
        // Relaxed: a hint, guarding no data.
        self.is_over.load(Ordering::Relaxed)
    }

    /// Whether it is time for a look; then also whether the process stays.
    fn look_due(&self) -> Option<bool> {
        let mut looks = self.lock_looks();
        let Looks { env, last, stays } = looks.as_mut()?;
        let now = env.now();
        if now.since(*last) < LOOKS {
            return None;
        }
        *last = now;
        Some(*stays)
    }

    /// Connects, and finds the life that is under way.
    ///
    /// # Errors
    /// [`AuthorityUnreachable`].
    pub fn connect(&self) -> Result<(), AuthorityUnreachable> {
        self.found().map(drop)
    }

    /// Reads the last entry about lives.
    ///
    /// # Errors
    /// [`AuthorityUnreachable`].
    pub fn last_word(&self) -> Result<LastWord, AuthorityUnreachable> {
        last_word(&self.etcd()?)
    }

    /// Begins a life, if the entry is still `seen`.
    ///
    /// # Errors
    /// [`AuthorityUnreachable`]; `Refused` if a new life has begun, or the earlier life was ended.
    pub fn begin(&self, seen: LastWord) -> Result<(), AuthorityUnreachable> {
        let mut life = self.lock();
        let etcd = self.etcd()?;
        let version = match etcd.compare_and_swap(LIFE, seen.version, BEGUN) {
            Err(AuthorityError::Conflict { .. }) => {
                let why = "another life of the cluster has begun or ended meanwhile";
                return Err(AuthorityUnreachable::Refused(why.to_owned()));
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
    /// [`AuthorityUnreachable`].
    pub fn end(&self) -> Result<(), AuthorityUnreachable> {
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

    /// The life of this process; connects if there is none yet.
    fn found(&self) -> Result<Life, AuthorityUnreachable> {
        let mut life = self.lock();
        let due = self.look_due();
        match &*life {
            Some(found) if due != Some(false) => {
                let found = found.clone();
                drop(life);
                if due == Some(true) {
                    self.look_whether_over(&found)?;
                }
                return Ok(found);
            }
            _ => {}
        }
        let etcd = self.etcd()?;
        let Some(version) = last_word(&etcd)?.life() else {
            *life = None;
            let (at, prefix) = (self.options.endpoints.join(", "), &self.options.prefix);
            let why = format!("no cluster runs below {prefix} of etcd at {at}");
            return Err(AuthorityUnreachable::Silent(why));
        };
        if let Some(found) = life.as_ref().filter(|found| found.version == version) {
            return Ok(found.clone());
        }
        Ok(life.insert(Life::new(etcd, version)).clone())
    }

    /// Learns whether `life` was ended. A silent etcd says nothing: the life goes on.
    ///
    /// # Errors
    /// etcd does not answer. The caller's own question would wait as long, in vain.
    fn look_whether_over(&self, life: &Life) -> Result<(), AuthorityUnreachable> {
        if last_word(&life.etcd)?.life() != Some(life.version) {
            self.is_over.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn ask(&self) -> Result<Life, AuthorityError> {
        let life = self.found().map_err(|_| AuthorityError::Unavailable)?;
        if self.is_over() { Err(AuthorityError::Unavailable) } else { Ok(life) }
    }

    /// Logs an error once if etcd has gone back, as if restored from a backup.
    fn heed<T>(&self, answer: Result<T, AuthorityError>) -> Result<T, AuthorityError> {
        let has_gone_back = || self.lock().as_ref().is_some_and(|life| life.etcd.has_gone_back());
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

    fn lock_looks(&self) -> MutexGuard<'_, Option<Looks>> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Life>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Authority for InEtcd {
    fn read(&self, key: &str) -> Result<Option<Versioned>, AuthorityError> {
        self.heed(self.ask().and_then(|life| life.etcd.read(&life.key(key))))
    }

    fn compare_and_swap(
        &self,
        key: &str,
        expected: Version,
        value: &[u8],
    ) -> Result<Version, AuthorityError> {
        let swap = |life: Life| life.etcd.compare_and_swap(&life.key(key), expected, value);
        self.heed(self.ask().and_then(swap))
    }

    /// etcd outlasts every process; a life that was ended does not come back.
    fn silence(&self) -> Duration {
        if self.is_over() { Duration::MAX } else { Duration::ZERO }
    }
}

impl From<ConnectError> for AuthorityUnreachable {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Refused { .. } => Self::Refused(error.to_string()),
            _ => Self::Silent(error.to_string()),
        }
    }
}

fn silent(error: AuthorityError) -> AuthorityUnreachable {
    AuthorityUnreachable::Silent(format!("etcd: {error}"))
}

fn last_word(etcd: &EtcdAuthority) -> Result<LastWord, AuthorityUnreachable> {
    let word = etcd.read(LIFE).map_err(silent)?;
    let begun = word.as_ref().is_some_and(|word| word.value == BEGUN);
    Ok(LastWord { version: word.map_or(Version::ABSENT, |word| word.version), begun })
}

#[cfg(test)]
mod tests;
