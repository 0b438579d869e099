//! Errors of an attempt, as its caller gets them.

use lotus_sabotage::{Rule, any_broken, broken};

use crate::api::error::TxnError;
use crate::txn::body::Body;

impl Body {
    /// The error of an execution or a commit, in the caller's terms. The number of a node is none
    /// of the application's keys: that it is taken, by a row or by the hash of another, is a
    /// conflict, and the next attempt has another number.
    #[cold]
    pub(crate) fn explained(&self, error: TxnError) -> TxnError {
        let (table, key, exists) = match error {
            TxnError::AlreadyExists { table, key } => (table, key, true),
            TxnError::KeyCollision { table, key } => (table, key, false),
            error => return error,
        };
        if !self.table(table).def.is_ordered() || broken(Rule::NodeNumbersAreNew) {
            return error;
        }
        debug_assert!(!exists || any_broken(), "I313: a new node has a number that no row has");
        TxnError::Conflict { table, key }
    }
}
