//! Retention of the record slots of versions that have left their CVT.
//!
//! # What this is
//!
//! A writer that displaces a version may overwrite the version's record, or take another slot and
//! leave the old record unchanged. The second choice keeps the version for readers with a snapshot
//! before its *successor* (`docs/protocol.md`, H13), who find the version by its link
//! ([`crate::chain`]). The old slot is *retired*: it waits in a queue until the horizon has reached
//! the successor, and is then preferred for reuse. Each coordinator keeps its own retired
//! slots, like its own slabs.
//!
//! # What it is not
//!
//! A promise. The number of waiting slots has a [`limit`]; beyond the limit, or without a free
//! slot, versions are overwritten in place although a snapshot may need them, and the transaction
//! with that snapshot ends as too old. Safety does not depend on retention: a reader recognises a
//! slot that was reused too early.

use std::collections::VecDeque;

use lotus_fabric::ids::TableId;

use crate::layout::LINE_BYTES;
use crate::layout::cvt::{Cell, Version};
use crate::layout::region::SLAB_BYTES;
use crate::slab::{Purpose, SlotKind};
use crate::timestamp::Timestamp;

/// Limit of waiting slots over all coordinators and groups, in percent of a table's capacity.
const RETIRED_PERCENT: u64 = 10;

/// Initial capacity of a queue: the number of the smallest slots that fill a slab.
const FIRST_SLOTS: usize = SLAB_BYTES as usize / LINE_BYTES;

/// Number of slots of a table and group that one coordinator may keep waiting: its share of a tenth
/// of the table's `capacity`, divided among `sharers` (coordinators × groups), but at least a
/// slab's worth, since the coordinator takes a whole slab with the first slot.
///
/// # Panics
/// If `sharers` or `slot_bytes` is zero.
pub fn limit(capacity: u64, sharers: u64, slot_bytes: u64) -> usize {
    let share = capacity / 100 * RETIRED_PERCENT / sharers;
    share.max(SLAB_BYTES / slot_bytes) as usize
}

/// Slot for the record of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// The slot that the cell names: it holds no version that is still needed.
    Named,
    /// The cell's home slot. The previously named slot is retired.
    Home,
    /// A free slot, because the version in the cell's slot may still be needed; if no slot is free,
    /// the slot of `otherwise`.
    Another {
        /// Slot to overwrite if no slot is free; its version is lost.
        otherwise: Fallback,
    },
    /// A free slot, because the cell has no slot.
    New,
}

/// Slot to overwrite for want of a free slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallback {
    /// The slot that the cell names.
    Named,
    /// The cell's home slot, whose version is older than the version in the slot that the cell
    /// names.
    Home,
}

/// Chooses the slot for the record of a write that takes `cell`, with its `home` slot (0 for none).
/// `successor` is the version after the cell's version, if the cell has a version; `keeps` decides
/// from the successor whether to keep a displaced version ([`Retired::keeps`]).
///
/// A home slot that the cell does not name holds a version that was displaced before the cell's own
/// version was written, so the successor of the home's version is no later than the cell's version.
#[inline]
pub fn destination(
    cell: &Cell,
    home: u64,
    successor: Option<Timestamp>,
    horizon: Timestamp,
    keeps: impl FnOnce(Timestamp) -> bool,
) -> Destination {
    if cell.record == 0 {
        return if home == 0 { Destination::New } else { Destination::Home };
    }
    // A cell without a version: the write displaces no version.
    let Some(successor) = successor else { return Destination::Named };
    if home == 0 || cell.record == home {
        let otherwise = Fallback::Named;
        return if keeps(successor) {
            Destination::Another { otherwise }
        } else {
            Destination::Named
        };
    }
    let home_is_free = matches!(cell.version, Version::Committed(own) if own <= horizon);
    if home_is_free || !keeps(successor) {
        return Destination::Home;
    }
    Destination::Another { otherwise: Fallback::Home }
}

/// Retired slots of one coordinator.
#[derive(Debug)]
pub struct Retired {
    groups: usize,
    /// Queues by table, then group.
    queues: Vec<RetiredQueue>,
}

