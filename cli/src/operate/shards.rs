//! `lotus shards`: owners of shards, and moving shards by hand.
//!
//! The command asks the nodes ([`operator`](lotus_node::requests::operator)): a single node for the
//! owners, and every node for its figures. An order to move shards goes to a single node, which
//! passes it on to the owners.

use std::fmt::Write as _;
use std::time::Duration;

use comfy_table::Table;
use lotus::LockKind;
use lotus_authority::Authority;
use lotus_recovery::membership;
use serde::Serialize;

use super::ranges;
use lotus_node::agree::cluster_authority::authority;
use lotus_node::agree::mailbox::may_take_part;
use lotus_node::agree::records::{Record, Stage};
use lotus_node::config::file::ClusterFile;
use lotus_node::config::name::{NodeKind, NodeName};
use lotus_node::config::settings::lock_name;
use lotus_node::requests::operator::{
    ANSWERING, Answer, Figures, MoveResult, Owners, Ownership, Question, Refused, Shard, Switch,
    figures, mailbox, silent_memory,
};
use lotus_runner::show::Verdict;
use lotus_runner::show::screen::{or_dash, percent, say};

/// Timeout of a move: each owner is asked for 128 shards at a time, and waits for transactions that
/// hold locks of these shards.
const MOVING: Duration = Duration::from_secs(60);
/// Maximum number of orders to move shards that load balancing, or another command, moves at the
/// same time.
const ROUNDS: usize = 5;
/// Maximum number of ranges in a line, and of hottest shards shown.
const MOST_RANGES: usize = 6;
const HOTTEST: usize = 8;

/// Selection of shards to show.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only shards with rows of this table.
    pub table: Option<String>,
    /// Only shards of this compute node.
    pub cn: Option<u16>,
}

/// Compute nodes that can answer.
struct Nodes<'a> {
    file: &'a ClusterFile,
    authority: Box<dyn Authority>,
    serving: Vec<NodeName>,
}

impl<'a> Nodes<'a> {
    fn find(file: &'a ClusterFile) -> Result<Self, String> {
        let path = file.path.display();
        let authority = authority(file)?;
        let connected = authority.connect();
        connected.map_err(|error| format!("the cluster of {path} does not run: {error}"))?;
        let members = membership::read(&authority);
        let members = members.map_err(|error| format!("the cluster of {path}: {error}"))?;
        let serves = |node: &NodeName| {
            let record = Record::read(*node, &authority).ok().flatten();
            let says_so = record.is_some_and(|record| record.stage == Stage::Serving);
            node.kind == NodeKind::Compute && says_so && members.is_live(node.id(file))
        };
        let serving: Vec<_> = NodeName::all(file).filter(serves).collect();
        if serving.is_empty() {
            return Err(format!("no compute node of {path} serves"));
        }
        Ok(Self { file, authority: Box::new(authority), serving })
    }

    /// Returns the compute node with an index, if the file describes it.
    fn describes(&self, index: u16) -> Result<NodeName, String> {
        let (path, count) = (self.file.path.display(), self.file.settings.compute_nodes);
        let node = NodeName { kind: NodeKind::Compute, index };
        let is_there = usize::from(index) < count;
        let why =
            || format!("{path} describes no {}: there are {count}, from 0 on", node.in_words());
        is_there.then_some(node).ok_or_else(why)
    }

    /// Asks the nodes one after the other until a node answers.
    fn ask_any(&self, question: &Question, patience: Duration) -> Result<Answer, String> {
        let mut why = String::new();
        for node in &self.serving {
            let authority = &*self.authority;
            let may_answer = || may_take_part(self.file, authority, *node);
            let asked = mailbox(*node).put_while(authority, question, ANSWERING, may_answer);
            let asked = asked.map_err(|error| error.to_string())?;
            match asked.wait_while(authority, patience, may_answer) {
                Ok(Answer::Failed(said)) => why = format!("{}: {said}", node.in_words()),
                Ok(answer) => return Ok(answer),
                Err(silent) => why = silent,
            }
        }
        Err(why)
    }

