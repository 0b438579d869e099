//! `lotus cluster up`, `snapshot` and `down`: the nodes of one host, together.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::UdpSocket;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use lotus::Data;
use lotus_authority::Version;
use lotus_fabric::env::Env;
use lotus_points::point_here;
use rustix::process::Signal;

use super::consent::{self, Others};
use super::status::{self, Addresses, Status, Survey};
use lotus_node::agree::cluster_authority::{ClusterAuthority, Silent, authority};
use lotus_node::agree::records::Record;
use lotus_node::config::address::Hosted;
use lotus_node::config::authority::Place;
use lotus_node::config::file::{ClusterFile, Net};
use lotus_node::config::key;
use lotus_node::config::name::{NodeKind, NodeName};
use lotus_node::config::snapshots::IfDamaged;
use lotus_node::host::memory;
use lotus_node::host::polling::wait_until;
use lotus_node::host::processes::{ProcessState, StateFolder};
use lotus_node::requests::copier;
use lotus_node::snapshots::Snapshot;
use lotus_runner::show::Verdict;
use lotus_runner::show::screen::say;
use lotus_runner::show::steps::Steps;

/// Node that hosts the authority, or begins the cluster's life in an authority elsewhere.
const HOST: NodeName = NodeName { kind: NodeKind::Memory, index: 0 };
/// Time limit for a node to end after SIGTERM, before the node is killed.
const ENDING_PATIENCE: Duration = Duration::from_secs(10);

/// `lotus cluster up`: starts the nodes of this host that do not run, and waits until all nodes
/// serve. Unsound if the cluster serves without some nodes.
///
/// # Errors
/// A sentence; every started node has been ended again.
pub fn up(file: &ClusterFile, patience: Duration) -> Result<Verdict, String> {
    let before = begun(file);
    let Started { count, status } = start(file, patience, &Steps::start(""))?;
    let (path, state) = (file.path.display(), file.state.display());
    let here = NodeName::all(file).filter(|node| is_here(file, *node)).count();
    let again = match count {
        _ if count == here => String::new(),
        0 => ", and take calls again".to_owned(),
        _ => format!(", of which {count} had ended"),
    };
    let mut said = match status.unwell().as_str() {
        "" => {
            let all = NodeName::all(file).count();
            format!("{path}: {all} nodes serve, {here} of them on this host{again}")
        }
        unwell => {
            let (serving, all) = status.serving();
            format!("{path}: {serving} of {all} nodes serve{again}; {unwell}")
        }
    };
    // Writing to a string cannot fail.
    let _ = writeln!(said, "; logs in {state}");
    // A cluster that kept running has not started from any data now.
    if before.is_none() || before != begun(file) {
        said += &beginning(file)?;
    }
    say(&said)?;
    Ok(if status.healthy { Verdict::Sound } else { Verdict::Unsound })
}

/// The existing cluster, identified by its life in etcd if the authority is there; `None` if no
/// cluster exists, or the authority does not answer.
fn begun(file: &ClusterFile) -> Option<Option<Version>> {
    // Without a key there is no cluster yet.
    let authority = authority(file).ok()?;
    authority.connect().ok()?;
    lotus_recovery::membership::read(&authority).ok()?;
    Some(authority.life().ok().flatten())
}

/// Initial data of a cluster, in words.
fn beginning(file: &ClusterFile) -> Result<String, String> {
    let path = file.path.display();
    let Some(snapshot) = Snapshot::restored(&authority(file)?)? else {
        return Ok(format!("{path}: begun afresh, with no data of an earlier life\n"));
    };
    let mut said = format!("{path}: begun with the snapshot {}\n", snapshot.in_words());
    for left_out in &snapshot.left_out {
        // Writing to a string cannot fail.
        let _ = writeln!(said, "{path}: a newer snapshot was left out: {left_out}");
    }
    Ok(said)
}

