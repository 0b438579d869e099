//! The words of a DecLock lock: a header, and the entries of a circular queue.
//!
//! ```text
//! generation (G bits) | head (Q) | size (N) | writers (N) | resetting (1)
//! mode (1) | version (16) | timestamp (16) | waiter (24)
//! ```
//!
//! For a queue of 2^c entries, N = c + 1, Q = c + 17, and the generation has the remaining bits: 35
//! for 8 entries, 11 for 2,048. *Head* counts the releases, *size* the holders and waiters,
//! *writers* the writers among them. A request's *index* is head plus size before the request; an
//! index is never reused within a generation. The request's entry is the entry at the index modulo
//! the capacity. Only waiters write an entry.
//!
//! An entry's version is the lap of the index around the queue, plus one, so a zeroed entry was
//! never written. Indexes of the last laps are not given ([`DeclockFields::arrived`]): versions do
//! not wrap, and the head does not overflow into the generation.
//!
//! The timestamp is the time of the request if the clients of a node share locks (DecLock §5.3),
//! and zero if every client asks for itself.

use lotus_sabotage::{Rule, broken};

use super::{Head, Mode};

const WRITERS_SHIFT: u32 = 1;
/// Number of bits by which the head is longer than an index into the queue.
const LAP_BITS: u32 = 17;
const VERSION_BITS: u32 = 16;
const TIMESTAMP_BITS: u32 = 16;
const WAITER_BITS: u32 = 24;
const TIMESTAMP_SHIFT: u32 = WAITER_BITS;
const VERSION_SHIFT: u32 = TIMESTAMP_SHIFT + TIMESTAMP_BITS;
const MODE_SHIFT: u32 = VERSION_SHIFT + VERSION_BITS;

const _: () = assert!(MODE_SHIFT < u64::BITS);
const _: () = {
    let widest = DeclockFields::new(DeclockFields::MAX_CAPACITY);
    assert!(widest.generation_shift() + 11 == u64::BITS);
    // Even when the last index is followed by the maximum number of requests, the head stays within
    // its field.
    assert!(DeclockFields::LAST_LAP < (1 << VERSION_BITS) - 1);
    assert!((1 << LAP_BITS) > DeclockFields::LAST_LAP + 2);
};

/// Contiguous entries of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QueuePart {
    /// Number of the first entry.
    pub first: u32,
    /// Number of entries.
    pub count: u32,
}

/// Layout of the words of a lock, by queue capacity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeclockFields {
    capacity_bits: u32,
}

/// A decoded header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QueueHeader {
    /// Whether the lock is being reset. The mark takes precedence over the rest of the header.
    pub is_resetting: bool,
    /// Number of writers holding the lock or waiting.
    pub writers: u32,
    /// Number of holders and waiters.
    pub size: u32,
    /// Number of releases in this generation: the index of the oldest remaining request, if
    /// requests leave in order of arrival.
    pub head: u64,
    /// Number of resets, modulo the number of generations.
    pub generation: u64,
}

impl QueueHeader {
    /// Index of the next request.
    pub const fn end(self) -> u64 {
        self.head + self.size as u64
    }
}

/// Outcome of a request, decided by the header found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrived {
    /// The lock is being reset.
    Resetting,
    /// The queue is full, or its indexes are used up. The request writes no entry, and its addition
    /// stays in the header until a reset (I302).
    Full,
    /// The request holds the lock at once.
    Held,
    /// The request waits, and has to write its entry.
    Waits,
}

/// Age of a stored entry, relative to the index looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Age {
    /// From an earlier lap, or never written. The entry of the index may be in flight, or may never
    /// come because the request did not have to wait.
    Older,
    /// The entry of the index.
    Current(QueueEntry),
    /// From a later lap: the request with the index has had its turn.
    Newer,
}

impl DeclockFields {
    /// Minimum capacity.
    pub const MIN_CAPACITY: u32 = 2;
    /// Maximum capacity: 16 KiB of entries, fetched by one READ.
    pub const MAX_CAPACITY: u32 = 2048;
    /// First lap whose indexes are not given.
    pub const LAST_LAP: u64 = 0xFFF0;

