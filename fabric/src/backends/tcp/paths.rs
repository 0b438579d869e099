//! Tracks nodes that messages do not reach.
//!
//! # What it is
//! A path to a node is *broken* while successive connections to the node fail and no connection is
//! admitted in between. Only evidence from the network counts: a thread of the target admits a
//! connection, and the kernel acknowledges the bytes, so a node whose lanes are busy for long still
//! counts as reached.
//!
//! # What it is not
//! A probe of paths without traffic. Failures separated by a long silence start a new break.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::contract::ids::NodeId;
use crate::run::env::Nanos;

/// Longest time between two failures of the same break: some handshakes.
const GAP: Duration = Duration::from_secs(10);

/// Time of the first and of the last failure since a connection was admitted.
#[derive(Clone, Copy, Debug)]
struct Break {
    since: Nanos,
    last: Nanos,
}

/// Paths from this process to all nodes.
#[derive(Debug)]
pub(super) struct Paths(Mutex<Box<[Option<Break>]>>);

impl Paths {
    pub(super) fn new(nodes: u16) -> Self {
        Self(Mutex::new(vec![None; usize::from(nodes)].into()))
    }

    fn lock(&self) -> MutexGuard<'_, Box<[Option<Break>]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a connection to `node` was admitted.
    pub(super) fn holds(&self, node: NodeId) {
        if let Some(path) = self.lock().get_mut(usize::from(node.0)) {
            *path = None;
        }
    }

    /// Records that a connection to `node` failed, or was given up, at time `now`.
    pub(super) fn fails(&self, node: NodeId, now: Nanos) {
        if let Some(path) = self.lock().get_mut(usize::from(node.0)) {
            let before = path.filter(|path| now.since(path.last) < GAP);
            let since = before.map_or(now, |path| path.since);
            *path = Some(Break { since, last: now });
        }
    }

    /// Returns the nodes to which connections have failed for at least `patience`, from the first
    /// failure to the last, with the time from the last failure until `now`.
    pub(super) fn unreached(&self, patience: Duration, now: Nanos) -> Vec<(NodeId, Duration)> {
        let lasts = |path: &Break| path.last.since(path.since) >= patience;
        let paths = self.lock();
        let broken = paths.iter().enumerate().filter_map(|(node, path)| {
            let path = path.filter(lasts)?;
            Some((NodeId(node as u16), now.since(path.last)))
        });
        broken.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(1);

    fn at(second: u64) -> Nanos {
        Nanos(1).after(Duration::from_secs(second))
    }

    #[test]
    fn a_path_is_broken_from_the_first_failure_until_a_connection_is_admitted() {
        let paths = Paths::new(2);
        let unreached = || {
            let all = paths.unreached(Duration::from_secs(4), at(50));
            all.into_iter().map(|(node, _)| node).collect::<Vec<_>>()
        };
        paths.fails(NODE, at(10));
        paths.fails(NODE, at(12));
        assert_eq!(unreached(), [], "for two seconds");
        paths.fails(NODE, at(14));
        assert_eq!(unreached(), [NODE]);
        paths.holds(NODE);
        assert_eq!(unreached(), []);
        paths.fails(NODE, at(15));
        paths.fails(NODE, at(40));
        assert_eq!(unreached(), [], "nothing was sent meanwhile");
        paths.fails(NODE, at(44));
        assert_eq!(unreached(), [NODE]);
        // No such node.
        paths.fails(NodeId(9), at(44));
        paths.holds(NodeId(9));
    }
}
