//! `dslr` and `dslr+`: tickets in four counters of one word, by fetch-and-add (DSLR §4).
//!
//! The layout of the word is [`TicketFields`]. Locks are granted in the order of the tickets, to
//! readers together. A waiter reads the word from time to time; `dslr` and `dslr+` differ in how
//! often.
//!
//! # Used-up counters
//! The holder whose ticket reaches the limit sets the counters back when it releases. A request in
//! the meantime takes its ticket back and tries again later (DSLR §4.9).
//!
//! # As published, and fenced
//! As published, a waiter that sees no counter move for two lease terms sets the counters past
//! itself (DSLR §4.7): the waiter takes the lock from a holder that may only be slow. The slow
//! holder compares its ticket on release, too late for the data already written. Fenced, a lock has
//! no lease, and a lost holder's tickets go with a reset (`crate::reset`): every ticket is served,
//! taken back or erased (I297).
//!
//! Where the paper is silent or wrong: a reader's ticket is skipped only by writers (Algorithm 2,
//! line 3, fails the ticket as soon as a reader behind it has left). A skipping reader increments
//! the number of departed readers; the paper sets this number. A ticket is taken back by
//! compare-and-swap as published, because a subtraction might land on a word that was set back and
//! borrow through all counters. The lease of `k` tickets is `k` terms.

use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_sabotage::{Rule, broken};

use crate::contract::{
    Event, Guarantees, LockSystem, NotHeld, Pacing, Recovery, Request, Step, Verb, View,
};
use crate::word::{Head, Mode, TicketFields, Tickets};

/// The system. See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Dslr {
    /// Treatment of lost holders.
    pub recovery: Recovery,
    /// Time between two looks of a waiter.
    pub polling: Polling,
    /// One term of a lease, as published: 10 ms in DSLR §6.1.
    pub term: Duration,
    /// Unit and bound of the time until the request for a ticket is repeated after the ticket was
    /// taken back (DSLR §4.9, appendix A.6).
    pub again: (Duration, Duration),
}

/// Times chosen by DSLR's authors for their testbed, and varied in appendix A.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DslrTimes {
    /// Time between two looks for each ticket ahead: ω in DSLR §4.6. Not used by DSLR+.
    pub poll: Duration,
    /// One term of a lease.
    pub term: Duration,
    /// Bound of the time until the request for a ticket is repeated: L in appendix A.3.
    pub again_most: Duration,
}

impl DslrTimes {
    /// As published: ω = 5 µs, leases of 10 ms, L = 10 ms.
    pub const PUBLISHED: Self = Self {
        poll: Duration::from_micros(5),
        term: Duration::from_millis(10),
        again_most: Duration::from_millis(10),
    };
}

/// Time between two looks of a waiter.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Polling {
    /// A fixed time per ticket ahead: DSLR §4.6.
    Proportional(Duration),
    /// Truncated exponential back-off: DSLR+, in DecLock §2.3.
    Backoff(Pacing),
}

impl Dslr {
    /// Creates DSLR, with R = 10 µs (appendix A.3).
    pub const fn new(recovery: Recovery, times: DslrTimes) -> Self {
        let DslrTimes { poll, term, again_most } = times;
        let again = (Duration::from_micros(10), again_most);
        Self { recovery, polling: Polling::Proportional(poll), term, again }
    }

    /// Creates DSLR with the times of its paper.
    pub const fn published(recovery: Recovery) -> Self {
        Self::new(recovery, DslrTimes::PUBLISHED)
    }

    /// Creates DSLR+.
    pub const fn plus(recovery: Recovery, times: DslrTimes) -> Self {
        let polling = Polling::Backoff(Pacing::DSLR_PLUS);
        Self { polling, ..Self::new(recovery, times) }
    }

    const fn fields(&self) -> TicketFields {
        match self.recovery {
            Recovery::Paper => TicketFields::PAPER,
            Recovery::Fenced => TicketFields::WITH_RESETS,
        }
    }

    /// Largest number of outstanding tickets of all requests for one lock.
    pub const fn capacity(&self) -> u32 {
        self.fields().limit()
    }
}

