//! Timestamps, and the shared clock that issues them inside one process.
//!
//! A timestamp is 63 bits of physical nanoseconds made unique and strictly increasing, and fits in
//! a version word, whose top bit means INVISIBLE. [`SharedClock`] is the embedded timestamp
//! service: one atomic word. It never reads a physical clock; callers pass the time of their
//! environment, and a clock that jumps back merely makes timestamps advance by one.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A commit or snapshot time: nanoseconds, in 63 bits. Zero lies before every version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Earlier than every version; never a version's timestamp.
    pub const ZERO: Self = Self(0);
    /// The version of rows that were loaded before the first transaction.
    pub const LOADED: Self = Self(1);
    /// Later than or equal to every version.
    pub const MAX: Self = Self(u64::MAX >> 1);

    /// Returns the timestamp with these 63 bits; `None` if the top bit is set.
    #[inline]
    pub const fn new(raw: u64) -> Option<Self> {
        if raw <= Self::MAX.0 { Some(Self(raw)) } else { None }
    }

    /// The 63 bits.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.0)
    }
}

/// A clock shared by every coordinator of one process; issues each timestamp once.
///
/// The clock has its own cache lines (two, for processors that fetch lines in pairs), because every
/// committing coordinator writes it.
#[derive(Debug)]
#[repr(align(128))]
pub struct SharedClock {
    last: AtomicU64,
}

impl SharedClock {
    /// Creates a clock that issues its first timestamp after `last`.
    pub const fn after(last: Timestamp) -> Self {
        Self { last: AtomicU64::new(last.0) }
    }

    /// Issues a timestamp: the later of `physical_now_ns` and the last timestamp plus one.
    ///
    /// # Panics
    /// If 63 bits are exhausted, which at one nanosecond a step takes 292 years.
    #[inline]
    pub fn next(&self, physical_now_ns: u64) -> Timestamp {
        self.next_within(physical_now_ns, Timestamp::MAX).expect("timestamps are exhausted")
    }

    /// Like [`Self::next`], but issues no timestamp later than `bound`; `None` if `bound` is used
    /// up.
    #[inline]
    pub fn next_within(&self, physical_now_ns: u64, bound: Timestamp) -> Option<Timestamp> {
        let mut last = self.last.load(Ordering::Relaxed);
        loop {
            let next = physical_now_ns.min(bound.0).max(last + 1);
            if next > bound.0 {
                return None;
            }
            // Release: a reader with this timestamp as its snapshot also sees the writer's earlier
            // writes, the INVISIBLE cells above all (H1). Every store to the word is a
            // read-modify-write, so the release sequence of an earlier store includes the later
            // stores.
            match self.last.compare_exchange_weak(last, next, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return Some(Timestamp(next)),
                Err(current) => last = current,
            }
        }
    }

    /// Skips all timestamps up to `past`.
    pub fn skip(&self, past: Timestamp) {
        self.last.fetch_max(past.0, Ordering::Release);
    }

    /// Returns a snapshot time: at least every timestamp issued before this call (H18).
    #[inline]
    pub fn latest(&self) -> Timestamp {
        // Acquire: pairs with the Release in `next`.
        Timestamp(self.last.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_has_63_bits() {
        assert_eq!(Timestamp::new(u64::MAX >> 1), Some(Timestamp::MAX));
        assert_eq!(Timestamp::new(1 << 63), None);
    }

    #[test]
    fn timestamps_follow_the_clock_and_never_go_back() {
        let clock = SharedClock::after(Timestamp::LOADED);
        let issued = [100, 100, 50, 200, 0].map(|now| clock.next(now).raw());
        assert_eq!(issued, [100, 101, 102, 200, 201]);
        assert_eq!(clock.latest().raw(), 201);
    }

    #[test]
    fn a_clock_stops_at_its_bound_and_goes_on_behind_what_it_skips() {
        let (clock, bound) = (SharedClock::after(Timestamp::LOADED), Timestamp(101));
        let issued = [99, 500, 7, 102].map(|now| clock.next_within(now, bound).map(Timestamp::raw));
        assert_eq!(issued, [Some(99), Some(101), None, None]);
        clock.skip(Timestamp(200));
        clock.skip(Timestamp(150));
        assert_eq!(clock.next_within(120, Timestamp(300)), Some(Timestamp(201)));
    }

    #[test]
    fn threads_never_share_a_timestamp() {
        const EACH: usize = 10_000;
        let clock = SharedClock::after(Timestamp::ZERO);
        let draw = || (0..EACH).map(|_| clock.next(7)).collect::<Vec<_>>();
        let mut all = std::thread::scope(|scope| {
            let threads = [scope.spawn(draw), scope.spawn(draw), scope.spawn(draw)];
            threads.map(|thread| thread.join().expect("drawing does not panic")).concat()
        });
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 3 * EACH);
        assert_eq!(all.last(), Some(&clock.latest()));
    }
}
