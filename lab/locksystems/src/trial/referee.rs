//! Judges of a trial: the holders of each lock in the clients' view, and the protected words.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lotus_locks::word::{Claimant, Mode};

/// The judge of all clients of a trial.
#[derive(Debug, Default)]
pub struct Referee {
    state: Mutex<RefereeState>,
}

#[derive(Debug, Default)]
struct RefereeState {
    locks: Vec<Lock>,
    /// Lives of expelled nodes: their holds do not count.
    out: BTreeSet<(u8, u32)>,
    violations: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct Lock {
    holders: Vec<(Claimant, Mode)>,
    /// The largest value that a holder has completely written.
    written: u64,
    /// Whether a holder has ended between its two writes.
    is_torn: bool,
    /// Number of times that the lock was entered.
    entered: u64,
    /// Largest number of simultaneous holders.
    together: usize,
    /// Number of times that the lock had an update holder beside readers.
    beside: u64,
    /// Number of upgrades of update locks.
    upgraded: u64,
    /// Number of times that the lock was entered to write.
    writers: u64,
    /// Number of readers under leases, which may have ended.
    leased: usize,
}

/// Writers of a lock as seen by a reader with a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Number of writers so far.
    writers: u64,
    is_written: bool,
}

/// Whether two modes may be held at the same time.
const fn are_compatible(one: Mode, other: Mode) -> bool {
    matches!(
        (one, other),
        (Mode::Shared, Mode::Shared | Mode::Update) | (Mode::Update, Mode::Shared)
    )
}

/// Most violations kept; more add nothing new.
const MAX_VIOLATIONS: usize = 20;

const fn key(life: Claimant) -> (u8, u32) {
    (life.node(), life.incarnation())
}