    /// Layout for a queue of `capacity` entries.
    ///
    /// # Panics
    /// If `capacity` is not a power of two, below [`Self::MIN_CAPACITY`] or above
    /// [`Self::MAX_CAPACITY`].
    pub const fn new(capacity: u32) -> Self {
        assert!(Self::fits(capacity), "a queue has 2, 4, 8 and so on to 2,048 entries");
        Self { capacity_bits: capacity.trailing_zeros() }
    }

    /// Returns whether a queue may have this capacity.
    pub const fn fits(capacity: u32) -> bool {
        capacity.is_power_of_two()
            && capacity >= Self::MIN_CAPACITY
            && capacity <= Self::MAX_CAPACITY
    }

    /// Number of entries.
    pub const fn capacity(self) -> u32 {
        1 << self.capacity_bits
    }

    /// Maximum number of requests that a header can count without a field overflowing into the
    /// next.
    pub const fn most_requests(self) -> u32 {
        (1 << self.count_bits()) - 1
    }

    const fn count_bits(self) -> u32 {
        self.capacity_bits + 1
    }

    const fn head_bits(self) -> u32 {
        self.capacity_bits + LAP_BITS
    }

    const fn size_shift(self) -> u32 {
        WRITERS_SHIFT + self.count_bits()
    }

    const fn head_shift(self) -> u32 {
        self.size_shift() + self.count_bits()
    }

    const fn generation_shift(self) -> u32 {
        self.head_shift() + self.head_bits()
    }

    /// Fields used by a reset.
    pub const fn head(self) -> Head {
        let generation_shift = self.generation_shift();
        let generation_bits = u64::BITS - generation_shift;
        Head { resetting: 1, generation_shift, generation_bits, is_count: false }
    }

    /// Decodes a header.
    pub const fn of(self, word: u64) -> QueueHeader {
        let count = (1 << self.count_bits()) - 1;
        QueueHeader {
            is_resetting: word & 1 != 0,
            writers: (word >> WRITERS_SHIFT & count) as u32,
            size: (word >> self.size_shift() & count) as u32,
            head: word >> self.head_shift() & ((1 << self.head_bits()) - 1),
            generation: word >> self.generation_shift(),
        }
    }

    /// Encodes a header.
    pub const fn word(self, queue: QueueHeader) -> u64 {
        queue.is_resetting as u64
            | (queue.writers as u64) << WRITERS_SHIFT
            | (queue.size as u64) << self.size_shift()
            | queue.head << self.head_shift()
            | queue.generation << self.generation_shift()
    }

    const fn writer(mode: Mode) -> u64 {
        if matches!(mode, Mode::Shared) { 0 } else { 1 << WRITERS_SHIFT }
    }

    /// Addend of a request.
    pub const fn asking(self, mode: Mode) -> u64 {
        (1 << self.size_shift()) + Self::writer(mode)
    }

    /// Addend of a release.
    pub const fn leaving(self, mode: Mode) -> u64 {
        (1_u64 << self.head_shift()).wrapping_sub(self.asking(mode))
    }

    /// Returns the outcome of a request that has found this header.
    pub const fn arrived(self, found: QueueHeader, mode: Mode) -> Arrived {
        if found.is_resetting {
            return Arrived::Resetting;
        }
        if found.size >= self.capacity() || self.is_used_up(found) {
            return Arrived::Full;
        }
        self.placed(found, mode)
    }

    /// Returns whether the next index belongs to the unused last laps.
    pub const fn is_used_up(self, found: QueueHeader) -> bool {
        self.lap(found.end()) >= Self::LAST_LAP
    }

    /// Returns the outcome of a request if the queue has room, or if room is not required.
    pub const fn placed(self, found: QueueHeader, mode: Mode) -> Arrived {
        let shares = matches!(mode, Mode::Shared) && found.writers == 0;
        if found.size == 0 || shares { Arrived::Held } else { Arrived::Waits }
    }

    const fn lap(self, index: u64) -> u64 {
        index >> self.capacity_bits
    }

    /// Returns the entry number of an index.
    pub const fn place(self, index: u64) -> u32 {
        index as u32 & (self.capacity() - 1)
    }