/// Result of starting nodes.
pub struct Started {
    /// Number of started nodes.
    pub count: usize,
    /// State of all nodes of the cluster.
    pub status: Status,
}

/// Starts the nodes of this host that do not run, and waits until all nodes serve. If some nodes do
/// not serve after `patience`, although all nodes started here have come up and the cluster serves,
/// the status says so.
///
/// # Errors
/// A sentence; every started node has been ended again.
pub fn start(file: &ClusterFile, patience: Duration, steps: &Steps) -> Result<Started, String> {
    let state = StateFolder::lock(file)?;
    let ours: Vec<NodeName> = NodeName::all(file).filter(|node| is_here(file, *node)).collect();
    if ours.is_empty() {
        return Err(format!("no node of {} has an address of this host", file.path.display()));
    }
    let all = ours.len();
    let memory_nodes = ours.iter().filter(|node| node.kind == NodeKind::Memory).count();
    let warning = memory::check_memory(file, memory_nodes)?;
    let resumed = resume(file, &state, &ours)?;
    let ours = missing(file, &state, ours)?;
    if ours.is_empty() && !resumed {
        return Err(format!("the cluster of {} runs already", file.path.display()));
    }
    let nodes = match &file.net {
        Net::Tcp { trust, .. } => trust.key_file(),
        Net::Shm { .. } => None,
    };
    for path in [nodes, file.clients.key_file()].into_iter().flatten() {
        key::make(path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    }
    file.security().map_err(|error| error.to_string())?;
    if let Some(warning) = warning {
        // A failed write to standard error is ignored.
        let _ = writeln!(io::stderr(), "warning: {warning}");
    }
    let before = Life::seen(file)?;
    let mut started = Vec::new();
    steps.say("starting nodes");
    let outcome = start_all(file, &state, &ours, &mut started, |state, host| {
        before.await_next(state, host, patience)
    });
    let outcome = outcome.and_then(|()| await_health(file, &state, &mut started, patience, steps));
    let outcome = outcome.map_err(|why| {
        let remaining = RemainingCluster::of(file, &ours);
        steps.say("ending what was started");
        let nodes: Vec<NodeName> = started.iter().map(|(node, _)| *node).collect();
        end(&state, &nodes, &mut started);
        if ours.len() == all {
            remove_sockets(file);
        }
        format!("{why}; {}", remaining.in_words())
    });
    Ok(Started { count: ours.len(), status: outcome? })
}

/// State of a cluster after a failed command has ended its started nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RemainingCluster {
    /// No node runs: all nodes had been started by the command.
    Nothing,
    /// Other nodes were running before, or run on other hosts.
    Others,
    /// As `Others`, in a cluster that will never serve.
    OthersInVain,
}

impl RemainingCluster {
    /// Judges the state while the started nodes still run, once it is known that they will not come
    /// up.
    fn of(file: &ClusterFile, started: &[NodeName]) -> Self {
        let in_vain = || {
            let data = authority(file).ok().and_then(|authority| Data::read(&authority).ok());
            matches!(data, Some(Data::CutShort { .. }))
        };
        match started.len() == NodeName::all(file).count() {
            true => Self::Nothing,
            false if in_vain() => Self::OthersInVain,
            false => Self::Others,
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::Nothing => "all nodes have been ended again",
            Self::Others => "what was started has been ended again, and no other node",
            Self::OthersInVain => {
                "what was started has been ended again; lotus cluster down --no-snapshot on the \
                 hosts of the other nodes ends those, which will never serve"
            }
        }
    }
}

/// Lets nodes serve again that an earlier `down` brought to rest for good and did not end. Returns
/// whether such a rest existed.
fn resume(file: &ClusterFile, state: &StateFolder, ours: &[NodeName]) -> Result<bool, String> {
    let runs = |node: &NodeName| matches!(state.seen(*node), ProcessState::Running(_));
    let lives = ours.iter().any(runs) || file.authority.outlives_the_cluster();
    if file.snapshots.is_none() || !lives {
        return Ok(false);
    }
    // A later step reports an authority that does not answer.
    let authority = authority(file)?;
    if authority.connect().is_err() { Ok(false) } else { copier::let_serve(&authority) }
}

