//! Switches for breaking single rules of the protocol, to prove that a checker notices.
//!
//! # What it is
//! A checker that has never complained proves little. This crate lists, as [`Rule`]s, rules of the
//! protocol whose absence does harm even if no node is lost for good. The code of a rule asks
//! whether the rule is [`broken`], and if so behaves exactly like an implementation that overlooks
//! the hazard. `lotus-lab sim sabotage` runs the simulated cluster once per rule and demands that a
//! checker complains.
//!
//! # What it is not
//! The switches are no part of any other build. Without the feature `enabled` the answer is a
//! constant, so that even the check vanishes; only `lotus-lab` with its feature `sabotage` enables
//! the switches. Nor is sabotage fault injection: `fabric::sim` decides what networks and machines
//! do to correct code.
//!
//! # Scope
//! A rule is broken for a single thread, as long as the `Guard` lives: a simulated world stays on a
//! single thread, so several worlds can be sabotaged differently side by side.

#![forbid(unsafe_code)]

mod rule;

pub use rule::Rule;
#[cfg(feature = "enabled")]
pub use switch::{Guard, any_broken, break_rule, break_rules, broken};

/// Whether to break `rule`: never, in this build.
#[cfg(not(feature = "enabled"))]
#[inline(always)]
pub const fn broken(rule: Rule) -> bool {
    let _ = rule;
    false
}

/// Whether to break any rule: never, in this build. Assertions that depend on many rules leave
/// sabotaged runs to the checkers.
#[cfg(not(feature = "enabled"))]
#[inline(always)]
pub const fn any_broken() -> bool {
    false
}

// Costs nothing: the answer is known at compile time.
#[cfg(not(feature = "enabled"))]
const _: () = assert!(!broken(Rule::BackupsFirst));

#[cfg(feature = "enabled")]
mod switch {
    use std::cell::Cell;
    use std::marker::PhantomData;

    use crate::Rule;

    /// A bit for each rule.
    type Rules = u128;

    const _: () = assert!(Rule::ALL.len() <= Rules::BITS as usize);

    thread_local! {
        static BROKEN: Cell<Rules> = const { Cell::new(0) };
    }

    const fn bit(rule: Rule) -> Rules {
        1 << rule as u32
    }

    /// Whether `rule` is broken on this thread.
    #[inline]
    pub fn broken(rule: Rule) -> bool {
        BROKEN.get() & bit(rule) != 0
    }

    /// Whether any rule is broken on this thread. Assertions that depend on many rules leave such
    /// runs to the checkers.
    #[inline]
    pub fn any_broken() -> bool {
        BROKEN.get() != 0
    }

    /// Breaks `rule` on this thread, and no other rule, until the guard is dropped.
    pub fn break_rule(rule: Rule) -> Guard {
        break_rules(&[rule])
    }

    /// As [`break_rule`], for several rules, to measure the cost of the rules.
    pub fn break_rules(rules: &[Rule]) -> Guard {
        let broken = rules.iter().fold(0, |broken, rule| broken | bit(*rule));
        Guard { before: BROKEN.replace(broken), thread: PhantomData }
    }

    /// Keeps rules broken, and restores the previous state when dropped.
    #[must_use = "the rule is broken for as long as the guard lives"]
    #[derive(Debug)]
    pub struct Guard {
        before: Rules,
        /// Keeps the guard on its thread.
        thread: PhantomData<*const ()>,
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            BROKEN.set(self.before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_invariants_lists_every_rule() {
        let invariants = include_str!("../../docs/invariants.md");
        for rule in Rule::ALL {
            let row = format!("| `{}` | {} | I", rule.name(), rule.hazard());
            let found = invariants.lines().find(|line| line.starts_with(&row));
            let told = found.is_some_and(|line| line.contains(rule.description()));
            assert!(told, "{rule:?}: docs/invariants.md should have {row}");
        }
    }

    #[test]
    fn rules_are_kept_unless_broken() {
        assert!(Rule::ALL.iter().all(|rule| !broken(*rule)));
    }

    #[cfg(feature = "enabled")]
    #[test]
    fn a_guard_breaks_one_rule_on_one_thread_and_restores_what_was() {
        let broken_now = || Rule::ALL.iter().copied().filter(|rule| broken(*rule));
        let outer = break_rule(Rule::ReadLocks);
        assert!(broken_now().eq([Rule::ReadLocks]));
        {
            let _inner = break_rule(Rule::BackupsFirst);
            assert!(broken_now().eq([Rule::BackupsFirst]));
            let elsewhere = std::thread::scope(|scope| {
                let asked = scope.spawn(|| broken(Rule::BackupsFirst));
                asked.join().expect("it only asks")
            });
            assert!(!elsewhere);
        }
        assert!(broken_now().eq([Rule::ReadLocks]));
        drop(outer);
        assert_eq!(broken_now().next(), None);
    }

    #[cfg(feature = "enabled")]
    #[test]
    fn several_rules_are_broken_together_and_restored_together() {
        let broken_now = || Rule::ALL.iter().copied().filter(|rule| broken(*rule));
        let (first, last) = (Rule::ALL[0], Rule::ALL[Rule::ALL.len() - 1]);
        {
            let _guard = break_rules(&[last, first]);
            assert!(broken_now().eq([first, last]));
        }
        assert_eq!(broken_now().next(), None);
    }

    #[cfg(feature = "enabled")]
    #[test]
    fn a_panic_leaves_no_rule_broken() {
        let panicked = std::panic::catch_unwind(|| {
            let _guard = break_rule(Rule::ReadLocks);
            panic!("on purpose");
        });
        assert!(panicked.is_err() && !broken(Rule::ReadLocks));
    }
}
