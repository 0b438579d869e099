//! `lotus mn` and `lotus cn`: one node of a cluster, until a signal ends it.
//!
//! A daemon starts in any order with the others and waits for those that it needs. It says what it
//! does on its standard error, one line for each event, and how far it has come at the authority.

use std::sync::Arc;
use std::time::Duration;

use lotus::{Authority, Cluster, Machines, MemoryStanding, MemoryStatus, Threads};
use lotus_fabric::env::Env;
use lotus_fabric::shm::{Host, ShmFabric};
use lotus_fabric::tcp::TcpFabric;
use lotus_fabric::transport::Fabric;
use lotus_recovery::membership::{self, FIRST_EPOCH};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{error, info, warn};

use super::authority;
use super::file::{ClusterFile, Net};
use super::node::{Kind, Node};
use super::processes::{make_private, wait_until};
use super::records::{Record, Stage};
use super::seat::{self, Seat, Unreached};
use super::service::Service;

/// How long a node waits for those that it needs.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a compute node looks around.
const LOOK_AROUND: Duration = Duration::from_millis(200);

/// Runs a node until SIGTERM or SIGINT.
///
/// # Errors
/// A sentence that says why it cannot, or cannot any more.
pub fn run(file: &ClusterFile, node: Node) -> Result<(), String> {
    let count = match node.kind {
        Kind::Memory => file.settings.mns,
        Kind::Compute => file.settings.cns,
    };
    if usize::from(node.index) >= count {
        let (path, in_words) = (file.path.display(), node.in_words());
        return Err(format!("{path} describes no {in_words}: there are {count}, from 0 on"));
    }
    // A subscriber that is there already is as good.
    let _ = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).try_init();
    let signals = Signals::new([SIGTERM, SIGINT]).map_err(|error| sentence(&error))?;
    if let Net::Shm { directory } = &file.net {
        make_private(directory)?;
    }
    info!(%node, process = std::process::id(), version = env!("CARGO_PKG_VERSION"), "starting");
    let ended = match node.kind {
        Kind::Memory => memory(file, node, signals),
        Kind::Compute => compute(file, node, signals),
    };
    info!(%node, "ended");
    ended
}

fn sentence(error: &dyn std::fmt::Display) -> String {
    error.to_string()
}

