//! Rules of the protocol that a point of an experiment breaks, to measure what they cost.
//!
//! An engine with broken rules is unsafe to use, so this takes a build in which rules can be
//! broken; other builds refuse such experiments.

use super::{Failure, Figure};

/// Whether this build can run an experiment.
///
/// # Errors
/// [`Failure::Unbreakable`] if it cannot.
pub(super) fn check(name: &'static str, figure: &Figure) -> Result<(), Failure> {
    let mut points = figure.series.iter().flat_map(|series| &series.points);
    match cfg!(feature = "sabotage") || points.all(|point| point.without.is_empty()) {
        true => Ok(()),
        false => Err(Failure::Unbreakable(name)),
    }
}

/// The rule of this name.
#[cfg(any(test, feature = "sabotage"))]
pub(super) fn rule(name: &str) -> Option<lotus_sabotage::Rule> {
    lotus_sabotage::Rule::ALL.iter().copied().find(|rule| rule.name() == name)
}

/// Breaks the rules of these names until the guard is dropped.
///
/// # Panics
/// Never: a test looks for all of them.
#[cfg(feature = "sabotage")]
pub(super) fn broken(names: &[String]) -> lotus_sabotage::Guard {
    let rules: Option<Vec<_>> = names.iter().map(|name| rule(name)).collect();
    lotus_sabotage::break_rules(&rules.expect("the files name rules that exist"))
}

/// Guard of builds in which no rule can be broken.
#[cfg(not(feature = "sabotage"))]
pub(super) struct Guard;

/// Breaks nothing: [`check`] has refused every experiment that would.
#[cfg(not(feature = "sabotage"))]
pub(super) fn broken(_: &[String]) -> Guard {
    Guard
}
