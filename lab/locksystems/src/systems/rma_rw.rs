//! `rma-rw`: readers by counters that prefer them, writers in a queue that hand the lock on
//! (RMA-RW, as a baseline of ShiftLock §4.1). The first word is the queue's tail ([`McsWord`]), as
//! in `mcs`; the second word has the readers' counters ([`RmaRwCounts`]).
//!
//! A reader counts itself. If writers have the lock, or the limit of readers is reached, the reader
//! takes its count back and polls. The first of the writers waits until no reader is there,
//! announces writers, and waits for the readers that came in between. It hands the lock on to the
//! next writer at once. After some writers, or without a next writer, readers are admitted again,
//! and both counters are set back. Without writers, a reader sets the used-up counters back.
//!
//! As published, nothing makes up for a lost node, or for a lost message.

use std::time::Duration;

use lotus_fabric::verbs::Capabilities;
use lotus_locks::word::{Head, Mode};
use lotus_locks::{
    Event, Guarantees, LockSystem, NotHeld, Notice, NoticeKind, Peer, Request, Step, Verb, View,
    Waiter,
};

use crate::word::{McsWord, RmaRwCounts};

/// The system. See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct RmaRw {
    /// Largest number of consecutive writers before readers are admitted.
    most_writers: u32,
    /// Whether the fabric has masked atomics.
    has_masks: bool,
}

/// State of a use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RmaRwUse {
    is_reader: bool,
    me: Peer,
    at: At,
    /// Number of looks in vain.
    failures: u32,
    /// The first word, whose tail the writer is, or was.
    word: McsWord,
    successor: Option<Peer>,
    /// Number of consecutive writers since the last readers, including this writer; 0 if the writer
    /// has to wait for readers.
    run: u32,
    /// Number of departed readers when writers got the lock.
    gone: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    /// A reader counts itself, or is about to.
    Coming,
    /// The reader takes back its count.
    TakingBack,
    /// The reader looks at the counters from time to time.
    Polling,
    /// The counters are used up: the reader checks whether a writer waits, which would set them
    /// back.
    AskingForWriters,
    /// The reader sets the counters back.
    SettingBack,
    Reading,
    Going,
    /// A writer makes itself the tail, or is about to; the word that a swap expects, without masks.
    Enqueueing(Option<u64>),
    /// The writer has sent its name to its predecessor, or is about to, and waits for the lock.
    Behind,
    /// The first of the writers waits until no reader is there.
    Draining,
    Announcing,
    /// The writer waits for the readers that came before its announcement.
    Clearing,
    Writing,
    /// The writer admits readers.
    Admitting,
    /// The writer takes its name out of the first word.
    Dequeueing,
    /// The writer has a successor, not known yet.
    Followed,
    HandingOver,
}

impl RmaRwUse {
    const fn post(&mut self, at: At, verb: Verb) -> Step {
        self.at = at;
        Step::Post(verb)
    }

    /// Looks at the counters again later.
    fn look_again(&mut self, at: At, view: &mut View<'_>) -> Step {
        self.at = at;
        self.failures += 1;
        Step::Pause(view.back_off(self.failures))
    }

    fn come(&mut self) -> Step {
        self.post(At::Coming, Verb::Add(RmaRwCounts::COMES))
    }

    /// Returns the step of an uncounted reader that sees these counters.
    fn seen(&mut self, counts: RmaRwCounts, view: &mut View<'_>) -> Step {
        if counts.admits() {
            self.come()
        } else if counts == RmaRwCounts::USED_UP {
            self.post(At::AskingForWriters, Verb::Read)
        } else {
            self.look_again(At::Polling, view)
        }
    }

