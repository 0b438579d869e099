//! Refused locks of a connection's interactive transactions, for retries.
//!
//! Every attempt of an interactive transaction is a separate job, so the engine's memory of refused
//! locks ([`RefusedLocks`]) ends with the attempt. The connection keeps the refused locks until the
//! client begins again. Otherwise a transaction that reads a row before writing the row would never
//! commit if a read lock cannot be upgraded: only an attempt with known writes takes the write
//! locks at once.
//!
//! A transaction is a retry of a transaction with the same number: `Client::run` keeps a
//! transaction's number over its attempts. Failing that, the transaction is a retry of a
//! transaction with the same first step, as when the application tries again. If two transactions
//! begin alike, the second may get the refused locks of the first: then the second transaction
//! holds some unneeded locks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use lotus::RefusedLocks;
use xxhash_rust::xxh3::xxh3_64;

/// Most refusals that a connection remembers.
const MOST: usize = 256;
/// Most locks of all refusals together; a refusal with more locks is kept alone.
const MOST_LOCKS: usize = 1 << 14;

/// The first step of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct First {
    number: u32,
    /// Hash of the step without the number.
    contents: u64,
}

impl First {
    /// Returns the first step of the transaction with this number, from its encoded message.
    pub(crate) fn of(number: u32, message: &[u8]) -> Self {
        // The number stands behind the operation's tag, seven bits to a byte.
        let tail = message.get(1..).unwrap_or_default();
        let digits = tail.iter().take_while(|byte| **byte & 0x80 != 0).count() + 1;
        Self { number, contents: xxh3_64(tail.get(digits..).unwrap_or_default()) }
    }
}

/// Refusals by the transactions' first steps, the latest last.
#[derive(Debug, Default)]
pub(crate) struct Retries(Mutex<VecDeque<(First, RefusedLocks)>>);

impl Retries {
    /// Begins a transaction, with the refused locks of an earlier attempt.
    pub(crate) fn begin(self: &Arc<Self>, first: First) -> Retry {
        Retry { refusal: self.take(first), of: Arc::clone(self), first }
    }

    fn take(&self, first: First) -> Option<RefusedLocks> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = |is_it: &dyn Fn(&First) -> bool| kept.iter().rposition(|(one, _)| is_it(one));
        let by_number = place(&|one| one.number == first.number);
        let place = by_number.or_else(|| place(&|one| one.contents == first.contents))?;
        kept.remove(place).map(|(_, refusal)| refusal)
    }

    fn keep(&self, first: First, refusal: RefusedLocks) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(one, _)| one.number != first.number);
        kept.push_back((first, refusal));
        let locks = |(_, refusal): &(First, RefusedLocks)| refusal.lock_count();
        let mut all: usize = kept.iter().map(locks).sum();
        while kept.len() > 1 && (kept.len() > MOST || all > MOST_LOCKS) {
            all -= kept.pop_front().as_ref().map_or(0, locks);
        }
    }
}

/// A transaction, possibly the retry of an earlier transaction and possibly with later retries.
pub(crate) struct Retry {
    of: Arc<Retries>,
    first: First,
    refusal: Option<RefusedLocks>,
}

impl Retry {
    /// Takes the refused locks of earlier attempts, once.
    pub(crate) fn refusal(&mut self) -> Option<RefusedLocks> {
        self.refusal.take()
    }

    /// Keeps the refused locks of this attempt for the next attempt.
    pub(crate) fn keep(&self, refusal: RefusedLocks) {
        self.of.keep(self.first, refusal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_protocol::messages::{Action, Begin, Bytes, Kind, Op, Step, StepEnd};

    fn first(number: u32, key: &[u8]) -> First {
        let begin = Some(Begin { kind: Kind::Serializable, shard: None });
        let actions = vec![Action::Read { table: 0, key: Bytes(key) }];
        let step = Step { txn: number, begin, actions, end: StepEnd::Execute };
        let mut message = Vec::new();
        lotus_protocol::frame::write(&mut message, &Op::Step(step));
        First::of(number, &message)
    }

    #[test]
    fn first_steps_that_differ_in_their_number_alone_are_alike() {
        for number in [0, 1, 127, 128, 1 << 20, u32::MAX] {
            assert_eq!(first(number, b"key").contents, first(7, b"key").contents, "{number}");
            assert_ne!(first(number, b"key").contents, first(number, b"kex").contents);
        }
    }
}
