//! One benchmark from loading to audit.
//!
//! The order matters. Traffic is read right around the clients' run. The audit comes after the
//! last transaction has ended, and the floor after the audit: replaying verbs without a protocol
//! leaves worthless data behind.

use std::sync::Arc;

use lotus_fabric::env::Env;
use lotus_fabric::ids::TableId;
use serde::Serialize;

use crate::audit::{Audit, Check};
use crate::clients::Run;
use crate::config::{ClusterConfig, LoadConfig};
use crate::deployment::{
    Caches, DeployError, Deployment, Memory, MemoryNodesUse, Ownership, Replay, Traffic,
};
use crate::history::{History, Log};
use crate::progress::{Phase, Progress};
use crate::stats::Tally;
use crate::utilisation::Simulation;
use crate::worker;
use crate::workload::{Rate, Workload};

/// How long verbs are recorded for the floor, and the longest replay, in seconds.
const RECORD_SECS: f64 = 0.2;
const MOST_REPLAY_SECS: f64 = 5.0;
/// How far the replay's verbs per transaction may be from the engine's (DESIGN §10).
const FLOOR_TOLERANCE: f64 = 0.02;

/// What a benchmark does.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The cluster under test.
    pub cluster: ClusterConfig,
    /// What its clients do.
    pub load: LoadConfig,
    /// Whether all data is looked at afterwards.
    pub audit: bool,
    /// Whether the fabric alone is measured as well.
    pub floor: bool,
    /// Whether every attempt is recorded.
    pub history: bool,
}

/// What came of a benchmark.
#[derive(Debug)]
pub struct Outcome {
    /// The workload's name.
    pub workload: &'static str,
    /// The names of its transactions, as [`Tally::by_transaction`] counts.
    pub transactions: &'static [&'static str],
    /// How it was set up.
    pub settings: serde_json::Value,
    /// What the clients counted.
    pub tally: Tally,
    /// How long it took to make and fill the tables, in seconds of wall time, if they were not
    /// there.
    pub load_s: Option<f64>,
    /// Rates by which the workload is known.
    pub rates: Vec<Rate>,
    /// From the end of the warm-up to the end of the last transaction, in seconds.
    pub elapsed_s: f64,
    /// What was sent, warm-up included.
    pub traffic: Traffic,
    /// How often caches knew, warm-up included.
    pub caches: Caches,
    /// Where locks were taken, and how shards moved, warm-up included.
    pub ownership: Ownership,
    /// What the data took afterwards, if that can be seen.
    pub memory: Option<Memory>,
    /// What was found in the data, if anybody looked.
    pub audit: Option<Audit>,
    /// What the fabric alone did, if it was measured.
    pub floor: Option<Replay>,
    /// Every attempt, if they were recorded.
    pub history: Option<History>,
    /// What was busy, if the cluster was simulated.
    pub simulation: Option<Simulation>,
    /// What the memory nodes did, if they are processes; for whoever started them to say.
    pub memory_nodes: Option<MemoryNodesUse>,
    /// What became of applications' calls that ended without a result, if anybody asked.
    pub unanswered: Option<Unanswered>,
    /// What is missing here, and why, in sentences.
    pub remarks: Vec<String>,
    /// Why the load ended before its time, if it did: nothing more could be done.
    pub stopped: Option<String>,
}

/// What became of applications' calls that ended without a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Unanswered {
    /// How many there were.
    pub calls: u64,
    /// How many of them had committed.
    pub committed: u64,
    /// Of how many nobody knows.
    pub unknown: u64,
    /// Calls that write and could not be asked for, because there was no room for more ids.
    pub without_id: u64,
}

/// Why a benchmark has no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The cluster cannot do it. Change what the sentence names.
    #[error(transparent)]
    Deploy(#[from] DeployError),
    /// A transaction met something that makes the run worthless.
    #[error("the run was stopped: {0}")]
    Fatal(String),
}