/// The node's memory, for as long as this lives.
enum Memory {
    Shm(#[expect(dead_code, reason = "held")] Host),
    Tcp(#[expect(dead_code, reason = "held")] TcpFabric),
}

fn memory(file: &ClusterFile, node: Node, mut signals: Signals) -> Result<(), String> {
    let env = Env::real(0);
    let id = node.id(file);
    let _memory = match (&file.net, file.tcp(id.0).map_err(|error| sentence(&error))?) {
        (Net::Shm { directory }, _) => {
            let host = Host::start(directory, id, file.node_count(), &env);
            Memory::Shm(host.map_err(|error| sentence(&error))?)
        }
        (_, config) => {
            let config = config.expect("there are two fabrics");
            Memory::Tcp(TcpFabric::start(config, env.clone()).map_err(|error| sentence(&error))?)
        }
    };
    let serving = Record::of_this_process(Stage::Serving);
    // The first one hosts the authority of all, or begins its life in etcd.
    let hosted = if node.index == 0 {
        let hosted = seat::Host::start(file, &env, PATIENCE)?;
        serving.write(node, hosted.store()).map_err(|error| sentence(&error))?;
        Some(hosted)
    } else {
        let authority = connect(file, &env)?;
        serving.write(node, &authority).map_err(|error| sentence(&error))?;
        None
    };
    info!(%node, "serving");
    let signal = signals.forever().next();
    info!(signal, "told to end");
    if let Some(hosted) = hosted {
        hosted.end(file, &env);
    }
    Ok(())
}

/// Connects to the authority, which may start later than this.
fn connect(file: &ClusterFile, env: &Env) -> Result<Seat, String> {
    let authority = authority(file)?;
    let mut outcome = Ok(());
    wait_until(env, PATIENCE, || {
        outcome = authority.connect();
        !matches!(outcome, Err(Unreached::Silent(_)))
    });
    outcome.map_err(|error| sentence(&error))?;
    Ok(authority)
}

fn compute(file: &ClusterFile, node: Node, signals: Signals) -> Result<(), String> {
    #[cfg(feature = "fault-points")]
    super::fault_point::arm(node)?;
    let env = Env::real(0);
    let authority = Arc::new(connect(file, &env)?);
    let id = node.id(file);
    match (&file.net, file.tcp(id.0).map_err(|error| sentence(&error))?) {
        (Net::Shm { directory }, _) => {
            let fabric = ShmFabric::join(directory, file.node_count(), &env);
            let fabric = fabric.map_err(|error| sentence(&error))?;
            fabric.host(id).map_err(|error| sentence(&error))?;
            take_part(file, node, signals, authority, Threads::over(fabric, env))
        }
        (_, config) => {
            let config = config.expect("there are two fabrics");
            let fabric = TcpFabric::start(config, env.clone());
            let fabric = fabric.map_err(|error| sentence(&error))?;
            take_part(file, node, signals, authority, Threads::over(fabric, env))
        }
    }
}

fn await_memory(file: &ClusterFile, env: &Env, authority: &dyn Authority) -> Result<(), String> {
    let mut missing = None;
    let all_there = wait_until(env, PATIENCE, || {
        let memory = Node::all(file).filter(|node| node.kind == Kind::Memory);
        let serves = |node: &Node| {
            let record = Record::read(*node, authority).ok().flatten();
            record.is_some_and(|record| record.stage == Stage::Serving)
        };
        missing = memory.filter(|node| !serves(node)).last();
        missing.is_none()
    });
    match missing {
        Some(node) if !all_there => {
            Err(format!("{} does not serve after {PATIENCE:?}", node.in_words()))
        }
        _ => Ok(()),
    }
}

fn take_part<F: Fabric + Clone + 'static>(
    file: &ClusterFile,
    node: Node,
    mut signals: Signals,
    authority: Arc<Seat>,
    machines: Threads<F>,
) -> Result<(), String> {
    let index = usize::from(node.index);
    let env = machines.outside();
    // Only now: whoever is started by mistake beside the node has found its address in use.
    let starting = Record::of_this_process(Stage::Starting);
    starting.write(node, &*authority).map_err(|error| sentence(&error))?;
    await_memory(file, &env, &*authority)?;
    let builder = file.builder().part([index], Arc::clone(&authority) as _, PATIENCE);
    let cluster = Arc::new(builder.start_on(machines).map_err(|error| sentence(&error))?);
    let founded = cluster.has_founded();
    let restored = match &file.snapshots {
        Some(snapshots) if founded => snapshots.restore(&cluster, &*authority)?,
        _ => None,
    };
    if let Some(snapshot) = &restored {
        info!("restored the snapshot {}", snapshot.in_words());
    } else if let (true, Some(load)) = (founded, &file.load) {
        info!(workload = load.name(), "loading");
        let rows = load.carry_out(&cluster, &file.settings).map_err(|error| sentence(&error))?;
        info!(workload = load.name(), rows, "loaded");
    }
    if cluster.has_returned() {
        info!(%node, "taking part again, as a new incarnation");
    } else if index > 0 {
        await_founder(&env, &*authority)?;
    }
    let mut service = Service::start(file, node, &cluster, &(Arc::clone(&authority) as _))?;
    let serving = Record::of_this_process(Stage::Serving);
    serving.write(node, &*authority).map_err(|error| sentence(&error))?;
    info!(%node, "serving");
    let mut watch = Watch {
        authority: &*authority,
        epoch: FIRST_EPOCH,
        answered: true,
        silent: Vec::new(),
        lost: Vec::new(),
    };
    while signals.pending().next().is_none() {
        if !cluster.is_serving() {
            error!(%node, "expelled");
            let in_words = node.in_words();
            return Err(format!(
                "{in_words} was expelled: the others took it for dead. Start it again"
            ));
        }
        watch.look();
        watch.look_at_memory(&cluster, index);
        service.look(&*authority);
        wait_until(&env, LOOK_AROUND, || false);
    }
    info!("told to end");
    let ending = Record::of_this_process(Stage::Ending);
    if ending.write(node, &*authority).is_err() {
        warn!("the authority does not answer");
    }
    if !watch.silent.is_empty() {
        // What was begun waits for them, and may wait for ever.
        warn!("transactions are cut short: a memory node does not answer");
        std::mem::forget((service, cluster));
        return Ok(());
    }
    service.stop()?;
    end(cluster)
}

/// Waits until the first compute node has made and loaded all tables.
fn await_founder(env: &Env, authority: &dyn Authority) -> Result<(), String> {
    let founder = Node { kind: Kind::Compute, index: 0 };
    let has_loaded = wait_until(env, PATIENCE, || {
        let record = Record::read(founder, authority).ok().flatten();
        record.is_some_and(|record| record.stage != Stage::Starting)
    });
    let late = || format!("{} has not loaded the tables after {PATIENCE:?}", founder.in_words());
    has_loaded.then_some(()).ok_or_else(late)
}

/// Ends this node's part once its transactions have ended.
fn end<M: Machines>(cluster: Arc<Cluster<M>>) -> Result<(), String> {
    if let Err(error) = cluster.settle() {
        warn!(%error, "not settled");
    }
    // If a connection is still being closed, the cluster stops with it.
    let stopped = Arc::into_inner(cluster).map_or(Ok(()), Cluster::stop);
    stopped.map_err(|error| sentence(&error))
}

/// Says what becomes of the others.
struct Watch<'a> {
    authority: &'a dyn Authority,
    epoch: lotus_fabric::ids::Epoch,
    answered: bool,
    /// Memory nodes that do not answer.
    silent: Vec<usize>,
    /// Those that are lost.
    lost: Vec<usize>,
}

