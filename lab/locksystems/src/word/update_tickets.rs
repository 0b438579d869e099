//! The word of a DSLR lock with update locks: three pairs of counters, tickets given and tickets
//! served (DSLR §5.2).
//!
//! ```text
//! nX (10 bits) | nS (10) | nU (10) | maxX (10) | maxS (10) | maxU (10)
//!     | generation (3) | resetting (1)
//! ```
//!
//! The paper defines the six counters, but no widths. As in the word of
//! [`TicketFields`](super::TicketFields), the counters are set back at half of a field.

use lotus_locks::word::{Head, Mode};

/// Counters of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct UpdateTickets {
    /// Exclusive tickets served.
    pub n_x: u32,
    /// Shared tickets served.
    pub n_s: u32,
    /// Update tickets served.
    pub n_u: u32,
    /// Exclusive tickets given.
    pub max_x: u32,
    /// Shared tickets given.
    pub max_s: u32,
    /// Update tickets given.
    pub max_u: u32,
}

/// Bits of a counter.
const BITS: u32 = 10;
/// Bits below the lowest counter.
const LOW: u32 = 4;

const _: () = assert!(LOW + 6 * BITS == u64::BITS);

/// Returns the lowest bit of a counter; counters are numbered from *maxU* up to *nX*.
const fn shift(field: u32) -> u32 {
    LOW + BITS * field
}

const fn field(word: u64, field: u32) -> u32 {
    (word >> shift(field)) as u32 & ((1 << BITS) - 1)
}

/// Returns the lower field of a mode's two fields.
const fn field_of(mode: Mode) -> u32 {
    match mode {
        Mode::Update => 0,
        Mode::Shared => 1,
        Mode::Exclusive => 2,
    }
}

impl UpdateTickets {
    /// Fields used by a reset.
    pub const HEAD: Head =
        Head { resetting: 1, generation_shift: 1, generation_bits: 3, is_count: false };

    /// Value at which a counter has to be set back, and the maximum number of outstanding tickets.
    pub const LIMIT: u32 = 1 << (BITS - 1);

    /// Returns whether a counter of the word has reached [`Self::LIMIT`], in which case no ticket
    /// is given.
    pub const fn is_full(word: u64) -> bool {
        const ONES: u64 = (1 | 1 << BITS | 1 << (2 * BITS)) << shift(0);
        const TOPS: u64 = (ONES | ONES << (3 * BITS)) << (BITS - 1);
        word & TOPS != 0
    }

    /// Decodes the counters of a word.
    pub const fn of(word: u64) -> Self {
        Self {
            n_x: field(word, 5),
            n_s: field(word, 4),
            n_u: field(word, 3),
            max_x: field(word, 2),
            max_s: field(word, 1),
            max_u: field(word, 0),
        }
    }

    /// Returns the word of these counters, with the bits of `word` below the counters.
    pub const fn with(self, word: u64) -> u64 {
        let Self { n_x, n_s, n_u, max_x, max_s, max_u } = self;
        word & ((1 << LOW) - 1)
            | (n_x as u64) << shift(5)
            | (n_s as u64) << shift(4)
            | (n_u as u64) << shift(3)
            | (max_x as u64) << shift(2)
            | (max_s as u64) << shift(1)
            | (max_u as u64) << shift(0)
    }

    /// Addend of a request for `count` tickets.
    pub const fn asking(mode: Mode, count: u16) -> u64 {
        (count as u64) << shift(field_of(mode))
    }

    /// Addend of the release of `count` tickets.
    pub const fn leaving(mode: Mode, count: u16) -> u64 {
        (count as u64) << shift(3 + field_of(mode))
    }

    /// Number of tickets given in a mode.
    pub const fn given(self, mode: Mode) -> u32 {
        match mode {
            Mode::Shared => self.max_s,
            Mode::Update => self.max_u,
            Mode::Exclusive => self.max_x,
        }
    }

    /// Returns whether the turn of `ticket` has come: a writer's once every earlier holder has
    /// left, a reader's or an update lock's once every earlier writer and update lock has left.
    ///
    /// Update locks requested after a reader take their turns beside the reader. A reader may
    /// therefore find more update locks served than were requested before its ticket.
    pub const fn serves(self, ticket: Self, mode: Mode) -> bool {
        let written = self.n_x == ticket.max_x;
        match mode {
            Mode::Shared => written && self.n_u >= ticket.max_u,
            Mode::Update => written && self.n_u == ticket.max_u,
            Mode::Exclusive => {
                written && self.n_u == ticket.max_u && self.has_no_readers_before(ticket)
            }
        }
    }

