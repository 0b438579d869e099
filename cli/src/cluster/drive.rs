//! `lotus bench --cluster`: applications drive a running cluster through the client library.
//!
//! The cluster is what it is, and so is its data: sizes come from its file. What is measured is
//! what applications see. The nodes are asked for what only they know (`errands`): what they have
//! sent and aborted, and whether the data is as it must be.
//!
//! What all benchmarks have done to the balances stands in the cluster's `ledger`.

use std::sync::Arc;
use std::time::Duration;

use lotus_benchmarks::audit::{Audit, Check};
use lotus_benchmarks::config::ClusterConfig;
use lotus_benchmarks::deployment::{Caches, Memory, Ownership, Traffic};
use lotus_benchmarks::harness::{BenchError, Driven, Options, Outcome};
use lotus_benchmarks::progress::{Phase, Progress};
use lotus_benchmarks::workload::Workload;
use lotus_client::{Client, Config};
use lotus_fabric::env::Env;
use lotus_fabric::ids::TableId;
use lotus_recovery::membership;
use lotus_router::Authority;

use super::authority;
use super::errands::{Counted, Done, Errand, ask};
use super::file::{ClusterFile, Net};
use super::ledger::{self, Ledger};
use super::load::{Load, SEED};
use super::node::{Kind, Node};
use super::shards::silent_memory;
use crate::applications::{self, failed, local_address};
use crate::args::{BenchArgs, WorkloadArgs};

/// How long a node may take to settle and count.
const COUNTING: Duration = Duration::from_secs(30);
/// How long a node may take to look at all data.
pub const AUDITING: Duration = Duration::from_secs(600);
/// Requests in flight, unless somebody says otherwise.
const IN_FLIGHT: usize = 64;

/// The arguments of a benchmark, with the sizes that the cluster was loaded with.
///
/// # Errors
/// A sentence: the cluster has nothing of that workload.
pub fn sized(file: &ClusterFile, args: &mut BenchArgs) -> Result<(), String> {
    match (&mut args.workload, &file.load) {
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
    // What the data was made of.
    args.common_mut().seed = SEED;
    Ok(())
}

/// Drives a running cluster.
///
/// # Errors
/// It does not answer, or not as it should.
pub fn drive<W: Workload>(
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
    // Who is out answers nobody; those who are left have its shards.
    let now = membership::read(&authority).map_err(|error| failed(&error))?;
    let serves = |node: &Node| node.kind == Kind::Compute && now.is_live(node.id(file));
    let nodes: Vec<Node> = Node::all(file).filter(serves).collect();

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(&error))?;
    let client = runtime.block_on(connect(file))?;
    attach(&client, &mut workload, file)?;
    let workload = Arc::new(workload);

    if let Some(node) = silent_memory(&authority, &nodes) {
        return Err(refuse(format!("{} does not answer", node.in_words())));
    }
    let before = count(&authority, &nodes)?;
    ledger::open(&authority).map_err(|error| failed(&error))?;
    progress.enter(Phase::Running);
    let load = applications::Load {
        workload: Arc::clone(&workload),
        options: options.clone(),
        clock: Env::real(options.load.seed),
        progress: Arc::clone(progress),
    };
    let in_flight = options.load.in_flight.unwrap_or(IN_FLIGHT);
    let driven = runtime.block_on(load.generate(&client, in_flight));
    let Driven { mut tally, elapsed_s, .. } =
        driven.map_err(|error| explain(error, &authority, &nodes))?;
    let ledger = ledger::close(&authority, &tally.effects).map_err(|error| failed(&error))?;
    let after = count(&authority, &nodes)?;

    let (mut traffic, mut ownership) = (Traffic::default(), Ownership::default());
    for (after, before) in after.into_iter().zip(&before) {
        traffic = [traffic, after.traffic - before.traffic].into_iter().sum();
        after.aborts.since(&before.aborts).add_to(&mut tally);
        ownership += after.ownership.since(before.ownership);
    }
    let audit = if options.audit {
        progress.enter(Phase::Auditing);
        Some(audit::<W>(&authority, nodes[0], ledger, &*workload, &tally)?)
    } else {
        None
    };
    Ok(Outcome {
        workload: W::NAME,
        transactions: W::TRANSACTIONS,
        settings: workload.settings(),
        rates: W::rates(&tally.by_transaction, elapsed_s),
        tally,
        load_s: 0.0,
        elapsed_s,
        traffic,
        caches: Caches::default(),
        ownership,
        memory: Memory::default(),
        audit,
        floor: None,
        history: None,
        simulation: None,
        memory_nodes: None,
    })
}

