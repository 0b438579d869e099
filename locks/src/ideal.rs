//! The idealized lock on memory nodes of LOTUS §8.4: lock traffic without exclusion.
//!
//! # What it is
//! A bound for locks that the clients of a compute node pass on among themselves without verbs to
//! the memory node (DecLock §5). Compute nodes count the uses of every lock, readers and writers
//! alike ([`Counters`]). When a count leaves zero, the node adds one to the lock's word on the
//! memory node, and the transaction awaits the answer; when the count is back at zero, the node
//! subtracts one, without awaiting. A word therefore has the number of compute nodes using the
//! lock.
//!
//! # What it is not
//! A lock. Requests never queue, wait or fail: two writers of a row go on together, and updates are
//! lost. Only the throughput is meaningful, and only builds with the feature `sabotage` contain the
//! idealized lock.
//!
//! # Lost updates
//! If two attempts meet on a row and a lock would have made the second wait, the second is *beside*
//! the first until the end of the second attempt ([`IdealLocks::is_beside`]). The engine only
//! pretends to commit the second attempt, with the usual verbs, so that the rows stay whole
//! ([`Exclusion`]).

mod exclusion;

pub use exclusion::Exclusion;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use lotus_fabric::ids::RemoteAddr;
use lotus_fabric::lane::Lane;
use lotus_fabric::region::WORD_BYTES;
use lotus_locktable::{HeldLocks, LockError, LockKey, LockMode, LockRequest, LockService};

use crate::service::ObjectOf;

/// Addend that subtracts one.
const MINUS_ONE: u64 = 1_u64.wrapping_neg();

/// Uses of the locks on a compute node, shared by the node's coordinators: a count per word.
///
/// The counts guard no data, so their operations are relaxed.
pub struct Counters {
    uses: Box<[AtomicU16]>,
    /// Number of words per memory node.
    words: usize,
}

impl Counters {
    /// Returns counts for `words` words on every memory node.
    pub fn new(memory_nodes: usize, words: usize) -> Self {
        let uses = (0..memory_nodes * words).map(|_| AtomicU16::new(0)).collect();
        Self { uses, words }
    }

    fn of(&self, word: RemoteAddr) -> &AtomicU16 {
        let number = word.offset() as usize / WORD_BYTES;
        debug_assert!(number < self.words, "a word that is counted");
        &self.uses[usize::from(word.node().0) * self.words + number]
    }

    /// Counts a use. Returns whether the use is the only use, so that the memory node must be told.
    ///
    /// # Panics
    /// If the word has no count.
    pub fn acquire(&self, word: RemoteAddr) -> bool {
        self.of(word).fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Ends a use. Returns whether the use was the last use, so that the memory node must be told.
    ///
    /// # Panics
    /// If the word has no count.
    pub fn release(&self, word: RemoteAddr) -> bool {
        let before = self.of(word).fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a use ends once");
        before == 1
    }

    /// Number of words in use.
    pub fn in_use(&self) -> usize {
        self.uses.iter().filter(|uses| uses.load(Ordering::Relaxed) > 0).count()
    }
}

/// A name used by an attempt.
struct Used {
    word: RemoteAddr,
    /// Whether this use is the attempt's counted use of the word.
    counted: bool,
    standing: Cell<Company>,
}

/// Relation of an attempt to other users of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Company {
    /// Kept apart from conflicting users.
    Apart(LockKey, LockMode),
    /// The attempt had the name already: see the first use.
    Again,
    /// Beside a conflicting attempt.
    Beside,
}

/// A coordinator's client of the idealized lock. See the module's documentation.
pub struct IdealLocks {
    lane: Lane,
    counters: Arc<Counters>,
    exclusion: Arc<Exclusion>,
    object_of: ObjectOf,
    /// Number of release batches under way.
    under_way: Rc<Cell<usize>>,
}

impl IdealLocks {
    /// Returns the service over the words that `object_of` names, with the counters of the lane's
    /// node, and the state that all nodes share.
    pub fn new(
        lane: Lane,
        counters: Arc<Counters>,
        exclusion: Arc<Exclusion>,
        object_of: ObjectOf,
    ) -> Self {
        Self { lane, counters, exclusion, object_of, under_way: Rc::default() }
    }

    /// Whether an attempt is beside a conflicting attempt.
    pub fn is_beside(held: &HeldLocks) -> bool {
        held.kept::<Used>().iter().any(|used| used.standing.get() == Company::Beside)
    }

