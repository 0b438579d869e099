//! The order in which things are found out.

use crate::graph::{Graph, Orders};
use crate::history::History;
use crate::properties::{
    aborted_read, duplicate_version, interference, intermediate_read, internal, lost_update,
    snapshot_read, unwritten_read, version_order,
};
use crate::report::{Findings, Report};
use crate::search;
use crate::trace::Trace;
use crate::write_order::WriteOrder;

/// Whether what had ended before a transaction started must come before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RealTime {
    /// It need not: any order will do that explains the reads.
    #[default]
    Ignored,
    /// It must: strict serializability, and snapshots that are up to date.
    Enforced,
}

/// Whether the transactions of a session must come in the order of the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SessionOrder {
    /// They need not.
    Ignored,
    /// They must.
    #[default]
    Enforced,
}

/// What to check, and how much to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Real time; ignored by default.
    pub real_time: RealTime,
    /// Sessions; enforced by default.
    pub session_order: SessionOrder,
    /// How many violations of each kind are spelled out; 10 by default. All are counted.
    pub max_per_anomaly: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            real_time: RealTime::default(),
            session_order: SessionOrder::default(),
            max_per_anomaly: 10,
        }
    }
}

/// Looks for everything that the history's isolation levels forbid.
///
/// Takes time and memory linear in the operations, but for sorting: some seconds and half a
/// gigabyte for a million transactions of three operations.
pub fn check(history: &History, options: &Options) -> Report {
    let mut findings = Findings::new(history, options.max_per_anomaly);
    let trace = Trace::new(history);
    duplicate_version::check(&trace, &mut findings);
    internal::check(&trace, &mut findings);
    unwritten_read::check(&trace, &mut findings);
    aborted_read::check(&trace, &mut findings);
    intermediate_read::check(&trace, &mut findings);
    let order = WriteOrder::new(&trace);
    version_order::check(&trace, &order, &mut findings);
    lost_update::check(&trace, &order, &mut findings);
    snapshot_read::check(&trace, &order, &mut findings);
    interference::check(&trace, &order, &mut findings);
    let orders = Orders {
        session: options.session_order == SessionOrder::Enforced,
        real_time: options.real_time == RealTime::Enforced,
    };
    search::check(history, &Graph::new(&trace, &order, orders), &mut findings);
    let transactions = trace.effective().count();
    findings.report(transactions)
}
