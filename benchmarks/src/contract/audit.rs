//! Named checks on the state that a run leaves behind.
//!
//! A check never fails silently: the detail is a sentence with the compared numbers. The decisions
//! are pure; the harness reads the data and chooses when.

use serde::{Deserialize, Serialize};

/// The verdict on one property.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Check {
    /// The property that must hold.
    pub name: String,
    /// Whether the property was found to hold.
    pub passed: bool,
    /// Whether the property could be judged; a check that could not is neither passed nor failed.
    #[serde(default = "yes")]
    pub judged: bool,
    /// The compared numbers; or the reason why nothing was compared.
    pub detail: String,
}

fn yes() -> bool {
    true
}

impl Check {
    /// A verdict on `name`.
    pub fn new(name: impl Into<String>, passed: bool, detail: impl Into<String>) -> Self {
        Self { name: name.into(), passed, judged: true, detail: detail.into() }
    }

    /// No verdict on `name`, because of `why`.
    pub fn not_judged(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name: name.into(), passed: false, judged: false, detail: why.into() }
    }

    /// Returns whether the check was judged and failed.
    pub fn has_failed(&self) -> bool {
        self.judged && !self.passed
    }

    /// Verdict in a word or two, for tables.
    pub fn mark(&self) -> &'static str {
        match (self.judged, self.passed) {
            (false, _) => "not judged",
            (true, true) => "ok",
            (true, false) => "FAILED",
        }
    }
}

/// Overall result of an audit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditOutcome {
    /// Every check was made and holds.
    Passed,
    /// No check failed, but some checks could not be made, or there were no checks.
    Incomplete,
    /// A check failed.
    Failed,
}

/// All checks of a run, and the overall verdict.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Audit {
    /// Whether the outcome is [`AuditOutcome::Passed`].
    pub passed: bool,
    /// The overall result.
    pub outcome: AuditOutcome,
    /// The checks, in the order in which they were made.
    pub checks: Vec<Check>,
}

impl Audit {
    /// Derives the overall result from `checks`.
    pub fn new(checks: Vec<Check>) -> Self {
        let outcome = if checks.iter().any(Check::has_failed) {
            AuditOutcome::Failed
        } else if checks.is_empty() || checks.iter().any(|check| !check.judged) {
            AuditOutcome::Incomplete
        } else {
            AuditOutcome::Passed
        };
        Self { passed: outcome == AuditOutcome::Passed, outcome, checks }
    }

    /// Returns the verdict as one line, which ends the command's output. The line includes the
    /// findings of failed checks.
    pub fn verdict(&self) -> String {
        let list = |of: fn(&Check) -> bool, word: fn(&Check) -> String| {
            let words = self.checks.iter().filter(|check| of(check)).map(word);
            words.collect::<Vec<_>>().join("; ")
        };
        let failed = list(Check::has_failed, |check| format!("{} ({})", check.name, check.detail));
        let open = list(|check| !check.judged, |check| check.name.clone());
        match (self.outcome, open.as_str()) {
            (AuditOutcome::Passed, _) => "audit passed".to_owned(),
            (AuditOutcome::Incomplete, "") => "audit INCOMPLETE: nothing was checked".to_owned(),
            (AuditOutcome::Incomplete, open) => format!("audit INCOMPLETE: not judged: {open}"),
            (AuditOutcome::Failed, "") => format!("audit FAILED: {failed}"),
            (AuditOutcome::Failed, open) => format!("audit FAILED: {failed}; not judged: {open}"),
        }
    }
}

/// Sum of the balance changes that a run's transactions reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Effects {
    /// Sum over all committed transactions.
    pub committed: i128,
    /// Sum of the decreases by transactions with unknown outcome; not positive.
    pub unknown_low: i128,
    /// Sum of the increases by transactions with unknown outcome; not negative.
    pub unknown_high: i128,
    /// Number of further transactions that may have committed with an unknown effect. If there are
    /// any, no balance is judged.
    #[serde(default)]
    pub unjudged: u64,
}

impl Effects {
    /// Adds the effect of a transaction that committed.
    #[inline]
    pub fn add_committed(&mut self, effect: i64) {
        self.committed += i128::from(effect);
    }

    /// Adds the effect of a transaction that may have committed.
    pub fn add_unknown(&mut self, effect: i64) {
        self.unknown_low += i128::from(effect.min(0));
        self.unknown_high += i128::from(effect.max(0));
    }

    /// Adds the effects of another worker.
    pub fn merge(&mut self, other: &Self) {
        self.committed += other.committed;
        self.unknown_low += other.unknown_low;
        self.unknown_high += other.unknown_high;
        self.unjudged += other.unjudged;
    }

