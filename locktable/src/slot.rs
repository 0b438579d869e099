//! Rules of one 8-byte lock slot (LOTUS §4.1), as pure functions over plain values.
//!
//! A slot's word is a 56-bit fingerprint above an 8-bit counter. Counter 1 means write-locked; an
//! even counter is twice the number of readers. A slot without holders is zero, including the
//! fingerprint, so that the slot is free for the next name (H7).
//!
//! Names with the same fingerprint in a bucket share a slot. Two names of different transactions in
//! a slot conflict, falsely but safely; two names of the same transaction do not conflict, or the
//! transaction could never succeed (H7). So a decision depends not only on the counter but also on
//! the asking transaction's own locks in the slot: [`OwnLocks`], computed from the holders'
//! records.

use lotus_sabotage::{Rule, broken};

use crate::lock_key::LockMode;

/// Largest number of holders of one slot: the readers that an 8-bit counter can count in twos.
pub const MAX_HOLDERS_PER_SLOT: u8 = 127;

/// Manner in which a lock was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// The transaction did not hold the lock before.
    Acquired,
    /// The transaction held the lock already, in this mode or a stronger mode; no change.
    AlreadyHeld,
    /// The transaction was the only reader and is now the writer.
    Upgraded,
}

/// Reason why a lock was refused, without any change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Another transaction holds the lock, or a lock with the same fingerprint, in a conflicting
    /// mode.
    ///
    /// Abort and retry after a randomised pause: two readers that both request an upgrade block
    /// each other for as long as they retry in step.
    #[error("the lock is held in a conflicting mode")]
    Conflict,
    /// All slots of the lock's bucket are taken, not only by this transaction.
    ///
    /// Abort, back off, retry. If frequent, the table is too small.
    #[error("the lock's bucket is full")]
    BucketFull,
    /// The transaction itself holds every slot of the lock's bucket.
    ///
    /// No retry of the same transaction can succeed in this table: report it to the application.
    #[error("the transaction's own locks fill the bucket")]
    OwnBucketFull,
    /// The lock's slot has [`MAX_HOLDERS_PER_SLOT`] holders.
    ///
    /// Abort, back off, retry.
    #[error("the lock has as many readers as it can count")]
    TooManyReaders,
    /// The limit of [`MAX_WAITING_PER_STRIPE`](crate::MAX_WAITING_PER_STRIPE) waiting requests is
    /// reached.
    ///
    /// Abort, back off, retry.
    #[error("as many requests wait for locks as the table allows")]
    QueueFull,
}

/// The contents of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    /// Bits of the counter, below the fingerprint.
    const COUNTER_BITS: u32 = 8;

    /// Free: without holders, available to every name.
    pub(crate) const FREE: Self = Self(0);

    /// Returns the word of a slot with this counter; [`Counter::FREE`] clears the fingerprint too
    /// (I38).
    #[inline]
    pub(crate) fn new(fingerprint: u64, counter: Counter) -> Self {
        match counter {
            Counter::FREE if !broken(Rule::FreeSlotsAreZero) => Self::FREE,
            Counter(count) => Self(fingerprint << Self::COUNTER_BITS | count as u64),
        }
    }

    /// The fingerprint; zero if the slot is free.
    #[inline]
    pub(crate) const fn fingerprint(self) -> u64 {
        self.0 >> Self::COUNTER_BITS
    }

    /// The lock state.
    #[inline]
    pub(crate) const fn counter(self) -> Counter {
        Counter(self.0 as u8)
    }
}

/// The lock state of a slot: free, write-locked, or read-locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counter(u8);

impl Counter {
    /// Free: no holders.
    pub(crate) const FREE: Self = Self(0);
    /// Held by one transaction for writing.
    pub(crate) const WRITTEN: Self = Self(1);

    /// Held by `readers` read records.
    ///
    /// # Panics
    /// If `readers` exceeds [`MAX_HOLDERS_PER_SLOT`].
    #[inline]
    pub(crate) fn read_by(readers: usize) -> Self {
        assert!(readers <= MAX_HOLDERS_PER_SLOT.into(), "{readers} readers in one slot");
        Self(readers as u8 * 2)
    }

    /// Number of read records; zero if the slot is write-locked.
    #[inline]
    pub(crate) const fn readers(self) -> usize {
        (self.0 / 2) as usize
    }
}

/// Locks of the asking transaction in the slot of the requested name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct OwnLocks {
    /// Mode in which the transaction already holds the requested name.
    pub(crate) name: Option<LockMode>,
    /// Number of the transaction's records in the slot, including the requested name.
    pub(crate) records: usize,
}

