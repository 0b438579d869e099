//! Sherman's leaves: slots in any order, so that a single slot can be written alone.
//!
//! # Slots
//! Three words: key, value, and
//! ```text
//! version of the page:16 | version of the entry:16 | check of the slot:32
//! ```
//! An entry of version 0 is empty, whatever key and value are; its check is 0. The value of an
//! entry is replaced by one WRITE of the last two words. A new entry is written by two WRITEs of
//! one batch, which take effect in order: key and value first, then the third word. So at any time
//! either the whole slot is consistent, or the key is and the value is the old or the new value.
//!
//! An entry keeps its slot until the page is written as a whole. Entries are never deleted.
//!
//! # A READ of a leaf
//! Each slot has to be whole and of the page's version. Then all words were read while the page had
//! this version, so fences and slots belong together, and each slot shows its state at some time
//! during the READ. So a key without a slot was not in the tree when the READ began.

use super::page::{self, HEAD, Head, Image, mix};

/// Words of a slot.
const SLOT: usize = 3;
/// Entries of a leaf.
pub(super) const SLOTS: usize = 40;
/// Entries of a leaf when the tree is made.
pub(super) const FILLED: usize = 32;

/// A leaf that was read whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf<'a> {
    head: Head,
    slots: &'a [u64],
}

/// Words to be written, and the word of the page at which they begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) at: usize,
    pub(super) words: [u64; 2],
    pub(super) len: usize,
}

/// WRITEs that put an entry into a leaf.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Put {
    /// The value of an entry is replaced: one WRITE.
    Replace(Piece),
    /// An entry is added: two WRITEs, in this order.
    Add([Piece; 2]),
    /// The leaf has no room and has to be split.
    Full,
}

/// The halves of a leaf.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Split {
    /// The lower half, in the place of the leaf.
    pub(super) left: Image,
    /// Least key of the upper half.
    pub(super) separator: u64,
    /// The upper half, a new page.
    pub(super) right: Image,
}

const fn entry_version(meta: u64) -> u16 {
    (meta >> 32) as u16
}

/// The third word of a slot.
fn meta(page_version: u16, entry_version: u16, key: u64, value: u64) -> u64 {
    let versions = u64::from(page_version) << 48 | u64::from(entry_version) << 32;
    if entry_version == 0 {
        return versions;
    }
    versions | mix(mix(mix(1, versions), key), value) >> 32
}

const fn next(version: u16) -> u16 {
    if version == u16::MAX { 1 } else { version + 1 }
}

fn each(slots: &[u64]) -> &[[u64; SLOT]] {
    &slots.as_chunks::<SLOT>().0[..SLOTS]
}

/// Returns whether all slots are whole and of the page's version.
pub(super) fn are_whole(head: &Head, slots: &[u64]) -> bool {
    each(slots).iter().all(|[key, value, found]| {
        *found == meta(head.version, entry_version(*found), *key, *value)
    })
}

/// Repairs the slots in which a value was being replaced.
pub(super) fn mend(head: &Head, slots: &mut [u64]) {
    for slot in &mut slots.as_chunks_mut::<SLOT>().0[..SLOTS] {
        let [key, value, found] = *slot;
        if (found >> 48) as u16 == head.version {
            slot[2] = meta(head.version, entry_version(found), key, value);
        }
    }
}

/// Builds a leaf with these entries, at most [`SLOTS`].
pub(super) fn of(head: &Head, entries: &[(u64, u64)]) -> Image {
    assert!(entries.len() <= SLOTS, "the entries fit a leaf");
    page::of_leaf(head, |slots| {
        for (index, slot) in slots.as_chunks_mut::<SLOT>().0[..SLOTS].iter_mut().enumerate() {
            *slot = match entries.get(index) {
                Some(&(key, value)) => [key, value, meta(head.version, 1, key, value)],
                None => [0, 0, meta(head.version, 0, 0, 0)],
            };
        }
    })
}

impl<'a> Leaf<'a> {
    /// Views a page; `None` if the page was not read whole, or is no leaf.
    pub(super) fn read(words: &'a [u64]) -> Option<Self> {
        let (head, _) = page::read_head(words)?;
        let slots = page::slots(words);
        (head.level == 0 && are_whole(&head, slots)).then_some(Self { head, slots })
    }

