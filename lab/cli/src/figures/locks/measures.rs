//! Measures of a point of a lock experiment: table columns, and their values.

use std::time::Duration;

use lotus_benchmarks::report::grouped;
use lotus_benchmarks::utilisation::NodeLoad;
use lotus_fabric::sim::Report;
use lotus_loads::bank::BankOutcome;
use lotus_loads::index::TreeOutcome;
use lotus_loads::lanes::{Latencies, Used};
use lotus_loads::locks::{LockOutcome, LockTally, LossRecovery};
use lotus_loads::two_phase::{TraceLoad, TraceOutcome};
use serde::{Deserialize, Serialize};

use crate::bench::clients;

/// Results of a point, independent of its benchmark.
pub(super) struct Seen {
    /// Operations that ended in the measured time.
    operations: u64,
    /// Time of each operation.
    operation_ns: Latencies,
    used: Used,
    utilisation: Option<Report>,
    findings: Option<Vec<String>>,
    /// Counts of a load on locks alone.
    locks: Option<LockTally>,
    /// Counts of transactions under two-phase locking.
    trace: Option<Traced>,
    /// The last recovery from a lost node.
    recovery: Option<LossRecovery>,
}

/// Counts of transactions under two-phase locking.
struct Traced {
    /// Attempts that were retried.
    aborts: u64,
    acquire_ns: Latencies,
    /// Time for all acquisitions of a transaction, if measured.
    growing_ns: Option<Latencies>,
    /// Latencies of transactions by transaction type.
    kinds: Vec<(String, Latencies)>,
}

impl From<LockOutcome> for Seen {
    fn from(outcome: LockOutcome) -> Self {
        let LockOutcome { tally, used, findings, utilisation, recovery } = outcome;
        Self {
            operations: tally.operations,
            operation_ns: tally.operation_ns.clone(),
            used,
            utilisation,
            findings,
            locks: Some(tally),
            trace: None,
            recovery,
        }
    }
}

impl From<TreeOutcome> for Seen {
    fn from(outcome: TreeOutcome) -> Self {
        let TreeOutcome { tally, used, findings, utilisation, .. } = outcome;
        Self {
            operations: tally.operations,
            operation_ns: tally.operation_ns,
            used,
            utilisation,
            findings,
            locks: None,
            trace: None,
            recovery: None,
        }
    }
}

impl From<BankOutcome> for Seen {
    fn from(outcome: BankOutcome) -> Self {
        let BankOutcome { tally, used, findings, utilisation, .. } = outcome;
        Self {
            operations: tally.transactions,
            operation_ns: tally.transaction_ns,
            used,
            utilisation,
            findings,
            locks: None,
            trace: Some(Traced {
                aborts: tally.aborts,
                acquire_ns: tally.acquire_ns,
                growing_ns: None,
                kinds: Vec::new(),
            }),
            recovery: None,
        }
    }
}

impl Seen {
    /// Results of the transactions of a load's trace.
    pub(super) fn of_trace(load: &TraceLoad, outcome: TraceOutcome) -> Self {
        let TraceOutcome { tally, used, findings, utilisation } = outcome;
        let names = load.trace.kinds().into_iter().map(str::to_owned);
        Self {
            operations: tally.transactions,
            operation_ns: tally.transaction_ns,
            used,
            utilisation,
            findings,
            locks: None,
            trace: Some(Traced {
                aborts: tally.aborts + tally.lost,
                acquire_ns: tally.acquire_ns,
                growing_ns: Some(tally.growing_ns),
                kinds: names.zip(tally.of_kind_ns).collect(),
            }),
            recovery: None,
        }
    }
}

impl Seen {
    /// The busiest resource, and its share; empty if unknown.
    pub(super) fn busiest(&self) -> String {
        self.utilisation.as_ref().map_or_else(String::new, clients::busiest)
    }

    /// Whether the audit passed; `None` without an audit.
    pub(super) fn audited(&self) -> Option<bool> {
        self.findings.as_ref().map(Vec::is_empty)
    }
}

