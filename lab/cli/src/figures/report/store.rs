//! The folder of a report: every measured point in a file of its own, so that an interrupted run
//! can continue.
//!
//! ```text
//! report.json                    that it is one, of which program, and of which experiments
//! points/EXPERIMENT/LABEL.json   a measured point, with what its result depends on
//! index.html                     the page
//! ```
//!
//! Files are complete or absent. A point counts if it was measured by the same command with the
//! same program; other points are measured again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lotus_benchmarks::origin::Origin;
use lotus_benchmarks::output::{Output, OutputError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::figures::experiment::{Length, Task};
use crate::figures::plot::hyphenated;
use lotus_runner::show::screen;

/// Format version of the files in the folder.
const FORM: u32 = 1;
const MANIFEST: &str = "report.json";
const POINTS: &str = "points";
const PAGE: &str = "index.html";
/// Longest name of a point's file, without its number and ending.
const LONGEST_NAME: usize = 80;

/// Refusal of a folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The path is not a folder.
    #[error("{} is not a folder", .0.display())]
    NoFolder(PathBuf),
    /// The folder contains foreign files.
    #[error(
        "{} is not empty, and what is in it is no report of lotus: name another folder",
        .0.display()
    )]
    Occupied(PathBuf),
    /// The points were measured by another program, or at another length.
    #[error(
        "{} is a report of {of}, and this one would be of {now}: name another folder, or measure \
         all anew with --again",
        folder.display()
    )]
    Other {
        /// The folder.
        folder: PathBuf,
        /// Program and length of the existing points.
        of: String,
        /// Program and length of new points.
        now: String,
    },
    /// The system refuses, with its error.
    #[error("cannot use {}: {error}", folder.display())]
    System {
        /// The folder.
        folder: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// A file cannot be written in the folder.
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// Description of the folder.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
struct Manifest {
    lotus_report: u32,
    version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    short: bool,
    /// Names of the built-in experiments requested so far.
    experiments: Vec<String>,
}

/// A measured point.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
pub(super) struct MeasuredPoint {
    pub experiment: String,
    pub label: String,
    pub command: String,
    /// Rules broken during the measurement.
    pub without: Vec<String>,
    #[serde(flatten)]
    pub origin: Origin,
    /// Duration of the measurement, in seconds.
    pub took_s: f64,
    pub result: Value,
}

impl MeasuredPoint {
    /// Whether the point is the result of a task, with the same program.
    fn is_of(&self, experiment: &str, task: &Task, origin: &Origin) -> bool {
        let Self { label, command, without, .. } = self;
        self.experiment == experiment
            && (label, command, without) == (&task.label, &task.command, &task.without)
            && (&self.origin.version, &self.origin.commit) == (&origin.version, &origin.commit)
    }
}

/// The folder of a report.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    origin: Origin,
    manifest: Manifest,
}

impl Store {
    /// Opens a folder, which is created if missing. With `again`, all points in it are removed.
    ///
    /// # Errors
    /// [`FolderError`] if the folder is neither empty nor a report, or, without `again`, is a
    /// report of another program.
    pub(super) fn open(
        folder: &Path,
        origin: Origin,
        length: Length,
        again: bool,
    ) -> Result<Self, FolderError> {
        let system = |error| FolderError::System { folder: folder.to_owned(), error };
        if fs::metadata(folder).is_ok_and(|found| !found.is_dir()) {
            return Err(FolderError::NoFolder(folder.to_owned()));
        }
        fs::create_dir_all(folder).map_err(system)?;
        let mut manifest = Manifest {
            lotus_report: FORM,
            version: origin.version.clone(),
            commit: origin.commit.clone(),
            short: length == Length::Short,
            experiments: Vec::new(),
        };
        let mut store = Self { folder: folder.to_owned(), origin, manifest: manifest.clone() };
        if let Some(found) = store.found()? {
            manifest.experiments.clone_from(&found.experiments);
            if found != manifest && !again {
                let (of, now) = (found.in_words(), manifest.in_words());
                return Err(FolderError::Other { folder: folder.to_owned(), of, now });
            }
        }
        if again {
            store.remove_points().map_err(system)?;
        }
        store.manifest = manifest;
        store.write_manifest()?;
        Ok(store)
    }

