//! `lotus bench --cluster`: applications drive a running cluster through the client library.
//!
//! The cluster and its data are used as found: sizes come from the cluster's file. Applications
//! measure throughput and latency. The nodes add counts that applications cannot see
//! (`node_tasks`), of sends and aborts, and audit the data.
//!
//! The cluster's `ledger` keeps the effects of all benchmarks on the balances.
//!
//! # Lost nodes
//! Read-write calls have ids, so that the outcomes of unanswered calls can be looked up when the
//! load has ended. A killed node has lost its counts: the report names the node. The data is
//! audited when recovery has settled everything. Checks that cannot be judged are reported as not
//! judged, which is no failure, unless the last copies of some rows are lost.

use std::sync::Arc;
use std::time::Duration;

use lotus::{MemoryStanding, MemoryStatus};
use lotus_authority::Authority;
use lotus_benchmarks::audit::{Audit, Check};
use lotus_benchmarks::deployment::{Caches, Ownership, Traffic};
use lotus_benchmarks::harness::{BenchError, Driven, Options, Outcome};
use lotus_benchmarks::on_lotus::OnLotus;
use lotus_benchmarks::progress::{Phase, Progress};
use lotus_benchmarks::stats::Tally;
use lotus_benchmarks::workload::Workload;
use lotus_fabric::env::{Env, Nanos};
use lotus_recovery::membership;

use crate::apps::connect::{attach, connect};
use crate::apps::ledger::{self, Ledger};
use crate::apps::node_tasks::{self, Counted, Done, NodeTask};
use crate::config::load::{Load, SEED};
use crate::operate::status::memory_left;
use lotus_node::agree::cluster_authority::{ClusterAuthority, authority};
use lotus_node::agree::records::{Record, Stage};
use lotus_node::config::file::ClusterFile;
use lotus_node::config::name::{NodeKind, NodeName};
use lotus_node::host::polling::wait_until;
use lotus_node::host::processes::Process;
use lotus_node::requests::copier::serving;
use lotus_node::requests::operator::{self, silent_memory};
use lotus_runner::applications::load::{self, Generated, Ids, failed};
use lotus_runner::applications::requests::Requests;
use lotus_runner::args::{BenchArgs, WorkloadArgs};
use lotus_runner::bench::Place;

/// Time limit for a node to settle and count.
const COUNTING: Duration = Duration::from_secs(30);
/// Time limit for the recovery of lost compute nodes.
const SETTLING: Duration = Duration::from_secs(60);
/// Default number of requests in flight.
const IN_FLIGHT: usize = 64;

/// Sets a benchmark's arguments to the sizes with which the cluster was loaded.
///
/// # Errors
/// A sentence: the cluster was loaded with another workload, or with none.
pub fn sized(file: &ClusterFile, args: &mut BenchArgs) -> Result<(), String> {
    let load = Load::of(file).map_err(|error| error.to_string())?;
    match (&mut args.workload, &load) {
        (WorkloadArgs::Kvs(args), Some(Load::Kvs { keys })) => args.keys = *keys,
        (WorkloadArgs::Smallbank(args), Some(Load::SmallBank { accounts })) => {
            args.accounts = *accounts;
        }
        (WorkloadArgs::Tatp(args), Some(Load::Tatp { subscribers })) => {
            args.subscribers = *subscribers;
        }
        (WorkloadArgs::Tpcc(args), Some(load @ Load::Tpcc { .. })) => {
            let Load::Tpcc { warehouses, customers_per_district, items } = load else {
                return Ok(());
            };
            args.warehouses = *warehouses;
            args.customers_per_district = *customers_per_district;
            args.items = *items;
        }
        (_, Some(load)) => {
            let (path, name) = (file.path.display(), load.name());
            return Err(format!("the cluster of {path} is loaded with {name}"));
        }
        (_, None) => {
            return Err(format!("the cluster of {} is loaded with nothing", file.path.display()));
        }
    }
    // Seed of the loaded data.
    args.workload.common_mut().seed = SEED;
    Ok(())
}

/// Before waiting for nodes, checks that a compute node answers, and that no memory node is silent.
fn check_alive(authority: &dyn Authority, nodes: &[NodeName]) -> Result<(), String> {
    // A process known to have ended is not waited for.
    let is_gone = |node: NodeName| {
        let record = Record::read(node, authority).ok().flatten();
        record.is_none_or(|record| record.runs() == Some(false))
    };
    let said = operator::figures_of_living(authority, nodes, is_gone);
    if said.iter().all(Option::is_none) {
        let names: Vec<String> = nodes.iter().map(|node| node.in_words()).collect();
        return Err(match names.is_empty() {
            true => "no compute node takes part in the cluster".to_owned(),
            false => format!("{} does not answer: the cluster is dead", names.join(", ")),
        });
    }
    match operator::silent_among(said.iter().flatten()) {
        Some(node) => Err(format!("{} does not answer", node.in_words())),
        None => Ok(()),
    }
}

