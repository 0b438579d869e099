//! Strongly connected components ("tangles"): every cycle lies within one component.
//!
//! Tarjan's algorithm with an explicit stack, so that a path of a million transactions does not
//! overflow the thread's stack. Time and memory are linear.

use crate::graph::{Graph, Mask, Node};

const UNSEEN: u32 = 0;
/// Value of `low` for nodes of complete components.
const DONE: u32 = u32::MAX;

/// Arrays for several runs over one graph.
pub(crate) struct Components<'g> {
    graph: &'g Graph,
    /// Position of each node in the order of visits, from 1.
    seen: Vec<u32>,
    /// Smallest known position that a node leads back to.
    low: Vec<u32>,
    /// Visited nodes of incomplete components.
    open: Vec<Node>,
    /// The path being followed, with the next edge of each node.
    path: Vec<(Node, u32)>,
}

impl<'g> Components<'g> {
    pub(crate) fn new(graph: &'g Graph) -> Self {
        let nodes = graph.node_count();
        let (seen, low) = (vec![UNSEEN; nodes], vec![UNSEEN; nodes]);
        Self { graph, seen, low, open: Vec::new(), path: Vec::new() }
    }

    /// Components of more than one node, in the subgraph of `nodes` and of the links in `mask`.
    /// `inside` must be true only for `nodes`.
    pub(crate) fn find(
        &mut self,
        nodes: impl Iterator<Item = Node> + Clone,
        mask: Mask,
        inside: impl Fn(Node) -> bool,
    ) -> Vec<Vec<Node>> {
        for node in nodes.clone() {
            self.seen[node as usize] = UNSEEN;
        }
        let mut found = Vec::new();
        let mut count = 0;
        for root in nodes {
            if self.seen[root as usize] != UNSEEN {
                continue;
            }
            self.visit(root, &mut count);
            while let Some((node, next)) = self.path.pop() {
                match self.advance(node, next, mask, &inside) {
                    Some((at, to)) => {
                        // On the way back this edge is visited again, to take over its target's
                        // `low`.
                        self.path.push((node, at));
                        self.visit(to, &mut count);
                    }
                    None => self.leave(node, &mut found),
                }
            }
        }
        found
    }

    fn visit(&mut self, node: Node, count: &mut u32) {
        *count += 1;
        self.seen[node as usize] = *count;
        self.low[node as usize] = *count;
        self.open.push(node);
        self.path.push((node, 0));
    }

    /// Visits a node's edges from number `next` on; stops at an edge to an unseen node.
    fn advance(
        &mut self,
        node: Node,
        next: u32,
        mask: Mask,
        inside: impl Fn(Node) -> bool,
    ) -> Option<(u32, Node)> {
        for (at, edge) in (next..).zip(&self.graph.edges(node)[next as usize..]) {
            if !mask.has(edge.link()) || !inside(edge.to) {
                continue;
            }
            if self.seen[edge.to as usize] == UNSEEN {
                return Some((at, edge.to));
            }
            let reached = self.low[edge.to as usize];
            if reached != DONE {
                let low = &mut self.low[node as usize];
                *low = reached.min(*low);
            }
        }
        None
    }

    /// Leaves a node after all its edges. If the node leads back to no earlier node, the nodes
    /// opened since its visit are a component.
    fn leave(&mut self, node: Node, found: &mut Vec<Vec<Node>>) {
        if self.low[node as usize] != self.seen[node as usize] {
            return;
        }
        let first = self.open.iter().rposition(|open| *open == node);
        let first = first.expect("a node is open until its component is complete");
        for member in &self.open[first..] {
            self.low[*member as usize] = DONE;
        }
        if self.open.len() - first > 1 {
            found.push(self.open[first..].to_vec());
        }
        self.open.truncate(first);
    }
}
