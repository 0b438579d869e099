//! Contended words, on which atomics queue.
//!
//! A NIC keeps several atomics under way, but not two on the same address: the second atomic begins
//! when the first has left the pipeline. So a single lock is served much more slowly than many
//! locks (ShiftLock §2.3, Table 3).
//!
//! Two atomics conflict if their bytes overlap. A 16-byte atomic takes two words, from the moment
//! when both words are free: a 16-byte atomic and an 8-byte atomic on either word wait for each
//! other, while 8-byte atomics on different words do not wait.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

use super::nic::Server;
use super::queue::Picos;
use crate::contract::ids::RemoteAddr;
use crate::contract::region::WORD_BYTES;
use crate::contract::wide::{WIDE_BYTES, WIDE_WORDS};

/// Number of words above which free words are forgotten.
const MOST_WORDS: usize = 1 << 16;

/// Words of a NIC with recent atomics; every word is modelled as a server.
#[derive(Clone, Default)]
pub(super) struct HotWords {
    words: HashMap<u64, Server, BuildHasherDefault<DefaultHasher>>,
    /// Place and busy time of the word with the longest busy time, which is never forgotten.
    hottest: u64,
    busy: Picos,
}

impl HotWords {
    /// Queues an atomic that is ready at `at` and keeps the word for `span`; returns the time at
    /// which the atomic begins.
    pub(super) fn admit(&mut self, addr: RemoteAddr, at: Picos, span: Picos) -> Picos {
        self.admit_at(place_of(addr), at, span)
    }

    /// Like [`HotWords::admit`], for a 16-byte atomic.
    pub(super) fn admit_wide(&mut self, addr: RemoteAddr, at: Picos, span: Picos) -> Picos {
        // Rounds a misaligned address down; such a verb is refused when its service begins.
        let first = place_of(addr) / WIDE_BYTES as u64 * WIDE_BYTES as u64;
        let places: [u64; WIDE_WORDS] = [first, first + WORD_BYTES as u64];
        let words = places.iter().filter_map(|place| self.words.get(place));
        let both_free = words.map(|word| word.free_at()).fold(at, Picos::max);
        for place in places {
            self.admit_at(place, both_free, span);
        }
        both_free
    }

    /// Queues an atomic on the word at `place`.
    fn admit_at(&mut self, place: u64, at: Picos, span: Picos) -> Picos {
        if self.words.len() >= MOST_WORDS {
            // Atomics arrive slightly out of time order: a later atomic that is ready before `at`
            // may begin too early on a forgotten word.
            self.words.retain(|place, word| *place == self.hottest || !word.is_free(at));
        }
        let word = self.words.entry(place).or_default();
        let start = word.admit(at, span);
        if word.busy() > self.busy {
            (self.hottest, self.busy) = (place, word.busy());
        }
        start
    }

    /// Returns the longest busy time of any word.
    pub(super) fn busy(&self) -> Picos {
        self.busy
    }

    pub(super) fn forget_busy(&mut self) {
        self.words.values_mut().for_each(Server::forget_busy);
        self.busy = 0;
    }
}

/// Returns the number of a byte among the bytes of its node's regions.
fn place_of(addr: RemoteAddr) -> u64 {
    u64::from(addr.region().0) << RemoteAddr::OFFSET_BITS | addr.offset()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::ids::{NodeId, RegionId};

    #[test]
    fn atomics_on_one_word_wait_for_one_another_and_others_do_not() {
        let word = |index: u64| RemoteAddr::new(NodeId(0), RegionId(0), 8 * index);
        let mut words = HotWords::default();
        let starts = [(1, 10), (2, 10), (1, 12), (1, 50)]
            .map(|(index, at)| words.admit(word(index), at, 20));
        assert_eq!((starts, words.busy()), ([10, 10, 30, 50], 60));
        words.forget_busy();
        assert_eq!((words.admit(word(1), 50, 20), words.busy()), (70, 20));
    }

    #[test]
    fn an_atomic_on_two_words_waits_for_both_and_those_on_either_wait_for_it() {
        let word = |index: u64| RemoteAddr::new(NodeId(0), RegionId(0), 8 * index);
        let mut words = HotWords::default();
        // The words of another pair are not in the way, nor is one word of a pair in the other's.
        assert_eq!([3, 4, 5].map(|index| words.admit(word(index), 10, 20)), [10, 10, 10]);
        assert_eq!(words.admit_wide(word(2), 12, 20), 30, "for the upper word");
        assert_eq!([2, 3, 4].map(|index| words.admit(word(index), 13, 20)), [50, 50, 30]);
        assert_eq!(words.admit_wide(word(2), 13, 20), 70);
        assert_eq!(words.admit(word(2), 13, 20), 90);
        assert_eq!(words.admit_wide(word(2), 13, 20), 110, "for the lower word");
        assert_eq!(words.admit_wide(word(6), 13, 20), 13);
        assert_eq!(words.busy(), 100, "the first word of the pair, five times");
    }

    #[test]
    fn words_of_an_address_that_is_refused_stay_in_their_region() {
        let mut words = HotWords::default();
        words.admit_wide(RemoteAddr::new(NodeId(0), RegionId(0), RemoteAddr::MAX_OFFSET), 1, 20);
        assert_eq!(words.admit(RemoteAddr::new(NodeId(0), RegionId(1), 0), 2, 20), 2);
    }

    #[test]
    fn words_that_are_free_are_forgotten_and_the_hottest_is_not() {
        let word = |index: u64| RemoteAddr::new(NodeId(0), RegionId(0), 8 * index);
        let mut words = HotWords::default();
        for index in 1..=2 * MOST_WORDS as u64 {
            words.admit(word(0), index, 1);
            words.admit(word(index), index, 1);
        }
        assert!(words.words.len() <= MOST_WORDS);
        assert_eq!(words.busy(), 2 * MOST_WORDS as u64, "the hot word has lost nothing");
    }

    /// Regression: none of them was forgotten, and all were looked at for each further atomic.
    #[test]
    fn words_that_are_used_once_are_forgotten_too() {
        let mut words = HotWords::default();
        for index in 0..2 * MOST_WORDS as u64 {
            words.admit(RemoteAddr::new(NodeId(0), RegionId(0), 8 * index), 10 * index, 5);
            assert!(words.words.len() <= MOST_WORDS, "after {index}");
        }
    }
}
