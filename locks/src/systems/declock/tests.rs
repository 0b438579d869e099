//! What a use of `declock` does after each event, step by step.

use super::*;
use crate::contract::{Backoff, Pacing};
use crate::word::Claimant;
use lotus_fabric::env::{Env, Nanos};

use Mode::{Exclusive, Shared};
use Recovery::{Fenced, Paper};

const ENTRIES: u32 = 8;
const FIELDS: DeclockFields = DeclockFields::new(ENTRIES);
const ME: Waiter = Waiter::new(1, 0, 3);
const GENERATION: u64 = 5;
/// The first index of a lap around the queue.
const LAP: u64 = 24;
const DONE: Step = Step::Gone(Ok(()));
const ALL: QueuePart = FIELDS.all();

/// A header: so many have left since the first index of the lap; size, and writers.
fn header(left: u64, size: u32, writers: u32) -> QueueHeader {
    QueueHeader { is_resetting: false, writers, size, head: LAP + left, generation: GENERATION }
}

fn other(index: u64) -> Waiter {
    Waiter::new(2, 1, index as u16)
}

/// Entries of waiters, from the first index of the lap on: those that write are `X`, others `S`;
/// `-` is not written, or of the lap before, `+` of the lap behind.
fn entries(waiters: &str) -> Vec<u64> {
    let mut entries = vec![0; ENTRIES as usize];
    for (index, kind) in (LAP..).zip(waiters.chars()) {
        let entry = |writes, index| {
            FIELDS.entry(index, QueueEntry { writes, timestamp: 0, who: other(index).raw() })
        };
        entries[FIELDS.place(index) as usize] = match kind {
            'X' => entry(true, index),
            'S' => entry(false, index),
            '+' => entry(true, index + u64::from(ENTRIES)),
            _ => entry(true, index - u64::from(ENTRIES)),
        };
    }
    entries
}

struct Machine(Declock, DeclockUse);

impl Machine {
    fn new(recovery: Recovery, mode: Mode) -> Self {
        Self::of(Declock::new(recovery, ENTRIES), mode)
    }

