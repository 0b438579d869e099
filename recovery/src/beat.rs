//! The word that a live compute node counts up as a sign of life.
//!
//! # What it is
//! The upper half names the life: the epoch in which the node was taken in. The lower half counts
//! and wraps around: with a lease of 20 ms, after 124 days. So of two beats of one life, the later
//! beat is ahead of the earlier by less than half of the count's range. Two beats are never further
//! apart: the beats of one node are read from several memory nodes at a time, and a copy that has
//! not been written for a lease is no longer read.

use lotus_fabric::ids::Epoch;

use crate::membership::FIRST_EPOCH;

const COUNT_BITS: u32 = 32;

/// A beat. The default, found on a memory node without a beat, belongs to no life and is earlier
/// than all others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Beat(u64);

impl Beat {
    /// Beat of a node that has never begun: the node has left nothing to settle.
    pub const NONE: Self = Self(0);

    /// First beat of a node that was taken in at epoch `joined`.
    ///
    /// # Panics
    /// If `joined` is before [`FIRST_EPOCH`].
    pub fn first(joined: Epoch) -> Self {
        assert!(joined >= FIRST_EPOCH, "epochs begin at {FIRST_EPOCH:?}, {joined:?} does not");
        Self(u64::from(joined.0 - FIRST_EPOCH.0) << COUNT_BITS | 1)
    }

    /// Beat read from a memory node's word.
    pub fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The beat as stored in memory.
    pub fn word(self) -> u64 {
        self.0
    }

    /// The next beat of the same life.
    #[must_use]
    pub fn next(self) -> Self {
        // Never 0, which in the first life would be `NONE`.
        let count = (self.0 as u32).checked_add(1).unwrap_or(1);
        Self(self.life() << COUNT_BITS | u64::from(count))
    }

    /// Epoch in which the beating node was taken in.
    pub fn joined(self) -> Epoch {
        Epoch(self.life() as u32 + FIRST_EPOCH.0)
    }

    /// The later of two beats of the same node.
    #[must_use]
    pub fn or_later(self, other: Self) -> Self {
        if other.is_later_than(self) { other } else { self }
    }

    fn life(self) -> u64 {
        self.0 >> COUNT_BITS
    }

    fn is_later_than(self, known: Self) -> bool {
        if known == Self::NONE || self == Self::NONE || self.life() != known.life() {
            return self.0 > known.0;
        }
        let ahead = (self.0 as u32).wrapping_sub(known.0 as u32);
        (1..1 << (COUNT_BITS - 1)).contains(&ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(joined: Epoch, count: u32) -> Beat {
        Beat(Beat::first(joined).0 - 1 + u64::from(count))
    }

    /// Regression: the count ran into the epoch, so a node that beat for 124 days was taken for a
    /// life that had never existed, and could not be expelled.
    #[test]
    fn a_beat_that_runs_over_is_of_its_life_and_later_than_the_one_before() {
        for joined in [FIRST_EPOCH, Epoch(FIRST_EPOCH.0 + 6)] {
            let last = at(joined, u32::MAX);
            let next = last.next();
            assert_eq!((last.joined(), next.joined()), (joined, joined));
            assert_ne!(next, Beat::NONE);
            assert_eq!((last.or_later(next), next.or_later(last)), (next, next));
            let much_later = at(joined, 1 << 20);
            assert_eq!(last.or_later(much_later), much_later);
        }
    }

    #[test]
    fn no_beat_is_the_earliest_and_a_later_life_is_later_whatever_it_has_counted() {
        let (first, second) = (Beat::first(FIRST_EPOCH), Beat::first(Epoch(FIRST_EPOCH.0 + 1)));
        let late = at(FIRST_EPOCH, u32::MAX);
        for beat in [first, late, second, at(FIRST_EPOCH, 1 << 31)] {
            assert_eq!((Beat::NONE.or_later(beat), beat.or_later(Beat::NONE)), (beat, beat));
        }
        assert_eq!((late.or_later(second), second.or_later(late)), (second, second));
        assert_eq!(first.next().or_later(first), first.next());
        assert_eq!(Beat::from_word(late.word()), late);
    }
}
