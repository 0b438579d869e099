//! Queues of connections that wait for a place among the guests of their own address.
//!
//! # What it is
//! A port that accepts connections one by one must not block on a connection from an address that
//! already has its share of places ([`Guests::has_its_share`]): places may be free for later
//! connections. The blocked connection waits in the line of its address. A line is served in order
//! of arrival, whenever a guest of its address has left or reached its deadline. Pure, like
//! [`Guests`].
//!
//! # Bounds
//! Lines use free places of guests, so guests and waiting connections together, and their open
//! files, never exceed [`Rules::places`](crate::Rules::places). Beyond the bound, the newest
//! connection of the longest line is closed, and may try again. So a line never keeps a guest out.
//!
//! # What it is not
//! The wait of a connection from an address below its share when every place is taken. Such a
//! connection blocks no free place, so a port may wait with it, and the system's accept queue holds
//! the rest.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::guests::{Guests, PlaceDecision, Source};

/// The lines of a port, by address. Dropping them drops the waiting connections.
#[derive(Debug)]
pub struct Lines<T> {
    /// Non-empty lines only.
    waiting: BTreeMap<Source, VecDeque<T>>,
}

/// Next connection to leave a line, or the time to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextInLine<T, I> {
    /// A connection from `source` enters now, possibly in the place of a guest.
    Now {
        /// The connection's origin.
        source: Source,
        /// The connection.
        newcomer: T,
        /// A guest to be closed, whose place the new connection takes: of the same origin, or of
        /// the most crowded one.
        instead: Option<I>,
    },
    /// No connection enters before the duration has passed, unless a guest leaves.
    Later(Duration),
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new() }
    }
}

impl<T> Lines<T> {
    /// Returns whether no connection waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether connections from `source` wait: a new connection must queue behind them.
    pub fn has(&self, source: Source) -> bool {
        self.waiting.contains_key(&source)
    }

    /// Adds a connection at the end of the line of `source`.
    pub fn join(&mut self, source: Source, newcomer: T) {
        self.waiting.entry(source).or_default().push_back(newcomer);
    }

    /// Takes out a connection that may enter at `now`.
    pub fn turn<I: Copy + Ord>(&mut self, guests: &Guests<I>, now: Duration) -> NextInLine<T, I> {
        let mut soonest = Duration::MAX;
        let ready = self.waiting.keys().find_map(|source| {
            let instead = match guests.place(*source, now) {
                PlaceDecision::Free => None,
                PlaceDecision::Instead(other) => Some(other),
                PlaceDecision::Wait(time) => {
                    soonest = soonest.min(time);
                    return None;
                }
            };
            Some((*source, instead))
        });
        let Some((source, instead)) = ready else { return NextInLine::Later(soonest) };
        match self.leave(source, VecDeque::pop_front) {
            Some(newcomer) => NextInLine::Now { source, newcomer, instead },
            None => NextInLine::Later(soonest),
        }
    }

    /// Takes out a connection to close, if guests and lines exceed the places.
    pub fn surplus<I: Copy + Ord>(&mut self, guests: &Guests<I>) -> Option<T> {
        let waiting: usize = self.waiting.values().map(VecDeque::len).sum();
        if waiting <= guests.free() {
            return None;
        }
        let (longest, _) = self.waiting.iter().max_by_key(|(_, line)| line.len())?;
        self.leave(*longest, VecDeque::pop_back)
    }

    /// Takes a connection out of a line with `pop`, and removes a line that becomes empty.
    fn leave(&mut self, source: Source, pop: fn(&mut VecDeque<T>) -> Option<T>) -> Option<T> {
        let line = self.waiting.get_mut(&source)?;
        let left = pop(line);
        if line.is_empty() {
            self.waiting.remove(&source);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rules;
    use crate::guests::tests::{host, ms};

    const RULES: Rules = Rules { places: 6, of_one: 2, grace: Duration::from_millis(100) };

    /// Guests 0 and 1 of a host, that came at 0 and 10, and 2 and 3 of another, at 20 and 30.
    fn guests() -> Guests<u32> {
        let mut guests = Guests::new(RULES);
        (0..4).for_each(|id| guests.enter(id, host(1 + id as u8 / 2), ms(10 * u64::from(id))));
        guests
    }

    fn lines(of: &[(u8, char)]) -> Lines<char> {
        let mut lines = Lines::default();
        of.iter().for_each(|(last, newcomer)| lines.join(host(*last), *newcomer));
        lines
    }

    fn now(last: u8, newcomer: char, instead: Option<u32>) -> NextInLine<char, u32> {
        NextInLine::Now { source: host(last), newcomer, instead }
    }

    #[test]
    fn each_waits_for_its_own_address_in_the_order_of_arrival() {
        let (mut guests, mut lines) = (guests(), lines(&[(1, 'a'), (1, 'b'), (2, 'c')]));
        assert!(lines.has(host(1)) && lines.has(host(2)) && !lines.has(host(3)));
        // Two places are free, and not for them.
        assert_eq!(lines.turn(&guests, ms(40)), NextInLine::Later(ms(60)));
        guests.leave(3);
        assert_eq!(lines.turn(&guests, ms(40)), now(2, 'c', None));
        guests.enter(4, host(2), ms(40));
        assert_eq!(lines.turn(&guests, ms(99)), NextInLine::Later(ms(1)));
        assert_eq!(lines.turn(&guests, ms(100)), now(1, 'a', Some(0)));
        guests.leave(0);
        guests.enter(5, host(1), ms(100));
        assert_eq!(lines.turn(&guests, ms(100)), NextInLine::Later(ms(10)));
        assert_eq!(lines.turn(&guests, ms(110)), now(1, 'b', Some(1)));
        assert!(!lines.has(host(1)) && !lines.has(host(2)));
        assert_eq!(lines.turn(&guests, ms(500)), NextInLine::Later(Duration::MAX));
    }

    #[test]
    fn lines_have_the_free_places_and_the_newest_of_the_longest_gives_way() {
        let (mut guests, mut lines) = (guests(), lines(&[(1, 'a'), (1, 'b')]));
        assert_eq!(lines.surplus(&guests), None);
        // Another address waits as well: each has one of the two.
        lines.join(host(2), 'c');
        assert_eq!((lines.surplus(&guests), lines.surplus(&guests)), (Some('b'), None));
        // Guests of another address come in: no line keeps them out.
        assert_eq!(guests.place(host(3), ms(50)), PlaceDecision::Free);
        guests.enter(4, host(3), ms(50));
        assert!(lines.surplus(&guests).is_some());
        guests.enter(5, host(3), ms(50));
        assert!(lines.surplus(&guests).is_some());
        assert_eq!((lines.surplus(&guests), guests.free()), (None, 0));
        lines.join(host(1), 'd');
        assert_eq!(lines.surplus(&guests), Some('d'));
        assert_eq!(lines.turn(&guests, ms(500)), NextInLine::Later(Duration::MAX));
    }
}
