//! Spin locks on memory-node words, taken and released by compare-and-swap: what LOTUS §2.2
//! argues against, for tests and as a baseline.
//!
//! A word holds 0 when free and the holder's transaction id otherwise; reading is exclusive like
//! writing. Names hash to words, so two names may share one: a transaction then holds it once for
//! both, and two transactions conflict without need.
//!
//! A release is a compare-and-swap from the own id too, never a plain WRITE: posted behind an
//! acquisition whose answer nobody waited for, it undoes just that, and never somebody else's.

use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::ids::RemoteAddr;
use lotus_fabric::lane::{Lane, Posted};
use lotus_fabric::verbs::VerbError;

use crate::name::{LockName, LockRequest};
use crate::service::{HeldLocks, LockError, LockService};

/// How often the words that are taken are tried again before the transaction gives up: holding
/// some while spinning on others could go on for ever.
const SPINS: u32 = 32;

/// How long a release waits before it tries again where it failed.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Finds the word of a lock from the hash of its name.
pub type WordOf = Rc<dyn Fn(&LockName, u64) -> RemoteAddr>;

/// See the module's essay.
#[derive(Clone)]
pub struct CasLocks {
    lane: Lane,
    word_of: WordOf,
}

impl CasLocks {
    /// Locks in the words that `word_of` names, reached through `lane`.
    pub fn new(lane: Lane, word_of: WordOf) -> Self {
        Self { lane, word_of }
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
        for _ in 0..SPINS {
            let mut batch = self.lane.batch();
            let asked: Vec<_> =
                missing.iter().map(|(_, word)| batch.compare_and_swap(*word, 0, id)).collect();
            let done = batch.post().await.map_err(|_| LockError::TimedOut)?;
            let mut answers = asked.into_iter().map(|buffer| done.words(buffer)[0]);
            missing.retain(|_| answers.next().is_some_and(|old| old != 0 && old != id));
            if missing.is_empty() {
                return Ok(());
            }
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
        let posted = release(&self.lane, &words, id);
        let lane = self.lane.clone();
        // Nobody waits for it: the verbs follow everything that this lane posted before.
        self.lane.executor().spawn(async move {
            let mut outcome = posted.await;
            while let Err(error) = outcome {
                lane.executor().sleep(RETRY_PAUSE).await;
                for failure in error.failures() {
                    if lane.reconnect(failure.node).await == Err(VerbError::Revoked) {
                        // This node is out, and its locks are not its own any more.
                        return;
                    }
                }
                outcome = release(&lane, &words, id).await;
            }
        });
    }
}

fn release(lane: &Lane, words: &[RemoteAddr], id: u64) -> Posted {
    let mut batch = lane.batch();
    for word in words {
        batch.compare_and_swap(*word, id, 0);
    }
    batch.post()
}
