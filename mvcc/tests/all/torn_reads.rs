//! Tries to deceive a reader: the arguments of `acceptance` and `chain`, as a property.
//!
//! Remote memory is a history of every word. Writers of one row commit, delete and abort one after
//! the other, in the protocol's steps, the words of each step landing in any order. They write over
//! the version they displace or into another slot, and a slot that was left may be written again at
//! once, by them or for another row. In some tables each cell has a home slot, which is written
//! with the cell in one WRITE. Some deletions leave no record, and rows lose the slots of older
//! versions. A reader draws a snapshot at some moment and then reads every word at a moment of its
//! own, so that its CVT may hold words of several commits at once, and its records too. It follows
//! links to versions that have left the CVT. Anything it then believes must be the state of the row
//! at its snapshot; and once the writers have finished, it must believe something.
//!
//! Records are short, so that a mixture is likely in each word, or as long as a table allows.

use std::cell::Cell as Counter;

use lotus_fabric::ids::{Key, TableId, TxnId};
use lotus_mvcc::acceptance::{Expected, Reject, accept_record};
use lotus_mvcc::chain::{Link, MAX_HOPS, accept_link};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::cvt::{Contents, Cvt, HEADER_WORDS, Version};
use lotus_mvcc::layout::record::{Record, RecordHeader};
use lotus_mvcc::table::MAX_RECORD_BYTES;
use lotus_mvcc::visibility::{
    Candidate, Visible, may_be_outdated, newest, spare, victim, visible_at,
};
use lotus_mvcc::{Inline, Naming, PrimaryKey, TableDef, TableSpec, Timestamp};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use zerocopy::IntoBytes;

const SLOTS: usize = 6;
/// Offset of the CVT: behind all slots.
const CVT: u64 = 1 << 16;
/// Longest duration of a READ, in word writes for each word of a record: a few whole transactions.
const READ_SPAN: usize = 15;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Commit(u8),
    Delete,
    /// A deletion without a record, committed or not; with one if the cell names a slot.
    BareDelete {
        commits: bool,
    },
    /// The slot of an older version is taken away.
    Trim,
    Abort(u8),
    AbortBeforeRecord,
    /// Another row's record is written into a slot that no cell names.
    OtherRow,
}

/// Remote memory: the CVT, then some record slots, after each word write in turn.
struct Memory {
    table: TableDef,
    now: Vec<u64>,
    slot_words: usize,
    /// Number of word writes.
    writes: usize,
    /// Writes of each word: their moments and values.
    history: Vec<Vec<(usize, u64)>>,
    /// Moments at which timestamps were drawn, each with the row's value from then on.
    commits: Vec<(usize, Timestamp, Option<u8>)>,
    rng: TestRng,
}

fn at(time: u64) -> Timestamp {
    Timestamp::new(time).expect("63 bits")
}

fn primary_key() -> PrimaryKey {
    PrimaryKey::from(1)
}

impl Memory {
    fn new(spec: TableSpec, rng: TestRng) -> Self {
        let table = TableDef::new(TableId(1), spec, vec![64], Naming::KNOWN).expect("valid");
        let slot_words = table.slot_bytes() as usize / WORD_BYTES;
        let mut now = vec![0; table.cvt_words() + SLOTS * slot_words];
        let header = table.header(table.name(&primary_key())).encode();
        now[..HEADER_WORDS].copy_from_slice(&header);
        let (history, commits) = (vec![Vec::new(); now.len()], Vec::new());
        Self { table, now, slot_words, writes: 0, history, commits, rng }
    }

    /// Value of this name: its length depends on the name too.
    fn value(&self, name: u8) -> Vec<u8> {
        let longest = self.table.stored().value_bytes as usize;
        vec![name; longest - 7 * usize::from(1 - name % 2)]
    }

