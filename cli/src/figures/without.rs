//! Rules of the protocol that a point of an experiment breaks, to measure what they cost.
//!
//! An engine with broken rules is unsafe to use, so this takes a build in which rules can be
//! broken; other builds refuse such experiments.

/// Whether this build can break rules.
pub(super) const fn can_be_broken() -> bool {
    cfg!(feature = "sabotage")
}

/// The rule of this name.
#[cfg(any(test, feature = "sabotage"))]
fn rule(name: &str) -> Option<lotus_sabotage::Rule> {
    lotus_sabotage::Rule::ALL.iter().copied().find(|rule| rule.name() == name)
}

/// Whether there is a rule of this name. Builds that cannot break any take all for granted, and
/// refuse the experiment before it begins.
#[cfg(any(test, feature = "sabotage"))]
pub(super) fn is_known(name: &str) -> bool {
    rule(name).is_some()
}

/// See above.
#[cfg(not(any(test, feature = "sabotage")))]
pub(super) fn is_known(_: &str) -> bool {
    true
}

/// Breaks the rules of these names until the guard is dropped.
///
/// # Panics
/// Never: files with other names are refused.
#[cfg(feature = "sabotage")]
pub(super) fn broken(names: &[String]) -> lotus_sabotage::Guard {
    let rules: Option<Vec<_>> = names.iter().map(|name| rule(name)).collect();
    lotus_sabotage::break_rules(&rules.expect("the files name rules that exist"))
}

/// Guard of builds in which no rule can be broken.
#[cfg(not(feature = "sabotage"))]
pub(super) struct Guard;

/// Breaks nothing: experiments that would are refused before they begin.
#[cfg(not(feature = "sabotage"))]
pub(super) fn broken(_: &[String]) -> Guard {
    Guard
}
