//! `lotus cluster up`, `status` and `down`: the nodes of one host, together.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use comfy_table::Table;
use lotus::{MemoryStanding, MemoryStatus};
use lotus_fabric::env::Env;
use lotus_recovery::Membership;
use lotus_recovery::membership;
use lotus_router::Placement;
use lotus_router::authority::Version;
use lotus_router::remote::Address;
use rustix::process::Signal;
use serde::Serialize;

use super::authority;
use super::copier;
use super::file::{ClusterFile, Net};
use super::key;
use super::node::{Kind, Node};
use super::processes::{Seen, State, wait_until};
use super::records::{Record, Stage};
use super::seat::{Place, Seat, Unreached};
use super::shards::{self, or_dash, percent};
use super::snapshots::Snapshot;
use crate::Verdict;
use crate::nodes::processor_time;

/// Whose process keeps the authority, or begins its life elsewhere.
const HOST: Node = Node { kind: Kind::Memory, index: 0 };
/// How long a node may take to end when it is asked, before it is made to.
const ENDING_PATIENCE: Duration = Duration::from_secs(10);

/// `lotus cluster up`: starts the nodes of this host, or those compute nodes that have ended beside
/// others, and waits until all nodes serve.
///
/// # Errors
/// A sentence; then nothing that was started is left.
pub fn up(file: &ClusterFile, patience: Duration) -> Result<Verdict, String> {
    let started = start(file, patience)?;
    let all = Node::all(file).count();
    let here = Node::all(file).filter(|node| is_here(file, *node)).count();
    let again = match started {
        _ if started == here => String::new(),
        _ => format!(", of which {started} had ended"),
    };
    let (path, state) = (file.path.display(), file.state.display());
    let mut said =
        format!("{path}: {all} nodes serve, {here} of them on this host{again}; logs in {state}\n");
    if let Some(snapshot) = Snapshot::restored(&authority(file)?)? {
        // Strings take all that is written to them.
        let _ = writeln!(said, "{path}: begun with the snapshot {}", snapshot.in_words());
    }
    say(&said)
}

