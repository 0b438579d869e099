//! The state of a hand-polled state machine at its last fault point.

#[cfg(feature = "enabled")]
use crate::{Passage, PassageOutcome, pass_here};

/// Place of a state machine at its last point: whether the machine may go on from there. Zero-sized
/// in a build without fault points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PointState {
    #[cfg(feature = "enabled")]
    outcome: PassageOutcome,
    /// Time of the last passage.
    #[cfg(feature = "enabled")]
    since: u64,
}

#[cfg(not(feature = "enabled"))]
impl PointState {
    /// At no point.
    pub const FREE: Self = Self {};

    /// Whether the machine stands still: never in this build.
    #[inline(always)]
    pub fn stands(self, _now: impl FnOnce() -> u64) -> bool {
        false
    }
}

#[cfg(feature = "enabled")]
impl PointState {
    /// At no point.
    pub const FREE: Self = Self { outcome: PassageOutcome::Go, since: 0 };

    /// Expansion of [`passes!`](crate::passes!).
    pub fn pass(&mut self, passage: Passage, now: u64) -> bool {
        *self = Self { outcome: pass_here(passage), since: now };
        self.outcome != PassageOutcome::Go
    }

    /// Whether the machine stands still at this time: for ever if its node has ended, until the
    /// clock goes on if the node pauses.
    pub fn stands(self, now: impl FnOnce() -> u64) -> bool {
        match self.outcome {
            PassageOutcome::Go => false,
            PassageOutcome::Pause => now() == self.since,
            PassageOutcome::Halt => true,
        }
    }
}

#[cfg(all(test, feature = "enabled"))]
mod tests {
    use super::*;
    use crate::{FaultInjector, FaultPoint, passes, strikes_on_this_thread};

    /// Strikes at one point in one way.
    struct At(FaultPoint, PassageOutcome);

    impl FaultInjector for At {
        fn meets(&mut self, passage: &Passage) -> bool {
            passage.point == self.0
        }

        fn strike(&mut self, _: &Passage) -> PassageOutcome {
            self.1
        }
    }

    #[test]
    fn a_machine_that_is_struck_stands_as_long_as_its_node_does() {
        for (outcome, at_once, later) in [
            (PassageOutcome::Go, false, false),
            (PassageOutcome::Pause, true, false),
            (PassageOutcome::Halt, true, true),
        ] {
            let _guard = strikes_on_this_thread(At(FaultPoint::TurnSeen, outcome));
            let mut point_state = PointState::FREE;
            assert!(!passes!(point_state, 7, 1, LockPosted));
            assert_eq!(passes!(point_state, 7, 1, TurnSeen, with Some(2)), at_once, "{outcome:?}");
            assert_eq!((point_state.stands(|| 7), point_state.stands(|| 8)), (at_once, later));
        }
    }
}