    /// Returns whether the readers before `ticket` have left, where the ticket is a writer's or an
    /// update lock's. Later readers wait for the ticket's holder, and are therefore not counted
    /// yet.
    pub const fn has_no_readers_before(self, ticket: Self) -> bool {
        self.n_s == ticket.max_s
    }

    /// Number of unserved tickets before `ticket`.
    pub const fn ahead(self, ticket: Self) -> u32 {
        self.readers_ahead(ticket)
            + ticket.max_x.saturating_sub(self.n_x)
            + ticket.max_u.saturating_sub(self.n_u)
    }

    /// Number of unserved readers' tickets before `ticket`.
    pub const fn readers_ahead(self, ticket: Self) -> u32 {
        ticket.max_s.saturating_sub(self.n_s)
    }

    /// Returns the counters once the `count` tickets from this ticket on, and every earlier ticket,
    /// are served, and no later ticket was given.
    #[must_use]
    pub const fn after(self, mode: Mode, count: u16) -> Self {
        let (mut x, mut s, mut u) = (self.max_x, self.max_s, self.max_u);
        match mode {
            Mode::Shared => s += count as u32,
            Mode::Update => u += count as u32,
            Mode::Exclusive => x += count as u32,
        }
        Self { n_x: x, n_s: s, n_u: u, max_x: x, max_s: s, max_u: u }
    }

    /// Returns whether every ticket given is served.
    pub const fn is_free(self) -> bool {
        self.n_x == self.max_x && self.n_s == self.max_s && self.n_u == self.max_u
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Word = UpdateTickets;

    proptest! {
        #[test]
        fn fields_are_apart(counters: [u16; 6], low: u64, count in 1..100_u16) {
            let [n_x, n_s, n_u, max_x, max_s, max_u] =
                counters.map(|counter| u32::from(counter) % Word::LIMIT);
            let tickets = Word { n_x, n_s, n_u, max_x, max_s, max_u };
            let word = tickets.with(low);
            prop_assert_eq!(Word::of(word), tickets);
            prop_assert_eq!(word & 15, low & 15);
            prop_assert!(!Word::is_full(word));
            for mode in [Mode::Shared, Mode::Update, Mode::Exclusive] {
                let asked = Word::of(word + Word::asking(mode, count));
                prop_assert_eq!(asked.given(mode) - tickets.given(mode), u32::from(count));
                prop_assert_eq!((asked.n_x, asked.n_s, asked.n_u), (n_x, n_s, n_u));
                let left = Word::of(word + Word::leaving(mode, count));
                prop_assert_eq!((left.max_x, left.max_s, left.max_u), (max_x, max_s, max_u));
                let served = n_x + n_s + n_u + u32::from(count);
                prop_assert_eq!(left.n_x + left.n_s + left.n_u, served);
                let full = Word::LIMIT - tickets.given(mode);
                prop_assert!(Word::is_full(word + Word::asking(mode, full as u16)));
            }
        }
    }

    #[test]
    fn the_example_of_figure_7_reads_beside_two_readers_and_then_writes() {
        let ticket = Word { max_s: 2, ..Word::default() };
        let found = Word { max_u: 1, ..ticket };
        assert!(found.serves(ticket, Mode::Update));
        assert!(!found.has_no_readers_before(ticket));
        assert_eq!((found.readers_ahead(ticket), found.ahead(ticket)), (2, 2));
        assert!(Word { n_s: 2, ..found }.has_no_readers_before(ticket));
        // Whoever comes afterwards waits for it.
        for mode in [Mode::Shared, Mode::Update, Mode::Exclusive] {
            assert!(!Word { n_s: 2, ..found }.serves(found, mode), "{mode:?}");
            assert!(Word { n_s: 2, n_u: 1, ..found }.serves(found, mode), "{mode:?}");
        }
    }

    #[test]
    fn a_reader_has_its_turn_although_a_later_update_lock_was_released() {
        let ticket = Word { max_x: 1, ..Word::default() };
        let later = Word { n_x: 1, n_u: 2, max_s: 1, max_u: 2, ..ticket };
        assert!(later.serves(ticket, Mode::Shared));
    }
}
