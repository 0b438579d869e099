//! Engines that LOTUS is compared with (LOTUS §8), on the fabric, workloads, harness and audits of
//! our own engine.
//!
//! # What it is
//! [`Motor`](Engine::Motor): several versions of a row, a lock word in its version table, no log.
//! [`Ford`](Engine::Ford): one version of a row in its index slot, validation, an undo log. The
//! engines are written from the behaviour of the papers and programs, not from their text. The
//! kind, number and order of a transaction's verbs and round trips are as published.
//!
//! # What it is not
//! Systems to keep data in. No engine here recovers from a failure; runs are measured without
//! faults. Some faults of the published programs are mended by default ([`Faults`]).
//!
//! # Rooms
//! Folders, top floor first: `bench` puts an engine under the harness; `motor` and `ford` are the
//! engines; `store` has the tables, index and placement that engines share. A folder imports only
//! from lower folders.

#![forbid(unsafe_code)]

mod bench;
mod ford;
mod motor;
mod store;

use std::sync::Arc;

use lotus_benchmarks::harness::{self, BenchError, Outcome};
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::workload::Workload;
use lotus_fabric::machines::Machines;

pub use bench::Size;
pub use store::addresses::Known;
use store::attempt::Protocol;
pub use store::placement::Primaries;
pub use store::thread_context::Harm;
pub use store::{CommitSteps, Deltas, Faults, FordOptions, Locking, Options, Records};

/// An engine of this crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Engine {
    /// Motor (OSDI 2024).
    Motor,
    /// FORD (FAST 2022).
    Ford,
}

/// Runs a workload on an engine, on the given machines. The outcome's remarks report any harm that
/// the engine as published does to other transactions.
///
/// # Errors
/// Errors of the harness; [`BenchError::Deploy`] if the sizes make no sense.
pub fn run<W: Workload>(
    engine: Engine,
    machines: impl Machines,
    size: Size,
    settings: (Options, &harness::Options),
    workload: W,
    progress: &Arc<Progress>,
) -> Result<Outcome, BenchError> {
    let machines = Box::new(machines);
    match engine {
        Engine::Motor => run_on::<motor::Motor, _>(machines, size, settings, workload, progress),
        Engine::Ford => run_on::<ford::Ford, _>(machines, size, settings, workload, progress),
    }
}

fn run_on<S: Protocol, W: Workload>(
    machines: Box<dyn Machines>,
    size: Size,
    (options, bench): (Options, &harness::Options),
    workload: W,
    progress: &Arc<Progress>,
) -> Result<Outcome, BenchError> {
    let mut deployed = bench::Deployed::<S>::new(machines, size, options)?;
    let mut outcome = harness::run(&mut deployed, workload, bench, progress)?;
    outcome.remarks.extend(remarks(options.faults, deployed.harm()));
    Ok(outcome)
}

/// Remarks on harm that an engine has done, or would have done as published.
fn remarks(faults: Faults, harm: Harm) -> Vec<String> {
    let mut said = Vec::new();
    let Harm { freed, torn } = harm;
    if freed > 0 {
        said.push(match faults {
            Faults::AsPublished => format!("aborts freed {freed} locks of other transactions"),
            Faults::Mended => {
                format!("as published, aborts would have freed {freed} locks of other transactions")
            }
        });
    }
    if torn > 0 {
        said.push(format!("{torn} values were overwritten while they were read, and refused"));
    }
    said
}
