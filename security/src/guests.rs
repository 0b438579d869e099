//! Which strangers a port holds: connections that have not shown yet that they may come in.
//!
//! # What it is
//! [`Guests`] decides, when a connection arrives, whether there is a place for it, which guest
//! makes room if there is none, or how long it waits. Pure: ports ask it, and carry the answer out.
//! Where a connection waits is up to the port: one way is a line of its address
//! ([`Lines`](crate::Lines)).
//!
//! # Rules
//! Places are bounded, for all guests together and for those of one address, so that one host
//! cannot take all of them. A connection that finds no place takes that of the guest with the time
//! that is up first, among those of the address that has the most. A guest has [`Rules::grace`] in
//! any case, and longer once it has shown that it speaks. So a host of silent strangers costs a new
//! guest a wait of about the grace, and many clients that begin at one moment are let in one after
//! another. Those of one address beyond [`Rules::places`] may be closed (see `Lines`).
//!
//! # What it is not
//! The time limit of a handshake, which each port has. Connections that are admitted are not here,
//! and their number has its own bound: guests never take their places.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Bits of an IPv6 address that tell networks apart: one host can have all addresses below.
const NETWORK_BITS: u32 = 64;

/// Bounds on the guests of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Guests at a time. Connections that wait in [`Lines`](crate::Lines) are among them.
    pub places: usize,
    /// Guests of one address at a time.
    pub of_one: usize,
    /// Time in which no newcomer takes a guest's place.
    pub grace: Duration,
}

impl Rules {
    /// Rules for a port with this many places, three quarters of which one address may take.
    pub const fn of(places: usize) -> Self {
        let of_one = places - places / 4;
        Self { places, of_one, grace: Duration::from_millis(250) }
    }
}

/// Origin of a connection, as far as it is counted by origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Source {
    /// An address, or the network of 64 bits that an IPv6 address is in.
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

/// Place of a connection that has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seating<I> {
    /// There is a place.
    Free,
    /// The place of this guest: its connection is to be closed.
    Instead(I),
    /// None before this time has passed, unless a guest leaves.
    Wait(Duration),
}

/// The guests of a port, by their ids. Times are on any clock that does not go back.
#[derive(Debug)]
pub struct Guests<I> {
    rules: Rules,
    guests: BTreeMap<I, Guest>,
}

#[derive(Clone, Copy, Debug)]
struct Guest {
    source: Source,
    /// Time from which a newcomer may take its place.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }

    /// Places that no guest has.
    pub fn free(&self) -> usize {
        self.rules.places.saturating_sub(self.guests.len())
    }

    /// Whether `source` has as many guests as one may: only these make room for another of it,
    /// however many places are free.
    pub fn has_its_share(&self, source: Source) -> bool {
        self.of(source) >= self.rules.of_one
    }

    /// The place of a connection from `source` that arrives at `now`.
    pub fn place(&self, source: Source, now: Duration) -> Seating<I> {
        let crowded = if self.has_its_share(source) {
            source
        } else if self.guests.len() >= self.rules.places {
            self.most()
        } else {
            return Seating::Free;
        };
        let theirs = self.guests.iter().filter(|(_, guest)| guest.source == crowded);
        match theirs.min_by_key(|(_, guest)| guest.due) {
            None => Seating::Free,
            Some((id, guest)) if guest.due <= now => Seating::Instead(*id),
            Some((_, guest)) => Seating::Wait(guest.due - now),
        }
    }

    /// Adds a guest.
    pub fn enter(&mut self, id: I, source: Source, now: Duration) {
        self.guests.insert(id, Guest { source, due: now + self.rules.grace });
    }

    /// Keeps a guest's place for it until `due`, since it speaks as it should.
    pub fn keep(&mut self, id: I, due: Duration) {
        if let Some(guest) = self.guests.get_mut(&id) {
            guest.due = guest.due.max(due);
        }
    }

    /// Removes a guest that was admitted, or is gone; returns whether it was here.
    pub fn leave(&mut self, id: I) -> bool {
        self.guests.remove(&id).is_some()
    }

    fn of(&self, source: Source) -> usize {
        self.guests.values().filter(|guest| guest.source == source).count()
    }

    /// The source with the most guests.
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
        let cases: &[(&[_], u8, u64, Seating<u32>)] = &[
            (&[], 1, 0, Seating::Free),
            (&crowd[..2], 1, 20, Seating::Free),
            // One address has all that it may have; the last place is another's.
            (&crowd, 1, 40, Seating::Wait(ms(60))),
            (&crowd, 1, 100, Seating::Instead(0)),
            (&crowd, 2, 40, Seating::Free),
            // All places are taken: the crowd makes room, also for an old guest's host.
            (&crowd_and_one, 3, 99, Seating::Wait(ms(1))),
            (&crowd_and_one, 3, 200, Seating::Instead(0)),
            (&crowd_and_one, 2, 200, Seating::Instead(0)),
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
        assert_eq!(guests.place(host(1), ms(200)), Seating::Instead(1));
        // A shorter time is no gain.
        guests.keep(0, ms(1));
        assert!(guests.leave(1) && !guests.leave(1));
        assert_eq!((guests.place(host(1), ms(200)), guests.len()), (Seating::Free, 2));
        guests.enter(3, host(1), ms(200));
        assert_eq!(guests.place(host(1), ms(200)), Seating::Instead(2));
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
