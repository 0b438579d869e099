//! The word of a DSLR lock: two pairs of counters, tickets given and tickets served (DSLR §4.4).
//!
//! ```text
//! as published:    nX (16 bits) | nS (16) | maxX (16) | maxS (16)
//! with resets:     nX (15) | nS (15) | maxX (15) | maxS (15) | generation (3) | resetting (1)
//! ```
//!
//! A request adds to *max*; the word before the addition is the request's *ticket*. A release adds
//! to *n*. No counter may overflow its field. The counters are therefore set back when a counter
//! reaches half of its field; the upper half is room for requests made in the meantime. At most
//! half of a field's range of tickets may thus be outstanding on one lock.

use super::{Head, Mode};

/// Positions of the counters in the word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TicketFields {
    /// Bits of a counter.
    bits: u32,
    /// Bits below the lowest counter.
    low: u32,
    /// Highest bit of every counter.
    tops: u64,
}

const HEAD: Head = Head { resetting: 1, generation_shift: 1, generation_bits: 3, is_count: false };

/// Counters of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tickets {
    /// Exclusive tickets served.
    pub n_x: u32,
    /// Shared tickets served.
    pub n_s: u32,
    /// Exclusive tickets given.
    pub max_x: u32,
    /// Shared tickets given.
    pub max_s: u32,
}

impl TicketFields {
    /// As published, in DSLR §4.4.
    pub const PAPER: Self = Self::new(16, 0);
    /// With room for a generation and the reset mark.
    pub const WITH_RESETS: Self = Self::new(15, 4);

    const fn new(bits: u32, low: u32) -> Self {
        let ones = 1 | 1 << bits | 1 << (2 * bits) | 1 << (3 * bits);
        Self { bits, low, tops: ones << (low + bits - 1) }
    }

    /// Fields used by a reset; `None` as published.
    pub const fn head(self) -> Option<Head> {
        if self.low == 0 { None } else { Some(HEAD) }
    }

    /// Value at which a counter has to be set back: COUNT_MAX in DSLR §4.9. Also the maximum number
    /// of outstanding tickets.
    pub const fn limit(self) -> u32 {
        1 << (self.bits - 1)
    }

    /// Returns whether a counter of the word has reached [`Self::limit`], in which case no ticket
    /// is given.
    pub const fn is_full(self, word: u64) -> bool {
        word & self.tops != 0
    }

    /// Decodes the counters of a word.
    pub const fn of(self, word: u64) -> Tickets {
        Tickets {
            n_x: self.field(word, 3),
            n_s: self.field(word, 2),
            max_x: self.field(word, 1),
            max_s: self.field(word, 0),
        }
    }

    /// Returns a word with the given counters, and the bits of `word` below the counters.
    pub const fn with(self, tickets: Tickets, word: u64) -> u64 {
        let Tickets { n_x, n_s, max_x, max_s } = tickets;
        word & ((1 << self.low) - 1)
            | (n_x as u64) << self.shift(3)
            | (n_s as u64) << self.shift(2)
            | (max_x as u64) << self.shift(1)
            | (max_s as u64) << self.shift(0)
    }

    /// Addend of a request for `count` tickets.
    pub const fn asking(self, mode: Mode, count: u16) -> u64 {
        (count as u64) << self.shift(!matches!(mode, Mode::Shared) as u32)
    }

    /// Addend of the release of `count` tickets.
    pub const fn leaving(self, mode: Mode, count: u16) -> u64 {
        (count as u64) << self.shift(2 + !matches!(mode, Mode::Shared) as u32)
    }

    const fn shift(self, field: u32) -> u32 {
        self.low + self.bits * field
    }

    const fn field(self, word: u64, field: u32) -> u32 {
        (word >> self.shift(field)) as u32 & ((1 << self.bits) - 1)
    }
}

impl Tickets {
    /// Number of tickets given in a mode.
    pub const fn given(self, mode: Mode) -> u32 {
        match mode {
            Mode::Shared => self.max_s,
            Mode::Update | Mode::Exclusive => self.max_x,
        }
    }

    /// Returns whether the turn of `ticket` has come. A reader's turn depends on the earlier
    /// writers alone, because the readers served may include later ones.
    pub const fn serves(self, ticket: Self, mode: Mode) -> bool {
        let written = self.n_x == ticket.max_x;
        match mode {
            Mode::Shared => written,
            Mode::Update | Mode::Exclusive => written && self.n_s == ticket.max_s,
        }
    }

