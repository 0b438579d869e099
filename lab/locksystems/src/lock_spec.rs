//! Names of lock systems, wherever their state is.

use std::fmt;
use std::str::FromStr;

use lotus_locks::Recovery;

use crate::servers::ServerLock;
use crate::systems::{Kind, UnknownKind, UnsupportedOption};

/// A lock system of memory nodes, or a service that keeps locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockSpec {
    /// In words of a memory node.
    Words(Kind),
    /// At a switch, at servers, or in a Redis.
    Server(ServerLock),
}

impl LockSpec {
    /// Returns the name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Words(kind) => kind.name(),
            Self::Server(server_lock) => server_lock.name(),
        }
    }

    /// Checks whether the lock is offered with this treatment of late or lost holders.
    ///
    /// # Errors
    /// [`UnsupportedLockOption`].
    pub fn check(self, recovery: Recovery) -> Result<(), UnsupportedLockOption> {
        match (self, recovery) {
            (Self::Words(kind), _) => Ok(kind.check(recovery)?),
            (Self::Server(server_lock @ ServerLock::RedLock), Recovery::Fenced) => {
                Err(UnsupportedLockOption::Unfenced(server_lock))
            }
            (Self::Server(server_lock), Recovery::Paper)
                if !server_lock.is_switched() && server_lock != ServerLock::RedLock =>
            {
                Err(UnsupportedLockOption::Unpublished(server_lock))
            }
            (Self::Server(_), _) => Ok(()),
        }
    }
}

impl fmt::Display for LockSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LockSpec {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match ServerLock::of(name) {
            Some(server_lock) => Ok(Self::Server(server_lock)),
            None => name.parse().map(Self::Words).map_err(|error: UnknownKind| {
                let services =
                    ServerLock::ALL.into_iter().chain([ServerLock::RedLock]).map(ServerLock::name);
                let services = services.collect::<Vec<_>>().join(", ");
                let switched = ServerLock::SWITCHED.map(ServerLock::name).join(", ");
                format!("{error}; and, kept by servers, {services}, or by a switch, {switched}")
            }),
        }
    }
}

/// Error: a lock system is not offered with an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnsupportedLockOption {
    /// A lock system of memory nodes.
    #[error(transparent)]
    Words(#[from] UnsupportedOption),
    /// The paper does not say what becomes of lost holders.
    #[error("there is no {0} as published: no paper says what becomes of its lost holders")]
    Unpublished(ServerLock),
    /// Holders have the lock for a limited time, and nothing stops a late holder.
    #[error("there is {0} as published only: nothing stops a holder whose time is over")]
    Unfenced(ServerLock),
}
