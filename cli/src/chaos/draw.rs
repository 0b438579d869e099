//! Random schedules: every node that may be struck is struck and returns, again and again.
//!
//! # What it is
//! [`Bounds::draw`] makes a schedule from a seed. It deals the nodes out to *lanes*; in each lane
//! one node at a time is struck. Memory nodes have one lane, since their copies are needed. The
//! number of lanes for compute nodes leaves a majority of compute nodes. In a lane every node has
//! its *turn* before a node has a second turn. A turn is up to three pauses shorter than the lease;
//! then a kill, or a pause longer than the lease; then a restart. Half of the starts are struck as
//! well, once or twice: at any time until the node takes part it is killed, or paused, and started
//! again. With cables, half of the pauses are cuts, and some cuts of compute nodes are of one path
//! only. Some compute nodes that have just returned lose the path to another compute node of their
//! lane for so long that they give way, as the youngest nodes, and are started again. The turn of
//! the memory node that hosts the authority is up to three pauses of a quarter of a lease at most,
//! during which the authority answers nothing.
//!
//! [`Bounds::draw_all`] concatenates several schedules, one more than there are restores, with
//! snapshots just before strikes at compute nodes, so that many snapshots are struck.
//!
//! # What it is not
//! Knowledge of the cluster's state: turns are so far apart that a healthy cluster is whole again
//! between turns. [`super::pacer`] waits for a cluster that is not whole.

use std::time::Duration;

use lotus_fabric::env::Env;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::events::{Event, Restore};
use super::schedule::{Bounds, Fault, LEASES_TO_FILL, Strike};
use lotus_node::config::name::{NodeKind, NodeName};

/// Random stream for restores, separate from the streams of the lanes.
const RESTORES: u64 = 1 << 32;
/// Distance between the seeds of two rounds.
const SEEDS_APART: u64 = 1_000_003;
/// Maximum expected duration of a snapshot.
const SNAPSHOT_MS: u64 = 400;
/// Minimum number of leases between two snapshots.
const LEASES_BETWEEN_SNAPSHOTS: u64 = 3;
/// Time until a node notices that packets of one path are lost (`TCP_USER_TIMEOUT`), with a margin.
const UNNOTICED_MS: u64 = 2500;
/// Minimum number of leases from then until one of two compute nodes has given way.
const LEASES_TO_GIVE_WAY: u64 = 3;
/// Maximum number of nodes struck while they start from a snapshot.
const MOST_STRUCK_AT_START: usize = 3;

impl Bounds {
    /// Draws a whole schedule, with `restores` restores.
    pub fn draw_all(&self, seed: u64, restores: usize) -> Vec<Event> {
        let span_ms = self.span.as_millis() as u64;
        let rounds = restores as u64 + 1;
        let mut rng = Env::real(seed).rng(RESTORES);
        let mut events = Vec::new();
        let mut began_ms = 0;
        for round in 1..=rounds {
            // Close to the time at equal distances.
            let sway = span_ms / rounds / 4;
            let ends_ms = match round == rounds {
                true => span_ms,
                false => span_ms * round / rounds - rng.random_range(0..=sway),
            };
            let bounds = Self { span: Duration::from_millis(ends_ms - began_ms), ..*self };
            let strikes = bounds.draw(seed.wrapping_add((round - 1) * SEEDS_APART));
            let mut drawn: Vec<Event> = bounds.draw_snapshots(&strikes, &mut rng);
            drawn.extend(strikes.into_iter().map(Event::Strike));
            drawn.sort_by_key(Event::at_ms);
            events.extend(drawn.into_iter().map(|event| event.later(began_ms)));
            if round < rounds {
                events.push(Event::Restore(bounds.draw_restore(ends_ms, &mut rng)));
            }
            began_ms = ends_ms;
        }
        events
    }

