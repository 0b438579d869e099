//! The table `[load]` of a cluster's file, which the nodes' program interprets.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;

use super::error::FileError;

/// A table of the file whose content is unknown to the library.
#[derive(Clone, Debug)]
pub struct Section {
    path: PathBuf,
    text: Arc<str>,
    line: usize,
}

/// The file, without the remaining tables.
#[derive(Deserialize)]
struct Only<T> {
    load: Spanned<T>,
}

impl Section {
    /// The section that begins at byte `start` of the file's text.
    pub(super) fn new(path: &Path, text: &str, start: usize) -> Self {
        Self { path: path.to_owned(), text: text.into(), line: line(text, start) }
    }

    /// Reads the content, and checks it with `check`.
    ///
    /// # Errors
    /// [`FileError::Line`]: the content is not a `T`, or `check` refuses it with a sentence.
    pub fn read<T: DeserializeOwned>(
        &self,
        check: impl FnOnce(&T) -> Result<(), String>,
    ) -> Result<T, FileError> {
        let only: Only<T> = toml::from_str(&self.text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            self.at(line(&self.text, start), error.message())
        })?;
        check(only.load.as_ref()).map_err(|why| self.at(self.line, &why))?;
        Ok(only.load.into_inner())
    }

    /// Error at the section's first line.
    pub fn wrong(&self, why: &str) -> FileError {
        self.at(self.line, why)
    }

    fn at(&self, line: usize, why: &str) -> FileError {
        invalid(&self.path, line, why)
    }
}

/// Number of the line containing byte `start`, from 1.
pub(super) fn line(text: &str, start: usize) -> usize {
    text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1
}

/// Error at a line of the file, with a single-line message.
pub(super) fn invalid(path: &Path, line: usize, why: &str) -> FileError {
    let why = why.lines().collect::<Vec<_>>().join(" ");
    FileError::Line { path: path.to_owned(), line, why }
}
