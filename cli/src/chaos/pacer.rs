//! Decides when a strike is due and which nodes to start again: a schedule, kept as far as the
//! cluster bears it.
//!
//! # What it is
//! [`SchedulePacer::step`] is called repeatedly with the [`Standings`] and returns the strikes to
//! carry out now. A schedule from a file is kept to the millisecond ([`Pace::Exact`]): its author
//! may want faults that the cluster does not survive. Only two delays apply: no memory node is
//! taken away while another memory node returns, and no event after a `wait` begins before every
//! restarted node takes part. A drawn schedule ([`Pace::Careful`]) assumes a cluster that recovers
//! in time, but the machine may be too busy for that. So
//! * a strike waits, with all later ones at its kind of node, until the cluster can spare the node:
//!   until all other memory nodes are whole, or a majority of compute nodes stays;
//! * a node that is out for long without a reason in the schedule is started again: on a busy
//!   machine nodes miss their lease without a strike;
//! * in the end strikes stop, and all nodes come back.
//!
//! # What it is not
//! Actions: nothing is carried out or asked here; the whole module is pure.

use std::collections::{BTreeMap, VecDeque};

use super::schedule::{Bounds, Fault, Strike};
use lotus_node::config::name::{NodeKind, NodeName};

/// Leases after which a node that is out is not expected to return on its own.
const LEASES_OUT: u64 = 5;

/// State of a node, as the cluster reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Takes part, with complete data.
    Whole,
    /// Is being filled with missed data; of a compute node: does not serve yet.
    Filling,
    /// Takes no part.
    Out,
}

/// State of all nodes.
pub type Standings = BTreeMap<NodeName, Standing>;

/// Strictness with which a schedule is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// Keeps to the millisecond.
    Exact,
    /// Delays strikes until the cluster bears them.
    Careful,
}

/// A schedule in progress.
pub struct SchedulePacer {
    bounds: Bounds,
    pace: Pace,
    /// Remaining strikes, by the kind of node.
    memory: Queue,
    compute: Queue,
    /// Times of remaining snapshots. Snapshots are delayed along with strikes at compute nodes.
    snapshots_ms: VecDeque<u64>,
    /// Times from which all events wait until the cluster has [settled](Self::has_settled).
    waits_ms: VecDeque<u64>,
    /// Last fault of each node.
    last: BTreeMap<NodeName, Fault>,
    /// Time since which a node is out without a strike.
    out_since_ms: BTreeMap<NodeName, u64>,
    /// Start times of nodes that do not take part yet.
    started_ms: BTreeMap<NodeName, u64>,
    /// Number of starts struck before the node took part.
    starts_struck: usize,
    /// Number of kills, pauses and cuts given up because the time was over.
    given_up: usize,
}

/// Strikes in order, with their accumulated delay.
#[derive(Default)]
struct Queue {
    strikes: VecDeque<Strike>,
    late_ms: u64,
}

impl Queue {
    /// Next strike, with its due time.
    fn next(&self) -> Option<Strike> {
        let next = self.strikes.front()?;
        Some(Strike { at_ms: next.at_ms + self.late_ms, ..*next })
    }
}

impl SchedulePacer {
    /// Creates a pacer of `strikes`.
    pub fn new(bounds: Bounds, pace: Pace, strikes: &[Strike]) -> Self {
        let queue = |kind| Queue {
            strikes: strikes.iter().copied().filter(|strike| strike.node.kind == kind).collect(),
            late_ms: 0,
        };
        Self {
            bounds,
            pace,
            memory: queue(NodeKind::Memory),
            compute: queue(NodeKind::Compute),
            snapshots_ms: VecDeque::new(),
            waits_ms: VecDeque::new(),
            last: BTreeMap::new(),
            out_since_ms: BTreeMap::new(),
            started_ms: BTreeMap::new(),
            starts_struck: 0,
            given_up: 0,
        }
    }

