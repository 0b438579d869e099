//! `lotus cluster status`: the state of a cluster's nodes, from three sources: the processes known
//! to this host, the nodes' reports at the authority, and the members' agreements.
//!
//! # Precedence of the sources
//! A process seen running, or seen to have ended, takes precedence over any report. The process of
//! a node's last report at the authority is looked up on this host as well, so that a node started
//! by hand is not taken for an earlier process that has ended. A report at the authority counts
//! only for the process that made the report (I205).

use std::fmt::Write as _;

use comfy_table::Table;
use lotus::{Data, MemoryStanding, MemoryStatus};
use lotus_fabric::ids::{Epoch, NodeId};
use lotus_recovery::Membership;
use lotus_recovery::membership;
use lotus_router::Placement;
use lotus_security::printable;
use serde::Serialize;

use super::memory::{self, GroupUse, NodeUse, TableUse, Used};
use super::shards;
use lotus_node::agree::cluster_authority::{AuthorityUnreachable, ClusterAuthority, authority};
use lotus_node::agree::records::{Record, Stage};
use lotus_node::agree::rest::Rest;
use lotus_node::agree::terms::Terms;
use lotus_node::config::address::HostPort;
use lotus_node::config::file::{ClusterFile, Net};
use lotus_node::config::name::{NodeKind, NodeName};
use lotus_node::host::processes::{ProcessState, StateFolder};
use lotus_node::requests::operator::{self, Figures};
use lotus_runner::host::usage::processor_time;
use lotus_runner::show::Verdict;
use lotus_runner::show::screen::{or_dash, percent, say};

/// Share of memory in use at which status warns.
const NEARLY_FULL: f64 = 0.9;

/// State of a working node.
pub const SERVING: &str = "serving";
/// State of a memory node that the membership has given up.
pub const LOST: &str = "lost";
/// State of a node that has never reported.
const UNKNOWN: &str = "unknown";
/// State of a node that should work, but does not answer.
const SILENT: &str = "silent";
/// State of a compute node that takes no calls, so that the cluster can be shut down.
const RESTING: &str = "resting";

/// A row of `lotus cluster status`.
#[derive(Debug, Serialize)]
struct NodeStatus {
    node: NodeName,
    address: Option<HostPort>,
    client: Option<HostPort>,
    metrics: Option<HostPort>,
    process: Option<u32>,
    /// Processor time used by the process since its start, in seconds; only for processes of this
    /// host.
    processor_s: Option<f64>,
    shards: Option<usize>,
    /// Shards given to other nodes.
    shards_given: Option<u64>,
    /// Share of the locks of the node's transactions that the node granted itself.
    local_locks: Option<f64>,
    /// Memory of a memory node.
    memory: Option<NodeUse>,
    state: &'static str,
}

/// State of a cluster.
#[derive(Debug, Serialize)]
pub struct Status {
    /// Whether all nodes serve, all data is loaded, and no path between compute nodes is cut.
    pub healthy: bool,
    authority: &'static str,
    /// Reason why the authority does not answer.
    reason: Option<String>,
    epoch: Option<u32>,
    /// Minimum number of copies of any row on memory nodes in use.
    copies: Option<usize>,
    /// State of the data, in words.
    data: Option<&'static str>,
    /// Reason why the data will never be complete.
    cut_short: Option<String>,
    /// Pairs of compute nodes: a node that reports a cut path, and the node that it does not reach.
    cuts: Vec<[NodeName; 2]>,
    /// Difference between this file and the file with which the cluster was created.
    file_differs: Option<String>,
    /// Share of the memory for rows and indexes in use, in the fullest group.
    memory_used: Option<f64>,
    /// Memory of each replica group.
    groups: Vec<GroupUse>,
    nodes: Vec<NodeStatus>,
    /// Rows and memory of each table.
    tables: Vec<TableUse>,
}

impl Status {
    /// Adds the compute nodes' reports on memory.
    fn with_memory(mut self, memory: Used) -> Self {
        let Used { share, nodes, groups, tables } = memory;
        for one in self.nodes.iter_mut().filter(|one| one.node.kind == NodeKind::Memory) {
            one.memory = nodes.get(usize::from(one.node.index)).copied().flatten();
        }
        Self { memory_used: share, groups, tables, ..self }
    }

