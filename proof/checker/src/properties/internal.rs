//! Internal consistency: a transaction agrees with itself.
//!
//! A transaction reads its own last write of a row; without an own write, the version of its
//! earlier read; and never a write that it makes later. Both isolation levels promise internal
//! consistency: reads under locks cannot change, nor can a snapshot.

use crate::report::{Anomaly, Findings};
use crate::trace::{INITIAL, Role, Trace};

pub(crate) fn check(trace: &Trace<'_>, findings: &mut Findings<'_>) {
    for attempt in trace.effective() {
        for op in trace.history.ops_of(attempt) {
            let source = trace.source(op);
            let why = match trace.role(op) {
                Role::Stray => "does not agree with its own earlier read or write",
                Role::Read if source < INITIAL && trace.owner(source) == attempt => {
                    "is its own write, which came later"
                }
                _ => continue,
            };
            findings.add(Anomaly::Internal, &[attempt], &[], |names| {
                let row = trace.history.row(trace.history.op(op).row);
                let version = trace.version(op);
                format!("what {} read of {row}, {version}, {why}", names.name(attempt))
            });
        }
    }
}
