//! The word of a DrTM lock: a writer, or the end of the readers' lease.
//!
//! ```text
//! written (1 bit) | the writer's node (8) | end of the lease (55)
//! ```
//!
//! Readers leave no trace except the end of the lease, in nanoseconds of the cluster's clock. A
//! word without a writer is a free lock once the lease has ended, whatever the lease.

use lotus_fabric::env::Nanos;

const LEASE_BITS: u32 = 55;
const WRITTEN: u64 = 1 << 63;

const _: () = assert!(LEASE_BITS + u8::BITS + 1 == u64::BITS);

/// The word of the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct DrtmWord(u64);

impl DrtmWord {
    /// The latest end of a lease: a year after the cluster's start.
    pub const LATEST: Nanos = Nanos((1 << LEASE_BITS) - 1);

    /// Wraps a word as read from memory.
    pub const fn of(word: u64) -> Self {
        Self(word)
    }

    /// The word.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Returns the word of a lock held by a writer on a node.
    pub const fn written(node: u8) -> Self {
        Self(WRITTEN | (node as u64) << LEASE_BITS)
    }

    /// Returns the word of a lock with readers until `end`, at most until [`Self::LATEST`].
    pub fn leased(end: Nanos) -> Self {
        Self(end.min(Self::LATEST).0)
    }

    /// Returns whether a writer holds the lock.
    pub const fn is_written(self) -> bool {
        self.0 & WRITTEN != 0
    }

    /// End of the last lease; zero without a lease, or with a writer.
    pub const fn lease(self) -> Nanos {
        Nanos(if self.is_written() { 0 } else { self.0 & Self::LATEST.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn writers_and_leases_are_apart(node: u8, end in 0..=DrtmWord::LATEST.0) {
            let (written, leased) = (DrtmWord::written(node), DrtmWord::leased(Nanos(end)));
            prop_assert!(written.is_written() && !leased.is_written());
            prop_assert_eq!((written.lease(), leased.lease()), (Nanos(0), Nanos(end)));
            prop_assert_eq!((written.word() >> LEASE_BITS) as u8, node);
            prop_assert_eq!(DrtmWord::of(leased.word()), leased);
        }
    }

    #[test]
    fn a_word_of_zeroes_is_free_and_no_lease_reaches_beyond_its_field() {
        let zero = DrtmWord::of(0);
        assert!(!zero.is_written() && zero.lease() == Nanos(0));
        assert_eq!(DrtmWord::leased(Nanos::NEVER).lease(), DrtmWord::LATEST);
    }
}
