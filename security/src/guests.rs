//! Admission of guests: connections to a port that have not yet proved their right to enter.
//!
//! # What it is
//! [`Guests`] decides whether an arriving connection gets a free place, replaces a guest, or waits,
//! and for how long. Pure: ports ask, and carry the answer out. A port decides where a connection
//! waits, for example in a line of its address ([`Lines`](crate::Lines)).
//!
//! # Rules
//! The number of places is bounded, in total and per address, so one host cannot take every place
//! (I338). A connection without a free place replaces a guest of the address with the most guests:
//! the guest with the earliest deadline. A guest keeps its place for [`Rules::grace`] in any case,
//! and for longer after speaking the protocol. So a host of silent strangers costs a new guest a
//! wait of about the grace, and many clients that begin at one moment are admitted one after
//! another. Connections of one address beyond [`Rules::places`] may be closed (see `Lines`).
//!
//! # What it is not
//! The time limit of a handshake, which every port has. Admitted connections are no guests, and
//! have a separate bound: guests never take their places.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Network bits of an IPv6 address: one host can have every address of a network.
const NETWORK_BITS: u32 = 64;

/// Bounds on the guests of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Largest number of guests at a time, including connections waiting in
    /// [`Lines`](crate::Lines).
    pub places: usize,
    /// Largest number of guests of one address at a time.
    pub of_one: usize,
    /// Time during which no newcomer can take a guest's place.
    pub grace: Duration,
}

impl Rules {
    /// Rules for a port with `places` places; one address may take three quarters of them.
    pub const fn of(places: usize) -> Self {
        let of_one = places - places / 4;
        Self { places, of_one, grace: Duration::from_millis(250) }
    }
}

/// Origin of a connection, as counted by [`Guests`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Source {
    /// An IPv4 address, or the /64 network of an IPv6 address.
    Network(IpAddr),
    /// A Unix socket.
    ThisHost,
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self::Network(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() >> NETWORK_BITS << NETWORK_BITS;
                IpAddr::V6(Ipv6Addr::from_bits(network))
            }
            address => address,
        })
    }
}

/// Place of an arriving connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlaceDecision<I> {
    /// A place is free.
    Free,
    /// The place of the named guest, whose connection must be closed.
    Instead(I),
    /// No place before the duration has passed, unless a guest leaves.
    Wait(Duration),
}

/// The guests of a port, by id. Times are readings of a clock that never goes back.
#[derive(Debug)]
pub struct Guests<I> {
    rules: Rules,
    guests: BTreeMap<I, Guest>,
}

#[derive(Clone, Copy, Debug)]
struct Guest {
    source: Source,
    /// Time from which a newcomer may take the guest's place.
    due: Duration,
}

impl<I: Copy + Ord> Guests<I> {
    /// A port without guests.
    pub const fn new(rules: Rules) -> Self {
        Self { rules, guests: BTreeMap::new() }
    }

    /// Number of guests.
    pub fn len(&self) -> usize {
        self.guests.len()
    }

