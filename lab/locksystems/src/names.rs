//! Names of lock systems, wherever their state is.

use std::fmt;
use std::str::FromStr;

use lotus_locks::Recovery;

use crate::servers::Kept;
use crate::systems::{Kind, UnknownKind, Unoffered};

/// A lock system of memory nodes, or a service that keeps locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockName {
    /// In words of a memory node.
    Words(Kind),
    /// At a switch, at servers, or in a Redis.
    Kept(Kept),
}

impl LockName {
    /// Returns the name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Words(kind) => kind.name(),
            Self::Kept(kept) => kept.name(),
        }
    }

    /// Checks whether the lock is offered with this treatment of late or lost holders.
    ///
    /// # Errors
    /// [`LockUnoffered`].
    pub fn check(self, recovery: Recovery) -> Result<(), LockUnoffered> {
        match (self, recovery) {
            (Self::Words(kind), _) => Ok(kind.check(recovery)?),
            (Self::Kept(kept @ Kept::RedLock), Recovery::Fenced) => {
                Err(LockUnoffered::Unfenced(kept))
            }
            (Self::Kept(kept), Recovery::Paper) if !kept.is_switched() && kept != Kept::RedLock => {
                Err(LockUnoffered::Unpublished(kept))
            }
            (Self::Kept(_), _) => Ok(()),
        }
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LockName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match Kept::of(name) {
            Some(kept) => Ok(Self::Kept(kept)),
            None => name.parse().map(Self::Words).map_err(|error: UnknownKind| {
                let services = Kept::ALL.into_iter().chain([Kept::RedLock]).map(Kept::name);
                let services = services.collect::<Vec<_>>().join(", ");
                let switched = Kept::SWITCHED.map(Kept::name).join(", ");
                format!("{error}; and, kept by servers, {services}, or by a switch, {switched}")
            }),
        }
    }
}

/// Error: a lock system is not offered with an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockUnoffered {
    /// A lock system of memory nodes.
    #[error(transparent)]
    Words(#[from] Unoffered),
    /// The paper does not say what becomes of lost holders.
    #[error("there is no {0} as published: no paper says what becomes of its lost holders")]
    Unpublished(Kept),
    /// Holders have the lock for a limited time, and nothing stops a late holder.
    #[error("there is {0} as published only: nothing stops a holder whose time is over")]
    Unfenced(Kept),
}
