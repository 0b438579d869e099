//! Locks of 16 bytes: the parts of a run that only wide lock systems need.

use lotus_fabric::lane::Batch;
use lotus_fabric::verbs::Buffer;
use lotus_fabric::wide::WIDE_BYTES;

use super::{Core, Run};
use crate::contract::{Event, LockSystem, Verb, WideVerb};

impl<S: LockSystem> Run<S> {
    /// Adds a verb on both words to a batch.
    ///
    /// # Panics
    /// If the address is no multiple of sixteen.
    pub(super) fn add_wide(&self, core: &Core<S>, batch: &mut Batch, verb: Verb) -> Buffer {
        let is_aligned = self.at.offset().is_multiple_of(S::ALIGNMENT);
        assert!(is_aligned, "a lock of 16 bytes at offset {}", self.at.offset());
        match verb {
            Verb::Read => batch.read(self.at, WIDE_BYTES),
            Verb::Wide => match core.system.wide(&self.state) {
                WideVerb::Add { addend, boundary } => {
                    batch.wide_fetch_and_add(self.at, addend, boundary)
                }
                WideVerb::Swap(swap) => batch.wide_compare_and_swap(self.at, swap),
            },
            verb => unreachable!("{verb:?} is on one word"),
        }
    }

    /// Takes note of both words that a verb has found.
    pub(super) fn read_both(&mut self, words: &[u64]) -> Event {
        self.entries.clear();
        self.entries.push(words[1]);
        Event::Found(words[0])
    }
}
