//! The state of a hand-polled state machine at its last fault point.

#[cfg(feature = "enabled")]
use crate::{Fate, Passage, pass_here};

/// Place of a state machine at its last point: whether the machine may go on from there. Zero-sized
/// in a build without fault points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Foothold {
    #[cfg(feature = "enabled")]
    fate: Fate,
    /// Time of the last passage.
    #[cfg(feature = "enabled")]
    since: u64,
}

#[cfg(not(feature = "enabled"))]
impl Foothold {
    /// At no point.
    pub const FREE: Self = Self {};

    /// Whether the machine stands still: never in this build.
    #[inline(always)]
    pub fn stands(self, _now: impl FnOnce() -> u64) -> bool {
        false
    }
}

#[cfg(feature = "enabled")]
impl Foothold {
    /// At no point.
    pub const FREE: Self = Self { fate: Fate::Go, since: 0 };

    /// Expansion of [`passes!`](crate::passes!).
    pub fn pass(&mut self, passage: Passage, now: u64) -> bool {
        *self = Self { fate: pass_here(passage), since: now };
        self.fate != Fate::Go
    }

    /// Whether the machine stands still at this time: for ever if its node has ended, until the
    /// clock goes on if the node pauses.
    pub fn stands(self, now: impl FnOnce() -> u64) -> bool {
        match self.fate {
            Fate::Go => false,
            Fate::Pause => now() == self.since,
            Fate::Halt => true,
        }
    }
}

#[cfg(all(test, feature = "enabled"))]
mod tests {
    use super::*;
    use crate::{FaultPoint, Striker, passes, strikes_on_this_thread};

    /// Strikes at one point in one way.
    struct At(FaultPoint, Fate);

    impl Striker for At {
        fn meets(&mut self, passage: &Passage) -> bool {
            passage.point == self.0
        }

        fn strike(&mut self, _: &Passage) -> Fate {
            self.1
        }
    }

    #[test]
    fn a_machine_that_is_struck_stands_as_long_as_its_node_does() {
        for (fate, at_once, later) in
            [(Fate::Go, false, false), (Fate::Pause, true, false), (Fate::Halt, true, true)]
        {
            let _guard = strikes_on_this_thread(At(FaultPoint::TurnSeen, fate));
            let mut foothold = Foothold::FREE;
            assert!(!passes!(foothold, 7, 1, LockPosted));
            assert_eq!(passes!(foothold, 7, 1, TurnSeen, with Some(2)), at_once, "{fate:?}");
            assert_eq!((foothold.stands(|| 7), foothold.stands(|| 8)), (at_once, later));
        }
    }
}