    /// Handles a look of the first of the writers at the readers' counters.
    fn drained(&mut self, counts: RmaRwCounts, view: &mut View<'_>) -> Step {
        // The previous writer has admitted readers when it left the queue.
        let is_announced = counts.has_writers();
        match (self.at, counts.is_drained()) {
            (At::Draining, true) if !is_announced => {
                self.post(At::Announcing, Verb::Add(RmaRwCounts::ANNOUNCED))
            }
            (At::Draining, _) => self.look_again(At::Draining, view),
            (_, true) => {
                (self.at, self.run, self.gone) = (At::Writing, 1, counts.gone());
                Step::Held
            }
            (_, false) => self.look_again(At::Clearing, view),
        }
    }

    /// Ends the turn of a writer.
    fn leave(&mut self, most_writers: u32) -> Step {
        match self.successor {
            Some(successor) if self.run < most_writers => self.hand_over(successor),
            _ => {
                let admitting = RmaRwCounts::admitting(self.gone);
                self.run = 0;
                self.post(At::Admitting, Verb::Add(admitting))
            }
        }
    }

    const fn dequeue(&mut self) -> Step {
        let (expected, new) = (self.word.word(), self.word.without_tail().word());
        self.post(At::Dequeueing, Verb::Swap { expected, new })
    }

    const fn hand_over(&mut self, successor: Peer) -> Step {
        self.at = At::HandingOver;
        Step::Tell(Notice::new(NoticeKind::Handover, successor))
    }
}

impl RmaRw {
    /// Creates the system with this bound of consecutive writers.
    pub const fn new(most_writers: u32) -> Self {
        Self { most_writers, has_masks: false }
    }

    /// Creates the system with at most 16 consecutive writers.
    pub const fn published() -> Self {
        Self::new(16)
    }

    /// Makes a writer the tail of the queue, whose word was `seen` last.
    fn enqueue(self, of: &mut RmaRwUse, seen: u64) -> Step {
        let tail = |word: McsWord| word.with_tail(of.me.who.raw(), of.me.number as u32).word();
        if self.has_masks {
            let new = tail(McsWord::of(0));
            return of.post(At::Enqueueing(None), Verb::Exchange { mask: McsWord::TAIL, new });
        }
        let new = tail(McsWord::of(seen));
        of.post(At::Enqueueing(Some(seen)), Verb::Swap { expected: seen, new })
    }

    /// Handles the answer of a verb that makes a writer the tail.
    fn enqueued(self, of: &mut RmaRwUse, expected: Option<u64>, found: McsWord) -> Step {
        if expected.is_some_and(|expected| expected != found.word()) {
            if found.is_free() {
                return self.enqueue(of, found.word());
            }
            // Not in the queue yet, the writer may still leave.
            of.at = At::Enqueueing(Some(found.word()));
            return Step::Pause(Duration::ZERO);
        }
        of.word = found.with_tail(of.me.who.raw(), of.me.number as u32);
        match Waiter::of(found.tail()) {
            None => of.post(At::Draining, Verb::Read),
            Some(who) => {
                of.at = At::Behind;
                let before = Peer { who, number: u64::from(found.number()) };
                Step::Tell(Notice::new(NoticeKind::Successor, before))
            }
        }
    }

    /// Handles the answer of a verb on the second word.
    fn counted(of: &mut RmaRwUse, found: RmaRwCounts, view: &mut View<'_>) -> Step {
        match of.at {
            At::Coming if found.admits() => {
                of.at = At::Reading;
                Step::Held
            }
            At::Coming => of.post(At::TakingBack, Verb::Add(RmaRwCounts::COMES.wrapping_neg())),
            At::TakingBack => {
                let left = RmaRwCounts::of(found.word().wrapping_sub(RmaRwCounts::COMES));
                of.seen(left, view)
            }
            At::SettingBack if found == RmaRwCounts::USED_UP => of.come(),
            At::Polling | At::SettingBack => of.seen(found, view),
            At::Going => Step::Gone(Ok(())),
            At::Announcing => {
                let counts = RmaRwCounts::of(found.word() + RmaRwCounts::ANNOUNCED);
                of.drained(counts, view)
            }
            At::Draining | At::Clearing => of.drained(found, view),
            At::Admitting => match of.successor {
                Some(successor) => of.hand_over(successor),
                None => of.dequeue(),
            },
            at => unreachable!("{at:?} is no step of counters"),
        }
    }
}

