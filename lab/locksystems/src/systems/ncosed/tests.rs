//! Uses step by step.

use lotus_fabric::env::{Env, Nanos};
use lotus_locks::word::Claimant;
use lotus_locks::{Backoff, Pacing};

use super::*;

const ME: Peer = Peer { who: Waiter::new(1, 0, 3), number: 7 << 40 | 5 };
const OTHER: Peer = Peer { who: Waiter::new(2, 0, 0), number: 8 << 40 | 9 };
const READER: Peer = Peer { who: Waiter::new(3, 0, 0), number: 9 << 40 | 2 };
const DONE: Step = Step::Gone(Ok(()));

struct Machine(NcosedUse);

/// A use that has begun.
fn begun(mode: Mode) -> Machine {
    let request = Request { mode, who: ME.who, life: Claimant::new(1, 7), terms: 1 };
    let mut used = Machine(Ncosed.start(request));
    Ncosed.renumber(&mut used.0, ME.number);
    let expected = match mode {
        Mode::Shared => Step::Post(Verb::Add(1)),
        Mode::Update | Mode::Exclusive => swap(word(0, 0), mine(0)),
    };
    assert_eq!(used.step(Event::Begin), expected);
    used
}

impl Machine {
    fn step(&mut self, event: Event) -> Step {
        let mut view = View {
            clock: &|| Nanos(0),
            posted: Nanos(0),
            rng: &mut Env::real(1).rng(0),
            backoff: &mut Backoff::new(Pacing::NONE),
            is_settled: &|_| false,
            entries: &[],
        };
        Ncosed.step(&mut self.0, event, &mut view)
    }

    fn find(&mut self, word: NcosedWord) -> Step {
        self.step(Event::Found(word.word()))
    }

    fn hear(&mut self, kind: NoticeKind, from: Peer, says: u64) -> Step {
        let notice = Notice::new(kind, from);
        assert!(
            kind != NoticeKind::Joins || Ncosed.gathers(&self.0),
            "readers wait until it listens"
        );
        assert!(Ncosed.take_note(&mut self.0, notice, says));
        Ncosed.hear(&mut self.0, notice)
    }

    fn says(&self) -> u64 {
        Ncosed.says(&self.0)
    }
}

const fn word(tail: u32, readers: u32) -> NcosedWord {
    NcosedWord::new(tail, readers)
}

/// The word with this use as its tail.
const fn mine(readers: u32) -> NcosedWord {
    word(ME.who.raw(), readers)
}

const fn other(readers: u32) -> NcosedWord {
    word(OTHER.who.raw(), readers)
}

const fn swap(expected: NcosedWord, new: NcosedWord) -> Step {
    Step::Post(Verb::Swap { expected: expected.word(), new: new.word() })
}

const fn tell(kind: NoticeKind, peer: Peer) -> Step {
    Step::Tell(Notice::new(kind, peer))
}

/// The tail, of which the word says nothing but the name.
const TAIL: Peer = Peer { number: 0, ..OTHER };

/// A writer that has the lock at once.
fn writer() -> Machine {
    let mut used = begun(Mode::Exclusive);
    assert_eq!(used.find(word(0, 0)), Step::Held);
    used
}

#[test]
fn readers_without_a_writer_count_themselves_in_and_out() {
    let mut reader = begun(Mode::Shared);
    assert_eq!(reader.find(word(0, 2)), Step::Held);
    assert_eq!(reader.step(Event::Leave), swap(word(0, 3), word(0, 2)));
    assert_eq!(reader.find(word(0, 5)), swap(word(0, 5), word(0, 4)), "others come between");
    assert_eq!(reader.find(word(0, 5)), DONE);
    let mut uncounted = begun(Mode::Shared);
    uncounted.find(word(0, 2));
    uncounted.step(Event::Leave);
    assert_eq!(uncounted.find(word(0, 0)), Step::Gone(Err(NotHeld::Reset)));
}

#[test]
fn a_reader_that_a_writer_waits_for_tells_the_home() {
    for found in [other(0), other(4)] {
        let mut reader = begun(Mode::Shared);
        reader.find(word(0, 0));
        reader.step(Event::Leave);
        assert_eq!(reader.find(found), tell(NoticeKind::Left, ME));
        assert_eq!(reader.step(Event::Told), DONE);
    }
}

#[test]
fn a_reader_behind_a_writer_asks_it_and_is_told_where_it_is_counted() {
    for (says, leaves) in [(OUT, tell(NoticeKind::Left, ME)), (3, swap(word(0, 3), word(0, 2)))] {
        let mut reader = begun(Mode::Shared);
        assert_eq!(reader.find(other(1)), tell(NoticeKind::Joins, TAIL));
        assert!(!Ncosed.can_leave(&reader.0));
        assert_eq!(reader.step(Event::Told), Step::Listen);
        assert_eq!(reader.hear(NoticeKind::Handover, OTHER, says), Step::Held);
        assert_eq!(reader.step(Event::Leave), leaves);
    }
}