    /// Returns whether there are no guests.
    pub fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }

    /// Number of free places.
    pub fn free(&self) -> usize {
        self.rules.places.saturating_sub(self.guests.len())
    }

    /// Returns whether `source` has reached the limit of guests per address. If so, a new
    /// connection from `source` can only replace a guest from `source`, even if places are free.
    pub fn has_its_share(&self, source: Source) -> bool {
        self.of(source) >= self.rules.of_one
    }

    /// Returns the place of a connection from `source` arriving at `now`.
    pub fn place(&self, source: Source, now: Duration) -> PlaceDecision<I> {
        let crowded = if self.has_its_share(source) {
            source
        } else if self.guests.len() >= self.rules.places {
            self.most()
        } else {
            return PlaceDecision::Free;
        };
        let theirs = self.guests.iter().filter(|(_, guest)| guest.source == crowded);
        match theirs.min_by_key(|(_, guest)| guest.due) {
            None => PlaceDecision::Free,
            Some((id, guest)) if guest.due <= now => PlaceDecision::Instead(*id),
            Some((_, guest)) => PlaceDecision::Wait(guest.due - now),
        }
    }

    /// Adds a guest.
    pub fn enter(&mut self, id: I, source: Source, now: Duration) {
        self.guests.insert(id, Guest { source, due: now + self.rules.grace });
    }

    /// Extends a guest's deadline to `due`, because the guest speaks the protocol.
    pub fn keep(&mut self, id: I, due: Duration) {
        if let Some(guest) = self.guests.get_mut(&id) {
            guest.due = guest.due.max(due);
        }
    }

    /// Removes an admitted or disconnected guest; returns whether the guest was present.
    pub fn leave(&mut self, id: I) -> bool {
        self.guests.remove(&id).is_some()
    }

    fn of(&self, source: Source) -> usize {
        self.guests.values().filter(|guest| guest.source == source).count()
    }

    /// Returns the source with the most guests.
    fn most(&self) -> Source {
        let mut counts = BTreeMap::new();
        for guest in self.guests.values() {
            *counts.entry(guest.source).or_insert(0_usize) += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map_or(Source::ThisHost, |(source, _)| source)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const RULES: Rules = Rules { places: 4, of_one: 3, grace: Duration::from_millis(100) };

    pub(crate) fn host(last: u8) -> Source {
        IpAddr::from([10, 0, 0, last]).into()
    }

    pub(crate) fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn guests(of: &[(u32, u8, u64)]) -> Guests<u32> {
        let mut guests = Guests::new(RULES);
        of.iter().for_each(|(id, last, at)| guests.enter(*id, host(*last), ms(*at)));
        guests
    }

    #[test]
    fn a_newcomer_takes_the_place_of_the_oldest_of_the_crowd_and_of_nobody_in_its_grace() {
        let crowd = [(0, 1, 0), (1, 1, 10), (2, 1, 20)];
        let crowd_and_one: Vec<_> = [(9, 2, 5)].iter().chain(&crowd).copied().collect();
        let cases: &[(&[_], u8, u64, PlaceDecision<u32>)] = &[
            (&[], 1, 0, PlaceDecision::Free),
            (&crowd[..2], 1, 20, PlaceDecision::Free),
            // One address has all that it may have; the last place is another's.
            (&crowd, 1, 40, PlaceDecision::Wait(ms(60))),
            (&crowd, 1, 100, PlaceDecision::Instead(0)),
            (&crowd, 2, 40, PlaceDecision::Free),
            // All places are taken: the crowd makes room, also for an old guest's host.
            (&crowd_and_one, 3, 99, PlaceDecision::Wait(ms(1))),
            (&crowd_and_one, 3, 200, PlaceDecision::Instead(0)),
            (&crowd_and_one, 2, 200, PlaceDecision::Instead(0)),
        ];
        for (there, from, at, expected) in cases {
            assert_eq!(guests(there).place(host(*from), ms(*at)), *expected, "{there:?} {from}");
        }
        // A crowd waits for its own although a place is free, another for any.
        let share = |of: &[_], from| (guests(of).has_its_share(host(from)), guests(of).free());
        assert_eq!([share(&crowd, 1), share(&crowd, 2)], [(true, 1), (false, 1)]);
        assert_eq!([share(&crowd_and_one, 1), share(&crowd_and_one, 3)], [(true, 0), (false, 0)]);
    }

    #[test]
    fn who_speaks_keeps_its_place_for_longer_and_who_leaves_frees_it() {
        let mut guests = guests(&[(0, 1, 0), (1, 1, 10), (2, 1, 20)]);
        guests.keep(0, ms(1000));
        assert_eq!(guests.place(host(1), ms(200)), PlaceDecision::Instead(1));
        // A shorter time is no gain.
        guests.keep(0, ms(1));
        assert!(guests.leave(1) && !guests.leave(1));
        assert_eq!((guests.place(host(1), ms(200)), guests.len()), (PlaceDecision::Free, 2));
        guests.enter(3, host(1), ms(200));
        assert_eq!(guests.place(host(1), ms(200)), PlaceDecision::Instead(2));
        // A guest that was removed meanwhile is not brought back.
        guests.leave(2);
        guests.keep(2, ms(5000));
        assert_eq!(guests.len(), 2);
    }

    #[test]
    fn one_host_is_one_source_whatever_it_calls_itself() {
        let of = |text: &str| Source::from(text.parse::<IpAddr>().expect("an address"));
        assert_eq!(of("::ffff:127.0.0.1"), of("127.0.0.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("127.0.0.1"), of("127.0.0.2"));
        assert_ne!(of("127.0.0.1"), Source::ThisHost);
    }
}
