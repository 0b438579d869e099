//! Uses of the lock of 16 bytes, step by step, on two words of memory.

use lotus_fabric::env::{Env, Nanos};
use lotus_fabric::wide::wide_sum;

use super::*;
use crate::contract::{Backoff, Pacing};
use crate::word::Claimant;

const ME: Waiter = Waiter::new(1, 0, 3);
const OTHER: Peer = Peer { who: Waiter::new(2, 0, 0), number: 8 << 40 | 9 };
const WAITS: Step = Step::Pause(LOOK);
const DONE: Step = Step::Gone(Ok(()));
const WIDE: Step = Step::Post(Verb::Wide);
const READ: Step = Step::Post(Verb::Read);

const fn free(releases: u64) -> WideShiftWord {
    WideShiftWord::free(releases)
}

/// A use, and the lock.
struct Machine(ShiftLockWide, ShiftUse<WideShiftWord>, WideShiftWord);

impl Machine {
    /// A use that has begun, which finds this lock.
    fn begun(mode: Mode, lock: WideShiftWord) -> Self {
        let mut system = ShiftLockWide::published(3);
        system.fit(&Capabilities { wide_atomics: true, ..Capabilities::default() });
        let request = Request { mode, who: ME, life: Claimant::new(1, 7), terms: 1 };
        let mut begun = Self(system, system.start(request), lock);
        assert_eq!(begun.step(Event::Begin, &[]), WIDE);
        begun
    }

    fn step(&mut self, event: Event, entries: &[u64]) -> Step {
        let mut view = View {
            clock: &|| Nanos(0),
            posted: Nanos(0),
            rng: &mut Env::real(1).rng(0),
            backoff: &mut Backoff::new(Pacing::NONE),
            is_settled: &|_| false,
            entries,
        };
        self.0.step(&mut self.1, event, &mut view)
    }

    /// Has the verb of the last step take effect, and takes the step after it.
    fn lands(&mut self) -> Step {
        let old = self.2;
        let new = match self.0.wide(&self.1) {
            WideVerb::Add { addend, boundary } => wide_sum(old.value(), addend, boundary),
            WideVerb::Swap(swap) => swap.applied_to(old.value()).unwrap_or(old.value()),
        };
        self.2 = WideShiftWord::of([new as u64, (new >> 64) as u64]);
        self.finds(old)
    }

    fn finds(&mut self, found: WideShiftWord) -> Step {
        let [first, second] = found.words();
        self.step(Event::Found(first), &[second])
    }

    fn does(&mut self, event: Event) -> Step {
        self.step(event, &[])
    }

    fn hears(&mut self, kind: NoticeKind, says: u64) -> Step {
        let notice = Notice::new(kind, OTHER);
        assert!(self.0.take_note(&mut self.1, notice, says));
        self.0.hear(&mut self.1, notice)
    }

    fn says(&self) -> u64 {
        self.0.says(&self.1)
    }
}

#[test]
fn readers_count_themselves_in_and_out_with_one_verb_each() {
    for lock in [free(5), free(5).with_readers(7), free(u64::MAX).in_epoch(true)] {
        let mut reader = Machine::begun(Mode::Shared, lock);
        assert_eq!(reader.lands(), Step::Held);
        assert_eq!(reader.2, lock.with_readers(lock.readers() + 1));
        assert_eq!(reader.does(Event::Leave), WIDE);
        assert_eq!(reader.lands(), DONE);
        assert_eq!(reader.2, lock.plus(1));
    }
}

/// As published: a keeper has freed the lock meanwhile.
#[test]
fn a_reader_that_is_counted_out_of_none_leaves_the_epoch_alone() {
    let mut reader = Machine::begun(Mode::Shared, free(5));
    reader.lands();
    reader.2 = free(5).freed();
    reader.does(Event::Leave);
    reader.lands();
    assert_eq!(reader.2, free(5).freed().plus(1).with_readers(WideShiftWord::MAX_READERS));
}

#[test]
fn a_reader_waits_for_the_next_epoch_and_may_give_up_before() {
    let taken = free(5).with_tail(OTHER.who.raw()).in_epoch(true);
    let waiting = || {
        let mut reader = Machine::begun(Mode::Shared, taken);
        assert_eq!(reader.lands(), WAITS);
        assert_eq!(reader.does(Event::Paused), READ);
        assert_eq!(reader.finds(taken.with_readers(4).plus(1)), WAITS);
        reader
    };
    let mut admitted = waiting();
    assert_eq!(admitted.does(Event::Paused), READ);
    assert_eq!(admitted.finds(taken.with_readers(4).in_epoch(false)), Step::Held);
    let mut gives_up = waiting();
    assert_eq!(gives_up.does(Event::Leave), WIDE);
    assert_eq!(gives_up.lands(), WIDE, "the lock has changed");
    assert_eq!(gives_up.lands(), DONE);
    assert_eq!(gives_up.2, taken, "it is counted no more");
}

#[test]
fn a_free_lock_is_written_with_two_verbs_whoever_reads_meanwhile() {
    for is_odd in [false, true] {
        let lock = free(u64::MAX).in_epoch(is_odd);
        let mut writer = Machine::begun(Mode::Exclusive, lock);
        assert_eq!(writer.lands(), Step::Held);
        assert_eq!(writer.2, lock.with_tail(ME.raw()));
        writer.2 = writer.2.with_readers(4);
        assert_eq!(writer.does(Event::Leave), WIDE);
        assert_eq!(writer.lands(), DONE);
        assert_eq!(writer.2, free(0).with_readers(4).in_epoch(!is_odd));
    }
}