    fn cvt(&self) -> Cvt<'_> {
        Cvt::new(&self.now[..self.table.cvt_words()], self.table.cvt())
    }

    /// Offset of the home slot of a cell; 0 for none.
    fn home(&self, index: usize) -> u64 {
        self.table.cvt().home(CVT, index)
    }

    /// Word index of a record slot. Slots are named by offsets from 64 on; slot `i` is at word
    /// `slot_word(64 (i+1))`, and a home slot is in the CVT.
    fn slot_word(&self, record: u64) -> usize {
        if record >= CVT {
            return (record - CVT) as usize / WORD_BYTES;
        }
        self.table.cvt_words() + (record as usize / 64 - 1) * self.slot_words
    }

    /// One WRITE: its words land in any order.
    fn write(&mut self, start: usize, words: &[u64]) {
        let mut order: Vec<usize> = (0..words.len()).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, self.rng.random_range(0..=last));
        }
        for index in order {
            self.now[start + index] = words[index];
            self.history[start + index].push((self.writes, words[index]));
            self.writes += 1;
        }
    }

    /// A slot that no cell names, however recently one did.
    fn free_slot(&mut self) -> u64 {
        let named: Vec<u64> = self.cvt().cells().flatten().map(|cell| cell.record).collect();
        let free: Vec<u64> =
            (1..=SLOTS as u64).map(|slot| 64 * slot).filter(|slot| !named.contains(slot)).collect();
        free[self.rng.random_range(0..free.len())]
    }

    fn other_row(&mut self) {
        let header = RecordHeader {
            writer: None,
            previous: Timestamp::ZERO,
            predecessor: 0,
            table: self.table.id(),
        };
        let mut record = vec![0; self.slot_words];
        let value = self.value(1);
        let used = header.encode(Key(0x7000), &primary_key(), Some(&value), &mut record);
        let slot = self.free_slot();
        self.write(self.slot_word(slot), &record[..used]);
    }

    fn trim(&mut self, attempt: u64) {
        let Some(index) = spare(self.cvt()).map(|spare| spare.index) else { return };
        if self.cvt().cell(index).expect("no writer is left").record == self.home(index) {
            // A home slot is not free memory.
            return;
        }
        let cell_word = self.table.cvt().cell_word(index);
        let mut words = self.cvt().cell(index).expect("no writer is left").trimmed().encode();
        words[0] = Version::Invisible(TxnId::from_raw(attempt)).encode();
        self.write(cell_word, &words[..1]);
        self.write(cell_word, &words);
        self.write(cell_word, &[0]);
    }

    fn run(&mut self, attempt: u64, outcome: Outcome) {
        let before = newest(self.cvt());
        let previous = before.version().expect("no writer is left");
        let index = victim(self.cvt()).expect("no writer is left").index;
        let cell_word = self.table.cvt().cell_word(index);
        let home = self.home(index);
        let cell = self.cvt().cell(index).expect("no writer is left");
        let bytes = match outcome {
            Outcome::Commit(name) | Outcome::Abort(name) => Some(self.value(name)),
            Outcome::Delete | Outcome::BareDelete { .. } | Outcome::AbortBeforeRecord => None,
            Outcome::OtherRow => return self.other_row(),
            Outcome::Trim => return self.trim(attempt),
        };
        let contents = bytes
            .as_ref()
            .map_or(Contents::Deleted, |bytes| Contents::Value { length: bytes.len() as u32 });
        let writer = TxnId::from_raw(attempt);
        let in_place = cell.record != 0 && self.rng.random_range(0..3) == 0;
        let bare = matches!(outcome, Outcome::BareDelete { .. }) && cell.record == 0 && home == 0;
        let goes_home = home != 0 && self.rng.random_range(0..2) == 0;
        let slot = match () {
            () if bare => 0,
            () if goes_home => home,
            () if in_place => cell.record,
            () => self.free_slot(),
        };
        let taken = cell.taken_by(writer, contents, slot);
        if !matches!(outcome, Outcome::AbortBeforeRecord) {
            let (key, table) = (self.table.key(&primary_key()), self.table.id());
            let predecessor = before.record();
            let header = RecordHeader { writer: Some(writer), previous, predecessor, table };
            let mut record = vec![0; self.slot_words];
            let used = header.encode(key, &primary_key(), bytes.as_deref(), &mut record);
            if taken.record == home && home != 0 {
                self.write(cell_word, &[&taken.encode()[..], &record[..used]].concat());
            } else {
                if !bare {
                    self.write(self.slot_word(taken.record), &record[..used]);
                }
                self.write(cell_word, &taken.encode());
            }
        }
        let undone = Outcome::BareDelete { commits: false };
        if matches!(outcome, Outcome::Abort(_) | Outcome::AbortBeforeRecord) || outcome == undone {
            let cell = self.cvt().cell(index).expect("the cell was written whole");
            self.write(cell_word, &cell.cleared().encode());
            return;
        }
        let name = if let Outcome::Commit(name) = outcome { Some(name) } else { None };
        let time = at(10 * attempt);
        self.commits.push((self.writes, time, name));
        self.write(cell_word, &[Version::Committed(time).encode()]);
    }

    /// Words from `start` on, each as it was at a random moment between `from` and `to`, counted in
    /// word writes.
    fn read(&mut self, start: usize, words: usize, from: usize, to: usize) -> Vec<u64> {
        let mut read = Vec::with_capacity(words);
        for word in start..start + words {
            let moment = self.rng.random_range(from..=to).min(self.writes);
            let history = &self.history[word];
            let earlier = history.partition_point(|(when, _)| *when < moment);
            let written = history[..earlier].last();
            let initial = if word < HEADER_WORDS { self.now[word] } else { 0 };
            read.push(written.map_or(initial, |(_, value)| *value));
        }
        read
    }

    /// Newest timestamp drawn by then.
    fn snapshot(&self, moment: usize) -> Timestamp {
        let drawn = self.commits.iter().rev().find(|(when, ..)| *when <= moment);
        drawn.map_or(Timestamp::ZERO, |(_, time, _)| *time)
    }

    /// State of the row at `snapshot`: the name of its value.
    fn truth(&self, snapshot: Timestamp) -> Option<u8> {
        let newest = self.commits.iter().rev().find(|(_, time, _)| *time <= snapshot);
        newest.and_then(|(.., name)| *name)
    }

    /// Belief of a reader that begins at `from` and takes up to `span` for each READ; `None` if it
    /// must read again.
    fn believe(&mut self, snapshot: Timestamp, from: usize, span: usize) -> Option<Belief> {
        let cvt_words = self.table.cvt_words();
        let first = self.read(0, cvt_words, from, from + span);
        let cvt = Cvt::new(&first, self.table.cvt());
        let second = from + span;
        match visible_at(cvt, snapshot) {
            Visible::Version(candidate) if candidate.record == 0 => {
                let again = self.read(0, cvt_words, second, second + span);
                (again == first).then_some(Belief::Bare)
            }
            Visible::Version(candidate) if candidate.record == self.home(candidate.index) => {
                if may_be_outdated(cvt, snapshot)
                    && self.read(0, cvt_words, second, second + span) != first
                {
                    return None;
                }
                let record = cvt.home_words(CVT, candidate.index, candidate.record)?;
                let accepted = self.accept(|row| accept_record(row, candidate, record))?;
                Some(Belief::of(&accepted, record))
            }
            Visible::Version(candidate) => {
                let words = self.table.record_words(candidate.contents);
                let start = self.slot_word(candidate.record);
                let record = self.read(start, words, second, second + span);
                let third = second + span;
                if may_be_outdated(cvt, snapshot)
                    && self.read(0, cvt_words, third, third + span) != first
                {
                    return None;
                }
                let accepted = self.accept(|row| accept_record(row, candidate, &record))?;
                Some(Belief::of(&accepted, &record))
            }
            Visible::Displaced(candidate) => self.follow(snapshot, candidate, second, span),
            Visible::NotFound => {
                let again = self.read(0, cvt_words, second, second + span);
                (again == first).then_some(Belief::Nothing)
            }
            Visible::TooOld => Some(Belief::TooOld),
            Visible::Undecided { .. } | Visible::Torn => None,
        }
    }

    /// Follows links from a record on, which counts only if it is accepted.
    fn follow(
        &mut self,
        snapshot: Timestamp,
        first: Candidate,
        mut from: usize,
        span: usize,
    ) -> Option<Belief> {
        let words = self.table.record_words(first.contents);
        let mut record = self.read(self.slot_word(first.record), words, from, from + span);
        let mut accepted = self.accept(|row| accept_record(row, first, &record))?;
        for _ in 0..MAX_HOPS {
            let Some(link) = Link::before(&accepted) else {
                return Some(Belief::Older(Box::new(Belief::Nothing)));
            };
            if link.record == 0 {
                let known = link.version <= snapshot;
                return Some(if known { Belief::Nothing } else { Belief::TooOld });
            }
            from += span;
            let start = self.slot_word(link.record);
            let words = self.read(start, self.slot_words, from, from + span);
            let Some(next) = self.accept(|row| accept_link(row, link, &words)) else {
                return Some(Belief::TooOld);
            };
            if link.version <= snapshot {
                return Some(Belief::Older(Box::new(Belief::of(&next, &words))));
            }
            record = words;
            accepted = Record::decode(self.table.key(&primary_key()), &record).expect("accepted");
        }
        Some(Belief::TooOld)
    }

    fn accept<'a>(
        &self,
        accept: impl FnOnce(&Expected<'_>) -> Result<Record<'a>, Reject>,
    ) -> Option<Record<'a>> {
        let primary_key = &primary_key();
        let (table, key) = (self.table.id(), self.table.key(primary_key));
        match accept(&Expected { table, key, primary_key }) {
            Ok(record) => Some(record),
            Err(Reject::OtherTable) => panic!("there is one table"),
            Err(_) => None,
        }
    }
}