    /// Draws snapshots, timed so that many strikes hit a snapshot.
    fn draw_snapshots(&self, strikes: &[Strike], rng: &mut SmallRng) -> Vec<Event> {
        let Some(lease) = self.lease.filter(|_| self.snapshots) else { return Vec::new() };
        let apart_ms = lease.as_millis() as u64 * LEASES_BETWEEN_SNAPSHOTS;
        let mut drawn: Vec<Event> = Vec::new();
        for strike in strikes.iter().filter(|strike| strike.node.kind == NodeKind::Compute) {
            // Half of the snapshots take only moments.
            let most = if rng.random() { SNAPSHOT_MS } else { SNAPSHOT_MS / 8 };
            let at_ms = strike.at_ms.saturating_sub(rng.random_range(0..=most));
            let is_apart = drawn.last().is_none_or(|last| at_ms >= last.at_ms() + apart_ms);
            if is_apart && strike.fault.goes_away() && rng.random_bool(0.6) {
                drawn.push(Event::Snapshot { at_ms });
            }
        }
        drawn
    }

    /// Draws the strikes of one restore, while the cluster is ended and started.
    fn draw_restore(&self, at_ms: u64, rng: &mut SmallRng) -> Restore {
        let mut restore = Restore { at_ms, ending: Vec::new(), starting: Vec::new() };
        let Some(lease) = self.lease else { return restore };
        let lease_ms = lease.as_millis() as u64;
        let any = |rng: &mut SmallRng, kind, count: usize| NodeName {
            kind,
            index: rng.random_range(0..count as u16),
        };
        let short_or_long = |rng: &mut SmallRng| match rng.random() {
            true => rng.random_range(lease_ms / 8..=lease_ms / 2),
            false => rng.random_range(lease_ms * 3 / 2..=lease_ms * 2),
        };
        if rng.random_bool(0.7) {
            let node = any(rng, NodeKind::Compute, self.compute_nodes);
            let now = rng.random_range(0..=SNAPSHOT_MS * 2);
            let (goes, returns, away) = match rng.random() {
                true => (Fault::Kill, Fault::Restart, rng.random_range(0..=lease_ms * 2)),
                false => (Fault::Pause, Fault::Resume, short_or_long(rng)),
            };
            restore.ending = [(now, goes), (now + away, returns)]
                .map(|(at_ms, fault)| Strike { at_ms, node, fault })
                .into();
        }
        let mut strikes = Vec::new();
        for number in 0..rng.random_range(1..=MOST_STRUCK_AT_START) {
            let node = match (number, rng.random_range(0..4)) {
                (0, 0..=1) => NodeName::compute(0),
                (_, 0 | 1) => any(rng, NodeKind::Memory, self.memory_nodes),
                _ => any(rng, NodeKind::Compute, self.compute_nodes),
            };
            // Processes run after moments; a node that takes part later waits for the founder.
            let most = if rng.random() { 500 } else { lease_ms * 3 };
            let now = rng.random_range(0..=most);
            match rng.random_bool(0.6) {
                true => strikes.push(Strike { at_ms: now, node, fault: Fault::Kill }),
                false => {
                    let until = now + short_or_long(rng);
                    strikes.push(Strike { at_ms: now, node, fault: Fault::Pause });
                    strikes.push(Strike { at_ms: until, node, fault: Fault::Resume });
                }
            }
        }
        strikes.sort_by_key(|strike| strike.at_ms);
        restore.starting = strikes;
        restore
    }

    /// Draws strikes until the load ends. Empty if no node may be struck, or the time is too short.
    pub fn draw(&self, seed: u64) -> Vec<Strike> {
        let Some(lease) = self.lease else { return Vec::new() };
        let env = Env::real(seed);
        let lane = |(place, nodes): (usize, Vec<NodeName>)| {
            Lane { bounds: self, lease, rng: env.rng(place as u64) }.draw(nodes)
        };
        let mut strikes: Vec<Strike> =
            self.lanes().into_iter().enumerate().flat_map(lane).collect();
        // The sort is stable: strikes of the same node keep their order.
        strikes.sort_by_key(|strike| strike.at_ms);
        strikes
    }

