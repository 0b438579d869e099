//! `drtm`: a writer by compare-and-swap, readers by a shared lease (DrTM, a baseline of DSLR §6.1
//! and ShiftLock §4.1). The word is [`DrtmWord`].
//!
//! A reader writes the end of its lease into the word, or relies on the lease found in the word, if
//! that lease lasts long enough. A reader releases nothing. A writer waits until the lease has
//! ended. So clocks are compared across nodes: each clock may deviate from the cluster's time by a
//! bound, by which readers stop earlier and writers begin later.
//!
//! A reader has to check the end of its lease ([`lotus_locks::Client::is_valid`]) before using data
//! that it has read. A writer has no lease: a lost writer keeps the lock.

use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_locks::word::{Head, Mode};
use lotus_locks::{Event, Guarantees, LockSystem, NotHeld, Pacing, Request, Step, Verb, View};

use crate::word::DrtmWord;

/// The system. See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Drtm {
    /// Duration of a reader's lease, for each requested term.
    pub lease: Duration,
    /// Bound of a clock's deviation.
    pub slack: Duration,
    /// Time between tries.
    pub pacing: Pacing,
}

impl Drtm {
    /// Leases of 1 ms, and clocks that are off by 50 µs at most (ShiftLock §4.1).
    pub const fn published(pacing: Pacing) -> Self {
        Self { lease: Duration::from_millis(1), slack: Duration::from_micros(50), pacing }
    }

    fn ask(&self, of: &mut DrtmUse, seen: DrtmWord, view: &View<'_>) -> Step {
        let new = match of.mode {
            Mode::Shared => DrtmWord::leased(view.now().after(self.lease * u32::from(of.terms))),
            Mode::Update | Mode::Exclusive => DrtmWord::written(of.node),
        };
        of.at = At::Asking { expected: seen, new };
        Step::Post(Verb::Swap { expected: seen.word(), new: new.word() })
    }

    /// Handles the answer of a swap that was to replace `expected` by `new`.
    fn asked(
        &self,
        of: &mut DrtmUse,
        (expected, new): (DrtmWord, DrtmWord),
        found: DrtmWord,
        view: &mut View<'_>,
    ) -> Step {
        if found == expected {
            return self.hold(of, new, view);
        }
        if !found.is_written() {
            let now = view.now();
            if now > found.lease().after(self.slack) {
                return self.ask(of, found, view);
            }
            // The reader joins the lease only if the lease lasts for half of the reader's own, on
            // any clock.
            let needed = self.lease * u32::from(of.terms) / 2 + self.slack;
            if of.mode == Mode::Shared && found.lease() >= now.after(needed) {
                return self.hold(of, found, view);
            }
        }
        of.failures += 1;
        of.at = At::Pausing(found);
        Step::Pause(view.back_off(of.failures))
    }

    fn hold(&self, of: &mut DrtmUse, word: DrtmWord, view: &mut View<'_>) -> Step {
        view.backoff.succeeded();
        of.at = At::Held(word);
        Step::Held
    }
}

/// State of a use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DrtmUse {
    mode: Mode,
    node: u8,
    terms: u16,
    failures: u32,
    at: At,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    /// A swap has to be posted, or is under way.
    Asking {
        expected: DrtmWord,
        new: DrtmWord,
    },
    /// The use has found this word, and tries again later.
    Pausing(DrtmWord),
    /// The word of the use itself, or the word with the lease that the use relies on.
    Held(DrtmWord),
    Leaving,
}

impl LockSystem for Drtm {
    type Use = DrtmUse;

