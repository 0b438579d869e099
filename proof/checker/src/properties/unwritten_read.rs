//! Every version read was written, and to the row that was read.
//!
//! A version of another row shows that memory was recycled under its reader; a version of no row is
//! torn or invented. Versions that name their writer occur in several rows, so a version missing
//! from this row may exist in another.

use crate::history::{Kind, OpIndex};
use crate::report::{Anomaly, Findings};
use crate::trace::{NONE, Trace};

pub(crate) fn check(trace: &Trace<'_>, findings: &mut Findings<'_>) {
    let unwritten: Vec<OpIndex> = trace.reads().filter(|op| trace.source(*op) == NONE).collect();
    if unwritten.is_empty() {
        return;
    }
    let history = trace.history;
    let all = 0..history.operation_count() as OpIndex;
    let mut written: Vec<(u64, OpIndex)> = all
        .filter(|op| history.op(*op).kind == Kind::Write)
        .map(|op| (history.op(op).version, op))
        .collect();
    written.sort_unstable();
    for read in unwritten {
        let reader = trace.owner(read);
        let row = history.row(history.op(read).row);
        let version = history.op(read).version;
        let place = written.partition_point(|write| write.0 < version);
        match written.get(place).filter(|write| write.0 == version) {
            None => findings.add(Anomaly::UnwrittenRead, &[reader], &[], |names| {
                let reader = names.name(reader);
                format!("{reader} read version {version} of {row}, which nobody wrote")
            }),
            Some(&(_, write)) => {
                let writer = trace.owner(write);
                findings.add(Anomaly::RecycledRead, &[reader, writer], &[], |names| {
                    let elsewhere = history.row(history.op(write).row);
                    let [reader, writer] = [names.name(reader), names.name(writer)];
                    format!(
                        "{reader} read version {version} of {row}, \
                         which {writer} wrote to {elsewhere}"
                    )
                });
            }
        }
    }
}