    /// Number of serving nodes, and of all nodes.
    pub fn serving(&self) -> (usize, usize) {
        let serving = self.nodes.iter().filter(|node| node.state == SERVING).count();
        (serving, self.nodes.len())
    }

    /// Nodes that do not serve, with their states, in words.
    pub fn unwell(&self) -> String {
        let unwell = self.nodes.iter().filter(|node| node.state != SERVING);
        let in_words = unwell.map(|one| format!("{} is {}", one.node.in_words(), one.state));
        in_words.collect::<Vec<_>>().join(", ")
    }
}

/// `lotus cluster status`: shows every node's reports, and the state of its process. The verdict is
/// unsound unless all nodes serve and all data is loaded.
///
/// # Errors
/// The output cannot be written.
pub fn show(file: &ClusterFile, as_json: bool) -> Result<Verdict, String> {
    let authority = authority(file)?;
    let status = ask(file, &StateFolder::look(file), &authority);
    if as_json {
        let json = serde_json::to_string_pretty(&status).expect("strings and numbers");
        say(&format!("{json}\n"))?;
    } else {
        say(&table(&status))?;
    }
    Ok(if status.healthy { Verdict::Sound } else { Verdict::Unsound })
}

/// Asks the serving compute nodes, and then looks at all nodes again: an answer, or a time-out,
/// takes a while, and nodes may be gone by then.
fn ask(file: &ClusterFile, state: &StateFolder, authority: &ClusterAuthority) -> Status {
    let look = || Survey::take(file, state, authority);
    let asked = look().serving(NodeKind::Compute);
    let said = operator::states(authority, &asked, |node| look().state(node) != SERVING);
    let memory: Vec<_> = said.iter().flatten().filter_map(|(_, memory)| memory.clone()).collect();
    // With a silent memory node no compute node can answer about memory.
    let silent = said.iter().flatten().any(|(figures, _)| figures.silent != 0);
    let memory = if silent { Used::default() } else { Used::of(&memory) };
    let figures: Vec<_> = said.iter().map(|said| said.as_ref().map(|said| said.0)).collect();
    look().with_figures(&asked, &figures).into_status().with_memory(memory)
}

/// State of all nodes, without questions to the nodes.
pub struct Survey<'a> {
    file: &'a ClusterFile,
    /// Reason why the authority does not answer: one word, and the error's text. `None` if it
    /// answers.
    refused: Option<(&'static str, String)>,
    members: Option<Membership>,
    /// Difference between the file and the file with which the cluster was created.
    differs: Option<String>,
    copies: Option<usize>,
    data: Option<Data>,
    nodes: Vec<Known>,
}

/// State of a cluster, without questions to its nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outline {
    /// Whether the authority answers, in one word.
    pub authority: &'static str,
    /// Reason why the authority does not answer.
    pub reason: Option<String>,
    /// Epoch of the membership.
    pub epoch: Option<u32>,
    /// Minimum number of copies of any row on memory nodes in use.
    pub copies: Option<usize>,
    /// State of the data, in words.
    pub data: Option<&'static str>,
    /// State of each node, in one word.
    pub states: Vec<(NodeName, &'static str)>,
}

/// State of one node.
struct Known {
    node: NodeName,
    process: Option<u32>,
    /// Whether the process runs on this host.
    is_here: bool,
    /// Last stage reported by the process.
    stage: Option<Stage>,
    state: &'static str,
    figures: Option<Figures>,
}