    /// Returns the entries of `most` indexes starting at `from`; fewer at the end of the entry
    /// array.
    pub fn part(self, from: u64, most: u64) -> QueuePart {
        let first = self.place(from);
        QueuePart { first, count: most.min(u64::from(self.capacity() - first)) as u32 }
    }

    /// Returns the part with every entry.
    pub const fn all(self) -> QueuePart {
        QueuePart { first: 0, count: self.capacity() }
    }

    const fn version(self, index: u64) -> u16 {
        (self.lap(index) + 1) as u16
    }

    /// Returns the number of a turn among the turns of a lock: generation and index. A notice
    /// counts for this turn only (I300).
    pub const fn turn(self, generation: u64, index: u64) -> u64 {
        generation << self.head_bits() | index
    }

    /// Encodes the entry of the request with an index.
    pub const fn entry(self, index: u64, entry: QueueEntry) -> u64 {
        let QueueEntry { writes, timestamp, who } = entry;
        (writes as u64) << MODE_SHIFT
            | (self.version(index) as u64) << VERSION_SHIFT
            | (timestamp as u64) << TIMESTAMP_SHIFT
            | who as u64
    }

    /// Returns the age of the word found in the entry of an index: an entry counts only for the
    /// request of its lap and place (I302).
    pub fn age(self, word: u64, index: u64) -> Age {
        let version = (word >> VERSION_SHIFT) as u16;
        let expected = self.version(index);
        // An entry of an earlier lap has the mode of another request, and names a request that has
        // ended.
        let takes_any = version != 0 && broken(Rule::LapsTellTenants);
        if version == expected || takes_any {
            let entry = QueueEntry {
                writes: word >> MODE_SHIFT & 1 != 0,
                timestamp: (word >> TIMESTAMP_SHIFT) as u16,
                who: word as u32 & ((1 << WAITER_BITS) - 1),
            };
            return Age::Current(entry);
        }
        if version < expected { Age::Older } else { Age::Newer }
    }

    /// Returns the age of the entry of an index, given the whole array of entries.
    pub fn age_of(self, entries: &[u64], index: u64) -> Age {
        self.age(entries[self.place(index) as usize], index)
    }

    /// Returns whether the entry of an index names a waiting writer.
    fn is_writer(self, entries: &[u64], index: u64) -> bool {
        matches!(self.age_of(entries, index), Age::Current(entry) if entry.writes)
    }

    /// Counts the writers found in the entries of the indexes `from..to`.
    pub fn writers(self, entries: &[u64], from: u64, to: u64) -> u32 {
        (from..to).map(|index| u32::from(self.is_writer(entries, index))).sum()
    }

    /// Returns the time of the earliest waiter among the requests with `indexes`, limited to
    /// waiters whose names satisfy `counts`. Readers before the first writer already hold the lock,
    /// unless `is_behind` says that a writer precedes every reader.
    pub fn earliest(
        self,
        entries: &[u64],
        indexes: std::ops::Range<u64>,
        is_behind: bool,
        counts: impl Fn(u32) -> bool,
    ) -> Option<u16> {
        let (mut is_behind, mut earliest) = (is_behind, None);
        for index in indexes {
            let Age::Current(entry) = self.age_of(entries, index) else { continue };
            is_behind |= entry.writes;
            if is_behind && counts(entry.who) {
                let known = earliest.unwrap_or(entry.timestamp);
                earliest = Some(super::earlier(known, entry.timestamp));
            }
        }
        earliest
    }

    /// Returns whether the waiter with `index` has the lock, in the generation of the header. Only
    /// the words decide (I300).
    ///
    /// A writer has the lock once every earlier request has left. A reader has the lock once as
    /// many requests have left as came before the reader: later readers cannot be among the
    /// departed unless the earlier writers are gone. A reader also has the lock if every writer is
    /// located, and all are behind the reader. The condition stays true until the waiter has left,
    /// so header and entries may be read at different moments.
    pub fn is_turn(self, found: QueueHeader, entries: &[u64], index: u64, mode: Mode) -> bool {
        if mode != Mode::Shared {
            return found.head == index;
        }
        found.head >= index
            || self.writers(entries, found.head, index) == 0
                && self.writers(entries, index, found.end()) == found.writers
    }
}