    /// The page's head.
    pub(super) const fn head(&self) -> Head {
        self.head
    }

    /// Entries in the order of their slots.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let used = each(self.slots).iter().filter(|[_, _, meta]| entry_version(*meta) != 0);
        used.map(|[key, value, _]| (*key, *value))
    }

    /// Value of a key.
    pub(super) fn get(&self, key: u64) -> Option<u64> {
        self.entries().find(|(found, _)| *found == key).map(|(_, value)| value)
    }

    /// Returns the WRITEs that put an entry.
    pub(super) fn put(&self, key: u64, value: u64) -> Put {
        let version = self.head.version;
        let mut free = None;
        for (index, [found, _, old]) in each(self.slots).iter().enumerate() {
            let of_entry = entry_version(*old);
            if of_entry == 0 {
                free = free.or(Some(index));
            } else if *found == key {
                let new = meta(version, next(of_entry), key, value);
                let at = HEAD + SLOT * index + 1;
                return Put::Replace(Piece { at, words: [value, new], len: 2 });
            }
        }
        let Some(index) = free else { return Put::Full };
        let (at, new) = (HEAD + SLOT * index, meta(version, 1, key, value));
        Put::Add([
            Piece { at, words: [key, value], len: 2 },
            Piece { at: at + 2, words: [new, 0], len: 1 },
        ])
    }

    /// Splits a full leaf and adds an entry; the upper half becomes the page `right`.
    pub(super) fn split(&self, key: u64, value: u64, right: u64) -> Split {
        self.halves(self.entries().chain([(key, value)]).collect(), right)
    }

    /// Splits the leaf, given its entries, at least two.
    pub(super) fn halves(&self, mut entries: Vec<(u64, u64)>, right: u64) -> Split {
        entries.sort_unstable();
        let (lower, upper) = entries.split_at(entries.len() / 2);
        let separator = upper[0].0;
        let head = self.head;
        let left = Head {
            version: head.next_version(),
            sibling: Some(right),
            high: Some(separator),
            ..head
        };
        let new = Head { version: 1, low: separator, ..head };
        Split { left: of(&left, lower), separator, right: of(&new, upper) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::page::{WORDS, is_whole, mended};
    use super::*;

    const HEAD_OF_ALL: Head =
        Head { version: 7, level: 0, sibling: Some(9), low: 0, high: Some(1000) };

    fn leaf_of(entries: usize) -> Image {
        let entries: Vec<_> = (0..entries as u64).map(|key| (10 * key, 100 + key)).collect();
        of(&HEAD_OF_ALL, &entries)
    }

    fn written(image: &Image, pieces: &[Piece]) -> Image {
        let mut image = *image;
        for piece in pieces {
            image[piece.at..piece.at + piece.len].copy_from_slice(&piece.words[..piece.len]);
        }
        image
    }

    fn pieces(put: &Put) -> &[Piece] {
        match put {
            Put::Replace(piece) => std::slice::from_ref(piece),
            Put::Add(pieces) => pieces,
            Put::Full => &[],
        }
    }

    #[test]
    fn entries_are_put_and_found() {
        for (count, key, found) in
            [(0, 5, None), (3, 20, Some(102)), (3, 21, None), (39, 5, None), (40, 390, Some(139))]
        {
            let image = leaf_of(count);
            let leaf = Leaf::read(&image).expect("whole");
            assert_eq!(leaf.get(key), found);
            let put = leaf.put(key, 5555);
            assert_eq!(matches!(put, Put::Replace(_)), found.is_some(), "{put:?}");
            let next = written(&image, pieces(&put));
            let leaf = Leaf::read(&next).expect("whole");
            assert_eq!(leaf.get(key), Some(5555));
            let others = leaf.entries().filter(|(other, _)| *other != key).count();
            assert_eq!(others, count - usize::from(found.is_some()));
        }
        assert_eq!(Leaf::read(&leaf_of(SLOTS)).expect("whole").put(5, 1), Put::Full);
    }

    #[test]
    fn an_entry_is_replaced_any_number_of_times() {
        let mut image = leaf_of(1);
        for value in 0..70_000 {
            let put = Leaf::read(&image).expect("whole").put(0, value);
            assert!(matches!(put, Put::Replace(_)), "{put:?}");
            image = written(&image, pieces(&put));
        }
        assert_eq!(Leaf::read(&image).expect("whole").get(0), Some(69_999));
    }

    #[test]
    fn a_full_leaf_is_split_at_its_middle() {
        for added in [5, 205, 395] {
            let image = leaf_of(SLOTS);
            let leaf = Leaf::read(&image).expect("whole");
            let Split { left, separator, right } = leaf.split(added, 1, 33);
            let (left, right) =
                (Leaf::read(&left).expect("whole"), Leaf::read(&right).expect("whole"));
            assert_eq!((left.head.low, left.head.high), (0, Some(separator)));
            assert_eq!((right.head.low, right.head.high), (separator, Some(1000)));
            assert_eq!((left.head.sibling, right.head.sibling), (Some(33), Some(9)));
            assert_eq!(left.head.version, 8);
            let [lower, upper] = [left, right].map(|leaf| leaf.entries().collect::<Vec<_>>());
            assert!(lower.iter().all(|(key, _)| *key < separator));
            assert!(upper.iter().all(|(key, _)| *key >= separator));
            let mut all: Vec<_> = leaf.entries().chain([(added, 1)]).collect();
            all.sort_unstable();
            assert_eq!([lower, upper].concat(), all);
        }
    }

    /// The page with some words of the next state.
    fn torn(old: &Image, new: &Image, landed: &[bool]) -> Image {
        std::array::from_fn(|word| if landed[word] { new[word] } else { old[word] })
    }

    proptest! {
        /// A READ beside WRITEs shows the old page, the new one, or that it is in pieces.
        #[test]
        fn pieces_of_two_states_are_told_from_a_page(
            landed in proptest::collection::vec(any::<bool>(), WORDS),
            count in 1_usize..SLOTS,
            splits in any::<bool>(),
        ) {
            let old = leaf_of(if splits { SLOTS } else { count });
            let leaf = Leaf::read(&old).expect("whole");
            let new = match leaf.put(5, 77) {
                Put::Full => leaf.split(5, 77, 33).left,
                put => written(&old, pieces(&put)),
            };
            let seen = torn(&old, &new, &landed);
            if let Some(leaf) = Leaf::read(&seen) {
                let all = |leaf: Leaf<'_>| leaf.entries().collect::<Vec<_>>();
                let of = |image: &Image| all(Leaf::read(image).expect("whole"));
                let found = all(leaf);
                prop_assert!(found == of(&old) || found == of(&new), "{found:?}");
            }
        }

        /// Whatever part of a replacement has landed, the next holder makes the leaf whole.
        #[test]
        fn a_value_that_was_being_replaced_is_the_old_one_or_the_new_one(
            landed in proptest::collection::vec(any::<bool>(), WORDS),
        ) {
            let old = leaf_of(30);
            let put = Leaf::read(&old).expect("whole").put(20, 77);
            let left = torn(&old, &written(&old, pieces(&put)), &landed);
            let mended = mended(&left, &[0; WORDS]).expect("it can be");
            let image = mended.unwrap_or(left);
            let value = Leaf::read(&image).expect("whole").get(20).expect("it stays");
            prop_assert!(value == 77 || value == 102, "{value}");
        }

        /// Whatever part of a WRITE of the whole page has landed, in the spare or in the page, the
        /// next holder has the old page or the new one.
        #[test]
        fn a_page_that_was_being_written_is_the_old_one_or_the_new_one(
            landed in proptest::collection::vec(any::<bool>(), WORDS),
            step in 0..3,
        ) {
            let old = leaf_of(SLOTS);
            let new = Leaf::read(&old).expect("whole").split(5, 77, 33).left;
            let nothing = [0; WORDS];
            let (page, spare) = match step {
                0 => (old, torn(&nothing, &new, &landed)),
                1 => (torn(&old, &new, &landed), new),
                _ => (new, torn(&new, &nothing, &std::array::from_fn::<_, WORDS, _>(|at| at == 0))),
            };
            let image = mended(&page, &spare).expect("it can be").unwrap_or(page);
            prop_assert!(is_whole(&image));
            prop_assert!(image == old || image == new);
            prop_assert!(step == 0 || image == new);
        }
    }
}