    fn owners(&self) -> Result<Owners, String> {
        match self.ask_any(&Question::Owners, ANSWERING)? {
            Answer::Owners(owners) => Ok(owners),
            _ => Err("a compute node has answered something else".to_owned()),
        }
    }
}

impl Nodes<'_> {
    fn move_all(&self, shards: Vec<u16>, to: NodeName) -> Result<MoveResult, String> {
        match self.ask_any(&Question::Move { shards, to: to.index }, MOVING)? {
            Answer::Moved(outcome) => Ok(outcome),
            _ => Err("a compute node has answered something else".to_owned()),
        }
    }
}

/// `lotus shards`: shows the owners of shards.
///
/// # Errors
/// A sentence.
pub fn show(file: &ClusterFile, filter: &Filter, as_json: bool) -> Result<Verdict, String> {
    let nodes = Nodes::find(file)?;
    let only = filter.cn.map(|index| nodes.describes(index)).transpose()?;
    let owners = nodes.owners()?;
    let count = match &filter.table {
        None => owners.shards.len(),
        Some(table) => shards_of(&owners, table)?,
    };
    let figures = figures(&*nodes.authority, &nodes.serving);
    let figures: Vec<_> = nodes.serving.iter().copied().zip(figures).collect();
    let all = NodeName::all(file).filter(|node| node.kind == NodeKind::Compute);
    let shown = all.filter(|node| only.is_none_or(|only| only == *node));
    let of = |owner: Option<u16>| of_owner(&owners.shards[..count], owner);
    let said = |node: &NodeName| figures.iter().find(|(known, _)| known == node)?.1;
    let rows = shown.map(|node| {
        NodeShards::new(node.to_string(), &of(Some(node.index)), said(&node), interval(file))
    });
    let view = View {
        balancing: figures.iter().find_map(|(_, said)| said.map(|said| said.balancing)),
        nodes: rows.collect(),
        unowned: ranges::pieces(&numbers(&of(None))),
    };
    say(&if as_json {
        let json = serde_json::to_string_pretty(&view).expect("strings and numbers");
        format!("{json}\n")
    } else {
        view.table(only.is_some())
    })
}

fn shards_of(owners: &Owners, table: &str) -> Result<usize, String> {
    let found = owners.tables.iter().find(|(name, _)| name == table);
    let names = || owners.tables.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>();
    let why = || format!("the cluster has no table {table}, but {}", names().join(", "));
    found.map(|(_, shards)| *shards as usize).ok_or_else(why)
}

fn of_owner(shards: &[Shard], owner: Option<u16>) -> Vec<(u16, Shard)> {
    let numbered = (0..).zip(shards.iter().copied());
    numbered.filter(|(_, shard)| shard.owner == owner).collect()
}

fn numbers(shards: &[(u16, Shard)]) -> Vec<u16> {
    shards.iter().map(|(number, _)| *number).collect()
}

/// Interval for counting requests.
fn interval(file: &ClusterFile) -> Option<Duration> {
    file.settings.balance
}

#[derive(Debug, Serialize)]
struct View {
    /// State of load balancing, from the first node that answers.
    balancing: Option<Switch>,
    nodes: Vec<NodeShards>,
    /// Ranges of shards without an owner.
    unowned: Vec<String>,
}

