//! The horizon: a time that no snapshot lies before, neither in use nor still to be drawn.
//!
//! # What this is
//!
//! Each coordinator knows the snapshots of its own slots ([`Snapshots`]) and a timestamp that was
//! issued already, which every later snapshot is at least (H18). The smaller of both is its
//! *floor*. The smallest floor of all coordinators of all compute nodes is the horizon: a version
//! with a successor at or below it is not needed by any snapshot (DESIGN §7, H13). A floor that is
//! read late may be too small: that keeps versions longer, nothing else.
//!
//! # What it is not
//!
//! It reads no clock and sends nothing. The engine's `horizon.rs` carries floors from node to node,
//! through a word of each in a memory node.
//!
//! # A snapshot that is being drawn
//!
//! Between asking for a timestamp and getting it, a slot counts with the floor that it started
//! from: its snapshot will be at least that, but perhaps less than timestamps that others have been
//! issued in between.

use crate::timestamp::Timestamp;

/// Snapshots of one coordinator's slots.
#[derive(Debug)]
pub struct Snapshots {
    /// Snapshot in use by each slot, or a lower bound of the one being drawn.
    held: Vec<Option<Timestamp>>,
}

impl Snapshots {
    /// No snapshot in any of `slots` slots.
    pub fn new(slots: usize) -> Self {
        Self { held: vec![None; slots] }
    }

    /// Records that a slot is about to ask for a snapshot. `issued` is a timestamp that is known to
    /// be issued.
    #[inline]
    pub fn register(&mut self, slot: usize, issued: Timestamp) {
        self.held[slot] = Some(issued);
    }

    /// Records that the slot reads from `snapshot` now.
    #[inline]
    pub fn activate(&mut self, slot: usize, snapshot: Timestamp) {
        self.held[slot] = Some(snapshot);
    }

    /// Records that the slot reads from no snapshot any more.
    #[inline]
    pub fn finish(&mut self, slot: usize) {
        self.held[slot] = None;
    }

    /// Time that no snapshot here lies before, now or later. `issued` is a timestamp that is known
    /// to be issued.
    pub fn floor(&self, issued: Timestamp) -> Timestamp {
        self.held.iter().flatten().fold(issued, |floor, held| floor.min(*held))
    }
}

/// The horizon, computed from the published floor words of all live nodes. A floor of zero means
/// that a node has published none yet; then the horizon is unknown and [`Timestamp::ZERO`].
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
