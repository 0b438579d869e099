//! Judges a peer's speed by the bytes moved in an interval and not by the time since the last byte
//! moved: a peer that takes or sends a byte now and then is as slow as a peer that does nothing.
//!
//! Pure: the loop passes the positions of both directions at the beginning and at the end of an
//! interval. An interval begins only while a peer owes something, so an idle connection has no
//! timer, and a busy connection has a timer per interval and not per write.

use std::fmt;
use std::time::Duration;

/// Least progress that a peer has to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MinimumProgress {
    /// The length of an interval.
    pub interval: Duration,
    /// Bytes that must move in each interval, in each direction, unless less is owed.
    pub bytes: usize,
}

impl MinimumProgress {
    /// Default of `bytes`.
    pub const BYTES: usize = 64 << 10;

    /// Minimum progress with the usual number of bytes.
    pub const fn of(interval: Duration) -> Self {
        Self { interval, bytes: Self::BYTES }
    }
}

impl fmt::Display for MinimumProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {:?}", self.bytes, self.interval)
    }
}

/// Progress of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Position {
    /// Bytes that have moved since the connection began.
    pub(super) moved: u64,
    /// Bytes that the peer owes now; zero if this side is not waiting for the peer.
    pub(super) owed: usize,
}

impl Position {
    /// Whether the peer has kept up since `self`, taken at the beginning of the interval. A slower
    /// peer is closed (I192).
    pub(super) fn keeps_up(self, now: Self, least: usize) -> bool {
        let due = self.owed.min(least) as u64;
        now.owed == 0 || now.moved - self.moved >= due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_keeps_up_that_moves_what_it_owes_or_the_least_amount() {
        let at = |moved, owed| Position { moved, owed };
        let cases = [
            (at(0, 1000), at(0, 1000), false),
            (at(0, 1000), at(99, 901), false),
            (at(0, 1000), at(100, 900), true),
            (at(500, 40), at(539, 9000), false),
            (at(500, 40), at(540, 9000), true),
            // Nothing was owed when the interval began, or nothing is owed any more.
            (at(500, 0), at(500, 9000), true),
            (at(500, 9000), at(500, 0), true),
        ];
        for (before, now, expected) in cases {
            assert_eq!(before.keeps_up(now, 100), expected, "{before:?} {now:?}");
        }
    }
}