/// A running cluster.
pub(super) struct RunningCluster<'a>(pub &'a ClusterFile);

impl Place for RunningCluster<'_> {
    fn adapt(&self, options: &mut Options) {
        options.cluster = crate::config::shape(self.0);
    }

    fn run<W: OnLotus>(
        &self,
        workload: W,
        options: &Options,
        progress: &Arc<Progress>,
    ) -> Result<Outcome, BenchError> {
        drive(self.0, workload, options, progress)
    }
}

/// Drives a running cluster, and reports the outcome, even if nodes are lost meanwhile.
///
/// # Errors
/// The cluster does not answer, or answers wrongly, before the load begins.
fn drive<W: Workload>(
    file: &ClusterFile,
    mut workload: W,
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<Outcome, BenchError> {
    let refuse = |why: String| failed(&why);
    if !file.serves_applications() {
        let path = file.path.display();
        return Err(refuse(format!("{path} gives compute nodes no client address")));
    }
    let authority = authority(file).map_err(refuse)?;
    authority.connect().map_err(|error| failed(&error))?;
    // An expelled node does not answer; its heirs own its shards.
    let now = membership::read(&authority).map_err(|error| failed(&error))?;
    let serves = |node: &NodeName| node.kind == NodeKind::Compute && now.is_live(node.id(file));
    let nodes: Vec<NodeName> = NodeName::all(file).filter(serves).collect();

    check_alive(&authority, &nodes).map_err(refuse)?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(&error))?;
    let client = runtime.block_on(connect(file))?;
    attach(&client, &mut workload, file)?;
    let workload = Arc::new(workload);

    let before = nodes.iter().map(|node| {
        let counted = Count::take(file, &authority, *node);
        counted.map_err(|why| refuse(format!("{} cannot be counted: {why}", node.in_words())))
    });
    let before = before.collect::<Result<Vec<_>, _>>()?;
    let clock = Env::real(options.load.seed);
    let room = ledger::room_for_ids(&authority, &file.calls, clock.now());
    let room = room.and_then(|room| ledger::open(&authority).map(|_| room));
    let ids = Some(Ids::new(clock.now().0, room.map_err(|error| failed(&error))?));
    progress.enter(Phase::Running);
    let load = load::Load {
        requests: Arc::clone(&workload) as Arc<dyn Requests>,
        options: options.clone(),
        clock: clock.clone(),
        progress: Arc::clone(progress),
        ids,
    };
    let in_flight = options.load.in_flight.unwrap_or(IN_FLIGHT);
    let generated = runtime.block_on(load.generate(&client, in_flight));
    let ended = clock.now();
    Ok(FinishedLoad { file, authority: &authority, before, options, progress }
        .report(&*workload, generated, ended))
}

/// Counts of one life of a compute node.
struct Count {
    node: NodeName,
    life: Option<(Process, String)>,
    counted: Counted,
}

impl Count {
    /// Asks a node for its counts while the node takes part.
    ///
    /// # Errors
    /// The reason, as the end of a sentence.
    fn take(file: &ClusterFile, authority: &dyn Authority, node: NodeName) -> Result<Self, String> {
        let sentence = |error: &dyn std::fmt::Display| error.to_string();
        let life = Record::read(node, authority).map_err(|error| sentence(&error))?;
        let asked = node_tasks::mailbox(node).put(authority, &NodeTask::Count, COUNTING);
        let asked = asked.map_err(|error| sentence(&error))?;
        let is_out = || membership::read(authority).is_ok_and(|now| !now.is_live(node.id(file)));
        let is_answered = || asked.is_answered::<Done>(authority);
        wait_until(&Env::real(0), COUNTING, || is_answered() || is_out());
        if !is_answered() {
            let silent = || format!("it does not answer after {COUNTING:?}");
            return Err(if is_out() { "it was expelled".to_owned() } else { silent() });
        }
        let life = life.map(|record| (record.process, record.space));
        match asked.wait(authority, Duration::ZERO)? {
            Done::Counted(counted) => Ok(Self { node, life, counted }),
            Done::Failed(why) => Err(why),
            Done::Audited(_) => Err("it has counted nothing".to_owned()),
        }
    }
}

/// The cluster when the load has ended.
struct FinishedLoad<'a> {
    file: &'a ClusterFile,
    authority: &'a ClusterAuthority,
    before: Vec<Count>,
    options: &'a Options,
    progress: &'a Progress,
}

