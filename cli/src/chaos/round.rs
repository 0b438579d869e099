//! One round of load. Until the time is up, the workload's transactions are called and a table
//! grows, while nodes are struck and hostile clients run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lotus_benchmarks::harness::BenchError;
use lotus_benchmarks::on_lotus::OnLotus;
use lotus_fabric::env::Env;
use lotus_fabric::ids::TableId;

use super::callers::{CallerResults, Callers};
use super::copies::Copies;
use super::hostile::{HostileClients, HostileResults};
use super::inserters::{Growth, Inserters};
use super::memory_samples::MemorySamples;
use super::pacer::SchedulePacer;
use super::striker::{self, Nodes, StrikeRecord};
use crate::apps::connect::{attach, connect};
use crate::config::load::Use;
use lotus_node::config::file::ClusterFile;
use lotus_runner::applications::load::failed;

/// Settings of a round.
pub struct Driving<'a> {
    pub file: &'a ClusterFile,
    pub nodes: &'a Nodes,
    /// Clock of the callers, and seed of random choices.
    pub clock: &'a Env,
    /// Number of earlier restores of the cluster.
    pub life: u32,
    /// Duration of the load in this round, and in all rounds together.
    pub span: Duration,
    pub all: Duration,
    pub pacer: SchedulePacer,
    pub copies: Copies,
    pub growth: Growth,
    /// Whether calls report the rows read and written.
    pub traced: bool,
    /// Number of hostile clients.
    pub hostile: usize,
}

/// Result of a round.
pub struct Driven {
    pub workload: &'static str,
    pub seen: CallerResults,
    pub tables: Vec<(TableId, String)>,
    pub struck: StrikeRecord,
    pub copies: Copies,
    pub growth: Growth,
    pub attack: AttackResults,
}

/// Results of hostile clients, and the nodes' memory use during the attack.
pub struct AttackResults {
    pub results: HostileResults,
    pub memory_samples: MemorySamples,
}

impl Use for Driving<'_> {
    type Outcome = Result<Driven, String>;

    fn of<W: OnLotus>(self, mut workload: W) -> Self::Outcome {
        let Self { file, nodes, clock, life, span, all, pacer, copies, growth, traced, hostile } =
            self;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let authority = lotus_node::agree::cluster_authority::authority(file)?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            let memory_samples = MemorySamples::of(file, nodes);
            let watching = scope.spawn(|| memory_samples.watch(nodes, &stop));
            let driven = runtime.block_on(async {
                let client = connect(file).await?;
                let tables = attach(&client, &mut workload, file)?;
                let workload = Arc::new(workload);
                let inserters = Inserters::ready(&client, file, clock, growth).await?;
                let until = clock.now().after(span);
                let room = file.calls.rows as f64 * f64::from(file.calls.row_bytes);
                let callers = Callers {
                    workload,
                    clock: clock.clone(),
                    until,
                    span: all,
                    traced,
                    room,
                    life,
                };
                let struck =
                    scope.spawn(|| striker::strike(nodes, &authority, pacer, span, copies));
                let attackers = HostileClients::of(file, hostile, clock.clone(), until);
                let attackers = attackers.map(|hostile| scope.spawn(|| hostile.run()));
                let attackers = attackers.map_err(|why| failed(&why))?;
                let growing = inserters.grow(&client, until, all);
                let (seen, growth) = tokio::try_join!(callers.call(&client), growing)?;
                Ok((seen, growth, tables, struck, attackers))
            });
            let driven = driven.map_err(|error: BenchError| error.to_string());
            let (seen, growth, tables, struck, attackers) = driven?;
            let struck =
                struck.join().map_err(|_| "the thread that strikes has panicked".to_owned())?;
            let results =
                attackers.join().map_err(|_| "a hostile client has panicked".to_owned())?;
            stop.store(true, Ordering::Relaxed);
            let memory_samples = watching.join().map_err(|_| "who looks at memory has panicked")?;
            let (struck, copies) = struck?;
            let attack = AttackResults { results: results?, memory_samples };
            Ok(Driven { workload: W::NAME, seen, tables, struck, copies, growth, attack })
        })
    }
}

/// Sets the flag when dropped, so that polling threads end whichever way a run ends.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