/// Nodes of this host to start: the whole set, or nodes that have ended while the remaining nodes
/// run. The latter rejoin.
fn missing(
    file: &ClusterFile,
    state: &StateFolder,
    ours: Vec<NodeName>,
) -> Result<Vec<NodeName>, String> {
    // A node killed a moment ago must be started as well. A node that does not end in time counts
    // as running.
    let none_is_ending = || !ours.iter().any(|node| state.is_ending(*node));
    wait_until(&Env::real(0), ENDING_PATIENCE, none_is_ending);
    let runs = |node: &NodeName| matches!(state.seen(*node), ProcessState::Running(_));
    let (running, missing): (Vec<NodeName>, Vec<NodeName>) = ours.into_iter().partition(runs);
    let path = file.path.display();
    // Without the authority, the agreements of the remaining nodes are gone.
    let authority_is_left = file.authority.outlives_the_cluster() || !missing.contains(&HOST);
    let return_alone = file.settings.lease.is_some() && authority_is_left;
    if !running.is_empty() && !return_alone {
        let all = running.len() + missing.len();
        return Err(format!(
            "{} of {all} nodes of {path} run still: end them with lotus cluster down",
            running.len()
        ));
    }
    missing.iter().for_each(|node| state.forget(*node));
    Ok(missing)
}

/// Restarts a node of this host; kills a running process first.
///
/// # Errors
/// A sentence: the process does not end, or cannot be started.
pub fn restart(file: &ClusterFile, node: NodeName) -> Result<(), String> {
    let state = StateFolder::lock(file)?;
    state.signal(node, Signal::KILL);
    let has_ended = || !matches!(state.seen(node), ProcessState::Running(_));
    if !wait_until(&Env::real(0), ENDING_PATIENCE, has_ended) {
        return Err(format!("{} cannot be ended", node.in_words()));
    }
    start_all(file, &state, &[node], &mut Vec::new(), |_, _| Ok(()))
}

/// Starts the processes of `nodes`, as an init system would. Waits only for the node that begins
/// the cluster's life in an authority elsewhere.
///
/// # Errors
/// A sentence.
pub fn start_processes(
    file: &ClusterFile,
    nodes: &[NodeName],
    patience: Duration,
) -> Result<(), String> {
    let state = StateFolder::lock(file)?;
    let before = Life::seen(file)?;
    start_all(file, &state, nodes, &mut Vec::new(), |state, host| {
        before.await_next(state, host, patience)
    })
}

fn start_all(
    file: &ClusterFile,
    state: &StateFolder,
    ours: &[NodeName],
    started: &mut Vec<(NodeName, Child)>,
    begins: impl Fn(&StateFolder, &mut (NodeName, Child)) -> Result<(), String>,
) -> Result<(), String> {
    for node in ours {
        started.push((*node, start_one(file, state, *node)?));
        if let (HOST, Some(host)) = (*node, started.last_mut()) {
            begins(state, host)?;
        }
    }
    Ok(())
}

/// Starts the process of a node of this host.
///
/// # Errors
/// A sentence.
pub fn start_one(file: &ClusterFile, state: &StateFolder, node: NodeName) -> Result<Child, String> {
    let index = node.index.to_string();
    let mut arguments: Vec<&Path> = vec![
        node.command().as_ref(),
        "--file".as_ref(),
        &file.path,
        "--node".as_ref(),
        index.as_ref(),
        "--state".as_ref(),
        &file.state,
    ];
    let beginning = file.snapshots.as_ref().map(|snapshots| snapshots.if_damaged);
    let flag = match (node.kind, beginning) {
        (NodeKind::Compute, Some(IfDamaged::UseOlder)) => Some("--older-snapshot"),
        (NodeKind::Compute, Some(IfDamaged::Afresh)) => Some("--fresh"),
        _ => None,
    };
    arguments.extend(flag.map(Path::new));
    let this = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let program = match node.kind {
        NodeKind::Compute => file.program.as_ref().unwrap_or(&this),
        NodeKind::Memory => &this,
    };
    state.start(node, program, &arguments).map_err(|error| {
        format!("cannot start {} by {}: {error}", node.in_words(), program.display())
    })
}

