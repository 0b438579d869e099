//! Traces of locks: transactions as the locks that they take, for lock systems without the data.
//!
//! A [`Trace`] is a generator, or read from a file. [`TatpTrace`] and [`TpccTrace`] draw requests
//! as the workloads of these names do, and map the rows that each request uses to locks, as
//! FissLock (§7.1) and ShiftLock (§4.4) do, or DSLR (§6.1). The whole module is pure.
//!
//! `tatp`, `tpcc`: generators; `layout`: numbers of the locks of a warehouse; `file`: traces from
//! text.

mod file;
mod layout;
mod tatp;
mod tpcc;

use std::time::Duration;

use lotus_locks::Mode;
use rand::rngs::SmallRng;

pub use file::{FileTrace, TraceError};
pub use layout::LockGranularity;
pub use tatp::TatpTrace;
pub use tpcc::{Scans, TpccTrace};

/// Largest number of locks of a trace.
pub const MAX_LOCKS: u64 = 1 << 27;

/// A lock that a transaction wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WantedLock {
    /// Number of the lock.
    pub lock: u64,
    /// Mode of the lock.
    pub mode: Mode,
}

impl WantedLock {
    const fn read(lock: u64) -> Self {
        Self { lock, mode: Mode::Shared }
    }

    const fn write(lock: u64) -> Self {
        Self { lock, mode: Mode::Exclusive }
    }
}

/// One transaction of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// Index of the transaction's type in [`Trace::kinds`].
    pub kind: usize,
    /// Wanted locks, each lock once.
    pub wants: Vec<WantedLock>,
}

impl Transaction {
    /// Creates a transaction of this type. If a lock occurs twice, its first place and its stronger
    /// mode remain.
    pub fn new(kind: usize, wants: Vec<WantedLock>) -> Self {
        let mut once: Vec<WantedLock> = Vec::with_capacity(wants.len());
        let mut by_lock: Vec<(u64, usize)> =
            (0..).zip(&wants).map(|(at, w)| (w.lock, at)).collect();
        by_lock.sort_unstable();
        for (at, want) in wants.iter().enumerate() {
            let of_lock = by_lock.partition_point(|(lock, _)| *lock < want.lock);
            let same = by_lock[of_lock..].iter().take_while(|(lock, _)| *lock == want.lock);
            if by_lock[of_lock].1 < at {
                continue;
            }
            let writes = same.into_iter().any(|(_, at)| wants[*at].mode == Mode::Exclusive);
            let mode = if writes { Mode::Exclusive } else { want.mode };
            once.push(WantedLock { mode, ..*want });
        }
        Self { kind, wants: once }
    }

    /// Returns the transaction with its locks in ascending order, which prevents deadlocks between
    /// transactions.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        self.wants.sort_unstable_by_key(|want| want.lock);
        self
    }
}

/// The node of a client that wants a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// Number of the node, from 0.
    pub node: u64,
    /// Number of nodes.
    pub nodes: u64,
}

/// Transactions to come.
#[derive(Clone, Debug)]
pub enum Trace {
    /// TATP, without an end.
    Tatp(TatpTrace),
    /// TPC-C, without an end.
    Tpcc(TpccTrace),
    /// A file, repeated from the beginning after its end.
    File(FileTrace),
}

impl Trace {
    /// Number of locks; the numbers of all wanted locks are smaller.
    pub const fn locks(&self) -> u64 {
        match self {
            Self::Tatp(trace) => trace.locks(),
            Self::Tpcc(trace) => trace.locks(),
            Self::File(trace) => trace.locks(),
        }
    }

    /// Names of the types of transactions.
    pub fn kinds(&self) -> Vec<&str> {
        match self {
            Self::Tatp(_) => TatpTrace::KINDS.to_vec(),
            Self::Tpcc(trace) => trace.kinds(),
            Self::File(trace) => trace.kinds().collect(),
        }
    }

    /// Execution time of transactions of a type, if the type has its own.
    pub fn execution(&self, kind: usize) -> Option<Duration> {
        match self {
            Self::Tpcc(trace) => trace.execution(kind),
            Self::Tatp(_) | Self::File(_) => None,
        }
    }

    /// Draws the transaction with number `turn` among the transactions of all clients of all nodes.
    /// The transaction wants at least one lock.
    pub fn draw(&self, rng: &mut SmallRng, at: Origin, turn: u64) -> Transaction {
        match self {
            Self::Tatp(trace) => trace.draw(rng),
            Self::Tpcc(trace) => trace.draw(rng, at),
            Self::File(trace) => trace.nth(turn),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_comes_twice_is_wanted_once_in_the_stronger_mode() {
        let [read, write] = [WantedLock::read, WantedLock::write];
        for (given, once) in [
            (vec![], vec![]),
            (vec![read(2), read(1), read(2)], vec![read(2), read(1)]),
            (vec![read(2), write(1), write(2)], vec![write(2), write(1)]),
            (vec![write(2), read(2), read(2)], vec![write(2)]),
            (vec![read(3), read(2), write(3), write(2)], vec![write(3), write(2)]),
        ] {
            assert_eq!(Transaction::new(0, given.clone()).wants, once, "{given:?}");
        }
    }

    #[test]
    fn sorted_locks_ascend() {
        let wants = [5, 1, 9, 0].map(WantedLock::write).to_vec();
        let sorted = Transaction::new(3, wants).sorted();
        assert_eq!(sorted.kind, 3);
        assert_eq!(sorted.wants, [0, 1, 5, 9].map(WantedLock::write));
    }
}