impl LockSystem for RmaRw {
    type Use = RmaRwUse;

    const TELLS: bool = true;
    const TWO_WORDS: bool = true;

    fn name(&self) -> &'static str {
        "rma-rw"
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { shares: true, in_order: false, survives_losses: false, upgrades: false }
    }

    fn can_leave(&self, of: &RmaRwUse) -> bool {
        matches!(of.at, At::Coming | At::Polling | At::Enqueueing(_))
    }

    fn head(&self) -> Option<Head> {
        None
    }

    fn is_free(&self, head: u64) -> bool {
        McsWord::of(head).is_free()
    }

    fn may_have_writer(&self, head: u64) -> bool {
        !self.is_free(head)
    }

    fn is_unused(&self, words: [u64; 2]) -> bool {
        let counts = RmaRwCounts::of(words[1]);
        self.is_free(words[0]) && counts.is_drained() && !counts.has_writers()
    }

    fn fit(&mut self, fabric: &Capabilities) {
        self.has_masks = fabric.masked_atomics;
    }

    fn start(&self, request: Request) -> RmaRwUse {
        let is_reader = request.mode == Mode::Shared;
        RmaRwUse {
            is_reader,
            me: Peer { who: request.who, number: 0 },
            at: if is_reader { At::Coming } else { At::Enqueueing(None) },
            failures: 0,
            word: McsWord::of(0),
            successor: None,
            run: 0,
            gone: 0,
        }
    }

    fn is_second(&self, of: &RmaRwUse) -> bool {
        !matches!(of.at, At::AskingForWriters | At::Enqueueing(_) | At::Dequeueing)
    }

    fn renumber(&self, of: &mut RmaRwUse, number: u64) {
        of.me.number = number;
    }

    /// Payload of a hand-over: the next writer's position since readers were there, and the number
    /// of departed readers at that time; zero if the next writer has to wait for readers.
    fn says(&self, of: &RmaRwUse) -> u64 {
        match of.at {
            At::HandingOver if of.run > 0 => {
                u64::from(of.run + 1) << u32::BITS | u64::from(of.gone)
            }
            _ => 0,
        }
    }

    fn take_note(&self, of: &mut RmaRwUse, notice: Notice, says: u64) -> bool {
        if notice.kind() == NoticeKind::Handover {
            (of.run, of.gone) = ((says >> u32::BITS) as u32, says as u32);
        }
        true
    }

    fn hear(&self, of: &mut RmaRwUse, notice: Notice) -> Step {
        match (of.at, notice.kind()) {
            (At::Behind, NoticeKind::Handover) if of.run > 0 => {
                of.at = At::Writing;
                Step::Held
            }
            (At::Behind, NoticeKind::Handover) => of.post(At::Draining, Verb::Read),
            (At::Followed, NoticeKind::Successor) => of.hand_over(notice.peer()),
            (At::Behind | At::Writing, NoticeKind::Successor) => {
                of.successor = Some(notice.peer());
                if of.at == At::Writing { Step::Held } else { Step::Listen }
            }
            (at, kind) => unreachable!("{kind:?} at {at:?}"),
        }
    }

    fn step(&self, of: &mut RmaRwUse, event: Event, view: &mut View<'_>) -> Step {
        match (of.at, event) {
            (_, Event::Begin) if of.is_reader => of.come(),
            (_, Event::Begin) => self.enqueue(of, 0),
            (At::Enqueueing(expected), Event::Found(found)) => {
                self.enqueued(of, expected, McsWord::of(found))
            }
            (At::Enqueueing(seen), Event::Paused) => self.enqueue(of, seen.unwrap_or(0)),
            (At::AskingForWriters, Event::Found(found)) if McsWord::of(found).is_free() => {
                let expected = RmaRwCounts::USED_UP.word();
                of.post(At::SettingBack, Verb::Swap { expected, new: 0 })
            }
            (At::AskingForWriters, Event::Found(_)) => of.look_again(At::Polling, view),
            (At::Dequeueing, Event::Found(found)) if found == of.word.word() => Step::Gone(Ok(())),
            (At::Dequeueing, Event::Found(_)) => {
                of.at = At::Followed;
                Step::Listen
            }
            (_, Event::Found(found)) => Self::counted(of, RmaRwCounts::of(found), view),
            (At::Polling | At::Draining | At::Clearing, Event::Paused) => Step::Post(Verb::Read),
            (At::Behind, Event::Told) => Step::Listen,
            (At::HandingOver, Event::Told) => Step::Gone(Ok(())),
            (At::Reading, Event::Leave) => of.post(At::Going, Verb::Add(RmaRwCounts::GOES)),
            (At::Writing, Event::Leave) => of.leave(self.most_writers),
            (At::Coming | At::Polling | At::Enqueueing(_), Event::Leave) => Step::Gone(Ok(())),
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
    const NUMBER: u64 = 7 << 40 | 9;
    const OTHER: Peer = Peer { who: Waiter::new(2, 0, 0), number: 8 << 40 | 5 };
    const COMES: u64 = RmaRwCounts::COMES;
    const LOOK: Step = Step::Pause(Duration::ZERO);
    const GONE: Step = Step::Gone(Ok(()));
    const READ: Step = Step::Post(Verb::Read);

    struct Machine(RmaRw, RmaRwUse);

    impl Machine {
        fn new(mode: Mode, masked_atomics: bool) -> Self {
            let mut rma_rw = RmaRw::published();
            rma_rw.fit(&Capabilities { masked_atomics, ..Capabilities::default() });
            let life = Claimant::new(1, 7);
            let mut state = rma_rw.start(Request { mode, who: ME, life, terms: 1 });
            rma_rw.renumber(&mut state, NUMBER);
            Self(rma_rw, state)
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

        /// The step after the verb has found `word`, which was to be on the second word or not.
        fn found(&mut self, is_second: bool, word: u64) -> Step {
            assert_eq!(self.0.is_second(&self.1), is_second, "{:?}", self.1.at);
            self.step(Event::Found(word))
        }

        fn hear(&mut self, kind: NoticeKind, says: u64) -> Step {
            let notice = Notice::new(kind, OTHER);
            assert!(self.0.take_note(&mut self.1, notice, says));
            self.0.hear(&mut self.1, notice)
        }

        /// A writer that has told the one before it.
        fn behind() -> Self {
            let mut writer = Self::new(Mode::Exclusive, true);
            writer.step(Event::Begin);
            let before = McsWord::of(0).with_tail(OTHER.who.raw(), OTHER.number as u32);
            let named = Peer { number: u64::from(OTHER.number as u32), ..OTHER };
            let tell = Step::Tell(Notice::new(NoticeKind::Successor, named));
            assert_eq!(writer.found(false, before.word()), tell);
            assert_eq!(writer.0.says(&writer.1), 0);
            assert_eq!(writer.step(Event::Told), Step::Listen);
            writer
        }
    }

    const fn add(summand: u64) -> Step {
        Step::Post(Verb::Add(summand))
    }

    fn tail() -> u64 {
        McsWord::of(0).with_tail(ME.raw(), NUMBER as u32).word()
    }

    /// The second word, with writers.
    const fn announced(come: u32, gone: u32) -> u64 {
        RmaRwCounts::new(come, gone).word() + RmaRwCounts::ANNOUNCED
    }

    const fn counted(come: u32, gone: u32) -> u64 {
        RmaRwCounts::new(come, gone).word()
    }

    #[test]
    fn a_reader_comes_and_goes() {
        let mut reader = Machine::new(Mode::Shared, true);
        assert_eq!(reader.step(Event::Begin), add(COMES));
        assert_eq!(reader.found(true, counted(3999, 7)), Step::Held);
        assert_eq!(reader.step(Event::Leave), add(RmaRwCounts::GOES));
        assert_eq!(reader.found(true, counted(4000, 7)), GONE);
    }

    #[test]
    fn a_reader_that_meets_writers_takes_its_count_back_and_polls() {
        let mut reader = Machine::new(Mode::Shared, true);
        reader.step(Event::Begin);
        assert_eq!(reader.found(true, announced(5, 5)), add(COMES.wrapping_neg()));
        assert!(!reader.0.can_leave(&reader.1), "it is counted");
        assert_eq!(reader.found(true, announced(6, 5)), LOOK);
        assert_eq!(reader.step(Event::Paused), READ);
        assert_eq!(reader.found(true, announced(5, 5)), LOOK);
        assert_eq!(reader.step(Event::Paused), READ);
        assert_eq!(reader.found(true, 0), add(COMES));
        assert!(reader.0.can_leave(&reader.1), "not counted yet");
    }

    #[test]
    fn counters_that_are_used_up_are_set_back_by_a_reader_once_and_only_without_writers() {
        // What it finds when it has taken its count back, in the first word, and when it swaps.
        let swap = Step::Post(Verb::Swap { expected: counted(4000, 4000), new: 0 });
        for (left, first, then, after) in [
            (counted(4001, 4000), 0, swap, Some((counted(4000, 4000), add(COMES)))),
            (counted(4001, 4000), 0, swap, Some((counted(1, 0), add(COMES)))),
            (counted(4001, 4000), 0, swap, Some((counted(4001, 4000), LOOK))),
            (counted(4001, 4000), tail(), LOOK, None),
        ] {
            let mut reader = Machine::new(Mode::Shared, true);
            reader.step(Event::Begin);
            reader.found(true, counted(4000, 4000));
            assert_eq!(reader.found(true, left), READ);
            assert_eq!(reader.found(false, first), then);
            if let Some((found, after)) = after {
                assert_eq!(reader.found(true, found), after);
            }
        }
        let mut reader = Machine::new(Mode::Shared, true);
        reader.step(Event::Begin);
        reader.found(true, counted(4000, 3999));
        assert_eq!(reader.found(true, counted(4001, 3999)), LOOK, "readers are there");
    }

    #[test]
    fn a_writer_enqueues_waits_for_readers_and_leaves_the_counters_at_zero() {
        for has_masks in [true, false] {
            let mut writer = Machine::new(Mode::Exclusive, has_masks);
            let enqueue = match has_masks {
                true => Verb::Exchange { mask: McsWord::TAIL, new: tail() },
                false => Verb::Swap { expected: 0, new: tail() },
            };
            assert_eq!(writer.step(Event::Begin), Step::Post(enqueue));
            assert_eq!(writer.found(false, 0), READ);
            assert_eq!(writer.found(true, announced(2, 2)), LOOK, "of the one who has left");
            assert_eq!(writer.step(Event::Paused), READ);
            assert_eq!(writer.found(true, counted(3, 2)), LOOK);
            assert_eq!(writer.step(Event::Paused), READ);
            assert_eq!(writer.found(true, counted(3, 3)), add(RmaRwCounts::ANNOUNCED));
            assert_eq!(writer.found(true, counted(4, 3)), LOOK, "a reader has come");
            assert_eq!(writer.step(Event::Paused), READ);
            assert!(!writer.0.can_leave(&writer.1));
            assert_eq!(writer.found(true, announced(4, 4)), Step::Held);
            assert_eq!(writer.step(Event::Leave), add(RmaRwCounts::admitting(4)));
            let dequeue = Step::Post(Verb::Swap { expected: tail(), new: 0 });
            assert_eq!(writer.found(true, announced(4, 4)), dequeue);
            assert_eq!(writer.found(false, tail()), GONE);
        }
    }

    #[test]
    fn without_masks_a_writer_that_is_passed_tries_again() {
        let mut writer = Machine::new(Mode::Exclusive, false);
        writer.step(Event::Begin);
        let before = McsWord::of(0).with_tail(OTHER.who.raw(), 5).word();
        assert_eq!(writer.found(false, before), LOOK);
        assert!(writer.0.can_leave(&writer.1));
        let swap = Step::Post(Verb::Swap { expected: before, new: tail() });
        assert_eq!(writer.step(Event::Paused), swap);
        assert!(matches!(writer.found(false, before), Step::Tell(_)));
    }

    #[test]
    fn writers_hand_the_lock_on_and_the_sixteenth_admits_readers() {
        for (run, kept) in [(2, true), (15, true), (16, false)] {
            let mut writer = Machine::behind();
            assert_eq!(writer.hear(NoticeKind::Handover, run << 32 | 7), Step::Held);
            assert_eq!(writer.hear(NoticeKind::Successor, 0), Step::Held);
            let hand_over = Step::Tell(Notice::new(NoticeKind::Handover, OTHER));
            if kept {
                assert_eq!(writer.step(Event::Leave), hand_over);
                assert_eq!(writer.0.says(&writer.1), (run + 1) << 32 | 7);
            } else {
                assert_eq!(writer.step(Event::Leave), add(RmaRwCounts::admitting(7)));
                assert_eq!(writer.found(true, announced(7, 7)), hand_over);
                assert_eq!(writer.0.says(&writer.1), 0);
            }
            assert_eq!(writer.step(Event::Told), GONE);
        }
    }

    #[test]
    fn a_writer_that_is_handed_the_lock_after_readers_were_admitted_waits_for_them() {
        let mut writer = Machine::behind();
        assert_eq!(writer.hear(NoticeKind::Successor, 0), Step::Listen);
        assert_eq!(writer.hear(NoticeKind::Handover, 0), READ);
        assert_eq!(writer.found(true, counted(0, 0)), add(RmaRwCounts::ANNOUNCED));
        assert_eq!(writer.found(true, counted(0, 0)), Step::Held);
        assert!(matches!(writer.step(Event::Leave), Step::Tell(_)));
        assert_eq!(writer.0.says(&writer.1), 2 << 32);
    }

    #[test]
    fn a_successor_that_comes_during_the_release_is_handed_the_lock() {
        let mut writer = Machine::new(Mode::Exclusive, true);
        writer.step(Event::Begin);
        writer.found(false, 0);
        writer.found(true, 0);
        writer.found(true, 0);
        writer.step(Event::Leave);
        writer.found(true, announced(0, 0));
        let behind = McsWord::of(0).with_tail(OTHER.who.raw(), 5).word();
        assert_eq!(writer.found(false, behind), Step::Listen);
        let hand_over = Step::Tell(Notice::new(NoticeKind::Handover, OTHER));
        assert_eq!(writer.hear(NoticeKind::Successor, 0), hand_over);
        assert_eq!(writer.0.says(&writer.1), 0);
    }

    #[test]
    fn a_lost_answer_ends_the_use_and_an_object_is_free_without_readers_and_writers() {
        for mode in [Mode::Shared, Mode::Exclusive] {
            let mut lost = Machine::new(mode, true);
            lost.step(Event::Begin);
            assert_eq!(lost.step(Event::Lost), Step::Gone(Err(NotHeld::Unavailable)));
        }
        let is_unused = |words| RmaRw::published().is_unused(words);
        assert!(is_unused([0, 0]) && is_unused([0, counted(5, 5)]));
        for used in [[tail(), 0], [0, counted(5, 4)], [0, announced(5, 5)]] {
            assert!(!is_unused(used), "{used:x?}");
        }
    }
}