impl<'a> Survey<'a> {
    /// Looks at this host, and asks the authority.
    pub fn take(file: &'a ClusterFile, state: &StateFolder, authority: &ClusterAuthority) -> Self {
        let refused = match authority.connect() {
            Ok(()) => None,
            Err(AuthorityUnreachable::Silent(why)) => Some(("unreachable", why)),
            Err(AuthorityUnreachable::Refused(why)) => Some(("refuses", why)),
        };
        let answers = refused.is_none();
        let members = if answers { membership::read(authority).ok() } else { None };
        let made = if answers { Terms::read(authority).ok().flatten() } else { None };
        let made = made.filter(|_| members.is_some()).unwrap_or_else(|| Terms::of(file));
        let differs = made.difference(&Terms::of(file));
        let memory = members.as_ref().and_then(|now| {
            // With other memory nodes nothing is known of the copies.
            let same = usize::from(made.memory_nodes) == file.settings.memory_nodes;
            same.then(|| memory_left(file, now)).flatten()
        });
        let rest_for_good = answers && file.snapshots.is_some() && rest_for_good(authority);
        let known = |node: NodeName| {
            let record = if answers { Record::read(node, authority).ok().flatten() } else { None };
            let (seen, stage) = reconcile(state.seen(node), record.as_ref());
            let said = answers.then_some(stage);
            let standing = match (&memory, node.kind) {
                (Some(memory), NodeKind::Memory) => memory.nodes.get(usize::from(node.index)),
                _ => None,
            };
            let judged = match judge(made.id(node), node, seen, said, members.as_ref()) {
                SERVING if node.kind == NodeKind::Compute && rest_for_good => RESTING,
                _ if standing == Some(&MemoryStanding::Lost) => LOST,
                _ if standing == Some(&MemoryStanding::Joining) => "joining",
                _ if standing == Some(&MemoryStanding::OutOfReach) => "last copies lost",
                SERVING if is_new(file, node, record.as_ref(), members.as_ref()) => "returning",
                state => state,
            };
            let process = match seen {
                ProcessState::Running(process) | ProcessState::Ended(process) => Some(process),
                ProcessState::Never => record.as_ref().map(|record| record.process.id),
                ProcessState::Down => None,
            };
            let is_here = matches!(seen, ProcessState::Running(_));
            Known { node, process, is_here, stage, state: judged, figures: None }
        };
        let nodes: Vec<Known> = NodeName::all(file).map(known).collect();
        let copies = memory.as_ref().and_then(|memory| memory.copies.iter().copied().min());
        let data = if answers { Data::read(authority).ok() } else { None };
        Self { file, refused, members, differs, copies, data, nodes }
    }

    /// State of the data, if the authority has answered.
    pub fn data(&self) -> Option<&Data> {
        self.data.as_ref()
    }

    /// Whether compute node 0 is creating and filling the tables.
    pub fn is_loading(&self) -> bool {
        matches!(self.data, Some(Data::Loading { .. })) && self.members.is_some()
    }

    /// Serving nodes of a kind.
    pub fn serving(&self, kind: NodeKind) -> Vec<NodeName> {
        let serving = self.nodes.iter().filter(|one| one.node.kind == kind);
        serving.filter(|one| one.state == SERVING).map(|one| one.node).collect()
    }

    /// Whether all nodes serve, and all data is loaded.
    pub fn all_serve(&self) -> bool {
        let serve = self.nodes.iter().all(|one| one.state == SERVING);
        serve && self.data == Some(Data::Loaded)
    }

    /// Progress of filling the tables, in words; empty if the tables are not being filled.
    pub fn rows_in_words(&self) -> String {
        match &self.data {
            Some(Data::Loading { rows, .. }) if self.is_loading() => format!("{rows} rows so far"),
            _ => String::new(),
        }
    }

    /// Number of serving nodes, with the nodes not started yet, or else the state of the first node
    /// that does not serve, in words.
    pub fn in_words(&self) -> String {
        let serving = self.nodes.iter().filter(|one| one.state == SERVING).count();
        let said = format!("{serving} of {} nodes serve", self.nodes.len());
        let absent = self.absent();
        let first = self.nodes.iter().find(|one| one.state != SERVING);
        match first {
            _ if !absent.is_empty() => format!("{said}; {absent}"),
            Some(first) => format!("{said}: {} is {}", first.node.in_words(), first.state),
            None => said,
        }
    }

    /// Nodes of other hosts that have never reported, and the remedy, in words; empty if there are
    /// no such nodes, or the authority does not answer.
    pub fn absent(&self) -> String {
        let absent = self.nodes.iter().filter(|one| one.state == UNKNOWN);
        let in_words = absent.map(|one| {
            let address = Addresses::of(self.file, one.node).address;
            let at = address.map_or(String::new(), |address| format!(" ({address})"));
            format!("{}{at}", one.node.in_words())
        });
        let in_words: Vec<String> = in_words.collect();
        match in_words.is_empty() || self.refused.is_some() {
            true => String::new(),
            false => format!(
                "not started: {}; lotus cluster up on their hosts starts them",
                in_words.join(", ")
            ),
        }
    }

