//! `dslr-u`: DSLR with update locks, tickets in six counters of one word (DSLR §5.2).
//!
//! The word is [`UpdateTickets`]. The system is [`Dslr`](super::Dslr), fenced, with a third mode.
//! The holder of an update lock reads beside the readers that came before it, and may write once
//! they have left. Later requests, also of readers, wait until the holder releases. So at most one
//! update lock is held at a time, and two upgrades never wait for each other.
//!
//! # Upgrades
//! A holder whose turn began without readers may write at once, without a verb. Otherwise the
//! holder reads the word until the readers before its ticket are served.
//!
//! In a lock that is being reset, holders that are told of the reset leave without being counted,
//! because the reset erases the counters. An upgrade of this lock could wait for readers that have
//! left, while the reset waits for the upgrading holder. The upgrade therefore ends, and the holder
//! reads on.
//!
//! Where the paper is silent: a reader may find more update tickets served than were given before
//! it, because update tickets behind the reader have their turns beside it. So a reader compares by
//! order, not for equality. The paper does not mention leases of update locks, so there is no
//! version as published.

use std::time::Duration;

use lotus_locks::systems::DslrTimes;
use lotus_locks::word::{Head, Mode};
use lotus_locks::{Event, Guarantees, LockSystem, Request, Step, Verb, View};

use crate::word::UpdateTickets;

/// The system. See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct DslrU {
    /// Time between two looks of a waiter, for each ticket ahead: ω in DSLR §4.6.
    pub unit: Duration,
    /// Unit and bound of the time until the request for a ticket is repeated after the ticket was
    /// taken back.
    pub again: (Duration, Duration),
}

impl DslrU {
    /// Largest number of outstanding tickets of all requests for one lock.
    pub const CAPACITY: u32 = UpdateTickets::LIMIT;

    /// Creates the system with these times, and R = 10 µs (appendix A.3). The system has no leases.
    pub const fn new(times: DslrTimes) -> Self {
        Self { unit: times.poll, again: (Duration::from_micros(10), times.again_most) }
    }

    /// Creates the system with the times of the paper.
    pub const fn published() -> Self {
        Self::new(DslrTimes::PUBLISHED)
    }
}

/// State of a use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UpdateUse {
    mode: Mode,
    count: u16,
    at: At,
    /// The word before the request: the ticket.
    ticket: u64,
    /// Whether the release has to set the counters back.
    drains: bool,
    /// Whether the readers before the use have left, as far as the use has seen.
    is_alone: bool,
    /// Number of times that the ticket was taken back.
    failures: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    /// A ticket has to be requested, or is being requested.
    Asking,
    /// The ticket is being taken back.
    TakingBack,
    /// The counters are used up, and the ticket was taken back.
    Away,
    Waiting,
    Held,
    /// The holder of an update lock waits for the readers before it.
    Upgrading,
    Leaving,
    /// The counters are being set back; the word that the swap expects.
    Draining(u64),
}

impl UpdateUse {
    fn ask(&mut self) -> Step {
        self.at = At::Asking;
        Step::Post(Verb::Add(UpdateTickets::asking(self.mode, self.count)))
    }

    /// Handles the answer of a request for a ticket.
    fn asked(&mut self, system: &DslrU, found: u64) -> Step {
        if UpdateTickets::is_full(found) {
            self.at = At::TakingBack;
            let summand = UpdateTickets::asking(self.mode, self.count);
            return Step::Post(Verb::Add(summand.wrapping_neg()));
        }
        (self.ticket, self.failures) = (found, 0);
        let given = UpdateTickets::of(found).given(self.mode);
        self.drains = given + u32::from(self.count) >= UpdateTickets::LIMIT;
        self.look(system, found)
    }

    /// Tries again later: after a random time, up to a bound that doubles.
    fn go_away(&mut self, system: &DslrU, view: &mut View<'_>) -> Step {
        self.at = At::Away;
        self.failures += 1;
        let (unit, most) = system.again;
        let bound = unit.saturating_mul(1 << (self.failures - 1).min(31)).min(most);
        Step::Pause(rand::Rng::random_range(view.rng, Duration::ZERO..=bound))
    }

    /// Handles a look of a waiter at the word.
    fn look(&mut self, system: &DslrU, found: u64) -> Step {
        let (ticket, now) = (UpdateTickets::of(self.ticket), UpdateTickets::of(found));
        if !now.serves(ticket, self.mode) {
            self.at = At::Waiting;
            return Step::Pause(system.unit * now.ahead(ticket));
        }
        (self.at, self.is_alone) = (At::Held, now.has_no_readers_before(ticket));
        Step::Held
    }