    /// Records an attempt's use of a name. Returns the name's word if the memory node must be told.
    fn enter(&self, held: &mut HeldLocks, request: &LockRequest) -> Option<RemoteAddr> {
        let LockRequest { name, mode } = *request;
        let word = (self.object_of)(&name, name.hash());
        let uses = held.kept::<Used>();
        let counted = !uses.iter().any(|used| used.word == word);
        let first = uses.iter().find_map(|used| match used.standing.get() {
            Company::Apart(of, own) if of == name => Some((used, own)),
            _ => None,
        });
        let passes =
            !Self::is_beside(held) && self.exclusion.join(request, first.map(|(_, own)| own));
        let standing = match first {
            _ if !passes => {
                uses.iter().for_each(|used| self.stand_beside(used));
                Company::Beside
            }
            None => Company::Apart(name, mode),
            Some((used, own)) => {
                used.standing.set(Company::Apart(name, own.max(mode)));
                Company::Again
            }
        };
        // Recorded before the verb, so that a release ends the use in any case.
        held.keep(Used { word, counted, standing: Cell::new(standing) });
        (counted && self.counters.acquire(word)).then_some(word)
    }

    fn stand_beside(&self, used: &Used) {
        if let Company::Apart(name, _) = used.standing.replace(Company::Beside) {
            self.exclusion.leave(&name);
        }
    }

    /// Whether no release is under way.
    pub fn is_quiet(&self) -> bool {
        self.under_way.get() == 0
    }
}

impl LockService for IdealLocks {
    async fn acquire(
        &self,
        held: &mut HeldLocks,
        _round: u16,
        wanted: &[LockRequest],
        _timeout: Duration,
    ) -> Result<(), LockError> {
        let mut batch = self.lane.batch();
        for request in wanted {
            if let Some(word) = self.enter(held, request) {
                batch.fetch_and_add(word, 1);
            }
        }
        if batch.verb_count() == 0 {
            return Ok(());
        }
        batch.post().await.map(drop).map_err(|_| LockError::TimedOut)
    }

    fn release(&self, held: &mut HeldLocks) {
        let mut batch = self.lane.batch();
        for used in held.take_kept::<Used>() {
            self.stand_beside(&used);
            if used.counted && self.counters.release(used.word) {
                batch.fetch_and_add(used.word, MINUS_ONE);
            }
        }
        if batch.verb_count() == 0 {
            return;
        }
        let (posted, under_way) = (batch.post(), Rc::clone(&self.under_way));
        under_way.set(under_way.get() + 1);
        self.lane.executor().spawn(async move {
            // A word in lost memory needs no correction.
            let _ = posted.await;
            under_way.set(under_way.get() - 1);
        });
    }
}

#[cfg(test)]
mod tests {
    use lotus_fabric::ids::{NodeId, RegionId};

    use super::*;

    fn word(node: u16, number: u64) -> RemoteAddr {
        RemoteAddr::new(NodeId(node), RegionId(1), number * WORD_BYTES as u64)
    }

    #[test]
    fn a_memory_node_hears_of_the_first_use_and_the_last() {
        let counters = Counters::new(2, 4);
        let steps = [(true, true), (true, false), (false, false), (true, false), (false, false)];
        for (begins, told) in steps.into_iter().chain([(false, true), (true, true)]) {
            let heard = match begins {
                true => counters.acquire(word(1, 3)),
                false => counters.release(word(1, 3)),
            };
            assert_eq!(heard, told);
        }
        assert_eq!(counters.in_use(), 1);
    }

    #[test]
    fn each_word_has_a_count_of_its_own() {
        let counters = Counters::new(3, 4);
        let all = || (0..3).flat_map(|node| (0..4).map(move |number| word(node, number)));
        assert!(all().all(|word| counters.acquire(word)));
        assert_eq!(counters.in_use(), 12);
        assert!(all().all(|word| counters.release(word)));
        assert_eq!(counters.in_use(), 0);
    }

    /// However the uses of threads interleave, what the memory node is told adds up: the word is
    /// zero in the end.
    #[test]
    fn what_threads_tell_adds_up_to_nothing() {
        let counters = Counters::new(1, 2);
        let told = || {
            (0..1_000_u64).fold(0_i64, |sum, turn| {
                let word = word(0, turn % 2);
                let up = i64::from(counters.acquire(word));
                sum + up - i64::from(counters.release(word))
            })
        };
        let sums = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(told)).collect();
            threads.into_iter().map(|thread| thread.join().expect("it ends")).sum::<i64>()
        });
        assert_eq!((sums, counters.in_use()), (0, 0));
    }
}
