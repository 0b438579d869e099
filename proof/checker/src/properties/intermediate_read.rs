//! G1b, intermediate read: transactions see only the last write of a row by another transaction,
//! not its replaced writes.
//!
//! If versions name the writer, all writes of one transaction to a row have the same version, and
//! intermediate reads cannot be detected.

use crate::history::Status;
use crate::report::{Anomaly, CycleStep, Dependency, Findings};
use crate::trace::{INITIAL, Role, Trace};

pub(crate) fn check(trace: &Trace<'_>, findings: &mut Findings<'_>) {
    for read in trace.reads() {
        let source = trace.source(read);
        if source >= INITIAL || trace.role(source) != Role::Overwritten {
            continue;
        }
        let [writer, reader] = [trace.owner(source), trace.owner(read)];
        // `internal` reports reads of own writes, and `aborted_read` reports reads of aborted
        // writes.
        if writer == reader || trace.history.attempt(writer).status == Status::Aborted {
            continue;
        }
        let step = CycleStep {
            from: writer,
            to: reader,
            dependency: Dependency::WriteRead,
            row: Some(trace.history.op(read).row),
        };
        findings.add(Anomaly::G1b, &[reader, writer], &[step], |names| {
            let row = trace.history.row(trace.history.op(read).row);
            let [reader, writer] = [names.name(reader), names.name(writer)];
            let version = trace.version(read);
            format!("{reader} read {version} of {row}, which {writer} itself replaced")
        });
    }
}
