//! Pages: nodes of the tree as stored in remote memory, with fields that prove a page was read
//! whole.
//!
//! # Words
//! ```text
//! 0    version:16 | level:8 | has a high fence:8 | bytes of an inner node:32     (the front)
//! 1    number of the right sibling, or 0, the root's, which is no sibling
//! 2, 3 low fence, high fence
//! 4    check of words 0 to 3, and of the bytes of an inner node
//! 5..  slots of a leaf, or the bytes of an inner node, as crate `lotus-tree` has them
//! 127  the front again                                                            (the rear)
//! ```
//! Each WRITE of the whole page raises the version, which is never 0. Sherman compares front and
//! rear, which is enough if the words of a READ or WRITE move in ascending order. The fabric
//! promises no order, so each page also has a check, and each slot of a leaf has the version.
//!
//! # Spares
//! Behind each page lies its spare, with room for another page. A page is overwritten in three
//! steps: the next state is written to the spare, then to the page, and then the front of the spare
//! is zeroed. The three WRITEs are in one batch, and take effect in this order. So at whatever step
//! the lane is lost, either the page is whole or the spare is ([`mended`]).

use super::leaf;

/// Words of a page.
pub(super) const WORDS: usize = 128;
/// Bytes of a page.
pub(super) const BYTES: usize = 8 * WORDS;
/// Words before the contents of a page.
pub(super) const HEAD: usize = 5;
/// The last word.
const REAR: usize = WORDS - 1;
/// Most bytes of an inner node.
pub(super) const INNER_BYTES: usize = 8 * (REAR - HEAD);

/// The words of a page.
pub(super) type Image = [u64; WORDS];

/// Description of a page, stored in the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    /// Number of times that the page was written as a whole; wraps around, and is never 0.
    pub(super) version: u16,
    /// Number of levels below the page.
    pub(super) level: u8,
    /// Page to the right, which begins at the high fence.
    pub(super) sibling: Option<u64>,
    /// Least key that the page is responsible for.
    pub(super) low: u64,
    /// Least key above the keys that the page is responsible for; `None` if there is no bound.
    pub(super) high: Option<u64>,
}

impl Head {
    /// Whether the page is responsible for a key.
    pub(super) fn covers(&self, key: u64) -> bool {
        self.low <= key && !self.is_left_of(key)
    }

    /// Whether a page to the right is responsible for a key.
    pub(super) fn is_left_of(&self, key: u64) -> bool {
        self.high.is_some_and(|high| high <= key)
    }

    /// The next version.
    pub(super) const fn next_version(&self) -> u16 {
        if self.version == u16::MAX { 1 } else { self.version + 1 }
    }

    fn front(&self, bytes: usize) -> u64 {
        let [version, level] = [u64::from(self.version), u64::from(self.level)];
        version << 48 | level << 40 | u64::from(self.high.is_some()) << 32 | bytes as u64
    }
}

/// Adds a word to a check.
pub(super) const fn mix(check: u64, word: u64) -> u64 {
    let mixed = (check.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 32
}

fn check(words: &[u64], inner_words: usize) -> u64 {
    let inner = &words[HEAD..HEAD + inner_words];
    words[..HEAD - 1].iter().chain(inner).fold(1, |check, word| mix(check, *word))
}

/// Page with a head and without contents; `bytes` is the length of the inner node that follows.
fn headed(head: &Head, bytes: usize) -> Image {
    let mut words = [0; WORDS];
    words[0] = head.front(bytes);
    words[1] = head.sibling.unwrap_or(0);
    words[2] = head.low;
    words[3] = head.high.unwrap_or(0);
    words[REAR] = words[0];
    words
}

/// Builds the page of a leaf; `fill` writes the slots.
pub(super) fn of_leaf(head: &Head, fill: impl FnOnce(&mut [u64])) -> Image {
    let mut words = headed(head, 0);
    words[HEAD - 1] = check(&words, 0);
    fill(&mut words[HEAD..REAR]);
    words
}

/// Builds the page of an inner node.
///
/// # Panics
/// If the node has more than [`INNER_BYTES`].
pub(super) fn of_inner(head: &Head, bytes: &[u8]) -> Image {
    assert!(bytes.len() <= INNER_BYTES, "an inner node fits a page");
    let mut words = headed(head, bytes.len());
    for (word, part) in words[HEAD..].iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..part.len()].copy_from_slice(part);
        *word = u64::from_le_bytes(whole);
    }
    words[HEAD - 1] = check(&words, bytes.len().div_ceil(8));
    words
}

/// Reads the head of a page, if all words under the head's check were read whole: the complete
/// inner node, or everything but the slots of a leaf.
pub(super) fn read_head(words: &[u64]) -> Option<(Head, usize)> {
    let (front, bytes) = (words[0], words[0] as u32 as usize);
    let sound = front != 0 && front == words[REAR] && bytes <= INNER_BYTES;
    if !sound || check(words, bytes.div_ceil(8)) != words[HEAD - 1] {
        return None;
    }
    let has_high = (front >> 32) as u8 != 0;
    let head = Head {
        version: (front >> 48) as u16,
        level: (front >> 40) as u8,
        sibling: (words[1] != 0).then_some(words[1]),
        low: words[2],
        high: has_high.then_some(words[3]),
    };
    Some((head, bytes))
}

/// Bytes of an inner node.
pub(super) fn inner_bytes(words: &[u64], bytes: usize) -> Vec<u8> {
    let words = &words[HEAD..HEAD + bytes.div_ceil(8)];
    let mut all: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    all.truncate(bytes);
    all
}

/// Whether a page was read whole.
pub(super) fn is_whole(words: &[u64]) -> bool {
    match read_head(words) {
        Some((head, _)) if head.level == 0 => leaf::are_whole(&head, &words[HEAD..REAR]),
        Some(_) => true,
        None => false,
    }
}

/// Words of a leaf's page that are its slots.
pub(super) fn slots(words: &[u64]) -> &[u64] {
    &words[HEAD..REAR]
}

/// Repairs the state of a page left by its previous holder, for the next holder. `None` if the page
/// is whole and the spare zeroed: no repair is needed.
///
/// A whole spare is the next state of the page, which perhaps was not written. A torn spare was
/// being written, so the page was not touched. In a torn slot the value was being replaced: the key
/// was not touched, and the value is either the old or the new value.
///
/// # Errors
/// Neither the page nor the spare can be read: both were written without the lock.
pub(super) fn mended(page: &[u64], spare: &[u64]) -> Result<Option<Image>, Lost> {
    if spare[0] == 0 && is_whole(page) {
        return Ok(None);
    }
    let mut image = [0; WORDS];
    if spare[0] != 0 && is_whole(spare) {
        image.copy_from_slice(&spare[..WORDS]);
        return Ok(Some(image));
    }
    image.copy_from_slice(&page[..WORDS]);
    match read_head(page) {
        Some((head, _)) if head.level == 0 => {
            leaf::mend(&head, &mut image[HEAD..REAR]);
        }
        Some(_) => {}
        None => return Err(Lost),
    }
    if is_whole(&image) { Ok(Some(image)) } else { Err(Lost) }
}

/// Neither a page nor its spare is whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lost;