    /// Maximum number of compute nodes that may be away at once.
    pub fn compute_away(&self) -> usize {
        match self.compute_nodes {
            0 | 1 => 0,
            all => ((all - 1) / 2).max(1),
        }
    }

    /// Groups of nodes; in each group the nodes are struck one at a time.
    fn lanes(&self) -> Vec<Vec<NodeName>> {
        let memory =
            (0..self.memory_nodes as u16).map(|index| NodeName { kind: NodeKind::Memory, index });
        let is_struck = |node: &NodeName| self.may_strike(*node, Fault::Pause).is_ok();
        let mut lanes: Vec<Vec<NodeName>> = vec![memory.filter(is_struck).collect()];
        let away = self.compute_away();
        let compute = || (0..self.compute_nodes).map(|index| NodeName::compute(index as u16));
        lanes.extend((0..away).map(|lane| compute().skip(lane).step_by(away).collect()));
        lanes.retain(|nodes| !nodes.is_empty());
        lanes
    }
}

/// Draws the strikes of one lane: one node at a time.
struct Lane<'a> {
    bounds: &'a Bounds,
    lease: Duration,
    rng: SmallRng,
}

impl Lane<'_> {
    fn draw(mut self, mut nodes: Vec<NodeName>) -> Vec<Strike> {
        let (span, lease) = (self.bounds.span.as_millis() as u64, self.lease.as_millis() as u64);
        let mut strikes = Vec::new();
        let mut now = self.rng.random_range(lease / 2..=lease);
        loop {
            nodes.shuffle(&mut self.rng);
            for node in &nodes {
                let paths = self.paths(*node, &nodes);
                // No random number is drawn without a choice.
                let peers = paths.iter().copied().filter(|it| it.kind == NodeKind::Compute);
                let peers: Vec<NodeName> = peers.collect();
                let loses_one = !peers.is_empty() && self.rng.random_bool(0.4);
                for loses_path in [false, true].into_iter().take(1 + usize::from(loses_one)) {
                    let is_authority = self.bounds.is_authority(*node);
                    let turn = match loses_path {
                        true => self.lost_path(*node, &peers, now),
                        false if is_authority => self.moments(*node, now),
                        false => self.turn(*node, &paths, now),
                    };
                    let ended = turn.last().map_or(now, |last| last.at_ms);
                    // After a moment of absence a memory node needs no filling.
                    now = ended + lease * if is_authority { 1 } else { LEASES_TO_FILL };
                    if now > span {
                        return strikes;
                    }
                    strikes.extend(turn);
                    now += self.rng.random_range(0..=lease);
                }
            }
        }
    }

    /// Nodes from which a node may be cut: nodes of its lane, and memory nodes if less than half of
    /// the compute nodes then miss them.
    fn paths(&self, node: NodeName, lane: &[NodeName]) -> Vec<NodeName> {
        let bounds = self.bounds;
        if !bounds.cables || node.kind == NodeKind::Memory {
            return Vec::new();
        }
        let memory = (0..bounds.memory_nodes as u16)
            .map(|index| NodeName { kind: NodeKind::Memory, index })
            .filter(|_| bounds.compute_away() * 2 < bounds.compute_nodes);
        let all = lane.iter().copied().chain(memory);
        all.filter(|other| bounds.may_cut(node, *other).is_ok()).collect()
    }

    /// Draws the loss of one path, long enough for the node to give way, and the node's return.
    fn lost_path(&mut self, node: NodeName, peers: &[NodeName], now: u64) -> Vec<Strike> {
        let lease = self.lease.as_millis() as u64;
        let other = peers[self.rng.random_range(0..peers.len())];
        let leases = LEASES_TO_GIVE_WAY;
        let long = self.rng.random_range(lease * leases..=lease * (leases + 2));
        let healed = now + UNNOTICED_MS + long;
        let again = healed + self.rng.random_range(0..=lease);
        [(now, Fault::Cut(other)), (healed, Fault::Mend(other)), (again, Fault::Restart)]
            .map(|(at_ms, fault)| Strike { at_ms, node, fault })
            .into()
    }

    /// Draws moments of absence of the authority's host.
    fn moments(&mut self, node: NodeName, mut now: u64) -> Vec<Strike> {
        let (lease, most) = (self.lease.as_millis() as u64, self.bounds.moment_ms() / 2);
        let mut strikes = Vec::new();
        for _ in 0..self.rng.random_range(1..=3) {
            let [goes, returns] = self.away();
            strikes.push(Strike { at_ms: now, node, fault: goes });
            now += self.rng.random_range(most / 4..=most);
            strikes.push(Strike { at_ms: now, node, fault: returns });
            now += self.rng.random_range(lease / 4..=lease);
        }
        strikes
    }

    /// Draws a node's strikes from `now` until its restart. The node may be cut from the other ends
    /// of `paths`.
    fn turn(&mut self, node: NodeName, paths: &[NodeName], mut now: u64) -> Vec<Strike> {
        let lease = self.lease.as_millis() as u64;
        let mut strikes = Vec::new();
        let mut strike = |at_ms, fault| strikes.push(Strike { at_ms, node, fault });
        for _ in 0..self.rng.random_range(0..=3) {
            let [goes, returns] = match !paths.is_empty() && self.rng.random_bool(0.3) {
                true => {
                    let other = paths[self.rng.random_range(0..paths.len())];
                    [Fault::Cut(other), Fault::Mend(other)]
                }
                false => self.away(),
            };
            strike(now, goes);
            now += self.rng.random_range(lease / 8..=lease / 2);
            strike(now, returns);
            now += self.rng.random_range(lease / 4..=lease);
        }
        if self.rng.random_bool(0.4) {
            let [goes, returns] = self.away();
            strike(now, goes);
            now += self.rng.random_range(lease * 3 / 2..=lease * 2);
            strike(now, returns);
            now += self.rng.random_range(0..=lease / 2);
            // The other nodes no longer use this memory node, and its content is out of date.
            if node.kind == NodeKind::Memory {
                strike(now, Fault::Kill);
                now += self.rng.random_range(0..=lease / 2);
            }
        } else {
            strike(now, Fault::Kill);
            // Restart before other nodes have noticed, or during recovery, or after recovery.
            now += match self.rng.random_bool(0.3) {
                true => self.rng.random_range(0..=lease / 2),
                false => self.rng.random_range(lease..=lease * 3),
            };
        }
        strike(now, Fault::Restart);
        strikes.extend(self.struck_starts(node, now));
        strikes
    }

    /// Draws the strikes at a node restarted at `now`, before it may take part.
    fn struck_starts(&mut self, node: NodeName, mut now: u64) -> Vec<Strike> {
        let lease = self.lease.as_millis() as u64;
        let count = if self.rng.random_bool(0.5) { self.rng.random_range(1..=2) } else { 0 };
        let mut strikes = Vec::new();
        let mut strike = |at_ms, fault| strikes.push(Strike { at_ms, node, fault });
        for _ in 0..count {
            // A process runs after moments; leases pass until it takes part, or is filled.
            let longest = if self.rng.random() { lease / 2 } else { lease * 3 };
            now += self.rng.random_range(0..=longest);
            let is_paused = self.rng.random_bool(0.4);
            if is_paused {
                let [goes, returns] = self.away();
                strike(now, goes);
                now += match self.rng.random() {
                    true => self.rng.random_range(lease / 8..=lease / 2),
                    false => self.rng.random_range(lease * 3 / 2..=lease * 2),
                };
                strike(now, returns);
                // The start continues from the point of the pause.
                now += self.rng.random_range(0..=lease * 2);
            }
            if node.kind == NodeKind::Memory || !is_paused {
                strike(now, Fault::Kill);
                now += self.rng.random_range(0..=lease / 2);
            }
            strike(now, Fault::Restart);
        }
        strikes
    }

    /// Draws a pair of faults: the first silences a node, the second ends the silence.
    fn away(&mut self) -> [Fault; 2] {
        // No random number is drawn without a choice.
        match self.bounds.cables && self.rng.random() {
            true => [Fault::Partition, Fault::Heal],
            false => [Fault::Pause, Fault::Resume],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// Three nodes of each kind for five minutes.
    fn bounds(cables: bool) -> Bounds {
        Bounds {
            memory_nodes: 3,
            replicas: 2,
            cables,
            hosts_authority: true,
            compute_nodes: 3,
            lease: Some(Duration::from_secs(1)),
            span: Duration::from_secs(300),
            snapshots: true,
        }
    }

    /// Nodes that are away after these strikes.
    fn away(strikes: &[Strike]) -> BTreeSet<NodeName> {
        let mut away = BTreeSet::new();
        for strike in strikes {
            match strike.fault {
                Fault::Resume | Fault::Heal | Fault::Mend(_) | Fault::Restart => {
                    away.remove(&strike.node)
                }
                _ => away.insert(strike.node),
            };
        }
        away
    }

    #[test]
    fn in_five_minutes_every_node_that_may_be_struck_ends_and_returns_many_times() {
        for (seed, cables) in (0..50).zip([false, true].into_iter().cycle()) {
            let drawn = bounds(cables).draw(seed);
            let mut restarts = BTreeMap::new();
            for strike in drawn.iter().filter(|strike| strike.fault == Fault::Restart) {
                *restarts.entry(strike.node.to_string()).or_insert(0) += 1;
            }
            let struck: Vec<&str> = restarts.keys().map(String::as_str).collect();
            assert_eq!(struck, ["cn-0", "cn-1", "cn-2", "mn-1", "mn-2"], "seed {seed}");
            assert!(restarts.values().all(|count| *count >= 8), "seed {seed}: {restarts:?}");
            assert!(away(&drawn).is_empty(), "seed {seed}: all are back in the end");
        }
    }

    #[test]
    fn in_five_minutes_snapshots_are_taken_and_struck_and_five_restores_are() {
        let within = |event: &Event, strikes: &[Strike]| {
            let struck = |strike: &&Strike| {
                let strikes_it =
                    (event.at_ms()..=event.at_ms() + SNAPSHOT_MS).contains(&strike.at_ms);
                strikes_it && strike.node.kind == NodeKind::Compute && strike.fault.goes_away()
            };
            strikes.iter().any(|strike| struck(&strike))
        };
        let (mut founder, mut host, mut ending) = (0, 0, 0);
        for seed in 0..50 {
            let events = bounds(false).draw_all(seed, 5);
            let mut strikes = Vec::new();
            let (mut snapshots, mut restores) = (Vec::new(), Vec::new());
            for event in &events {
                match event {
                    Event::Strike(strike) => strikes.push(*strike),
                    Event::Snapshot { .. } => snapshots.push(event.clone()),
                    Event::Wait { .. } => panic!("none is drawn"),
                    Event::Restore(restore) => restores.push(restore),
                }
            }
            assert_eq!(restores.len(), 5, "seed {seed}");
            let ends = restores.iter().map(|restore| restore.at_ms).chain([300_000]);
            let begins = [0].into_iter().chain(restores.iter().map(|restore| restore.at_ms));
            assert!(begins.zip(ends).all(|(from, to)| to - from > 30_000), "seed {seed}");
            assert!(restores.iter().all(|restore| !restore.starting.is_empty()), "seed {seed}");
            assert!(snapshots.len() >= 8, "seed {seed}: {snapshots:?}");
            assert!(snapshots.iter().all(|event| within(event, &strikes)), "seed {seed}");
            let kills = restores.iter().flat_map(|restore| &restore.starting);
            let kills: Vec<NodeName> = kills
                .filter(|strike| strike.fault == Fault::Kill)
                .map(|strike| strike.node)
                .collect();
            founder += kills.iter().filter(|node| **node == NodeName::compute(0)).count();
            host += kills.iter().filter(|node| node.kind == NodeKind::Memory).count();
            ending += restores.iter().filter(|restore| !restore.ending.is_empty()).count();
        }
        assert!(founder > 80 && host > 50 && ending > 120, "{founder} {host} {ending}");
        let none = Bounds { snapshots: false, ..bounds(false) };
        let is_strike = |event: &Event| matches!(event, Event::Strike(_));
        assert!(none.draw_all(1, 0).iter().all(is_strike));
    }

    #[test]
    fn half_of_the_starts_are_struck_at_any_time_until_a_node_takes_part() {
        let mut early = BTreeMap::new();
        let mut late = BTreeMap::new();
        let mut faults = BTreeSet::new();
        for seed in 0..50 {
            let drawn = bounds(true).draw(seed);
            let starts = drawn.iter().enumerate();
            for (index, start) in starts.filter(|(_, strike)| strike.fault == Fault::Restart) {
                let next = drawn[index + 1..].iter().find(|next| next.node == start.node);
                let Some(next) = next.filter(|next| next.at_ms <= start.at_ms + 3000) else {
                    continue;
                };
                assert!(next.fault.goes_away(), "seed {seed}: {next:?} follows a start");
                let soon = if next.at_ms <= start.at_ms + 500 { &mut early } else { &mut late };
                *soon.entry(start.node).or_insert(0) += 1;
                faults.insert(next.fault.name());
            }
        }
        for node in [1, 2].map(|index| NodeName { kind: NodeKind::Memory, index }).into_iter() {
            assert!(early[&node] > 100 && late[&node] > 50, "{node}: {early:?} {late:?}");
        }
        for node in (0..3).map(NodeName::compute) {
            assert!(early[&node] > 100 && late[&node] > 50, "{node}: {early:?} {late:?}");
        }
        assert_eq!(faults, BTreeSet::from(["kill", "partition", "pause"]));
    }

    #[test]
    fn a_majority_of_compute_nodes_and_all_memory_nodes_but_one_stay() {
        for (seed, compute_nodes) in (0..60).zip([2, 3, 4, 5].into_iter().cycle()) {
            let bounds = Bounds { compute_nodes, ..bounds(true) };
            let drawn = bounds.draw(seed);
            assert!(!drawn.is_empty());
            let mut most = 0;
            for end in 0..drawn.len() {
                let away = away(&drawn[..=end]);
                let (memory, compute): (Vec<_>, Vec<_>) =
                    away.into_iter().partition(|node| node.kind == NodeKind::Memory);
                assert!(memory.len() <= 1, "seed {seed}: {memory:?}");
                most = most.max(compute.len());
            }
            let allowed = [1, 1, 1, 2][compute_nodes - 2];
            assert_eq!(most, allowed, "seed {seed}, {compute_nodes} compute nodes");
        }
        let alone = Bounds { compute_nodes: 1, replicas: 1, ..bounds(true) };
        assert_eq!(alone.draw(7), []);
    }

    /// Whoever has to give way is younger than the other end.
    #[test]
    fn paths_are_cut_for_moments_or_until_the_youngest_has_given_way() {
        let (mut short, mut long) = (BTreeMap::new(), 0);
        for (seed, compute_nodes) in (0..80).zip([2, 3, 4, 5].into_iter().cycle()) {
            let bounds = Bounds { compute_nodes, ..bounds(true) };
            let drawn = bounds.draw(seed);
            for (index, cut) in drawn.iter().enumerate() {
                let Fault::Cut(other) = cut.fault else { continue };
                let after = drawn[index + 1..].iter().filter(|later| later.node == cut.node);
                let [mended, next] = [0, 1].map(|nth| after.clone().nth(nth).copied());
                let mended = mended.expect("it is healed");
                assert_eq!(mended.fault, Fault::Mend(other), "seed {seed}");
                assert_eq!(bounds.may_cut(cut.node, other), Ok(()), "seed {seed}");
                let hosts = NodeName { kind: NodeKind::Memory, index: 0 };
                assert!(other != hosts && cut.node.kind == NodeKind::Compute, "seed {seed}");
                assert!(other.kind == NodeKind::Compute || compute_nodes > 2, "seed {seed}");
                let ms = mended.at_ms - cut.at_ms;
                if ms <= 500 {
                    *short.entry(other.kind).or_insert(0) += 1;
                    continue;
                }
                assert!(ms >= 5500 && other.kind == NodeKind::Compute, "seed {seed}: {cut:?}");
                assert_eq!(next.map(|next| next.fault), Some(Fault::Restart), "seed {seed}");
                let born = |node| {
                    let of = |at: &&Strike| at.node == node && at.fault == Fault::Restart;
                    drawn[..index].iter().rfind(of).map(|at| at.at_ms)
                };
                assert!(born(other) < born(cut.node), "seed {seed}: {cut:?}");
                long += 1;
            }
        }
        for kind in [NodeKind::Memory, NodeKind::Compute] {
            assert!(short[&kind] > 100 && long > 100, "{short:?} {long}");
        }
        let drawn = (0..20).flat_map(|seed| bounds(false).draw(seed));
        assert!(drawn.into_iter().all(|strike| strike.fault.other().is_none()));
    }

    #[test]
    fn a_memory_node_is_not_struck_before_the_one_before_it_can_be_whole() {
        for seed in 0..50 {
            let drawn = bounds(true).draw(seed);
            let memory: Vec<&Strike> =
                drawn.iter().filter(|strike| strike.node.kind == NodeKind::Memory).collect();
            for pair in memory.windows(2).filter(|pair| pair[0].node != pair[1].node) {
                if bounds(true).is_authority(pair[0].node) {
                    assert!(!pair[0].fault.goes_away(), "seed {seed}");
                    continue;
                }
                assert_eq!(pair[0].fault, Fault::Restart, "seed {seed}");
                assert!(pair[1].at_ms >= pair[0].at_ms + 1000 * LEASES_TO_FILL, "seed {seed}");
            }
        }
    }

    #[test]
    fn the_authority_s_host_is_away_for_moments_and_memory_node_0_is_struck_beside_etcd() {
        let hosted = bounds(true);
        let etcd = Bounds { hosts_authority: false, cables: false, ..hosted };
        let host = NodeName { kind: NodeKind::Memory, index: 0 };
        let strikes = |bounds: Bounds, seed| {
            let drawn = bounds.draw(seed).into_iter();
            drawn.filter(|strike| strike.node == host).collect::<Vec<_>>()
        };
        let names = |bounds| {
            let strikes = (0..20).flat_map(|seed| strikes(bounds, seed));
            strikes.map(|strike| strike.fault.name()).collect::<BTreeSet<_>>()
        };
        assert_eq!(names(hosted), BTreeSet::from(["heal", "partition", "pause", "resume"]));
        assert_eq!(names(etcd), BTreeSet::from(["kill", "pause", "restart", "resume"]));
        for seed in 0..20 {
            let strikes = strikes(hosted, seed);
            assert!(strikes.len() >= 20, "seed {seed}: {}", strikes.len());
            for pair in strikes.chunks(2) {
                let [goes, returns] = pair else { panic!("seed {seed}: it is back in the end") };
                assert!(goes.fault.goes_away() && !returns.fault.goes_away(), "seed {seed}");
                assert!(returns.at_ms - goes.at_ms <= 250, "seed {seed}: {pair:?}");
            }
        }
    }
}