    fn name(&self) -> &'static str {
        "drtm"
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { shares: true, in_order: false, survives_losses: false, upgrades: false }
    }

    fn pacing(&self) -> Pacing {
        self.pacing
    }

    fn head(&self) -> Option<Head> {
        None
    }

    /// A lease that has not ended yet ends by itself.
    fn is_free(&self, head: u64) -> bool {
        !DrtmWord::of(head).is_written()
    }

    fn start(&self, request: Request) -> DrtmUse {
        let Request { mode, life, terms, .. } = request;
        let at = At::Pausing(DrtmWord::of(0));
        DrtmUse { mode, node: life.node(), terms, failures: 0, at }
    }

    fn step(&self, of: &mut DrtmUse, event: Event, view: &mut View<'_>) -> Step {
        match (of.at, event) {
            (_, Event::Begin) => self.ask(of, DrtmWord::of(0), view),
            (At::Pausing(seen), Event::Paused) => {
                // Only an ended lease is replaced.
                let is_over = !seen.is_written() && view.now() > seen.lease().after(self.slack);
                self.ask(of, if is_over { seen } else { DrtmWord::of(0) }, view)
            }
            (At::Asking { expected, new }, Event::Found(found)) => {
                self.asked(of, (expected, new), DrtmWord::of(found), view)
            }
            (At::Held(word), Event::Leave) if word.is_written() => {
                of.at = At::Leaving;
                Step::Post(Verb::Swap { expected: word.word(), new: 0 })
            }
            (At::Leaving, Event::Found(_)) | (_, Event::Leave) => Step::Gone(Ok(())),
            (_, Event::Lost) => Step::Gone(Err(NotHeld::Unavailable)),
            (at, event) => unreachable!("{event:?} at {at:?}"),
        }
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn holds_until(&self, of: &DrtmUse) -> Nanos {
        match of.at {
            At::Held(word) if !word.is_written() => {
                Nanos(word.lease().0.saturating_sub(self.slack.as_nanos() as u64))
            }
            _ => Nanos::NEVER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_fabric::env::Env;
    use lotus_locks::word::Claimant;
    use lotus_locks::{Backoff, Waiter};

    const MILLI: u64 = 1_000_000;
    /// The bound of clocks, in nanoseconds.
    const SLACK: u64 = 50_000;

    struct Machine(Drtm, DrtmUse);

    impl Machine {
        fn new(mode: Mode, terms: u16) -> Self {
            let drtm = Drtm::published(Pacing::NONE);
            let life = Claimant::new(5, 1);
            Self(drtm, drtm.start(Request { mode, who: Waiter::new(5, 0, 0), life, terms }))
        }

        fn at(&mut self, now: u64, event: Event) -> Step {
            let mut view = View {
                clock: &|| Nanos(now),
                posted: Nanos(now),
                rng: &mut Env::real(1).rng(0),
                backoff: &mut Backoff::new(Pacing::NONE),
                is_settled: &|_| false,
                entries: &[],
            };
            self.0.step(&mut self.1, event, &mut view)
        }
    }

    fn swap(expected: u64, new: u64) -> Step {
        Step::Post(Verb::Swap { expected, new })
    }

    const WRITTEN: u64 = 1 << 63 | 5 << 55;
    const OTHER: u64 = 1 << 63 | 6 << 55;
    const AGAIN: Step = Step::Pause(Duration::ZERO);

    #[test]
    fn a_writer_swaps_the_free_word_and_back() {
        let mut writer = Machine::new(Mode::Exclusive, 1);
        assert_eq!(writer.at(7, Event::Begin), swap(0, WRITTEN));
        assert_eq!(writer.at(8, Event::Found(0)), Step::Held);
        assert_eq!(writer.0.holds_until(&writer.1), Nanos::NEVER);
        assert_eq!(writer.at(9, Event::Leave), swap(WRITTEN, 0));
        assert_eq!(writer.at(9, Event::Found(WRITTEN)), Step::Gone(Ok(())));
    }

    #[test]
    fn a_writer_waits_for_another_and_for_the_end_of_a_lease_on_every_clock() {
        let mut writer = Machine::new(Mode::Exclusive, 1);
        writer.at(0, Event::Begin);
        assert_eq!(writer.at(0, Event::Found(OTHER)), AGAIN);
        assert_eq!(writer.at(0, Event::Paused), swap(0, WRITTEN));
        // A lease ends at one millisecond: it may be replaced when all clocks say so.
        assert_eq!(writer.at(MILLI + SLACK, Event::Found(MILLI)), AGAIN);
        assert_eq!(writer.at(MILLI + SLACK, Event::Paused), swap(0, WRITTEN));
        assert_eq!(writer.at(MILLI + SLACK + 1, Event::Found(MILLI)), swap(MILLI, WRITTEN));
        // Readers took another lease meanwhile.
        assert_eq!(writer.at(2 * MILLI, Event::Found(3 * MILLI)), AGAIN);
        let late = 3 * MILLI + SLACK + 1;
        assert_eq!(writer.at(late, Event::Paused), swap(3 * MILLI, WRITTEN));
        assert_eq!(writer.at(late, Event::Found(3 * MILLI)), Step::Held);
    }

    #[test]
    fn a_reader_takes_a_lease_and_releases_nothing() {
        for terms in [1, 3] {
            let end = 100 + u64::from(terms) * MILLI;
            let mut reader = Machine::new(Mode::Shared, terms);
            assert_eq!(reader.at(100, Event::Begin), swap(0, end));
            assert_eq!(reader.at(200, Event::Found(0)), Step::Held);
            assert_eq!(reader.0.holds_until(&reader.1), Nanos(end - SLACK));
            assert_eq!(reader.at(300, Event::Leave), Step::Gone(Ok(())));
        }
    }

    #[test]
    fn a_reader_joins_a_lease_that_lasts_and_replaces_one_that_has_ended() {
        let end = 9 * MILLI;
        let enough = end - MILLI / 2 - SLACK;
        for (now, expected) in [
            (enough, Step::Held),
            (enough + 1, AGAIN),
            (end + SLACK, AGAIN),
            (end + SLACK + 1, swap(end, end + SLACK + 1 + MILLI)),
        ] {
            let mut reader = Machine::new(Mode::Shared, 1);
            reader.at(0, Event::Begin);
            assert_eq!(reader.at(now, Event::Found(end)), expected, "{now}");
            if expected == Step::Held {
                assert_eq!(reader.0.holds_until(&reader.1), Nanos(end - SLACK));
            }
        }
        let mut reader = Machine::new(Mode::Shared, 1);
        reader.at(0, Event::Begin);
        assert_eq!(reader.at(0, Event::Found(OTHER)), AGAIN, "a writer");
    }

    #[test]
    fn whoever_waits_may_leave_and_a_lost_answer_ends_the_use() {
        let mut writer = Machine::new(Mode::Exclusive, 1);
        writer.at(0, Event::Begin);
        writer.at(0, Event::Found(OTHER));
        assert_eq!(writer.at(0, Event::Leave), Step::Gone(Ok(())));
        let mut writer = Machine::new(Mode::Exclusive, 1);
        writer.at(0, Event::Begin);
        assert_eq!(writer.at(0, Event::Lost), Step::Gone(Err(NotHeld::Unavailable)));
        for free in [0, MILLI] {
            assert!(writer.0.is_free(free));
        }
        assert!(!writer.0.is_free(OTHER));
    }
}