/// State of a use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DslrUse {
    mode: Mode,
    count: u16,
    at: At,
    /// The word before the request: the ticket.
    ticket: u64,
    /// Whether the release has to set the counters back.
    drains: bool,
    /// Number of looks in vain, or of tickets taken back.
    failures: u32,
    /// Counters of served tickets, as last seen, and the time since which they have not changed;
    /// for leases.
    seen: Option<(u32, u32)>,
    since: Nanos,
    /// End of the lease.
    until: Nanos,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    /// A ticket has to be requested, or is being requested.
    Asking,
    /// The ticket is being taken back; the word that a swap expects, as published.
    TakingBack(Option<u64>),
    /// The counters are used up, and the ticket was taken back.
    Away,
    Waiting,
    /// The counters of this word are being set past the waiter.
    Skipping(u64),
    /// The used-up counters of this word are being set to zero; whether the use then fails.
    Clearing(u64, bool),
    Held,
    Leaving,
    /// The counters are being set back; the word that the swap expects.
    Draining(u64),
    /// A release is being taken back, because the ticket was skipped; the word that the swap
    /// expects.
    Undoing(u64),
}

impl Dslr {
    #[inline]
    fn ask(&self, of: &mut DslrUse) -> Step {
        of.at = At::Asking;
        Step::Post(Verb::Add(self.fields().asking(of.mode, of.count)))
    }

    /// Handles the answer of a request for a ticket.
    #[inline(always)]
    fn asked(&self, of: &mut DslrUse, found: u64, view: &mut View<'_>) -> Step {
        let fields = self.fields();
        let ticket = fields.of(found);
        if fields.is_full(found) {
            self.see(of, ticket, view);
            return self.take_back(of, found + fields.asking(of.mode, of.count));
        }
        (of.ticket, of.failures) = (found, 0);
        of.drains = ticket.given(of.mode) + u32::from(of.count) >= fields.limit();
        self.see(of, ticket, view);
        self.look(of, found, view)
    }

    /// Takes the ticket back from `word`.
    fn take_back(&self, of: &mut DslrUse, word: u64) -> Step {
        let summand = self.fields().asking(of.mode, of.count);
        match self.recovery {
            Recovery::Fenced => {
                of.at = At::TakingBack(None);
                Step::Post(Verb::Add(summand.wrapping_neg()))
            }
            Recovery::Paper => {
                of.at = At::TakingBack(Some(word));
                Step::Post(Verb::Swap { expected: word, new: word - summand })
            }
        }
    }

    /// Handles the answer of a verb that takes a ticket back.
    fn taken_back(
        &self,
        of: &mut DslrUse,
        expected: Option<u64>,
        found: u64,
        view: &mut View<'_>,
    ) -> Step {
        // A subtraction has succeeded; likewise a swap that found the expected word.
        let Some(expected) = expected else { return self.go_away(of, view) };
        let fields = self.fields();
        if found != expected {
            // Counters that were set back meanwhile do not contain the ticket any more.
            let is_gone = !fields.is_full(found);
            return if is_gone { self.go_away(of, view) } else { self.take_back(of, found) };
        }
        if view.now().since(of.since) > self.patience(1) {
            let word = found - fields.asking(of.mode, of.count);
            return self.clear(of, word, false);
        }
        self.go_away(of, view)
    }

    /// Tries again later: after a random time, up to a bound that doubles (DSLR appendix A.6).
    fn go_away(&self, of: &mut DslrUse, view: &mut View<'_>) -> Step {
        of.at = At::Away;
        of.failures += 1;
        let (unit, most) = self.again;
        let bound = unit.saturating_mul(1 << (of.failures - 1).min(31)).min(most);
        Step::Pause(rand::Rng::random_range(view.rng, Duration::ZERO..=bound))
    }

