//! A node of a cluster, until a signal ends the node.
//!
//! Nodes start in any order. A node waits for the nodes that it needs, logs a line per event to
//! standard error, and reports its stage at the authority.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lotus::{Authority, Cluster, ClusterError, Data, LoadWatch, Threads, Wait};
use lotus_authority::AuthorityError;
use lotus_fabric::env::Env;
use lotus_fabric::ids::NodeId;
use lotus_fabric::shm::ShmFabric;
use lotus_fabric::tcp::TcpFabric;
use lotus_points::point_here;
use lotus_recovery::membership::{self, MembershipError};
use tracing::{error, info, warn};

use super::founding::is_founded;
use super::lives::{AuthorityAccess, AuthorityBond};
use super::log;
use super::memory::Memory;
use super::refusal_log::{Counts, RefusalLog};
use super::service::Service;
use super::standing::{Follower, MemoryNodeState, SharedState};
use super::watch::Watch;
use crate::agree::cluster_authority::{self, AuthorityUnreachable, ClusterAuthority, authority};
use crate::agree::records::{self, Record, Stage};
use crate::agree::rest::Rest;
use crate::agree::terms::Terms;
use crate::application::{Application, create_missing};
use crate::config::file::{ClusterFile, Net};
use crate::config::name::{NodeKind, NodeName};
use crate::host::polling::wait_until;
use crate::host::processes::{StateFolder, make_private};
use crate::host::stop::{LoggedWait, StartupEnd, Stop, Waited};
use crate::host::{descriptors, memory};
use crate::snapshots::initial_data::InitialData;
use crate::snapshots::marker::Marker;

/// Time for which a node waits for other nodes.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Remedy for an awaited node.
const STARTED_THERE: &str = "if it has not been started, start it on its host";
/// Polling interval of a compute node.
const LOOK_AROUND: Duration = Duration::from_millis(200);

/// Polls between two looks for tables created by other nodes. Transactions and clients that need a
/// new table make the node look at once; metrics and operators can wait.
const TURNS_PER_LOOK_FOR_TABLES: u32 = 25;

/// Polls of a wait, at fifty polls a second, between two looks for an operator's questions:
/// `lotus cluster status` waits for the answer.
const POLLS_PER_GLANCE: u32 = 2;

/// Interval at which a memory node checks for refused connections, and whether it is still in use:
/// its only periodic work.
const LOOK_AT_PORTS: Duration = Duration::from_secs(2);

/// Runs a node until SIGTERM or SIGINT.
///
/// # Errors
/// A sentence that says why the node cannot run, or go on.
pub(crate) fn run(
    file: &ClusterFile,
    node: NodeName,
    application: &dyn Application,
) -> Result<(), String> {
    let count = match node.kind {
        NodeKind::Memory => file.settings.memory_nodes,
        NodeKind::Compute => file.settings.compute_nodes,
    };
    if usize::from(node.index) >= count {
        let (path, in_words) = (file.path.display(), node.in_words());
        return Err(format!("{path} describes no {in_words}: there are {count}, from 0 on"));
    }
    // Dropped last: the log lines come before the sentence with which the process ends.
    let _written = log::start();
    let env = Env::real(0);
    let stop = Stop::listen(&env).map_err(|error| sentence(&error))?;
    descriptors::provide(file, node)?;
    if let Net::Shm { directory } = &file.net {
        make_private(directory)?;
    }
    #[cfg(feature = "fault-points")]
    crate::host::fault_point::arm(Some(node))?;
    info!(%node, process = std::process::id(), version = env!("CARGO_PKG_VERSION"), "starting");
    let record = Record::of_this_process(Stage::Starting)?;
    let daemon = Daemon { file, node, application, env, stop, record };
    let ended = daemon.await_names().and_then(|()| match node.kind {
        NodeKind::Memory => daemon.lend_memory(),
        NodeKind::Compute => daemon.compute(),
    });
    info!(%node, "ended");
    match ended {
        Ok(()) | Err(StartupEnd::Told) => Ok(()),
        Err(StartupEnd::Failed(why)) => Err(why),
    }
}

fn sentence(error: &dyn std::fmt::Display) -> String {
    error.to_string()
}

/// Error message: why a compute node does not take part. The remedy goes to the log, since `up`,
/// which shows the reason, has by then ended its nodes.
fn refusal(error: &ClusterError) -> String {
    if matches!(error, ClusterError::CutShort { .. }) {
        error!("lotus cluster down --no-snapshot ends this cluster, memory nodes too");
    }
    sentence(error)
}

