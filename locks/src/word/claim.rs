//! The claim: the word of a lock object that names the node resetting the lock.

/// Bits of the claimant's number, and of its incarnation.
const NODE_BITS: u32 = 8;
const INCARNATION_BITS: u32 = 24;
const EPOCH_SHIFT: u32 = NODE_BITS + INCARNATION_BITS;

const _: () = assert!(EPOCH_SHIFT == 32);

/// A compute node that resets a lock, in one incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Claimant {
    node: u8,
    incarnation: u32,
}

impl Claimant {
    /// Largest number of a node.
    pub const MAX_NODE: u8 = u8::MAX - 1;
    /// Largest incarnation.
    pub const MAX_INCARNATION: u32 = (1 << INCARNATION_BITS) - 1;

    /// Creates a claimant from the node's number among the users of locks.
    ///
    /// # Panics
    /// If a number exceeds the maximum.
    pub const fn new(node: u8, incarnation: u32) -> Self {
        assert!(node <= Self::MAX_NODE && incarnation <= Self::MAX_INCARNATION, "it has no room");
        Self { node, incarnation }
    }

    /// The node's number.
    pub const fn node(self) -> u8 {
        self.node
    }

    /// The node's incarnation.
    pub const fn incarnation(self) -> u32 {
        self.incarnation
    }
}

/// The claim of a lock object: epoch of the last reset (32 bits), the claimant's number plus one
/// (8), the claimant's incarnation (24).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Claim(u64);

impl Claim {
    /// Creates a claim; `by` is `None` if no node resets the lock.
    pub const fn new(epoch: u32, by: Option<Claimant>) -> Self {
        let by = match by {
            None => 0,
            Some(Claimant { node, incarnation }) => {
                (node as u64 + 1) << INCARNATION_BITS | incarnation as u64
            }
        };
        Self((epoch as u64) << EPOCH_SHIFT | by)
    }

    /// Wraps a word as read from memory.
    pub const fn of(word: u64) -> Self {
        Self(word)
    }

    /// The word.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Configuration epoch of the last reset.
    pub const fn epoch(self) -> u32 {
        (self.0 >> EPOCH_SHIFT) as u32
    }

    /// The node that resets the lock; `None` if no node does.
    pub const fn by(self) -> Option<Claimant> {
        let incarnation = self.0 as u32 & Claimant::MAX_INCARNATION;
        match (self.0 >> INCARNATION_BITS) as u8 {
            0 => None,
            number => Some(Claimant { node: number - 1, incarnation }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zeroes_claim_nothing() {
        assert_eq!((Claim::of(0).epoch(), Claim::of(0).by()), (0, None));
        assert_eq!(Claim::new(0, None).word(), 0);
    }

    proptest! {
        #[test]
        fn a_claim_is_what_it_was_made_of(
            epoch: u32,
            node in 0..=Claimant::MAX_NODE,
            incarnation in 0..=Claimant::MAX_INCARNATION,
        ) {
            let by = Claimant::new(node, incarnation);
            for by in [None, Some(by)] {
                let claim = Claim::of(Claim::new(epoch, by).word());
                prop_assert_eq!((claim.epoch(), claim.by()), (epoch, by));
            }
        }
    }
}
