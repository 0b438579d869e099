//! Schedules of faults: JSON lines, one fault per line.
//!
//! # What it is
//! ```text
//! {"at_ms":1200,"node":"cn-1","fault":"pause"}
//! {"at_ms":1900,"node":"cn-1","fault":"resume"}
//! # from here on it is gone
//! {"at_ms":4000,"node":"cn-1","fault":"kill"}
//! ```
//! Faults come in the order of time. Empty lines, and lines that begin with `#`, are ignored. An
//! invalid line is an error with the line number.
//!
//! A `wait` has no node: later events are delayed until every restarted node takes part, and every
//! node that is killed, paused or cut off is given up. Distances between later events are kept. The
//! length of the wait depends on the machine:
//! ```text
//! {"at_ms":4000,"node":"cn-1","fault":"restart"}
//! {"at_ms":4500,"fault":"wait"}
//! {"at_ms":5000,"node":"cn-0","fault":"kill"}
//! ```
//!
//! Two more events have no node: a `snapshot` is taken under load, and a `restore` ends the cluster
//! with a snapshot and starts it from there. Faults meanwhile are in the restore's own two lists,
//! with times that count from the beginning of the ending or of the start:
//! ```text
//! {"at_ms":5000,"fault":"snapshot"}
//! {"at_ms":9000,"fault":"restore","ending":[{"at_ms":90,"node":"cn-1","fault":"kill"}],
//!  "starting":[{"at_ms":250,"node":"cn-0","fault":"kill"}]}
//! ```
//!
//! The path between two nodes is cut, and healed, while both reach all others; `node` is the end
//! that gives way if the cut lasts, always a compute node, and of two the younger one:
//! ```text
//! {"at_ms":1000,"node":"cn-2","fault":"cut","other":"cn-1"}
//! {"at_ms":9000,"node":"cn-2","fault":"heal","other":"cn-1"}
//! ```
//!
//! # What may be struck
//! [`Bounds::may_strike`] and [`Bounds::may_cut`] alone decide what a cluster survives.
//!
//! # What it is not
//! Actions: this module is pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::events::{Event, Restore};
use lotus_node::config::name::{NodeKind, NodeName};

/// A fault of a node's process, or of its network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The process ends at once (SIGKILL).
    Kill,
    /// The process is paused (SIGSTOP).
    Pause,
    /// The process is resumed (SIGCONT).
    Resume,
    /// The node is restarted, as a new incarnation; a running process is killed first.
    Restart,
    /// The node's cable is pulled.
    Partition,
    /// The node's cable is plugged in again.
    Heal,
    /// The path to the given node is cut; other paths stay open.
    Cut(NodeName),
    /// The path to the given node is healed.
    Mend(NodeName),
}

impl Fault {
    /// Name in a schedule.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Restart => "restart",
            Self::Partition => "partition",
            Self::Cut(_) => "cut",
            Self::Heal | Self::Mend(_) => "heal",
        }
    }

    /// Node at the other end of a cut or healed path.
    pub fn other(self) -> Option<NodeName> {
        match self {
            Self::Cut(other) | Self::Mend(other) => Some(other),
            _ => None,
        }
    }

    /// Whether the fault takes the node away, or may, until a later fault brings it back.
    pub fn goes_away(self) -> bool {
        matches!(self, Self::Kill | Self::Pause | Self::Partition | Self::Cut(_))
    }
}

/// One fault at one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Line", into = "Line")]
pub struct Strike {
    /// Milliseconds since the load began.
    pub at_ms: u64,
    /// Node to strike.
    pub node: NodeName,
    /// Fault.
    pub fault: Fault,
}

/// A strike in its written form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    at_ms: u64,
    node: NodeName,
    fault: Word,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    other: Option<NodeName>,
}

/// Names of faults.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Kill,
    Pause,
    Resume,
    Restart,
    Partition,
    Cut,
    Heal,
}

impl TryFrom<Line> for Strike {
    type Error = &'static str;

    fn try_from(line: Line) -> Result<Self, Self::Error> {
        let Line { at_ms, node, fault, other } = line;
        let fault = match (fault, other) {
            (Word::Cut, Some(other)) => Fault::Cut(other),
            (Word::Heal, Some(other)) => Fault::Mend(other),
            (Word::Cut, None) => return Err("cut needs the path's `other` end"),
            (_, Some(_)) => return Err("only cut and heal have an `other` end"),
            (Word::Kill, None) => Fault::Kill,
            (Word::Pause, None) => Fault::Pause,
            (Word::Resume, None) => Fault::Resume,
            (Word::Restart, None) => Fault::Restart,
            (Word::Partition, None) => Fault::Partition,
            (Word::Heal, None) => Fault::Heal,
        };
        Ok(Self { at_ms, node, fault })
    }
}

