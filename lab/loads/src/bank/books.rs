//! Notes of the clients of a bank about their transactions, for the audit.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::plan::Change;
use super::server::Balances;

/// Changes that a client is making, with the number of the request that makes the first change.
#[derive(Clone, Debug)]
struct Begun {
    first: u64,
    deltas: Vec<i64>,
}

#[derive(Default)]
struct Noted {
    /// Sum of the changes of transactions that have ended.
    ended: i128,
    /// Transactions that are changing balances, by client.
    begun: HashMap<u64, Begun>,
}

/// The books of all clients.
#[derive(Default)]
pub(super) struct Books(Mutex<Noted>);

impl Books {
    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a client begins these changes, one per request from number `first` on.
    pub(super) fn begin(&self, client: u64, first: u64, changes: &[Change]) {
        let deltas = changes.iter().map(|change| change.delta).collect();
        self.lock().begun.insert(client, Begun { first, deltas });
    }

    /// Notes that the client has completed its changes.
    pub(super) fn end(&self, client: u64) {
        let noted = &mut *self.lock();
        if let Some(begun) = noted.begun.remove(&client) {
            noted.ended += begun.deltas.into_iter().map(i128::from).sum::<i128>();
        }
    }

    /// Number of transactions that have begun to change balances and have not ended.
    pub(super) fn unfinished(&self) -> u64 {
        self.lock().begun.len() as u64
    }

    /// Sum of the balances that follows from `initial` and from all changes: the changes of ended
    /// transactions, and the changes of unfinished transactions that the server has carried out.
    pub(super) fn sum(&self, initial: i128, balances: &Balances) -> i128 {
        let noted = self.lock();
        let of = |(client, begun): (&u64, &Begun)| -> i128 {
            let made = (begun.first..).zip(&begun.deltas);
            let made = made.filter(|(number, _)| balances.has(*client, *number));
            made.map(|(_, delta)| i128::from(*delta)).sum()
        };
        initial + noted.ended + noted.begun.iter().map(of).sum::<i128>()
    }
}
