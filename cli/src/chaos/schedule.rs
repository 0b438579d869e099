//! Schedules of faults: JSON lines, one fault each.
//!
//! # What it is
//! ```text
//! {"at_ms":1200,"node":"cn-1","fault":"pause"}
//! {"at_ms":1900,"node":"cn-1","fault":"resume"}
//! # from here on it is gone
//! {"at_ms":4000,"node":"cn-1","fault":"kill"}
//! ```
//! Faults come in the order of time. Empty lines, and lines that begin with `#`, are ignored. An
//! invalid line is an error that names it.
//!
//! A `wait` has no node: what comes behind it is put off until every node that was started again
//! takes part, and keeps its distances. The length of the wait depends on the machine:
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
//! Actions: nothing is carried out here; all of it is pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::events::{Event, Restore};
use lotus_node::config::name::{NodeKind, NodeName};

/// A fault of a node's process, or of its network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The process ends at once (SIGKILL).
    Kill,
    /// The process stands still (SIGSTOP).
    Pause,
    /// The process goes on (SIGCONT).
    Resume,
    /// The node is started again, as a new incarnation; a running process is killed first.
    Restart,
    /// The node's cable is pulled.
    Partition,
    /// The node's cable is plugged in again.
    Heal,
    /// The path to this other node is cut, and no other one.
    Cut(NodeName),
    /// The path to this other node is healed.
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

    /// Node at the other end of a path that is cut or healed.
    pub fn other(self) -> Option<NodeName> {
        match self {
            Self::Cut(other) | Self::Mend(other) => Some(other),
            _ => None,
        }
    }

    /// Whether the fault takes the node away, or may, until another one brings it back.
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
    /// Node that it strikes.
    pub node: NodeName,
    /// Fault.
    pub fault: Fault,
}

/// A strike as it is written.
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

/// Leases after its restart at which a memory node counts as a copy that may be relied on. Its loss
/// is noticed after one, and a small load is copied in less than another.
pub const LEASES_TO_FILL: u64 = 4;

/// State of a node after the strikes so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Runs,
    Stands,
    CutOff,
    /// The path to this node is cut.
    CutFrom(NodeName),
    Dead,
}

