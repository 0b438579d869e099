//! Spin locks on memory-node words, taken and released by compare-and-swap: what LOTUS §2.2 argues
//! against, for tests and as a baseline.
//!
//! A word holds 0 when free and the holder's transaction id otherwise; reading is exclusive like
//! writing. Names hash to words, so two names may share one: a transaction then holds it once for
//! both, and two transactions conflict without need.
//!
//! All words are tried at once. If others hold some, the lowest of those is waited for, and nothing
//! above it is kept meanwhile: of transactions that wait for one another's words, one always makes
//! progress.
//!
//! A release is a compare-and-swap from the own id too, never a plain WRITE: posted behind an
//! acquisition whose answer was not awaited, it undoes just that acquisition, and never another
//! transaction's.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::ids::RemoteAddr;
use lotus_fabric::lane::{Lane, Posted};
use lotus_fabric::verbs::VerbError;

use crate::name::{LockName, LockRequest};
use crate::service::{HeldLocks, LockError, LockService};

/// Number of rounds of retries before the transaction gives up: holding some words while spinning
/// on others could go on for ever.
const SPINS: u32 = 32;

/// Pause before a failed release is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Finds the word of a lock from the hash of its name.
pub type WordOf = Rc<dyn Fn(&LockName, u64) -> RemoteAddr>;

/// Largest number of overdue releases repeated in one batch.
const RELEASES_PER_BATCH: usize = 64;

/// Lock service on memory-node words. See the module's documentation.
#[derive(Clone)]
pub struct CasLocks {
    lane: Lane,
    word_of: WordOf,
    overdue: Rc<Overdue>,
}

/// Releases that failed: words, each with the transaction that gives it up.
#[derive(Default)]
struct Overdue {
    releases: RefCell<Vec<(RemoteAddr, u64)>>,
    /// Whether a task repeats them. One is enough, or every attempt during a partition would leave
    /// one behind.
    repeated: Cell<bool>,
}

impl CasLocks {
    /// Service over the words that `word_of` names, reached through `lane`.
    pub fn new(lane: Lane, word_of: WordOf) -> Self {
        Self { lane, word_of, overdue: Rc::default() }
    }

    fn word(&self, name: &LockName) -> RemoteAddr {
        (self.word_of)(name, name.hash())
    }
}

impl LockService for CasLocks {
    async fn acquire(
        &self,
        held: &mut HeldLocks,
        _round: u16,
        wanted: &[LockRequest],
        timeout: Duration,
    ) -> Result<(), LockError> {
        let executor = self.lane.executor();
        let deadline = executor.now().after(timeout);
        let id = held.txn().raw();
        let mut missing: Vec<(LockName, RemoteAddr)> = Vec::new();
        for LockRequest { name, .. } in wanted {
            let word = self.word(name);
            if !held.words.contains(&word) {
                held.words.push(word);
                missing.push((*name, word));
            }
        }
        missing.sort_unstable_by_key(|(_, word)| *word);
        let mut given_back = Vec::new();
        let mut tried = missing.len();
        for _ in 0..SPINS {
            let mut batch = self.lane.batch();
            for word in given_back.drain(..) {
                batch.compare_and_swap(word, id, 0);
            }
            let asked: Vec<_> = missing[..tried]
                .iter()
                .map(|(_, word)| batch.compare_and_swap(*word, 0, id))
                .collect();
            let done = batch.post().await.map_err(|_| LockError::TimedOut)?;
            let answers = asked.into_iter().map(|buffer| done.words(buffer)[0]);
            let taken: Vec<_> = answers.map(|old| old == 0 || old == id).collect();
            let got = taken.iter().take_while(|&&taken| taken).count();
            let above = missing[..tried].iter().zip(&taken).skip(got);
            given_back.extend(above.filter(|(_, taken)| **taken).map(|((_, word), _)| *word));
            // Only the word that is waited for: holding others would block other transactions.
            let all = got == tried;
            missing.drain(..got);
            if missing.is_empty() {
                return Ok(());
            }
            tried = if all { missing.len() } else { 1 };
            if executor.now() >= deadline {
                return Err(LockError::TimedOut);
            }
            executor.yield_now().await;
        }
        Err(LockError::Conflict(missing[0].0))
    }

    fn release(&self, held: &mut HeldLocks) {
        let id = held.txn().raw();
        if held.words.is_empty() {
            return;
        }
        let words: Vec<RemoteAddr> = held.words.drain(..).collect();
        let releases = words.into_iter().map(|word| (word, id)).collect::<Vec<_>>();
        let posted = release(&self.lane, &releases);
        let (lane, overdue) = (self.lane.clone(), Rc::clone(&self.overdue));
        // Not awaited by the caller: the verbs follow everything that this lane posted before.
        self.lane.executor().spawn(async move {
            if posted.await.is_err() {
                overdue.releases.borrow_mut().extend(releases);
                if !overdue.repeated.replace(true) {
                    overdue.repeat(&lane).await;
                    overdue.repeated.set(false);
                }
            }
        });
    }
}

impl Overdue {
    /// Repeats releases until all have succeeded.
    async fn repeat(&self, lane: &Lane) {
        while !self.releases.borrow().is_empty() {
            lane.executor().sleep(RETRY_PAUSE).await;
            let releases = self.releases.take();
            let mut broken = Vec::new();
            for part in releases.chunks(RELEASES_PER_BATCH) {
                // Releases on a node that has just refused have to wait until it is reconnected.
                let left = |word: &RemoteAddr| broken.contains(&word.node());
                let (wait, try_now): (Vec<_>, Vec<_>) = part.iter().partition(|r| left(&r.0));
                self.releases.borrow_mut().extend(wait);
                let Err(error) = release(lane, &try_now).await else { continue };
                let failed = |word: &RemoteAddr| {
                    error.failures().iter().any(|failure| failure.node == word.node())
                };
                self.releases.borrow_mut().extend(try_now.iter().filter(|r| failed(&r.0)));
                for failure in error.failures() {
                    broken.push(failure.node);
                    if lane.reconnect(failure.node).await == Err(VerbError::Revoked) {
                        // This node is expelled, and its locks are not its own any more.
                        return self.releases.borrow_mut().clear();
                    }
                }
            }
        }
    }
}

fn release(lane: &Lane, releases: &[(RemoteAddr, u64)]) -> Posted {
    let mut batch = lane.batch();
    for (word, id) in releases {
        batch.compare_and_swap(*word, *id, 0);
    }
    batch.post()
}