/// Names memory nodes that do not answer, which applications cannot see.
fn explain(error: BenchError, authority: &dyn Authority, nodes: &[Node]) -> BenchError {
    match (error, silent_memory(authority, nodes)) {
        (BenchError::Fatal(why), Some(node)) if !why.contains(&node.in_words()) => {
            BenchError::Fatal(format!("{why}; {} does not answer", node.in_words()))
        }
        (error, _) => error,
    }
}

/// The shape of a cluster, for reports.
pub fn shape(file: &ClusterFile) -> ClusterConfig {
    file.settings.clone()
}

/// Tells a workload where its tables are. Their names.
///
/// # Errors
/// The cluster has no such table.
pub fn attach<W: Workload>(
    client: &Client,
    workload: &mut W,
    file: &ClusterFile,
) -> Result<Vec<(TableId, String)>, BenchError> {
    let specs = workload.tables(&file.settings).into_iter();
    let missing = |name: &str| failed(&format!("the cluster has no table {name}"));
    let table = |name: &str| client.table(name).ok_or_else(|| missing(name));
    let tables = specs.map(|spec| Ok((table(&spec.name)?, spec.name.into_owned())));
    let tables: Vec<(TableId, String)> = tables.collect::<Result<_, BenchError>>()?;
    workload.attach(&tables.iter().map(|(table, _)| *table).collect::<Vec<_>>());
    Ok(tables)
}

/// Connects to a running cluster as an application.
///
/// # Errors
/// No compute node lets it in.
pub async fn connect(file: &ClusterFile) -> Result<Client, BenchError> {
    let mut config = Config::new("");
    config.servers = addresses(file);
    config.security = file.as_application().map_err(|error| failed(&error))?;
    Client::connect(config).await.map_err(|error| failed(&error))
}

/// Where a cluster's compute nodes serve applications: on this host first, if they are here.
pub fn addresses(file: &ClusterFile) -> Vec<String> {
    let here = match &file.net {
        Net::Shm { directory } => {
            (0..file.compute_nodes.len()).map(|node| local_address(directory, node)).collect()
        }
        Net::Tcp { .. } => Vec::new(),
    };
    let servers = file.compute_nodes.iter().filter_map(|node| node.client);
    here.into_iter().chain(servers.map(|address| address.to_string())).collect()
}

fn count(authority: &dyn Authority, nodes: &[Node]) -> Result<Vec<Counted>, BenchError> {
    let count = |node: &Node| match ask(authority, *node, Errand::Count, COUNTING) {
        Ok(Done::Counted(counted)) => Ok(counted),
        Ok(_) => Err(failed(&format!("{} has counted nothing", node.in_words()))),
        Err(why) => Err(failed(&why)),
    };
    nodes.iter().map(count).collect()
}

fn audit<W: Workload>(
    authority: &dyn Authority,
    node: Node,
    ledger: Ledger,
    workload: &W,
    tally: &lotus_benchmarks::stats::Tally,
) -> Result<Audit, BenchError> {
    let mut checks = match ask(authority, node, Errand::Audit(ledger.effects), AUDITING) {
        Ok(Done::Audited(checks)) => checks,
        Ok(_) => return Err(failed(&format!("{} has looked at nothing", node.in_words()))),
        Err(why) => return Err(failed(&why)),
    };
    checks.extend(workload.judge(&tally.by_transaction));
    if ledger.open > 0 {
        let why = format!(
            "{} benchmarks of this cluster run still or were cut short, and what they did to the \
             balances is not known",
            ledger.open
        );
        checks.push(Check::new("all benchmarks have ended", false, why));
    }
    Ok(Audit::new(checks))
}
