//! The idealized lock on memory nodes of LOTUS §8.4: its traffic, and no exclusion.
//!
//! # What it is
//! A bound for locks that the clients of a compute node pass on among themselves before the memory
//! node hears of it (DecLock §5). Each compute node counts the uses of each lock, readers and
//! writers alike ([`Counters`]). The lock's word on the memory node is added to when a count leaves
//! zero, which the transaction awaits, and subtracted from when it is back at zero, which nothing
//! awaits. So a word has the number of compute nodes that use the lock.
//!
//! # What it is not
//! A lock. Nothing queues, waits for another transaction or is refused: two writers of one row both
//! go on, and updates are lost. Only throughput means something, and only builds with the feature
//! `sabotage` have it.
//!
//! # Lost updates
//! An attempt that meets another one on a row, where a lock would have made it wait, is *beside* it
//! until it ends ([`IdealLocks::is_beside`]). The engine then only pretends to commit, by the same
//! verbs, so that the rows stay whole ([`Exclusion`]).

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
use lotus_locktable::{HeldLocks, LockError, LockMode, LockName, LockRequest, LockService};

use crate::service::ObjectOf;

/// Adding this takes one away.
const MINUS_ONE: u64 = 1_u64.wrapping_neg();

/// Uses of all locks on one compute node, shared by its coordinators: a count for each word.
///
/// The counts guard nothing, so none of their operations orders any other.
pub struct Counters {
    uses: Box<[AtomicU16]>,
    /// Number of words on each memory node.
    words: usize,
}

impl Counters {
    /// Counts for so many words on each of so many memory nodes.
    pub fn new(memory_nodes: usize, words: usize) -> Self {
        let uses = (0..memory_nodes * words).map(|_| AtomicU16::new(0)).collect();
        Self { uses, words }
    }

    fn of(&self, word: RemoteAddr) -> &AtomicU16 {
        let number = word.offset() as usize / WORD_BYTES;
        debug_assert!(number < self.words, "a word that is counted");
        &self.uses[usize::from(word.node().0) * self.words + number]
    }

    /// Counts a use more. Whether it is the only one, so that the memory node has to hear of it.
    ///
    /// # Panics
    /// If the word is not one of those counted.
    pub fn acquire(&self, word: RemoteAddr) -> bool {
        self.of(word).fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Counts a use less. Whether it was the last, so that the memory node has to hear of it.
    ///
    /// # Panics
    /// If the word is not one of those counted.
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

/// A name that an attempt uses.
struct Used {
    word: RemoteAddr,
    /// Whether this is the attempt's use of the word that is counted.
    counted: bool,
    standing: Cell<Company>,
}

/// What an attempt is to others that use a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Company {
    /// It is kept apart from them.
    Apart(LockName, LockMode),
    /// The attempt had the name already: see its first use.
    Again,
    /// It is beside another one.
    Beside,
}

/// The idealized lock as one coordinator uses it. See the module's documentation.
pub struct IdealLocks {
    lane: Lane,
    counters: Arc<Counters>,
    exclusion: Arc<Exclusion>,
    object_of: ObjectOf,
    /// Batches of releases that are under way.
    under_way: Rc<Cell<usize>>,
}

impl IdealLocks {
    /// Service over the words that `object_of` names, with the counters of the lane's node, and
    /// what all nodes share.
    pub fn new(
        lane: Lane,
        counters: Arc<Counters>,
        exclusion: Arc<Exclusion>,
        object_of: ObjectOf,
    ) -> Self {
        Self { lane, counters, exclusion, object_of, under_way: Rc::default() }
    }

    /// Whether an attempt is beside another one.
    pub fn is_beside(held: &HeldLocks) -> bool {
        held.kept::<Used>().iter().any(|used| used.standing.get() == Company::Beside)
    }

    /// Counts one more use of a name by an attempt. Returns its word, if the memory node has to
    /// hear of it.
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
        // Before the word is asked for, so that a release gives it up however this ends.
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
            // A word that a memory node has lost is not wrong any more.
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