/// Content of a waiter's entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QueueEntry {
    /// Whether the waiter wants to write.
    pub writes: bool,
    /// Time of the request; zero where times are not used.
    pub timestamp: u16,
    /// Number of the waiter's name.
    pub who: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIELDS: DeclockFields = DeclockFields::new(8);
    const FREE: QueueHeader =
        QueueHeader { is_resetting: false, writers: 0, size: 0, head: 0, generation: 0 };

    fn waiter(writes: bool) -> QueueEntry {
        QueueEntry { writes, timestamp: 0, who: 77 }
    }

    /// Entries of these waiters, from an index on; `None` has not written.
    fn entries(first: u64, waiters: &[Option<bool>]) -> Vec<u64> {
        let mut entries = vec![0; FIELDS.capacity() as usize];
        for (index, writes) in (first..).zip(waiters) {
            if let Some(writes) = writes {
                entries[FIELDS.place(index) as usize] = FIELDS.entry(index, waiter(*writes));
            }
        }
        entries
    }

    #[test]
    fn the_generation_has_what_the_queue_leaves() {
        for (capacity, bits) in [(2, 41), (8, 35), (128, 23), (512, 17), (2048, 11)] {
            let fields = DeclockFields::new(capacity);
            assert_eq!(fields.head().generation_bits, bits, "{capacity}");
            assert_eq!(fields.capacity(), capacity);
            assert_eq!(fields.most_requests(), 2 * capacity - 1);
        }
        for capacity in [0, 1, 3, 12, 4096] {
            assert!(!DeclockFields::fits(capacity), "{capacity}");
        }
    }

    proptest! {
        #[test]
        fn a_header_is_what_it_was_made_of(
            bits in 1..=11_u32,
            is_resetting: bool,
            (writers, size, head, generation) in any::<(u32, u32, u64, u64)>(),
        ) {
            let fields = DeclockFields::new(1 << bits);
            let [writers, size] = [writers, size].map(|count| count & fields.most_requests());
            let head = head & ((1 << fields.head_bits()) - 1);
            let generation = generation >> fields.generation_shift();
            let queue = QueueHeader { is_resetting, writers, size, head, generation };
            let word = fields.word(queue);
            prop_assert_eq!(fields.of(word), queue);
            prop_assert_eq!(fields.head().is_resetting(word), is_resetting);
            prop_assert_eq!(fields.head().generation(word), generation);
        }

        #[test]
        fn requests_and_releases_add_to_their_fields_alone(bits in 1..=11_u32, generation: u64) {
            let fields = DeclockFields::new(1 << bits);
            let generation = generation >> fields.generation_shift();
            let most = DeclockFields::LAST_LAP * u64::from(fields.capacity());
            let mut word = fields.word(QueueHeader { generation, head: most - 1, ..FREE });
            for count in 1..=fields.most_requests() {
                word = word.wrapping_add(fields.asking(Mode::Exclusive));
                let queue = fields.of(word);
                prop_assert_eq!((queue.writers, queue.size), (count, count));
            }
            for mode in [Mode::Exclusive, Mode::Update] {
                word = word.wrapping_add(fields.leaving(mode));
            }
            let left = fields.most_requests() - 2;
            let (size, writers, head) = (left, left, most + 1);
            let expected = QueueHeader { generation, head, size, writers, ..FREE };
            prop_assert_eq!(fields.of(word), expected);
            let reader = fields.asking(Mode::Shared).wrapping_add(fields.leaving(Mode::Shared));
            prop_assert_eq!(fields.of(word.wrapping_add(reader)).head, most + 2);
        }

        #[test]
        fn an_entry_is_current_for_its_index_alone(
            bits in 1..=11_u32,
            lap in 0..DeclockFields::LAST_LAP,
            place: u32,
            writes: bool,
            timestamp: u16,
            who in 1..1_u32 << 24,
        ) {
            let fields = DeclockFields::new(1 << bits);
            let capacity = u64::from(fields.capacity());
            let entry = QueueEntry { writes, timestamp, who };
            let index = lap * capacity + u64::from(place) % capacity;
            let word = fields.entry(index, entry);
            prop_assert_eq!(fields.age(word, index), Age::Current(entry));
            prop_assert_eq!(fields.age(word, index + capacity), Age::Older);
            prop_assert_eq!(fields.age(0, index), Age::Older);
            if let Some(earlier) = index.checked_sub(capacity) {
                prop_assert_eq!(fields.age(word, earlier), Age::Newer);
            }
        }

        #[test]
        fn turns_differ(generation in 0..1_u64 << 35, index in 0..1_u64 << 20, more in 1..8_u64) {
            let turn = FIELDS.turn(generation, index);
            prop_assert_ne!(turn, FIELDS.turn(generation, (index + more) % (1 << 20)));
            prop_assert_ne!(turn, FIELDS.turn((generation + more) % (1 << 35), index));
        }
    }

    #[test]
    fn who_comes_holds_the_lock_or_waits_or_finds_no_room() {
        use Mode::{Exclusive, Shared, Update};
        let found = |size, writers| QueueHeader { size, writers, ..FREE };
        for (queue, mode, expected) in [
            (FREE, Exclusive, Arrived::Held),
            (FREE, Shared, Arrived::Held),
            (found(3, 0), Shared, Arrived::Held),
            (found(3, 0), Exclusive, Arrived::Waits),
            (found(3, 0), Update, Arrived::Waits),
            (found(3, 1), Shared, Arrived::Waits),
            (found(7, 7), Exclusive, Arrived::Waits),
            (found(8, 0), Shared, Arrived::Full),
            (found(15, 15), Exclusive, Arrived::Full),
            (QueueHeader { is_resetting: true, ..found(9, 0) }, Shared, Arrived::Resetting),
            (
                QueueHeader { head: 8 * DeclockFields::LAST_LAP - 1, ..FREE },
                Exclusive,
                Arrived::Held,
            ),
            (QueueHeader { head: 8 * DeclockFields::LAST_LAP, ..FREE }, Shared, Arrived::Full),
            (
                QueueHeader { head: 8 * DeclockFields::LAST_LAP - 1, ..found(1, 0) },
                Shared,
                Arrived::Full,
            ),
        ] {
            assert_eq!(FIELDS.arrived(queue, mode), expected, "{queue:?}, {mode:?}");
        }
    }

    #[test]
    fn a_turn_is_a_function_of_the_words() {
        use Mode::{Exclusive, Shared};
        const X: Option<bool> = Some(true);
        const S: Option<bool> = Some(false);
        // Head, size, writers; waiters from index 8 on; index and mode; whether it is its turn.
        for (head, size, writers, waiters, index, mode, expected) in [
            // All before a writer have left, or not.
            (9, 1, 1, &[None, X] as &[_], 9, Exclusive, true),
            (8, 2, 1, &[None, X], 9, Exclusive, false),
            (9, 1, 1, &[None, None], 9, Exclusive, true),
            // A reader behind the writer that holds it.
            (8, 2, 1, &[None, S], 9, Shared, false),
            (9, 1, 0, &[None, S], 9, Shared, true),
            // Readers behind a writer that has left: the second may leave before the first.
            (10, 1, 0, &[None, S, S], 9, Shared, true),
            (9, 2, 0, &[None, S, S], 10, Shared, true),
            // A writer behind it is located, or may be before it.
            (9, 3, 1, &[None, S, S, X], 10, Shared, true),
            (9, 3, 1, &[None, S, S, None], 10, Shared, false),
            (9, 3, 1, &[None, X, S, S], 10, Shared, false),
            (9, 4, 2, &[None, X, S, X], 10, Shared, false),
            // Writers of an earlier lap are not there any more.
            (16, 2, 1, &[X, X], 17, Shared, false),
        ] {
            let found = QueueHeader { head, size, writers, ..FREE };
            let entries = entries(8, waiters);
            let turn = FIELDS.is_turn(found, &entries, index, mode);
            assert_eq!(turn, expected, "{found:?} {waiters:?}: {index} {mode:?}");
        }
    }
}
