//! Background transactions of a coordinator: many rows at once, fewer after a conflict.
//!
//! [Purges](crate::upkeep::purge) and [trims](crate::upkeep::trim) change many rows in one
//! transaction, which takes as many round trips as one row. If a row is in use, the whole
//! transaction fails, and smaller pieces are tried. The rows of a failed piece are put back for
//! later.
//!
//! # Unknown outcomes
//! A commit with the outcome `Unknown` goes on, or recovery settles it. Its rows are neither tried
//! again nor put back: a row that is trimmed twice loses two versions.

use std::rc::Rc;

use crate::api::error::TxnError;
use crate::node::coordinator::Coordinator;
use crate::txn::session::Session;

/// Whether the transaction must not be repeated: committed, or with an unknown outcome.
pub(crate) fn is_over(outcome: &Result<(), TxnError>) -> bool {
    matches!(outcome, Ok(()) | Err(TxnError::Unknown(_)))
}

/// Runs `work` on the whole of `due`, or else on pieces of `piece` rows; returns whether any piece
/// is over.
async fn in_pieces<T>(
    due: &[T],
    piece: usize,
    mut work: impl AsyncFnMut(&[T]) -> Result<(), TxnError>,
    mut put_back: impl FnMut(&[T]),
) -> bool {
    if is_over(&work(due).await) {
        return true;
    }
    debug_assert!(piece > 0, "I217: each row is tried again or put back");
    let mut done = false;
    for some in due.chunks(piece) {
        if is_over(&work(some).await) {
            done = true;
        } else {
            put_back(some);
        }
    }
    done
}

impl Session {
    /// Runs `work`, a transaction, on the whole of `due`, or else on pieces of `piece` rows;
    /// `put_back` takes the rows of failed pieces. Returns whether any piece is over. Counts as
    /// work of the coordinator throughout, also between two transactions, so that settling waits
    /// for the end.
    pub(crate) async fn upkeep<T>(
        &mut self,
        due: &[T],
        piece: usize,
        mut work: impl AsyncFnMut(&mut Self, &[T]) -> Result<(), TxnError>,
        mut put_back: impl FnMut(&Coordinator, &[T]),
    ) -> bool {
        let coordinator = Rc::clone(&self.slot().coordinator);
        coordinator.at_work.set(coordinator.at_work.get() + 1);
        let work = async |some: &[T]| work(self, some).await;
        let done = in_pieces(due, piece, work, |some| put_back(&coordinator, some)).await;
        debug_assert!(coordinator.at_work.get() > 0, "I15: each piece of work ends once");
        coordinator.at_work.set(coordinator.at_work.get() - 1);
        done
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use lotus_fabric::ids::{Incarnation, TxnId};

    use super::*;

    /// Runs `in_pieces` on rows 1 to 4, in pieces of two, with these outcomes. Returns every
    /// attempt, the rows put back, and the result.
    fn tried(mut outcomes: Vec<Result<(), TxnError>>) -> (Vec<Vec<u8>>, Vec<u8>, bool) {
        let (mut attempts, mut back) = (Vec::new(), Vec::new());
        let work = async |some: &[u8]| {
            attempts.push(some.to_vec());
            outcomes.remove(0)
        };
        let done = {
            let done = pin!(in_pieces(&[1, 2, 3, 4], 2, work, |some| back.extend(some)));
            done.poll(&mut Context::from_waker(Waker::noop()))
        };
        assert!(done.is_ready(), "nothing is waited for");
        (attempts, back, done == Poll::Ready(true))
    }

    #[test]
    fn rows_that_are_in_use_are_put_back_and_the_others_are_done() {
        let all = vec![1, 2, 3, 4];
        assert_eq!(tried(vec![Ok(())]), (vec![all.clone()], vec![], true));
        let failed = || Err(TxnError::Timeout);
        let pieces = || vec![all.clone(), vec![1, 2], vec![3, 4]];
        assert_eq!(tried(vec![failed(), failed(), Ok(())]), (pieces(), vec![1, 2], true));
        assert_eq!(tried(vec![failed(), failed(), failed()]), (pieces(), all.clone(), false));
    }

    #[test]
    fn rows_of_an_unknown_outcome_are_neither_tried_again_nor_put_back() {
        let all = vec![1, 2, 3, 4];
        let first = Incarnation::new(1).expect("small");
        let unknown = || Err(TxnError::Unknown(TxnId::new(first, 0, 1)));
        assert_eq!(tried(vec![unknown()]), (vec![all.clone()], vec![], true));
        let failed = || Err(TxnError::Timeout);
        let pieces = vec![all, vec![1, 2], vec![3, 4]];
        assert_eq!(tried(vec![failed(), unknown(), failed()]), (pieces, vec![3, 4], true));
    }
}
