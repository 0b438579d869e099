//! Notes of the clients of a load on locks about each lock, in words of this process.
//!
//! # Passed requests
//! A request notes how many requests wait at that time, and how many have been granted. When the
//! request is granted, the grants since then, minus the noted waiters, count the later requests
//! that passed it. If some of the noted waiters still wait, the count is too small; but then the
//! first of these waiters was passed by more requests, so the largest count is exact. A request
//! that was given up counts as waiting forever without a grant, so with such requests the count is
//! a lower bound.
//!
//! Requests are ordered by when clients make them, grants by when clients learn of them. Verbs of
//! two clients may pass each other on the way, so a few requests pass others even where a lock
//! grants in the order of the verbs.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lotus_locks::Mode;

use super::Fairness;

/// Weight of a writer in [`Note::held`].
const WRITER: u32 = 1 << 16;
/// Weight of an update lock that was not upgraded, in [`Note::held`].
const UPDATE: u32 = 1 << 28;
/// Weight of a waiting request in [`Note::queue`]: the bits above suffice for all clients.
const WAITING: u64 = 1 << 40;
/// Bits of [`Note::queue`] that count grants.
const GRANTED: u64 = WAITING - 1;

/// Notes about one lock.
#[derive(Default)]
struct Note {
    /// Number of readers that hold the lock, plus [`WRITER`] for each writer, and [`UPDATE`].
    held: AtomicU32,
    /// Writers that have held the lock since the last reader.
    run: AtomicU32,
    /// Number of granted requests, plus [`WAITING`] for each waiting request.
    queue: AtomicU64,
    /// Number of writers that have held the lock, if writers write.
    written: AtomicU64,
}

/// State at a request's arrival: the request's place among the other requests for the lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    waiting: u64,
    granted: u64,
}

/// Notes shared by the clients of all lanes: held locks and written values.
pub(super) struct Ledger {
    notes: Vec<Note>,
    /// Number of times that two clients held a lock in conflicting modes.
    clashes: AtomicU64,
    /// READs that found a value other than the last writer's.
    misread: AtomicU64,
}

impl Ledger {
    pub(super) fn new(locks: u64) -> Self {
        let notes = (0..locks).map(|_| Note::default()).collect();
        Self { notes, clashes: AtomicU64::new(0), misread: AtomicU64::new(0) }
    }

    fn note(&self, lock: u64) -> &Note {
        &self.notes[lock as usize]
    }

    const fn weight(mode: Mode) -> u32 {
        match mode {
            Mode::Shared => 1,
            Mode::Update => UPDATE,
            Mode::Exclusive => WRITER,
        }
    }

    /// Notes that a client wants a lock.
    pub(super) fn request(&self, lock: u64) -> Arrival {
        // The modification order of a single word suffices, here and below.
        let before = self.note(lock).queue.fetch_add(WAITING, Ordering::Relaxed);
        Arrival { waiting: before / WAITING, granted: before & GRANTED }
    }

    /// Notes that a client no longer wants a lock.
    pub(super) fn give_up(&self, lock: u64, arrival: Arrival) -> Fairness {
        let before = self.note(lock).queue.fetch_sub(WAITING, Ordering::Relaxed);
        Fairness { longest_run: 0, largest_bypass: passed(before, arrival) }
    }

    /// Notes that a client holds a lock; the mode `held` may be stronger than `wanted`.
    pub(super) fn enter(&self, lock: u64, held: Mode, wanted: Mode, arrival: Arrival) -> Fairness {
        let note = self.note(lock);
        let before = note.held.fetch_add(Self::weight(held), Ordering::AcqRel);
        let clashes = match held {
            Mode::Shared => before % UPDATE >= WRITER,
            Mode::Update => before >= WRITER,
            Mode::Exclusive => before > 0,
        };
        if clashes {
            self.clashes.fetch_add(1, Ordering::Relaxed);
        }
        let granted = 1_u64.wrapping_sub(WAITING);
        let before = note.queue.fetch_add(granted, Ordering::Relaxed);
        // Writers are alone, so their additions need not be atomic; readers only store zero.
        let run = match wanted {
            Mode::Shared => 0,
            Mode::Update | Mode::Exclusive => note.run.load(Ordering::Relaxed) + 1,
        };
        if run > 0 || note.run.load(Ordering::Relaxed) > 0 {
            note.run.store(run, Ordering::Relaxed);
        }
        Fairness { longest_run: u64::from(run), largest_bypass: passed(before, arrival) }
    }

