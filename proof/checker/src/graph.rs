//! The dependency graph, over points in time.
//!
//! # Points
//! A serializable transaction takes place at one point in time. A transaction under snapshot
//! isolation has two points: it reads at its *snapshot* and writes at its *commit*, which comes
//! later. A dependency orders two points:
//!
//! | dependency | the point | comes before the point |
//! |---|---|---|
//! | ww: A wrote the version before B's | A's commit | B's snapshot: first committer wins |
//! | wr: B read A's version | A's commit | B's snapshot |
//! | rw: A read the version before B's | A's snapshot | B's commit |
//! | session, real time: A ended before B started | A's commit | B's snapshot |
//! | | A's snapshot | A's commit |
//!
//! with snapshot and commit of a serializable transaction as a single point. The history can be
//! explained if and only if these points can be put into one order: if the graph has no cycle.
//! Transactions of both levels are thus judged together, by their own levels:
//! - with serializable transactions only, the graph is Adya's serialization graph;
//! - with snapshot transactions only, a cycle is a cycle of dependencies without two adjacent rw
//!   steps, which is how Fekete et al. (TODS 2005) and Cerone and Gotsman (JACM 2018) characterize
//!   snapshot isolation: a path that enters a transaction by rw arrives at its commit, and rw
//!   leaves from its snapshot;
//! - with both, a cycle is allowed exactly if it passes through a snapshot transaction from rw to
//!   rw. A serializable transaction in that place does not make the cycle allowed.
//!
//! # Real time
//! "A ended before B started" has quadratically many pairs. Instead, every start has a *gate*, in
//! the order of starts. An edge leads from A's commit to the first gate after A's end, and from
//! each gate to the next gate and to the snapshot of the transaction that started at the gate.
//!
//! # Left out
//! Dependencies on reads that are reported already, because an aborted transaction or no
//! transaction wrote their versions; and dependencies that would only repeat a lost update.

use crate::history::{AttemptIndex, RowIndex, Status};
use crate::report::Dependency;
use crate::trace::{INITIAL, NONE, Trace};
use crate::write_order::WriteOrder;

/// A point or a gate.
pub(crate) type Node = u32;

/// Reason for an edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Link {
    WriteWrite,
    WriteRead,
    ReadWrite,
    Session,
    /// A commit comes before the first gate after its end.
    RealTime,
    /// Between points of one transaction, between gates, or from a gate to a point. Every search
    /// may use a passage, and a passage does not count as a step.
    Passage,
}

impl Link {
    const ALL: [Self; 6] = [
        Self::WriteWrite,
        Self::WriteRead,
        Self::ReadWrite,
        Self::Session,
        Self::RealTime,
        Self::Passage,
    ];

    /// Name of the link in a report; `None` for a passage.
    pub(crate) fn dependency(self) -> Option<Dependency> {
        match self {
            Self::WriteWrite => Some(Dependency::WriteWrite),
            Self::WriteRead => Some(Dependency::WriteRead),
            Self::ReadWrite => Some(Dependency::ReadWrite),
            Self::Session => Some(Dependency::Session),
            Self::RealTime => Some(Dependency::RealTime),
            Self::Passage => None,
        }
    }
}

/// A set of links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mask(u8);

impl Mask {
    pub(crate) const ALL: Self = Self(u8::MAX);

    /// The set of `links` and passages.
    pub(crate) const fn of(links: &[Link]) -> Self {
        let mut bits = 1 << Link::Passage as u8;
        let mut at = 0;
        while at < links.len() {
            bits |= 1 << links[at] as u8;
            at += 1;
        }
        Self(bits)
    }

    pub(crate) const fn with(self, link: Link) -> Self {
        Self(self.0 | 1 << link as u8)
    }

    pub(crate) const fn has(self, link: Link) -> bool {
        self.0 & 1 << link as u8 != 0
    }
}

/// An edge: its target, and a label with the link above the row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) to: Node,
    label: u32,
}

const ROW_BITS: u32 = 29;

impl Edge {
    /// Packs link and row; `row` is below 2^29, which the history's builder guarantees.
    fn new(to: Node, link: Link, row: RowIndex) -> Self {
        Self { to, label: (link as u32) << ROW_BITS | row }
    }

    pub(crate) fn link(self) -> Link {
        Link::ALL[(self.label >> ROW_BITS) as usize]
    }

    /// Row of the dependency; `None` for links without a row.
    pub(crate) fn row(self) -> Option<RowIndex> {
        let about_row = matches!(self.link(), Link::WriteWrite | Link::WriteRead | Link::ReadWrite);
        about_row.then_some(self.label & ((1 << ROW_BITS) - 1))
    }
}

/// Orders enforced besides the order of the data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orders {
    pub(crate) session: bool,
    pub(crate) real_time: bool,
}

/// Nodes by number: every attempt's commit, then the snapshots, then the gates.
struct Nodes {
    /// Node of the reads of each attempt.
    snapshot: Vec<Node>,
    /// Attempts with a separate snapshot node, in the order of those nodes.
    snapshots: Vec<AttemptIndex>,
    /// Attempts starting at the gates, by gate.
    gates: Vec<AttemptIndex>,
}

impl Nodes {
    fn new(trace: &Trace<'_>, orders: Orders) -> Self {
        let mut snapshot: Vec<Node> = trace.history.indexes().collect();
        let two_points = |attempt: &AttemptIndex| trace.has_snapshot_point(*attempt);
        let snapshots: Vec<AttemptIndex> = trace.effective().filter(two_points).collect();
        let first = snapshot.len() as Node;
        for (node, attempt) in (first..).zip(&snapshots) {
            snapshot[*attempt as usize] = node;
        }
        let mut gates: Vec<AttemptIndex> = Vec::new();
        if orders.real_time {
            gates.extend(trace.effective());
            gates.sort_by_key(|attempt| trace.history.attempt(*attempt).start);
        }
        Self { snapshot, snapshots, gates }
    }