    /// Adds snapshots at the times `at_ms`.
    #[must_use]
    pub fn with_snapshots(mut self, at_ms: &[u64]) -> Self {
        self.snapshots_ms = at_ms.iter().copied().collect();
        self
    }

    /// Adds waits: events scheduled at a wait's time, or later, are delayed until every restarted
    /// node takes part, and every node that is away is out.
    #[must_use]
    pub fn with_waits(mut self, at_ms: &[u64]) -> Self {
        self.waits_ms = at_ms.iter().copied().collect();
        self
    }

    /// Whether a snapshot is due now; each snapshot is reported once.
    pub fn takes_snapshot(&mut self, now_ms: u64) -> bool {
        let late_ms = self.compute.late_ms;
        let is_over = self.pace == Pace::Careful && now_ms >= self.span_ms();
        let is_due =
            |at_ms: &u64| !is_over && !self.is_put_off(*at_ms) && at_ms + late_ms <= now_ms;
        let due = self.snapshots_ms.front().is_some_and(is_due);
        if due {
            self.snapshots_ms.pop_front();
        }
        due
    }

    /// Whether the next step needs the standings. The standings cannot be read while the
    /// authority's host is away: the read would block, and the host would not come back.
    pub fn looks(&self) -> bool {
        if self.is_blind() {
            return false;
        }
        let waits = !self.memory.strikes.is_empty()
            || !self.started_ms.is_empty()
            || !self.waits_ms.is_empty();
        self.pace == Pace::Careful || waits
    }

    /// Whether a node was started and does not take part yet.
    pub fn is_starting(&self, node: NodeName) -> bool {
        self.started_ms.contains_key(&node)
    }

    /// Number of starts so far struck before the node took part.
    pub fn starts_struck(&self) -> usize {
        self.starts_struck
    }

    /// Number of kills, pauses and cuts given up or still to come.
    pub fn strikes_left(&self) -> usize {
        let left = self.memory.strikes.iter().chain(&self.compute.strikes);
        self.given_up + left.filter(|strike| strike.fault.goes_away()).count()
    }

    /// Returns the strikes to carry out now, in order. `standings` is empty while they are unknown.
    pub fn step(&mut self, now_ms: u64, standings: &Standings) -> Vec<Strike> {
        self.see_who_has_started(now_ms, standings);
        if self.pace == Pace::Exact {
            return self.due(now_ms, standings);
        }
        match now_ms >= self.span_ms() {
            true => self.let_all_return(now_ms),
            false => self.due(now_ms, standings),
        }
    }

    /// Whether nothing is left to do.
    pub fn is_done(&self, now_ms: u64, standings: &Standings) -> bool {
        let idle = self.memory.strikes.is_empty() && self.compute.strikes.is_empty();
        match self.pace {
            Pace::Exact => idle && self.snapshots_ms.is_empty() && self.waits_ms.is_empty(),
            Pace::Careful => {
                // The authority host's memory returns only with a new start of the cluster.
                let whole = standings.iter().all(|(node, standing)| {
                    *standing == Standing::Whole || self.bounds.is_authority(*node)
                });
                now_ms >= self.span_ms() && idle && whole && !standings.is_empty()
            }
        }
    }

    /// Ends the start of participating nodes, at the earliest two leases after the start: a node
    /// restarted within its lease passes for its earlier process for a while.
    fn see_who_has_started(&mut self, now_ms: u64, standings: &Standings) {
        let noticed_ms = 2 * self.bounds.lease.unwrap_or_default().as_millis() as u64;
        self.started_ms.retain(|node, started_ms| {
            let is_whole = standings.get(node) == Some(&Standing::Whole);
            !is_whole || now_ms < *started_ms + noticed_ms
        });
    }

    fn span_ms(&self) -> u64 {
        self.bounds.span.as_millis() as u64
    }

    /// Whether the authority's host is away: the standings cannot be read.
    fn is_blind(&self) -> bool {
        let is_away = |(node, fault): (&NodeName, &Fault)| {
            self.bounds.is_authority(*node) && fault.goes_away()
        };
        self.last.iter().any(is_away)
    }

