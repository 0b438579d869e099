//! Origin of a result: the program, the machine and the time that it comes from.

use serde::{Deserialize, Serialize};

/// Facts of a result that later show what was measured, and where.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub struct Origin {
    /// Version of the program.
    pub version: String,
    /// Commit of the sources that the program was built from, as checked out; absent if the sources
    /// were no checkout. Uncommitted changes are not noticed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The machine that ran the program.
    pub host: Machine,
    /// Start of the run, in UTC (RFC 3339).
    pub date: String,
}

/// The machine that ran a benchmark, or its simulation.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub struct Machine {
    /// Name of the host; absent if the system does not tell the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Cores that the process may use.
    pub cores: usize,
}
