//! Nodes' status reports at the authority, for commands that show the state of the cluster; and
//! functions that read and write JSON values.
//!
//! The protocol does not depend on the reports: the membership decides which nodes take part.

use std::ops::ControlFlow;
use std::time::Duration;

use lotus_authority::Version;
use lotus_authority::{Authority, AuthorityError};
use lotus_fabric::env::Env;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::config::name::NodeName;
use crate::host::polling::wait_until;
use crate::host::processes::{Process, process_space};

/// Status report of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Process of the node.
    pub process: Process,
    /// Scope in which the process's id is unique ([`process_space`]).
    pub space: String,
    /// Version of the program.
    pub version: String,
    /// Stage of the node's life.
    pub stage: Stage,
    /// Epoch of the cluster at the node's start; `None` without a cluster, and for compute nodes.
    pub found: Option<u32>,
}

/// Stage of a node's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Waits for other nodes, or loads.
    Starting,
    /// Is ready, and checks whether it may begin to serve.
    Opening,
    /// Serves.
    Serving,
    /// Was told to end.
    Ending,
    /// Has ended as told.
    Ended,
}

impl Record {
    /// Record of this process, at a stage.
    ///
    /// # Errors
    /// A sentence: there is no `/proc`.
    pub fn of_this_process(stage: Stage) -> Result<Self, String> {
        let process = Process::this();
        let process =
            process.map_err(|error| format!("cannot read /proc of this process: {error}"))?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Self { process, space: process_space(), version, stage, found: None })
    }

    /// Copy of the record, at another stage.
    #[must_use]
    pub fn at(&self, stage: Stage) -> Self {
        Self { stage, ..self.clone() }
    }

    /// Whether the record is of the same process as `other`.
    pub fn is_of(&self, other: &Self) -> bool {
        self.process == other.process && self.space == other.space
    }

    /// Whether the record's process runs; `None` if this host cannot tell.
    pub fn runs(&self) -> Option<bool> {
        let is_near = !self.space.is_empty() && self.space == process_space();
        is_near.then(|| self.process.runs())
    }

    /// Writes the record, overwriting an earlier record.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn write(&self, node: NodeName, authority: &dyn Authority) -> Result<(), AuthorityError> {
        write(authority, &key(node), self).map(drop)
    }

    /// Writes the end of this process, unless a later process has written the node's record (I205).
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn end(&self, node: NodeName, authority: &dyn Authority) -> Result<(), AuthorityError> {
        let (version, found) = read::<Self>(authority, &key(node))?;
        if found.is_none_or(|found| !found.is_of(self)) {
            return Ok(());
        }
        self.at(Stage::Ended).replace(version, node, authority)
    }

    /// Replaces the record of another process that has not yet taken part, or has ended. Returns
    /// whether such a record was found.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn stand(&self, node: NodeName, authority: &dyn Authority) -> Result<bool, AuthorityError> {
        let (version, found) = read::<Self>(authority, &key(node))?;
        let has_no_part = |found: &Self| {
            !found.is_of(self) && matches!(found.stage, Stage::Starting | Stage::Ended)
        };
        if !found.as_ref().is_some_and(has_no_part) {
            return Ok(false);
        }
        self.replace(version, node, authority).map(|()| true)
    }

    /// Writes the record, unless a record was written since `version`.
    fn replace(
        &self,
        version: Version,
        node: NodeName,
        authority: &dyn Authority,
    ) -> Result<(), AuthorityError> {
        let bytes = serde_json::to_vec(self).expect("strings and numbers");
        match authority.compare_and_swap(&key(node), version, &bytes) {
            Ok(_) | Err(AuthorityError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Last record of a node.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn read(node: NodeName, authority: &dyn Authority) -> Result<Option<Self>, AuthorityError> {
        read(authority, &key(node)).map(|(_, found)| found)
    }

    /// Version of a node's last record.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn said(node: NodeName, authority: &dyn Authority) -> Result<Version, AuthorityError> {
        read::<IgnoredAny>(authority, &key(node)).map(|(version, _)| version)
    }
}

fn key(node: NodeName) -> String {
    format!("node/{node}")
}

/// Repeats `ask` until the authority answers, for at most `patience`, and while `waits` continues.
/// A request without an answer may have been carried out, and is repeated.
///
/// # Errors
/// Errors of `ask`; [`AuthorityError::Unavailable`] only when the time is over.
pub fn until_answered<T>(
    env: &Env,
    patience: Duration,
    mut waits: impl FnMut() -> ControlFlow<()>,
    mut ask: impl FnMut() -> Result<T, AuthorityError>,
) -> Result<T, AuthorityError> {
    let mut answer = Err(AuthorityError::Unavailable);
    wait_until(env, patience, || {
        answer = ask();
        !matches!(answer, Err(AuthorityError::Unavailable)) || waits().is_break()
    });
    answer
}

/// Reads a value and its version. A value that cannot be decoded counts as absent.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub fn read<T: DeserializeOwned>(
    authority: &dyn Authority,
    key: &str,
) -> Result<(Version, Option<T>), AuthorityError> {
    let Some(found) = authority.read(key)? else { return Ok((Version::ABSENT, None)) };
    Ok((found.version, serde_json::from_slice(&found.value).ok()))
}

/// Writes a value, overwriting an earlier value; returns the version.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub fn write(
    authority: &dyn Authority,
    key: &str,
    value: &impl Serialize,
) -> Result<Version, AuthorityError> {
    let bytes = serde_json::to_vec(value).expect("strings and numbers");
    let mut version = read::<IgnoredAny>(authority, key)?.0;
    loop {
        match authority.compare_and_swap(key, version, &bytes) {
            Err(AuthorityError::Conflict { current }) => version = current,
            outcome => return outcome,
        }
    }
}

/// Changes a value, or the default if the key has no value, by `change`, which is repeated after
/// concurrent changes. Returns the new value.
///
/// # Errors
/// [`AuthorityError::Unavailable`]; the value may have been changed, or not.
pub fn update<T: Serialize + DeserializeOwned + Default>(
    authority: &dyn Authority,
    key: &str,
    mut change: impl FnMut(&mut T),
) -> Result<T, AuthorityError> {
    loop {
        let (version, found) = read::<T>(authority, key)?;
        let mut value = found.unwrap_or_default();
        change(&mut value);
        let bytes = serde_json::to_vec(&value).expect("strings and numbers");
        match authority.compare_and_swap(key, version, &bytes) {
            Err(AuthorityError::Conflict { .. }) => {}
            outcome => return outcome.map(|_| value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_authority::EmbeddedAuthority;

    #[test]
    fn the_end_of_a_process_does_not_hide_the_one_that_came_after_it() {
        let (authority, node) = (EmbeddedAuthority::new(), NodeName::compute(1));
        let stage = || Record::read(node, &authority).unwrap().map(|record| record.stage);
        let first = Record::of_this_process(Stage::Serving).unwrap();
        first.end(node, &authority).unwrap();
        assert_eq!(stage(), None, "it has never said anything");
        first.write(node, &authority).unwrap();
        first.end(node, &authority).unwrap();
        assert_eq!(stage(), Some(Stage::Ended));
        let second = Record { space: "another".to_owned(), ..first.at(Stage::Starting) };
        assert_eq!((first.runs(), second.runs()), (Some(true), None));
        second.write(node, &authority).unwrap();
        first.end(node, &authority).unwrap();
        assert_eq!(stage(), Some(Stage::Starting));
    }
}
