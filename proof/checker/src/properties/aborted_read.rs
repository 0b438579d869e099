//! G1a, aborted read: no transaction that took effect has read an aborted transaction's write
//! (I57).

use crate::history::Status;
use crate::report::{Anomaly, CycleStep, Dependency, Findings};
use crate::trace::{INITIAL, Trace};

pub(crate) fn check(trace: &Trace<'_>, findings: &mut Findings<'_>) {
    for read in trace.reads() {
        let source = trace.source(read);
        if source >= INITIAL {
            continue;
        }
        let [writer, reader] = [trace.owner(source), trace.owner(read)];
        if trace.history.attempt(writer).status != Status::Aborted {
            continue;
        }
        let step = CycleStep {
            from: writer,
            to: reader,
            dependency: Dependency::WriteRead,
            row: Some(trace.history.op(read).row),
        };
        findings.add(Anomaly::G1a, &[reader, writer], &[step], |names| {
            let row = trace.history.row(trace.history.op(read).row);
            let [reader, writer] = [names.name(reader), names.name(writer)];
            let version = trace.version(read);
            format!("{reader} read {version} of {row}, which {writer} wrote before it aborted")
        });
    }
}