    /// The manifest; `None` if the folder is empty.
    fn found(&self) -> Result<Option<Manifest>, FolderError> {
        let system = |error| FolderError::System { folder: self.folder.clone(), error };
        let mut is_empty = true;
        for entry in fs::read_dir(&self.folder).map_err(system)? {
            let name = entry.map_err(system)?.file_name();
            let name = name.to_string_lossy();
            // A program stopped during the write of its first manifest leaves a partial file.
            is_empty &= name.starts_with(&format!(".{MANIFEST}.")) && name.ends_with(".part");
        }
        if is_empty {
            return Ok(None);
        }
        let text = fs::read(self.folder.join(MANIFEST)).ok();
        let manifest = text.and_then(|text| serde_json::from_slice::<Manifest>(&text).ok());
        match manifest.filter(|manifest| manifest.lotus_report == FORM) {
            Some(manifest) => Ok(Some(manifest)),
            None => Err(FolderError::Occupied(self.folder.clone())),
        }
    }

    /// Removes only the files of points.
    fn remove_points(&self) -> io::Result<()> {
        let listed = |path: &Path| match fs::read_dir(path) {
            Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        for experiment in listed(&self.folder.join(POINTS))? {
            if experiment.is_dir() {
                let is_point = |path: &&PathBuf| path.extension().is_some_and(|end| end == "json");
                listed(&experiment)?.iter().filter(is_point).try_for_each(fs::remove_file)?;
            }
        }
        Ok(())
    }

    fn write_manifest(&self) -> Result<(), OutputError> {
        let output = Output::check(&self.folder.join(MANIFEST))?;
        screen::write_json(&output, &self.manifest)
    }

    /// Names of all experiments requested in this run or an earlier run.
    pub(super) fn experiments(&self) -> &[String] {
        &self.manifest.experiments
    }

    /// Records the requested experiments.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn ask_for<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<(), OutputError> {
        for name in names {
            if self.manifest.experiments.iter().all(|known| known != name) {
                self.manifest.experiments.push(name.to_owned());
            }
        }
        self.write_manifest()
    }

    /// The stored result of task number `number`, if any. An unreadable file counts as missing.
    pub(super) fn find(
        &self,
        experiment: &str,
        number: usize,
        task: &Task,
    ) -> Option<MeasuredPoint> {
        let text = fs::read(self.path(experiment, number, task)).ok()?;
        let kept: MeasuredPoint = serde_json::from_slice(&text).ok()?;
        kept.is_of(experiment, task, &self.origin).then_some(kept)
    }

    /// Stores a result.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn keep(
        &self,
        number: usize,
        task: &Task,
        kept: &MeasuredPoint,
    ) -> Result<(), FolderError> {
        let path = self.path(&kept.experiment, number, task);
        let folder = path.parent().unwrap_or(&self.folder);
        let system = |error| FolderError::System { folder: folder.to_owned(), error };
        fs::create_dir_all(folder).map_err(system)?;
        Ok(screen::write_json(&Output::check(&path)?, kept)?)
    }

    fn path(&self, experiment: &str, number: usize, task: &Task) -> PathBuf {
        let mut name = hyphenated(&task.label);
        name.truncate(LONGEST_NAME);
        let name = format!("{number:03}-{name}.json");
        self.folder.join(POINTS).join(hyphenated(experiment)).join(name)
    }

    /// Writes the page; returns its path.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn write_page(&self, page: &str) -> Result<PathBuf, OutputError> {
        let path = self.folder.join(PAGE);
        Output::check(&path)?.write(|out| out.write_all(page.as_bytes()))?;
        Ok(path)
    }
}

impl Manifest {
    /// Program and length of the points.
    fn in_words(&self) -> String {
        let length = if self.short { "the short mode" } else { "full length" };
        let Self { version, commit, .. } = self;
        let commit =
            commit.as_deref().map_or("no commit", |commit| commit.get(..12).unwrap_or(commit));
        format!("version {version}, {commit}, in {length}")
    }
}

#[cfg(test)]
mod tests {
    use lotus_benchmarks::origin::Machine;
    use tempfile::TempDir;

    use super::*;

    fn origin(commit: &str) -> Origin {
        let host = Machine { name: None, cores: 2 };
        let date = "2026-01-02T03:04:05Z".to_owned();
        Origin { version: "1.2.3".to_owned(), commit: Some(commit.to_owned()), host, date }
    }