    fn of(declock: Declock, mode: Mode) -> Self {
        let request = Request { mode, who: ME, life: Claimant::new(1, 7), terms: 1 };
        let state = declock.start(request);
        Self(declock, state)
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

    fn found(&mut self, queue: QueueHeader, waiters: &str) -> Step {
        self.step(Event::Found(FIELDS.word(queue)), &entries(waiters))
    }

    /// One that has asked, and found this header.
    fn asked(recovery: Recovery, mode: Mode, found: QueueHeader) -> (Self, Step) {
        let mut used = Self::new(recovery, mode);
        assert_eq!(used.step(Event::Begin, &[]), Step::Post(Verb::Add(FIELDS.asking(mode))));
        let step = used.found(found, "");
        (used, step)
    }

    /// One that waits at index `LAP + 3`.
    fn waiting(recovery: Recovery, mode: Mode) -> Self {
        let (mut used, step) = Self::asked(recovery, mode, header(0, 3, 1));
        assert!(matches!(step, Step::Post(Verb::Write { entry: 3, .. })), "{step:?}");
        assert!(matches!(used.step(Event::Written, &[]), Step::Await(_)));
        used
    }

    /// One that leaves, and what it does when it has found this.
    fn left(recovery: Recovery, mode: Mode, found: QueueHeader, waiters: &str) -> (Self, Step) {
        let (mut used, step) = Self::asked(recovery, mode, header(0, 0, 0));
        assert_eq!(step, Step::Held);
        let leaves = Step::Post(Verb::AddAndRead(FIELDS.leaving(mode), ALL));
        assert_eq!(used.step(Event::Leave, &[]), leaves);
        let step = used.found(found, waiters);
        (used, step)
    }
}

/// The notice to the one that waits `place` behind the first index of the lap.
fn told(place: u64) -> Step {
    let index = LAP + place;
    let number = FIELDS.turn(GENERATION, index);
    Step::Tell(Notice::new(NoticeKind::Handover, Peer { who: other(index), number }))
}

#[test]
fn a_free_lock_is_taken_by_one_verb_and_left_by_one_batch() {
    for mode in [Shared, Mode::Update, Exclusive] {
        let writers = u32::from(mode != Shared);
        let (_, step) = Machine::left(Fenced, mode, header(0, 1, writers), "--------");
        assert_eq!(step, DONE);
    }
}

#[test]
fn who_waits_writes_its_entry_and_is_told() {
    let (mut used, step) = Machine::asked(Fenced, Exclusive, header(1, 2, 0));
    let entry = QueueEntry { writes: true, timestamp: 0, who: ME.raw() };
    let word = FIELDS.entry(LAP + 3, entry);
    assert_eq!(step, Step::Post(Verb::Write { entry: 3, word }));
    assert_eq!(used.0.turn(&used.1), FIELDS.turn(GENERATION, LAP + 3));
    assert_eq!(used.step(Event::Written, &[]), Step::Await(LOOK.0));
    assert!(!used.0.can_leave(&used.1));
    let peer = Peer { who: other(2), number: 0 };
    assert_eq!(used.0.hear(&mut used.1, Notice::new(NoticeKind::Handover, peer)), Step::Held);
}

#[test]
fn who_is_not_told_looks_less_and_less_often() {
    let mut used = Machine::waiting(Fenced, Exclusive);
    let mine = |used: &Machine| {
        let mut entries = entries("-XSS");
        let entry = QueueEntry { writes: true, timestamp: 0, who: used.1.who.raw() };
        entries[3] = FIELDS.entry(LAP + 3, entry);
        entries
    };
    // One has left; later another, and another.
    for (left, millis) in
        [(0, 4), (0, 8), (1, 2), (1, 4), (1, 8), (1, 16), (1, 32), (1, 50), (1, 50), (2, 2)]
    {
        assert_eq!(used.step(Event::Paused, &[]), Step::Post(Verb::ReadQueue(ALL)));
        let found = Event::Found(FIELDS.word(header(left, 4 - left as u32, 2)));
        let step = used.step(found, &mine(&used));
        assert_eq!(step, Step::Await(Duration::from_millis(millis)));
    }
    // Its entry was written over, or its WRITE has had no effect.
    used.step(Event::Paused, &[]);
    let step = used.found(header(1, 3, 2), "-XS-");
    assert!(matches!(step, Step::Post(Verb::Write { entry: 3, .. })), "{step:?}");
    assert_eq!(used.step(Event::Lost, &[]), Step::Post(Verb::ReadQueue(ALL)));
    assert_eq!(used.step(Event::Lost, &[]), Step::Post(Verb::ReadQueue(ALL)));
    assert_eq!(used.found(header(3, 1, 1), "-XS-"), Step::Held);
}

#[test]
fn a_waiter_looks_in_its_generation_alone() {
    for mode in [Shared, Exclusive] {
        for found in [
            QueueHeader { is_resetting: true, ..header(3, 1, 0) },
            QueueHeader { generation: GENERATION + 1, ..header(3, 1, 0) },
        ] {
            let mut used = Machine::waiting(Fenced, mode);
            used.step(Event::Paused, &[]);
            assert_eq!(used.found(found, ""), Step::Barred, "{found:?}");
        }
    }
}

#[test]
fn a_release_tells_the_first_writer_or_the_readers_before_it() {
    for (mode, found, waiters, expected) in [
        // A writer leaves, at the first index.
        (Exclusive, header(0, 2, 2), "-X", &[1][..]),
        (Exclusive, header(0, 4, 3), "-XXS", &[1]),
        (Exclusive, header(0, 4, 2), "-SSX", &[1, 2]),
        (Exclusive, header(0, 4, 1), "-SSS", &[1, 2, 3]),
        // Some readers have looked for themselves; the one behind them is told.
        (Exclusive, header(0, 4, 1), "-+S+", &[2]),
        (Exclusive, header(0, 4, 2), "-+XS", &[]),
        // A reader leaves, and the next is a writer, a reader that holds the lock, or has held it.
        (Shared, header(0, 2, 1), "-X", &[1]),
        (Shared, header(0, 3, 1), "--X", &[]),
        (Shared, header(0, 3, 1), "-SX", &[]),
        (Shared, header(0, 3, 1), "-+-", &[]),
        (Shared, header(0, 3, 0), "---", &[]),
        (Shared, header(1, 3, 1), "X--X", &[]),
        (Shared, header(1, 3, 1), "XSX-", &[2]),
    ] {
        let (mut used, mut step) = Machine::left(Fenced, mode, found, waiters);
        for place in expected {
            assert_eq!(step, told(*place), "{mode:?} {found:?} {waiters}");
            step = used.step(Event::Told, &entries(waiters));
        }
        assert_eq!(step, DONE, "{mode:?} {found:?} {waiters}");
    }
}

#[test]
fn entries_that_are_not_written_yet_are_read_again() {
    // After a writer, each that it has to tell.
    let (mut used, step) = Machine::left(Fenced, Exclusive, header(0, 4, 1), "-S-S");
    assert_eq!(step, told(1));
    let again = Step::Post(Verb::ReadQueue(ALL));
    assert_eq!(used.step(Event::Told, &entries("-S-S")), again);
    assert_eq!(used.step(Event::Lost, &[]), again);
    assert_eq!(used.found(header(1, 3, 0), "-S-S"), again);
    assert_eq!(used.found(header(1, 3, 0), "-SSS"), told(2));
    assert_eq!(used.step(Event::Told, &entries("-SSS")), told(3));
    assert_eq!(used.step(Event::Told, &entries("-SSS")), DONE);
    // After a reader, until it is known whether the next is a writer.
    let reads = || Machine::left(Fenced, Shared, header(0, 4, 1), "----");
    let (mut used, step) = reads();
    assert_eq!(step, again);
    assert_eq!(used.found(header(1, 3, 1), "-X--"), told(1));
    let (mut used, _) = reads();
    assert_eq!(used.found(header(1, 3, 1), "---X"), DONE, "it is another, which is behind readers");
    let (mut used, _) = reads();
    assert_eq!(used.found(header(2, 2, 1), "----"), DONE, "it has had its turn");
    for found in [
        QueueHeader { is_resetting: true, ..header(1, 3, 1) },
        QueueHeader { generation: GENERATION + 1, ..header(1, 3, 1) },
    ] {
        let (mut used, _) = reads();
        assert_eq!(used.found(found, "-X--"), DONE, "the lock is reset");
    }
}

/// A holder at the first index of the lap that leaves, and reads two entries at first.
fn reading_two(mode: Mode, found: QueueHeader, waiters: &str) -> (Machine, Step) {
    let mut used = Machine::of(Declock::new(Fenced, ENTRIES).reading(2), mode);
    used.step(Event::Begin, &[]);
    assert_eq!(used.found(header(0, 0, 0), ""), Step::Held);
    let part = QueuePart { first: 1, count: 2 };
    let leaves = Step::Post(Verb::AddAndRead(FIELDS.leaving(mode), part));
    assert_eq!(used.step(Event::Leave, &[]), leaves);
    let step = used.step(Event::Found(FIELDS.word(found)), &only(part, waiters));
    (used, step)
}

/// These entries, with zeroes for those that are not read.
fn only(part: QueuePart, waiters: &str) -> Vec<u64> {
    let mut entries = entries(waiters);
    for (place, word) in (0..).zip(&mut entries) {
        if !(part.first..part.first + part.count).contains(&place) {
            *word = 0;
        }
    }
    entries
}

/// What is read next, and what follows when it was.
fn reads(used: &mut Machine, step: Step, found: QueueHeader, waiters: &str) -> (QueuePart, Step) {
    let Step::Post(Verb::ReadQueue(part)) = step else { panic!("{step:?}") };
    (part, used.step(Event::Found(FIELDS.word(found)), &only(part, waiters)))
}

#[test]
fn of_a_long_queue_a_release_reads_what_it_needs() {
    let part = |first, count| QueuePart { first, count };
    // The next writer is there, and so are two readers, but not the third.
    let (_, step) = reading_two(Exclusive, header(0, 5, 5), "-XXXX");
    assert_eq!(step, told(1));
    let waiters = "-SSSX";
    let (mut used, mut step) = reading_two(Exclusive, header(0, 5, 2), waiters);
    for place in [1, 2] {
        assert_eq!(step, told(place));
        step = used.step(Event::Told, &only(part(1, 2), waiters));
    }
    let (read, step) = reads(&mut used, step, header(1, 4, 1), waiters);
    assert_eq!((read, step), (part(3, 2), told(3)));
    assert_eq!(used.step(Event::Told, &only(read, waiters)), DONE, "a writer is behind them");
    // A reader leaves first, and the next is a writer, or has no entry: then it has to find all.
    let (_, step) = reading_two(Shared, header(0, 5, 4), "-XXXX");
    assert_eq!(step, told(1));
    let (mut used, step) = reading_two(Shared, header(0, 5, 1), "----X");
    assert_eq!(reads(&mut used, step, header(1, 4, 1), "----X"), (part(1, 4), DONE));
    // Others have left before it, so the next one is elsewhere.
    let (mut used, step) = reading_two(Shared, header(3, 2, 1), "----X");
    assert_eq!(reads(&mut used, step, header(4, 1, 1), "----X"), (part(4, 1), told(4)));
    // Where the array ends, a reader reads all of it.
    let (mut used, step) = reading_two(Shared, header(5, 4, 1), "-------X");
    assert_eq!(reads(&mut used, step, header(6, 3, 1), "-------X"), (ALL, DONE));
    // What was lost is read again.
    let (mut used, step) = reading_two(Shared, header(0, 5, 1), "----X");
    assert_eq!(used.step(Event::Lost, &[]), step);
}

#[test]
fn a_release_does_not_look_for_ever() {
    for mode in [Shared, Exclusive] {
        let (mut used, mut step) = Machine::left(Fenced, mode, header(0, 2, 2), "--");
        let mut total = Duration::ZERO;
        let mut looks = 0;
        while step != DONE {
            step = match step {
                Step::Post(Verb::ReadQueue(ALL)) => used.found(header(1, 1, 1), "--"),
                Step::Pause(pause) => {
                    total += pause;
                    used.step(Event::Paused, &[])
                }
                step => panic!("{step:?}"),
            };
            looks += 1;
            assert!(looks < 100, "{total:?}");
        }
        let millis = Duration::from_millis;
        assert!((millis(1)..millis(6)).contains(&total), "{total:?}");
    }
}

#[test]
fn who_finds_no_room_leaves_it_to_a_reset() {
    let used_up =
        QueueHeader { head: u64::from(ENTRIES) * DeclockFields::LAST_LAP, ..header(0, 0, 0) };
    for mode in [Shared, Exclusive] {
        for found in [header(0, ENTRIES, 0), header(0, ENTRIES, 1), used_up] {
            let (_, step) = Machine::asked(Fenced, mode, found);
            assert_eq!(step, Step::Full(GENERATION), "{found:?}");
        }
        let (mut used, step) = Machine::asked(Paper, mode, header(0, ENTRIES, 1));
        assert!(matches!(step, Step::Post(Verb::Write { entry: 0, .. })), "{step:?}");
        used.step(Event::Written, &[]);
        let (_, step) = Machine::asked(Paper, mode, used_up);
        assert_eq!(step, Step::Full(GENERATION), "versions do not come round");
    }
}

#[test]
fn as_published_who_is_not_told_has_the_lock_reset_as_has_who_finds_a_later_lap() {
    let mut used = Machine::waiting(Paper, Exclusive);
    assert_eq!(used.step(Event::Paused, &[]), Step::Full(GENERATION));
    for mode in [Shared, Exclusive] {
        let (_, step) = Machine::left(Paper, mode, header(0, 3, 2), "-+-");
        assert_eq!(step, Step::Full(GENERATION));
    }
}

#[test]
fn resets_end_waits_and_releases_and_lost_answers_are_doubted_only_if_fenced() {
    let marked = QueueHeader { is_resetting: true, ..header(0, 2, 2) };
    let unavailable = Step::Gone(Err(NotHeld::Unavailable));
    for (recovery, lost) in [(Fenced, Step::Doubt), (Paper, unavailable)] {
        let (_, step) = Machine::asked(recovery, Exclusive, marked);
        assert_eq!(step, Step::Barred);
        let (_, step) = Machine::left(recovery, Exclusive, marked, "-X");
        assert_eq!(step, DONE);
        let mut used = Machine::new(recovery, Shared);
        used.step(Event::Begin, &[]);
        assert!(used.0.can_leave(&used.1));
        assert_eq!(used.step(Event::Lost, &[]), lost);
        let (mut used, _) = Machine::asked(recovery, Exclusive, header(0, 0, 0));
        used.step(Event::Leave, &[]);
        assert_eq!(used.step(Event::Lost, &[]), lost);
    }
}

#[test]
#[should_panic(expected = "more requests than")]
fn more_requests_than_the_header_can_count_are_noticed() {
    Machine::asked(Fenced, Exclusive, header(0, FIELDS.most_requests(), 1));
}
