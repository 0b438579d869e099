//! Lost update: two transactions never read and replace the same version of a row.
//!
//! Otherwise the second transaction has overwritten the first without having seen it. Serializable
//! transactions prevent lost updates by locks, snapshot transactions by letting the first committer
//! win.

use crate::report::{Anomaly, CycleStep, Dependency, Findings};
use crate::trace::{NONE, Trace};
use crate::write_order::WriteOrder;

pub(crate) fn check(trace: &Trace<'_>, order: &WriteOrder, findings: &mut Findings<'_>) {
    for write in trace.writes() {
        let read = trace.partner(write);
        if read == NONE || !trace.is_sound(read) {
            continue;
        }
        let row = trace.history.op(write).row;
        let winner = order.after(row, trace.source(read));
        if winner == write || winner == NONE {
            continue;
        }
        // The write order may place another write here: a circle of updates, which is reported
        // separately, is cut at an arbitrary place. Only a writer that read the version has
        // replaced the version.
        let read_by_winner = trace.partner(winner);
        if read_by_winner == NONE || trace.source(read_by_winner) != trace.source(read) {
            continue;
        }
        let [loser, winner] = [trace.owner(write), trace.owner(winner)];
        let step = CycleStep {
            from: loser,
            to: winner,
            dependency: Dependency::ReadWrite,
            row: Some(row),
        };
        findings.add(Anomaly::LostUpdate, &[winner, loser], &[step], |names| {
            let [winner, loser] = [names.name(winner), names.name(loser)];
            let [version, row] = [trace.version(read), trace.history.row(row).to_string()];
            format!("{winner} and {loser} both read {version} of {row} and replaced it")
        });
    }
}
