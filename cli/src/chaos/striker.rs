//! Carries out a schedule on processes and cables, on a thread of its own, and reads the state of
//! the nodes meanwhile.

use std::io::{self, Write};
use std::time::Duration;

use lotus_authority::Authority;
use lotus_fabric::env::Env;
use lotus_fabric::ids::{NodeId, ShardId};
use lotus_recovery::Membership;
use lotus_recovery::membership;
use lotus_recovery::membership::returns::{Return, Stage as Filling, shards_on};
use lotus_router::Placement;
use rustix::process::Signal;

use super::copies::{Copies, Copying};
use super::events::Event;
use super::pacer::{SchedulePacer, Standing, Standings};
use super::schedule::{self, Fault, Strike};
use crate::operate::commands::restart;
use crate::operate::status::Survey;
use lotus_node::agree::cluster_authority::ClusterAuthority;
use lotus_node::agree::records::{Record, Stage};
use lotus_node::config::file::{ClusterFile, Net};
use lotus_node::config::name::{NodeKind, NodeName};
use lotus_node::config::namespaces::PathState;
use lotus_node::host::polling::{PAUSE, wait_until};
use lotus_node::host::processes::{ProcessState, StateFolder};

/// Time limit for recovery after the load.
pub const RECOVERING: Duration = Duration::from_secs(60);
/// Time after the load for which strikes may be put off. On a busy machine filling a memory node
/// takes minutes.
const PUT_OFF: Duration = Duration::from_secs(300);

/// Interval between reads of the standings.
const LOOKING: Duration = Duration::from_millis(100);

/// Number of missing shards that a message names.
const SOME: usize = 8;

/// The nodes of a cluster, seen from outside.
pub struct Nodes {
    file: ClusterFile,
    state: StateFolder,
}

impl Nodes {
    /// Nodes described by a file.
    pub fn of(file: &ClusterFile) -> Self {
        Self { file: file.clone(), state: StateFolder::look(file) }
    }

    /// All nodes.
    pub fn all(&self) -> impl Iterator<Item = NodeName> + use<> {
        NodeName::all(&self.file)
    }

    /// Nodes that no longer take part.
    pub fn out(&self, now: &Membership) -> Vec<NodeName> {
        self.all().filter(|node| self.is_out(now, *node)).collect()
    }

    /// Whether a memory node is being filled with missed data.
    fn is_filled(&self, now: &Membership, node: NodeName) -> bool {
        let id = node.id(&self.file);
        node.kind == NodeKind::Memory && now.joining().any(|joining| joining.node == id)
    }

    /// Shards that joining memory nodes still lack, in words; empty if no memory node is being
    /// filled.
    pub fn lacking(&self, now: &Membership) -> String {
        let memory: Vec<NodeId> = (0..self.file.settings.memory_nodes as u16).map(NodeId).collect();
        let Ok(first) = Placement::new(&memory, self.file.settings.replicas) else {
            return String::new();
        };
        let lacking = now.joining().map(|Return { node, stage, .. }| {
            let has = |shard: &ShardId| match stage {
                Filling::Joining(copied) => copied.contains(*shard),
                Filling::Found(_) | Filling::Whole => false,
            };
            let lacks: Vec<String> = shards_on(*node, &first)
                .filter(|shard| !has(shard))
                .map(|shard| shard.raw().to_string())
                .collect();
            let some = lacks[..lacks.len().min(SOME)].join(", ");
            format!("; mn-{} lacks {} shards: {some}", node.0, lacks.len())
        });
        lacking.collect()
    }

    /// Whether a node's current process, not an earlier process, serves and answers tasks.
    pub fn serves(&self, authority: &dyn Authority, node: NodeName) -> bool {
        let record = Record::read(node, authority).ok().flatten();
        record.is_some_and(|record| {
            let runs = self.state.seen(node) == ProcessState::Running(record.process.id);
            runs && record.stage == Stage::Serving
        })
    }

    /// Process id of a node, while it runs.
    pub fn process(&self, node: NodeName) -> Option<u32> {
        match self.state.seen(node) {
            ProcessState::Running(process) => Some(process),
            ProcessState::Never | ProcessState::Ended(_) | ProcessState::Down => None,
        }
    }

