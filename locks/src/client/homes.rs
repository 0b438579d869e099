//! Homes of locks: the home of a lock is the lane that counts the readers which a writer waits for.
//!
//! In the papers, the home of a lock is the node that stores it. A memory node runs no code, so
//! here the home is a lane of a compute node: the first lane that needs a home writes its name into
//! the second word of the lock, by a swap; the remaining lanes read the name once. So the lanes
//! agree, also while nodes join, and the homes of locks are spread over the lanes that use the
//! locks.

use std::collections::BTreeMap;

use lotus_fabric::ids::{NodeId, RemoteAddr};

use super::wire::Letter;
use crate::contract::{NoticeKind, Peer, Waiter};

/// Homes known to a lane, and their counts.
#[derive(Default)]
pub(super) struct Homes {
    /// Homes of locks, as known to this lane.
    known: BTreeMap<RemoteAddr, Waiter>,
    /// Counts of the locks of which this lane is the home.
    own: BTreeMap<RemoteAddr, Group>,
}

/// A group of readers that have left a lock, or will leave. The whole group leaves before any
/// reader of the next group.
#[derive(Clone, Copy, Default)]
struct Group {
    /// Number of readers that have left.
    left: u32,
    /// The waiting writer, and its number of awaited readers.
    writer: Option<(Peer, u32)>,
}

impl Group {
    /// Takes note of a notice. Returns the writer that has the lock now, if any.
    fn hear(&mut self, letter: &Letter) -> Option<Peer> {
        match letter.kind {
            NoticeKind::Left => self.left += 1,
            _ => self.writer = Some((letter.to, letter.says as u32)),
        }
        let (writer, readers) = self.writer?;
        (self.left == readers).then_some(writer)
    }
}

impl Homes {
    /// Returns the home of a lock, if known.
    pub(super) fn of(&self, at: RemoteAddr) -> Option<Waiter> {
        self.known.get(&at).copied()
    }

    /// Takes note of the home of a lock.
    pub(super) fn learn(&mut self, at: RemoteAddr, home: Waiter) {
        self.known.insert(at, home);
    }

    /// The home's part: counts a reader that has left, or registers a waiting writer. Returns the
    /// writer that has the lock now, if any.
    pub(super) fn count(&mut self, letter: &Letter) -> Option<Peer> {
        let writer = self.own.entry(letter.at).or_default().hear(letter)?;
        self.own.remove(&letter.at);
        Some(writer)
    }

    /// Forgets the locks on a memory node.
    pub(super) fn forget_all(&mut self, memory: NodeId) {
        self.known.retain(|at, _| at.node() != memory);
        self.own.retain(|at, _| at.node() != memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_fabric::ids::RegionId;

    const WRITER: Peer = Peer { who: Waiter::new(1, 0, 0), number: 9 };
    const READER: Peer = Peer { who: Waiter::new(3, 0, 0), number: 5 };

    fn letter(kind: NoticeKind, to: Peer, says: u64) -> Letter {
        let at = RemoteAddr::new(NodeId(0), RegionId(0), 64);
        Letter { kind, at, from: READER, to, says, life: 0 }
    }

    fn left() -> Letter {
        letter(NoticeKind::Left, READER, 0)
    }

    #[test]
    fn a_writer_has_the_lock_when_as_many_readers_have_left_whatever_comes_first() {
        let waits = letter(NoticeKind::Awaits, WRITER, 2);
        for order in [[waits, left(), left()], [left(), waits, left()], [left(), left(), waits]] {
            let mut group = Group::default();
            let [first, second, last] = order;
            assert_eq!((group.hear(&first), group.hear(&second)), (None, None), "{order:?}");
            assert_eq!(group.hear(&last), Some(WRITER), "{order:?}");
        }
    }

    #[test]
    fn what_is_known_of_locks_is_forgotten_with_their_memory() {
        let at = |node| RemoteAddr::new(NodeId(node), RegionId(0), 64);
        let mut homes = Homes::default();
        for node in [0, 1] {
            homes.learn(at(node), WRITER.who);
            assert_eq!(homes.count(&Letter { at: at(node), ..left() }), None);
        }
        homes.forget_all(NodeId(0));
        assert_eq!((homes.of(at(0)), homes.of(at(1))), (None, Some(WRITER.who)));
        let waits = |node| Letter { at: at(node), ..letter(NoticeKind::Awaits, WRITER, 1) };
        assert_eq!((homes.count(&waits(0)), homes.count(&waits(1))), (None, Some(WRITER)));
        // The next group is counted from none.
        assert_eq!(homes.count(&waits(1)), None);
    }
}
