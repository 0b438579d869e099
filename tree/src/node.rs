//! Reading a node.

use std::cmp::Ordering;
use std::ops::Range;

use crate::{CHILD_BYTES, HEADER_BYTES, ROOT};

/// Flag of a node with a high fence.
pub(crate) const HAS_HIGH: u8 = 1;

/// A node, viewed in its bytes.
///
/// ```
/// use lotus_tree::{Node, Seek, edit};
///
/// let leaf = edit::with(Node::EMPTY, b"bea", b"1");
/// let leaf = edit::with(Node::read(&leaf).expect("well-formed"), b"ada", b"2");
/// let leaf = Node::read(&leaf).expect("well-formed");
/// assert_eq!(leaf.get(b"bea"), Some(&b"1"[..]));
/// assert!(leaf.covers(Seek::At(b"zoe")) && leaf.len() == 2);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node<'a> {
    bytes: &'a [u8],
}

/// Place that a search looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek<'a> {
    /// The place of this key.
    At(&'a [u8]),
    /// The place just below this key.
    Below(&'a [u8]),
    /// The place above all keys.
    Last,
}

/// Bytes of a key's [`head`].
pub(crate) const HEAD_BYTES: usize = size_of::<u32>();

/// First bytes of a key after `skipped` bytes, as a number. Of two keys that have the skipped bytes
/// in common and different heads, the lesser key has the lesser head.
#[inline]
pub(crate) fn head(key: &[u8], skipped: usize) -> u32 {
    let rest = key.get(skipped..).unwrap_or_default();
    if let Some(bytes) = rest.first_chunk() {
        return u32::from_be_bytes(*bytes);
    }
    let missing = 8 * (HEAD_BYTES - rest.len()) as u32;
    // Zeroes follow the key. The last bytes of the whole key are one load.
    let bytes = match key.last_chunk() {
        Some(bytes) => u32::from_be_bytes(*bytes),
        None => rest.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)),
    };
    bytes.checked_shl(missing).unwrap_or(0)
}

/// Whether an interval of keys that begins with `key` begins at or before a place.
#[inline]
pub(crate) fn is_before(key: &[u8], place: Seek<'_>) -> bool {
    match place {
        Seek::At(other) => order(key, other).is_le(),
        Seek::Below(other) => order(key, other).is_lt(),
        Seek::Last => true,
    }
}

/// Compares keys as slices compare, mostly by the first bytes alone.
#[inline]
fn order(key: &[u8], other: &[u8]) -> Ordering {
    match (first_word(key), first_word(other)) {
        (Some(one), Some(two)) if one != two => one.cmp(&two),
        _ => key.cmp(other),
    }
}

