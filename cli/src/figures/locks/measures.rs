//! What an experiment with locks measures of each point: its columns, and what they show.

use lotus_benchmarks::locks::{Latencies, LockOutcome, LockTally};
use lotus_benchmarks::report::grouped;
use lotus_benchmarks::utilisation::NodeLoad;
use serde::{Deserialize, Serialize};

use crate::args::LocksArgs;
use crate::bench::locks;

/// A quantity of a point. Its name stands in files and results.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Measure {
    /// Locks taken and released, a second.
    Operations,
    /// Share of requests that were given up, lost to another, or failed.
    GivenUp,
    /// Share of the time for which the memory node's NIC served requests.
    Nic,
    /// Time from the request to the lock, in microseconds: mean, median and 99th percentile.
    AcquireMean,
    AcquireP50,
    AcquireP99,
    /// The same of readers alone, and of writers: means.
    Readers,
    Writers,
    /// Time of the release, in microseconds: mean.
    Release,
    /// Time from the request to the end of the release, in microseconds.
    OperationP50,
    OperationP99,
    /// Verbs of an acquisition and release.
    Atomics,
    Reads,
    Writes,
    Messages,
    /// Verbs of an acquisition, and those beyond the first.
    AcquireVerbs,
    Retries,
    /// READs that a release repeats.
    Refetches,
    /// Resets of a million acquisitions, and the mean time of one in microseconds.
    Resets,
    ResetMean,
    /// The most writers that had a lock one after another.
    Run,
}

/// How a quantity is shown.
#[derive(Clone, Copy)]
enum Form {
    Count,
    Percent,
    Decimals(usize),
}

impl Measure {
    /// What those files show that name no measures.
    pub(super) const USUAL: [Self; 6] = [
        Self::Operations,
        Self::GivenUp,
        Self::Nic,
        Self::AcquireP50,
        Self::AcquireP99,
        Self::Retries,
    ];

    /// Title of its column, and of an axis.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Operations => "operations/s",
            Self::GivenUp => "given up %",
            Self::Nic => "NIC %",
            Self::AcquireMean => "acquire us",
            Self::AcquireP50 => "acquire p50 us",
            Self::AcquireP99 => "acquire p99 us",
            Self::Readers => "readers' acquire us",
            Self::Writers => "writers' acquire us",
            Self::Release => "release us",
            Self::OperationP50 => "operation p50 us",
            Self::OperationP99 => "operation p99 us",
            Self::Atomics => "atomics",
            Self::Reads => "READs",
            Self::Writes => "WRITEs",
            Self::Messages => "messages",
            Self::AcquireVerbs => "acquire verbs",
            Self::Retries => "retries",
            Self::Refetches => "refetches",
            Self::Resets => "resets of 10^6",
            Self::ResetMean => "reset us",
            Self::Run => "writers in a row",
        }
    }

    const fn form(self) -> Form {
        match self {
            Self::Operations | Self::Run => Form::Count,
            Self::GivenUp | Self::Nic => Form::Percent,
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

    /// The value as it is shown in a table.
    pub(super) fn show(self, value: f64) -> String {
        match self.form() {
            Form::Count => grouped(value.round() as u64),
            Form::Percent => format!("{:.1}", self.drawn(value)),
            Form::Decimals(decimals) => format!("{value:.decimals$}"),
        }
    }

    /// The value as it is drawn: shares in percent.
    pub(super) fn drawn(self, value: f64) -> f64 {
        match self.form() {
            Form::Percent => value * 100.0,
            _ => value,
        }
    }

    /// The value of a run.
    pub(super) fn of(self, args: &LocksArgs, outcome: &LockOutcome) -> f64 {
        let tally = &outcome.tally;
        let LockTally { verbs, counts, operations, .. } = tally;
        let each = |count: u64, of: u64| count as f64 / of.max(1) as f64;
        let quantile = |of: &Latencies, at| of.value_at_quantile(at) as f64 / 1000.0;
        let (acquire, operation) = (&tally.acquire_ns, &tally.operation_ns);
        match self {
            Self::Operations => *operations as f64 / args.run.secs,
            Self::GivenUp => {
                let lost = tally.refused + tally.failed;
                each(lost, lost + operations)
            }
            Self::Nic => {
                let memory = locks::nodes(outcome).into_iter().find(NodeLoad::is_memory);
                memory.map_or(0.0, |node| node.inbound_busy)
            }
            Self::AcquireMean => acquire.mean() / 1000.0,
            Self::AcquireP50 => quantile(acquire, 0.5),
            Self::AcquireP99 => quantile(acquire, 0.99),
            Self::Readers => tally.reader_acquire.mean_ns() / 1000.0,
            Self::Writers => tally.writer_acquire.mean_ns() / 1000.0,
            Self::Release => tally.released.mean_ns() / 1000.0,
            Self::OperationP50 => quantile(operation, 0.5),
            Self::OperationP99 => quantile(operation, 0.99),
            Self::Atomics => each(verbs.compare_and_swaps + verbs.fetch_and_adds, *operations),
            Self::Reads => each(verbs.reads, *operations),
            Self::Writes => each(verbs.writes, *operations),
            Self::Messages => each(verbs.messages, *operations),
            Self::AcquireVerbs => 1.0 + each(counts.retries, counts.acquired),
            Self::Retries => each(counts.retries, counts.acquired),
            Self::Refetches => each(counts.refetches, counts.acquired),
            Self::Resets => 1e6 * each(counts.resets, counts.acquired),
            Self::ResetMean => each(counts.reset_ns, counts.resets) / 1000.0,
            Self::Run => tally.fairness.longest_run as f64,
        }
    }
}