    /// Number of unserved tickets before `ticket`.
    pub const fn ahead(self, ticket: Self) -> u32 {
        ticket.max_x.saturating_sub(self.n_x) + ticket.max_s.saturating_sub(self.n_s)
    }

    /// Returns whether `ticket` was skipped: the counters were set beyond the ticket, or set back.
    pub const fn has_skipped(self, ticket: Self, mode: Mode) -> bool {
        let passed = match mode {
            Mode::Shared => self.n_x > ticket.max_x,
            Mode::Update | Mode::Exclusive => self.n_x > ticket.max_x || self.n_s > ticket.max_s,
        };
        passed || self.given(mode) <= ticket.given(mode)
    }

    /// Returns the counters once the `count` tickets from this ticket on, and every earlier ticket,
    /// are served, and no later ticket was given.
    #[must_use]
    pub const fn after(self, mode: Mode, count: u16) -> Self {
        let (mut x, mut s) = (self.max_x, self.max_s);
        match mode {
            Mode::Shared => s += count as u32,
            Mode::Update | Mode::Exclusive => x += count as u32,
        }
        Self { n_x: x, n_s: s, max_x: x, max_s: s }
    }

    /// Returns the counters after the holder of `ticket` has skipped every earlier ticket and its
    /// own (DSLR §4.7). A reader adds itself to the readers served, because other readers may still
    /// hold the lock.
    #[must_use]
    pub const fn skipped(self, ticket: Self, mode: Mode, count: u16) -> Self {
        let (n_x, n_s) = match mode {
            Mode::Shared => (ticket.max_x, self.n_s + count as u32),
            Mode::Update | Mode::Exclusive => (ticket.max_x + count as u32, ticket.max_s),
        };
        Self { n_x, n_s, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOTH: [TicketFields; 2] = [TicketFields::PAPER, TicketFields::WITH_RESETS];
    const MODES: [Mode; 3] = [Mode::Shared, Mode::Update, Mode::Exclusive];

    proptest! {
        #[test]
        fn fields_are_apart(counters: [u16; 4], low: u64, count in 1..100_u16) {
            for fields in BOTH {
                let limit = fields.limit();
                let [n_x, n_s, max_x, max_s] =
                    counters.map(|counter| u32::from(counter) % limit);
                let tickets = Tickets { n_x, n_s, max_x, max_s };
                let word = fields.with(tickets, low);
                prop_assert_eq!(fields.of(word), tickets);
                let rest = (1 << fields.low) - 1;
                prop_assert_eq!(word & rest, low & rest);
                for mode in MODES {
                    let asked = fields.of(word + fields.asking(mode, count));
                    let given = asked.given(mode) - tickets.given(mode);
                    prop_assert_eq!(given, u32::from(count));
                    let left = fields.of(word + fields.leaving(mode, count));
                    prop_assert_eq!((left.max_x, left.max_s), (max_x, max_s));
                    prop_assert_eq!(left.n_x + left.n_s, n_x + n_s + u32::from(count));
                }
            }
        }
    }

    #[test]
    fn the_example_of_figure_4_waits_for_three_readers() {
        let ticket = Tickets { n_x: 1, n_s: 1, max_x: 1, max_s: 4 };
        assert!(!ticket.serves(ticket, Mode::Exclusive));
        assert_eq!(ticket.ahead(ticket), 3);
        let later = Tickets { n_s: 4, max_x: 2, ..ticket };
        assert!(later.serves(ticket, Mode::Exclusive));
        assert!(ticket.serves(ticket, Mode::Shared));
    }

    /// Algorithm 2 of the paper, line 3, fails such a ticket.
    #[test]
    fn a_reader_that_left_before_an_earlier_one_skips_nobody() {
        let ticket = Tickets { n_x: 0, n_s: 0, max_x: 1, max_s: 0 };
        let later = Tickets { n_x: 1, n_s: 1, max_x: 1, max_s: 2 };
        assert!(later.serves(ticket, Mode::Shared));
        assert!(!later.has_skipped(ticket, Mode::Shared));
    }

    #[test]
    fn the_example_of_figure_5_passes_over_three_readers() {
        let ticket = Tickets { n_x: 1, n_s: 1, max_x: 1, max_s: 4 };
        let found = Tickets { max_x: 2, ..ticket };
        let skipped = found.skipped(ticket, Mode::Exclusive, 1);
        assert_eq!(skipped, Tickets { n_x: 2, n_s: 4, max_x: 2, max_s: 4 });
        assert!(skipped.has_skipped(ticket, Mode::Exclusive));
        assert!(Tickets::default().has_skipped(ticket, Mode::Exclusive), "set back");
    }
}