impl Bounds {
    /// Checks that a cluster survives this fault of this node.
    ///
    /// # Errors
    /// A sentence that says why it would not.
    pub fn may_strike(&self, node: NodeName, fault: Fault) -> Result<(), &'static str> {
        match (node.kind, fault) {
            (_, Fault::Partition | Fault::Heal | Fault::Cut(_) | Fault::Mend(_))
                if !self.cables =>
            {
                Err("it shares a network with the others; see --namespaces")
            }
            (NodeKind::Memory, _) if node.index == 0 && self.hosts_authority => {
                Err("the authority would go with it")
            }
            (NodeKind::Memory, _) if self.replicas == 1 => Err("it has the only copies"),
            _ if self.lease.is_none() => {
                Err("without lease_ms no other node notices that it is gone")
            }
            _ => Ok(()),
        }
    }

    /// Checks that the path from a node that may give way to this other one can be cut.
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
        // Strikes since the cluster was last started anew.
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
                    self.check_restore(restore).map_err(refuse)?;
                    strikes.clear();
                }
            }
            events.push(event);
        }
        Ok(events)
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

    /// Checks strikes while the cluster is ended and started.
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

    /// Checks that a fault can follow the strikes before it.
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
        if fault != Fault::Restart {
            self.check_survivors(before, strike)?;
        }
        let fate = before.iter().rfind(|earlier| earlier.node == node);
        let fate = fate.map_or(Fate::Runs, |earlier| match earlier.fault {
            Fault::Kill => Fate::Dead,
            Fault::Pause => Fate::Stands,
            Fault::Partition => Fate::CutOff,
            Fault::Cut(other) => Fate::CutFrom(other),
            Fault::Resume | Fault::Restart | Fault::Heal | Fault::Mend(_) => Fate::Runs,
        });
        match (fate, fault) {
            (Fate::CutFrom(from), Fault::Mend(other)) if from == other => Ok(()),
            (Fate::CutFrom(from), _) => Err(format!("{node} is cut from {from}")),
            (Fate::Runs, Fault::Mend(other)) => Err(format!("{node} is not cut from {other}")),
            (Fate::Dead, Fault::Restart) => Ok(()),
            (_, Fault::Restart) if node.kind == NodeKind::Memory => {
                Err(format!("{node} has not been killed before"))
            }
            (Fate::Dead, _) => Err(format!("{node} has been killed before")),
            (Fate::Stands, Fault::Pause) => Err(format!("{node} is paused already")),
            (Fate::CutOff, Fault::Partition) => Err(format!("{node} is cut off already")),
            (Fate::Stands, Fault::Partition | Fault::Heal | Fault::Cut(_) | Fault::Mend(_)) => {
                Err(format!("{node} is paused"))
            }
            (
                Fate::CutOff,
                Fault::Pause | Fault::Resume | Fault::Restart | Fault::Cut(_) | Fault::Mend(_),
            ) => Err(format!("{node} is cut off")),
            (Fate::Runs, Fault::Resume) => Err(format!("{node} is not paused")),
            (Fate::Runs, Fault::Heal) => Err(format!("{node} is not cut off")),
            _ => Ok(()),
        }
    }

    /// Checks that enough nodes of its kind are left unstruck when this node is struck as well.
    fn check_survivors(&self, before: &[Strike], strike: Strike) -> Result<(), String> {
        let Strike { at_ms, node, fault } = strike;
        let is_struck = |other: NodeName| {
            let last = before.iter().rfind(|earlier| earlier.node == other);
            last.is_some_and(|last| !self.is_filled(last, at_ms))
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

    /// Whether the last strike restarted the node so long ago that it has been filled since.
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
    // The caller knows the line's number better.
    said.split(" at line ").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds() -> Bounds {
        Bounds {
            memory_nodes: 2,
            replicas: 2,
            cables: false,
            hosts_authority: true,
            compute_nodes: 4,
            lease: Some(Duration::from_secs(2)),
            span: Duration::from_secs(20),
            snapshots: true,
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_line() {
        let cases = [
            (r#"{"at_ms":1,"node":"cn-1","fault":"melt"}"#, 1, "unknown variant `melt`"),
            (r#"{"at_ms":1,"node":"cn-x","fault":"kill"}"#, 1, "`cn-x` is no node"),
            (r#"{"at_ms":1,"node":"cn-1"}"#, 1, "missing field `fault`"),
            ("# a word\n\n{\"at_ms\":1,\"node\":\"cn-9\",\"fault\":\"kill\"}", 3, "no cn-9"),
            (r#"{"at_ms":1,"node":"mn-0","fault":"kill"}"#, 1, "the authority would go with it"),
            (r#"{"at_ms":1,"node":"mn-1","fault":"restart"}"#, 1, "mn-1 has not been killed"),
            (r#"{"at_ms":1,"node":"cn-1","fault":"resume"}"#, 1, "cn-1 is not paused"),
            (r#"{"at_ms":1,"node":"cn-1","fault":"partition"}"#, 1, "see --namespaces"),
            (r#"{"at_ms":20001,"node":"cn-1","fault":"kill"}"#, 1, "no load any more"),
        ];
        for (text, line, why) in cases {
            let refused = bounds().parse(text).expect_err(text);
            assert!(refused.line == line && refused.why.contains(why), "{text}: {refused}");
        }
        let twice = |one: &str, other: &str| {
            let line =
                |fault: &str| format!("{{\"at_ms\":1,\"node\":\"cn-1\",\"fault\":{fault}}}\n");
            bounds().parse(&[line(one), line(other)].concat()).expect_err(other)
        };
        assert_eq!(twice("\"kill\"", "\"pause\"").why, "cn-1 has been killed before");
        assert_eq!(twice("\"pause\"", "\"pause\"").to_string(), "line 2: cn-1 is paused already");
        let wired = Bounds { cables: true, ..bounds() };
        let refused = |first: &str, second: &str| {
            let fault =
                |fault: &str| format!("{{\"at_ms\":1,\"node\":\"cn-1\",\"fault\":\"{fault}\"}}\n");
            wired.parse(&[fault(first), fault(second)].concat()).map_err(|error| error.why)
        };
        assert_eq!(refused("partition", "heal").map(|strikes| strikes.len()), Ok(2));
        assert_eq!(refused("partition", "kill").map(|strikes| strikes.len()), Ok(2));
        assert_eq!(refused("partition", "pause"), Err("cn-1 is cut off".to_owned()));
        assert_eq!(refused("pause", "heal"), Err("cn-1 is paused".to_owned()));
        assert_eq!(refused("kill", "heal"), Err("cn-1 has been killed before".to_owned()));
        assert_eq!(refused("heal", "kill"), Err("cn-1 is not cut off".to_owned()));
        let back = "{\"at_ms\":5,\"node\":\"cn-1\",\"fault\":\"pause\"}\n\
                    {\"at_ms\":4,\"node\":\"cn-1\",\"fault\":\"resume\"}";
        assert_eq!(bounds().parse(back).expect_err("it goes back").line, 2);
        let kill = |node| format!("{{\"at_ms\":1,\"node\":\"cn-{node}\",\"fault\":\"kill\"}}\n");
        let all = [0, 1, 3, 2].map(kill).concat();
        assert_eq!(bounds().parse(&all).expect_err("one must be left").line, 4);
        let memory = Bounds { memory_nodes: 3, hosts_authority: false, ..bounds() };
        let all = [0, 0, 2].map(|node| kill(node).replace("cn", "mn").replace("kill", "pause"));
        let both = [all[0].clone(), all[1].replace("pause", "resume"), all[2].clone()].concat();
        assert_eq!(memory.parse(&both).expect_err("they share rows").line, 3);
        assert!(Bounds { replicas: 3, ..memory }.parse(&both).is_ok());
        let anew = |node: u16, at_ms: u64, fault: &str| {
            format!("{{\"at_ms\":{at_ms},\"node\":\"mn-{node}\",\"fault\":\"{fault}\"}}\n")
        };
        let first = [anew(1, 1, "kill"), anew(1, 2, "restart")].concat();
        assert!(memory.parse(&(first.clone() + &anew(2, 9000, "kill"))).is_ok());
        let early = memory.parse(&(first + &anew(2, 7000, "kill")));
        assert_eq!(early.expect_err("it may not have been filled").line, 3);
        let only_copy = Bounds { replicas: 1, ..memory }.parse(&all[2]);
        assert!(only_copy.expect_err("it is gone then").why.contains("the only copies"));
        let nobody_notices = Bounds { lease: None, ..bounds() };
        let killed = r#"{"at_ms":1,"node":"cn-1","fault":"kill"}"#;
        assert!(nobody_notices.parse(killed).is_err() && nobody_notices.draw(1).is_empty());
    }

    #[test]
    fn paths_that_no_cluster_can_do_without_are_not_cut() {
        let wired = Bounds { cables: true, memory_nodes: 3, compute_nodes: 3, ..bounds() };
        let line = |node: &str, fault: &str, other: &str| {
            format!(
                "{{\"at_ms\":1,\"node\":\"{node}\",\"fault\":\"{fault}\",\"other\":\"{other}\"}}\n"
            )
        };
        let cut = |node: &str, other: &str| line(node, "cut", other);
        let heal = |node: &str, other: &str| line(node, "heal", other);
        let plain = |node: &str, fault: &str| {
            format!("{{\"at_ms\":1,\"node\":\"{node}\",\"fault\":\"{fault}\"}}\n")
        };
        let sound = [
            cut("cn-2", "cn-1") + &heal("cn-2", "cn-1") + &plain("cn-2", "restart"),
            cut("cn-2", "mn-1") + &heal("cn-2", "mn-1") + &plain("cn-2", "kill"),
            cut("cn-2", "cn-1") + &plain("cn-1", "kill"),
        ];
        for text in &sound {
            let read = wired.parse(text).expect(text);
            assert_eq!(&write(&read), text);
        }
        let pair = Bounds { compute_nodes: 2, ..wired };
        assert!(pair.parse(&cut("cn-1", "cn-0")).is_ok(), "the last of two stays");
        let cases = [
            (wired, cut("cn-2", "cn-2"), "it is both ends of the path"),
            (wired, cut("cn-2", "cn-9"), "there is no cn-9"),
            (wired, cut("mn-2", "mn-1"), "memory nodes do not talk to one another"),
            (wired, cut("mn-2", "cn-1"), "the compute node gives way"),
            (wired, cut("cn-2", "mn-0"), "it would lose the authority as well"),
            (wired, plain("cn-2", "cut"), "cut needs the path's `other` end"),
            (wired, line("cn-2", "kill", "cn-1"), "only cut and heal have an `other` end"),
            (wired, heal("cn-2", "cn-1"), "cn-2 is not cut from cn-1"),
            (wired, cut("cn-2", "cn-1") + &heal("cn-2", "cn-0"), "cn-2 is cut from cn-1"),
            (wired, cut("cn-2", "cn-1") + &cut("cn-2", "cn-1"), "cn-2 is cut from cn-1"),
            (wired, cut("cn-2", "cn-1") + &plain("cn-2", "pause"), "cn-2 is cut from cn-1"),
            (wired, plain("cn-2", "pause") + &cut("cn-2", "cn-1"), "cn-2 is paused"),
            (wired, plain("cn-2", "partition") + &heal("cn-2", "cn-1"), "cn-2 is cut off"),
            (wired, plain("cn-1", "kill") + &cut("cn-2", "mn-1"), "half of the compute nodes"),
            (pair, cut("cn-1", "mn-1"), "half of the compute nodes"),
            (Bounds { replicas: 1, ..wired }, cut("cn-2", "mn-1"), "it has the only copies"),
            (Bounds { cables: false, ..wired }, cut("cn-2", "cn-1"), "see --namespaces"),
            (Bounds { lease: None, ..wired }, cut("cn-2", "cn-1"), "without lease_ms"),
        ];
        for (bounds, text, why) in cases {
            let refused = bounds.parse(&text).expect_err(&text);
            assert!(refused.why.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn snapshots_and_restores_that_make_no_sense_are_refused() {
        let restore = |list: &str, node: &str, fault: &str| {
            format!(
                "{{\"at_ms\":9,\"fault\":\"restore\",\"{list}\":[{{\"at_ms\":1,\"node\":\"{node}\",\
                 \"fault\":\"{fault}\"}}]}}"
            )
        };
        let snapshot = r#"{"at_ms":1,"fault":"snapshot"}"#.to_owned();
        let without = Bounds { snapshots: false, ..bounds() };
        for text in [&snapshot, &restore("ending", "cn-1", "kill")] {
            let refused = without.parse(text).expect_err(text);
            assert!(refused.why.contains("no [snapshots] directory"), "{refused}");
            assert!(bounds().parse(text).is_ok());
        }
        let cases = [
            (restore("ending", "mn-1", "kill"), "no snapshot can be taken then"),
            (restore("ending", "cn-9", "kill"), "there is no cn-9"),
            (restore("starting", "cn-1", "heal"), "no cable is pulled"),
            (
                restore("ending", "cn-1", "cut\",\"other\":\"cn-0"),
                "cn-1 cannot be struck by cut: no cable is pulled",
            ),
            (restore("starting", "cn-1", "restart"), "started again anyway"),
            (restore("between", "cn-1", "kill"), "unknown field `between`"),
            (snapshot.replace("1,", "1,\"node\":\"cn-1\","), "unknown field `node`"),
            (snapshot.replace('1', "20001"), "no load any more"),
        ];
        for (text, why) in cases {
            let refused = bounds().parse(&text).expect_err(&text);
            assert!(refused.why.contains(why), "{text}: {refused}");
        }
        // The authority's host may be killed during a start: then all is begun anew.
        assert!(bounds().parse(&restore("starting", "mn-0", "kill")).is_ok());
        // A node that was killed before the restore runs again after it.
        let kill = r#"{"at_ms":8,"node":"cn-1","fault":"kill"}"#;
        let again = kill.replace('8', "10");
        let both = [kill, &restore("ending", "cn-0", "pause"), &again].join("\n");
        assert_eq!(bounds().parse(&both).map(|events| events.len()), Ok(3));
        assert!(bounds().parse(&[kill, &again].join("\n")).is_err());
    }

    #[test]
    fn what_is_drawn_can_be_written_and_read_again() {
        let (mut killed, mut restarted) = (0, 0);
        let (mut outlasted, mut paused, mut cut_off) = (0, 0, 0);
        for (seed, cables) in (0..200).zip([false, true].into_iter().cycle()) {
            let bounds = Bounds { cables, span: Duration::from_secs(40), ..bounds() };
            let (drawn, events) = (bounds.draw(seed), bounds.draw_all(seed, 2));
            assert_eq!(events, bounds.draw_all(seed, 2));
            assert_eq!(bounds.parse(&write(&events)).as_ref(), Ok(&events), "seed {seed}");
            let count = |fault| drawn.iter().filter(|strike| strike.fault == fault).count();
            killed += count(Fault::Kill);
            restarted += count(Fault::Restart);
            for (index, strike) in drawn.iter().enumerate() {
                let mut later = drawn[index..].iter().filter(|later| later.node == strike.node);
                if matches!(strike.fault, Fault::Pause | Fault::Partition) {
                    cut_off += usize::from(strike.fault == Fault::Partition);
                    let resumed = later.nth(1).expect("whoever is paused is resumed");
                    match resumed.at_ms - strike.at_ms {
                        0..=1000 => paused += 1,
                        _ => outlasted += 1,
                    }
                }
            }
        }
        assert!(killed > 100 && outlasted > 100 && paused > 500, "{killed} {outlasted} {paused}");
        assert!(cut_off > 150 && restarted > 100, "{cut_off} {restarted}");
    }
}
