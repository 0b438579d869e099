//! Search for short cycles of each kind, and their names.
//!
//! A history without cycles costs one pass over the graph. Otherwise every strongly connected
//! component ("tangle") is searched first with few kinds of links and then with more, so that a
//! cycle is found with the fewest kinds of links. Each kind of cycle has a characteristic link,
//! part of every cycle of the kind. From the target of each edge with this link, a breadth-first
//! search leads back to the edge's source.
//!
//! # Choice of cycles
//! A tangle can have exponentially many cycles. Searches begin with the edges that lead back in
//! time the least, as these close short cycles. The shortest of the found cycles are reported, as
//! long as each involves a new transaction.
//!
//! # Bounds
//! The work on a tangle is bounded. If the bound hides a cycle of a more specific kind, a later,
//! more general search finds some cycle, which is named by its edges.

use std::collections::VecDeque;

use crate::components::Components;
use crate::graph::{Edge, Graph, Link, Mask, Node};
use crate::history::History;
use crate::properties::CYCLES;
use crate::report::{Anomaly, CycleStep, Dependency, Findings};

/// Search for a kind of cycle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    /// Link in every cycle of the kind.
    pub(crate) begin: Link,
    /// Further links allowed in the cycle.
    pub(crate) go_on: Mask,
}

/// Limit of edges to visit for one kind of cycle in a tangle. A search is never cut short.
const MAX_WORK: usize = 1 << 25;
/// Limit of cycles of one kind to find in a tangle; the shortest are reported.
const MAX_FOUND: usize = 64;
/// Limit of cycles of one kind to report for a tangle.
const MAX_REPORTED: usize = 16;

/// Reports the cycles of a graph.
pub(crate) fn check(history: &History, graph: &Graph, findings: &mut Findings<'_>) {
    let mut components = Components::new(graph);
    let all = 0..graph.node_count() as Node;
    let tangles = components.find(all, Mask::ALL, |_| true);
    if tangles.is_empty() {
        return;
    }
    let mut finder = Finder::new(history, graph);
    let mut numbers = 0;
    // By node: number of its tangle in the graph with all links.
    let mut wide = vec![0; graph.node_count()];
    for tangle in tangles {
        numbers += 1;
        let within = numbers;
        mark(&mut wide, &tangle, within);
        for search in CYCLES {
            let mask = search.go_on.with(search.begin);
            let inside = |node: Node| wide[node as usize] == within;
            for narrow in components.find(tangle.iter().copied(), mask, inside) {
                numbers += 1;
                mark(&mut finder.tangle, &narrow, numbers);
                for steps in finder.cycles(search, &narrow) {
                    findings.add(name(&steps), &[], &steps, |_| String::new());
                }
            }
        }
    }
}

fn mark(tangle_of: &mut [u32], nodes: &[Node], number: u32) {
    for node in nodes {
        tangle_of[*node as usize] = number;
    }
}

/// The most specific name of a cycle.
fn name(steps: &[CycleStep]) -> Anomaly {
    let is_rw = |step: &CycleStep| step.dependency == Dependency::ReadWrite;
    let has = |dependency| steps.iter().any(|step| step.dependency == dependency);
    let after = steps.iter().cycle().skip(1);
    let adjacent = steps.iter().zip(after).any(|(one, next)| is_rw(one) && is_rw(next));
    match steps.iter().filter(|step| is_rw(step)).count() {
        _ if has(Dependency::RealTime) => Anomaly::RealTime,
        _ if has(Dependency::Session) => Anomaly::SessionOrder,
        0 if has(Dependency::WriteRead) => Anomaly::G1c,
        0 => Anomaly::G0,
        1 => Anomaly::GSingle,
        _ if adjacent => Anomaly::G2,
        _ => Anomaly::GNonadjacent,
    }
}

/// A node's state in the current or an earlier search.
#[derive(Clone, Copy)]
struct Reached {
    /// Number of the search.
    round: u32,
    distance: u32,
    from: Node,
    edge: Edge,
}

/// A cycle: the nodes with their outgoing edges.
type Cycle = Vec<(Node, Edge)>;

struct Finder<'g> {
    history: &'g History,
    graph: &'g Graph,
    /// Number of each node's tangle, in the graph being searched.
    tangle: Vec<u32>,
    /// Whether each attempt is in a reported cycle.
    reported: Vec<bool>,
    reached: Vec<Option<Reached>>,
    round: u32,
    queue: VecDeque<(Node, u32)>,
}

impl<'g> Finder<'g> {
    fn new(history: &'g History, graph: &'g Graph) -> Self {
        let nodes = graph.node_count();
        Self {
            history,
            graph,
            tangle: vec![0; nodes],
            reported: vec![false; history.attempts().len()],
            reached: vec![None; nodes],
            round: 0,
            queue: VecDeque::new(),
        }
    }