/// A quantity of a point. Files and results contain its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Measure {
    /// Locks taken and released, searches and updates of a tree, or transactions, per second.
    Operations,
    /// Share of requests given up, lost to another client, or failed.
    GivenUp,
    /// Share of the time for which the memory node's NIC served requests.
    Nic,
    /// Time from the request to the lock, in microseconds: mean, 20th percentile, median, 90th and
    /// 99th percentile.
    AcquireMean,
    AcquireP20,
    AcquireP50,
    AcquireP90,
    AcquireP99,
    /// As above, for the most popular lock.
    HottestP50,
    HottestP99,
    /// As above, for readers alone, and for writers alone: means.
    Readers,
    Writers,
    /// Time of the release, in microseconds: mean.
    Release,
    /// Time from the request to the end of the release, in microseconds.
    OperationP50,
    OperationP99,
    /// As above: mean and 99.9th percentile. For a transaction, up to the end of its execution.
    OperationMean,
    OperationP999,
    /// Time from the start of a transaction until it has all its locks, in microseconds: mean.
    AllLocks,
    /// Median time of the transactions of a type, in microseconds.
    GetSubscriberData,
    UpdateLocation,
    NewOrder,
    Delivery,
    /// Verbs of an acquisition and release.
    Atomics,
    Reads,
    Writes,
    Messages,
    /// Verbs of an acquisition, and verbs beyond the first.
    AcquireVerbs,
    Retries,
    /// READs repeated by a release.
    Refetches,
    /// Share of locks taken over from clients of the same node.
    Local,
    /// Resets in a million acquisitions, and the mean time of a reset in microseconds.
    Resets,
    ResetMean,
    /// Largest number of consecutive writers of a lock, without a reader in between.
    Run,
    /// Recovery time after the detection of a lost node, in microseconds; and the times of its
    /// steps: until all have reported, until the switch is rewritten, until all go on.
    Recovery,
    RecoveryReport,
    RecoveryRewrite,
    RecoveryResume,
    /// Locks held after the recovery.
    RecoveredLocks,
}

/// Display format of a quantity.
#[derive(Clone, Copy)]
enum Form {
    Count,
    Percent,
    Decimals(usize),
}

impl Measure {
    /// Measures for files that do not list measures.
    pub(super) const USUAL: [Self; 6] = [
        Self::Operations,
        Self::GivenUp,
        Self::Nic,
        Self::AcquireP50,
        Self::AcquireP99,
        Self::Retries,
    ];