/// Life of the cluster known to the authority before nodes were started.
struct Life {
    authority: ClusterAuthority,
    number: Option<Version>,
    /// Version of the last record of the authority's host in this life.
    said: Version,
}

impl Life {
    fn seen(file: &ClusterFile) -> Result<Self, String> {
        let authority = authority(file)?;
        let number = authority.life().map_err(|error| error.to_string())?;
        let said = match number {
            Some(_) => Record::said(HOST, &authority).map_err(|error| error.to_string())?,
            None => Version::ABSENT,
        };
        Ok(Self { authority, number, said })
    }

    /// Waits until the authority's host has begun another life, or takes part in this life again:
    /// the remaining nodes join the life found at the authority.
    fn await_next(
        &self,
        state: &StateFolder,
        (node, child): &mut (NodeName, Child),
        patience: Duration,
    ) -> Result<(), String> {
        if !self.authority.has_lives() {
            return Ok(());
        }
        let mut ended = false;
        let begun = wait_until(&Env::real(0), patience, || {
            ended = matches!(child.try_wait(), Ok(Some(_)));
            let number = self.authority.life().ok().flatten();
            let goes_on = || Record::said(HOST, &self.authority).is_ok_and(|now| now > self.said);
            ended || number.is_some() && (number != self.number || goes_on())
        });
        match (ended, begun) {
            (true, _) => Err(obituary(state, *node)),
            (false, true) => Ok(()),
            (false, false) => Err(format!("etcd does not answer after {patience:?}")),
        }
    }
}

/// Error message for a node that ended right after its start.
fn obituary(state: &StateFolder, node: NodeName) -> String {
    let log = state.log(node);
    let why = state.complaint(node).unwrap_or_else(|| format!("see {}", log.display()));
    format!("{} did not start: {why}", node.in_words())
}

/// Waits until all nodes serve, including nodes of other hosts.
fn await_health(
    file: &ClusterFile,
    state: &StateFolder,
    started: &mut [(NodeName, Child)],
    patience: Duration,
    steps: &Steps,
) -> Result<Status, String> {
    let authority = authority(file)?;
    let mut ended = None;
    let mut survey = None;
    let mut data = None;
    let mut look = |goes_on: &mut bool| {
        let is_over = |(_, child): &mut (NodeName, Child)| matches!(child.try_wait(), Ok(Some(_)));
        ended = started.iter_mut().position(is_over);
        let now = survey.insert(Survey::take(file, state, &authority));
        steps.say_how_far(now.in_words(), now.rows_in_words());
        let is_over = ended.is_some() || now.all_serve();
        // Filling tables may take longer than `patience`, while rows are being added.
        *goes_on = !is_over && now.is_loading() && now.data() != data.as_ref();
        data = now.data().cloned();
        is_over || *goes_on
    };
    let mut goes_on = true;
    while goes_on {
        goes_on = false;
        wait_until(&Env::real(0), patience, || look(&mut goes_on));
    }
    if let Some(index) = ended {
        return Err(obituary(state, started[index].0));
    }
    let survey = survey.expect("it was looked at once at least");
    // Every node started here must have come up. If the cluster serves, the state of other nodes is
    // no reason to end a node.
    let late = match survey.goes_on() {
        true => started.iter().map(|(node, _)| *node).find(|node| !survey.has_come_up(*node)),
        false => NodeName::all(file).find(|node| survey.state(*node) != status::SERVING),
    };
    match (late, survey.absent().as_str()) {
        (Some(node), "") => Err(format!("{} does not serve after {patience:?}", node.in_words())),
        (Some(node), absent) => {
            Err(format!("{} does not serve after {patience:?}; {absent}", node.in_words()))
        }
        (None, _) => Ok(survey.into_status()),
    }
}

