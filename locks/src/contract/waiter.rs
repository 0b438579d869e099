//! The number by which a word names a request.

/// Name of one outstanding request in the word of a lock: the requester's node, lane and slot, in
/// 24 bits that are never all zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Waiter(u32);

impl Waiter {
    /// Bits of a waiter.
    pub const BITS: u32 = NODE_BITS + LANE_BITS + SLOT_BITS;
    /// Largest number of a node among the users of locks.
    pub const MAX_NODE: u8 = 125;
    /// Number of lanes of a node.
    pub const LANES: u16 = 1 << LANE_BITS;
    /// Number of requests that a lane may have outstanding.
    pub const SLOTS: u16 = 1 << SLOT_BITS;

    /// Names the request in `slot` of a lane.
    ///
    /// # Panics
    /// If a number is above its maximum.
    pub const fn new(node: u8, lane: u16, slot: u16) -> Self {
        assert!(node <= Self::MAX_NODE && lane < Self::LANES && slot < Self::SLOTS);
        let number =
            (node as u32) << (LANE_BITS + SLOT_BITS) | (lane as u32) << SLOT_BITS | slot as u32;
        Self(number + 1)
    }

    /// Returns the waiter with a number read from a word; `None` for zero, which is not a name.
    pub const fn of(raw: u32) -> Option<Self> {
        if raw == 0 || raw >= 1 << Self::BITS { None } else { Some(Self(raw)) }
    }

    /// The number, which is not zero.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Number of the node among the users of locks.
    pub const fn node(self) -> u8 {
        ((self.0 - 1) >> (LANE_BITS + SLOT_BITS)) as u8
    }

    /// The lane on the node.
    pub const fn lane(self) -> u16 {
        ((self.0 - 1) >> SLOT_BITS) as u16 & (Self::LANES - 1)
    }

    /// The slot of the lane.
    pub const fn slot(self) -> u16 {
        (self.0 - 1) as u16 & (Self::SLOTS - 1)
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.node(), self.lane(), self.slot())
    }
}

const NODE_BITS: u32 = 7;
const LANE_BITS: u32 = 7;
const SLOT_BITS: u32 = 10;

const _: () = assert!((Waiter::MAX_NODE as u32) < (1 << NODE_BITS) - 1);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_waiter_is_what_it_was_made_of(
            node in 0..=Waiter::MAX_NODE,
            lane in 0..Waiter::LANES,
            slot in 0..Waiter::SLOTS,
        ) {
            let waiter = Waiter::new(node, lane, slot);
            prop_assert_eq!((waiter.node(), waiter.lane(), waiter.slot()), (node, lane, slot));
            prop_assert_eq!(Waiter::of(waiter.raw()), Some(waiter));
        }
    }

    #[test]
    fn zero_names_nobody() {
        assert_eq!(Waiter::of(0), None);
        assert_eq!(Waiter::of(1 << Waiter::BITS), None);
        assert_eq!(Waiter::new(0, 0, 0).raw(), 1);
    }
}