impl From<Strike> for Line {
    fn from(Strike { at_ms, node, fault }: Strike) -> Self {
        let word = match fault {
            Fault::Kill => Word::Kill,
            Fault::Pause => Word::Pause,
            Fault::Resume => Word::Resume,
            Fault::Restart => Word::Restart,
            Fault::Partition => Word::Partition,
            Fault::Cut(_) => Word::Cut,
            Fault::Heal | Fault::Mend(_) => Word::Heal,
        };
        Self { at_ms, node, fault: word, other: fault.other() }
    }
}

/// Invalid schedule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct ScheduleError {
    /// Line number, counted from one.
    pub line: usize,
    /// A sentence.
    pub why: String,
}

/// Properties of the cluster and of the run that limit a schedule.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Number of memory nodes.
    pub memory_nodes: usize,
    /// Number of memory nodes with a copy of each row.
    pub replicas: usize,
    /// Whether nodes have cables that can be pulled.
    pub cables: bool,
    /// Whether memory node 0 hosts the authority.
    pub hosts_authority: bool,
    /// Number of compute nodes.
    pub compute_nodes: usize,
    /// Time for which a compute node may be silent; `None` without leases.
    pub lease: Option<Duration>,
    /// Duration of the load.
    pub span: Duration,
    /// Whether there is a directory for snapshots.
    pub snapshots: bool,
}

/// Leases after its restart at which a memory node counts as a reliable copy. Its loss is noticed
/// after one lease, and a small load is copied in less than another lease.
pub const LEASES_TO_FILL: u64 = 4;

/// State of a node after the strikes so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NodeCondition {
    Runs,
    Stands,
    CutOff,
    /// The path to the given node is cut.
    CutFrom(NodeName),
    Dead,
}

impl Bounds {
    /// Whether this node hosts the authority. Once its memory has been given up, the cluster never
    /// uses that memory again.
    pub fn is_authority(&self, node: NodeName) -> bool {
        self.hosts_authority && node == NodeName { kind: NodeKind::Memory, index: 0 }
    }

    /// Longest permitted absence of the authority's host: half a lease, in which no node gives the
    /// host up.
    pub fn moment_ms(&self) -> u64 {
        self.lease.unwrap_or_default().as_millis() as u64 / 2
    }

