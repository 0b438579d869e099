//! A table of the states that recovery may find, and a model that crashes everywhere.

use std::collections::VecDeque;

use lotus_fabric::ids::{Epoch, Incarnation, TableId};
use proptest::prelude::*;

use super::*;
use crate::log::{DECISION_WORD, LoggedWrite, WriteKind, entry_words};

fn txn(attempt: u64) -> TxnId {
    TxnId::new(Incarnation::new(1).unwrap(), 0, attempt)
}

const OLDEST: u64 = 10;
const NEWEST: u64 = 20;
const COMMIT: u64 = 30;
const LATER: u64 = 40;

fn ours() -> u64 {
    Version::Invisible(txn(1)).encode()
}

fn theirs() -> u64 {
    Version::Invisible(txn(2)).encode()
}

fn seen(word: u64) -> CellSeen {
    CellSeen { word, newest_other: time(NEWEST) }
}

fn time(raw: u64) -> Timestamp {
    Timestamp::new(raw).unwrap()
}

#[test]
fn decisions() {
    use Decision::{AlreadyResolved, Back, Forward};
    use DecisionWord as Word;
    let clash = |first, other| Err(Contradiction::Decisions(first, other));
    type Case<'a> = (&'a str, &'a [Word], &'a [u64], Result<Decision, Contradiction>);
    let cases: &[Case<'_>] = &[
        ("no whole log", &[], &[], Ok(AlreadyResolved)),
        ("no cell landed", &[Word::Undecided], &[OLDEST, 0], Ok(AlreadyResolved)),
        ("all visible", &[Word::Undecided], &[COMMIT, COMMIT], Ok(AlreadyResolved)),
        ("overwritten since", &[Word::Undecided], &[COMMIT, LATER], Ok(AlreadyResolved)),
        ("being overwritten", &[Word::Undecided], &[COMMIT, theirs()], Ok(AlreadyResolved)),
        ("done", &[Word::Done, Word::Back], &[0, theirs()], Ok(AlreadyResolved)),
        ("undone, not done", &[Word::Back], &[0, OLDEST], Ok(Back)),
        (
            "published, not done",
            &[Word::Forward(time(COMMIT))],
            &[COMMIT],
            Ok(Forward(time(COMMIT))),
        ),
        ("none visible", &[Word::Undecided], &[ours(), ours()], Ok(Back)),
        ("landed in part", &[Word::Undecided], &[ours(), OLDEST, 0], Ok(Back)),
        ("one visible", &[Word::Undecided], &[ours(), COMMIT, ours()], Ok(Forward(time(COMMIT)))),
        ("decided forward", &[Word::Forward(time(COMMIT))], &[ours()], Ok(Forward(time(COMMIT)))),
        ("decided in one log", &[Word::Undecided, Word::Back], &[ours(), 0], Ok(Back)),
        (
            "logs disagree",
            &[Word::Back, Word::Forward(time(7))],
            &[ours()],
            clash(Back, Forward(time(7))),
        ),
        ("visible, yet back", &[Word::Back], &[ours(), COMMIT], clash(Back, Forward(time(COMMIT)))),
        ("two timestamps", &[], &[ours(), 30, 31], clash(Forward(time(30)), Forward(time(31)))),
        ("two writers", &[], &[ours(), theirs()], Err(Contradiction::ForeignWriter)),
        ("missed", &[], &[ours(), COMMIT, OLDEST], Err(Contradiction::MissedReplica)),
    ];
    for &(what, logs, words, expected) in cases {
        let decision = decide(txn(1), logs.iter().copied(), words.iter().copied().map(seen));
        assert_eq!(decision, expected, "{what}");
    }
}

#[test]
fn purges_are_finished_once_they_have_begun() {
    use Decision::{AlreadyResolved, Back, Forward};
    use DecisionWord as Word;
    type Case<'a> = (&'a str, &'a [Word], &'a [u64], Result<Decision, Contradiction>);
    let cases: &[Case<'_>] = &[
        ("not begun", &[Word::Undecided], &[OLDEST, 0], Ok(AlreadyResolved)),
        ("over, and the slot has a new row", &[Word::Undecided], &[LATER], Ok(AlreadyResolved)),
        ("marked in part", &[Word::Undecided], &[OLDEST, ours()], Ok(Back)),
        ("zeroed in part", &[Word::Undecided, Word::Undecided], &[0, ours()], Ok(Back)),
        ("decided", &[Word::Undecided, Word::Back], &[0, 0], Ok(Back)),
        ("done", &[Word::Back, Word::Done], &[theirs()], Ok(AlreadyResolved)),
        (
            "committed",
            &[Word::Forward(time(COMMIT))],
            &[ours()],
            Err(Contradiction::Decisions(Back, Forward(time(COMMIT)))),
        ),
    ];
    for &(what, logs, words, expected) in cases {
        let decision = decide_purge(txn(1), logs.iter().copied(), words.iter().copied());
        assert_eq!(decision, expected, "{what}");
    }
}

