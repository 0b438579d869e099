//! Refused interactive transactions of one connection, for their retries.
//!
//! Each attempt of an interactive transaction is a job of its own, so what the engine remembers for
//! a retry ([`RefusedLocks`]) ends with it. It is kept here until the client begins again.
//! Otherwise a transaction that reads a row first and then writes it would never commit where a
//! lock that is held to read cannot be upgraded: only an attempt that knows its writes takes them
//! at once.
//!
//! A transaction is the retry of one with the same number: `Client::run` keeps a transaction's
//! number over its attempts. Failing that, it is the retry of one that began with the same step,
//! as it is if the application tries again by itself. If two transactions begin alike, the second
//! may get what the first was refused: then it holds some locks that it does not need.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use lotus::RefusedLocks;
use xxhash_rust::xxh3::xxh3_64;

/// Most refusals that a connection remembers.
const MOST: usize = 256;
/// Most locks that they have together; a refusal with more is kept alone.
const MOST_LOCKS: usize = 1 << 14;

/// The first step of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct First {
    number: u32,
    /// Hash of all of it but the number.
    contents: u64,
}

impl First {
    /// The first step of the transaction with this number, as it was sent.
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
    /// A transaction that begins, with what an earlier attempt of it was refused.
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

/// A transaction, which may be the retry of an earlier one and may have retries.
pub(crate) struct Retry {
    of: Arc<Retries>,
    first: First,
    refusal: Option<RefusedLocks>,
}

impl Retry {
    /// Refusals of its earlier attempts, once.
    pub(crate) fn refusal(&mut self) -> Option<RefusedLocks> {
        self.refusal.take()
    }

    /// Keeps what this attempt was refused for the next one.
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