#[derive(Clone, Default, Debug)]
struct RetiredQueue {
    /// Slots with the successors of their versions, in the order of retirement. This is nearly the
    /// order of the successors, and a slightly longer wait does no harm.
    waiting: VecDeque<(Timestamp, u64)>,
}

impl Retired {
    /// Creates an empty set, in a cluster of `groups` replica groups.
    pub fn new(groups: u16) -> Self {
        Self { groups: usize::from(groups), queues: Vec::new() }
    }

    /// Whether to keep a displaced version in its slot: if its `successor` is later than the
    /// `horizon`, so that a snapshot before the successor may be in use, and fewer than `limit`
    /// slots wait.
    #[inline]
    pub fn keeps(
        &self,
        purpose: Purpose,
        successor: Timestamp,
        horizon: Timestamp,
        limit: usize,
    ) -> bool {
        if successor <= horizon {
            return false;
        }
        let queue = self.queues.get(self.index(purpose));
        queue.is_none_or(|queue| queue.waiting.len() < limit)
    }

    /// Retires `slot` until the horizon has reached the `successor` of its version.
    pub fn retire(&mut self, purpose: Purpose, slot: u64, successor: Timestamp) {
        let waiting = &mut self.queue(purpose).waiting;
        if waiting.capacity() == 0 {
            waiting.reserve(FIRST_SLOTS);
        }
        waiting.push_back((successor, slot));
    }

    /// Takes a slot that has waited long enough.
    #[inline]
    pub fn reuse(&mut self, purpose: Purpose, horizon: Timestamp) -> Option<u64> {
        let index = self.index(purpose);
        let waiting = &mut self.queues.get_mut(index)?.waiting;
        match waiting.front() {
            Some((successor, slot)) if *successor <= horizon => {
                let slot = *slot;
                waiting.pop_front();
                Some(slot)
            }
            _ => None,
        }
    }

    /// Passes all slots of a group that have waited long enough to `take`.
    pub fn reuse_all(
        &mut self,
        group: u16,
        horizon: Timestamp,
        mut take: impl FnMut(Purpose, u64),
    ) {
        let of_group = usize::from(group)..self.queues.len();
        for index in of_group.step_by(self.groups) {
            let table = TableId((index / self.groups) as u16);
            let purpose = Purpose { table, group, slots: SlotKind::Record };
            while let Some(slot) = self.reuse(purpose, horizon) {
                take(purpose, slot);
            }
        }
    }

    /// Forgets all slots of a dropped table.
    pub fn forget(&mut self, table: TableId) {
        let queues = self.queues.iter_mut().skip(usize::from(table.0) * self.groups);
        queues.take(self.groups).for_each(|queue| *queue = RetiredQueue::default());
    }

    /// Number of waiting slots.
    pub fn waiting(&self) -> usize {
        self.queues.iter().map(|queue| queue.waiting.len()).sum()
    }

    #[inline]
    fn index(&self, purpose: Purpose) -> usize {
        usize::from(purpose.table.0) * self.groups + usize::from(purpose.group)
    }

