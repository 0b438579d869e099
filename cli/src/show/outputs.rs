//! The files that a run under load writes besides what it shows: its result and its history.

use std::path::{Path, PathBuf};

use lotus_benchmarks::output::{Output, OutputError};

/// Refusal of the files that were asked for.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// A result could not be written there. Name another path.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// Both results would go to one place. Name two.
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
    /// Checks that the files that were asked for can be written. Nothing is written yet.
    ///
    /// # Errors
    /// [`Refused`] if one cannot, or if both are one file.
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
