//! Files written by a run under load besides its screen output: result and history.

use std::path::{Path, PathBuf};

use lotus_benchmarks::output::{Output, OutputError};

/// Refusal of the requested files.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// A result could not be written to its path. Name another path.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// Result and history have the same path. Name two paths.
    #[error("--json and --history both name {}", .0.display())]
    Same(PathBuf),
}

/// Destinations of results besides the screen.
#[derive(Debug)]
pub struct Outputs {
    /// The result, as JSON.
    pub json: Option<Output>,
    /// The history, as JSON Lines.
    pub history: Option<Output>,
}

impl Outputs {
    /// Checks that the requested files can be written. Writes nothing yet.
    ///
    /// # Errors
    /// [`Refused`] if a file cannot be written, or if both paths are the same file.
    pub fn check(json: Option<&Path>, history: Option<&Path>) -> Result<Self, Refused> {
        let check = |path: Option<&Path>| path.map(Output::check).transpose();
        let outputs = Self { json: check(json)?, history: check(history)? };
        match (&outputs.json, &outputs.history, json) {
            (Some(one), Some(other), Some(path)) if one == other && !one.is_special() => {
                Err(Refused::Same(path.to_owned()))
            }
            _ => Ok(outputs),
        }
    }
}