/// The process of a node.
pub(super) struct Daemon<'a> {
    pub(super) file: &'a ClusterFile,
    pub(super) node: NodeName,
    application: &'a dyn Application,
    pub(super) env: Env,
    pub(super) stop: Stop,
    /// The node's first record for the authority.
    record: Record,
}

impl Daemon<'_> {
    /// Waits until all host names resolve; names may be created together with the hosts.
    fn await_names(&self) -> Result<(), StartupEnd> {
        let mut known = Ok(());
        self.stop.wait_until(&self.env, PATIENCE, || {
            known = self.file.look_up_names();
            known.as_ref().err().map(|unknown| unknown.to_string())
        })?;
        Ok(known.map_err(|unknown| sentence(&unknown))?)
    }

    fn lend_memory(mut self) -> Result<(), StartupEnd> {
        let (file, node) = (self.file, self.node);
        if let Some(warning) = memory::check_memory(file, 1)? {
            warn!("{warning}");
        }
        let shown = SharedState::default();
        // The authority is reached before memory is lent: compute nodes use all reachable memory,
        // and a node waiting for the authority gives up after a while, perhaps with the last
        // copies.
        if node.index == 0 {
            // Memory node 0 hosts the authority, or begins a life in etcd.
            let prepared = cluster_authority::Host::prepare(file, &self.env, PATIENCE, &self.stop)?;
            if let Some(authority) = prepared.running() {
                self.record.found = self.cluster_found(authority)?;
            }
            let memory = Memory::start(file, node, &self.env)?;
            let _metrics = memory.show(file, node, &shown, &self.env)?;
            self.is_here();
            let hosted = cluster_authority::Host::start(file, &self.env, prepared)?;
            self.lend_until_told(&AuthorityAccess::Host(&hosted), &memory, &shown)?;
            hosted.end(file, &self.env);
        } else {
            let authority = self.connect()?;
            self.record.found = self.cluster_found(&authority)?;
            let memory = Memory::start(file, node, &self.env)?;
            let _metrics = memory.show(file, node, &shown, &self.env)?;
            self.is_here();
            self.lend_until_told(&AuthorityAccess::Guest(&authority), &memory, &shown)?;
        }
        Ok(())
    }

    /// Epoch of the cluster existing before this process lends memory. Memory that is new to an
    /// existing cluster is made ready before use.
    fn cluster_found(&self, authority: &dyn Authority) -> Result<Option<u32>, StartupEnd> {
        self.ask(|| match membership::read(authority) {
            Ok(found) => Ok(Some(found.epoch().0)),
            Err(MembershipError::Authority(error)) => Err(error),
            Err(_) => Ok(None),
        })
    }

    /// Lends memory until the node is told to end, or was given up.
    fn lend_until_told(
        &mut self,
        access: &AuthorityAccess<'_>,
        memory: &Memory,
        shown: &SharedState,
    ) -> Result<(), StartupEnd> {
        let authority = access.authority();
        // The memory may already be in use, so a silent authority is no reason to give up.
        while let Err(StartupEnd::Failed(why)) = self.say(Stage::Serving, authority) {
            warn!("{why}");
        }
        point_here!(self.node.index, MemoryServing);
        info!(node = %self.node, "serving");
        let mut refusal_log = RefusalLog::default();
        let mut follower = Follower::new(self.node.id(self.file), self.env.now(), shown);
        let mut bond = AuthorityBond::default();
        let mut ended = Ok(());
        let mut told = false;
        while ended.is_ok() && !told {
            let counts = memory.counters().map(Counts::from).unwrap_or_default();
            refusal_log
                .look(Counts { at_the_authority: access.refused(), ..counts }, self.env.now());
            // Read before the membership.
            let lends = memory.is_in_use();
            if !lends {
                self.report_again(authority);
            }
            // Before the next question: a new authority would be taken for the cluster's own.
            bond.make(access, lends, &self.env);
            let members = membership::read(authority);
            if !self.stop.is_told() {
                bond.look(access);
            }
            if let Some(state) = follower.look(self.env.now(), lends, members) {
                ended = self.now_stands(state);
            }
            // Once a new cluster is founded here, stragglers of the earlier cluster have no effect.
            if access.is_called_by_an_earlier_life() && !self.ask(|| is_founded(authority))? {
                return Err(StartupEnd::Failed(
                    "the authority of a running cluster was here, and its state is gone: nodes of \
                     that cluster still run. lotus cluster down --no-snapshot on all hosts ends \
                     them, and lotus cluster up begins with the last snapshot, if there is one"
                        .to_owned(),
                ));
            }
            // Before its memory is in use, the node may be given up without having been used.
            let pause = if lends { LOOK_AT_PORTS } else { LOOK_AROUND };
            told = ended.is_ok() && self.stop.is_told_within(pause);
        }
        self.say_loss(authority);
        self.has_ended(authority);
        ended
    }

    /// Reports this unused memory node to an authority without a record of the node: a restarted
    /// authority, with a founder waiting for the record. Without an answer the next poll retries.
    fn report_again(&mut self, authority: &dyn Authority) {
        if !matches!(Record::read(self.node, authority), Ok(None)) {
            return;
        }
        self.record.found = match membership::read(authority) {
            Ok(found) => Some(found.epoch().0),
            Err(MembershipError::Authority(_)) => return,
            Err(_) => None,
        };
        let _ = self.record.at(Stage::Serving).write(self.node, authority);
    }

    /// Reports a change of the memory node's part.
    ///
    /// # Errors
    /// The node was given up, and its process is to end.
    fn now_stands(&self, state: MemoryNodeState) -> Result<(), StartupEnd> {
        let in_words = self.node.in_words();
        let has_authority = self.node.index == 0 && !self.file.authority.outlives_the_cluster();
        match state {
            MemoryNodeState::Starting | MemoryNodeState::Serving => info!("{in_words} takes part"),
            MemoryNodeState::Unknown => warn!("the authority does not answer"),
            MemoryNodeState::Waiting => warn!(
                "{in_words} was given up before this process began: it waits to be taken in again"
            ),
            // The node's end would end the whole cluster.
            MemoryNodeState::GivenUp if has_authority => error!(
                "{in_words} was given up, its memory is not used any more, and it goes on as the \
                 authority only: a restart of the whole cluster gives it a part again"
            ),
            MemoryNodeState::GivenUp => {
                error!(node = %self.node, "given up");
                return Err(StartupEnd::Failed(format!(
                    "{in_words} was given up: the compute nodes took it for dead, and its memory \
                     is out of date. Start it again"
                )));
            }
        }
        Ok(())
    }

    /// Asks the authority until it answers: peers may already count this node as a member, and the
    /// node's end would cost more than waiting.
    pub(super) fn ask<T>(
        &self,
        ask: impl FnMut() -> Result<T, AuthorityError>,
    ) -> Result<T, StartupEnd> {
        let mut wait = LoggedWait::new(&self.stop, &self.env);
        let waits = || wait.look("the authority to answer");
        match records::until_answered(&self.env, PATIENCE, waits, ask) {
            Err(AuthorityError::Unavailable) if self.stop.is_told() => Err(StartupEnd::Told),
            answer => answer.map_err(|error| StartupEnd::Failed(sentence(&error))),
        }
    }

    /// Reports the node's stage.
    fn say(&self, stage: Stage, authority: &dyn Authority) -> Result<(), StartupEnd> {
        self.ask(|| self.record.at(stage).write(self.node, authority))
    }

    /// Records this process on the host as the node's, once no second process is possible.
    fn is_here(&self) {
        if let Err(why) = StateFolder::look(self.file).remember_this_process(self.node) {
            warn!("lotus cluster status on this host knows this process by the authority: {why}");
        }
    }

    /// Restores the record of this serving node after a foreign overwrite: by a process that was
    /// started elsewhere as this node, found no place in the cluster, and left its own record.
    fn stand_by_record(&self, authority: &dyn Authority) {
        // Without an answer the next look retries.
        if matches!(self.record.at(Stage::Serving).stand(self.node, authority), Ok(true)) {
            warn!(node = %self.node, "another process was started as this node");
        }
    }

    fn has_ended(&self, authority: &dyn Authority) {
        if self.record.end(self.node, authority).is_err() {
            warn!("the authority does not answer");
        }
    }

    /// Connects to the authority, which may start after this node.
    fn connect(&self) -> Result<ClusterAuthority, StartupEnd> {
        let authority = authority(self.file)?;
        let mut outcome = Ok(());
        self.stop.wait_until(&self.env, PATIENCE, || {
            outcome = authority.connect();
            match &outcome {
                Err(AuthorityUnreachable::Silent(why)) => Some(format!("the authority: {why}")),
                _ => None,
            }
        })?;
        outcome.map_err(|error| sentence(&error))?;
        authority.follow(&self.env);
        Ok(authority)
    }

    fn compute(self) -> Result<(), StartupEnd> {
        let (file, node) = (self.file, self.node);
        let authority = Arc::new(self.connect()?);
        let id = node.id(file);
        let env = self.env.clone();
        match (&file.net, file.tcp(id.0).map_err(|error| sentence(&error))?) {
            (Net::Shm { directory }, _) => {
                let fabric = ShmFabric::join(directory, file.node_count(), &env);
                let fabric = fabric.map_err(|error| sentence(&error))?;
                fabric.host(id).map_err(|error| sentence(&error))?;
                self.take_part(authority, Threads::over(fabric, env), &Counts::default)
            }
            (_, config) => {
                let config = config.expect("there are two fabrics");
                let fabric = TcpFabric::start(config, env.clone());
                let fabric = fabric.map_err(|error| sentence(&error))?;
                let of = fabric.clone();
                let counts = move || of.counters(id).map(Counts::from).unwrap_or_default();
                self.take_part(authority, Threads::over(fabric, env), &counts)
            }
        }
    }

    fn take_part(
        &self,
        authority: Arc<ClusterAuthority>,
        machines: Threads,
        counts: &dyn Fn() -> Counts,
    ) -> Result<(), StartupEnd> {
        // Only now: by now a second process of this node would have failed on the address in use.
        self.is_here();
        self.say(Stage::Starting, &*authority)?;
        let started = self.start(&authority, machines);
        let outcome = started.and_then(|cluster| self.serve(&authority, cluster, counts));
        self.has_ended(&*authority);
        outcome
    }

    /// Waits until all memory nodes serve, except the nodes that the cluster has given up and goes
    /// on without. The log names all missing nodes at once.
    fn await_memory(&self, authority: &dyn Authority) -> Result<(), StartupEnd> {
        let mut missing = String::new();
        let waited = self.stop.wait_until(&self.env, PATIENCE, || {
            let memory = NodeName::all(self.file).filter(|node| node.kind == NodeKind::Memory);
            let members = membership::read(authority).ok();
            let given_up = |node: NodeId| {
                let mut lost = members.iter().flat_map(|now| now.lost_memory());
                lost.any(|lost| lost.node == node)
            };
            let serves = |node: &NodeName| {
                let record = Record::read(*node, authority).ok().flatten();
                record.is_some_and(|record| record.stage == Stage::Serving)
                    || given_up(node.id(self.file))
            };
            let absent: Vec<String> =
                memory.filter(|node| !serves(node)).map(NodeName::in_words).collect();
            missing = absent.join(", ");
            (!absent.is_empty()).then(|| format!("{missing} to serve: {STARTED_THERE}"))
        })?;
        match waited {
            Waited::Late => {
                Err(StartupEnd::Failed(format!("{missing} does not serve after {PATIENCE:?}")))
            }
            Waited::Holds => Ok(()),
        }
    }

    /// Waits until compute node 0 has created and filled all tables, as long as loading makes
    /// progress.
    fn await_data(&self, cluster: &Cluster) -> Result<(), StartupEnd> {
        let founder = NodeName::compute(0).in_words();
        let mut load = LoadWatch::new(PATIENCE);
        let mut found = Ok(Data::Loaded);
        self.stop.wait_until(&self.env, Duration::MAX, || {
            found = load.look(cluster);
            matches!(found, Ok(Data::Loading { .. }))
                .then(|| format!("{founder} to make and fill all tables"))
        })?;
        match found.map_err(|error| sentence(&error))? {
            Data::CutShort { why } => {
                Err(StartupEnd::Failed(refusal(&ClusterError::CutShort { why })))
            }
            _ => Ok(()),
        }
    }

    /// Joins the cluster; the founder creates and fills the cluster.
    fn start(
        &self,
        authority: &Arc<ClusterAuthority>,
        machines: Threads,
    ) -> Result<Arc<Cluster>, StartupEnd> {
        let (file, node) = (self.file, self.node);
        self.tell_what_there_is(&**authority)?;
        self.await_memory(&**authority)?;
        self.check_file(&**authority)?;
        let beginning = self.beginning(&**authority)?;
        if node.index == 0 && !self.ask(|| is_founded(&**authority))? {
            self.ask(|| Terms::of(file).write(&**authority))?;
        }
        authority.stay(&self.env);
        let index = usize::from(node.index);
        let logged_wait = Mutex::new(LoggedWait::new(&self.stop, &self.env));
        let look = move |wait| {
            let what = match wait {
                Wait::Recovery => "the others to settle what this node has left".to_owned(),
                Wait::Authority => "the authority to answer".to_owned(),
                Wait::Path { to } => format!(
                    "{} to be reached from here, and this node from there",
                    NodeName::compute(to as u16).in_words()
                ),
                _ => {
                    let founder = NodeName::compute(0).in_words();
                    format!("{founder} to make the cluster: {STARTED_THERE}")
                }
            };
            logged_wait.lock().unwrap_or_else(PoisonError::into_inner).look(&what)
        };
        let builder = file.builder().part([index], Arc::clone(authority) as _, PATIENCE);
        let cluster = builder.while_waiting(look).start_on(machines);
        let cluster = Arc::new(cluster.map_err(|error| match error {
            ClusterError::Interrupted => StartupEnd::Told,
            error => StartupEnd::Failed(refusal(&error)),
        })?);
        if cluster.has_returned() {
            info!(%node, "taking part again, as a new incarnation");
        }
        if cluster.has_founded() {
            let fill = || cluster.fill(|| self.fill(&cluster, &**authority, beginning.as_ref()));
            self.stop.or_end_at_once(fill)?.map_err(|error| refusal(&error))?;
        } else {
            self.await_data(&cluster)?;
            self.check_file(&**authority)?;
        }
        Ok(cluster)
    }

    /// Fills a new cluster with the newest snapshot, or else as the application does; then creates
    /// the missing tables of the file.
    fn fill(
        &self,
        cluster: &Cluster,
        authority: &dyn Authority,
        beginning: Option<&InitialData>,
    ) -> Result<(), String> {
        let notes = self.application.notes();
        let restored = match (&self.file.snapshots, beginning) {
            (Some(snapshots), Some(beginning)) => {
                snapshots.restore(cluster, authority, &*notes, beginning)?
            }
            _ => None,
        };
        match restored {
            Some(snapshot) => info!("restored the snapshot {}", snapshot.in_words()),
            None => {
                info!("begun afresh: with the data of the file, and none of an earlier life");
                self.application.fill(self.file, cluster)?;
            }
        }
        create_missing(self.file, cluster)
    }

    /// The order to rest for all nodes, if given. The node's own stage is written first: the
    /// ordering process sees the stage, or this node sees the order.
    fn told_to_rest(&self, authority: &dyn Authority) -> Result<Option<Rest>, StartupEnd> {
        self.say(Stage::Opening, authority)?;
        match &self.file.snapshots {
            Some(_) => self.ask(|| Rest::read(authority)),
            // A cluster without snapshots is never told to rest.
            None => Ok(None),
        }
    }

    /// Starts to serve applications, unless all nodes are told to rest (I176).
    fn open(&self, service: &mut Service, authority: &dyn Authority) -> Result<(), StartupEnd> {
        match self.told_to_rest(authority)? {
            Some(rest) => {
                info!("all nodes are told to rest: nothing is taken from applications yet");
                service.find(rest);
            }
            None => service.open()?,
        }
        Ok(())
    }

    fn serve(
        &self,
        authority: &Arc<ClusterAuthority>,
        cluster: Arc<Cluster>,
        counts: &dyn Fn() -> Counts,
    ) -> Result<(), StartupEnd> {
        let (file, node) = (self.file, self.node);
        let index = usize::from(node.index);
        let mut service =
            Service::start(file, node, self.application, &cluster, &(Arc::clone(authority) as _))?;
        if file.snapshots.is_some() {
            let mut marker = Marker::new(node, &file.state);
            self.ask(|| marker.write(&**authority))?;
            service.add(Box::new(marker));
        }
        self.open(&mut service, &**authority)?;
        self.say(Stage::Serving, &**authority)?;
        point_here!(node.index, Serving);
        info!(%node, "serving");
        let mut watch = Watch::new(file, &**authority);
        let mut refusal_log = RefusalLog::default();
        let mut turn = 0_u32;
        while !self.stop.is_told() {
            turn = turn.wrapping_add(1);
            if !cluster.is_serving() {
                error!(%node, "expelled");
                let in_words = node.in_words();
                return Err(StartupEnd::Failed(format!(
                    "{in_words} was expelled: the others took it for dead, or did not reach it. \
                     Start it again"
                )));
            }
            watch.look();
            if let Some(lost) = authority.lost() {
                return self.leave(service, cluster, lost);
            }
            watch.look_at_memory(&cluster, index);
            watch.look_at_waits(&cluster, index, self.env.now());
            if watch.answered && turn.is_multiple_of(TURNS_PER_LOOK_FOR_TABLES) {
                look_for_tables(&cluster);
                self.stand_by_record(&**authority);
            }
            service.look(&**authority);
            refusal_log.look(counts(), self.env.now());
            let mut glances = 0_u32;
            wait_until(&self.env, LOOK_AROUND, || {
                glances += 1;
                if watch.answered && glances.is_multiple_of(POLLS_PER_GLANCE) {
                    service.glance(&**authority);
                }
                self.stop.is_told()
            });
        }
        service.end(&**authority);
        if self.record.at(Stage::Ending).write(node, &**authority).is_err() {
            warn!("the authority does not answer");
        }
        if !watch.silent.is_empty() {
            // Transactions that have begun wait for the memory nodes, perhaps for ever.
            warn!("transactions are cut short: a memory node does not answer");
            std::mem::forget((service, cluster));
            return Ok(());
        }
        service.stop()?;
        Ok(end(cluster)?)
    }
}