    /// Whether the cluster exists and a compute node serves.
    pub fn goes_on(&self) -> bool {
        self.members.is_some() && !self.serving(NodeKind::Compute).is_empty()
    }

    /// Whether a node has reported that it serves, and the node's process runs on this host; other
    /// nodes need not use the node yet.
    pub fn has_come_up(&self, node: NodeName) -> bool {
        let is_up = |one: &Known| one.is_here && one.stage == Some(Stage::Serving);
        self.nodes.iter().any(|one| one.node == node && is_up(one))
    }

    /// State of a node, in one word.
    pub fn state(&self, node: NodeName) -> &'static str {
        self.nodes.iter().find(|one| one.node == node).map_or(UNKNOWN, |one| one.state)
    }

    /// The survey without its details.
    pub fn outline(&self) -> Outline {
        Outline {
            authority: self.refused.as_ref().map_or("answers", |(word, _)| word),
            reason: self.refused.as_ref().map(|(_, why)| why.clone()),
            epoch: self.members.as_ref().map(|now| now.epoch().0),
            copies: self.copies,
            data: self.data.as_ref().map(|data| match data {
                Data::Loaded => "loaded",
                Data::Loading { .. } => "not loaded yet",
                Data::CutShort { .. } => "not whole",
            }),
            states: self.nodes.iter().map(|one| (one.node, one.state)).collect(),
        }
    }

    /// Adds the compute nodes' reports on themselves, and on memory nodes. A node that was asked
    /// and has not answered does not count as serving.
    fn with_figures(mut self, asked: &[NodeName], said: &[Option<Figures>]) -> Self {
        let silent = said.iter().flatten().fold(0, |all, one| all | one.silent);
        for one in &mut self.nodes {
            let at = asked.iter().position(|asked| *asked == one.node);
            one.figures = at.and_then(|at| said[at]);
            if at.is_some() && one.figures.is_none() && one.state == SERVING {
                one.state = SILENT;
            }
            let is_silent = one.node.kind == NodeKind::Memory && silent & 1 << one.node.index != 0;
            if is_silent && one.state == SERVING {
                one.state = SILENT;
            }
        }
        self
    }

    /// Converts the survey to its output form.
    pub fn into_status(self) -> Status {
        let node = |one: &Known| {
            let Addresses { address, client, metrics } = Addresses::of(self.file, one.node);
            let here = one.process.filter(|_| one.is_here);
            NodeStatus {
                node: one.node,
                address,
                client,
                metrics,
                process: one.process,
                processor_s: here.and_then(processor_time).map(|time| time.as_secs_f64()),
                shards: one.figures.map(|figures| figures.shards_owned),
                shards_given: one.figures.map(|figures| figures.ownership.shards),
                local_locks: one.figures.as_ref().and_then(shards::local_locks),
                memory: None,
                state: one.state,
            }
        };
        let cut_short = match &self.data {
            Some(Data::CutShort { why }) => Some(why.clone()),
            _ => None,
        };
        let Outline { authority, reason, epoch, copies, data, .. } = self.outline();
        Status {
            healthy: self.all_serve() && self.members.as_ref().is_none_or(|m| m.cuts().is_empty()),
            data,
            cut_short,
            cuts: self.members.as_ref().map_or_else(Vec::new, |now| cuts(self.file, now)),
            file_differs: self.differs.clone(),
            authority,
            reason,
            epoch,
            copies,
            memory_used: None,
            groups: Vec::new(),
            nodes: self.nodes.iter().map(node).collect(),
            tables: Vec::new(),
        }
    }
}

/// Cut paths between compute nodes, as reported.
fn cuts(file: &ClusterFile, now: &Membership) -> Vec<[NodeName; 2]> {
    let named = |id| NodeName::all(file).find(|node| node.id(file) == id);
    now.cuts().iter().filter_map(|cut| Some([named(cut.by)?, named(cut.to)?])).collect()
}