    /// Whether every restarted node takes part, and the other nodes have given up every node that
    /// is away, or one end of every cut path. `true` while the standings cannot be read: the
    /// authority's host may have to return first.
    fn has_settled(&self, standings: &Standings) -> bool {
        let is_out = |node: &NodeName| standings.get(node) == Some(&Standing::Out);
        let given_up = |(node, fault): (&NodeName, &Fault)| {
            !fault.goes_away() || is_out(node) || fault.other().is_some_and(|other| is_out(&other))
        };
        self.is_blind() || self.started_ms.is_empty() && self.last.iter().all(given_up)
    }

    /// Whether an event scheduled at `at_ms` waits for the cluster to settle.
    fn is_put_off(&self, at_ms: u64) -> bool {
        self.waits_ms.front().is_some_and(|wait| *wait <= at_ms)
    }

    /// Ends the next wait, if all earlier events are done and the cluster has settled.
    fn end_wait(&mut self, now_ms: u64, standings: &Standings) {
        let Some(at_ms) = self.waits_ms.front().copied() else { return };
        let is_before = |queue: &Queue| queue.strikes.front().is_some_and(|it| it.at_ms < at_ms);
        let comes_first = is_before(&self.memory) || is_before(&self.compute);
        let due_ms = at_ms + self.memory.late_ms.max(self.compute.late_ms);
        if comes_first || now_ms < due_ms || !self.has_settled(standings) {
            return;
        }
        self.waits_ms.pop_front();
        // Events after the wait keep their distance from the wait.
        self.memory.late_ms = now_ms - at_ms;
        self.compute.late_ms = now_ms - at_ms;
    }

    fn due(&mut self, now_ms: u64, standings: &Standings) -> Vec<Strike> {
        self.end_wait(now_ms, standings);
        let mut due = Vec::new();
        for kind in [NodeKind::Memory, NodeKind::Compute] {
            while let Some(next) = self.next(kind).filter(|next| next.at_ms <= now_ms) {
                // The distance to later strikes stays the same.
                if self.pace == Pace::Careful {
                    self.queue_mut(kind).late_ms += now_ms - next.at_ms;
                }
                if !self.can_do_without(next, standings) {
                    break;
                }
                self.queue_mut(kind).strikes.pop_front();
                // The standings do not show the strike yet.
                self.note(next);
                due.push(Strike { at_ms: now_ms, ..next });
            }
        }
        due
    }

    /// Next strike at a node of this kind, unless a wait delays the strike.
    fn next(&self, kind: NodeKind) -> Option<Strike> {
        let queue = self.queue(kind);
        let scheduled_ms = queue.strikes.front()?.at_ms;
        queue.next().filter(|_| !self.is_put_off(scheduled_ms))
    }

    /// Whether a strike may be carried out now, given the remaining nodes.
    fn can_do_without(&self, Strike { node, fault, .. }: Strike, standings: &Standings) -> bool {
        let is_out = standings.get(&node) == Some(&Standing::Out);
        if !fault.goes_away() || is_out {
            return true;
        }
        if self.pace == Pace::Exact {
            let returns = |(other, standing): (&NodeName, &Standing)| {
                let started = self.last.get(other) == Some(&Fault::Restart);
                let lacks = *standing == Standing::Filling || started && *standing == Standing::Out;
                lacks && other.kind == NodeKind::Memory && *other != node
            };
            return node.kind == NodeKind::Compute || !standings.iter().any(returns);
        }
        let others = standings.iter().filter(|(other, standing)| {
            let stays = **standing == Standing::Whole && !self.is_away(**other);
            stays && other.kind == node.kind && **other != node
        });
        let needed = match node.kind {
            NodeKind::Memory => self.bounds.memory_nodes - 1,
            NodeKind::Compute => self.bounds.compute_nodes - self.bounds.compute_away(),
        };
        others.count() >= needed
    }

