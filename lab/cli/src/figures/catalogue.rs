//! All built-in experiments by name, and experiments in files of the user.

use std::fs;
use std::path::Path;

use super::experiment::Experiment;
use super::locks::{self, LocksAlone};
use super::recovery;
use super::transactions::{self, Transactions};

/// Name that selects all experiments that this build can run.
pub(super) const ALL: &str = "all";

/// A requested experiment.
pub(super) struct Chosen {
    pub name: String,
    pub experiment: Box<dyn Experiment>,
    /// Whether the experiment is built in.
    pub is_known: bool,
}

/// Refusal of an experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// The experiment does not exist.
    #[error(
        "there is no experiment {0}; `lotus-lab figures list` names them, and a path to a file \
         ends in .toml"
    )]
    Unknown(String),
    /// A file does not describe an experiment.
    #[error("{0}: {1}")]
    File(String, String),
    /// The experiment breaks rules of the protocol, to measure their cost, and this build cannot
    /// break rules.
    #[error("{0} takes a build with the feature sabotage")]
    Unbreakable(String),
    /// Two experiments share a name, so their results would too.
    #[error("two experiments are called {0}")]
    Twice(String),
}

/// Names of all built-in experiments.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let files = transactions::FILES.iter().chain(locks::FILES);
    files.map(|(name, _)| *name).chain(recovery::ALL.iter().map(|one| one.name))
}

/// Returns a built-in experiment by its name.
///
/// # Panics
/// Never: a test reads all files.
pub(super) fn known(name: &str) -> Option<Chosen> {
    let file = |files: &'static [(&'static str, &'static str)]| {
        files.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    };
    const SOUND: &str = "the files are sound";
    let experiment: Box<dyn Experiment> = if let Some(text) = file(transactions::FILES) {
        Box::new(Transactions::parse(name, text).expect(SOUND))
    } else if let Some(text) = file(locks::FILES) {
        Box::new(LocksAlone::parse(name, text).expect(SOUND))
    } else if let Some(one) = recovery::ALL.iter().find(|one| one.name == name) {
        Box::new(*one)
    } else {
        return None;
    };
    Some(Chosen { name: name.to_owned(), experiment, is_known: true })
}

/// Returns the experiments with the requested names or files, without duplicates. `all` means the
/// built-in experiments that this build can run.
///
/// # Errors
/// [`ChoiceError`] if an experiment cannot be run.
pub(super) fn chosen(asked: &[String]) -> Result<Vec<Chosen>, ChoiceError> {
    let mut all: Vec<Chosen> = Vec::new();
    for name in asked {
        let found = if name == ALL {
            let possible = names().filter_map(known).filter(|one| one.experiment.is_possible());
            possible.collect()
        } else {
            vec![one(name)?]
        };
        for one in found {
            match all.iter().find(|other| other.name == one.name) {
                Some(other) if other.is_known && one.is_known => (),
                Some(_) => return Err(ChoiceError::Twice(one.name)),
                None => all.push(one),
            }
        }
    }
    Ok(all)
}

fn one(name: &str) -> Result<Chosen, ChoiceError> {
    let is_file = Path::new(name).extension().is_some_and(|extension| extension == "toml");
    let one = match is_file {
        true => of_file(name)?,
        false => known(name).ok_or_else(|| ChoiceError::Unknown(name.to_owned()))?,
    };
    match one.experiment.is_possible() {
        true => Ok(one),
        false => Err(ChoiceError::Unbreakable(one.name)),
    }
}

/// Returns the experiment in a file, named after the file.
fn of_file(path: &str) -> Result<Chosen, ChoiceError> {
    let bad = |why: String| ChoiceError::File(path.to_owned(), why);
    let text = fs::read_to_string(path).map_err(|error| bad(format!("cannot be read: {error}")))?;
    let name = Path::new(path).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    // In a file of a lock experiment, the measured points of the series are keys at the top level.
    let is_of_locks = toml::from_str::<toml::Table>(&text)
        .is_ok_and(|file| ["points", "sweep", "drawn"].iter().any(|key| file.contains_key(*key)));
    let experiment: Box<dyn Experiment> = match is_of_locks {
        true => Box::new(LocksAlone::parse(&name, &text).map_err(bad)?),
        false => Box::new(Transactions::parse(&name, &text).map_err(bad)?),
    };
    Ok(Chosen { name, experiment, is_known: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_that_of_one_experiment() {
        let mut all: Vec<_> = names().collect();
        for name in &all {
            let one = known(name).expect("it is known");
            assert_eq!(one.name, *name);
            assert!(!one.experiment.title().is_empty() && !one.experiment.source().is_empty());
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(known("gravity").is_none());
    }

    #[test]
    fn each_experiment_is_run_once() {
        let asked = ["recovery", "routing", "all", "recovery"].map(str::to_owned);
        let all = chosen(&asked).expect("they are known");
        let first: Vec<_> = all.iter().take(2).map(|one| one.name.as_str()).collect();
        assert_eq!(first, ["recovery", "routing"]);
        let possible = names().filter_map(known).filter(|one| one.experiment.is_possible());
        assert_eq!(all.len(), possible.count());
    }
}