    /// Handles a look of a waiter at the word.
    #[inline(always)]
    fn look(&self, of: &mut DslrUse, found: u64, view: &mut View<'_>) -> Step {
        let (fields, now) = (self.fields(), self.fields().of(found));
        let ticket = fields.of(of.ticket);
        let is_later = of.at != At::Asking && now.n_s > ticket.max_s;
        if is_later && broken(Rule::ReadersIgnoreSiblings) {
            return Step::Gone(Err(NotHeld::Reset));
        }
        if now.serves(ticket, of.mode) {
            view.backoff.succeeded();
            of.at = At::Held;
            of.until = match self.recovery {
                Recovery::Paper => view.posted.after(self.term * u32::from(of.count)),
                Recovery::Fenced => Nanos::NEVER,
            };
            return Step::Held;
        }
        let asked_before = of.at != At::Asking;
        of.at = At::Waiting;
        if self.recovery == Recovery::Paper {
            if asked_before && now.has_skipped(ticket, of.mode) {
                return Step::Gone(Err(NotHeld::Reset));
            }
            self.see(of, now, view);
            if view.now().since(of.since) > self.patience(now.ahead(ticket)) {
                of.at = At::Skipping(found);
                return Step::Post(Verb::Swap { expected: found, new: self.past(of, found) });
            }
        }
        of.failures += 1;
        Step::Pause(match self.polling {
            Polling::Proportional(unit) => unit * now.ahead(ticket),
            Polling::Backoff(_) => view.back_off(of.failures),
        })
    }

    /// Returns `found` with the counters set past a waiter.
    fn past(&self, of: &DslrUse, found: u64) -> u64 {
        let fields = self.fields();
        let skipped = fields.of(found).skipped(fields.of(of.ticket), of.mode, of.count);
        fields.with(skipped, found)
    }

    /// Sets used-up counters to zero.
    fn clear(&self, of: &mut DslrUse, word: u64, then_fails: bool) -> Step {
        of.at = At::Clearing(word, then_fails);
        Step::Post(Verb::Swap { expected: word, new: 0 })
    }

    /// Handles the answer of a verb that only locks as published use.
    fn forced(&self, of: &mut DslrUse, found: u64, view: &mut View<'_>) -> Step {
        match of.at {
            At::Skipping(expected) if found == expected => {
                let word = self.past(of, found);
                match self.fields().is_full(word) {
                    true => self.clear(of, word, true),
                    false => Step::Gone(Err(NotHeld::Reset)),
                }
            }
            At::Skipping(_) => {
                of.at = At::Waiting;
                self.look(of, found, view)
            }
            At::Clearing(_, false) => self.go_away(of, view),
            At::Clearing(expected, true) => {
                // Requests in the meantime take back their additions.
                let full = self.fields().is_full(found);
                match found != expected && full {
                    true => self.clear(of, found, true),
                    false => Step::Gone(Err(NotHeld::Reset)),
                }
            }
            At::Undoing(expected) if found == expected => Step::Gone(Err(NotHeld::Reset)),
            At::Undoing(_) => self.undo(of, found),
            at => unreachable!("{at:?} is no forced step"),
        }
    }

    /// Notes the counters of served tickets, and since when they have not changed.
    fn see(&self, of: &mut DslrUse, tickets: Tickets, view: &View<'_>) {
        let seen = Some((tickets.n_x, tickets.n_s));
        if self.recovery == Recovery::Paper && seen != of.seen {
            (of.seen, of.since) = (seen, view.now());
        }
    }

    /// Time without a change after which the tickets ahead count as lost: twice the leases of these
    /// tickets.
    fn patience(&self, ahead: u32) -> Duration {
        self.term * (2 * ahead.max(1))
    }

    /// A pause is over.
    fn paused(&self, of: &mut DslrUse) -> Step {
        match of.at {
            At::Away => self.ask(of),
            At::Draining(_) => self.drain(of),
            _ => Step::Post(Verb::Read),
        }
    }

    #[inline]
    fn leave(&self, of: &mut DslrUse, view: &mut View<'_>) -> Step {
        if of.until != Nanos::NEVER && view.now() >= of.until && !of.drains {
            return Step::Gone(Err(NotHeld::Reset));
        }
        of.at = At::Leaving;
        Step::Post(Verb::Add(self.fields().leaving(of.mode, of.count)))
    }

    /// Handles the answer of a release.
    #[inline(always)]
    fn left(&self, of: &mut DslrUse, found: u64) -> Step {
        let fields = self.fields();
        let (ticket, before) = (fields.of(of.ticket), fields.of(found));
        if self.recovery == Recovery::Paper && before.has_skipped(ticket, of.mode) {
            let word = found.wrapping_add(fields.leaving(of.mode, of.count));
            return self.undo(of, word);
        }
        if !of.drains {
            return Step::Gone(Ok(()));
        }
        self.drain(of)
    }

