//! Values at the authority that are written once, whatever becomes of the answers.
//!
//! A compare-and-swap whose answer is lost may have been applied. A key that is written once tells:
//! the value that stands there is read, and compared with the one that was to be written. Where two
//! processes might write the same value, each puts its own [name](name_process) in.

use std::time::Duration;

use lotus_recovery::membership::MembershipError;
use lotus_router::authority::{IncarnationError, Version};
use lotus_router::{Authority, AuthorityError};

use crate::control::Control;
use crate::error::ClusterError;
use crate::shared::Shared;

/// Written anew by every process that starts.
const PROCESSES_KEY: &str = "processes";
/// Time between two attempts to reach the authority.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);
/// How long a process that takes part asks an authority that does not answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Writes `value` under a key that has none. The value that stands there afterwards.
///
/// # Errors
/// [`AuthorityError::Unavailable`]: ask again, with the same value.
pub(crate) fn write_once(
    authority: &dyn Authority,
    key: &str,
    value: &[u8],
) -> Result<Vec<u8>, AuthorityError> {
    match authority.compare_and_swap(key, Version::ABSENT, value) {
        Ok(_) => Ok(value.to_vec()),
        Err(AuthorityError::Conflict { .. }) => {
            let found = authority.read(key)?.ok_or(AuthorityError::Unavailable)?;
            Ok(found.value)
        }
        Err(error) => Err(error),
    }
}

/// A name that no other process of this cluster has, of any time: the version of a write.
///
/// # Errors
/// [`AuthorityError::Unavailable`]: ask again.
pub(crate) fn name_process(authority: &dyn Authority) -> Result<[u8; 8], AuthorityError> {
    let mut seen = authority.read(PROCESSES_KEY)?.map_or(Version::ABSENT, |found| found.version);
    loop {
        match authority.compare_and_swap(PROCESSES_KEY, seen, &[]) {
            Ok(version) => return Ok(version.0.to_le_bytes()),
            Err(AuthorityError::Conflict { current }) => seen = current,
            Err(error) => return Err(error),
        }
    }
}

/// Asks until there is an answer, for at most `patience`, and as long as `may_wait` has no reason
/// not to.
///
/// # Errors
/// Those of `ask` and `may_wait`; that there is no answer only when the time is over.
pub(crate) fn until_answered<T, E: Unanswered>(
    control: &Control,
    patience: Duration,
    mut may_wait: impl FnMut() -> Result<(), ClusterError>,
    mut ask: impl FnMut() -> Result<T, E>,
) -> Result<T, ClusterError>
where
    ClusterError: From<E>,
{
    let deadline = control.now().after(patience);
    loop {
        match ask() {
            Err(error) if error.is_unanswered() && control.now() < deadline => {
                may_wait()?;
                control.pause(PAUSE);
            }
            outcome => return Ok(outcome?),
        }
    }
}

impl Shared {
    /// Asks the authority until it answers, for as long as control threads wait for it.
    pub(crate) fn ask<T, E: Unanswered>(
        &self,
        ask: impl FnMut() -> Result<T, E>,
    ) -> Result<T, ClusterError>
    where
        ClusterError: From<E>,
    {
        until_answered(&self.control, PATIENCE, || Ok(()), ask)
    }
}

/// An error that may mean that no answer came.
pub(crate) trait Unanswered {
    /// Whether it does.
    fn is_unanswered(&self) -> bool;
}

impl Unanswered for AuthorityError {
    fn is_unanswered(&self) -> bool {
        *self == Self::Unavailable
    }
}

impl Unanswered for IncarnationError {
    fn is_unanswered(&self) -> bool {
        matches!(self, Self::Authority(error) if error.is_unanswered())
    }
}

impl Unanswered for MembershipError {
    fn is_unanswered(&self) -> bool {
        matches!(self, Self::Authority(error) if error.is_unanswered())
    }
}

impl Unanswered for ClusterError {
    fn is_unanswered(&self) -> bool {
        matches!(self, Self::Authority(error) if error.is_unanswered())
    }
}