/// Whether `lotus cluster down` has brought all compute nodes to rest, and has not ended them yet.
fn rest_for_good(authority: &ClusterAuthority) -> bool {
    matches!(Rest::read(authority), Ok(Some(rest)) if rest.secs.is_none())
}

/// Combines the process that this host remembers for a node with the node's last record. Returns
/// the process, and the last stage reported by that process.
fn reconcile(remembered: ProcessState, record: Option<&Record>) -> (ProcessState, Option<Stage>) {
    let Some(record) = record else { return (remembered, None) };
    let (spoke, stage) = (record.process.id, Some(record.stage));
    match (remembered, record.runs()) {
        (ProcessState::Running(process), _) if process == spoke => (remembered, stage),
        // The running process has not reported yet.
        (ProcessState::Running(_), _) => (remembered, None),
        (_, Some(true)) => (ProcessState::Running(spoke), stage),
        (ProcessState::Never, Some(false)) => (ProcessState::Ended(spoke), stage),
        (_, Some(false)) => (remembered, stage),
        // The process may be running where this process cannot see it.
        (_, None) => (ProcessState::Never, stage),
    }
}

/// Whether a memory node's process joined an existing cluster that does not use its memory yet.
fn is_new(
    file: &ClusterFile,
    node: NodeName,
    record: Option<&Record>,
    members: Option<&Membership>,
) -> bool {
    let (Some(now), Some(found)) = (members, record.and_then(|record| record.found)) else {
        return false;
    };
    let used = now.life_of(node.id(file));
    node.kind == NodeKind::Memory && !used.is_some_and(|life| life.is_since(Epoch(found)))
}

/// State of the memory nodes, as agreed on by the members.
pub fn memory_left(file: &ClusterFile, now: &Membership) -> Option<MemoryStatus> {
    let nodes = NodeName::all(file).filter(|node| node.kind == NodeKind::Memory);
    let nodes: Vec<_> = nodes.map(|node| node.id(file)).collect();
    let first = Placement::new(&nodes, file.settings.replicas).ok()?;
    Some(MemoryStatus::new(&first, &now.surviving(&first), &now.out_of_reach(&first)))
}

/// State of a node, in one word. `member` is the node's id in the cluster, unless the cluster was
/// created without the node; `said` is `None` if the authority does not answer.
fn judge(
    member: Option<NodeId>,
    node: NodeName,
    seen: ProcessState,
    said: Option<Option<Stage>>,
    members: Option<&Membership>,
) -> &'static str {
    let expelled = match (node.kind, member, members) {
        (NodeKind::Compute, Some(member), Some(now)) if !now.is_live(member) => {
            Some(now.is_resolved(member))
        }
        _ => None,
    };
    match (seen, said) {
        _ if expelled == Some(true) => "expelled",
        _ if expelled == Some(false) => "in recovery",
        (ProcessState::Ended(_) | ProcessState::Down, _)
        | (ProcessState::Never, Some(Some(Stage::Ended))) => "ended",
        (ProcessState::Running(_), None) => "running",
        (ProcessState::Never, None | Some(None)) => UNKNOWN,
        (_, Some(Some(Stage::Serving))) => SERVING,
        (_, Some(Some(Stage::Ending | Stage::Ended))) => "ending",
        (_, Some(Some(Stage::Starting | Stage::Opening) | None)) => "starting",
    }
}

/// Addresses of a node: for other nodes, for applications, and for metrics.
pub struct Addresses {
    /// Address for other nodes.
    pub address: Option<HostPort>,
    client: Option<HostPort>,
    /// Address of the node's metrics.
    pub metrics: Option<HostPort>,
}

impl Addresses {
    /// Addresses of a node according to the file.
    pub fn of(file: &ClusterFile, node: NodeName) -> Self {
        let address = match &file.net {
            Net::Shm { .. } => None,
            Net::Tcp { addresses, .. } => {
                addresses.get(&node.id(file)).map(|at| at.address.clone())
            }
        };
        let compute = match node.kind {
            NodeKind::Memory => None,
            NodeKind::Compute => file.compute_nodes.get(usize::from(node.index)),
        };
        let client = compute.and_then(|node| Some(node.client.as_ref()?.address.clone()));
        let metrics = match node.kind {
            NodeKind::Memory => file.memory_nodes[usize::from(node.index)].metrics.clone(),
            NodeKind::Compute => compute.and_then(|node| node.metrics.clone()),
        };
        Self { address, client, metrics }
    }
}

