//! `mcs`: a queue of waiters, each of which hands the lock to the next (MCS, on memory nodes as in
//! ShiftLock §3.3). The word is [`McsWord`].
//!
//! A request makes itself the tail. If there was a tail before, the request sends its name to the
//! previous tail, and waits until the lock is handed over. A release takes the use's name out of
//! the word, if the use is still the tail; otherwise the release hands the lock to the successor,
//! as soon as the successor is known. So a waiter posts no verb. All modes are exclusive.
//!
//! Where the fabric has masked atomics, a masked atomic replaces the tail; elsewhere a
//! compare-and-swap, repeated while other requests come between.
//!
//! # As published, and fenced
//! As published, a notice is sent once, and a lost notice stops the queue for ever, like a node
//! that dies in the queue. Fenced, notices are repeated until they are acknowledged (`client`), and
//! a queue that has lost a node is reset (`crate::reset`).

use std::time::Duration;

use lotus_fabric::verbs::Capabilities;
use lotus_locks::word::Head;
use lotus_locks::{
    Event, Guarantees, LockSystem, NotHeld, Notice, NoticeKind, Peer, Recovery, Request, Step,
    Verb, View, Waiter,
};

use crate::word::McsWord;

/// The system. See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Mcs {
    recovery: Recovery,
    /// Whether the fabric has masked atomics.
    has_masks: bool,
}

impl Mcs {
    /// Creates the system, with this treatment of lost holders.
    pub const fn new(recovery: Recovery) -> Self {
        Self { recovery, has_masks: false }
    }
}

/// State of a use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct McsUse {
    me: Peer,
    at: At,
    /// The word whose tail the use is, or was.
    word: McsWord,
    successor: Option<Peer>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    /// The use makes itself the tail, or is about to; the word that a swap expects, without masks.
    Asking(Option<u64>),
    /// The use has sent its name to its predecessor, or is about to, and waits for the lock.
    Behind,
    Held,
    /// The use takes its name out of the word.
    Leaving,
    /// The use has a successor, not known yet.
    Followed,
    HandingOver,
}

impl Mcs {
    /// Makes a use the tail of the lock, whose word was `seen` last.
    #[inline]
    fn ask(&self, of: &mut McsUse, seen: u64) -> Step {
        let tail = |word: McsWord| word.with_tail(of.me.who.raw(), of.me.number as u32).word();
        if self.has_masks {
            of.at = At::Asking(None);
            return Step::Post(Verb::Exchange { mask: McsWord::TAIL, new: tail(McsWord::of(0)) });
        }
        of.at = At::Asking(Some(seen));
        Step::Post(Verb::Swap { expected: seen, new: tail(McsWord::of(seen)) })
    }

    /// Handles the answer of a verb that makes a use the tail.
    #[inline]
    fn asked(&self, of: &mut McsUse, expected: Option<u64>, found: McsWord) -> Step {
        if found.is_resetting() {
            return Step::Barred;
        }
        if expected.is_some_and(|expected| expected != found.word()) {
            if found.is_free() {
                return self.ask(of, found.word());
            }
            // Not in the queue yet, the use may still leave.
            of.at = At::Asking(Some(found.word()));
            return Step::Pause(Duration::ZERO);
        }
        of.word = found.with_tail(of.me.who.raw(), of.me.number as u32);
        let Some(who) = Waiter::of(found.tail()) else {
            of.at = At::Held;
            return Step::Held;
        };
        of.at = At::Behind;
        let peer = Peer { who, number: u64::from(found.number()) };
        Step::Tell(Notice::new(NoticeKind::Successor, peer))
    }

    #[inline]
    fn leave(of: &mut McsUse) -> Step {
        if let Some(successor) = of.successor {
            return Self::hand_over(of, successor);
        }
        of.at = At::Leaving;
        let (expected, new) = (of.word.word(), of.word.without_tail().word());
        Step::Post(Verb::Swap { expected, new })
    }

    const fn hand_over(of: &mut McsUse, peer: Peer) -> Step {
        of.at = At::HandingOver;
        Step::Tell(Notice::new(NoticeKind::Handover, peer))
    }
}

impl LockSystem for Mcs {
    type Use = McsUse;

    const TELLS: bool = true;

