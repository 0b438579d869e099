//! The horizon: a lower bound of all snapshots, in use or still to be drawn.
//!
//! # What this is
//!
//! Each coordinator knows the snapshots of its own slots ([`Snapshots`]) and an already issued
//! timestamp, a lower bound of every later snapshot (H18). The minimum is the coordinator's
//! *floor*. The smallest floor of all coordinators of all compute nodes is the horizon: no snapshot
//! needs a version whose successor is at or below the horizon (`docs/protocol.md`, H13). A stale
//! floor may be too small, which only keeps versions longer.
//!
//! # What it is not
//!
//! The module reads no clock and sends no message. The engine's `horizon.rs` carries floors from
//! node to node, through one word per node in a memory node.
//!
//! # A snapshot that is being drawn
//!
//! Between asking for a timestamp and getting it, a slot counts with the timestamp issued before
//! the request, a lower bound of its snapshot. The snapshot may be less than timestamps issued to
//! other slots in between.

use crate::timestamp::Timestamp;

/// Snapshots of one coordinator's slots.
#[derive(Debug)]
pub struct Snapshots {
    /// Snapshot in use by each slot, or a lower bound of the one being drawn.
    held: Vec<Option<Timestamp>>,
}

impl Snapshots {
    /// Creates the snapshots of `slots` slots, none of which has a snapshot.
    pub fn new(slots: usize) -> Self {
        Self { held: vec![None; slots] }
    }

    /// Records that a slot is about to ask for a snapshot. `issued` is an already issued timestamp.
    #[inline]
    pub fn register(&mut self, slot: usize, issued: Timestamp) {
        self.held[slot] = Some(issued);
    }

    /// Records that the slot now reads from `snapshot`.
    #[inline]
    pub fn activate(&mut self, slot: usize, snapshot: Timestamp) {
        self.held[slot] = Some(snapshot);
    }

    /// Records that the slot has finished reading from its snapshot.
    #[inline]
    pub fn finish(&mut self, slot: usize) {
        self.held[slot] = None;
    }

    /// Returns a lower bound of the current and future snapshots of the slots. `issued` is an
    /// already issued timestamp.
    pub fn floor(&self, issued: Timestamp) -> Timestamp {
        self.held.iter().flatten().fold(issued, |floor, held| floor.min(*held))
    }
}

/// Returns the horizon, computed from the published floor words of all live nodes. A floor of zero
/// means that a node has not published its floor yet; then the horizon is unknown and
/// [`Timestamp::ZERO`].
pub fn horizon(floors: impl IntoIterator<Item = u64>) -> Timestamp {
    let least = floors.into_iter().min().unwrap_or(0);
    Timestamp::new(least).unwrap_or(Timestamp::ZERO)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time).expect("63 bits")
    }

    #[test]
    fn the_horizon_is_the_smallest_floor_and_unknown_while_one_is() {
        let cases: [(&[u64], u64); 5] =
            [(&[], 0), (&[7], 7), (&[9, 7, 8], 7), (&[9, 0], 0), (&[u64::MAX], 0)];
        for (floors, expected) in cases {
            assert_eq!(horizon(floors.iter().copied()), at(expected));
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        /// A timestamp is issued to some coordinator.
        Issue,
        /// The coordinator learns of all issued timestamps.
        Learn,
        Begin(usize),
        Drawn(usize),
        End(usize),
        Publish,
    }

    fn event() -> impl Strategy<Value = Event> {
        let slot = 0_usize..4;
        prop_oneof![
            4 => Just(Event::Issue),
            1 => Just(Event::Learn),
            3 => slot.clone().prop_map(Event::Begin),
            3 => slot.clone().prop_map(Event::Drawn),
            3 => slot.prop_map(Event::End),
            2 => Just(Event::Publish),
        ]
    }

    proptest! {
        /// A snapshot is drawn at some moment between its request and its arrival; here as early as
        /// possible, and it arrives much later.
        #[test]
        fn no_snapshot_ever_lies_before_a_published_floor(
            events in prop::collection::vec(event(), 1..200),
        ) {
            let mut snapshots = Snapshots::new(4);
            let (mut issued, mut known, mut published) = (1, 1, 0);
            let mut drawn: [Option<u64>; 4] = [None; 4];
            for event in events {
                match event {
                    Event::Issue => issued += 1,
                    Event::Learn => known = issued,
                    Event::Begin(slot) if drawn[slot].is_none() => {
                        snapshots.register(slot, at(known));
                        drawn[slot] = Some(issued);
                    }
                    Event::Drawn(slot) => {
                        if let Some(snapshot) = drawn[slot] {
                            snapshots.activate(slot, at(snapshot));
                        }
                    }
                    Event::End(slot) => {
                        snapshots.finish(slot);
                        drawn[slot] = None;
                    }
                    Event::Publish => {
                        let floor = snapshots.floor(at(known)).raw();
                        prop_assert!(floor >= published, "floors do not go back");
                        published = floor;
                    }
                    Event::Begin(_) => {}
                }
                prop_assert!(drawn.iter().flatten().all(|snapshot| *snapshot >= published));
            }
        }
    }
}