fn table(status: &Status) -> String {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    let places = ["node", "address", "client", "metrics", "process"];
    let figures = ["cpu s", "shards", "given", "local locks", "memory", "state"];
    table.set_header(places.into_iter().chain(figures));
    for node in &status.nodes {
        table.add_row([
            node.node.to_string(),
            or_dash(node.address.as_ref(), |address| address.to_string()),
            or_dash(node.client.as_ref(), |address| address.to_string()),
            or_dash(node.metrics.as_ref(), |address| address.to_string()),
            or_dash(node.process, |process| process.to_string()),
            or_dash(node.processor_s, |time| format!("{time:.2}")),
            or_dash(node.shards, |shards| shards.to_string()),
            or_dash(node.shards_given, |given| given.to_string()),
            or_dash(node.local_locks, percent),
            or_dash(node.memory, |memory| memory.in_words()),
            node.state.to_owned(),
        ]);
    }
    let mut text = format!("{}\n", table.trim_fmt());
    let health = if status.healthy { "healthy" } else { "not healthy" };
    let epoch = status.epoch.map_or(String::new(), |epoch| format!(", epoch {epoch}"));
    let copies = status.copies.map_or(String::new(), |copies| format!(", copies of rows {copies}"));
    let used = status.memory_used.map(|used| format!(", memory used {}", percent(used)));
    let used = used.unwrap_or_default();
    // Writing to a string cannot fail.
    let data = status.data.map_or(String::new(), |data| format!(", data {data}"));
    let reason = status.reason.as_ref();
    let reason = reason.map_or(String::new(), |why| format!(" ({})", printable(why)));
    let said = format!("the authority: {}{reason}{epoch}{copies}{data}{used}", status.authority);
    let _ = writeln!(text, "{health}; {said}");
    if let Some(why) = &status.file_differs {
        let _ = writeln!(text, "{}: nodes with this file do not take part", printable(why));
    }
    if let Some(why) = status.cut_short.as_deref().map(printable) {
        let _ = writeln!(
            text,
            "the data is not whole, and the cluster will never serve: {why}\n\
             lotus cluster down --no-snapshot ends it, and lotus cluster up begins anew"
        );
    }
    for [by, to] in &status.cuts {
        let (by, to) = (by.in_words(), to.in_words());
        let _ = writeln!(text, "{by} does not reach {to}: one of the two is about to give way");
    }
    if status.nodes.iter().any(|node| node.state == RESTING) {
        let _ = writeln!(
            text,
            "the compute nodes rest behind a last snapshot, and lotus cluster down ends them; if \
             that was cut short, give it again, or lotus cluster up to let them serve"
        );
    }
    text += &memory::listed(&status.tables);
    if status.memory_used.is_some_and(|used| used >= NEARLY_FULL) {
        let _ = writeln!(
            text,
            "warning: memory is nearly full. Inserts fail when it is; deleted rows make room, as \
             does a larger `memory` when the cluster is made again"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_warns_before_memory_is_full() {
        for (memory_used, warns) in [(None, false), (Some(0.89), false), (Some(0.9), true)] {
            let (authority, epoch, copies) = ("answers", Some(3), Some(2));
            let (nodes, groups, tables) = (Vec::new(), Vec::new(), Vec::new());
            let (reason, data, cut_short) = (None, None, None);
            let status = Status {
                healthy: true,
                authority,
                reason,
                epoch,
                copies,
                data,
                cuts: Vec::new(),
                cut_short,
                file_differs: None,
                memory_used,
                groups,
                nodes,
                tables,
            };
            let text = table(&status);
            assert_eq!(text.contains("warning: memory"), warns, "{text}");
            assert_eq!(text.contains("memory used"), memory_used.is_some(), "{text}");
        }
    }
}
