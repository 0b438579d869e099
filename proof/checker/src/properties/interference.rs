//! G-SIa, interference: a transaction under snapshot isolation replaces only versions that its
//! snapshot shows. Of two concurrent writers of a row, the first to commit wins.
//!
//! Includes blind writes. If both transactions have read the row, the interference is also a lost
//! update.

use crate::history::Isolation;
use crate::report::{Anomaly, CycleStep, Dependency, Findings};
use crate::trace::{INITIAL, Trace};
use crate::write_order::WriteOrder;

pub(crate) fn check(trace: &Trace<'_>, order: &WriteOrder, findings: &mut Findings<'_>) {
    for write in trace.writes() {
        let attempt = trace.owner(write);
        let level = trace.history.attempt(attempt);
        let (Isolation::Snapshot, Some(snapshot)) = (level.isolation, level.snapshot) else {
            continue;
        };
        let before = order.before(write);
        if before >= INITIAL {
            continue;
        }
        let Some(replaced_ts) = trace.commit_ts(before).filter(|ts| *ts > snapshot) else {
            continue;
        };
        let other = trace.owner(before);
        let row = trace.history.op(write).row;
        let step = CycleStep {
            from: other,
            to: attempt,
            dependency: Dependency::WriteWrite,
            row: Some(row),
        };
        findings.add(Anomaly::GSIa, &[other, attempt], &[step], |names| {
            let [writer, other] = [names.name(attempt), names.name(other)];
            format!(
                "{writer} has the snapshot {snapshot} and replaced what {other} wrote to {} \
                 and committed at {replaced_ts}",
                trace.history.row(row)
            )
        });
    }
}
