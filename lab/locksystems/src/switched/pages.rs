//! Long byte strings in pages, each small enough for a datagram.
//!
//! A datagram may be lost, so a page can be sent again alone. Every page except the last has
//! [`PAGE_BYTES`]; every page names the total number of pages.

use std::collections::BTreeMap;

/// Bytes of every page except the last. Together with the headers of the request and of the RPC
/// layer, a page fits a datagram.
pub(super) const PAGE_BYTES: usize = 4_000;

/// Maximum number of bytes reported by a machine or told to a machine: about ten million requests.
pub(super) const MOST_BYTES: usize = 256 << 20;

/// A part of a byte string.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Page {
    /// Number of the page, from 0.
    pub(super) number: u32,
    /// Number of pages of the string.
    pub(super) pages: u32,
    /// Bytes of the page.
    pub(super) bytes: Vec<u8>,
}

impl Page {
    /// Returns a page of a string, if the string has so many.
    pub(super) fn of(string: &[u8], number: u32) -> Option<Self> {
        let pages = pages_of(string);
        let begin = number as usize * PAGE_BYTES;
        let end = string.len().min(begin + PAGE_BYTES);
        let bytes = (number < pages).then(|| string[begin..end].to_vec())?;
        Some(Self { number, pages, bytes })
    }

    pub(super) fn encode_to(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.pages.to_le_bytes());
        bytes.extend(&self.bytes);
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode_to(&mut bytes);
        bytes
    }

    /// Decodes a page; `None` for malformed bytes.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (pages, rest) = rest.split_first_chunk()?;
        let (number, pages) = (u32::from_le_bytes(*number), u32::from_le_bytes(*pages));
        let is_full = match pages.checked_sub(number)? {
            0 => false,
            // Only an empty string has an empty page.
            1 => rest.len() <= PAGE_BYTES && (number == 0 || !rest.is_empty()),
            _ => rest.len() == PAGE_BYTES,
        };
        is_full.then(|| Self { number, pages, bytes: rest.to_vec() })
    }
}

/// Returns the number of pages of a string, at least one.
pub(super) fn pages_of(string: &[u8]) -> u32 {
    // The number fits, because the strings sent are short enough.
    string.len().div_ceil(PAGE_BYTES).max(1) as u32
}

/// Result of adding a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Added {
    /// The page is kept; further pages are missing.
    Kept,
    /// The last missing page: returns the string.
    Whole(Vec<u8>),
    /// A page of a different string, or of a string that is too long.
    Refused,
}

/// Pages of a string under assembly, which come in any order and more than once. Memory grows with
/// the pages received, not with the number announced in a page.
#[derive(Clone, Debug)]
pub(super) struct Assembly {
    most_pages: u32,
    pages: BTreeMap<u32, Page>,
}

impl Assembly {
    /// Starts a string of at most `bytes` bytes, in whole pages.
    pub(super) const fn of_at_most(bytes: usize) -> Self {
        let most_pages = bytes.div_ceil(PAGE_BYTES) as u32;
        Self { most_pages: if most_pages == 0 { 1 } else { most_pages }, pages: BTreeMap::new() }
    }

    /// Adds a page. With the last page, the string is returned, and the next string begins.
    pub(super) fn add(&mut self, page: Page) -> Added {
        let pages = page.pages;
        let is_other = self.pages.values().next().is_some_and(|other| other.pages != pages);
        if is_other || pages > self.most_pages {
            return Added::Refused;
        }
        self.pages.entry(page.number).or_insert(page);
        if self.pages.len() < pages as usize {
            return Added::Kept;
        }
        let pages = std::mem::take(&mut self.pages).into_values();
        Added::Whole(pages.flat_map(|page| page.bytes).collect())
    }

    /// Pages that have come.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;

    fn string(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at / 7) as u8).collect()
    }

    fn all(string: &[u8]) -> Vec<Page> {
        (0..pages_of(string)).filter_map(|number| Page::of(string, number)).collect()
    }

    #[test]
    fn a_string_is_what_its_pages_are_in_any_order_and_more_than_once() {
        for bytes in [0, 1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 5 * PAGE_BYTES] {
            let string = string(bytes);
            let mut pages = all(&string);
            assert_eq!(pages.len(), bytes.div_ceil(PAGE_BYTES).max(1));
            assert_eq!(Page::of(&string, pages.len() as u32), None);
            pages.reverse();
            let last = pages.pop().expect("there is one");
            let mut assembly = Assembly::of_at_most(bytes);
            for page in pages.iter().chain(&pages) {
                assert_eq!(assembly.add(page.clone()), Added::Kept);
            }
            assert_eq!(assembly.add(last.clone()), Added::Whole(string));
            assert_eq!(assembly.len(), 0, "the next one begins");
        }
    }

    #[test]
    fn pages_are_read_as_they_were_written_and_garbage_is_refused() {
        for page in all(&string(2 * PAGE_BYTES + 9)) {
            let bytes = page.encode();
            assert_eq!(Page::decode(&bytes), Some(page.clone()));
            let is_last = page.number + 1 == page.pages;
            assert_eq!(Page::decode(&bytes[..bytes.len() - 1]).is_some(), is_last);
            assert_eq!(Page::decode(&[&bytes[..], &[0]].concat()).is_some(), is_last);
        }
        let numbered = |number: u32, pages: u32, bytes: usize| {
            Page::decode(&Page { number, pages, bytes: vec![0; bytes] }.encode())
        };
        assert_eq!(numbered(1, 1, 1), None, "beyond the last");
        assert_eq!(numbered(u32::MAX, u32::MAX, 1), None);
        assert_eq!(numbered(0, 0, 0), None);
        assert_eq!(numbered(2, 3, 0), None, "an empty page of many");
        assert_eq!(numbered(2, 3, PAGE_BYTES + 1), None);
        assert!(numbered(0, 1, 0).is_some());
        assert_eq!(Page::decode(&[0; 7]), None);
    }

    #[test]
    fn pages_of_another_string_and_of_one_that_is_too_long_are_refused() {
        let mut assembly = Assembly::of_at_most(3 * PAGE_BYTES);
        let [long, three, two] =
            [4, 3, 2].map(|pages| all(&string(pages * PAGE_BYTES)).swap_remove(0));
        assert_eq!(assembly.add(long), Added::Refused);
        assert_eq!(assembly.len(), 0);
        assert_eq!(assembly.add(three.clone()), Added::Kept);
        assert_eq!(assembly.add(two), Added::Refused);
        assert_eq!((assembly.add(three), assembly.len()), (Added::Kept, 1));
    }
}
