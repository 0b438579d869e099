//! The two sources of a row's write order agree: commit timestamps strictly grow along the chains
//! of updates.
//!
//! Otherwise faulty timestamps could hide themselves: a history judged only in the order of wrong
//! timestamps can look sound.

use crate::history::RowIndex;
use crate::report::{Anomaly, CycleStep, Dependency, Findings};
use crate::trace::{INITIAL, Trace};
use crate::write_order::WriteOrder;

pub(crate) fn check(trace: &Trace<'_>, order: &WriteOrder, findings: &mut Findings<'_>) {
    for row in 0..trace.history.row_count() as RowIndex {
        let mut before = None;
        for write in order.from(order.after(row, INITIAL)) {
            let Some(commit_ts) = trace.commit_ts(write) else { continue };
            if let Some((earlier, earlier_ts)) = before.filter(|(_, ts)| *ts >= commit_ts) {
                let [from, to] = [trace.owner(earlier), trace.owner(write)];
                let dependency = Dependency::WriteWrite;
                let step = CycleStep { from, to, dependency, row: Some(row) };
                findings.add(Anomaly::VersionOrder, &[from, to], &[step], |names| {
                    let [from, to] = [names.name(from), names.name(to)];
                    format!(
                        "updates show that {from} wrote {} before {to} did, \
                         but their commit timestamps are {earlier_ts} and {commit_ts}",
                        trace.history.row(row)
                    )
                });
            }
            before = Some((write, commit_ts));
        }
    }
}
