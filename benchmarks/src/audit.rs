//! Named checks on what a run leaves behind.
//!
//! A check never fails silently: it carries a sentence with the numbers that it compared. The
//! decisions are pure; who reads the data and when is the harness's business.

use serde::{Deserialize, Serialize};

/// The verdict on one property.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Check {
    /// What must hold.
    pub name: String,
    /// Whether it does.
    pub passed: bool,
    /// What was compared, with numbers.
    pub detail: String,
}

impl Check {
    /// A verdict on `name`.
    pub fn new(name: impl Into<String>, passed: bool, detail: impl Into<String>) -> Self {
        Self { name: name.into(), passed, detail: detail.into() }
    }
}

/// All verdicts on a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Audit {
    /// Whether every check passed.
    pub passed: bool,
    /// The checks.
    pub checks: Vec<Check>,
}

impl Audit {
    /// Sums up `checks`.
    pub fn new(checks: Vec<Check>) -> Self {
        Self { passed: checks.iter().all(|check| check.passed), checks }
    }

    /// The line that ends the command's output.
    pub fn verdict(&self) -> String {
        let failed: Vec<&str> =
            self.checks.iter().filter(|check| !check.passed).map(|c| c.name.as_str()).collect();
        if failed.is_empty() {
            "audit passed".to_owned()
        } else {
            format!("audit FAILED: {}", failed.join("; "))
        }
    }
}

/// By how much a run's transactions say that they moved the balance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Effects {
    /// The sum over all that committed.
    pub committed: i128,
    /// The sum over all with unknown outcome that would lower the balance; not positive.
    pub unknown_low: i128,
    /// The sum over all with unknown outcome that would raise it; not negative.
    pub unknown_high: i128,
}

impl Effects {
    /// Adds a transaction that committed.
    #[inline]
    pub fn add_committed(&mut self, effect: i64) {
        self.committed += i128::from(effect);
    }

    /// Adds a transaction that may have committed.
    pub fn add_unknown(&mut self, effect: i64) {
        self.unknown_low += i128::from(effect.min(0));
        self.unknown_high += i128::from(effect.max(0));
    }

    /// Adds another worker's effects.
    pub fn merge(&mut self, other: &Self) {
        self.committed += other.committed;
        self.unknown_low += other.unknown_low;
        self.unknown_high += other.unknown_high;
    }

    /// Whether a balance that was `initial` can have become `found`. Exact unless outcomes are
    /// unknown, in which case it is a bound.
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
        Check::new(name, (lowest..=highest).contains(&found), detail)
    }
}

/// Counts rows that are not as they must be and remembers the first.
#[derive(Debug, Default)]
pub struct RowCheck {
    rows: u64,
    wrong: u64,
    first: Option<String>,
}

impl RowCheck {
    /// Counts a row; `complaint` describes it if it is wrong.
    pub fn see(&mut self, right: bool, complaint: impl FnOnce() -> String) {
        self.rows += 1;
        if !right {
            self.wrong += 1;
            self.first.get_or_insert_with(complaint);
        }
    }

    /// The verdict, given that there should be `expected` rows.
    pub fn check(self, name: impl Into<String>, expected: u64) -> Check {
        let mut detail = format!("{} of {expected} rows, {} wrong", self.rows, self.wrong);
        if let Some(first) = &self.first {
            detail.push_str("; the first: ");
            detail.push_str(first);
        }
        Check::new(name, self.rows == expected && self.wrong == 0, detail)
    }

    /// The verdict where nobody knows how many rows there should be, but that there are some.
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

    #[test]
    fn the_verdict_names_what_failed() {
        let good = Check::new("a", true, "");
        let bad = Check::new("b", false, "");
        assert_eq!(Audit::new(vec![good.clone()]).verdict(), "audit passed");
        let audit = Audit::new(vec![good, bad]);
        assert!(!audit.passed);
        assert_eq!(audit.verdict(), "audit FAILED: b");
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