    /// Whether the schedule has struck a node and is about to restart it. Scheduled strikes at a
    /// restarted node, or at a node not struck yet, do not promise a return: such strikes come when
    /// all nodes are whole, and may wait for this node.
    fn will_return(&self, node: NodeName) -> bool {
        let next = self.queue(node.kind).strikes.iter().find(|strike| strike.node == node);
        let returns = next.is_some_and(|next| matches!(next.fault, Fault::Kill | Fault::Restart));
        let struck = self.last.get(&node).is_some_and(|last| *last != Fault::Restart);
        struck && returns
    }

    fn is_away(&self, node: NodeName) -> bool {
        self.last.get(&node).is_some_and(|fault| fault.goes_away())
    }

    /// Drops the remaining strikes, and returns strikes that undo the last fault of every node.
    fn let_all_return(&mut self, at_ms: u64) -> Vec<Strike> {
        self.given_up = self.strikes_left();
        self.memory.strikes.clear();
        self.compute.strikes.clear();
        let returns = |(node, fault): (&NodeName, &Fault)| {
            let fault = match fault {
                Fault::Kill => Fault::Restart,
                Fault::Pause => Fault::Resume,
                Fault::Partition => Fault::Heal,
                Fault::Cut(other) => Fault::Mend(*other),
                Fault::Resume | Fault::Restart | Fault::Heal | Fault::Mend(_) => return None,
            };
            Some(Strike { at_ms, node: *node, fault })
        };
        let returning: Vec<Strike> = self.last.iter().filter_map(returns).collect();
        returning.iter().for_each(|strike| self.note(*strike));
        returning
    }

    /// Returns restarts for nodes that were out for [`LEASES_OUT`] leases without a reason in the
    /// schedule.
    pub fn help_up(&mut self, at_ms: u64, standings: &Standings) -> Vec<Strike> {
        if self.pace == Pace::Exact {
            return Vec::new();
        }
        let lease = self.bounds.lease.unwrap_or_default().as_millis() as u64;
        let mut helped = Vec::new();
        for (&node, standing) in standings {
            // The cluster does not survive the end of the authority.
            let stays = self.bounds.is_authority(node);
            if *standing != Standing::Out || self.is_away(node) || stays {
                self.out_since_ms.remove(&node);
                continue;
            }
            let since = *self.out_since_ms.entry(node).or_insert(at_ms);
            if self.will_return(node) || at_ms < since + lease * LEASES_OUT {
                continue;
            }
            // A memory node's process does not end on its own.
            let faults: &[Fault] = match node.kind {
                NodeKind::Memory => &[Fault::Kill, Fault::Restart],
                NodeKind::Compute => &[Fault::Restart],
            };
            // The start had enough time, so this restart does not count as a struck start.
            self.started_ms.remove(&node);
            helped.extend(faults.iter().map(|&fault| Strike { at_ms, node, fault }));
        }
        helped.iter().for_each(|strike| self.note(*strike));
        helped
    }

    fn note(&mut self, strike: Strike) {
        self.last.insert(strike.node, strike.fault);
        self.out_since_ms.remove(&strike.node);
        if strike.fault.goes_away() || strike.fault == Fault::Restart {
            let starts = self.started_ms.remove(&strike.node).is_some();
            self.starts_struck += usize::from(starts);
        }
        if strike.fault == Fault::Restart {
            self.started_ms.insert(strike.node, strike.at_ms);
        }
    }

    fn queue(&self, kind: NodeKind) -> &Queue {
        match kind {
            NodeKind::Memory => &self.memory,
            NodeKind::Compute => &self.compute,
        }
    }