#[test]
fn a_writer_waits_for_the_readers_that_were_there() {
    let mut writer = Machine::begun(Mode::Exclusive, free(u64::MAX - 1).with_readers(3));
    assert_eq!(writer.lands(), WAITS);
    let mine = |releases| free(releases).with_tail(ME.raw()).with_readers(9);
    for releases in [u64::MAX - 1, u64::MAX, 0] {
        assert_eq!(writer.does(Event::Paused), READ);
        assert_eq!(writer.finds(mine(releases)), WAITS);
    }
    assert_eq!(writer.does(Event::Paused), READ);
    assert_eq!(writer.finds(mine(1)), Step::Held);
}

/// A writer behind another one, which is handed the lock.
fn second(lock: WideShiftWord, says: WideShiftWord, writers: u16) -> Machine {
    let mut used = Machine::begun(Mode::Exclusive, lock.with_tail(OTHER.who.raw()));
    let told = Step::Tell(Notice::new(NoticeKind::Successor, Peer { number: 0, ..OTHER }));
    assert_eq!(used.lands(), told);
    assert_eq!(used.2, lock.with_tail(ME.raw()));
    assert_eq!(used.does(Event::Told), Step::Listen);
    assert_eq!(used.hears(NoticeKind::Handover, says.says(writers)), Step::Held);
    used
}

/// As published, nothing says that the atomic that counts a release is awaited.
#[test]
fn a_lock_is_handed_over_with_the_atomic_that_counts_it() {
    let mut used = second(free(u64::MAX - 1).with_readers(2), free(u64::MAX), 1);
    used.hears(NoticeKind::Successor, free(u64::MAX - 1).says(0));
    assert_eq!(used.does(Event::Leave), Step::Tell(Notice::new(NoticeKind::Handover, OTHER)));
    assert_eq!(used.says(), free(0).says(2), "the count, and two writers in a row");
    assert_eq!(used.does(Event::Told), WIDE);
    let before = used.2;
    assert_eq!(used.lands(), DONE);
    assert_eq!(used.2, before.plus(1));
}

#[test]
fn after_so_many_writers_the_readers_have_the_lock() {
    for is_odd in [false, true] {
        let lock = free(7).with_readers(4).in_epoch(is_odd);
        let mut used = second(lock, lock, 2);
        used.hears(NoticeKind::Successor, lock.says(0));
        assert_eq!(used.does(Event::Leave), WIDE);
        assert_eq!(used.lands(), Step::Tell(Notice::new(NoticeKind::ModeChanged, OTHER)));
        assert_eq!(used.2, lock.with_tail(ME.raw()).plus(1).in_epoch(!is_odd));
        let left = free(7 + 1 + 4).in_epoch(!is_odd);
        assert_eq!(used.says(), left.says(0), "its release, and those of four readers");
        assert_eq!(used.does(Event::Told), DONE);
    }
}

#[test]
fn whoever_was_followed_waits_until_it_knows_by_whom() {
    let mut used = Machine::begun(Mode::Exclusive, free(5));
    used.lands();
    used.2 = used.2.with_tail(OTHER.who.raw()).with_readers(1);
    let before = used.2;
    used.does(Event::Leave);
    assert_eq!(used.lands(), Step::Listen);
    assert_eq!(used.2, before, "the name of another stays");
    let told = Step::Tell(Notice::new(NoticeKind::Handover, OTHER));
    assert_eq!(used.hears(NoticeKind::Successor, free(5).says(0)), told);
}

/// The keeper has freed the lock: half of the range more, and nothing else.
#[test]
fn a_leap_of_the_count_ends_waits_and_releases() {
    let before = free(5).with_tail(OTHER.who.raw()).with_readers(1);
    let freed = before.freed().plus(3).in_epoch(true);
    let keeper_rules = ShiftLockWide::published(3).keeper_rules().expect("there is a keeper");
    assert_eq!((keeper_rules.freed)(before.words()), free(5 | 1 << 63).words());
    assert_eq!((keeper_rules.count)(before.words()), 5);
    let mut reader = Machine::begun(Mode::Shared, before);
    assert!(!reader.0.was_freed(&reader.1, freed.words()), "it is not in the words");
    reader.lands();
    assert!(reader.0.was_freed(&reader.1, freed.words()));
    assert!(!reader.0.was_freed(&reader.1, before.plus(3).words()));
    reader.does(Event::Paused);
    assert_eq!(reader.finds(freed), Step::Barred);
    let mut slow = Machine::begun(Mode::Exclusive, free(5));
    slow.lands();
    slow.does(Event::Leave);
    slow.2 = freed.with_tail(0);
    assert_eq!(slow.lands(), Step::Gone(Err(NotHeld::Reset)));
    assert_eq!(slow.2, freed.with_tail(0));
}

#[test]
fn it_is_as_published_only_and_in_sixteen_bytes_and_an_era() {
    let system = ShiftLockWide::published(3);
    assert!(system.head().is_none() && !system.guarantees().survives_losses);
    assert_eq!((system.object_bytes(), ShiftLockWide::ALIGNMENT), (32, 16));
    let first = |lock: WideShiftWord| lock.words()[0];
    assert!(system.is_free(first(free(7).in_epoch(true))));
    assert!(!system.is_free(first(free(7).with_readers(1))));
    let taken = first(free(7).with_tail(1));
    assert!(!system.is_free(taken) && system.may_have_writer(taken));
    let later = ShiftLockWide::LATER.expect("the lock has no numbers");
    let [one, last] = [free(1), free(u64::MAX)].map(|lock| lock.says(0));
    assert!(later(one, last) && !later(last, one) && !later(one, one));
}
