//! Write-once values at the authority, even if answers are lost.
//!
//! A compare-and-swap may have been applied although its answer was lost. With a write-once key,
//! reading the value back and comparing it with the value to be written decides. Where two
//! processes might write the same value, a process includes its own [name](name_process).

use std::time::Duration;

use lotus_authority::{Authority, AuthorityError};
use lotus_authority::{IncarnationError, Version};
use lotus_recovery::membership::MembershipError;

use crate::api::error::ClusterError;
use crate::node::control::Control;
use crate::node::shared::Shared;

/// Key that every process writes anew at its start.
const PROCESSES_KEY: &str = "processes";
/// Time between two attempts to reach the authority.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);
/// Time for which a process that takes part keeps asking a silent authority.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Writes `value` under a key without a value. Returns the key's value afterwards.
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

/// Returns a name that no other process of this cluster ever has: the version of a write.
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

/// Asks until an answer comes, for at most `patience`, and for as long as `may_wait` returns `Ok`.
///
/// # Errors
/// The errors of `ask` and `may_wait`; an unanswered `ask` is an error only once the time is over.
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
    /// Asks the authority until an answer comes, for at most [`PATIENCE`].
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

/// Errors that may mean that no answer came.
pub(crate) trait Unanswered {
    /// Whether no answer came.
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