impl Referee {
    /// Returns a judge of `locks` locks.
    pub fn new(locks: u64) -> Self {
        let state = RefereeState {
            locks: vec![Lock::default(); locks as usize],
            ..RefereeState::default()
        };
        Self { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, RefereeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a client holds a lock.
    pub fn enter(&self, lock: u64, by: Claimant, mode: Mode) {
        let state = &mut *self.state();
        if state.out.contains(&key(by)) {
            return;
        }
        let found = &mut state.locks[lock as usize];
        found.entered += 1;
        if !found.holders.iter().all(|(_, other)| are_compatible(*other, mode)) {
            let holders = found.holders.clone();
            state.violate(format!("lock {lock}: {by:?} holds it {mode:?} beside {holders:?}"));
        }
        let found = &mut state.locks[lock as usize];
        found.holders.push((by, mode));
        found.writers += u64::from(mode != Mode::Shared);
        found.together = found.together.max(found.holders.len());
        let is_update = found.holders.iter().any(|(_, mode)| *mode == Mode::Update);
        found.beside += u64::from(is_update && found.holders.len() > 1);
    }

    /// Records that an update lock has become exclusive.
    pub fn upgrade(&self, lock: u64, by: Claimant) {
        let state = &mut *self.state();
        if state.out.contains(&key(by)) {
            return;
        }
        let found = &mut state.locks[lock as usize];
        found.upgraded += 1;
        match found.holders.iter().position(|holder| *holder == (by, Mode::Update)) {
            Some(index) => found.holders[index].1 = Mode::Exclusive,
            None => state.violate(format!("lock {lock}: {by:?} upgrades what it does not hold")),
        }
        let holders = state.locks[lock as usize].holders.clone();
        if holders.len() > 1 {
            state.violate(format!("lock {lock}: {by:?} upgrades it beside {holders:?}"));
        }
    }

    /// Records that a client gives up a lock. `tears` says whether the client ended between its two
    /// writes.
    pub fn leave(&self, lock: u64, by: Claimant, mode: Mode, tears: bool) {
        let state = &mut *self.state();
        if state.out.contains(&key(by)) {
            return;
        }
        let found = &mut state.locks[lock as usize];
        found.is_torn |= tears;
        match found.holders.iter().position(|holder| *holder == (by, mode)) {
            Some(index) => drop(found.holders.swap_remove(index)),
            None => state.violate(format!("lock {lock}: {by:?} gives up what it does not hold")),
        }
    }

    /// Judges the words that a holder has read: equal, and not less than the last complete write.
    pub fn judge(&self, lock: u64, by: Claimant, words: [u64; 2]) {
        if let Some(complaint) = self.complaint(lock, by, words) {
            self.violate(complaint);
        }
    }

    /// Returns the complaint about the words that a holder has read, if any.
    pub fn complaint(&self, lock: u64, by: Claimant, words: [u64; 2]) -> Option<String> {
        let state = &*self.state();
        if state.out.contains(&key(by)) {
            return None;
        }
        let found = &state.locks[lock as usize];
        let [first, second] = words;
        if first < found.written || second < found.written {
            let written = found.written;
            Some(format!("lock {lock}: {by:?} reads {words:?}, {written} was written"))
        } else if first != second && !found.is_torn {
            Some(format!("lock {lock}: {by:?} reads {words:?}, written under one lock"))
        } else {
            None
        }
    }

    /// Records the beginning of a read under a lease, which may have ended already. A writer beside
    /// the client is no violation, unless the client finds the lease still valid afterwards.
    pub fn begin_leased(&self, lock: u64) -> Seen {
        let found = &mut self.state().locks[lock as usize];
        found.entered += 1;
        found.leased += 1;
        found.together = found.together.max(found.leased);
        found.seen()
    }

    /// Records the end of a leased read.
    pub fn end_leased(&self, lock: u64) {
        self.state().locks[lock as usize].leased -= 1;
    }

    /// Whether a lock was held to write since `by` began its leased read.
    pub fn was_written_since(&self, lock: u64, by: Claimant, began: Seen) -> bool {
        let state = &*self.state();
        let is_out = state.out.contains(&key(by));
        !is_out && (began.is_written || state.locks[lock as usize].seen() != began)
    }

    /// Records that a holder has written both words.
    pub fn wrote(&self, lock: u64, by: Claimant, value: u64) {
        let state = &mut *self.state();
        if !state.out.contains(&key(by)) {
            let found = &mut state.locks[lock as usize];
            (found.written, found.is_torn) = (found.written.max(value), false);
        }
    }

    /// Whether a node in this life is fenced.
    pub fn is_out(&self, life: Claimant) -> bool {
        self.state().out.contains(&key(life))
    }

    /// Records the fencing of a node in a life: the node holds no lock any more.
    pub fn expel(&self, life: Claimant) {
        let state = &mut *self.state();
        state.out.insert(key(life));
        for lock in &mut state.locks {
            let before = lock.holders.len();
            lock.holders.retain(|(holder, _)| *holder != life);
            lock.is_torn |= before != lock.holders.len();
        }
    }

    /// Records the loss and return of the memory with all words. Locks must not be held at the
    /// return.
    pub fn forget_words(&self) {
        let state = &mut *self.state();
        let mut holders = Vec::new();
        for (number, lock) in state.locks.iter_mut().enumerate() {
            (lock.written, lock.is_torn) = (0, false);
            holders.extend(lock.holders.iter().map(|holder| (number, *holder)));
        }
        for (lock, holder) in holders {
            state.violate(format!("lock {lock}: {holder:?} holds it when its memory returns"));
        }
    }

    /// Records a violation.
    pub fn violate(&self, what: String) {
        self.state().violate(what);
    }

    /// Number of times that a lock was entered.
    pub fn entered(&self) -> u64 {
        self.state().locks.iter().map(|lock| lock.entered).sum()
    }

    /// Largest number of simultaneous holders of a lock.
    pub fn together(&self) -> usize {
        self.state().locks.iter().map(|lock| lock.together).max().unwrap_or(0)
    }

    /// Number of times that a lock had an update holder beside readers.
    pub fn beside(&self) -> u64 {
        self.state().locks.iter().map(|lock| lock.beside).sum()
    }

    /// Number of upgrades of update locks.
    pub fn upgraded(&self) -> u64 {
        self.state().locks.iter().map(|lock| lock.upgraded).sum()
    }

    /// Whether there are violations.
    pub fn has_violations(&self) -> bool {
        !self.state().violations.is_empty()
    }

    /// The violations.
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }
}

impl Lock {
    fn seen(&self) -> Seen {
        let is_written = self.holders.iter().any(|(_, mode)| *mode != Mode::Shared);
        Seen { writers: self.writers, is_written }
    }
}

impl RefereeState {
    fn violate(&mut self, what: String) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Claimant = Claimant::new(0, 1);
    const OTHER: Claimant = Claimant::new(1, 1);