impl Watch<'_> {
    /// Says which memory nodes do not answer any more, or do again.
    fn look_at_memory<M: Machines>(&mut self, cluster: &Cluster<M>, compute_node: usize) {
        if !self.silent.is_empty() {
            cluster.look_for_memory();
        }
        let MemoryStatus { nodes, .. } = cluster.memory_known(compute_node);
        let lost: Vec<usize> =
            (0..nodes.len()).filter(|node| nodes[*node] == MemoryStanding::Lost).collect();
        for node in lost.iter().filter(|node| !self.lost.contains(node)) {
            error!("memory node {node} is lost: all goes on without it, with fewer copies");
        }
        for node in self.lost.iter().filter(|node| !lost.contains(node)) {
            info!("memory node {node} is back, and is given what it missed");
        }
        let silent = cluster.silent_memory(compute_node);
        for node in silent.iter().filter(|node| !self.silent.contains(node)) {
            error!("memory node {node} does not answer: nothing can be written without it");
        }
        let kept = self.silent.iter().filter(|node| !lost.contains(node));
        for node in kept.filter(|node| !silent.contains(node)) {
            info!("memory node {node} answers again");
        }
        (self.silent, self.lost) = (silent, lost);
    }

    fn look(&mut self) {
        let members = membership::read(self.authority);
        if members.is_ok() != self.answered {
            self.answered = members.is_ok();
            match self.answered {
                true => info!("the authority answers again"),
                false => warn!("the authority does not answer"),
            }
        }
        let Ok(now) = members else { return };
        if now.epoch() > self.epoch {
            self.epoch = now.epoch();
            let expelled: Vec<u16> = now.expelled().map(|(member, _)| member.node.0).collect();
            let lost: Vec<u16> = now.lost_memory().iter().map(|lost| lost.node.0).collect();
            warn!(epoch = self.epoch.0, ?expelled, ?lost, "the membership has changed");
        }
    }
}
