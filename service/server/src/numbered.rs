//! Interactive transactions and scans of one connection, by the client's numbers.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::num::NonZeroUsize;

use ahash::AHasher;
use lru::LruCache;

/// Most expired transactions remembered by a connection, to tell the reason for their end.
const MOST_ENDED: NonZeroUsize = NonZeroUsize::new(256).expect("it is not zero");

type Fixed = BuildHasherDefault<AHasher>;

/// Whether a later step of a transaction gets an answer that only the transaction knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// The transaction goes on.
    Open,
    /// The transaction has expired; later steps are told so.
    Expired,
    /// The transaction has ended at its client's request.
    Over,
}

/// Transactions by number: the open transactions, and the latest expired transactions.
pub(crate) struct Numbered<T> {
    open: HashMap<u32, T, Fixed>,
    expired: LruCache<u32, T, Fixed>,
}

impl<T> Numbered<T> {
    /// Creates an empty list.
    pub(crate) fn new() -> Self {
        let expired = LruCache::with_hasher(MOST_ENDED, Fixed::default());
        Self { open: HashMap::default(), expired }
    }

    /// Returns the transaction with this number, unless forgotten.
    pub(crate) fn get(&mut self, number: u32) -> Option<&T> {
        self.open.get(&number).or_else(|| self.expired.get(&number))
    }

    /// Adds a transaction; drops an earlier transaction with the number, and transactions that are
    /// over.
    pub(crate) fn begin(&mut self, number: u32, new: T, standing: impl Fn(&T) -> Standing) {
        let ended = self.open.extract_if(|_, one| standing(one) != Standing::Open);
        for (number, one) in ended {
            if standing(&one) == Standing::Expired {
                self.expired.push(number, one);
            }
        }
        self.expired.pop(&number);
        self.open.insert(number, new);
    }

    /// Drops a transaction.
    pub(crate) fn end(&mut self, number: u32) {
        self.open.remove(&number);
        self.expired.pop(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_that_have_expired_are_remembered_and_those_that_are_over_are_not() {
        let mut numbered = Numbered::new();
        let standing = |one: &(u32, Standing)| one.1;
        for number in 0..1000 {
            let state = if number % 2 == 0 { Standing::Expired } else { Standing::Over };
            numbered.begin(number, (number, state), standing);
        }
        numbered.begin(1000, (1000, Standing::Open), standing);
        let there = (0..=1000).filter(|number| numbered.get(*number).is_some());
        let there: Vec<u32> = there.collect();
        let expected: Vec<u32> = (1000 - 512..=1000).filter(|number| number % 2 == 0).collect();
        assert_eq!(there, expected, "256 that have expired, and the one that is open");
    }

    #[test]
    fn a_number_names_the_transaction_that_got_it_last() {
        let mut numbered = Numbered::new();
        let standing = |one: &&str| match *one {
            "open" => Standing::Open,
            _ => Standing::Expired,
        };
        numbered.begin(1, "expired", standing);
        numbered.begin(2, "open", standing);
        assert_eq!(numbered.get(1), Some(&"expired"));
        assert_eq!(numbered.get(2), Some(&"open"));
        numbered.begin(1, "open", standing);
        assert_eq!(numbered.get(1), Some(&"open"));
        numbered.end(1);
        assert_eq!(numbered.get(1), None);
        assert_eq!(numbered.get(3), None);
    }
}