    fn violations(events: impl FnOnce(&Referee)) -> usize {
        let referee = Referee::new(1);
        events(&referee);
        referee.violations().len()
    }

    #[test]
    fn a_writer_is_alone_and_readers_are_not() {
        use Mode::{Exclusive, Shared, Update};
        for (first, second, expected) in [
            (Shared, Shared, 0),
            (Shared, Update, 0),
            (Update, Shared, 0),
            (Update, Update, 1),
            (Shared, Exclusive, 1),
            (Update, Exclusive, 1),
            (Exclusive, Shared, 1),
            (Exclusive, Update, 1),
            (Exclusive, Exclusive, 1),
        ] {
            let found = violations(|referee| {
                referee.enter(0, ONE, first);
                referee.enter(0, OTHER, second);
            });
            assert_eq!(found, expected, "{first:?} and {second:?}");
        }
        let one_after_the_other = violations(|referee| {
            referee.enter(0, ONE, Exclusive);
            referee.leave(0, ONE, Exclusive, false);
            referee.enter(0, OTHER, Exclusive);
        });
        assert_eq!(one_after_the_other, 0);
    }

    #[test]
    fn an_upgraded_lock_is_alone() {
        use Mode::{Exclusive, Shared, Update};
        for (left, expected) in [(true, 0), (false, 1)] {
            let found = violations(|referee| {
                referee.enter(0, ONE, Update);
                referee.enter(0, OTHER, Shared);
                if left {
                    referee.leave(0, OTHER, Shared, false);
                }
                referee.upgrade(0, ONE);
                referee.leave(0, ONE, Exclusive, false);
                assert_eq!((referee.beside(), referee.upgraded()), (1, 1));
            });
            assert_eq!(found, expected);
        }
        let beside_a_writer = violations(|referee| {
            referee.enter(0, ONE, Update);
            referee.upgrade(0, ONE);
            referee.enter(0, OTHER, Shared);
        });
        assert_eq!(beside_a_writer, 1);
        assert_eq!(violations(|referee| referee.upgrade(0, ONE)), 1);
    }

    #[test]
    fn a_reader_with_a_lease_learns_of_writers_and_blames_nobody() {
        let referee = Referee::new(1);
        let before = referee.begin_leased(0);
        assert!(!referee.was_written_since(0, OTHER, before));
        referee.enter(0, ONE, Mode::Exclusive);
        assert!(referee.was_written_since(0, OTHER, before));
        let beside = referee.begin_leased(0);
        assert!(referee.was_written_since(0, OTHER, beside));
        referee.leave(0, ONE, Mode::Exclusive, false);
        assert!(
            referee.was_written_since(0, OTHER, before)
                && referee.was_written_since(0, OTHER, beside)
        );
        let after = referee.begin_leased(0);
        (0..3).for_each(|_| referee.end_leased(0));
        assert!(!referee.was_written_since(0, OTHER, after));
        referee.expel(OTHER);
        assert!(!referee.was_written_since(0, OTHER, before));
        assert_eq!((referee.together(), referee.violations().len()), (3, 0));
    }

    #[test]
    fn an_expelled_node_holds_nothing() {
        let found = violations(|referee| {
            referee.enter(0, ONE, Mode::Exclusive);
            referee.expel(ONE);
            referee.enter(0, OTHER, Mode::Exclusive);
            referee.enter(0, ONE, Mode::Shared);
            referee.judge(0, OTHER, [1, 0]);
        });
        assert_eq!(found, 0);
    }

    #[test]
    fn lost_and_torn_writes_are_seen() {
        let lost = violations(|referee| {
            referee.wrote(0, ONE, 5);
            referee.judge(0, OTHER, [4, 4]);
        });
        let torn = violations(|referee| referee.judge(0, OTHER, [1, 0]));
        assert_eq!((lost, torn), (1, 1));
        let left = violations(|referee| {
            referee.enter(0, ONE, Mode::Exclusive);
            referee.leave(0, ONE, Mode::Exclusive, true);
            referee.judge(0, OTHER, [1, 0]);
        });
        assert_eq!(left, 0);
        assert_eq!(violations(|referee| referee.leave(0, ONE, Mode::Shared, false)), 1);
    }
}