    /// Notes that a client reads under a lease, which may have ended already. A concurrent writer
    /// is therefore no conflict, unless the client finds afterwards that the lease is still valid.
    pub(super) fn enter_leased(&self, lock: u64, arrival: Arrival) -> Fairness {
        let note = self.note(lock);
        let granted = 1_u64.wrapping_sub(WAITING);
        let before = note.queue.fetch_add(granted, Ordering::Relaxed);
        if note.run.load(Ordering::Relaxed) > 0 {
            note.run.store(0, Ordering::Relaxed);
        }
        Fairness { longest_run: 0, largest_bypass: passed(before, arrival) }
    }

    /// Whether a client has held a lock to write since the last reader of the lock.
    pub(super) fn was_written(&self, lock: u64) -> bool {
        let note = self.note(lock);
        note.held.load(Ordering::Acquire) >= WRITER || note.run.load(Ordering::Relaxed) > 0
    }

    /// Notes that a reader with a valid lease has met a writer.
    pub(super) fn clash(&self) {
        self.clashes.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that an update lock was upgraded.
    pub(super) fn upgrade(&self, lock: u64) {
        let upgraded = WRITER.wrapping_sub(UPDATE);
        let before = self.note(lock).held.fetch_add(upgraded, Ordering::AcqRel);
        if before != UPDATE {
            self.clashes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that a client no longer holds a lock.
    pub(super) fn leave(&self, lock: u64, held: Mode) {
        self.note(lock).held.fetch_sub(Self::weight(held), Ordering::AcqRel);
    }

    /// Returns the value that the holder of a lock writes beside the lock.
    pub(super) fn next_value(&self, lock: u64) -> u64 {
        let written = &self.note(lock).written;
        // Only the holder counts.
        let value = written.load(Ordering::Relaxed) + 1;
        written.store(value, Ordering::Relaxed);
        value
    }

    /// The value that should be beside a lock at the end.
    pub(super) fn written(&self, lock: u64) -> u64 {
        self.note(lock).written.load(Ordering::Relaxed)
    }

    /// Checks the words beside a lock that its holder has read, under a valid lease if there are
    /// leases.
    pub(super) fn read(&self, lock: u64, words: &[u64]) {
        let written = self.written(lock);
        if words.iter().any(|word| *word != written) {
            self.misread.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of times that a reader found a value other than the last writer's.
    pub(super) fn misread(&self) -> u64 {
        self.misread.load(Ordering::Relaxed)
    }

    /// Number of times that two clients held a lock in conflicting modes.
    pub(super) fn clashes(&self) -> u64 {
        self.clashes.load(Ordering::Relaxed)
    }
}

/// Number of requests granted so far that came after the request of `arrival`, given the queue
/// `now`.
const fn passed(now: u64, arrival: Arrival) -> u64 {
    (now & GRANTED).saturating_sub(arrival.granted + arrival.waiting)
}

#[cfg(test)]
mod tests {
    use Mode::{Exclusive, Shared, Update};

    use super::*;

    /// A client takes a lock at once.
    fn take(ledger: &Ledger, lock: u64, mode: Mode) -> Fairness {
        let arrival = ledger.request(lock);
        ledger.enter(lock, mode, mode, arrival)
    }

    #[test]
    fn two_holders_who_must_not_are_seen() {
        for (first, second, clashes) in [
            (Shared, Shared, 0),
            (Shared, Update, 0),
            (Update, Shared, 0),
            (Update, Update, 1),
            (Update, Exclusive, 1),
            (Exclusive, Update, 1),
            (Shared, Exclusive, 1),
            (Exclusive, Shared, 1),
        ] {
            let ledger = Ledger::new(2);
            take(&ledger, 1, first);
            take(&ledger, 1, second);
            take(&ledger, 0, Exclusive);
            assert_eq!(ledger.clashes(), clashes, "{first:?}, {second:?}");
            ledger.leave(1, first);
            ledger.leave(1, second);
            take(&ledger, 1, Exclusive);
            assert_eq!(ledger.clashes(), clashes);
        }
    }

    #[test]
    fn an_upgraded_lock_is_held_alone() {
        let ledger = Ledger::new(2);
        take(&ledger, 0, Shared);
        take(&ledger, 0, Update);
        ledger.leave(0, Shared);
        ledger.upgrade(0);
        assert_eq!(ledger.clashes(), 0);
        ledger.leave(0, Exclusive);
        take(&ledger, 0, Shared);
        take(&ledger, 0, Update);
        ledger.upgrade(0);
        assert_eq!(ledger.clashes(), 1, "a reader is there");
    }

    #[test]
    fn a_reader_with_a_lease_learns_of_writers_and_blames_nobody() {
        let ledger = Ledger::new(1);
        let read = || {
            let arrival = ledger.request(0);
            assert_eq!(ledger.enter_leased(0, arrival), Fairness::default());
        };
        take(&ledger, 0, Exclusive);
        read();
        assert!(ledger.was_written(0), "a writer is there");
        ledger.leave(0, Exclusive);
        assert!(!ledger.was_written(0));
        read();
        take(&ledger, 0, Exclusive);
        ledger.leave(0, Exclusive);
        assert!(ledger.was_written(0), "a writer was there");
        assert_eq!(ledger.clashes(), 0);
        ledger.clash();
        assert_eq!(ledger.clashes(), 1);
    }

    #[test]
    fn what_no_writer_has_left_is_misread() {
        let ledger = Ledger::new(2);
        ledger.read(0, &[0, 0]);
        let value = ledger.next_value(0);
        ledger.read(0, &[value, value]);
        ledger.read(1, &[0]);
        assert_eq!(ledger.misread(), 0);
        ledger.read(0, &[value, 0]);
        ledger.read(0, &[0, 0]);
        assert_eq!(ledger.misread(), 2);
    }

    #[test]
    fn a_run_of_writers_ends_with_a_reader() {
        let ledger = Ledger::new(2);
        let run = |lock, held, wanted| {
            let arrival = ledger.request(lock);
            let fairness = ledger.enter(lock, held, wanted, arrival);
            ledger.leave(lock, held);
            fairness.longest_run
        };
        assert_eq!([1, 2, 3], [(); 3].map(|()| run(0, Exclusive, Exclusive)));
        assert_eq!(run(1, Exclusive, Exclusive), 1, "each lock has its own");
        assert_eq!(run(0, Shared, Shared), 0);
        assert_eq!(run(0, Exclusive, Exclusive), 1);
        // Where readers exclude each other, they are readers still.
        assert_eq!(run(0, Exclusive, Shared), 0);
        assert_eq!(run(0, Exclusive, Exclusive), 1);
    }

    #[test]
    fn requests_that_were_passed_are_counted() {
        let ledger = Ledger::new(1);
        let passed = |arrival| {
            let fairness = ledger.enter(0, Exclusive, Exclusive, arrival);
            ledger.leave(0, Exclusive);
            fairness.largest_bypass
        };
        let in_order = [(); 3].map(|()| ledger.request(0));
        assert_eq!(in_order.map(passed), [0, 0, 0]);
        // The last is granted first, then the second: the first was passed by both.
        let [first, second, third] = [(); 3].map(|()| ledger.request(0));
        assert_eq!(passed(third), 0);
        assert_eq!((passed(second), passed(first)), (0, 2));
    }

    #[test]
    fn requests_that_are_given_up_were_passed_as_well() {
        let ledger = Ledger::new(1);
        let first = ledger.request(0);
        take(&ledger, 0, Shared);
        take(&ledger, 0, Shared);
        assert_eq!(ledger.give_up(0, first).largest_bypass, 2);
        // It is not waited for any more.
        assert_eq!(ledger.request(0).waiting, 0);
    }
}
