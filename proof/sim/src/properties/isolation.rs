//! Serializability and snapshot isolation, in the order of sessions and in real time, judged per
//! transaction by `lotus-checker`.

use lotus_benchmarks::history::History;
use lotus_checker::{Options, RealTime, check};

use crate::verdict::Violation;

/// Property of a history that the checker can read: every attempt has a unique id.
pub const CHECKED: &str = "a history can be checked";

/// Violations, one for each kind of anomaly, named after the anomaly.
pub fn violations(history: &History) -> Vec<Violation> {
    let mut text = Vec::new();
    history.write(&mut text).expect("memory takes everything");
    let history = match lotus_checker::History::read(text.as_slice()) {
        Ok(history) => history,
        Err(error) => {
            let detail = error.to_string();
            return vec![Violation { property: CHECKED.to_owned(), detail }];
        }
    };
    let options =
        Options { real_time: RealTime::Enforced, max_per_anomaly: 1, ..Options::default() };
    let report = check(&history, &options);
    let mut violations = Vec::new();
    for violation in report.violations {
        let property = violation.anomaly.to_string();
        violations.push(Violation { property, detail: violation.to_string() });
    }
    violations
}