#[derive(PartialEq, Eq, Debug)]
enum Belief {
    Value(Vec<u8>),
    Nothing,
    /// Absent, by a deletion without a record.
    Bare,
    TooOld,
    /// Found by links.
    Older(Box<Belief>),
}

impl Belief {
    fn of(record: &Record<'_>, words: &[u64]) -> Self {
        match record.value_range() {
            Some(range) => Self::Value(words.as_bytes()[range].to_vec()),
            None => Self::Nothing,
        }
    }
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        6 => any::<u8>().prop_map(Outcome::Commit),
        2 => Just(Outcome::Delete),
        2 => any::<bool>().prop_map(|commits| Outcome::BareDelete { commits }),
        2 => Just(Outcome::Trim),
        2 => any::<u8>().prop_map(Outcome::Abort),
        1 => Just(Outcome::AbortBeforeRecord),
        1 => Just(Outcome::OtherRow),
    ]
}

/// Number of readers that got each answer.
#[derive(Clone, Copy, Default, Debug)]
struct Answers {
    values: u32,
    nothings: u32,
    bare: u32,
    older: u32,
}

/// Runs readers on a finished history.
fn deceive(memory: &mut Memory, answers: &mut Answers) -> Result<(), TestCaseError> {
    let (end, longest) = (memory.writes, READ_SPAN * memory.slot_words);
    for reader in 0..200 {
        let drawn = memory.rng.random_range(0..=end);
        let begun = memory.rng.random_range(drawn..=end);
        let span = memory.rng.random_range(0..=longest) * (reader % 4) / 3;
        let snapshot = memory.snapshot(drawn);
        let truth = memory.truth(snapshot).map(|name| memory.value(name));
        let mut belief = memory.believe(snapshot, begun, span);
        if let Some(Belief::Older(found)) = belief {
            answers.older += 1;
            belief = Some(*found);
        }
        match belief {
            Some(Belief::Value(bytes)) => {
                prop_assert_eq!(Some(bytes), truth);
                answers.values += 1;
            }
            Some(Belief::Nothing) => {
                prop_assert_eq!(None, truth);
                answers.nothings += 1;
            }
            Some(Belief::Bare) => {
                prop_assert_eq!(None, truth);
                answers.bare += 1;
            }
            Some(Belief::TooOld | Belief::Older(_)) | None => {}
        }
    }
    // The writers have finished: a fresh snapshot gets an answer, and at once.
    let fresh = memory.snapshot(end);
    let truth = memory.truth(fresh).map(|name| memory.value(name));
    let answer = match memory.believe(fresh, end, 0) {
        Some(Belief::Bare) => Some(Belief::Nothing),
        answer => answer,
    };
    prop_assert_eq!(answer, Some(truth.map_or(Belief::Nothing, Belief::Value)));
    Ok(())
}