    /// Title of the column, and of an axis.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Operations => "operations/s",
            Self::GivenUp => "given up %",
            Self::Nic => "NIC %",
            Self::AcquireMean => "acquire us",
            Self::AcquireP20 => "acquire p20 us",
            Self::AcquireP50 => "acquire p50 us",
            Self::AcquireP90 => "acquire p90 us",
            Self::AcquireP99 => "acquire p99 us",
            Self::HottestP50 => "hottest p50 us",
            Self::HottestP99 => "hottest p99 us",
            Self::Readers => "readers' acquire us",
            Self::Writers => "writers' acquire us",
            Self::Release => "release us",
            Self::OperationP50 => "operation p50 us",
            Self::OperationP99 => "operation p99 us",
            Self::OperationMean => "operation us",
            Self::OperationP999 => "operation p99.9 us",
            Self::AllLocks => "all locks us",
            Self::GetSubscriberData => "GetSubscriberData p50 us",
            Self::UpdateLocation => "UpdateLocation p50 us",
            Self::NewOrder => "NewOrder p50 us",
            Self::Delivery => "Delivery p50 us",
            Self::Atomics => "atomics",
            Self::Reads => "READs",
            Self::Writes => "WRITEs",
            Self::Messages => "messages",
            Self::AcquireVerbs => "acquire verbs",
            Self::Retries => "retries",
            Self::Refetches => "refetches",
            Self::Local => "within nodes %",
            Self::Resets => "resets of 10^6",
            Self::ResetMean => "reset us",
            Self::Run => "writers in a row",
            Self::Recovery => "recovery us",
            Self::RecoveryReport => "S1 report us",
            Self::RecoveryRewrite => "S3 rewrite us",
            Self::RecoveryResume => "S2 resume us",
            Self::RecoveredLocks => "locks held after it",
        }
    }

    const fn form(self) -> Form {
        match self {
            Self::Operations | Self::Run | Self::RecoveredLocks => Form::Count,
            Self::GivenUp | Self::Nic | Self::Local => Form::Percent,
            Self::Refetches => Form::Decimals(4),
            Self::Atomics
            | Self::Reads
            | Self::Writes
            | Self::AcquireVerbs
            | Self::Retries
            | Self::Readers
            | Self::Writers
            | Self::Release => Form::Decimals(2),
            Self::Messages => Form::Decimals(3),
            _ => Form::Decimals(1),
        }
    }

    /// The value formatted for a table.
    pub(super) fn show(self, value: f64) -> String {
        match self.form() {
            Form::Count => grouped(value.round() as u64),
            Form::Percent => format!("{:.1}", self.drawn(value)),
            Form::Decimals(decimals) => format!("{value:.decimals$}"),
        }
    }

    /// The value for a plot: shares in percent.
    pub(super) fn drawn(self, value: f64) -> f64 {
        match self.form() {
            Form::Percent => value * 100.0,
            _ => value,
        }
    }

    /// The value of a point measured for `secs` seconds; `None` if its benchmark does not measure
    /// the quantity.
    pub(super) fn of(self, secs: f64, seen: &Seen) -> Option<f64> {
        let Used { verbs, counts, transfers, .. } = &seen.used;
        let operations = seen.operations;
        let each = |count: u64, of: u64| count as f64 / of.max(1) as f64;
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let quantile = |of: &Latencies, at| of.value_at_quantile(at) as f64 / 1000.0;
        let acquire_ns = || {
            let of_trace = seen.trace.as_ref().map(|traced| &traced.acquire_ns);
            seen.locks.as_ref().map(|tally| &tally.acquire_ns).or(of_trace)
        };
        let of_kind = |name| {
            let mut kinds = seen.trace.as_ref()?.kinds.iter();
            let (_, latencies) = kinds.find(|(kind, _)| kind == name)?;
            Some(quantile(latencies, 0.5))
        };
        Some(match self {
            Self::Operations => operations as f64 / secs,
            Self::GivenUp => {
                let of_locks = seen.locks.as_ref().map(|tally| tally.refused + tally.failed);
                let lost = of_locks.or(seen.trace.as_ref().map(|traced| traced.aborts))?;
                each(lost, lost + operations)
            }
            Self::Nic => {
                let mut nodes = clients::nodes(seen.utilisation.as_ref()).into_iter();
                nodes.find(NodeLoad::is_memory).map_or(0.0, |node| node.inbound_busy)
            }
            Self::AcquireMean => acquire_ns()?.mean() / 1000.0,
            Self::AcquireP20 => quantile(acquire_ns()?, 0.2),
            Self::AcquireP50 => quantile(acquire_ns()?, 0.5),
            Self::AcquireP90 => quantile(acquire_ns()?, 0.9),
            Self::AcquireP99 => quantile(acquire_ns()?, 0.99),
            Self::HottestP50 => quantile(&seen.locks.as_ref()?.hottest_ns, 0.5),
            Self::HottestP99 => quantile(&seen.locks.as_ref()?.hottest_ns, 0.99),
            Self::Readers => seen.locks.as_ref()?.reader_acquire.mean_ns() / 1000.0,
            Self::Writers => seen.locks.as_ref()?.writer_acquire.mean_ns() / 1000.0,
            Self::Release => seen.locks.as_ref()?.released.mean_ns() / 1000.0,
            Self::OperationP50 => quantile(&seen.operation_ns, 0.5),
            Self::OperationP99 => quantile(&seen.operation_ns, 0.99),
            Self::OperationMean => seen.operation_ns.mean() / 1000.0,
            Self::OperationP999 => quantile(&seen.operation_ns, 0.999),
            Self::AllLocks => seen.trace.as_ref()?.growing_ns.as_ref()?.mean() / 1000.0,
            Self::GetSubscriberData => of_kind("GetSubscriberData")?,
            Self::UpdateLocation => of_kind("UpdateLocation")?,
            Self::NewOrder => of_kind("NewOrder")?,
            Self::Delivery => of_kind("Delivery")?,
            Self::Atomics => each(verbs.compare_and_swaps + verbs.fetch_and_adds, operations),
            Self::Reads => each(verbs.reads, operations),
            Self::Writes => each(verbs.writes, operations),
            Self::Messages => each(verbs.messages, operations),
            Self::AcquireVerbs => 1.0 + each(counts.retries, counts.acquired),
            Self::Retries => each(counts.retries, counts.acquired),
            Self::Refetches => each(counts.refetches, counts.acquired),
            Self::Local => each(transfers.local, transfers.local + transfers.remote),
            Self::Resets => 1e6 * each(counts.resets, counts.acquired),
            Self::ResetMean => each(counts.reset_ns, counts.resets) / 1000.0,
            Self::Run => seen.locks.as_ref()?.fairness.longest_run as f64,
            Self::Recovery => micros(seen.recovery?.took),
            Self::RecoveryReport => micros(seen.recovery?.over.reporting),
            Self::RecoveryRewrite => micros(seen.recovery?.over.rewriting),
            Self::RecoveryResume => micros(seen.recovery?.over.resuming),
            Self::RecoveredLocks => seen.recovery?.over.locks as f64,
        })
    }
}