    fn count(&self) -> usize {
        self.snapshot.len() + self.snapshots.len() + self.gates.len()
    }

    fn snapshot(&self, attempt: AttemptIndex) -> Node {
        self.snapshot[attempt as usize]
    }

    fn gate(&self, number: usize) -> Node {
        (self.snapshot.len() + self.snapshots.len() + number) as Node
    }
}

/// The graph: one array of edges ordered by source node.
pub(crate) struct Graph {
    nodes: Nodes,
    starts: Vec<usize>,
    edges: Vec<Edge>,
}

impl Graph {
    pub(crate) fn new(trace: &Trace<'_>, order: &WriteOrder, orders: Orders) -> Self {
        let nodes = Nodes::new(trace, orders);
        let source = Source { trace, order, nodes: &nodes, orders };
        let mut starts = vec![0usize; nodes.count() + 1];
        source.emit(|from, _| starts[from as usize + 1] += 1);
        for node in 0..nodes.count() {
            starts[node + 1] += starts[node];
        }
        let mut next = starts.clone();
        let nowhere = Edge::new(0, Link::Passage, 0);
        let mut edges = vec![nowhere; starts[nodes.count()]];
        source.emit(|from, edge| {
            let place = &mut next[from as usize];
            edges[*place] = edge;
            *place += 1;
        });
        Self { nodes, starts, edges }
    }

    pub(crate) fn node_count(&self) -> usize {
        self.nodes.count()
    }

    /// The edges that leave a node.
    pub(crate) fn edges(&self, node: Node) -> &[Edge] {
        &self.edges[self.starts[node as usize]..self.starts[node as usize + 1]]
    }

    /// Attempt of a point; `None` for a gate.
    pub(crate) fn owner(&self, node: Node) -> Option<AttemptIndex> {
        let attempts = self.nodes.snapshot.len();
        match (node as usize).checked_sub(attempts) {
            None => Some(node),
            Some(number) => self.nodes.snapshots.get(number).copied(),
        }
    }
}

/// Inputs for the edges.
struct Source<'s, 'h> {
    trace: &'s Trace<'h>,
    order: &'s WriteOrder,
    nodes: &'s Nodes,
    orders: Orders,
}

impl Source<'_, '_> {
    /// Calls `add` with every edge and its source node.
    fn emit(&self, mut add: impl FnMut(Node, Edge)) {
        for &attempt in &self.nodes.snapshots {
            add(self.nodes.snapshot(attempt), Edge::new(attempt, Link::Passage, 0));
        }
        self.reads(&mut add);
        self.writes(&mut add);
        if self.orders.session {
            self.sessions(&mut add);
        }
        if self.orders.real_time {
            self.real_time(&mut add);
        }
    }

    fn reads(&self, add: &mut impl FnMut(Node, Edge)) {
        for read in self.trace.reads().filter(|read| self.trace.is_sound(*read)) {
            let [reader, source] = [self.trace.owner(read), self.trace.source(read)];
            let row = self.trace.history.op(read).row;
            let at = self.nodes.snapshot(reader);
            if source != INITIAL {
                add(self.trace.owner(source), Edge::new(at, Link::WriteRead, row));
            }
            let next = self.order.after(row, source);
            // An attempt that replaced the version of its read is the next writer, or lost its
            // update.
            if next != NONE && self.trace.partner(read) == NONE {
                add(at, Edge::new(self.trace.owner(next), Link::ReadWrite, row));
            }
        }
    }

    fn writes(&self, add: &mut impl FnMut(Node, Edge)) {
        for write in self.trace.writes() {
            let row = self.trace.history.op(write).row;
            let next = self.order.after(row, write);
            if next != NONE {
                let at = self.nodes.snapshot(self.trace.owner(next));
                add(self.trace.owner(write), Edge::new(at, Link::WriteWrite, row));
            }
        }
    }

    fn sessions(&self, add: &mut impl FnMut(Node, Edge)) {
        let mut last: Option<AttemptIndex> = None;
        for attempt in self.trace.history.by_session() {
            if !self.trace.took_effect(attempt) {
                continue;
            }
            let now = self.trace.history.attempt(attempt);
            let same =
                |before: &AttemptIndex| self.trace.history.attempt(*before).session == now.session;
            if let Some(before) = last.filter(same) {
                add(before, Edge::new(self.nodes.snapshot(attempt), Link::Session, 0));
            } else {
                last = None;
            }
            // An attempt of unknown outcome may have taken effect at any later time.
            if now.status == Status::Committed {
                last = Some(attempt);
            }
        }
    }

    fn real_time(&self, add: &mut impl FnMut(Node, Edge)) {
        let history = self.trace.history;
        let gates = &self.nodes.gates;
        for (number, attempt) in gates.iter().enumerate() {
            let gate = self.nodes.gate(number);
            add(gate, Edge::new(self.nodes.snapshot(*attempt), Link::Passage, 0));
            if number + 1 < gates.len() {
                add(gate, Edge::new(self.nodes.gate(number + 1), Link::Passage, 0));
            }
            let (Status::Committed, Some(end)) =
                (history.attempt(*attempt).status, history.attempt(*attempt).end)
            else {
                continue;
            };
            let after = gates.partition_point(|other| history.attempt(*other).start <= end);
            if after < gates.len() {
                add(*attempt, Edge::new(self.nodes.gate(after), Link::RealTime, 0));
            }
        }
    }
}