    fn undo(&self, of: &mut DslrUse, word: u64) -> Step {
        of.at = At::Undoing(word);
        let new = word.wrapping_sub(self.fields().leaving(of.mode, of.count));
        Step::Post(Verb::Swap { expected: word, new })
    }

    /// Sets the counters back as soon as all tickets up to the use's own are served.
    fn drain(&self, of: &mut DslrUse) -> Step {
        let fields = self.fields();
        let served = fields.of(of.ticket).after(of.mode, of.count);
        let expected = fields.with(served, of.ticket);
        of.at = At::Draining(expected);
        Step::Post(Verb::Swap { expected, new: fields.with(Tickets::default(), of.ticket) })
    }
}

impl LockSystem for Dslr {
    type Use = DslrUse;

    fn name(&self) -> &'static str {
        match self.polling {
            Polling::Proportional(_) => "dslr",
            Polling::Backoff(_) => "dslr+",
        }
    }

    fn guarantees(&self) -> Guarantees {
        let survives_losses = self.recovery == Recovery::Fenced;
        Guarantees { shares: true, in_order: true, survives_losses, upgrades: false }
    }

    fn pacing(&self) -> Pacing {
        match self.polling {
            Polling::Proportional(_) => Pacing::NONE,
            Polling::Backoff(pacing) => pacing,
        }
    }

    fn can_leave(&self, of: &DslrUse) -> bool {
        matches!(of.at, At::Asking | At::Away)
    }

    fn head(&self) -> Option<Head> {
        self.fields().head()
    }

    fn is_free(&self, head: u64) -> bool {
        let Tickets { n_x, n_s, max_x, max_s } = self.fields().of(head);
        let is_resetting = self.head().is_some_and(|fields| fields.is_resetting(head));
        n_x == max_x && n_s == max_s && !is_resetting
    }

    #[inline]
    fn start(&self, request: Request) -> DslrUse {
        DslrUse {
            mode: request.mode,
            count: request.terms,
            at: At::Asking,
            ticket: 0,
            drains: false,
            failures: 0,
            seen: None,
            since: Nanos(0),
            until: Nanos::NEVER,
        }
    }

    #[inline]
    fn step(&self, of: &mut DslrUse, event: Event, view: &mut View<'_>) -> Step {
        let found = match event {
            Event::Found(found) => found,
            Event::Begin => return self.ask(of),
            Event::Paused => return self.paused(of),
            Event::Leave if of.at == At::Held => return self.leave(of, view),
            // Not posted yet, or taken back.
            Event::Leave if matches!(of.at, At::Asking | At::Away) => return Step::Gone(Ok(())),
            Event::Leave => unreachable!("a queue is not left: {of:?}"),
            Event::Upgrade => unreachable!("there are no update locks: {of:?}"),
            Event::Lost if of.at == At::Waiting => return Step::Post(Verb::Read),
            Event::Lost if self.recovery == Recovery::Fenced => return Step::Doubt,
            Event::Lost => return Step::Gone(Err(NotHeld::Unavailable)),
            Event::Told | Event::Written => {
                unreachable!("there are no notices, nor entries: {of:?}")
            }
        };
        let is_leaving = matches!(of.at, At::Leaving | At::Draining(_));
        if self.head().is_some_and(|head| head.is_resetting(found)) {
            return if is_leaving { Step::Gone(Ok(())) } else { Step::Barred };
        }
        match of.at {
            At::Asking => self.asked(of, found, view),
            At::TakingBack(expected) => self.taken_back(of, expected, found, view),
            At::Waiting => self.look(of, found, view),
            At::Leaving => self.left(of, found),
            At::Draining(expected) if found == expected => Step::Gone(Ok(())),
            At::Draining(_) => Step::Pause(self.again.0),
            At::Skipping(_) | At::Clearing(..) | At::Undoing(_) => self.forced(of, found, view),
            At::Away | At::Held => unreachable!("no verb is under way: {of:?}"),
        }
    }

    fn may_have_writer(&self, head: u64) -> bool {
        let Tickets { n_x, max_x, .. } = self.fields().of(head);
        n_x != max_x
    }

    fn has_leases(&self) -> bool {
        self.recovery == Recovery::Paper
    }

    fn holds_until(&self, of: &DslrUse) -> Nanos {
        of.until
    }
}
