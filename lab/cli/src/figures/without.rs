//! Rules of the protocol that a point of an experiment breaks, to measure their cost.
//!
//! An engine with broken rules is unsafe to use, so such experiments need a build that can break
//! rules, and are refused otherwise.

/// Whether this build can break rules.
pub(super) const fn can_be_broken() -> bool {
    cfg!(feature = "sabotage")
}

/// Returns the rule with a name.
#[cfg(any(test, feature = "sabotage"))]
fn rule(name: &str) -> Option<lotus_sabotage::Rule> {
    lotus_sabotage::Rule::ALL.iter().copied().find(|rule| rule.name() == name)
}

/// Whether a rule with this name exists. Builds that cannot break rules accept any name, and refuse
/// the experiment before it begins.
#[cfg(any(test, feature = "sabotage"))]
pub(super) fn is_known(name: &str) -> bool {
    rule(name).is_some()
}

/// See above.
#[cfg(not(any(test, feature = "sabotage")))]
pub(super) fn is_known(_: &str) -> bool {
    true
}

/// Breaks the named rules until the guard is dropped.
///
/// # Panics
/// Never: files with unknown names are refused.
#[cfg(feature = "sabotage")]
pub(super) fn broken(names: &[String]) -> lotus_sabotage::Guard {
    let rules: Option<Vec<_>> = names.iter().map(|name| rule(name)).collect();
    lotus_sabotage::break_rules(&rules.expect("the files name rules that exist"))
}

/// Guard of builds that cannot break rules.
#[cfg(not(feature = "sabotage"))]
pub(super) struct Guard;

/// Breaks no rules: experiments with broken rules are refused before they begin.
#[cfg(not(feature = "sabotage"))]
pub(super) fn broken(_: &[String]) -> Guard {
    Guard
}