/// `lotus cluster snapshot`: has a node take a snapshot, and prints its contents.
///
/// # Errors
/// A sentence.
pub fn snapshot(file: &ClusterFile, patience: Duration, as_json: bool) -> Result<Verdict, String> {
    let steps = Steps::start("");
    steps.say("a snapshot is taken");
    let (node, snapshot) = copier::take(file, &authority(file)?, patience)?;
    drop(steps);
    if as_json {
        let json = serde_json::to_string_pretty(&snapshot).expect("strings and numbers");
        return say(&format!("{json}\n"));
    }
    say(&format!("{}: a snapshot {}\n", node.in_words(), snapshot.in_words()))
}

/// `lotus cluster down`: ends the nodes of this host. If the file names a snapshot directory, takes
/// a snapshot first, for at most `snapshot`; nothing is committed after the snapshot. If the file
/// names none, the operator must have agreed to the loss of all data, by no `snapshot` or at the
/// terminal. Unless a snapshot was taken, `others` says what nodes of other hosts may lose.
///
/// # Errors
/// A sentence: no snapshot was taken, or the operator has not agreed, or other hosts would lose
/// data or the authority, and nothing was ended; or as [`stop`].
pub fn down(
    file: &ClusterFile,
    snapshot: Option<Duration>,
    silent: Silent,
    others: Others,
) -> Result<Verdict, String> {
    #[cfg(feature = "fault-points")]
    lotus_node::host::fault_point::arm(None)?;
    let path = file.path.display();
    if !file.state.exists() && silent == Silent::MayLive {
        return say(&format!("{path}: nothing runs on this host\n"));
    }
    // From here on, further commands of this host cannot start nodes, or let them serve.
    let state = StateFolder::lock(file)?;
    let runs = |node: NodeName| matches!(state.seen(node), ProcessState::Running(_));
    let any_runs = NodeName::all(file).any(runs);
    if any_runs {
        consent::check(file, snapshot.is_none())?;
    }
    let steps = Steps::start("");
    // Nodes at rest for good are ended, even if the output cannot be written.
    let mut said = Ok(Verdict::Sound);
    if let (Some(patience), Some(_), true) = (snapshot, &file.snapshots, any_runs) {
        steps.say("compute nodes come to rest, and a snapshot is taken");
        let taken = copier::take_last(file, &authority(file)?, patience);
        let (node, snapshot) = taken.map_err(|why| {
            format!("{why}: nothing was ended; with --no-snapshot, all is ended without one")
        })?;
        said = say(&format!("{}: a snapshot {}\n", node.in_words(), snapshot.in_words()));
        point_here!(0, LastTaken);
    } else if any_runs {
        let here = NodeName::all(file).filter(|node| state.remembers(*node));
        consent::check_others(file, &here.collect::<Vec<_>>(), others)?;
    }
    let ended = end_here(file, &state, silent, &steps)?;
    said?;
    match ended {
        (0, 0) => say(&format!("{path}: nothing runs on this host\n")),
        (ran, all) if ran == all => say(&format!("{path}: {all} nodes have ended\n")),
        (ran, all) => {
            let dead = all - ran;
            say(&format!("{path}: {ran} nodes have ended; {dead} had before\n"))
        }
    }
}