/// Decides whether to grant a lock, and computes the slot's new counter.
pub(crate) fn decide(
    counter: Counter,
    mine: OwnLocks,
    mode: LockMode,
) -> Result<(Grant, Counter), Refusal> {
    use LockMode::{Read, Write};
    let grant = match (mine.name, mode) {
        (Some(Write), _) | (Some(Read), Read) => return Ok((Grant::AlreadyHeld, counter)),
        (Some(Read), Write) if broken(Rule::UpgradesAreExplicit) => {
            return Ok((Grant::AlreadyHeld, counter));
        }
        (Some(Read), Write) => Grant::Upgraded,
        (None, _) => Grant::Acquired,
    };
    let written = counter == Counter::WRITTEN;
    // All records of a write-locked slot belong to one transaction: all are mine, or none.
    let (compatible, records) = match (written, mode) {
        (true, Read) if broken(Rule::WritersExcludeReaders) => (true, mine.records),
        (true, _) => (mine.records > 0, mine.records),
        (false, Read) => (true, counter.readers()),
        (false, Write) => (mine.records == counter.readers(), counter.readers()),
    };
    if !compatible {
        return Err(Refusal::Conflict);
    }
    // The limit also applies under the transaction's own write lock, where the counter does not
    // count records: after the write lock's release the counter counts them again.
    if grant == Grant::Acquired && records >= MAX_HOLDERS_PER_SLOT.into() {
        return Err(Refusal::TooManyReaders);
    }
    let after = match (written, mode) {
        (true, _) | (_, Write) => Counter::WRITTEN,
        (false, Read) => Counter::read_by(records + 1),
    };
    Ok((grant, after))
}

/// Computes the counter of a slot from the modes of its remaining records.
pub(crate) fn recount(modes: impl Iterator<Item = LockMode>) -> Counter {
    let mut readers = 0;
    for mode in modes {
        match mode {
            LockMode::Write => return Counter::WRITTEN,
            LockMode::Read => readers += 1,
        }
    }
    Counter::read_by(readers)
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;
    use LockMode::{Read, Write};

    const FREE: Counter = Counter::FREE;
    const WRITTEN: Counter = Counter::WRITTEN;
    const MAX: usize = MAX_HOLDERS_PER_SLOT as usize;

    fn read_by(readers: usize) -> Counter {
        Counter::read_by(readers)
    }

    #[test]
    fn a_slot_is_granted_by_its_counter_and_what_the_asker_holds() {
        use Grant::{Acquired, AlreadyHeld, Upgraded};
        use Refusal::{Conflict, TooManyReaders};
        // (counter, how I hold the name, my records in the slot, asked mode, answer)
        let cases = [
            (FREE, None, 0, Read, Ok((Acquired, read_by(1)))),
            (FREE, None, 0, Write, Ok((Acquired, WRITTEN))),
            (read_by(1), None, 0, Read, Ok((Acquired, read_by(2)))),
            (read_by(1), None, 0, Write, Err(Conflict)),
            (WRITTEN, None, 0, Read, Err(Conflict)),
            (WRITTEN, None, 0, Write, Err(Conflict)),
            // Repeated requests.
            (read_by(2), Some(Read), 1, Read, Ok((AlreadyHeld, read_by(2)))),
            (WRITTEN, Some(Write), 1, Write, Ok((AlreadyHeld, WRITTEN))),
            (WRITTEN, Some(Write), 1, Read, Ok((AlreadyHeld, WRITTEN))),
            // Upgrades.
            (read_by(1), Some(Read), 1, Write, Ok((Upgraded, WRITTEN))),
            (read_by(2), Some(Read), 1, Write, Err(Conflict)),
            // Another of my names is in the slot.
            (read_by(1), None, 1, Read, Ok((Acquired, read_by(2)))),
            (read_by(1), None, 1, Write, Ok((Acquired, WRITTEN))),
            (read_by(2), None, 1, Write, Err(Conflict)),
            (read_by(2), Some(Read), 2, Write, Ok((Upgraded, WRITTEN))),
            (WRITTEN, None, 1, Read, Ok((Acquired, WRITTEN))),
            (WRITTEN, None, 2, Write, Ok((Acquired, WRITTEN))),
            (WRITTEN, Some(Read), 2, Write, Ok((Upgraded, WRITTEN))),
            // The counter is never allowed to overflow.
            (read_by(MAX - 1), None, 0, Read, Ok((Acquired, read_by(MAX)))),
            (read_by(MAX), None, 0, Read, Err(TooManyReaders)),
            (read_by(MAX), Some(Read), 1, Read, Ok((AlreadyHeld, read_by(MAX)))),
            (read_by(MAX), None, MAX, Write, Err(TooManyReaders)),
            (WRITTEN, None, MAX, Read, Err(TooManyReaders)),
            (WRITTEN, Some(Read), MAX, Write, Ok((Upgraded, WRITTEN))),
        ];
        for (counter, name, records, mode, answer) in cases {
            let mine = OwnLocks { name, records };
            assert_eq!(decide(counter, mine, mode), answer, "{counter:?} {mine:?} {mode:?}");
        }
    }

    #[test]
    fn what_remains_is_counted_again() {
        let cases: [(&[LockMode], Counter); 4] = [
            (&[], FREE),
            (&[Read], read_by(1)),
            (&[Read, Read, Read], read_by(3)),
            (&[Read, Write, Read], WRITTEN),
        ];
        for (modes, counter) in cases {
            assert_eq!(recount(modes.iter().copied()), counter, "{modes:?}");
        }
    }

    #[test]
    fn h7_a_slot_that_nobody_holds_is_all_zeroes() {
        let fingerprint = (1 << 56) - 1;
        assert_eq!(Word::new(fingerprint, read_by(0)), Word::FREE);
        assert_eq!(Word::new(fingerprint, WRITTEN).0, fingerprint << 8 | 1);
        assert_eq!(Word::new(fingerprint, read_by(MAX)).counter(), read_by(MAX));
        assert_eq!(Word::new(fingerprint, read_by(MAX)).fingerprint(), fingerprint);
    }
}