#[test]
fn repairs() {
    use Decision::{AlreadyResolved, Back, Forward};
    let cases = [
        (Forward(time(COMMIT)), ours(), Repair::Publish { from: ours(), to: COMMIT }),
        (Forward(time(COMMIT)), COMMIT, Repair::Keep),
        (Forward(time(COMMIT)), theirs(), Repair::Keep),
        (Back, ours(), Repair::Empty { from: ours() }),
        (Back, OLDEST, Repair::Empty { from: OLDEST }),
        (Back, 0, Repair::Empty { from: 0 }),
        (Back, LATER, Repair::Keep),
        (Back, theirs(), Repair::Keep),
        (AlreadyResolved, theirs(), Repair::Keep),
        (AlreadyResolved, OLDEST, Repair::Keep),
    ];
    for (decision, word, expected) in cases {
        assert_eq!(repair(txn(1), decision, seen(word)), expected, "{decision:?} on {word:#x}");
    }
}

#[test]
fn an_entry_is_unresolved_while_its_tag_or_an_undone_decision_remains() {
    let write = LoggedWrite {
        group: 0,
        table: TableId(0),
        kind: WriteKind::Update,
        cvt: 0,
        cell: 0,
        record: 0,
    };
    let mut words = [0; entry_words(1)];
    LogEntry::encode(&mut words, txn(1), Epoch(0), [write]);
    let cases = [
        (DecisionWord::Undecided, ours(), true),
        (DecisionWord::Undecided, theirs(), false),
        (DecisionWord::Undecided, COMMIT, false),
        (DecisionWord::Back, 0, true),
        (DecisionWord::Done, 0, false),
        (DecisionWord::Done, ours(), true),
    ];
    for (decision, cell, expected) in cases {
        words[DECISION_WORD] = decision.word();
        let entry = LogEntry::decode(&words).unwrap();
        assert_eq!(unresolved(&entry, [cell]), expected, "{decision:?} with {cell:#x}");
    }
}

/// Choices, taken one after another from generated numbers; zeros once they have run out.
struct Tape(std::vec::IntoIter<u16>);

impl Tape {
    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.0.next().unwrap_or(0)) % bound
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 1
    }
}

/// One memory node: its copy of the log, if whole, and of every written cell.
#[derive(Clone, Debug)]
struct MemoryNode {
    log: Option<DecisionWord>,
    cells: Vec<CellSeen>,
}

/// Outcome that clients may rely on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Promise {
    NotCommitted,
    Either,
    Committed,
}

const WRITES: usize = 3;
const REPLICAS: usize = 3;

/// Runs a transaction's commit until it crashes somewhere; write `w` has its primary on node `w`.
fn crash_somewhere(tape: &mut Tape) -> (Vec<MemoryNode>, Promise) {
    let before: Vec<CellSeen> = (0..WRITES)
        .map(|_| match tape.below(3) {
            0 => CellSeen { word: 0, newest_other: Timestamp::ZERO },
            1 => CellSeen { word: 0, newest_other: time(NEWEST) },
            _ => CellSeen { word: OLDEST, newest_other: time(NEWEST) },
        })
        .collect();
    let mut nodes = vec![MemoryNode { log: None, cells: before }; REPLICAS];
    let mut all_landed = true;
    for node in &mut nodes {
        // On each connection: the log, then cell after cell. Mostly all of them, to get further.
        let landed = if tape.below(4) > 0 { 1 + WRITES } else { tape.below(1 + WRITES) };
        node.log = (landed > 0).then_some(DecisionWord::Undecided);
        for cell in node.cells.iter_mut().take(landed.saturating_sub(1)) {
            cell.word = ours();
        }
        all_landed &= landed == 1 + WRITES;
    }
    if !all_landed {
        return (nodes, Promise::NotCommitted);
    }
    let mut publish = |nodes: &mut [MemoryNode], primaries: bool| {
        let everything = tape.coin();
        let mut done = true;
        for (index, node) in nodes.iter_mut().enumerate() {
            for (write, cell) in node.cells.iter_mut().enumerate() {
                if (write == index) == primaries {
                    let lands = everything || tape.coin();
                    cell.word = if lands { COMMIT } else { cell.word };
                    done &= lands;
                }
            }
        }
        done
    };
    if !publish(&mut nodes, false) {
        return (nodes, Promise::Either);
    }
    publish(&mut nodes, true);
    (nodes, Promise::Committed)
}

/// One atomic action of a recoverer on node `node`.
#[derive(Clone, Copy, Debug)]
enum Step {
    Record { node: usize, decision: DecisionWord },
    Swap { node: usize, cell: usize, from: u64, to: u64 },
    Finish { node: usize, from: DecisionWord },
}

/// Memory nodes; `None` if lost.
type Cluster = [Option<MemoryNode>];