/// Starts the nodes of this host that do not run, and waits until all nodes serve; how many it has
/// started.
///
/// # Errors
/// A sentence; then nothing that was started is left.
pub fn start(file: &ClusterFile, patience: Duration) -> Result<usize, String> {
    let state = State::lock(file)?;
    let ours: Vec<Node> = Node::all(file).filter(|node| is_here(file, *node)).collect();
    if ours.is_empty() {
        return Err(format!("no node of {} has an address of this host", file.path.display()));
    }
    let all = ours.len();
    let ours = missing(file, &state, ours)?;
    let nodes = match &file.net {
        Net::Tcp { trust, .. } => trust.key_file(),
        Net::Shm { .. } => None,
    };
    for path in [nodes, file.clients.key_file()].into_iter().flatten() {
        key::make(path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    }
    file.security().map_err(|error| error.to_string())?;
    let before = Life::seen(file)?;
    let mut started = Vec::new();
    let outcome = start_all(file, &state, &ours, &mut started, |state, host| {
        before.await_next(state, host, patience)
    });
    let outcome = outcome.and_then(|()| await_health(file, &state, &mut started, patience));
    if let Err(why) = outcome {
        let nodes: Vec<Node> = started.iter().map(|(node, _)| *node).collect();
        end(&state, &nodes, &mut started);
        if ours.len() == all {
            remove_sockets(file);
        }
        return Err(why);
    }
    Ok(ours.len())
}

/// Those of our nodes that are to be started: all, or those that have ended beside others that run,
/// which take part again.
fn missing(file: &ClusterFile, state: &State, ours: Vec<Node>) -> Result<Vec<Node>, String> {
    // Who was killed a moment ago is to be started, too. If it does not end it counts as running.
    let none_is_ending = || !ours.iter().any(|node| state.is_ending(*node));
    wait_until(&Env::real(0), ENDING_PATIENCE, none_is_ending);
    let runs = |node: &Node| matches!(state.seen(*node), Seen::Running(_));
    let (running, missing): (Vec<Node>, Vec<Node>) = ours.into_iter().partition(runs);
    let path = file.path.display();
    if missing.is_empty() {
        return Err(format!("the cluster of {path} runs already"));
    }
    // With the authority all has gone that the others have agreed on.
    let authority_is_left = file.authority.outlives_the_cluster() || !missing.contains(&HOST);
    let return_alone = file.lease.is_some() && authority_is_left;
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

/// Starts a node of this host again, whatever runs there.
///
/// # Errors
/// A sentence: it does not end, or cannot be started.
pub fn restart(file: &ClusterFile, node: Node) -> Result<(), String> {
    let state = State::lock(file)?;
    state.signal(node, Signal::KILL);
    let has_ended = || !matches!(state.seen(node), Seen::Running(_));
    if !wait_until(&Env::real(0), ENDING_PATIENCE, has_ended) {
        return Err(format!("{} cannot be ended", node.in_words()));
    }
    start_all(file, &state, &[node], &mut Vec::new(), |_, _| Ok(()))
}

fn start_all(
    file: &ClusterFile,
    state: &State,
    ours: &[Node],
    started: &mut Vec<(Node, Child)>,
    begins: impl Fn(&State, &mut (Node, Child)) -> Result<(), String>,
) -> Result<(), String> {
    for node in ours {
        started.push((*node, start_one(file, state, *node)?));
        if let (HOST, Some(host)) = (*node, started.last_mut()) {
            begins(state, host)?;
        }
    }
    Ok(())
}

/// Starts the process of one node of this host.
///
/// # Errors
/// A sentence.
pub fn start_one(file: &ClusterFile, state: &State, node: Node) -> Result<Child, String> {
    let index = node.index.to_string();
    let arguments: [&Path; 7] = [
        node.command().as_ref(),
        "--file".as_ref(),
        &file.path,
        "--node".as_ref(),
        index.as_ref(),
        "--state".as_ref(),
        &file.state,
    ];
    let child = state.start(node, &arguments);
    child.map_err(|error| format!("cannot start {}: {error}", node.in_words()))
}

/// The life of the cluster that the authority knew before nodes were started.
struct Life {
    authority: Seat,
    number: Option<Version>,
    /// What the host of the authority has said in it.
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

    /// Waits until the host of the authority has begun another one, or has taken part in this one
    /// again: the others join the one that they find.
    fn await_next(
        &self,
        state: &State,
        (node, child): &mut (Node, Child),
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

/// Why a node has ended that was just started.
fn obituary(state: &State, node: Node) -> String {
    let log = state.log(node);
    let why = state.complaint(node).unwrap_or_else(|| format!("see {}", log.display()));
    format!("{} did not start: {why}", node.in_words())
}

/// Waits until all nodes say that they serve, those of other hosts too.
fn await_health(
    file: &ClusterFile,
    state: &State,
    started: &mut [(Node, Child)],
    patience: Duration,
) -> Result<(), String> {
    let authority = authority(file)?;
    let mut ended = None;
    let mut missing = None;
    let healthy = wait_until(&Env::real(0), patience, || {
        let is_over = |(_, child): &mut (Node, Child)| matches!(child.try_wait(), Ok(Some(_)));
        ended = started.iter_mut().position(is_over);
        let serves = |node: &Node| {
            let record = Record::read(*node, &authority).ok().flatten();
            // What its process of before has said does not count.
            let child =
                started.iter().find(|(known, _)| known == node).map(|(_, child)| child.id());
            record.is_some_and(|record| {
                record.stage == Stage::Serving && child.is_none_or(|id| id == record.process)
            })
        };
        missing = if authority.connect().is_ok() {
            Node::all(file).find(|node| !serves(node))
        } else {
            Node::all(file).next()
        };
        ended.is_some() || missing.is_none()
    });
    if let Some(index) = ended {
        return Err(obituary(state, started[index].0));
    }
    match missing {
        Some(node) if !healthy => {
            Err(format!("{} does not serve after {patience:?}", node.in_words()))
        }
        _ => Ok(()),
    }
}

/// `lotus cluster snapshot`: has one taken, and says what is in it.
///
/// # Errors
/// A sentence.
pub fn snapshot(file: &ClusterFile, patience: Duration, as_json: bool) -> Result<Verdict, String> {
    let (node, snapshot) = copier::take(file, &authority(file)?, patience)?;
    if as_json {
        let json = serde_json::to_string_pretty(&snapshot).expect("strings and numbers");
        return say(&format!("{json}\n"));
    }
    say(&format!("{}: a snapshot {}\n", node.in_words(), snapshot.in_words()))
}

/// `lotus cluster down`: ends the nodes of this host. Where the file says where snapshots are, it
/// takes one first, for at most `snapshot`, after which nothing is committed.
///
/// # Errors
/// A sentence: there is no snapshot, and nothing was ended; another command is at work, or a node
/// does not end.
pub fn down(file: &ClusterFile, snapshot: Option<Duration>) -> Result<Verdict, String> {
    let path = file.path.display();
    let state = State::look(file);
    let runs = |node: Node| matches!(state.seen(node), Seen::Running(_));
    if let (Some(patience), Some(_), true) = (snapshot, &file.snapshots, Node::all(file).any(runs))
    {
        let taken = copier::take_last(file, &authority(file)?, patience);
        let (node, snapshot) = taken.map_err(|why| {
            format!("{why}: nothing was ended; with --no-snapshot, all is ended without one")
        })?;
        say(&format!("{}: a snapshot {}\n", node.in_words(), snapshot.in_words()))?;
    }
    match stop(file)? {
        (0, 0) => say(&format!("{path}: nothing runs on this host\n")),
        (ran, all) if ran == all => say(&format!("{path}: {all} nodes have ended\n")),
        (ran, all) => {
            let dead = all - ran;
            say(&format!("{path}: {ran} nodes have ended; {dead} had before\n"))
        }
    }
}

/// Ends the nodes of this host: how many ran, and how many were started here.
///
/// # Errors
/// A sentence: another command is at work, or a node does not end.
pub fn stop(file: &ClusterFile) -> Result<(usize, usize), String> {
    if !file.state.exists() {
        return Ok((0, 0));
    }
    let state = State::lock(file)?;
    let known: Vec<Node> =
        Node::all(file).filter(|node| state.seen(*node) != Seen::Never).collect();
    let ran = known.iter().filter(|node| matches!(state.seen(**node), Seen::Running(_))).count();
    end(&state, &known, &mut []);
    let left: Vec<String> = known
        .iter()
        .filter(|node| matches!(state.seen(**node), Seen::Running(_)))
        .map(|node| node.in_words())
        .collect();
    if !left.is_empty() {
        return Err(format!("{} cannot be ended", left.join(", ")));
    }
    remove_sockets(file);
    // If it was killed, nobody else has said so. If this fails, the next `up` will.
    if known.contains(&HOST) {
        let _ = authority(file).and_then(|authority| authority.end_life());
    }
    Ok((ran, known.len()))
}

/// Ends nodes: compute nodes first, which need the others; the authority's host last. Children of
/// this process are waited for.
fn end(state: &State, nodes: &[Node], children: &mut [(Node, Child)]) {
    let env = Env::real(0);
    for kind in [Kind::Compute, Kind::Memory] {
        let of_kind: Vec<Node> = nodes.iter().copied().filter(|node| node.kind == kind).collect();
        for signal in [Signal::TERM, Signal::KILL] {
            of_kind.iter().for_each(|node| state.signal(*node, signal));
            let all_ended = wait_until(&env, ENDING_PATIENCE, || {
                of_kind.iter().all(|node| !matches!(state.seen(*node), Seen::Running(_)))
            });
            if all_ended {
                break;
            }
        }
        for (_, child) in children.iter_mut().filter(|(node, _)| node.kind == kind) {
            // Reaped if it has ended; otherwise there is nothing more that we could do.
            let _ = child.try_wait();
        }
    }
    let ended = nodes.iter().filter(|node| !matches!(state.seen(**node), Seen::Running(_)));
    ended.for_each(|node| state.forget(*node));
}

/// Removes what hosts that were killed have left.
fn remove_sockets(file: &ClusterFile) {
    let Net::Shm { directory } = &file.net else { return };
    crate::nodes::remove_sockets(directory, file.node_count());
    if let Place::Hosted(Address::Unix(path)) = &file.authority {
        // What is not there need not go.
        let _ = std::fs::remove_file(path);
    }
}

/// A node as `lotus cluster status` shows it.
#[derive(Debug, Serialize)]
struct NodeStatus {
    node: String,
    address: Option<SocketAddr>,
    client: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    process: Option<u32>,
    /// What its process has used of this host's cores since it began.
    processor_s: Option<f64>,
    shards: Option<usize>,
    /// Shards that it gave to others.
    shards_given: Option<u64>,
    /// The share of locks that its transactions took at home.
    local_locks: Option<f64>,
    state: &'static str,
}

#[derive(Debug, Serialize)]
struct Status {
    healthy: bool,
    authority: &'static str,
    epoch: Option<u32>,
    /// Of each row, at least, on memory nodes that are in use.
    copies: Option<usize>,
    nodes: Vec<NodeStatus>,
}

/// `lotus cluster status`: what every node says, and what is known of its process. Unsound unless
/// all serve.
///
/// # Errors
/// The output cannot be written.
pub fn status(file: &ClusterFile, as_json: bool) -> Result<Verdict, String> {
    let status = look(file)?;
    if as_json {
        let json = serde_json::to_string_pretty(&status).expect("strings and numbers");
        say(&format!("{json}\n"))?;
    } else {
        say(&table(&status))?;
    }
    Ok(if status.healthy { Verdict::Sound } else { Verdict::Unsound })
}

fn look(file: &ClusterFile) -> Result<Status, String> {
    let state = State::look(file);
    let authority = authority(file)?;
    let refused = match authority.connect() {
        Ok(()) => None,
        Err(Unreached::Silent(_)) => Some("unreachable"),
        Err(_) => Some("refuses"),
    };
    let answers = refused.is_none();
    let members = if answers { membership::read(&authority).ok() } else { None };
    let serves = |node: &Node| {
        let record = Record::read(*node, &authority).ok().flatten();
        let serves = record.is_some_and(|record| record.stage == Stage::Serving);
        node.kind == Kind::Compute && serves && !matches!(state.seen(*node), Seen::Ended(_))
    };
    let asked: Vec<Node> = Node::all(file).filter(|node| answers && serves(node)).collect();
    let said = shards::figures(&authority, &asked);
    let is_silent = |node: Node| said.iter().flatten().any(|one| one.silent & 1 << node.index != 0);
    let memory = members.as_ref().and_then(|now| memory_left(file, now));
    let view = |node: Node| {
        let record = if answers { Record::read(node, &authority).ok().flatten() } else { None };
        let seen = state.seen(node);
        let process = match seen {
            Seen::Running(process) | Seen::Ended(process) => Some(process),
            Seen::Never => record.as_ref().map(|record| record.process),
        };
        let own = Addresses::of(file, node);
        let stage = answers.then(|| record.as_ref().map(|record| record.stage));
        let standing = match (&memory, node.kind) {
            (Some(memory), Kind::Memory) => memory.nodes.get(usize::from(node.index)),
            _ => None,
        };
        let state = match judge(file, node, seen, stage, members.as_ref()) {
            _ if standing == Some(&MemoryStanding::Lost) => "lost",
            _ if standing == Some(&MemoryStanding::Joining) => "joining",
            _ if standing == Some(&MemoryStanding::OutOfReach) => "last copies lost",
            "serving" if node.kind == Kind::Memory && is_silent(node) => "silent",
            state => state,
        };
        let Addresses { address, client, metrics } = own;
        let figures = asked.iter().position(|one| *one == node).and_then(|at| said[at]);
        let here = if let Seen::Running(process) = seen { Some(process) } else { None };
        NodeStatus {
            node: node.to_string(),
            address,
            client,
            metrics,
            process,
            processor_s: here.and_then(processor_time).map(|time| time.as_secs_f64()),
            shards: figures.map(|figures| figures.shards_owned),
            shards_given: figures.map(|figures| figures.ownership.shards),
            local_locks: figures.as_ref().and_then(shards::local_locks),
            state,
        }
    };
    let nodes: Vec<NodeStatus> = Node::all(file).map(view).collect();
    let copies = memory.as_ref().and_then(|memory| memory.copies.iter().copied().min());
    let healthy = nodes.iter().all(|node| node.state == "serving");
    let epoch = members.map(|now| now.epoch().0);
    Ok(Status { healthy, authority: refused.unwrap_or("answers"), epoch, copies, nodes })
}

/// What the members have agreed on about the memory nodes.
fn memory_left(file: &ClusterFile, now: &Membership) -> Option<MemoryStatus> {
    let nodes = Node::all(file).filter(|node| node.kind == Kind::Memory);
    let nodes: Vec<_> = nodes.map(|node| node.id(file)).collect();
    let first = Placement::new(&nodes, file.settings.replicas).ok()?;
    Some(MemoryStatus::new(&first, &now.surviving(&first), &now.out_of_reach(&first)))
}

/// One word for a node. What it has `said` is not known where the authority does not answer.
fn judge(
    file: &ClusterFile,
    node: Node,
    seen: Seen,
    said: Option<Option<Stage>>,
    members: Option<&Membership>,
) -> &'static str {
    let member = node.id(file);
    let expelled = node.kind == Kind::Compute && members.is_some_and(|now| !now.is_live(member));
    match (seen, said) {
        _ if expelled => match members.is_some_and(|now| now.is_resolved(member)) {
            true => "expelled",
            false => "in recovery",
        },
        (Seen::Ended(_), _) => "ended",
        (Seen::Running(_), None) => "running",
        (Seen::Never, None | Some(None)) => "unknown",
        (_, Some(Some(Stage::Serving))) => "serving",
        (_, Some(Some(Stage::Ending))) => "ending",
        (_, Some(Some(Stage::Starting) | None)) => "starting",
    }
}

/// Where a node listens: for other nodes, applications, and whoever watches it.
struct Addresses {
    address: Option<SocketAddr>,
    client: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
}

impl Addresses {
    fn of(file: &ClusterFile, node: Node) -> Self {
        let address = match &file.net {
            Net::Shm { .. } => None,
            Net::Tcp { addresses, .. } => addresses.get(&node.id(file)).copied(),
        };
        let compute = match node.kind {
            Kind::Memory => None,
            Kind::Compute => file.compute_nodes.get(usize::from(node.index)),
        };
        let client = compute.and_then(|node| node.client);
        Self { address, client, metrics: compute.and_then(|node| node.metrics) }
    }
}

fn table(status: &Status) -> String {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    let places = ["node", "address", "client", "metrics", "process"];
    let figures = ["cpu s", "shards", "given", "local locks", "state"];
    table.set_header(places.into_iter().chain(figures));
    for node in &status.nodes {
        table.add_row([
            node.node.clone(),
            or_dash(node.address, |address| address.to_string()),
            or_dash(node.client, |address| address.to_string()),
            or_dash(node.metrics, |address| address.to_string()),
            or_dash(node.process, |process| process.to_string()),
            or_dash(node.processor_s, |time| format!("{time:.2}")),
            or_dash(node.shards, |shards| shards.to_string()),
            or_dash(node.shards_given, |given| given.to_string()),
            or_dash(node.local_locks, percent),
            node.state.to_owned(),
        ]);
    }
    let mut text = format!("{}\n", table.trim_fmt());
    let health = if status.healthy { "healthy" } else { "not healthy" };
    let epoch = status.epoch.map_or(String::new(), |epoch| format!(", epoch {epoch}"));
    // Strings take all that is written to them.
    let copies = status.copies.map_or(String::new(), |copies| format!(", copies of rows {copies}"));
    let _ = writeln!(text, "{health}; the authority: {}{epoch}{copies}", status.authority);
    text
}

/// Whether a node is to live on this host: its address is one of ours.
fn is_here(file: &ClusterFile, node: Node) -> bool {
    match Addresses::of(file, node).address {
        // It is this host's, whatever its address.
        _ if file.namespaces.is_some() => true,
        Some(address) => UdpSocket::bind((address.ip(), 0)).is_ok(),
        None => true,
    }
}

/// Says something to whoever has given the command.
pub fn say(what: &str) -> Result<Verdict, String> {
    let written = io::stdout().write_all(what.as_bytes());
    written.map_err(|error| format!("cannot write: {error}"))?;
    Ok(Verdict::Sound)
}
