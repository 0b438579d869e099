//! What nodes say of themselves at the authority, for whoever wants to know how the cluster is; and
//! how such values are read and written.
//!
//! Nothing rests on it: who takes part is decided by the membership.

use lotus_router::authority::Version;
use lotus_router::{Authority, AuthorityError};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::node::Node;

/// A node's own view.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The process that it lives in, on its own host.
    pub process: u32,
    /// The version of the program.
    pub version: String,
    /// How far it has come.
    pub stage: Stage,
}

/// How far a node has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// It waits for others, or loads.
    Starting,
    /// It does what it is for.
    Serving,
    /// It was told to end.
    Ending,
}

impl Record {
    /// This process, at a stage.
    pub fn of_this_process(stage: Stage) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { process: std::process::id(), version, stage }
    }

    /// Says it, whatever was said before.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn write(&self, node: Node, authority: &dyn Authority) -> Result<(), AuthorityError> {
        write(authority, &key(node), self).map(drop)
    }

    /// What a node has said last.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn read(node: Node, authority: &dyn Authority) -> Result<Option<Self>, AuthorityError> {
        read(authority, &key(node)).map(|(_, found)| found)
    }

    /// The version of what a node has said last.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn said(node: Node, authority: &dyn Authority) -> Result<Version, AuthorityError> {
        read::<IgnoredAny>(authority, &key(node)).map(|(version, _)| version)
    }
}

fn key(node: Node) -> String {
    format!("node/{node}")
}

/// Reads a value and its version. What makes no sense is as good as nothing.
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

/// Writes a value, whatever was there. Its version.
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

/// Changes a value to what `change` makes of it, or of the default if there is none, although
/// others may change it at the same time: it is then called anew. What the value is now.
///
/// # Errors
/// [`AuthorityError::Unavailable`]; then it may have been changed, and may not.
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
