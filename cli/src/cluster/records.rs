//! What nodes say of themselves at the authority, for whoever wants to know how the cluster is.
//!
//! Nothing rests on it: who takes part is decided by the membership.

use lotus_router::authority::Version;
use lotus_router::{Authority, AuthorityError};
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
        let key = key(node);
        let value = serde_json::to_vec(self).expect("strings and numbers");
        let mut version = authority.read(&key)?.map_or(Version::ABSENT, |found| found.version);
        loop {
            match authority.compare_and_swap(&key, version, &value) {
                Err(AuthorityError::Conflict { current }) => version = current,
                outcome => return outcome.map(drop),
            }
        }
    }

    /// What a node has said last.
    ///
    /// # Errors
    /// [`AuthorityError::Unavailable`].
    pub fn read(node: Node, authority: &dyn Authority) -> Result<Option<Self>, AuthorityError> {
        // What makes no sense is as good as nothing.
        let found = authority.read(&key(node))?;
        Ok(found.and_then(|found| serde_json::from_slice(&found.value).ok()))
    }
}

fn key(node: Node) -> String {
    format!("node/{node}")
}
