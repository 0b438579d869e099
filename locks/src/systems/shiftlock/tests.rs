//! Uses step by step.

use lotus_fabric::env::{Env, Nanos};

use super::*;
use crate::contract::{Backoff, Pacing};
use crate::word::Claimant;

const ME: Waiter = Waiter::new(1, 0, 3);
const NUMBER: u64 = 7 << 40 | 5;
const OTHER: Peer = Peer { who: Waiter::new(2, 0, 0), number: 8 << 40 | 9 };
/// The largest count of releases.
const LAST: u32 = (1 << 26) - 1;

struct Machine(ShiftLock, ShiftUse);

impl Machine {
    fn new(recovery: Recovery, mode: Mode, masked_atomics: bool) -> Self {
        let mut system = ShiftLock::new(recovery, 3);
        system.fit(&Capabilities { masked_atomics, ..Capabilities::default() });
        let request = Request { mode, who: ME, life: Claimant::new(1, 7), terms: 1 };
        let mut state = system.start(request);
        system.renumber(&mut state, NUMBER);
        Self(system, state)
    }

    fn reader() -> Self {
        Self::new(Recovery::Fenced, Mode::Shared, true)
    }

    fn writer() -> Self {
        Self::new(Recovery::Fenced, Mode::Exclusive, true)
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

    fn find(&mut self, word: ShiftWord) -> Step {
        self.step(Event::Found(word.word()))
    }

    /// Hears a notice, if it is for this use.
    fn hear(&mut self, kind: NoticeKind, says: ShiftWord) -> Option<Step> {
        let notice = Notice::new(kind, OTHER);
        let is_known = self.0.take_note(&mut self.1, notice, says.word());
        is_known.then(|| self.0.hear(&mut self.1, notice))
    }

    fn says(&self) -> ShiftWord {
        ShiftWord::of(self.0.says(&self.1))
    }
}

const fn free(releases: u32) -> ShiftWord {
    ShiftWord::free(releases)
}

const fn tell(kind: NoticeKind) -> Step {
    Step::Tell(Notice::new(kind, OTHER))
}

fn add(summand: u64) -> Step {
    Step::Post(Verb::Add(summand))
}

const fn swap(expected: ShiftWord, new: ShiftWord) -> Step {
    Step::Post(Verb::Swap { expected: expected.word(), new: new.word() })
}

const READ: Step = Step::Post(Verb::Read);
const WAITS: Step = Step::Pause(LOOK);
const LEFT: u64 = ShiftWord::RELEASE.wrapping_sub(ShiftWord::READER);
const DONE: Step = Step::Gone(Ok(()));

#[test]
fn readers_count_themselves_in_and_out() {
    for found in [free(5), free(5).with_readers(7), free(LAST).in_epoch(true)] {
        let mut used = Machine::reader();
        assert_eq!(used.step(Event::Begin), add(ShiftWord::READER));
        assert_eq!(used.find(found), Step::Held);
        assert_eq!(used.step(Event::Leave), add(LEFT));
        assert_eq!(used.find(found), DONE);
    }
}

#[test]
#[should_panic(expected = "4095 readers")]
fn a_reader_without_room_in_the_word_is_not_counted_elsewhere() {
    let mut used = Machine::reader();
    used.step(Event::Begin);
    used.find(free(5).with_readers(ShiftWord::MAX_READERS));
}

#[test]
fn a_reader_waits_for_the_next_epoch_whoever_writes() {
    for is_odd in [false, true] {
        let mut used = Machine::reader();
        used.step(Event::Begin);
        let found = free(5).with_tail(9).in_epoch(is_odd);
        assert_eq!(used.find(found), WAITS);
        assert_eq!(used.step(Event::Paused), READ);
        let later = free(7).with_tail(10).with_readers(3).in_epoch(is_odd);
        assert_eq!(used.find(later), WAITS, "another writer");
        assert_eq!(used.step(Event::Lost), READ, "a READ is repeated");
        assert_eq!(used.find(later.in_epoch(!is_odd)), Step::Held);
    }
}

#[test]
fn a_reader_gives_up_what_it_was_not_given_and_releases_what_it_was() {
    let waiting = || {
        let mut used = Machine::reader();
        used.step(Event::Begin);
        used.find(free(5).with_tail(9));
        used.step(Event::Paused);
        used.find(free(6).with_tail(9).with_readers(2));
        assert!(used.0.can_leave(&used.1));
        used
    };
    let seen = free(6).with_tail(9).with_readers(2);
    let withdraws = swap(seen, seen.with_readers(1));
    let mut used = waiting();
    assert_eq!(used.step(Event::Leave), withdraws);
    assert_eq!(used.find(seen), DONE);
    // Others come between.
    let mut used = waiting();
    used.step(Event::Leave);
    let later = free(7).with_tail(10).with_readers(4);
    assert_eq!(used.find(later), swap(later, later.with_readers(3)));
    assert_eq!(used.find(later), DONE);
    // It has been admitted meanwhile.
    let mut used = waiting();
    used.step(Event::Leave);
    assert_eq!(used.find(later.in_epoch(true)), add(LEFT));
    assert_eq!(used.find(later.in_epoch(true)), DONE);
    // The lock is being reset, which takes its count away.
    let mut used = waiting();
    used.step(Event::Leave);
    assert_eq!(used.find(ShiftWord::of(later.word() | ShiftWord::RESETTING)), DONE);
}

#[test]
fn a_free_lock_is_written_with_two_verbs() {
    for is_odd in [false, true] {
        let mut used = Machine::writer();
        let exchange = Verb::Exchange { mask: ShiftWord::TAIL, new: u64::from(ME.raw()) };
        assert_eq!(used.step(Event::Begin), Step::Post(exchange));
        assert_eq!(used.find(free(LAST).in_epoch(is_odd)), Step::Held);
        let expected = free(LAST).in_epoch(is_odd).with_tail(ME.raw()).word();
        let new = free(0).in_epoch(!is_odd).word();
        assert_eq!(used.step(Event::Leave), Step::Post(Verb::SwapPart { expected, new }));
        let found = free(LAST).in_epoch(is_odd).with_tail(ME.raw()).with_readers(4);
        assert_eq!(used.find(found), DONE);
    }
}

#[test]
fn a_writer_waits_for_the_readers_that_were_there() {
    let mut used = Machine::writer();
    used.step(Event::Begin);
    assert_eq!(used.find(free(LAST - 1).with_readers(3)), WAITS);
    assert!(!used.0.can_leave(&used.1));
    for releases in [LAST - 1, LAST, 0] {
        assert_eq!(used.step(Event::Paused), READ);
        assert_eq!(used.find(free(releases).with_tail(ME.raw()).with_readers(9)), WAITS);
    }
    assert_eq!(used.step(Event::Paused), READ);
    assert_eq!(used.find(free(1).with_tail(ME.raw()).with_readers(9)), Step::Held);
}

/// A writer that has found another before it, and was handed the lock.
fn second(says: ShiftWord) -> Machine {
    let mut used = Machine::writer();
    used.step(Event::Begin);
    let peer = Peer { number: 0, ..OTHER };
    let told = Step::Tell(Notice::new(NoticeKind::Successor, peer));
    assert_eq!(used.find(free(5).with_tail(OTHER.who.raw()).with_readers(2)), told);
    assert_eq!(used.says(), free(5));
    assert_eq!(used.step(Event::Told), Step::Listen);
    assert!(!used.0.can_leave(&used.1));
    assert_eq!(used.hear(NoticeKind::Handover, says), Some(Step::Held));
    used
}

#[test]
fn a_lock_is_handed_over_when_its_release_was_counted() {
    let mut used = second(free(6).with_readers(1));
    assert_eq!(used.hear(NoticeKind::Successor, free(5)), Some(Step::Held));
    assert_eq!(used.step(Event::Leave), add(ShiftWord::RELEASE));
    let found = free(6).with_tail(OTHER.who.raw()).with_readers(2);
    assert_eq!(used.find(found), tell(NoticeKind::Handover));
    assert_eq!(used.says(), free(7).with_readers(2), "the count, and two writers in a row");
    assert_eq!(used.step(Event::Told), DONE);
}

#[test]
fn after_so_many_writers_the_readers_have_the_lock() {
    for is_odd in [false, true] {
        let mut used = second(free(LAST).with_readers(2).in_epoch(is_odd));
        used.hear(NoticeKind::Successor, free(5));
        let epoch = if is_odd { ShiftWord::EPOCH.wrapping_neg() } else { ShiftWord::EPOCH };
        assert_eq!(used.step(Event::Leave), add(ShiftWord::RELEASE.wrapping_add(epoch)));
        let found = free(LAST).with_tail(OTHER.who.raw()).with_readers(4).in_epoch(is_odd);
        assert_eq!(used.find(found), tell(NoticeKind::ModeChanged));
        assert_eq!(
            used.says(),
            free(4).in_epoch(!is_odd),
            "its release, and those of four readers"
        );
        assert_eq!(used.step(Event::Told), DONE);
    }
}

#[test]
fn whoever_is_told_of_readers_waits_for_as_many_releases() {
    let mut used = Machine::writer();
    used.step(Event::Begin);
    used.find(free(5).with_tail(OTHER.who.raw()));
    used.step(Event::Told);
    let says = free(8).in_epoch(true);
    assert_eq!(used.hear(NoticeKind::ModeChanged, says), Some(READ));
    assert_eq!(used.find(free(7).with_tail(ME.raw()).in_epoch(true)), WAITS);
    assert_eq!(used.step(Event::Paused), READ);
    assert_eq!(used.find(free(8).with_tail(ME.raw()).in_epoch(true).with_readers(1)), Step::Held);
    let expected = says.with_tail(ME.raw()).word();
    let closes = Verb::SwapPart { expected, new: free(9).word() };
    assert_eq!(used.step(Event::Leave), Step::Post(closes));
}

#[test]
fn whoever_was_followed_waits_until_it_knows_by_whom() {
    let mut used = Machine::writer();
    used.step(Event::Begin);
    used.find(free(5));
    used.step(Event::Leave);
    assert_eq!(used.find(free(5).with_tail(OTHER.who.raw())), Step::Listen);
    assert_eq!(used.hear(NoticeKind::Successor, free(4)), None, "to a former use of the name");
    assert_eq!(used.hear(NoticeKind::Successor, free(5)), Some(add(ShiftWord::RELEASE)));
}

#[test]
fn a_successor_is_believed_whose_count_is_no_smaller() {
    let half = 1 << 25;
    for (says, is_believed) in
        [(5, true), (6, true), (4 + half, true), (4, false), (5 + half, false), (LAST, false)]
    {
        let mut used = second(free(6));
        assert_eq!(used.hear(NoticeKind::Successor, free(says)).is_some(), is_believed, "{says}");
        // As published, every one.
        let mut used = Machine::new(Recovery::Paper, Mode::Exclusive, true);
        used.step(Event::Begin);
        used.find(free(5));
        assert!(used.hear(NoticeKind::Successor, free(says)).is_some());
        // A reader has no successor.
        let mut used = Machine::reader();
        used.step(Event::Begin);
        used.find(free(5));
        assert_eq!(used.hear(NoticeKind::Successor, free(says)), None);
    }
    let later = ShiftLock::LATER.expect("the word has no numbers");
    assert!(later(free(1).word(), free(LAST).word()) && !later(free(LAST).word(), free(1).word()));
    assert!(!later(free(1).word(), free(1).in_epoch(true).word()));
}

#[test]
fn without_masks_it_swaps_until_nobody_comes_between() {
    let mut used = Machine::new(Recovery::Fenced, Mode::Exclusive, false);
    assert_eq!(used.step(Event::Begin), swap(free(0), free(0).with_tail(ME.raw())));
    let taken = free(5).with_tail(OTHER.who.raw());
    assert_eq!(used.find(taken), Step::Pause(Duration::ZERO));
    assert!(used.0.can_leave(&used.1), "it is not in the queue");
    assert_eq!(used.step(Event::Paused), swap(taken, taken.with_tail(ME.raw())));
    assert_eq!(used.find(free(6)), swap(free(6), free(6).with_tail(ME.raw())));
    assert_eq!(used.find(free(6)), Step::Held);
    let mine = free(6).with_tail(ME.raw());
    assert_eq!(used.step(Event::Leave), swap(mine, mine.closed()));
    let readers = mine.with_readers(2);
    assert_eq!(used.find(readers), swap(readers, free(7).with_readers(2).in_epoch(true)));
    assert_eq!(used.find(readers), DONE);
    let mut followed = Machine::new(Recovery::Fenced, Mode::Exclusive, false);
    followed.step(Event::Begin);
    followed.find(free(0));
    followed.step(Event::Leave);
    assert_eq!(followed.find(free(0).with_tail(OTHER.who.raw())), Step::Listen);
}

/// As published, nothing says that it waits for the answer.
#[test]
fn as_published_a_lock_is_handed_over_with_the_atomic_that_counts_it() {
    let mut used = Machine::new(Recovery::Paper, Mode::Exclusive, true);
    used.step(Event::Begin);
    used.find(free(5));
    used.hear(NoticeKind::Successor, free(5));
    assert_eq!(used.step(Event::Leave), tell(NoticeKind::Handover));
    assert_eq!(used.says(), free(6).with_readers(1));
    assert_eq!(used.step(Event::Told), add(ShiftWord::RELEASE));
    assert_eq!(used.find(free(5)), DONE);
}

/// Uses that are about to learn what an atomic has found, each by what a mark does to it.
fn under_way(recovery: Recovery) -> Vec<(Machine, Step)> {
    let reader = || Machine::new(recovery, Mode::Shared, true);
    let writer = || Machine::new(recovery, Mode::Exclusive, true);
    let begun = |mut used: Machine| {
        used.step(Event::Begin);
        used
    };
    let leaves = |mut used: Machine| {
        used.find(free(5));
        used.step(Event::Leave);
        used
    };
    let mut gives_up = begun(reader());
    gives_up.find(free(5).with_tail(9));
    gives_up.step(Event::Leave);
    let mut counts = begun(writer());
    counts.find(free(5));
    counts.hear(NoticeKind::Successor, free(5));
    counts.1.writers = 2;
    counts.step(Event::Leave);
    vec![
        (begun(reader()), Step::Barred),
        (begun(writer()), Step::Barred),
        (begun(Machine::new(recovery, Mode::Exclusive, false)), Step::Barred),
        (leaves(begun(reader())), DONE),
        (leaves(begun(writer())), DONE),
        (gives_up, DONE),
        (counts, DONE),
    ]
}

#[test]
fn resets_end_waits_and_releases_and_lost_answers_are_doubted_only_if_fenced() {
    let marked = free(6).with_tail(9).with_readers(1).word() | ShiftWord::RESETTING;
    for (recovery, lost) in
        [(Recovery::Fenced, Step::Doubt), (Recovery::Paper, Step::Gone(Err(NotHeld::Unavailable)))]
    {
        for (mut used, _) in under_way(recovery) {
            assert_eq!(used.step(Event::Lost), lost, "{:?}", used.1);
        }
    }
    for (mut used, expected) in under_way(Recovery::Fenced) {
        assert_eq!(used.step(Event::Found(marked)), expected, "{:?}", used.1);
    }
    // Those that wait read the word.
    let mut reader = Machine::reader();
    reader.step(Event::Begin);
    reader.find(free(5).with_tail(9));
    let mut writer = Machine::writer();
    writer.step(Event::Begin);
    writer.find(free(5).with_readers(1));
    for used in [&mut reader, &mut writer] {
        used.step(Event::Paused);
        assert_eq!(used.step(Event::Found(marked)), Step::Barred);
    }
}

/// As published, the keeper has freed the lock: half of the range more, and nothing else.
#[test]
fn a_leap_of_the_count_ends_waits_and_releases_as_published() {
    let before = free(5).with_tail(9).with_readers(1);
    let freed = before.freed().plus(3).in_epoch(true);
    for (recovery, is_seen) in [(Recovery::Paper, true), (Recovery::Fenced, false)] {
        assert_eq!(ShiftLock::new(recovery, 3).keeper_rules().is_some(), is_seen);
        let reader = || {
            let mut used = Machine::new(recovery, Mode::Shared, true);
            used.step(Event::Begin);
            assert!(!used.0.was_freed(&used.1, [freed.word(), 0]), "it is not in the word");
            used.find(before);
            used
        };
        let mut waits = reader();
        assert_eq!(waits.0.was_freed(&waits.1, [freed.word(), 0]), is_seen);
        assert!(!waits.0.was_freed(&waits.1, [before.plus(3).word(), 0]));
        waits.step(Event::Paused);
        assert_eq!(waits.find(freed), if is_seen { Step::Barred } else { Step::Held });
        let mut gives_up = reader();
        gives_up.step(Event::Leave);
        assert_eq!(gives_up.find(freed), if is_seen { DONE } else { add(LEFT) });
        let mut writer = Machine::new(recovery, Mode::Exclusive, true);
        writer.step(Event::Begin);
        writer.find(free(5).with_readers(1));
        writer.step(Event::Paused);
        assert_eq!(writer.find(freed), if is_seen { Step::Barred } else { WAITS });
        let mut slow = Machine::new(recovery, Mode::Exclusive, true);
        slow.step(Event::Begin);
        slow.find(free(5));
        slow.step(Event::Leave);
        let lost = Step::Gone(Err(NotHeld::Reset));
        assert_eq!(slow.find(freed), if is_seen { lost } else { Step::Listen });
    }
}

/// As published, a notice is for the present use of the name, if that one waits for any.
#[test]
fn a_turn_is_for_whoever_waits_as_published() {
    let mut used = Machine::new(Recovery::Paper, Mode::Exclusive, true);
    used.step(Event::Begin);
    used.find(free(5));
    assert_eq!(used.hear(NoticeKind::Handover, free(9)), None, "it holds the lock");
    let mut used = Machine::new(Recovery::Paper, Mode::Exclusive, true);
    used.step(Event::Begin);
    used.find(free(5).with_tail(OTHER.who.raw()));
    assert_eq!(used.hear(NoticeKind::Handover, free(9)), Some(Step::Held));
}