    fn queue(&mut self, purpose: Purpose) -> &mut RetiredQueue {
        let index = self.index(purpose);
        if index >= self.queues.len() {
            self.queues.resize_with(index + 1, RetiredQueue::default);
        }
        &mut self.queues[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: Purpose = Purpose { table: TableId(1), group: 0, slots: SlotKind::Record };
    const ELSEWHERE: Purpose = Purpose { group: 1, ..ROWS };

    fn at(time: u64) -> Timestamp {
        Timestamp::new(time).expect("63 bits")
    }

    #[test]
    fn a_record_goes_home_as_soon_as_no_version_there_is_needed() {
        use Destination::{Another, Home, Named, New};
        const HOME: u64 = 4096;
        let cell = |record, version| Cell {
            version: Version::Committed(at(version)),
            record,
            ..Cell::NEVER_USED
        };
        let never = |home| destination(&Cell::NEVER_USED, home, None, at(10), |_| true);
        assert_eq!((never(0), never(HOME)), (New, Home));
        let (named, home) = (Fallback::Named, Fallback::Home);
        // (slot that the cell names, version in it, successor, whether it is to be kept, outcome)
        let cases = [
            (64, 5, None, true, Named),
            (HOME, 5, None, true, Named),
            (HOME, 5, Some(11), false, Named),
            (HOME, 5, Some(11), true, Another { otherwise: named }),
            (64, 10, Some(11), true, Home),
            (64, 11, Some(12), true, Another { otherwise: home }),
            (64, 11, Some(12), false, Home),
        ];
        for (record, version, successor, kept, expected) in cases {
            let cell = cell(record, version);
            let successor = successor.map(at);
            let found = destination(&cell, HOME, successor, at(10), |asked| {
                assert_eq!(Some(asked), successor);
                kept
            });
            assert_eq!(found, expected, "{cell:?}, then {successor:?}, kept: {kept}");
        }
        let without = |kept| destination(&cell(64, 5), 0, Some(at(11)), at(10), |_| kept);
        assert_eq!((without(false), without(true)), (Named, Another { otherwise: named }));
    }

    #[test]
    fn a_share_of_a_tenth_but_a_slab_at_least() {
        let cases = [
            (10_000_000, 1, 64, 1_000_000),
            (10_000_000, 4, 64, 250_000),
            (10_000, 4, 64, 4096),
            (1, 1, 8192 + 64, 31),
        ];
        for (capacity, sharers, slot_bytes, expected) in cases {
            assert_eq!(limit(capacity, sharers, slot_bytes), expected);
        }
    }

    #[test]
    fn a_version_is_kept_while_a_snapshot_before_its_successor_may_be_in_use() {
        let mut retired = Retired::new(2);
        let keeps = |retired: &Retired, successor| retired.keeps(ROWS, at(successor), at(10), 2);
        assert_eq!([9, 10, 11].map(|successor| keeps(&retired, successor)), [false, false, true]);
        retired.retire(ROWS, 64, at(11));
        assert!(keeps(&retired, 11));
        retired.retire(ROWS, 128, at(12));
        assert!(!keeps(&retired, 11), "two wait");
        assert!(retired.keeps(ELSEWHERE, at(11), at(10), 2), "none waits there");
        assert_eq!(retired.waiting(), 2);
    }

    #[test]
    fn a_slot_is_reused_once_the_horizon_has_reached_the_successor() {
        let mut retired = Retired::new(2);
        assert_eq!(retired.reuse(ROWS, at(99)), None);
        retired.retire(ROWS, 64, at(11));
        retired.retire(ROWS, 128, at(13));
        let drawn = [10, 11, 12, 13, 14].map(|horizon| retired.reuse(ROWS, at(horizon)));
        assert_eq!(drawn, [None, Some(64), None, Some(128), None]);
        assert_eq!(retired.reuse(ELSEWHERE, at(99)), None);
    }

    #[test]
    fn all_slots_of_a_group_that_have_waited_are_given_up_at_once() {
        let mut retired = Retired::new(2);
        let other_table = Purpose { table: TableId(3), ..ROWS };
        for (purpose, slot, successor) in
            [(ROWS, 64, 11), (other_table, 128, 12), (ROWS, 192, 13), (ELSEWHERE, 64, 11)]
        {
            retired.retire(purpose, slot, at(successor));
        }
        let mut taken = Vec::new();
        retired.reuse_all(0, at(12), |purpose, slot| taken.push((purpose, slot)));
        assert_eq!(taken, [(ROWS, 64), (other_table, 128)]);
        assert_eq!(retired.waiting(), 2);
    }

    #[test]
    fn slots_of_a_dropped_table_are_given_up() {
        let mut retired = Retired::new(2);
        let other_table = Purpose { table: TableId(3), ..ROWS };
        [ROWS, ELSEWHERE, other_table].into_iter().for_each(|of| retired.retire(of, 64, at(11)));
        [ROWS.table, TableId(77)].into_iter().for_each(|table| retired.forget(table));
        let left = [ROWS, ELSEWHERE, other_table].map(|of| retired.reuse(of, at(99)));
        assert_eq!(left, [None, None, Some(64)]);
    }
}
