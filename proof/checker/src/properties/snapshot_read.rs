//! Snapshot reads: every read returns the newest version of its row with a commit timestamp of at
//! most the snapshot's, and the reader commits after its snapshot.
//!
//! Applies to attempts that report a snapshot.

use crate::history::OpIndex;
use crate::report::{Anomaly, CycleStep, Dependency, Findings};
use crate::trace::{INITIAL, Trace};
use crate::write_order::WriteOrder;

/// Limit of versions without a timestamp to skip in search of a version with a timestamp. Only
/// writers of unknown outcome lack timestamps, so few such versions are adjacent in a row.
const MAX_PASSED: usize = 64;

pub(crate) fn check(trace: &Trace<'_>, order: &WriteOrder, findings: &mut Findings<'_>) {
    for attempt in trace.effective() {
        let Some(snapshot) = trace.history.attempt(attempt).snapshot else { continue };
        let commit_ts = trace.history.attempt(attempt).commit_ts;
        if let Some(commit_ts) = commit_ts.filter(|commit_ts| *commit_ts <= snapshot) {
            findings.add(Anomaly::SnapshotRead, &[attempt], &[], |names| {
                let name = names.name(attempt);
                format!("{name} committed at {commit_ts}, which is not after its snapshot")
            });
        }
    }
    for read in trace.reads().filter(|read| trace.is_sound(*read)) {
        let reader = trace.owner(read);
        let Some(snapshot) = trace.history.attempt(reader).snapshot else { continue };
        if is_later(trace, trace.source(read), snapshot) {
            report(trace, [read, trace.source(read)], snapshot, findings);
        }
        let next = order.after(trace.history.op(read).row, trace.source(read));
        let missed = order
            .from(next)
            .take(MAX_PASSED)
            .find_map(|version| trace.commit_ts(version).map(|ts| (version, ts)));
        if let Some((version, _)) = missed.filter(|(_, ts)| *ts <= snapshot) {
            report(trace, [read, version], snapshot, findings);
        }
    }
}

fn is_later(trace: &Trace<'_>, version: OpIndex, snapshot: u64) -> bool {
    version != INITIAL && trace.commit_ts(version).is_some_and(|ts| ts > snapshot)
}

/// Reports a read that returned a `version` later than the snapshot, or missed a `version` that is
/// not later.
fn report(
    trace: &Trace<'_>,
    [read, version]: [OpIndex; 2],
    snapshot: u64,
    findings: &mut Findings<'_>,
) {
    let [reader, writer] = [trace.owner(read), trace.owner(version)];
    let row = Some(trace.history.op(read).row);
    let returned = trace.source(read) == version;
    let step = if returned {
        CycleStep { from: writer, to: reader, dependency: Dependency::WriteRead, row }
    } else {
        CycleStep { from: reader, to: writer, dependency: Dependency::ReadWrite, row }
    };
    findings.add(Anomaly::SnapshotRead, &[reader, writer], &[step], |names| {
        let row = trace.history.row(trace.history.op(read).row);
        let committed = trace.commit_ts(version).unwrap_or_default();
        let [reader, writer] = [names.name(reader), names.name(writer)];
        let did = if returned { "returned" } else { "missed" };
        let version = trace.history.op(version).version;
        format!(
            "{reader}'s read of {row} at snapshot {snapshot} {did} version {version}, \
             which {writer} committed at {committed}"
        )
    });
}