/// Steps that a recoverer takes, given the present state.
fn plan(nodes: &Cluster) -> VecDeque<Step> {
    let alive = || nodes.iter().enumerate().filter_map(|(n, node)| Some((n, node.as_ref()?)));
    let logs = || alive().filter_map(|(_, node)| node.log);
    if logs().next().is_none() {
        return VecDeque::new();
    }
    let cells = alive().flat_map(|(_, node)| node.cells.iter().copied());
    let decision = decide(txn(1), logs(), cells).expect("no contradiction is left behind");
    let word = match decision {
        Decision::AlreadyResolved => DecisionWord::Done,
        Decision::Back => DecisionWord::Back,
        Decision::Forward(time) => DecisionWord::Forward(time),
    };
    let (with, without): (Vec<_>, Vec<_>) = alive().partition(|(_, node)| node.log.is_some());
    let mut steps = VecDeque::new();
    if decision != Decision::AlreadyResolved {
        for (node, _) in with.into_iter().chain(without) {
            steps.push_back(Step::Record { node, decision: word });
        }
    }
    for (node, seen) in alive() {
        for (cell, &seen) in seen.cells.iter().enumerate() {
            let (from, to) = match repair(txn(1), decision, seen) {
                Repair::Keep => continue,
                Repair::Publish { from, to } => (from, to),
                Repair::Empty { from } => (from, 0),
            };
            steps.push_back(Step::Swap { node, cell, from, to });
        }
    }
    for (node, seen) in alive() {
        let from = if decision == Decision::AlreadyResolved { seen.log } else { Some(word) };
        steps.extend(from.map(|from| Step::Finish { node, from }));
    }
    steps
}

/// Carries one step out; false if another recoverer was faster, so that this one must start over.
/// Steps on a lost node succeed without effect.
fn carry_out(nodes: &mut Cluster, step: Step) -> bool {
    let (Step::Record { node, .. } | Step::Swap { node, .. } | Step::Finish { node, .. }) = step;
    let Some(node) = &mut nodes[node] else { return true };
    match step {
        Step::Record { decision, .. } => {
            let log = node.log.get_or_insert(DecisionWord::Undecided);
            if *log == DecisionWord::Undecided {
                *log = decision;
            }
            *log == decision
        }
        Step::Swap { cell, from, to, .. } => {
            let word = &mut node.cells[cell].word;
            let swapped = *word == from;
            *word = if swapped { to } else { *word };
            swapped
        }
        Step::Finish { from, .. } => {
            if node.log == Some(from) {
                node.log = Some(DecisionWord::Done);
            }
            node.log == Some(DecisionWord::Done)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// H3, H12, H15, H17: the coordinator dies anywhere, memory nodes are lost at any time, two
    /// recoverers work at once and stop anywhere. The result is one outcome, the same on every
    /// replica, and the one that clients may have seen. Afterwards a recoverer that wakes up late
    /// does not disturb the next writer.
    #[test]
    fn any_crash_ends_in_one_outcome_on_all_replicas(
        choices in proptest::collection::vec(any::<u16>(), 200),
    ) {
        let mut tape = Tape(choices.into_iter());
        let (nodes, promise) = crash_somewhere(&mut tape);
        let mut nodes: Vec<_> = nodes.into_iter().map(Some).collect();
        let mut plans = [plan(&nodes), plan(&nodes)];
        let mut steps_taken = 0;
        while plans.iter().all(|steps| !steps.is_empty()) {
            steps_taken += 1;
            prop_assert!(steps_taken < 1000, "recovery gets nowhere");
            // Values 1 to 3 of 60 lose a node, unless it is lost already or the last one.
            let lost = tape.below(20 * REPLICAS).wrapping_sub(1);
            let is_there = nodes.get(lost).is_some_and(Option::is_some);
            if is_there && nodes.iter().flatten().count() > 1 {
                nodes[lost] = None;
                // Recoverer 0 learns of it and starts over; the other one does not know yet.
                plans[0] = plan(&nodes);
                continue;
            }
            let who = tape.below(2);
            let step = plans[who].pop_front().expect("neither plan is empty");
            if tape.below(20) == 1 || !carry_out(&mut nodes, step) {
                plans[who] = plan(&nodes);
            }
        }

        let alive: Vec<&MemoryNode> = nodes.iter().flatten().collect();
        let visible = alive[0].cells.iter().filter(|cell| cell.word == COMMIT).count();
        prop_assert!(visible == 0 || visible == WRITES, "in part: {:?}", nodes);
        match promise {
            Promise::NotCommitted => prop_assert_eq!(visible, 0),
            Promise::Either => {}
            Promise::Committed => prop_assert_eq!(visible, WRITES),
        }
        for node in &alive {
            prop_assert_eq!(&node.cells, &alive[0].cells, "replicas differ");
            prop_assert!(node.cells.iter().all(|cell| cell.word != ours()));
        }

        for cell in nodes.iter_mut().flatten().flat_map(|node| &mut node.cells) {
            cell.word = theirs();
        }
        for steps in plans {
            let _stopped = steps.into_iter().find(|&step| !carry_out(&mut nodes, step));
        }
        let mut words = nodes.iter().flatten().flat_map(|node| &node.cells).map(|cell| cell.word);
        prop_assert!(words.all(|word| word == theirs()));
    }
}
