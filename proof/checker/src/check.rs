//! The check, step by step.

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

/// Whether a transaction that ended before another started must come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RealTime {
    /// Not required: any order that explains the reads is valid.
    #[default]
    Ignored,
    /// Required: strict serializability, and snapshots that are up to date.
    Enforced,
}

/// Whether the transactions of a session must come in the order of the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SessionOrder {
    /// Not required.
    Ignored,
    /// Required.
    #[default]
    Enforced,
}

/// Orders to enforce, and the number of violations to describe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Real-time order; ignored by default.
    pub real_time: RealTime,
    /// Session order; enforced by default.
    pub session_order: SessionOrder,
    /// Limit of violations of each kind with details; 10 by default. Every violation is counted.
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

/// Checks a history for every anomaly that its isolation levels forbid.
///
/// Takes time and memory linear in the operations, except for sorting: some seconds and half a
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