    /// Handles a look of an upgrade at the word.
    fn look_for_readers(&mut self, system: &DslrU, found: u64) -> Step {
        let (ticket, now) = (UpdateTickets::of(self.ticket), UpdateTickets::of(found));
        if !now.has_no_readers_before(ticket) {
            return Step::Pause(system.unit * now.readers_ahead(ticket));
        }
        (self.at, self.is_alone) = (At::Held, true);
        Step::Upgraded
    }

    fn upgrade(&mut self) -> Step {
        if self.is_alone {
            return Step::Upgraded;
        }
        self.at = At::Upgrading;
        Step::Post(Verb::Read)
    }

    fn paused(&mut self) -> Step {
        match self.at {
            At::Away => self.ask(),
            At::Draining(_) => self.drain(),
            _ => Step::Post(Verb::Read),
        }
    }

    fn leave(&mut self) -> Step {
        self.at = At::Leaving;
        Step::Post(Verb::Add(UpdateTickets::leaving(self.mode, self.count)))
    }

    /// Sets the counters back as soon as all tickets up to the use's own are served.
    fn drain(&mut self) -> Step {
        let served = UpdateTickets::of(self.ticket).after(self.mode, self.count);
        let expected = served.with(self.ticket);
        self.at = At::Draining(expected);
        let new = UpdateTickets::default().with(self.ticket);
        Step::Post(Verb::Swap { expected, new })
    }

    /// Handles the answer of a verb.
    fn found(&mut self, system: &DslrU, found: u64, view: &mut View<'_>) -> Step {
        if UpdateTickets::HEAD.is_resetting(found) {
            return match self.at {
                At::Leaving | At::Draining(_) => Step::Gone(Ok(())),
                _ => Step::Barred,
            };
        }
        match self.at {
            At::Asking => self.asked(system, found),
            At::TakingBack => self.go_away(system, view),
            At::Waiting => self.look(system, found),
            At::Upgrading => self.look_for_readers(system, found),
            At::Leaving if self.drains => self.drain(),
            At::Leaving => Step::Gone(Ok(())),
            At::Draining(expected) if found == expected => Step::Gone(Ok(())),
            At::Draining(_) => Step::Pause(system.again.0),
            At::Away | At::Held => unreachable!("no verb is under way: {self:?}"),
        }
    }
}

impl LockSystem for DslrU {
    type Use = UpdateUse;

    fn name(&self) -> &'static str {
        "dslr-u"
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { shares: true, in_order: true, survives_losses: true, upgrades: true }
    }

    fn can_leave(&self, of: &UpdateUse) -> bool {
        matches!(of.at, At::Asking | At::Away)
    }

    fn head(&self) -> Option<Head> {
        Some(UpdateTickets::HEAD)
    }

    fn is_free(&self, head: u64) -> bool {
        UpdateTickets::of(head).is_free() && !UpdateTickets::HEAD.is_resetting(head)
    }

    fn may_have_writer(&self, head: u64) -> bool {
        let UpdateTickets { n_x, n_u, max_x, max_u, .. } = UpdateTickets::of(head);
        n_x != max_x || n_u != max_u
    }

    fn start(&self, request: Request) -> UpdateUse {
        UpdateUse {
            mode: request.mode,
            count: request.terms,
            at: At::Asking,
            ticket: 0,
            drains: false,
            is_alone: false,
            failures: 0,
        }
    }

    fn step(&self, of: &mut UpdateUse, event: Event, view: &mut View<'_>) -> Step {
        match (event, of.at) {
            (Event::Found(found), _) => of.found(self, found, view),
            (Event::Begin, _) => of.ask(),
            (Event::Paused, _) => of.paused(),
            (Event::Upgrade, At::Held | At::Upgrading) => of.upgrade(),
            (Event::Leave, At::Held | At::Upgrading) => of.leave(),
            // Not posted yet, or taken back.
            (Event::Leave, At::Asking | At::Away) => Step::Gone(Ok(())),
            // A READ changes nothing, so there is nothing to doubt.
            (Event::Lost, At::Waiting | At::Upgrading) => Step::Post(Verb::Read),
            (Event::Lost, _) => Step::Doubt,
            (Event::Leave | Event::Upgrade | Event::Told | Event::Written, at) => {
                unreachable!("{event:?} at {at:?}")
            }
        }
    }
}