    /// State of all nodes.
    pub fn survey<'a>(&'a self, authority: &ClusterAuthority) -> Survey<'a> {
        Survey::take(&self.file, &self.state, authority)
    }

    /// Whether a node's process was started and has ended.
    pub fn has_ended(&self, node: NodeName) -> bool {
        matches!(self.state.seen(node), ProcessState::Ended(_))
    }

    fn is_out(&self, now: &Membership, node: NodeName) -> bool {
        let id = node.id(&self.file);
        match node.kind {
            NodeKind::Compute => !now.is_live(id),
            NodeKind::Memory => now.lost_memory().iter().any(|lost| lost.node == id),
        }
    }

    /// Standings of all nodes; empty if the authority does not answer.
    fn standings(&self, authority: &dyn Authority) -> Standings {
        let Ok(now) = membership::read(authority) else { return Standings::new() };
        let standing = |node: NodeName| match node.kind {
            _ if self.is_out(&now, node) => Standing::Out,
            NodeKind::Memory if self.is_filled(&now, node) => Standing::Filling,
            NodeKind::Compute if !self.serves(authority, node) => Standing::Filling,
            _ => Standing::Whole,
        };
        self.all().map(|node| (node, standing(node))).collect()
    }

    /// Resumes the nodes and plugs in their cables: a paused node could not even end, and a node
    /// that is cut off would not get requests.
    ///
    /// # Errors
    /// A sentence: a cable cannot be plugged in.
    pub fn resume_all(&self) -> Result<(), String> {
        self.all().for_each(|node| self.state.signal(node, Signal::CONT));
        let Some(cables) = &self.file.namespaces else { return Ok(()) };
        self.all().try_for_each(|node| {
            cables.set_cable(node, true)?;
            cables.heal_paths(node)
        })
    }

    /// Last error in a node's log.
    pub fn last_words(&self, node: NodeName) -> String {
        self.state.complaint(node).unwrap_or_else(|| "it has said nothing".to_owned())
    }

    /// Reports restarts that are not in the schedule, with the nodes' last errors.
    fn report(&self, helped: &[Strike]) {
        for strike in helped {
            let last = self.last_words(strike.node);
            let event = schedule::write(&[Event::Strike(*strike)]);
            let line = format!("# out for long: {last}\n{event}");
            // A failed write to standard error is ignored.
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }

    /// Carries out a strike.
    ///
    /// # Errors
    /// A sentence.
    pub fn carry_out(&self, Strike { node, fault, .. }: Strike) -> Result<(), String> {
        let set_cable = |plugged| match &self.file.namespaces {
            Some(cables) => cables.set_cable(node, plugged),
            None => Err("there are no cables".to_owned()),
        };
        match fault {
            Fault::Kill => self.state.signal(node, Signal::KILL),
            Fault::Pause => self.state.signal(node, Signal::STOP),
            Fault::Resume => self.state.signal(node, Signal::CONT),
            Fault::Restart => restart(&self.file, node)?,
            Fault::Partition => set_cable(false)?,
            Fault::Heal => set_cable(true)?,
            Fault::Cut(other) => self.set_path(node, other, PathState::Cut)?,
            Fault::Mend(other) => self.set_path(node, other, PathState::Open)?,
        }
        Ok(())
    }

    /// Cuts or heals the path between two nodes.
    fn set_path(&self, node: NodeName, other: NodeName, path: PathState) -> Result<(), String> {
        let (Some(cables), Net::Tcp { addresses, .. }) = (&self.file.namespaces, &self.file.net)
        else {
            return Err("there are no paths that can be cut".to_owned());
        };
        let address = |node: NodeName| {
            let at = addresses.get(&node.id(&self.file)).map(|at| &at.address);
            let at = at.ok_or_else(|| format!("{node} has no address"))?;
            let found = at.look_up().map_err(|error| error.to_string())?;
            Ok::<_, String>((node, found.ip()))
        };
        cables.set_path([address(node)?, address(other)?], path)
    }
}

/// Record of the strikes at the nodes.
#[derive(Default)]
pub struct StrikeRecord {
    /// All strikes, in order.
    pub strikes: Vec<Strike>,
    /// Nodes restarted outside the schedule although untouched since their last start, with their
    /// last errors.
    pub unexplained: Vec<(NodeName, String)>,
    /// Number of starts struck before the node took part.
    pub starts: usize,
    /// Number of kills, pauses and cuts left out for lack of time, because earlier strikes were put
    /// off.
    pub left_out: usize,
}

impl StrikeRecord {
    /// Whether no strike since a node's last start can have caused its expulsion. A pause or a cut
    /// of less than half a lease cannot; a longer cut of a path can cause the expulsion of either
    /// end.
    pub fn is_untouched(&self, node: NodeName, lease: Option<Duration>) -> bool {
        let concerns = |strike: &&Strike| strike.node == node || strike.fault.other() == Some(node);
        let mut before = self.strikes.iter().rev().filter(concerns);
        let half = lease.unwrap_or(Duration::MAX).as_millis() / 2;
        while let Some(strike) = before.next() {
            match (strike.fault, before.next()) {
                (Fault::Restart, _) => return true,
                (Fault::Resume | Fault::Heal | Fault::Mend(_), Some(begun))
                    if u128::from(strike.at_ms - begun.at_ms) < half => {}
                _ => return false,
            }
        }
        true
    }
}