/// The first eight bytes of a key, as a number with the same order; `None` if the key is shorter.
#[inline]
fn first_word(key: &[u8]) -> Option<u64> {
    key.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

impl<'a> Node<'a> {
    /// The leaf of a tree without keys.
    pub const EMPTY: Node<'static> = Node { bytes: &[0; HEADER_BYTES] };

    /// Views `bytes` as a node; `None` if header, offsets and fences do not fit in `bytes`. Whether
    /// the entries are sound is checked by [`Node::is_sound`]: searches in an unsound node may miss
    /// entries, and do no other harm.
    #[inline]
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let header = bytes.first_chunk::<HEADER_BYTES>()?;
        let node = Node { bytes };
        let fences = HEADER_BYTES
            + 2 * usize::from(u16::from_le_bytes([header[2], header[3]]))
            + usize::from(header[4])
            + usize::from(header[5]);
        let sound = header[1] <= HAS_HIGH && (header[1] == HAS_HIGH || header[5] == 0);
        (sound && fences <= bytes.len()).then_some(node)
    }

    /// Whether entries lie side by side, keys ascend within the fences, and an inner node has a
    /// child for each key.
    pub fn is_sound(&self) -> bool {
        let keys = || (0..self.len()).map(|index| self.key(index));
        let ascend = keys().zip(keys().skip(1)).all(|(one, next)| one < next);
        let inside = keys().all(|key| self.covers(Seek::At(key)));
        let whole = self.is_leaf() || keys().next() == Some(self.low());
        let fences = self.high().is_none_or(|high| self.low() < high);
        self.lies_side_by_side() && ascend && inside && whole && fences
    }

    fn lies_side_by_side(&self) -> bool {
        let fences = self.low().len() + self.high().map_or(0, <[u8]>::len);
        let first = HEADER_BYTES + 2 * self.len() + fences;
        let end = (0..self.len()).try_fold(first, |end, index| {
            let (key, payload) = self.entry(index);
            let is_there = self.bytes.get(end).is_some_and(|len| usize::from(*len) == key.len());
            let is_child = self.is_leaf() || payload.len() == CHILD_BYTES;
            let follows = self.offset(index) == end && is_there && is_child;
            follows.then_some(end + 1 + key.len() + payload.len())
        });
        end == Some(self.bytes.len())
    }

    /// The node's bytes.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Number of levels below the node.
    pub const fn level(&self) -> u8 {
        self.bytes[0]
    }

    /// Whether the node has values.
    pub const fn is_leaf(&self) -> bool {
        self.level() == 0
    }

    /// Number of entries.
    pub const fn len(&self) -> usize {
        u16::from_le_bytes([self.bytes[2], self.bytes[3]]) as usize
    }

    /// Whether the node has no entry.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn offset(&self, index: usize) -> usize {
        let at = HEADER_BYTES + 2 * index;
        usize::from(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]))
    }

    /// Least key that the node is responsible for.
    #[inline]
    pub fn low(&self) -> &'a [u8] {
        let at = HEADER_BYTES + 2 * self.len();
        &self.bytes[at..at + usize::from(self.bytes[4])]
    }

    /// Least key above the keys that the node is responsible for; `None` if there is no bound.
    #[inline]
    pub fn high(&self) -> Option<&'a [u8]> {
        let at = HEADER_BYTES + 2 * self.len() + usize::from(self.bytes[4]);
        (self.bytes[1] == HAS_HIGH).then(|| &self.bytes[at..at + usize::from(self.bytes[5])])
    }

    /// Whether the node is responsible for a place.
    #[inline]
    pub fn covers(&self, place: Seek<'_>) -> bool {
        is_before(self.low(), place) && self.ends_after(place)
    }

    /// Whether a place lies below the high fence.
    #[inline]
    pub(crate) fn ends_after(&self, place: Seek<'_>) -> bool {
        self.high().is_none_or(|high| !is_before(high, place))
    }

    /// Length of the common prefix of all keys within the fences.
    #[inline]
    pub(crate) fn shared(&self) -> usize {
        let Some(high) = self.high() else { return 0 };
        let low = self.low();
        let skipped = match (first_word(low), first_word(high)) {
            (Some(one), Some(other)) if one != other => {
                return (one ^ other).leading_zeros() as usize / 8;
            }
            (Some(_), Some(_)) => size_of::<u64>(),
            _ => 0,
        };
        let pairs = low[skipped..].iter().zip(&high[skipped..]);
        skipped + pairs.take_while(|(low, high)| low == high).count()
    }

    /// [`head`] of the key of the entry at this place.
    #[inline]
    pub(crate) fn head(&self, index: usize, skipped: usize) -> u32 {
        let at = self.offset(index);
        let length = self.bytes.get(at).map_or(0, |length| usize::from(*length));
        let from = at + 1 + skipped;
        match self.bytes.get(from..from + HEAD_BYTES).and_then(|bytes| bytes.try_into().ok()) {
            Some(bytes) if length >= skipped => {
                // Bytes after the key do not count.
                let others = HEAD_BYTES.saturating_sub(length - skipped);
                let mask = u32::MAX.checked_shl(8 * others as u32).unwrap_or(0);
                u32::from_be_bytes(bytes) & mask
            }
            _ => head(self.key(index), skipped),
        }
    }

    /// Key of the entry at this place.
    ///
    /// # Panics
    /// If the entry does not exist.
    #[inline]
    pub fn key(&self, index: usize) -> &'a [u8] {
        self.entry(index).0
    }

    /// Key and payload of the entry at this place; empty if the node is not [sound](Self::is_sound)
    /// there.
    ///
    /// # Panics
    /// If the entry does not exist.
    #[inline]
    pub fn entry(&self, index: usize) -> (&'a [u8], &'a [u8]) {
        let (start, end) = (self.offset(index), self.begin(index + 1));
        let split = |entry: &'a [u8]| {
            let (length, entry) = entry.split_first()?;
            entry.split_at_checked(usize::from(*length))
        };
        self.bytes.get(start..end).and_then(split).unwrap_or_default()
    }

    /// The entries at these places as they lie side by side, encoded as the key's length in a byte,
    /// the key, and the payload. Empty if the node is not [sound](Self::is_sound) there.
    ///
    /// # Panics
    /// If the entries do not exist.
    #[inline]
    pub fn side_by_side(&self, places: Range<usize>) -> &'a [u8] {
        self.bytes.get(self.begin(places.start)..self.begin(places.end)).unwrap_or_default()
    }

    /// Offset at which the entry at this place begins; the node's end for the place behind the last
    /// entry.
    #[inline]
    pub fn begin(&self, place: usize) -> usize {
        if place == self.len() { self.bytes.len() } else { self.offset(place) }
    }

    /// Views bytes that [`Node::read`] has accepted.
    #[inline]
    pub(crate) const fn of_read(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// All entries, in ascending order of their keys.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let node = *self;
        (0..self.len()).map(move |index| node.entry(index))
    }

    /// Place of the key's entry, or, as an error, the place where it would be inserted.
    ///
    /// # Errors
    /// The place of the first entry with a greater key.
    pub fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let shared = self.shared();
        let skipped = if key.starts_with(&self.low()[..shared]) { shared } else { 0 };
        let wanted = head(key, skipped);
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            let heads = self.head(middle, skipped).cmp(&wanted);
            match heads.then_with(|| self.key(middle).cmp(key)) {
                Ordering::Equal => return Ok(middle),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Value of a key in a leaf.
    pub fn get(&self, key: &[u8]) -> Option<&'a [u8]> {
        self.find(key).ok().map(|index| self.entry(index).1)
    }

    /// Place of an inner node's child that is responsible for `place`, which the node must cover.
    pub fn child_place(&self, place: Seek<'_>) -> usize {
        let at = match place {
            Seek::At(key) => self.find(key).map_or_else(|next| next, |found| found + 1),
            Seek::Below(key) => self.find(key).unwrap_or_else(|next| next),
            Seek::Last => self.len(),
        };
        at.saturating_sub(1)
    }

    /// Number of the child at this place of an inner node.
    ///
    /// # Panics
    /// If the entry does not exist.
    #[inline]
    pub fn child(&self, index: usize) -> u64 {
        let (_, payload) = self.entry(index);
        payload.try_into().map_or(ROOT, u64::from_le_bytes)
    }
}