/// Ends the nodes of this host; returns the number of nodes that ran, and of nodes started here. If
/// memory node 0 is among them, the life of the cluster in etcd ends as well, unless other nodes
/// live in it.
///
/// # Errors
/// A sentence: another command is at work, or a node does not end. Or all nodes here have ended,
/// but not the life in etcd: compute nodes of other hosts take part in it, or may (`silent`).
pub fn stop(file: &ClusterFile, silent: Silent, steps: &Steps) -> Result<(usize, usize), String> {
    if !file.state.exists() {
        return Ok((0, 0));
    }
    end_here(file, &StateFolder::lock(file)?, silent, steps)
}

fn end_here(
    file: &ClusterFile,
    state: &StateFolder,
    silent: Silent,
    steps: &Steps,
) -> Result<(usize, usize), String> {
    let begins_lives = state.seen(HOST) != ProcessState::Never || silent == Silent::HaveEnded;
    let known: Vec<NodeName> = NodeName::all(file).filter(|node| state.remembers(*node)).collect();
    steps.say("nodes end");
    let ran =
        known.iter().filter(|node| matches!(state.seen(**node), ProcessState::Running(_))).count();
    end(state, &known, &mut []);
    point_here!(0, AllEnded);
    let left: Vec<String> = known
        .iter()
        .filter(|node| matches!(state.seen(**node), ProcessState::Running(_)))
        .map(|node| node.in_words())
        .collect();
    if !left.is_empty() {
        return Err(format!("{} cannot be ended", left.join(", ")));
    }
    remove_sockets(file);
    // Memory node 0 has not ended the life itself if it was killed, or ended while other nodes
    // lived.
    if begins_lives && file.authority.outlives_the_cluster() {
        steps.say("the life of the cluster ends");
        let ended = authority(file)?.end_life(file, &Env::real(0), silent);
        ended.map_err(|why| format!("no node runs on this host any more; {why}"))?;
    }
    Ok((ran, known.len()))
}

/// Ends nodes: compute nodes first, since they need the memory nodes; the authority's host last.
/// Reaps children of this process.
fn end(state: &StateFolder, nodes: &[NodeName], children: &mut [(NodeName, Child)]) {
    let env = Env::real(0);
    for kind in [NodeKind::Compute, NodeKind::Memory] {
        let of_kind: Vec<NodeName> =
            nodes.iter().copied().filter(|node| node.kind == kind).collect();
        for signal in [Signal::TERM, Signal::KILL] {
            of_kind.iter().for_each(|node| state.signal(*node, signal));
            let all_ended = wait_until(&env, ENDING_PATIENCE, || {
                of_kind.iter().all(|node| !matches!(state.seen(*node), ProcessState::Running(_)))
            });
            if all_ended {
                break;
            }
        }
        for (_, child) in children.iter_mut().filter(|(node, _)| node.kind == kind) {
            // Reaps the child if it has ended; otherwise nothing more can be done.
            let _ = child.try_wait();
        }
        if kind == NodeKind::Compute {
            point_here!(0, ComputeEnded);
        }
    }
    let ended = nodes.iter().filter(|node| !matches!(state.seen(**node), ProcessState::Running(_)));
    ended.for_each(|node| state.forget(*node));
}

/// Removes sockets left by killed processes.
fn remove_sockets(file: &ClusterFile) {
    let Net::Shm { directory } = &file.net else { return };
    lotus_node::host::sockets::remove_sockets(directory, file.node_count());
    if let Place::Hosted(Hosted::Unix(path)) = &file.authority {
        lotus_node::host::sockets::remove_unheard(path);
    }
}

/// Whether a node belongs on this host, by its address.
fn is_here(file: &ClusterFile, node: NodeName) -> bool {
    match Addresses::of(file, node).address {
        // With namespaces, every node runs on this host.
        _ if file.namespaces.is_some() => true,
        // A name that cannot be resolved here is not a name of this host.
        Some(address) => {
            let found = address.look_up();
            found.is_ok_and(|address| UdpSocket::bind((address.ip(), 0)).is_ok())
        }
        None => true,
    }
}