#[test]
fn a_writer_swaps_the_word_that_it_finds_until_no_other_comes_between() {
    let mut writer = begun(Mode::Exclusive);
    assert_eq!(writer.find(other(0)), Step::Pause(Duration::ZERO));
    assert!(Ncosed.can_leave(&writer.0), "it is not in the queue");
    assert_eq!(writer.step(Event::Paused), swap(other(0), mine(0)));
    assert_eq!(writer.find(word(0, 0)), swap(word(0, 0), mine(0)));
    assert_eq!(writer.find(word(0, 0)), Step::Held);
    assert_eq!(writer.step(Event::Leave), swap(mine(0), word(0, 0)));
    assert_eq!(writer.find(mine(0)), DONE);
    let mut refused = begun(Mode::Exclusive);
    refused.find(other(0));
    assert_eq!(refused.step(Event::Leave), DONE);
}

#[test]
fn a_writer_that_finds_readers_has_the_home_wait_for_them() {
    let mut writer = begun(Mode::Exclusive);
    writer.find(word(0, 3));
    writer.step(Event::Paused);
    assert_eq!(writer.find(word(0, 3)), tell(NoticeKind::Awaits, ME));
    assert_eq!(writer.says(), 3);
    assert_eq!(writer.step(Event::Told), Step::Listen);
    assert!(!Ncosed.can_leave(&writer.0));
    assert_eq!(writer.hear(NoticeKind::Handover, READER, 0), Step::Held);
}

/// A writer behind another one that has the lock.
#[test]
fn a_writer_tells_the_one_before_it_how_many_readers_came_between() {
    let mut writer = begun(Mode::Exclusive);
    writer.find(other(2));
    writer.step(Event::Paused);
    assert_eq!(writer.find(other(2)), tell(NoticeKind::Successor, TAIL));
    assert_eq!(writer.says(), 2);
    assert_eq!(writer.step(Event::Told), Step::Listen);
    // One that has come after it, while it waits.
    assert_eq!(writer.hear(NoticeKind::Successor, READER, 0), Step::Listen);
    assert_eq!(writer.hear(NoticeKind::Handover, OTHER, 0), Step::Held);
    assert_eq!(writer.step(Event::Leave), tell(NoticeKind::Handover, READER));
    assert_eq!(writer.step(Event::Told), DONE);
}

#[test]
fn a_writer_leaves_the_lock_to_the_readers_that_came_if_no_writer_did() {
    let mut writer = writer();
    writer.step(Event::Leave);
    assert_eq!(writer.find(mine(1)), swap(mine(1), word(0, 1)));
    assert_eq!(writer.find(mine(2)), swap(mine(2), word(0, 2)), "another comes between");
    assert!(!Ncosed.gathers(&writer.0));
    assert_eq!(writer.find(mine(2)), Step::Listen);
    for (reader, then) in [(READER, Step::Listen), (OTHER, DONE)] {
        assert_eq!(writer.hear(NoticeKind::Joins, reader, 0), tell(NoticeKind::Handover, reader));
        assert_eq!(writer.says(), 2, "readers in the word");
        assert_eq!(writer.step(Event::Told), then);
    }
}

/// Readers came, then a writer.
#[test]
fn a_writer_tells_readers_and_has_the_home_tell_the_writer_behind_them() {
    for comes_early in [true, false] {
        let mut used = writer();
        if comes_early {
            assert_eq!(used.hear(NoticeKind::Successor, OTHER, 1), Step::Held);
            assert_eq!(used.step(Event::Leave), Step::Listen, "no verb is needed");
        } else {
            used.step(Event::Leave);
            used.find(mine(1));
            assert_eq!(used.find(other(4)), Step::Listen, "the word is another's");
            assert!(!Ncosed.gathers(&used.0), "it does not know how many are its own");
            assert_eq!(used.hear(NoticeKind::Successor, OTHER, 1), Step::Listen);
        }
        assert_eq!(used.hear(NoticeKind::Joins, READER, 0), tell(NoticeKind::Handover, READER));
        assert_eq!(used.says(), OUT, "a writer has taken it out of the word");
        assert_eq!(used.step(Event::Told), tell(NoticeKind::Awaits, OTHER));
        assert_eq!(used.says(), 1);
        assert!(!Ncosed.gathers(&used.0));
        assert_eq!(used.step(Event::Told), DONE);
    }
}

/// As published, nothing is done about it.
#[test]
fn a_lost_answer_ends_the_use() {
    for mode in [Mode::Shared, Mode::Exclusive] {
        assert_eq!(begun(mode).step(Event::Lost), Step::Gone(Err(NotHeld::Unavailable)));
    }
    assert!(Ncosed.is_free(0) && !Ncosed.guarantees().survives_losses);
    for (used, has_writer) in [(word(0, 1), false), (other(0), true)] {
        assert!(!Ncosed.is_free(used.word()));
        assert_eq!(Ncosed.may_have_writer(used.word()), has_writer);
    }
    assert_eq!(Ncosed.object_bytes(), 16, "the word and the home");
}