    fn queue_mut(&mut self, kind: NodeKind) -> &mut Queue {
        match kind {
            NodeKind::Memory => &mut self.memory,
            NodeKind::Compute => &mut self.compute,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MN_0: NodeName = NodeName { kind: NodeKind::Memory, index: 0 };
    const MN_1: NodeName = NodeName { kind: NodeKind::Memory, index: 1 };
    const MN_2: NodeName = NodeName { kind: NodeKind::Memory, index: 2 };

    fn bounds() -> Bounds {
        Bounds {
            memory_nodes: 3,
            replicas: 2,
            cables: false,
            hosts_authority: true,
            compute_nodes: 3,
            lease: Some(Duration::from_secs(1)),
            span: Duration::from_secs(60),
            snapshots: true,
        }
    }

    /// All nodes are whole, except these.
    fn but(others: &[(NodeName, Standing)]) -> Standings {
        let memory = [MN_0, MN_1, MN_2];
        let all = memory.into_iter().chain((0..3).map(NodeName::compute));
        let mut standings: Standings = all.map(|node| (node, Standing::Whole)).collect();
        standings.extend(others.iter().copied());
        standings
    }

    fn strike(at_ms: u64, node: NodeName, fault: Fault) -> Strike {
        Strike { at_ms, node, fault }
    }

    fn careful(strikes: &[Strike]) -> SchedulePacer {
        SchedulePacer::new(bounds(), Pace::Careful, strikes)
    }

    #[test]
    fn a_strike_waits_with_those_behind_it_while_another_memory_node_is_filled() {
        let kill = strike(1000, MN_1, Fault::Kill);
        let restart = strike(1500, MN_1, Fault::Restart);
        let compute = strike(1200, NodeName::compute(0), Fault::Pause);
        for standing in [Standing::Filling, Standing::Out] {
            let mut pacer = careful(&[kill, restart, compute]);
            let filled = but(&[(MN_2, standing)]);
            assert_eq!(pacer.step(999, &but(&[])), []);
            assert_eq!(pacer.step(1100, &filled), []);
            assert_eq!(pacer.step(1600, &filled), [Strike { at_ms: 1600, ..compute }]);
            assert_eq!(pacer.step(4000, &but(&[])), [Strike { at_ms: 4000, ..kill }]);
            assert_eq!(pacer.step(4100, &but(&[])), [], "it was to come half a second later");
            let out = but(&[(MN_1, Standing::Out)]);
            assert_eq!(pacer.step(4500, &out), [Strike { at_ms: 4500, ..restart }]);
        }
    }

    #[test]
    fn a_strike_waits_while_nobody_knows_how_the_cluster_is() {
        let kill = strike(1000, MN_1, Fault::Kill);
        assert_eq!(careful(&[kill]).step(2000, &Standings::new()), []);
    }

    #[test]
    fn whoever_is_out_already_may_be_ended_and_does_not_wait() {
        let kill = strike(1000, MN_1, Fault::Kill);
        let standings = but(&[(MN_1, Standing::Out), (MN_2, Standing::Filling)]);
        assert_eq!(careful(&[kill]).step(1000, &standings), [kill]);
    }

    #[test]
    fn a_majority_of_compute_nodes_stays_also_of_those_that_were_struck_just_now() {
        let kill = |at_ms, index| strike(at_ms, NodeName::compute(index), Fault::Kill);
        let mut pacer = careful(&[kill(1000, 0), kill(1000, 1)]);
        assert_eq!(pacer.step(1000, &but(&[])), [kill(1000, 0)]);
        assert_eq!(pacer.step(1100, &but(&[(NodeName::compute(0), Standing::Out)])), []);
        // With two compute nodes, one may go.
        let bounds = Bounds { compute_nodes: 2, ..bounds() };
        let mut pacer = SchedulePacer::new(bounds, Pace::Careful, &[kill(1000, 1)]);
        let mut two = but(&[]);
        two.remove(&NodeName::compute(2));
        assert_eq!(pacer.step(1000, &two), [kill(1000, 1)]);
    }

    #[test]
    fn what_was_written_by_hand_is_kept_to_by_the_millisecond() {
        let kill = strike(1000, MN_1, Fault::Kill);
        let mut pacer = SchedulePacer::new(bounds(), Pace::Exact, &[kill]);
        assert!(pacer.looks() && !pacer.is_done(1000, &Standings::new()));
        assert_eq!(pacer.step(1000, &Standings::new()), [kill]);
        assert!(!pacer.looks());
        assert!(pacer.is_done(1000, &Standings::new()));
        let out = but(&[(NodeName::compute(1), Standing::Out)]);
        assert!(pacer.help_up(1000, &out).is_empty() && pacer.help_up(99_000, &out).is_empty());
    }

    #[test]
    fn a_snapshot_waits_with_the_strikes_behind_it_and_none_is_taken_in_the_end() {
        let kill = |at_ms, index| strike(at_ms, NodeName::compute(index), Fault::Kill);
        let mut pacer =
            careful(&[kill(1000, 0), kill(5000, 1)]).with_snapshots(&[900, 4900, 50_000]);
        let out = but(&[(NodeName::compute(2), Standing::Out)]);
        assert!(!pacer.takes_snapshot(899) && pacer.takes_snapshot(900));
        assert!(!pacer.takes_snapshot(900), "one");
        assert_eq!(pacer.step(3000, &out), []);
        assert_eq!(pacer.step(3000, &but(&[])), [kill(3000, 0)]);
        assert!(!pacer.takes_snapshot(6899), "two seconds later");
        assert!(pacer.takes_snapshot(6900));
        assert!(!pacer.takes_snapshot(60_000));
        let mut exact = SchedulePacer::new(bounds(), Pace::Exact, &[]).with_snapshots(&[900]);
        assert!(!exact.is_done(899, &but(&[])));
        assert!(exact.takes_snapshot(950) && exact.is_done(950, &but(&[])));
    }

    /// A busy machine fills a memory node more slowly than the file's writer expected.
    #[test]
    fn what_was_written_by_hand_waits_for_a_memory_node_that_is_filled() {
        let kill = strike(1000, MN_1, Fault::Kill);
        let pause = strike(1000, NodeName::compute(0), Fault::Pause);
        let restart = strike(900, MN_2, Fault::Restart);
        let mut pacer = SchedulePacer::new(bounds(), Pace::Exact, &[restart, kill, pause]);
        assert_eq!(pacer.step(900, &but(&[])), [restart]);
        let filling = but(&[(MN_2, Standing::Filling)]);
        assert_eq!(pacer.step(1000, &but(&[(MN_2, Standing::Out)])), [pause]);
        assert_eq!(pacer.step(5000, &filling), []);
        assert!(pacer.looks() && !pacer.is_done(5000, &filling));
        assert_eq!(pacer.step(5100, &but(&[])), [strike(5100, MN_1, Fault::Kill)]);
    }

    /// The duration of a start depends on the machine.
    #[test]
    fn what_comes_behind_a_wait_is_put_off_until_whoever_was_started_takes_part() {
        let cn_1 = NodeName::compute(1);
        let restart = strike(600, cn_1, Fault::Restart);
        let pause = strike(1500, cn_1, Fault::Pause);
        let memory = strike(1700, MN_1, Fault::Kill);
        let mut pacer = SchedulePacer::new(bounds(), Pace::Exact, &[restart, pause, memory])
            .with_snapshots(&[1600])
            .with_waits(&[1000, 2000]);
        assert_eq!(pacer.step(600, &but(&[])), [restart]);
        let starts = but(&[(cn_1, Standing::Filling)]);
        for now in (700..30_000).step_by(100) {
            assert_eq!(pacer.step(now, &starts), []);
            assert!(pacer.looks() && !pacer.takes_snapshot(now) && !pacer.is_done(now, &starts));
        }
        assert_eq!(pacer.step(30_000, &but(&[])), [], "half a second behind the wait");
        assert_eq!(pacer.step(30_499, &but(&[])), []);
        assert_eq!(pacer.step(30_500, &but(&[])), [Strike { at_ms: 30_500, ..pause }]);
        assert!(!pacer.takes_snapshot(30_599) && pacer.takes_snapshot(30_600));
        assert_eq!(pacer.starts_struck(), 0, "it took part");
        assert_eq!(pacer.step(30_700, &but(&[])), [Strike { at_ms: 30_700, ..memory }]);
        let out = but(&[(cn_1, Standing::Out), (MN_1, Standing::Out)]);
        assert!(!pacer.is_done(30_999, &out));
        assert_eq!(pacer.step(31_000, &out), []);
        assert!(pacer.is_done(31_000, &out));
    }

    /// The time until a node is expelled depends on the machine too.
    #[test]
    fn what_comes_behind_a_wait_is_put_off_until_whoever_is_away_is_out() {
        let cn_1 = NodeName::compute(1);
        let pause = strike(500, cn_1, Fault::Pause);
        let resume = strike(1500, cn_1, Fault::Resume);
        let mut pacer =
            SchedulePacer::new(bounds(), Pace::Exact, &[pause, resume]).with_waits(&[1000]);
        assert_eq!(pacer.step(500, &but(&[])), [pause]);
        for now in (1000..30_000).step_by(100) {
            assert_eq!(pacer.step(now, &but(&[])), []);
            assert!(pacer.looks());
        }
        let out = but(&[(cn_1, Standing::Out)]);
        assert_eq!(pacer.step(30_000, &out), []);
        assert_eq!(pacer.step(30_500, &out), [Strike { at_ms: 30_500, ..resume }]);
    }

    #[test]
    fn a_start_is_struck_once_whatever_is_done_to_it_before_the_node_takes_part() {
        let cn_1 = NodeName::compute(1);
        let faults = [
            (1000, Fault::Kill),
            (1500, Fault::Restart),
            (1600, Fault::Pause),
            (1700, Fault::Resume),
            (1800, Fault::Kill),
            (2000, Fault::Restart),
            (2500, Fault::Restart),
            (9000, Fault::Kill),
        ];
        let strikes = faults.map(|(at_ms, fault)| strike(at_ms, cn_1, fault));
        let mut pacer = SchedulePacer::new(bounds(), Pace::Exact, &strikes);
        let mut struck_at = |now_ms, standing| {
            pacer.step(now_ms, &but(&[(cn_1, standing)]));
            (pacer.starts_struck(), pacer.is_starting(cn_1))
        };
        assert_eq!(struck_at(1500, Standing::Out), (0, true));
        assert_eq!(struck_at(1600, Standing::Out), (1, false));
        assert_eq!(struck_at(2000, Standing::Filling), (1, true));
        // Started again while it starts.
        assert_eq!(struck_at(2500, Standing::Filling), (2, true));
        // The others have not noticed the restart yet.
        assert_eq!(struck_at(2600, Standing::Whole), (2, true));
        assert_eq!(struck_at(8000, Standing::Whole), (2, false));
        assert_eq!(struck_at(9000, Standing::Whole), (2, false), "it took part");
    }

    #[test]
    fn whoever_is_out_for_long_without_a_reason_is_started_again_once() {
        let cn_1 = NodeName::compute(1);
        let out = but(&[(MN_2, Standing::Out), (cn_1, Standing::Out)]);
        let mut pacer = careful(&[]);
        assert_eq!(pacer.help_up(1000, &out), []);
        assert_eq!(pacer.help_up(5900, &out), []);
        let kill = strike(6000, MN_2, Fault::Kill);
        let restart = |node| strike(6000, node, Fault::Restart);
        assert_eq!(pacer.help_up(6000, &out), [kill, restart(MN_2), restart(cn_1)]);
        assert_eq!(pacer.help_up(6100, &out), []);
        // A node that took part meanwhile has the full time again.
        let filling = but(&[(MN_2, Standing::Filling), (cn_1, Standing::Out)]);
        assert_eq!(pacer.help_up(9000, &filling), []);
        assert_eq!(pacer.help_up(11_100, &out), [strike(11_100, cn_1, Fault::Restart)]);
    }

    #[test]
    fn whoever_was_struck_or_is_to_be_started_is_left_alone() {
        let cn_1 = NodeName::compute(1);
        let kill = strike(1000, cn_1, Fault::Kill);
        let restart = strike(40_000, cn_1, Fault::Restart);
        let out = but(&[(cn_1, Standing::Out)]);
        let mut pacer = careful(&[kill, restart]);
        assert_eq!(pacer.step(1000, &but(&[])), [kill]);
        assert!((2000..39_000).step_by(500).all(|now| pacer.help_up(now, &out).is_empty()));
        let pause = strike(1000, cn_1, Fault::Pause);
        let resume = strike(3000, cn_1, Fault::Resume);
        let mut pacer = careful(&[pause, resume, restart]);
        let all: Vec<Strike> =
            [1000, 3000].iter().flat_map(|now| pacer.step(*now, &but(&[]))).collect();
        assert_eq!(all, [pause, resume]);
        assert!((3000..39_000).step_by(500).all(|now| pacer.help_up(now, &out).is_empty()));
    }

    /// A memory node was lost again after it had been started again, for no reason in the schedule.
    /// Its next strike was a kill, so it was taken as about to return; but the strike before that,
    /// at another memory node, waited for it to be whole. Both waited until the end.
    #[test]
    fn whoever_is_out_before_its_turn_does_not_keep_the_others_waiting() {
        let strikes = [
            strike(1000, MN_2, Fault::Kill),
            strike(2000, MN_2, Fault::Restart),
            strike(9000, MN_1, Fault::Kill),
            strike(9500, MN_1, Fault::Restart),
            strike(16_000, MN_2, Fault::Kill),
            strike(17_000, MN_2, Fault::Restart),
        ];
        let mut pacer = careful(&strikes);
        assert_eq!(pacer.step(1000, &but(&[])), [strikes[0]]);
        let out = but(&[(MN_2, Standing::Out)]);
        assert_eq!(pacer.step(2000, &out), [strikes[1]]);
        assert_eq!(pacer.help_up(2000, &out), []);
        assert_eq!(pacer.help_up(3000, &but(&[])), []);
        let mut helped = Vec::new();
        for now in (9000..15_000).step_by(500) {
            assert_eq!(pacer.step(now, &out), [], "it waits");
            helped.extend(pacer.help_up(now, &out));
        }
        let faults: Vec<Fault> = helped.iter().map(|strike| strike.fault).collect();
        assert_eq!(faults, [Fault::Kill, Fault::Restart], "{helped:?}");
        assert!(helped.iter().all(|strike| strike.node == MN_2));
    }

    #[test]
    fn in_the_end_all_come_back_and_nobody_is_struck_any_more() {
        let (cn_0, cn_1) = (NodeName::compute(0), NodeName::compute(1));
        let strikes = [
            strike(58_000, MN_1, Fault::Kill),
            strike(58_000, cn_0, Fault::Pause),
            strike(59_999, cn_1, Fault::Kill),
            strike(61_000, cn_0, Fault::Resume),
            strike(62_000, MN_1, Fault::Restart),
        ];
        let mut pacer = careful(&strikes);
        assert_eq!(pacer.step(58_000, &but(&[])).len(), 2);
        let out = but(&[(cn_0, Standing::Out), (MN_1, Standing::Out)]);
        assert_eq!(pacer.step(59_999, &out), []);
        let returning = pacer.step(60_000, &out);
        assert_eq!(pacer.strikes_left(), 1, "the kill that has waited");
        let restart = strike(60_000, MN_1, Fault::Restart);
        assert_eq!(returning, [restart, strike(60_000, cn_0, Fault::Resume)]);
        assert_eq!(pacer.step(60_100, &out), []);
        // It finds itself expelled, and its process ends.
        assert_eq!(pacer.help_up(60_100, &out), []);
        assert!(pacer.help_up(65_100, &out).contains(&strike(65_100, cn_0, Fault::Restart)));
        assert!(!pacer.is_done(66_000, &but(&[(MN_1, Standing::Filling)])));
        assert!(!pacer.is_done(66_000, &Standings::new()) && pacer.is_done(66_000, &but(&[])));
    }
}
