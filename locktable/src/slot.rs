//! Rules of one 8-byte lock slot (LOTUS §4.1), as pure functions over plain values.
//!
//! A slot's word is a 56-bit fingerprint above an 8-bit counter. Counter 1 means write-locked; an
//! even counter is twice the number of readers; a slot without holders is all zeroes, fingerprint
//! included, so that any name may take it next (H7).
//!
//! A slot belongs to every name with its fingerprint. Two names of different transactions that
//! share one conflict, falsely but safely; two names of the same transaction do not, or it could
//! never succeed (H7). So a decision depends not only on the counter but also on the locks that the
//! asking transaction itself holds in the slot: [`Mine`], computed from the holders' records.

use lotus_sabotage::{Rule, broken};

use crate::name::LockMode;

/// Largest number of holders of one slot: the readers that an 8-bit counter can count in twos.
pub const MAX_HOLDERS_PER_SLOT: u8 = 127;

/// Manner in which a lock was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// The transaction holds the lock now and did not before.
    Acquired,
    /// The transaction held the lock already, in this mode or a stronger one; nothing changed.
    AlreadyHeld,
    /// The transaction was the only reader and is now the writer.
    Upgraded,
}

/// Reason why a lock was refused. Nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Another transaction holds the lock, or one that looks the same, in a conflicting mode.
    ///
    /// Abort and retry after a randomised pause: two readers that both want to write refuse each
    /// other for as long as they retry in step.
    #[error("the lock is held in a conflicting mode")]
    Conflict,
    /// All slots of the lock's bucket are taken, by other transactions too.
    ///
    /// Abort, back off, retry. Where it is frequent the table is too small.
    #[error("the lock's bucket is full")]
    BucketFull,
    /// The transaction itself holds every slot of the lock's bucket.
    ///
    /// No retry of the same transaction can succeed in this table: report it to the application.
    #[error("the transaction's own locks fill the bucket")]
    OwnBucketFull,
    /// The lock has [`MAX_HOLDERS_PER_SLOT`] holders.
    ///
    /// Abort, back off, retry.
    #[error("the lock has as many readers as it can count")]
    TooManyReaders,
    /// [`MAX_WAITING_PER_STRIPE`](crate::MAX_WAITING_PER_STRIPE) requests wait already.
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

    /// Free: without holders, open to every name.
    pub(crate) const FREE: Self = Self(0);

    /// Word of a slot with this counter; [`Counter::FREE`] clears the fingerprint too.
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

/// The lock state of a slot: free, written by one, or read by some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counter(u8);

impl Counter {
    /// Free: no holders.
    pub(crate) const FREE: Self = Self(0);
    /// Held by one transaction for writing.
    pub(crate) const WRITTEN: Self = Self(1);

    /// Held by `readers` records that only read.
    ///
    /// # Panics
    /// If there are more than [`MAX_HOLDERS_PER_SLOT`].
    #[inline]
    pub(crate) fn read_by(readers: usize) -> Self {
        assert!(readers <= MAX_HOLDERS_PER_SLOT.into(), "{readers} readers in one slot");
        Self(readers as u8 * 2)
    }

    /// Number of records that read; zero if the slot is written.
    #[inline]
    pub(crate) const fn readers(self) -> usize {
        (self.0 / 2) as usize
    }
}

/// Locks of the asking transaction in the slot that its name would use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Mine {
    /// Mode in which it holds this very name.
    pub(crate) name: Option<LockMode>,
    /// Number of the slot's records that are its own, that of this name included.
    pub(crate) records: usize,
}

/// Decides whether a transaction gets a lock, and the slot's counter afterwards.
pub(crate) fn decide(
    counter: Counter,
    mine: Mine,
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
    // All records of a written slot belong to one transaction, so if one is mine, all are.
    let (compatible, records) = match (written, mode) {
        (true, Read) if broken(Rule::WritersExcludeReaders) => (true, mine.records),
        (true, _) => (mine.records > 0, mine.records),
        (false, Read) => (true, counter.readers()),
        (false, Write) => (mine.records == counter.readers(), counter.readers()),
    };
    if !compatible {
        return Err(Refusal::Conflict);
    }
    // Records are bounded even where they are not counted, under one's own write lock: they are
    // counted again once it is released.
    if grant == Grant::Acquired && records >= MAX_HOLDERS_PER_SLOT.into() {
        return Err(Refusal::TooManyReaders);
    }
    let after = match (written, mode) {
        (true, _) | (_, Write) => Counter::WRITTEN,
        (false, Read) => Counter::read_by(records + 1),
    };
    Ok((grant, after))
}

/// Counter of a slot, from the modes of its remaining records.
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
            let mine = Mine { name, records };
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