impl FinishedLoad<'_> {
    fn report<W: Workload>(&self, workload: &W, generated: Generated, ended: Nanos) -> Outcome {
        let Generated { driven, unanswered, ids, stopped } = generated;
        let Driven { mut tally, elapsed_s, .. } = driven;
        let mut remarks = Vec::new();
        let entered = ledger::close(self.authority, &tally.effects).and_then(|ledger| {
            ledger::use_ids(self.authority, &self.file.calls, ended, ids).map(|()| ledger)
        });
        let (traffic, ownership) = self.count(&mut tally, &mut remarks);
        let audit = self.options.audit.then(|| {
            self.progress.enter(Phase::Auditing);
            let ledger = entered.map_err(|error| error.to_string());
            let checks = ledger.and_then(|ledger| self.audit(ledger, workload, &tally));
            let open = |why| vec![Check::not_judged("all data", why)];
            Audit::new(checks.unwrap_or_else(open))
        });
        let nodes: Vec<NodeName> = self.before.iter().map(|count| count.node).collect();
        Outcome {
            workload: W::NAME,
            transactions: W::TRANSACTIONS,
            settings: workload.settings(),
            rates: W::rates(&tally.by_transaction, elapsed_s),
            tally,
            load_s: None,
            elapsed_s,
            traffic,
            caches: Caches::default(),
            ownership,
            memory: None,
            audit,
            floor: None,
            history: None,
            simulation: None,
            memory_nodes: None,
            unanswered: Some(unanswered),
            remarks,
            stopped: stopped
                .map(|error| explain(&error, self.authority, &nodes))
                .or_else(|| self.last_copies_lost()),
        }
    }

    /// Adds the nodes' counts to `tally`, and remarks on nodes whose counts are missing.
    fn count(&self, tally: &mut Tally, remarks: &mut Vec<String>) -> (Traffic, Ownership) {
        let (mut traffic, mut ownership) = (Traffic::default(), Ownership::default());
        for Count { node, life, counted: before } in &self.before {
            let after = Count::take(self.file, self.authority, *node);
            let after = after.and_then(|after| match after.life == *life {
                true => Ok(after.counted),
                false => Err("it was started anew".to_owned()),
            });
            match after {
                Ok(after) => {
                    traffic = [traffic, after.traffic - before.traffic].into_iter().sum();
                    after.aborts.since(&before.aborts).add_to(tally);
                    ownership += after.ownership.since(before.ownership);
                }
                Err(why) => {
                    let whose = node.in_words();
                    remarks.push(format!("verbs, locks and aborts of {whose}: {why}"));
                }
            }
        }
        (traffic, ownership)
    }

    /// Has a compute node audit all data, once recovery has settled the remains of lost nodes.
    fn audit<W: Workload>(
        &self,
        ledger: Ledger,
        workload: &W,
        tally: &Tally,
    ) -> Result<Vec<Check>, String> {
        let (file, authority) = (self.file, self.authority);
        let settled = wait_until(&Env::real(0), SETTLING, || {
            let is_gone = |node: &NodeName| !self.lives(*node);
            membership::read(authority).is_ok_and(|now| {
                let mut gone = self.before.iter().map(|count| count.node).filter(is_gone);
                now.may_resume() && now.may_adopt() && gone.all(|node| !now.is_live(node.id(file)))
            })
        });
        if !settled {
            return Err("what a compute node has left is not settled".to_owned());
        }
        let serving = serving(file, authority)?;
        if let Some(node) = silent_memory(authority, &serving) {
            return Err(format!("{} does not answer", node.in_words()));
        }
        let effects = ledger.to_judge();
        let mut checks = node_tasks::audit(file, authority, &serving, serving[0], effects)?;
        checks.extend(workload.judge(&tally.by_transaction));
        if ledger.open > 0 {
            let why = format!(
                "{} benchmarks of this cluster run still or were cut short, and what they did to \
                 the balances is not known",
                ledger.open
            );
            checks.push(Check::not_judged("all benchmarks have ended", why));
        }
        Ok(checks)
    }

    /// Reason why the load does not count as complete, although applications saw only passing
    /// faults: at the end, some rows were out of reach.
    fn last_copies_lost(&self) -> Option<String> {
        let now = membership::read(self.authority).ok()?;
        let MemoryStatus { nodes, .. } = memory_left(self.file, &now)?;
        let index = nodes.iter().position(|node| *node == MemoryStanding::OutOfReach)?;
        Some(format!("the last copies of some rows are lost with memory node {index}"))
    }

    /// Whether the process that last reported for a node is serving, and alive as far as this host
    /// can see.
    fn lives(&self, node: NodeName) -> bool {
        let record = Record::read(node, self.authority).ok().flatten();
        record.is_some_and(|record| record.stage == Stage::Serving && record.runs() != Some(false))
    }
}

/// Reason for the early end of the load. Names memory nodes that do not answer, since applications
/// cannot see memory nodes.
fn explain(error: &BenchError, authority: &dyn Authority, nodes: &[NodeName]) -> String {
    let why = match error {
        BenchError::Fatal(why) => why.clone(),
        error => error.to_string(),
    };
    match silent_memory(authority, nodes) {
        Some(node) if !why.contains(&node.in_words()) => {
            format!("{why}; {} does not answer", node.in_words())
        }
        _ => why,
    }
}