/// Learns of tables created by other nodes.
fn look_for_tables(cluster: &Cluster) {
    match cluster.look_for_tables() {
        // The next look may have an answer.
        Ok(()) | Err(ClusterError::Authority(_)) => {}
        Err(error) => warn!(%error, "a table that another node has created cannot be used here"),
    }
}

/// Ends the node's part after its last transaction.
fn end(cluster: Arc<Cluster>) -> Result<(), String> {
    if let Err(error) = cluster.settle() {
        warn!(%error, "not settled");
    }
    // If a connection is still being closed, the cluster stops when the connection drops its
    // handle.
    let stopped = Arc::into_inner(cluster).map_or(Ok(()), Cluster::stop);
    stopped.map_err(|error| sentence(&error))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lotus_authority::testing::TestAuthority;

    use super::*;
    use crate::application::Tables;

    const FILE: &str = "fabric = \"shm\"\nmemory = \"64M\"\n[[memory_node]]\n[[compute_node]]\n\
                        [snapshots]\ndirectory = \"d\"\n";

    fn file() -> ClusterFile {
        ClusterFile::parse(Path::new("/etc/c.toml"), FILE, None).expect("sound")
    }

    fn daemon<'a>(file: &'a ClusterFile, application: &'a Tables) -> Daemon<'a> {
        let record = Record::of_this_process(Stage::Starting).expect("there is /proc");
        let (env, stop) = (Env::real(0), Stop::default());
        Daemon { file, node: NodeName::compute(0), application, env, stop, record }
    }

    /// A lost request once ended the process of a node that was a member already.
    #[test]
    fn a_node_begins_to_serve_whichever_answers_are_lost() {
        let (file, authority) = (file(), TestAuthority::lossy());
        let tables = Tables::default();
        let daemon = daemon(&file, &tables);
        let stage = || Record::read(daemon.node, authority.values()).expect("it answers");
        for said in [Stage::Starting, Stage::Serving] {
            daemon.say(said, &authority).expect("it answers, sooner or later");
            assert_eq!(stage().map(|record| record.stage), Some(said));
        }
        assert_eq!(daemon.told_to_rest(&authority).expect("it answers"), None);
        assert_eq!(stage().map(|record| record.stage), Some(Stage::Opening));
        // Requests and answers, for its record and for the rest.
        assert_eq!(authority.lost(), 2 + 2 + 2);
        let said = Rest::begin(&authority, 7).expect("it answers");
        assert_eq!(daemon.told_to_rest(&authority).expect("it answers"), Some(said));
    }

    #[test]
    fn a_node_that_is_told_to_end_asks_a_silent_authority_no_more() {
        let (file, tables) = (file(), Tables::default());
        let daemon = daemon(&file, &tables);
        let mut asked = 0;
        let ended = daemon.ask(|| {
            asked += 1;
            if asked == 2 {
                daemon.stop.tell(signal_hook::consts::SIGTERM);
            }
            Err::<(), _>(AuthorityError::Unavailable)
        });
        assert!(matches!(ended, Err(StartupEnd::Told)) && asked == 2, "{ended:?}, {asked}");
    }
}