    /// Cycles of a kind in a tangle; every cycle adds a transaction to the cycles reported before.
    fn cycles(&mut self, search: Search, tangle: &[Node]) -> Vec<Vec<CycleStep>> {
        let mut work = MAX_WORK;
        let mut found = Vec::new();
        for (from, edge) in self.beginnings(search.begin, tangle) {
            if work == 0 || found.len() == MAX_FOUND {
                break;
            }
            let cycle = self.close(from, edge, search.go_on, &mut work);
            found.extend(cycle.map(|cycle| self.steps(&cycle)));
        }
        found.sort_by_key(Vec::len);
        found.retain(|steps| {
            let new = steps.iter().any(|step| !self.reported[step.from as usize]);
            for step in steps.iter().filter(|_| new) {
                self.reported[step.from as usize] = true;
            }
            new
        });
        found.truncate(MAX_REPORTED);
        found
    }

    /// Edges with this link within a tangle, the most promising first.
    fn beginnings(&self, link: Link, tangle: &[Node]) -> Vec<(Node, Edge)> {
        let mut found = Vec::new();
        for &from in tangle {
            for &edge in self.graph.edges(from) {
                let inside = self.tangle[edge.to as usize] == self.tangle[from as usize];
                // A dependency on a transaction that had ended before is half of a real-time cycle.
                let half = link == Link::RealTime && self.leads_back(from, edge);
                if inside && (edge.link() == link || half) {
                    found.push((from, edge));
                }
            }
        }
        found.sort_by_cached_key(|(from, edge)| {
            let [start, to] = [*from, edge.to].map(|node| self.graph.owner(node));
            let end = |attempt| self.history.attempt(attempt).end.unwrap_or(u64::MAX);
            let [start, to] = [start.map(end), to.or(start).map(end)];
            (to >= start, to.unwrap_or(0).abs_diff(start.unwrap_or(0)))
        });
        found
    }

    /// Whether an edge leads to a transaction that ended before the edge's source transaction
    /// started.
    fn leads_back(&self, from: Node, edge: Edge) -> bool {
        let [from, to] = [from, edge.to].map(|node| self.graph.owner(node));
        let [Some(from), Some(to)] = [from, to] else { return false };
        let [from, to] = [from, to].map(|attempt| self.history.attempt(attempt));
        to.end.is_some_and(|end| end < from.start)
    }

    /// The shortest cycle that begins with `edge`; passages do not count as steps.
    fn close(&mut self, start: Node, edge: Edge, mask: Mask, work: &mut usize) -> Option<Cycle> {
        let graph = self.graph;
        self.round += 1;
        self.queue.clear();
        self.reach(edge.to, Reached { round: self.round, distance: 1, from: start, edge });
        while let Some((node, distance)) = self.queue.pop_front() {
            if node == start {
                return Some(self.trace_back(start));
            }
            // A shorter path to the node has been found meanwhile.
            if self.reached[node as usize].is_none_or(|reached| reached.distance != distance) {
                continue;
            }
            for &edge in graph.edges(node) {
                let inside = self.tangle[edge.to as usize] == self.tangle[start as usize];
                if !inside || !mask.has(edge.link()) {
                    continue;
                }
                *work = work.saturating_sub(1);
                let step = u32::from(edge.link() != Link::Passage);
                let distance = distance + step;
                self.reach(edge.to, Reached { round: self.round, distance, from: node, edge });
            }
        }
        None
    }

    fn reach(&mut self, node: Node, reached: Reached) {
        let known = self.reached[node as usize].filter(|known| known.round == reached.round);
        if known.is_some_and(|known| known.distance <= reached.distance) {
            return;
        }
        self.reached[node as usize] = Some(reached);
        if reached.edge.link() == Link::Passage {
            self.queue.push_front((node, reached.distance));
        } else {
            self.queue.push_back((node, reached.distance));
        }
    }

    fn trace_back(&self, start: Node) -> Cycle {
        let mut cycle = Vec::new();
        let mut node = start;
        loop {
            let reached = self.reached[node as usize].expect("the search came this way");
            cycle.push((reached.from, reached.edge));
            node = reached.from;
            if node == start {
                cycle.reverse();
                return cycle;
            }
        }
    }

    /// The cycle's steps between transactions, without gates and passages, beginning at the
    /// transaction that is first in the history.
    fn steps(&self, cycle: &[(Node, Edge)]) -> Vec<CycleStep> {
        let mut steps: Vec<CycleStep> = Vec::new();
        // The step that has left a transaction and not yet arrived at the next transaction.
        let mut leaving = None;
        for &(node, edge) in cycle {
            if let Some(dependency) = edge.link().dependency() {
                leaving = self.graph.owner(node).map(|from| (from, dependency, edge.row()));
            }
            let Some(to) = self.graph.owner(edge.to) else { continue };
            if let Some((from, dependency, row)) = leaving.take() {
                steps.push(CycleStep { from, to, dependency, row });
            }
        }
        let first = (0..steps.len()).min_by_key(|at| steps[*at].from);
        steps.rotate_left(first.unwrap_or(0));
        steps
    }
}