/// Runs readers on this many histories of a table like `spec`, and returns the number of answers.
fn deceive_all(spec: &TableSpec, inline: &[Inline], cases: u32) -> Answers {
    let config = ProptestConfig { cases, failure_persistence: None, ..Default::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let table = (2_u32..=3, prop::sample::select(inline.to_vec()));
    let history = (table, prop::collection::vec(outcome(), 1..14), any::<[u8; 32]>());
    let all = Counter::new(Answers::default());
    let result = runner.run(&history, |((versions, inline), outcomes, seed)| {
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let mut memory = Memory::new(spec.clone().versions(versions).inline(inline), rng);
        for (attempt, outcome) in (1..).zip(outcomes) {
            memory.run(attempt, outcome);
        }
        let mut answers = all.get();
        deceive(&mut memory, &mut answers)?;
        all.set(answers);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    all.get()
}

const ROW: TableSpec = TableSpec::new("row").capacity(1).shards(1);

#[test]
fn a_reader_believes_only_what_the_row_was_at_its_snapshot() {
    let answers = deceive_all(&ROW.record_bytes(16), &[Inline::Auto, Inline::Never], 800);
    let Answers { values, nothings, bare, older } = answers;
    let enough = values > 10_000 && nothings > 1_000 && bare > 1_000 && older > 1_000;
    assert!(enough, "too few answers: {answers:?}");
}

#[test]
fn a_reader_of_the_longest_records_is_not_deceived_either() {
    let answers = deceive_all(&ROW.record_bytes(MAX_RECORD_BYTES), &[Inline::Never], 30);
    let Answers { values, nothings, bare, older } = answers;
    let enough = values > 400 && nothings > 40 && bare > 40 && older > 40;
    assert!(enough, "too few answers: {answers:?}");
}