    /// Checks whether a balance that was `initial` can have become `found`: exactly if all outcomes
    /// are known, within bounds if some are unknown, and not judged if there are no bounds (I207).
    pub fn explain(&self, name: &str, initial: i128, found: i128) -> Check {
        let lowest = initial + self.committed + self.unknown_low;
        let highest = initial + self.committed + self.unknown_high;
        let expected = if lowest == highest {
            format!("{lowest}")
        } else {
            format!("between {lowest} and {highest} (unknown outcomes)")
        };
        let detail = format!(
            "found {found}, expected {expected}: initially {initial}, committed effects {:+}",
            self.committed
        );
        if self.unjudged > 0 {
            let why = format!("{detail}; {} calls or runs may have moved it", self.unjudged);
            return Check::not_judged(name, why);
        }
        Check::new(name, (lowest..=highest).contains(&found), detail)
    }
}

/// Counts wrong rows, and keeps a description of the first.
#[derive(Debug, Default)]
pub struct RowCheck {
    rows: u64,
    wrong: u64,
    first: Option<String>,
}

impl RowCheck {
    /// Counts a row; `complaint` describes the row if it is wrong.
    pub fn see(&mut self, right: bool, complaint: impl FnOnce() -> String) {
        self.rows += 1;
        if !right {
            self.wrong += 1;
            self.first.get_or_insert_with(complaint);
        }
    }

    /// Returns the check that all rows were right and that `expected` rows were seen.
    pub fn check(self, name: impl Into<String>, expected: u64) -> Check {
        let mut detail = format!("{} of {expected} rows, {} wrong", self.rows, self.wrong);
        if let Some(first) = &self.first {
            detail.push_str("; the first: ");
            detail.push_str(first);
        }
        Check::new(name, self.rows == expected && self.wrong == 0, detail)
    }

    /// Returns the check for an unknown number of rows: all rows right, and at least one row seen.
    pub fn check_all(self, name: impl Into<String>) -> Check {
        let seen = self.rows.max(1);
        self.check(name, seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_balance_is_explained_exactly_or_within_bounds() {
        let mut exact = Effects::default();
        exact.add_committed(5);
        exact.add_committed(-8);
        let mut open = exact;
        open.add_unknown(10);
        open.add_unknown(-2);
        let cases = [
            (exact, 97, true),
            (exact, 96, false),
            (exact, 98, false),
            (open, 95, true),
            (open, 107, true),
            (open, 94, false),
            (open, 108, false),
        ];
        for (effects, found, passed) in cases {
            let check = effects.explain("sum", 100, found);
            assert_eq!(check.passed, passed, "{found}: {}", check.detail);
        }
    }

    /// Regression: a call of unknown outcome was counted as not committed, and every later audit of
    /// the cluster reported lost money.
    #[test]
    fn a_balance_is_not_judged_where_nobody_knows_what_may_have_moved_it() {
        let open = Effects { committed: 7, unjudged: 2, ..Effects::default() };
        let mut effects = Effects::default();
        effects.merge(&open);
        assert_eq!(effects, open);
        let check = effects.explain("sum", 100, 93);
        assert!(!check.judged && !check.has_failed(), "{check:?}");
        assert!(check.detail.contains("2 calls or runs"), "{}", check.detail);
        let audit = Audit::new(vec![Check::new("a", true, ""), check.clone()]);
        assert_eq!((audit.outcome, audit.passed), (AuditOutcome::Incomplete, false));
        assert_eq!(audit.verdict(), "audit INCOMPLETE: not judged: sum");
        let audit = Audit::new(vec![Check::new("a", false, "1 of 2"), check]);
        assert_eq!((audit.outcome, audit.passed), (AuditOutcome::Failed, false));
        assert_eq!(audit.verdict(), "audit FAILED: a (1 of 2); not judged: sum");
    }

    /// Regression: an audit that could look at nothing said that it had passed.
    #[test]
    fn an_audit_without_evidence_has_not_passed() {
        let open = Audit::new(vec![Check::not_judged("all data", "node 0 does not answer")]);
        assert_eq!((open.outcome, open.passed), (AuditOutcome::Incomplete, false));
        assert_eq!(open.verdict(), "audit INCOMPLETE: not judged: all data");
        let none = Audit::new(Vec::new());
        assert_eq!((none.outcome, none.passed), (AuditOutcome::Incomplete, false));
        assert_eq!(none.verdict(), "audit INCOMPLETE: nothing was checked");
    }

    #[test]
    fn the_verdict_names_what_failed() {
        let good = Check::new("a", true, "");
        let bad = Check::new("b", false, "3 of 4");
        assert_eq!(Audit::new(vec![good.clone()]).verdict(), "audit passed");
        let audit = Audit::new(vec![good, bad]);
        assert!(!audit.passed);
        assert_eq!(audit.verdict(), "audit FAILED: b (3 of 4)");
    }

    #[test]
    fn a_missing_or_wrong_row_fails() {
        let mut rows = RowCheck::default();
        rows.see(true, || unreachable!("not asked about a right row"));
        assert!(!rows.check("rows", 2).passed);
        let mut rows = RowCheck::default();
        rows.see(false, || "row 0".to_owned());
        let check = rows.check("rows", 1);
        assert!(!check.passed && check.detail.ends_with("the first: row 0"), "{}", check.detail);
    }
}