    fn task(command: &str) -> Task {
        Task { label: "a, b".to_owned(), command: command.to_owned(), without: Vec::new() }
    }

    fn kept(command: &str, commit: &str) -> MeasuredPoint {
        MeasuredPoint {
            experiment: "figure".to_owned(),
            label: "a, b".to_owned(),
            command: command.to_owned(),
            without: Vec::new(),
            origin: origin(commit),
            took_s: 1.5,
            result: serde_json::json!({ "throughput_tps": 1.25 }),
        }
    }

    fn open(
        folder: &Path,
        commit: &str,
        length: Length,
        again: bool,
    ) -> Result<Store, FolderError> {
        Store::open(folder, origin(commit), length, again)
    }

    #[test]
    fn a_point_is_found_again_by_the_same_command_and_program() {
        let scratch = TempDir::new().expect("writable");
        let folder = scratch.path().join("new/report");
        let mut store = open(&folder, "one", Length::Full, false).expect("it is made");
        assert_eq!(store.find("figure", 0, &task("x")), None);
        store.keep(0, &task("x"), &kept("x", "one")).expect("writable");
        assert_eq!(store.find("figure", 0, &task("x")), Some(kept("x", "one")));
        assert_eq!(store.find("figure", 0, &task("y")), None);
        assert_eq!(store.find("other", 0, &task("x")), None);
        store.ask_for(["figure"].into_iter()).expect("writable");
        let store = open(&folder, "one", Length::Full, false).expect("it is one of ours");
        assert_eq!(store.experiments(), ["figure"]);
        assert!(store.find("figure", 0, &task("x")).is_some());
        // A half of a file, as of a disk that is full, is no result.
        let path = store.path("figure", 0, &task("x"));
        let text = fs::read(&path).expect("it is there");
        fs::write(&path, &text[..text.len() / 2]).expect("writable");
        assert_eq!(store.find("figure", 0, &task("x")), None);
    }

    #[test]
    fn a_report_of_another_program_is_kept_unless_all_is_measured_again() {
        let scratch = TempDir::new().expect("writable");
        let store = open(scratch.path(), "one", Length::Full, false).expect("it is empty");
        store.keep(0, &task("x"), &kept("x", "one")).expect("writable");
        fs::write(scratch.path().join("points/figure/notes.txt"), "mine").expect("writable");
        for (commit, length) in [("two", Length::Full), ("one", Length::Short)] {
            let why = open(scratch.path(), commit, length, false).expect_err("another").to_string();
            assert!(why.contains("1.2.3, one, in full length") && why.contains("--again"), "{why}");
        }
        assert!(store.find("figure", 0, &task("x")).is_some());
        let again = open(scratch.path(), "two", Length::Full, true).expect("it may be");
        assert_eq!(again.find("figure", 0, &task("x")), None);
        assert_eq!(store.find("figure", 0, &task("x")), None, "it was removed");
        assert!(scratch.path().join("points/figure/notes.txt").exists());
        open(scratch.path(), "one", Length::Full, false).expect_err("it is another's now");
    }

    #[test]
    fn a_folder_of_others_is_left_alone() {
        let scratch = TempDir::new().expect("writable");
        let file = scratch.path().join("thesis.tex");
        fs::write(&file, "mine").expect("writable");
        for again in [false, true] {
            let why = open(scratch.path(), "one", Length::Full, again).expect_err("occupied");
            assert!(why.to_string().contains("is not empty"), "{why}");
            let why = open(&file, "one", Length::Full, again).expect_err("a file");
            assert!(why.to_string().contains("is not a folder"), "{why}");
        }
        let manifest = scratch.path().join(MANIFEST);
        fs::write(&manifest, "{}").expect("writable");
        open(scratch.path(), "one", Length::Full, true).expect_err("no manifest of ours");
        assert_eq!(fs::read_to_string(&manifest).expect("readable"), "{}");
        assert_eq!(fs::read_dir(scratch.path()).expect("readable").count(), 2);
    }

    #[test]
    fn a_part_of_a_manifest_is_what_a_stopped_program_leaves() {
        let scratch = TempDir::new().expect("writable");
        fs::write(scratch.path().join(".report.json.lotus-abcdef.part"), "{").expect("writable");
        open(scratch.path(), "one", Length::Full, false).expect("it counts as empty");
    }
}