    /// Checks that a cluster survives a fault of a node.
    ///
    /// # Errors
    /// A sentence that says why the cluster would not survive.
    pub fn may_strike(&self, node: NodeName, fault: Fault) -> Result<(), &'static str> {
        match (node.kind, fault) {
            (_, Fault::Partition | Fault::Heal | Fault::Cut(_) | Fault::Mend(_))
                if !self.cables =>
            {
                Err("it shares a network with the others; see --namespaces")
            }
            (_, Fault::Kill | Fault::Restart | Fault::Cut(_) | Fault::Mend(_))
                if self.is_authority(node) =>
            {
                Err("the authority would go with it")
            }
            (NodeKind::Memory, _) if self.replicas == 1 => Err("it has the only copies"),
            _ if self.lease.is_none() => {
                Err("without lease_ms no other node notices that it is gone")
            }
            _ => Ok(()),
        }
    }

    /// Checks that the path between `node`, which may give way, and `other` can be cut.
    ///
    /// # Errors
    /// A sentence that says why not.
    pub fn may_cut(&self, node: NodeName, other: NodeName) -> Result<(), &'static str> {
        match (node.kind, other.kind) {
            _ if node == other => Err("it is both ends of the path"),
            (NodeKind::Memory, NodeKind::Memory) => Err("memory nodes do not talk to one another"),
            (NodeKind::Memory, NodeKind::Compute) => {
                Err("the compute node gives way: it is the `node`, and this one the `other`")
            }
            (NodeKind::Compute, NodeKind::Memory) => {
                self.may_strike(other, Fault::Mend(node)).map_err(|why| match why {
                    "the authority would go with it" => "it would lose the authority as well",
                    why => why,
                })
            }
            (NodeKind::Compute, NodeKind::Compute) => Ok(()),
        }
    }

    /// Reads a schedule.
    ///
    /// # Errors
    /// [`ScheduleError`].
    pub fn parse(&self, text: &str) -> Result<Vec<Event>, ScheduleError> {
        let mut events: Vec<Event> = Vec::new();
        // Strikes since the last new start of the cluster.
        let mut strikes: Vec<Strike> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.trim_start().starts_with('#') {
                continue;
            }
            let refuse = |why| ScheduleError { line: index + 1, why };
            let event = Event::read(line).map_err(|error| refuse(in_one_line(&error)))?;
            self.check_time(events.last(), &event).map_err(refuse)?;
            match &event {
                Event::Strike(strike) => {
                    self.check(&strikes, *strike).map_err(refuse)?;
                    strikes.push(*strike);
                }
                Event::Snapshot { .. } => self.check_snapshots().map_err(refuse)?,
                Event::Wait { .. } => {}
                Event::Restore(restore) => {
                    self.check_return(&strikes).map_err(refuse)?;
                    self.check_restore(restore).map_err(refuse)?;
                    strikes.clear();
                }
            }
            events.push(event);
        }
        self.check_return(&strikes)
            .map_err(|why| ScheduleError { line: text.lines().count(), why })?;
        Ok(events)
    }

    /// Checks that the authority's host has returned in the end.
    fn check_return(&self, strikes: &[Strike]) -> Result<(), String> {
        match strikes.iter().rfind(|strike| self.is_authority(strike.node)) {
            Some(last) if last.fault.goes_away() => {
                Err(format!("{} is still away in the end, and the authority with it", last.node))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the authority's host was away for at most a moment before this strike.
    fn check_moment(&self, before: &[Strike], strike: Strike) -> Result<(), String> {
        let Strike { at_ms, node, fault } = strike;
        let last = before.iter().rfind(|earlier| earlier.node == node);
        let Some(since) = last.filter(|last| self.is_authority(node) && last.fault.goes_away())
        else {
            return Ok(());
        };
        let most = self.moment_ms();
        match fault.goes_away() || at_ms - since.at_ms <= most {
            true => Ok(()),
            false => {
                Err(format!("{node} has the authority: it may be away for {most} ms, half a lease"))
            }
        }
    }

    fn check_time(&self, before: Option<&Event>, event: &Event) -> Result<(), String> {
        let at_ms = event.at_ms();
        if before.is_some_and(|last| at_ms < last.at_ms()) {
            return Err(format!("at_ms goes back to {at_ms}"));
        }
        if u128::from(at_ms) > self.span.as_millis() {
            return Err(format!("at_ms is {at_ms}, when there is no load any more"));
        }
        Ok(())
    }

    fn check_snapshots(&self) -> Result<(), String> {
        let why = "no snapshot can be taken: the cluster's file has no [snapshots] directory";
        self.snapshots.then_some(()).ok_or_else(|| why.to_owned())
    }

    fn check_node(&self, node: NodeName) -> Result<(), String> {
        let count = match node.kind {
            NodeKind::Memory => self.memory_nodes,
            NodeKind::Compute => self.compute_nodes,
        };
        match usize::from(node.index) < count {
            true => Ok(()),
            false => Err(format!("there is no {node}: there are {count} of its kind, from 0 on")),
        }
    }

    /// Checks strikes during the end and the start of the cluster.
    fn check_restore(&self, restore: &Restore) -> Result<(), String> {
        self.check_snapshots()?;
        for (list, strikes) in [("ending", &restore.ending), ("starting", &restore.starting)] {
            let mut last_ms = 0;
            for Strike { at_ms, node, fault } in strikes.iter().copied() {
                self.check_node(node)?;
                let refuse = |why: &str| {
                    Err(format!("{list}: {node} cannot be struck by {}: {why}", fault.name()))
                };
                match (list, fault) {
                    _ if at_ms < last_ms => return refuse("at_ms goes back"),
                    _ if self.lease.is_none() => {
                        return refuse("without lease_ms no other node notices that it is gone");
                    }
                    (_, Fault::Partition | Fault::Heal | Fault::Cut(_) | Fault::Mend(_)) => {
                        return refuse("no cable is pulled");
                    }
                    ("starting", Fault::Restart) => {
                        return refuse("nodes that have ended by then are started again anyway");
                    }
                    ("ending", _) if node.kind == NodeKind::Memory => {
                        return refuse("no snapshot can be taken then");
                    }
                    _ => last_ms = at_ms,
                }
            }
        }
        Ok(())
    }

    /// Checks that a fault can follow the earlier strikes.
    fn check(&self, before: &[Strike], strike: Strike) -> Result<(), String> {
        let Strike { node, fault, .. } = strike;
        self.check_node(node)?;
        if let Err(why) = self.may_strike(node, fault) {
            return Err(format!("{node} cannot be struck by {}: {why}", fault.name()));
        }
        if let Some(other) = fault.other() {
            self.check_node(other)?;
            self.may_cut(node, other).map_err(|why| {
                format!(
                    "the path from {node} to {other} cannot be struck by {}: {why}",
                    fault.name()
                )
            })?;
        }
        self.check_moment(before, strike)?;
        if fault != Fault::Restart {
            self.check_survivors(before, strike)?;
        }
        let condition = before.iter().rfind(|earlier| earlier.node == node);
        let condition = condition.map_or(NodeCondition::Runs, |earlier| match earlier.fault {
            Fault::Kill => NodeCondition::Dead,
            Fault::Pause => NodeCondition::Stands,
            Fault::Partition => NodeCondition::CutOff,
            Fault::Cut(other) => NodeCondition::CutFrom(other),
            Fault::Resume | Fault::Restart | Fault::Heal | Fault::Mend(_) => NodeCondition::Runs,
        });
        match (condition, fault) {
            (NodeCondition::CutFrom(from), Fault::Mend(other)) if from == other => Ok(()),
            (NodeCondition::CutFrom(from), _) => Err(format!("{node} is cut from {from}")),
            (NodeCondition::Runs, Fault::Mend(other)) => {
                Err(format!("{node} is not cut from {other}"))
            }
            (NodeCondition::Dead, Fault::Restart) => Ok(()),
            (_, Fault::Restart) if node.kind == NodeKind::Memory => {
                Err(format!("{node} has not been killed before"))
            }
            (NodeCondition::Dead, _) => Err(format!("{node} has been killed before")),
            (NodeCondition::Stands, Fault::Pause) => Err(format!("{node} is paused already")),
            (NodeCondition::CutOff, Fault::Partition) => Err(format!("{node} is cut off already")),
            (
                NodeCondition::Stands,
                Fault::Partition | Fault::Heal | Fault::Cut(_) | Fault::Mend(_),
            ) => Err(format!("{node} is paused")),
            (
                NodeCondition::CutOff,
                Fault::Pause | Fault::Resume | Fault::Restart | Fault::Cut(_) | Fault::Mend(_),
            ) => Err(format!("{node} is cut off")),
            (NodeCondition::Runs, Fault::Resume) => Err(format!("{node} is not paused")),
            (NodeCondition::Runs, Fault::Heal) => Err(format!("{node} is not cut off")),
            _ => Ok(()),
        }
    }

    /// Checks that enough nodes of the same kind are left unstruck when this node is struck as
    /// well.
    fn check_survivors(&self, before: &[Strike], strike: Strike) -> Result<(), String> {
        let Strike { at_ms, node, fault } = strike;
        let is_struck = |other: NodeName| {
            let last = before.iter().rfind(|earlier| earlier.node == other);
            // A node that was only away for a moment still has its memory.
            let was_away = |last: &Strike| !self.is_authority(other) || last.fault.goes_away();
            last.is_some_and(|last| was_away(last) && !self.is_filled(last, at_ms))
        };
        let others = |all: usize| (0..all as u16).map(|index| NodeName { index, ..node });
        let spared = |all| others(all).filter(|other| *other != node && !is_struck(*other)).count();
        match node.kind {
            NodeKind::Compute if spared(self.compute_nodes) == 0 => {
                Err(format!("{node} is the last compute node that nothing has struck"))
            }
            NodeKind::Compute
                if matches!(fault, Fault::Cut(other) if other.kind == NodeKind::Memory)
                    && spared(self.compute_nodes) < 2 =>
            {
                Err(format!("{node} is half of the compute nodes, and the memory node would go"))
            }
            NodeKind::Memory if spared(self.memory_nodes) + self.replicas <= self.memory_nodes => {
                Err(format!("{node} may have the last copies that nothing has struck"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the last strike restarted the node long enough ago for the node to be filled.
    fn is_filled(&self, last: &Strike, at_ms: u64) -> bool {
        let lease = self.lease.unwrap_or_default().as_millis() as u64;
        last.fault == Fault::Restart && at_ms >= last.at_ms + lease * LEASES_TO_FILL
    }
}

/// Formats a schedule.
pub fn write(events: &[Event]) -> String {
    events.iter().map(|event| event.write() + "\n").collect()
}

/// Error message for a line, without line breaks.
fn in_one_line(error: &serde_json::Error) -> String {
    let said = error.to_string();
    // The caller knows the line number better.
    said.split(" at line ").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
