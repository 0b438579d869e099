//! No two attempts write the same version of a row.
//!
//! Aborted attempts are included: a version that may belong to either writer would make an aborted
//! read look sound. All other properties of the row rely on unique versions.

use crate::report::{Anomaly, Findings};
use crate::trace::Trace;

pub(crate) fn check(trace: &Trace<'_>, findings: &mut Findings<'_>) {
    for pair in &trace.duplicates {
        let [one, other] = pair.map(|op| trace.owner(op));
        let op = trace.history.op(pair[0]);
        findings.add(Anomaly::DuplicateVersion, &[one, other], &[], |names| {
            let row = trace.history.row(op.row);
            let [one, other] = [names.name(one), names.name(other)];
            format!("{one} and {other} both wrote version {} of {row}", op.version)
        });
    }
}