    fn name(&self) -> &'static str {
        "mcs"
    }

    fn guarantees(&self) -> Guarantees {
        let survives_losses = self.recovery == Recovery::Fenced;
        Guarantees { shares: false, in_order: true, survives_losses, upgrades: false }
    }

    fn can_leave(&self, of: &McsUse) -> bool {
        matches!(of.at, At::Asking(_))
    }

    fn head(&self) -> Option<Head> {
        (self.recovery == Recovery::Fenced).then_some(McsWord::HEAD)
    }

    fn is_free(&self, head: u64) -> bool {
        McsWord::of(head).is_free()
    }

    fn fit(&mut self, fabric: &Capabilities) {
        self.has_masks = fabric.masked_atomics;
    }

    #[inline]
    fn start(&self, request: Request) -> McsUse {
        let me = Peer { who: request.who, number: 0 };
        McsUse { me, at: At::Asking(None), word: McsWord::of(0), successor: None }
    }

    #[inline]
    fn renumber(&self, of: &mut McsUse, number: u64) {
        of.me.number = number;
    }

    fn hear(&self, of: &mut McsUse, notice: Notice) -> Step {
        match (of.at, notice.kind()) {
            (At::Behind, NoticeKind::Handover) => {
                of.at = At::Held;
                Step::Held
            }
            (At::Followed, NoticeKind::Successor) => Self::hand_over(of, notice.peer()),
            (At::Behind | At::Held, NoticeKind::Successor) => {
                of.successor = Some(notice.peer());
                if of.at == At::Held { Step::Held } else { Step::Listen }
            }
            (at, kind) => unreachable!("{kind:?} at {at:?}"),
        }
    }

    #[inline]
    fn step(&self, of: &mut McsUse, event: Event, _: &mut View<'_>) -> Step {
        match (of.at, event) {
            (_, Event::Begin) => {
                of.successor = None;
                self.ask(of, 0)
            }
            (At::Asking(expected), Event::Found(found)) => {
                self.asked(of, expected, McsWord::of(found))
            }
            (At::Asking(seen), Event::Paused) => self.ask(of, seen.unwrap_or(0)),
            (At::Behind, Event::Told) => Step::Listen,
            (At::Held, Event::Leave) => Self::leave(of),
            (At::Leaving, Event::Found(found)) => {
                if found == of.word.word() || McsWord::of(found).is_resetting() {
                    return Step::Gone(Ok(()));
                }
                of.at = At::Followed;
                Step::Listen
            }
            // Handed over, or not in the queue.
            (At::HandingOver, Event::Told) | (At::Asking(_), Event::Leave) => Step::Gone(Ok(())),
            (_, Event::Lost) if self.recovery == Recovery::Fenced => Step::Doubt,
            (_, Event::Lost) => Step::Gone(Err(NotHeld::Unavailable)),
            (at, event) => unreachable!("{event:?} at {at:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_fabric::env::{Env, Nanos};
    use lotus_locks::word::Claimant;
    use lotus_locks::{Backoff, Pacing};

    const ME: Waiter = Waiter::new(1, 0, 3);
    const NUMBER: u64 = 7 << 40 | 0x1_2345_6789;
    const OTHER: Peer = Peer { who: Waiter::new(2, 0, 0), number: 8 << 40 | 5 };
    const GENERATION: u64 = 3 << 32;

    struct Machine(Mcs, McsUse);

    impl Machine {
        fn new(recovery: Recovery, masked_atomics: bool) -> Self {
            let mut mcs = Mcs::new(recovery);
            mcs.fit(&Capabilities { masked_atomics, ..Capabilities::default() });
            let life = Claimant::new(1, 7);
            let request =
                Request { mode: lotus_locks::word::Mode::Exclusive, who: ME, life, terms: 1 };
            let mut state = mcs.start(request);
            mcs.renumber(&mut state, NUMBER);
            Self(mcs, state)
        }

        fn step(&mut self, event: Event) -> Step {
            let mut view = View {
                clock: &|| Nanos(0),
                posted: Nanos(0),
                rng: &mut Env::real(1).rng(0),
                backoff: &mut Backoff::new(Pacing::NONE),
                is_settled: &|_| false,
                entries: &[],
            };
            self.0.step(&mut self.1, event, &mut view)
        }

        fn hear(&mut self, kind: NoticeKind) -> Step {
            self.0.hear(&mut self.1, Notice::new(kind, OTHER))
        }
    }

    fn tail(who: Waiter, number: u64) -> u64 {
        McsWord::of(GENERATION).with_tail(who.raw(), number as u32).word()
    }

    const HANDED: Step = Step::Tell(Notice::new(NoticeKind::Handover, OTHER));

    /// The one whose name was found is told; of its number the word has the low half.
    const TOLD: Step = Step::Tell(Notice::new(
        NoticeKind::Successor,
        Peer { who: OTHER.who, number: OTHER.number as u32 as u64 },
    ));

    #[test]
    fn a_free_lock_is_taken_and_left_by_one_verb_each() {
        let mut used = Machine::new(Recovery::Fenced, true);
        let new = McsWord::of(0).with_tail(ME.raw(), NUMBER as u32).word();
        let asks = Step::Post(Verb::Exchange { mask: McsWord::TAIL, new });
        assert_eq!(used.step(Event::Begin), asks);
        assert_eq!(used.step(Event::Found(GENERATION)), Step::Held);
        let swap = Verb::Swap { expected: tail(ME, NUMBER), new: GENERATION };
        assert_eq!(used.step(Event::Leave), Step::Post(swap));
        assert_eq!(used.step(Event::Found(tail(ME, NUMBER))), Step::Gone(Ok(())));
    }

    #[test]
    fn who_waits_tells_the_one_before_and_hands_over_to_the_one_behind() {
        let mut used = Machine::new(Recovery::Fenced, true);
        used.step(Event::Begin);
        assert_eq!(used.step(Event::Found(tail(OTHER.who, OTHER.number))), TOLD);
        assert_eq!(used.step(Event::Told), Step::Listen);
        assert!(!used.0.can_leave(&used.1));
        assert_eq!(used.hear(NoticeKind::Successor), Step::Listen);
        assert_eq!(used.hear(NoticeKind::Handover), Step::Held);
        assert_eq!(used.step(Event::Leave), HANDED);
        assert_eq!(used.step(Event::Told), Step::Gone(Ok(())));
    }

    #[test]
    fn who_was_followed_waits_until_it_knows_by_whom() {
        let mut used = Machine::new(Recovery::Fenced, true);
        used.step(Event::Begin);
        used.step(Event::Found(GENERATION));
        used.step(Event::Leave);
        let found = tail(OTHER.who, OTHER.number);
        assert_eq!(used.step(Event::Found(found)), Step::Listen);
        assert_eq!(used.hear(NoticeKind::Successor), HANDED);
        // Heard of before, nothing needs to be asked of the word.
        let mut used = Machine::new(Recovery::Fenced, true);
        used.step(Event::Begin);
        used.step(Event::Found(GENERATION));
        assert_eq!(used.hear(NoticeKind::Successor), Step::Held);
        assert_eq!(used.step(Event::Leave), HANDED);
    }

    #[test]
    fn without_masks_it_swaps_until_nobody_comes_between_and_may_give_up_meanwhile() {
        let mut used = Machine::new(Recovery::Fenced, false);
        let swap = |expected, tail| Step::Post(Verb::Swap { expected, new: tail });
        let guess = McsWord::of(0).with_tail(ME.raw(), NUMBER as u32).word();
        assert_eq!(used.step(Event::Begin), swap(0, guess));
        let found = tail(OTHER.who, OTHER.number);
        assert_eq!(used.step(Event::Found(found)), Step::Pause(Duration::ZERO));
        assert!(used.0.can_leave(&used.1));
        assert_eq!(used.step(Event::Paused), swap(found, tail(ME, NUMBER)));
        assert_eq!(used.step(Event::Found(GENERATION)), swap(GENERATION, tail(ME, NUMBER)));
        assert_eq!(used.step(Event::Found(GENERATION)), Step::Held);
    }

    #[test]
    fn resets_end_waits_and_releases_and_lost_answers_are_doubted_only_if_fenced() {
        let marked = tail(OTHER.who, OTHER.number) | McsWord::RESETTING;
        for (recovery, lost) in [
            (Recovery::Fenced, Step::Doubt),
            (Recovery::Paper, Step::Gone(Err(NotHeld::Unavailable))),
        ] {
            for masked in [true, false] {
                let mut used = Machine::new(recovery, masked);
                used.step(Event::Begin);
                assert_eq!(used.step(Event::Lost), lost);
                used.step(Event::Begin);
                assert_eq!(used.step(Event::Found(marked)), Step::Barred);
                let mut used = Machine::new(recovery, true);
                used.step(Event::Begin);
                used.step(Event::Found(0));
                used.step(Event::Leave);
                assert_eq!(used.step(Event::Lost), lost);
                assert_eq!(used.step(Event::Found(marked)), Step::Gone(Ok(())));
            }
        }
    }
}