/// Runs `workload` on `deployment`.
///
/// # Errors
/// [`BenchError`] if there is nothing to report. A failed audit is reported, not an error.
pub fn run<D: Deployment, W: Workload>(
    deployment: &mut D,
    workload: W,
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<Outcome, BenchError> {
    run_by(deployment, workload, options, progress, |deployment, workload| {
        drive(deployment, workload, options, options.load.clone(), progress)
    })
}

/// As [`run`], with load from somewhere else: from `drive`, which returns when the last
/// transaction has ended.
///
/// # Errors
/// As [`run`], and what `drive` says.
pub fn run_by<D: Deployment, W: Workload>(
    deployment: &mut D,
    mut workload: W,
    options: &Options,
    progress: &Arc<Progress>,
    drive: impl FnOnce(&mut D, &Arc<W>) -> Result<Driven, BenchError>,
) -> Result<Outcome, BenchError> {
    let wall = Env::real(options.load.seed);
    progress.enter(Phase::Loading);
    let started = wall.now();
    let tables = load(deployment, &mut workload, &options.cluster)?;
    let load_s = wall.now().since(started).as_secs_f64();
    let workload = Arc::new(workload);

    progress.enter(Phase::Running);
    let (before, caches_before) = (deployment.traffic(), deployment.caches());
    let started = wall.now();
    let driven = drive(deployment, &workload)?;
    let wall_s = wall.now().since(started).as_secs_f64();
    let used = deployment.utilisation();
    let (traffic, caches) = (deployment.traffic() - before, deployment.caches() - caches_before);
    let simulation =
        used.map(|used| Simulation::new(&used, options.cluster.mns, traffic.verbs(), wall_s));
    let (memory, ownership) = (deployment.memory(), deployment.ownership());

    let mut checks = options.audit.then(Vec::new);
    if let Some(checks) = &mut checks {
        progress.enter(Phase::Auditing);
        checks.extend(workload.audit(deployment, &driven.tally.effects)?);
        checks.extend(workload.judge(&driven.tally.by_transaction));
        checks.extend(deployment.audit()?);
    }
    let mut floor = None;
    if options.floor {
        progress.enter(Phase::Floor);
        let (replay, check) = measure_floor(deployment, &workload, options, progress)?;
        checks.get_or_insert_default().push(check);
        floor = Some(replay);
    }
    Ok(Outcome {
        workload: W::NAME,
        transactions: W::TRANSACTIONS,
        settings: workload.settings(),
        rates: W::rates(&driven.tally.by_transaction, driven.elapsed_s),
        tally: driven.tally,
        load_s: Some(load_s),
        elapsed_s: driven.elapsed_s,
        traffic,
        caches,
        ownership,
        memory: Some(memory),
        audit: checks.map(Audit::new),
        floor,
        history: options.history.then(|| History::new(tables, driven.logs)),
        simulation,
        memory_nodes: None,
        unanswered: None,
        remarks: Vec::new(),
        stopped: None,
    })
}

/// Makes and fills the workload's tables; returns their names.
fn load<D: Deployment, W: Workload>(
    deployment: &mut D,
    workload: &mut W,
    cluster: &ClusterConfig,
) -> Result<Vec<(TableId, String)>, DeployError> {
    let mut tables = Vec::new();
    for spec in workload.tables(cluster) {
        let name = spec.name.clone().into_owned();
        tables.push((deployment.create_table(spec)?, name));
    }
    let ids: Vec<TableId> = tables.iter().map(|(id, _)| *id).collect();
    workload.attach(&ids);
    for (at, id) in ids.into_iter().enumerate() {
        let row = |row, value: &mut Vec<u8>| workload.row(at, row, value);
        deployment.load(id, workload.rows(at), &row)?;
    }
    Ok(tables)
}

/// What came of one run of the clients.
pub struct Driven {
    /// What they counted.
    pub tally: Tally,
    /// From the end of the warm-up to the end of the last transaction, in seconds.
    pub elapsed_s: f64,
    /// What they wrote down, if they were asked to.
    pub logs: Vec<Log>,
}

fn drive<D: Deployment, W: Workload>(
    deployment: &mut D,
    workload: &Arc<W>,
    options: &Options,
    load: LoadConfig,
    progress: &Arc<Progress>,
) -> Result<Driven, BenchError> {
    let run = Run::new(Arc::clone(workload), &options.cluster, load, Arc::clone(progress));
    let run = Arc::new(run);
    let history = options.history;
    let shared = Arc::clone(&run);
    deployment.run(run.tasks(), move |seat, host| {
        worker::task(Arc::clone(&shared), seat, host, history.then(Log::default))
    })?;
    if let Some(why) = run.failure() {
        return Err(BenchError::Fatal(why.clone()));
    }
    let mut tally = Tally::new(W::TRANSACTIONS.len());
    let mut logs = Vec::new();
    for worker in run.take_ended() {
        tally.merge(&worker.tally);
        logs.extend(worker.log);
    }
    let counts_from_ns = run.counts_from_ns().unwrap_or(tally.last_end_ns);
    let elapsed_s = tally.last_end_ns.saturating_sub(counts_from_ns) as f64 / 1e9;
    Ok(Driven { tally, elapsed_s, logs })
}

/// Records a short closed loop of the same generator and seed, and replays its verbs. The check
/// compares the replay with the very run that was recorded: aborts, and with them the verbs of a
/// committed transaction, differ from run to run.
fn measure_floor<D: Deployment, W: Workload>(
    deployment: &mut D,
    workload: &Arc<W>,
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<(Replay, Check), BenchError> {
    let options = Options { history: false, ..options.clone() };
    let short =
        LoadConfig { secs: RECORD_SECS, warmup_secs: 0.0, rate_tps: None, ..options.load.clone() };
    deployment.record_verbs();
    let before = deployment.traffic();
    let recorded = drive(deployment, workload, &options, short, progress)?;
    let traffic = deployment.traffic() - before;
    let replay = deployment.replay(options.load.secs.min(MOST_REPLAY_SECS))?;
    let check = compare_verbs(&recorded.tally, &traffic, &replay);
    Ok((replay, check))
}

/// Whether the floor sent as many verbs per transaction as the engine did.
fn compare_verbs(tally: &Tally, traffic: &Traffic, replay: &Replay) -> Check {
    let engine = traffic.verbs() as f64 / tally.all_committed.max(1) as f64;
    let floor = if replay.tps > 0.0 { replay.verbs_per_s / replay.tps } else { 0.0 };
    let passed = (floor - engine).abs() <= FLOOR_TOLERANCE * engine;
    let detail = format!("recorded {engine:.3}, replayed {floor:.3} verbs per transaction");
    Check::new("the floor replays as many verbs per transaction", passed, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_must_agree_within_two_per_cent() {
        let mut tally = Tally::new(1);
        tally.all_committed = 100;
        let traffic = Traffic { reads: 700, writes: 300, ..Traffic::default() };
        for (verbs_per_s, passed) in [(10_000.0, true), (10_190.0, true), (10_210.0, false)] {
            let check = compare_verbs(&tally, &traffic, &Replay { tps: 1000.0, verbs_per_s });
            assert_eq!(check.passed, passed, "{}", check.detail);
        }
    }
}