/// Carries out the strikes of `pacer`, and resumes the nodes at the end. Returns the strikes with
/// their times; and `copies` with the outcomes of the snapshots taken meanwhile.
///
/// # Errors
/// A sentence: a strike or a snapshot could not be carried out.
pub fn strike(
    nodes: &Nodes,
    authority: &ClusterAuthority,
    mut pacer: SchedulePacer,
    span: Duration,
    copies: Copies,
) -> Result<(StrikeRecord, Copies), String> {
    let env = Env::real(0);
    let began = env.now();
    let mut looked = began;
    let mut struck = StrikeRecord::default();
    let mut standings = Standings::new();
    let mut copying = Copying::new(&nodes.file, copies);
    loop {
        let now = env.now();
        let now_ms = now.since(began).as_millis() as u64;
        if pacer.looks() && now.since(looked) >= LOOKING {
            standings = nodes.standings(authority);
            looked = env.now();
        }
        let mut steps = pacer.step(now_ms, &standings);
        // A node that does not take part yet was not expelled: its start just takes long.
        let starting: Vec<NodeName> = nodes.all().filter(|node| pacer.is_starting(*node)).collect();
        let helped = pacer.help_up(now_ms, &standings);
        nodes.report(&helped);
        let untouched = helped.iter().map(|strike| strike.node);
        let untouched = untouched.filter(|node| !starting.contains(node));
        let untouched =
            untouched.filter(|node| struck.is_untouched(*node, nodes.file.settings.lease));
        let untouched: Vec<_> = untouched.map(|node| (node, nodes.last_words(node))).collect();
        struck.unexplained.extend(untouched);
        steps.extend(helped);
        copying.look(false);
        if pacer.takes_snapshot(now_ms) {
            copying.begin()?;
        }
        for strike in steps {
            nodes.carry_out(strike)?;
            let ends_it = strike.fault.goes_away() || strike.fault == Fault::Restart;
            if strike.node.kind == NodeKind::Compute && ends_it {
                copying.is_struck();
            }
            struck.strikes.push(strike);
        }
        if pacer.is_done(now_ms, &standings) || now.since(began) > span + PUT_OFF {
            break;
        }
        wait_until(&env, PAUSE, || false);
    }
    nodes.resume_all()?;
    struck.starts = pacer.starts_struck();
    struck.left_out = pacer.strikes_left();
    Ok((struck, copying.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_or_before_the_last_start_explains_no_expulsion() {
        let lease = Some(Duration::from_millis(1000));
        let node = NodeName::compute(1);
        let (older, younger) = (NodeName::compute(0), NodeName::compute(2));
        let cases: [(&[(u64, Fault)], bool); 10] = [
            (&[(100, Fault::Cut(older)), (500, Fault::Mend(older))], true),
            (&[(100, Fault::Cut(older)), (9000, Fault::Mend(older))], false),
            (&[], true),
            (&[(100, Fault::Kill)], false),
            (&[(100, Fault::Kill), (900, Fault::Restart)], true),
            (&[(100, Fault::Pause)], false),
            (&[(100, Fault::Pause), (599, Fault::Resume)], true),
            (&[(100, Fault::Pause), (600, Fault::Resume)], false),
            (&[(0, Fault::Partition), (800, Fault::Heal), (900, Fault::Restart)], true),
            (
                &[
                    (100, Fault::Pause),
                    (900, Fault::Resume),
                    (2000, Fault::Pause),
                    (2100, Fault::Resume),
                ],
                false,
            ),
        ];
        for (faults, expected) in cases {
            let strike =
                |(at_ms, fault): &(u64, Fault)| Strike { at_ms: *at_ms, node, fault: *fault };
            let other = Strike { at_ms: 5000, node: NodeName::compute(0), fault: Fault::Kill };
            let strikes = faults.iter().map(strike).chain([other]).collect();
            let struck = StrikeRecord { strikes, ..StrikeRecord::default() };
            assert_eq!(struck.is_untouched(node, lease), expected, "{faults:?}");
        }
        let of_younger = |(at_ms, fault)| Strike { at_ms, node: younger, fault };
        let cut = [(100, Fault::Cut(node)), (9000, Fault::Mend(node))].map(of_younger);
        let struck = StrikeRecord { strikes: cut.into(), ..StrikeRecord::default() };
        assert!(!struck.is_untouched(node, lease), "the other end may have given way");
    }
}