/// Shards of a compute node.
#[derive(Debug, Serialize)]
struct NodeShards {
    node: String,
    shards: usize,
    ranges: Vec<String>,
    /// Lowest and highest shard epoch.
    epochs: Option<(u32, u32)>,
    /// Lock requests per second; counted only with load balancing.
    requests_per_s: Option<f64>,
    /// Share of the locks of the node's transactions that the node granted itself.
    local_locks: Option<f64>,
    /// Shards given to other nodes, and the number of hand-overs.
    shards_given: Option<u64>,
    hand_overs: Option<u64>,
    interruption_us_max: Option<u64>,
    too_hot: Option<u16>,
    hottest: Vec<HotShard>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct HotShard {
    shard: u16,
    epoch: u32,
    requests_per_s: f64,
}

impl NodeShards {
    fn new(
        node: String,
        shards: &[(u16, Shard)],
        said: Option<Figures>,
        interval: Option<Duration>,
    ) -> Self {
        let rate = |requests: u64| interval.map(|time| requests as f64 / time.as_secs_f64());
        let epochs = || shards.iter().map(|(_, shard)| shard.epoch);
        let mut hottest: Vec<_> = shards.iter().filter(|(_, one)| one.requests > 0).collect();
        hottest.sort_by_key(|(number, shard)| (std::cmp::Reverse(shard.requests), *number));
        let hot = |(number, shard): &(u16, Shard)| {
            let (shard, epoch, requests_per_s) = (*number, shard.epoch, rate(shard.requests)?);
            Some(HotShard { shard, epoch, requests_per_s })
        };
        let moves = said.map(|said| said.ownership);
        Self {
            node,
            shards: shards.len(),
            ranges: ranges::pieces(&numbers(shards)),
            epochs: epochs().min().zip(epochs().max()),
            requests_per_s: rate(shards.iter().map(|(_, shard)| shard.requests).sum()),
            local_locks: said.as_ref().and_then(local_locks),
            shards_given: moves.map(|moves| moves.shards),
            hand_overs: moves.map(|moves| moves.hand_overs),
            interruption_us_max: moves.map(|moves| moves.longest.as_micros() as u64),
            too_hot: said.and_then(|said| said.ownership.too_hot),
            hottest: hottest.into_iter().take(HOTTEST).filter_map(hot).collect(),
        }
    }

