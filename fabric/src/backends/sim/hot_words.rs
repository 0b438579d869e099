//! Words on which atomics wait for one another.
//!
//! A NIC keeps several atomics under way, but not two on one address: the second one begins when
//! the first has left its pipeline. So a single lock is served much more slowly than many are
//! (ShiftLock §2.3, Table 3).

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

use super::nic::Server;
use super::queue::Picos;
use crate::contract::ids::RemoteAddr;

/// Number of words after which those that are free are forgotten.
const MOST_WORDS: usize = 1 << 16;

/// Words of one NIC that atomics were carried out on lately, each as a server.
#[derive(Clone, Default)]
pub(super) struct HotWords {
    words: HashMap<u64, Server, BuildHasherDefault<DefaultHasher>>,
    /// Place of the word that was busy for longest, and for how long. It is never forgotten.
    hottest: u64,
    busy: Picos,
}

impl HotWords {
    /// Queues an atomic on a word that is ready at `at` and keeps the word for `span`; returns when
    /// it begins.
    pub(super) fn admit(&mut self, addr: RemoteAddr, at: Picos, span: Picos) -> Picos {
        if self.words.len() >= MOST_WORDS {
            // Atomics arrive a little out of the order of their times: one that is ready before
            // `at` may begin too early on a word that is forgotten here.
            self.words.retain(|place, word| *place == self.hottest || !word.is_free(at));
        }
        let place = u64::from(addr.region().0) << RemoteAddr::OFFSET_BITS | addr.offset();
        let word = self.words.entry(place).or_default();
        let start = word.admit(at, span);
        if word.busy() > self.busy {
            (self.hottest, self.busy) = (place, word.busy());
        }
        start
    }

    /// Busy time of the word that was busy for longest.
    pub(super) fn busy(&self) -> Picos {
        self.busy
    }

    pub(super) fn forget_busy(&mut self) {
        self.words.values_mut().for_each(Server::forget_busy);
        self.busy = 0;
    }
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