    fn which(&self, most: usize) -> String {
        match self.ranges.len().checked_sub(most) {
            Some(left @ 1..) => format!("{} and {left} more", self.ranges[..most].join(",")),
            _ => self.ranges.join(","),
        }
    }
}

/// Share of the locks of a node's transactions that the node granted itself; `None` without locks.
pub fn local_locks(figures: &Figures) -> Option<f64> {
    let Ownership { locks, own_locks, .. } = figures.ownership;
    (locks > 0).then(|| own_locks as f64 / locks as f64)
}

impl View {
    /// Formats the view for a person; with all ranges if a single node was selected.
    fn table(&self, in_full: bool) -> String {
        let mut table = Table::new();
        table.load_preset(comfy_table::presets::NOTHING);
        let locks = "local locks";
        table.set_header(["node", "shards", "epochs", "requests/s", locks, "given", "which"]);
        let most = if in_full { usize::MAX } else { MOST_RANGES };
        for node in &self.nodes {
            table.add_row([
                node.node.clone(),
                node.shards.to_string(),
                or_dash(node.epochs, |(low, high)| match low == high {
                    true => low.to_string(),
                    false => format!("{low} to {high}"),
                }),
                or_dash(node.requests_per_s, |rate| format!("{rate:.0}")),
                or_dash(node.local_locks, percent),
                or_dash(node.shards_given, |given| given.to_string()),
                node.which(most),
            ]);
        }
        let mut text = format!("{}\n", table.trim_fmt());
        // Writing to a string cannot fail.
        if !self.unowned.is_empty() {
            let _ = writeln!(text, "no node grants locks of {}", self.unowned.join(","));
        }
        for node in self.nodes.iter().filter(|_| in_full) {
            for HotShard { shard, epoch, requests_per_s } in &node.hottest {
                let rate = format!("{requests_per_s:.0} requests/s");
                let _ = writeln!(text, "shard {shard}, epoch {epoch}: {rate}");
            }
        }
        for node in &self.nodes {
            let Some(shard) = node.too_hot else { continue };
            let name = &node.node;
            let _ =
                writeln!(text, "shard {shard} takes most of {name}'s time, and would elsewhere");
        }
        text.push_str(match self.balancing {
            Some(Switch::On) => "load balancing: on\n",
            Some(Switch::Paused) => "load balancing: turned off\n",
            Some(Switch::Never) => "load balancing: not configured\n",
            None => "load balancing: no node answers\n",
        });
        text
    }
}

/// `lotus shards move`: has shards moved to a compute node.
///
/// # Errors
/// A sentence. Some of the shards may have moved; the sentence says how many.
pub fn start_move(file: &ClusterFile, shards: &[u16], to: NodeName) -> Result<Verdict, String> {
    check_owners(file)?;
    let nodes = Nodes::find(file)?;
    nodes.describes(to.index)?;
    if !nodes.serving.contains(&to) {
        return Err(format!("{} does not serve", to.in_words()));
    }
    if let Some(silent) = silent_memory(&*nodes.authority, &nodes.serving) {
        return Err(format!("{} does not answer, so no shard can be moved", silent.in_words()));
    }
    let (mut moved, mut longest_us, mut outrun) = (0, 0, None);
    for _ in 0..ROUNDS {
        let owners = nodes.owners()?.shards;
        let is_elsewhere = |shard: &u16| owners[usize::from(*shard)].owner != Some(to.index);
        let wanted: Vec<u16> = shards.iter().copied().filter(is_elsewhere).collect();
        if wanted.is_empty() {
            outrun = None;
            break;
        }
        let outcome = nodes.move_all(wanted, to)?;
        (moved, longest_us) = (moved + outcome.moved, longest_us.max(outcome.longest_us));
        outrun = outcome.refused.into_iter().max_by_key(|refused| !refused.outrun);
        if outrun.as_ref().is_none_or(|refused| !refused.outrun) {
            break;
        }
    }
    let name = |count: usize| if count == 1 { "shard" } else { "shards" };
    if let Some(Refused { shards: left, why, .. }) = outrun {
        let left = ranges::line(&left, MOST_RANGES);
        return Err(format!("{why}: {left} stayed, and {moved} of {} moved", shards.len()));
    }
    if moved == 0 {
        let (name, line) = (name(shards.len()), ranges::line(shards, MOST_RANGES));
        return Err(format!("{} has {name} {line} already", to.in_words()));
    }
    let name = name(moved);
    say(&format!("{to}: {moved} {name} more; interrupted for {longest_us} us at most\n"))
}

/// Refuses a cluster with locks on memory nodes: no compute node owns the locks of a shard.
fn check_owners(file: &ClusterFile) -> Result<(), String> {
    let locks = file.settings.locks;
    if locks == LockKind::Lotus {
        return Ok(());
    }
    let (path, name) = (file.path.display(), lock_name(locks));
    Err(format!(
        "{path} says locks = \"{name}\": locks on memory nodes have no owners, so shards do not \
         move"
    ))
}

/// `lotus shards balance`: turns load balancing on or off, until the nodes end.
///
/// # Errors
/// A sentence.
pub fn balance(file: &ClusterFile, switch: Switch) -> Result<Verdict, String> {
    check_owners(file)?;
    if file.settings.balance.is_none() {
        let path = file.path.display();
        return Err(format!("the cluster of {path} was made without load balancing"));
    }
    let nodes = Nodes::find(file)?;
    let authority = &*nodes.authority;
    for node in &nodes.serving {
        let asked = mailbox(*node).put(authority, &Question::Balance(switch), ANSWERING);
        let asked = asked.map_err(|error| error.to_string())?;
        match asked.wait(authority, ANSWERING)? {
            Answer::Switched(now) if now == switch => {}
            _ => return Err(format!("{} has not done it", node.in_words())),
        }
    }
    let word = if switch == Switch::On { "on" } else { "turned off" };
    say(&format!("load balancing: {word}\n"))
}
