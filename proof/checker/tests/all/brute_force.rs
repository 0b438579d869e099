//! A second implementation of the levels: try all orders.
//!
//! A history is sound if its transactions can be run one after the other, with those under snapshot
//! isolation reading at one point and writing at a later one, so that each reads what the history
//! says. There are no graphs, cycles or anomalies: only a machine that executes the levels'
//! definition.

use std::collections::BTreeSet;

use crate::common::{Op, ROWS, Txn, build, histories};
use lotus_checker::{Isolation, Options, RealTime, SessionOrder, Status, check};
use proptest::prelude::*;

/// A row's version, and the commit timestamp of its writer.
type Row = (Option<u64>, Option<u64>);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Waiting,
    /// Has read from this state and not yet written.
    Reading([Row; ROWS]),
    Done,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    stages: Vec<Stage>,
    rows: [Row; ROWS],
}

struct Machine<'t> {
    txns: &'t [Txn],
    options: Options,
    dead_ends: BTreeSet<World>,
}

impl Machine<'_> {
    /// Whether all remaining committed transactions can be run.
    fn can_finish(&mut self, world: &World) -> bool {
        let left = |number: &usize| world.stages[*number] != Stage::Done;
        let committed = |number: &usize| self.is_committed(*number);
        if !(0..self.txns.len()).filter(left).any(|number| committed(&number)) {
            return true;
        }
        if self.dead_ends.contains(world) {
            return false;
        }
        let possible = (0..self.txns.len()).any(|number| {
            let next = self.step(world, number);
            next.is_some_and(|next| self.can_finish(&next))
        });
        if !possible {
            self.dead_ends.insert(world.clone());
        }
        possible
    }

    fn is_committed(&self, number: usize) -> bool {
        self.txns[number].attempt.status == Status::Committed
    }

    /// State after the next point of a transaction; `None` if that point is not possible now.
    fn step(&self, world: &World, number: usize) -> Option<World> {
        let txn = &self.txns[number];
        let two_points = txn.attempt.isolation == Isolation::Snapshot;
        let mut next = world.clone();
        let snapshot = match world.stages[number] {
            Stage::Done => return None,
            Stage::Waiting if txn.attempt.status == Status::Aborted => return None,
            Stage::Waiting => {
                if !self.may_start(world, number) || !reads_fit(&txn.ops, world.rows) {
                    return None;
                }
                world.rows
            }
            Stage::Reading(snapshot) => snapshot,
        };
        if two_points && world.stages[number] == Stage::Waiting {
            next.stages[number] = Stage::Reading(world.rows);
            return Some(next);
        }
        next.stages[number] = Stage::Done;
        for op in txn.ops.iter().filter(|op| op.writes) {
            let commit_ts = txn.attempt.commit_ts;
            let grows = commit_ts.is_none() || world.rows[op.row].1 < commit_ts;
            if world.rows[op.row] != snapshot[op.row] || !grows {
                return None;
            }
            next.rows[op.row] = (op.version, commit_ts.or(world.rows[op.row].1));
        }
        Some(next)
    }

    fn may_start(&self, world: &World, number: usize) -> bool {
        let now = &self.txns[number].attempt;
        (0..self.txns.len()).filter(|other| self.is_committed(*other)).all(|other| {
            let before = &self.txns[other].attempt;
            let ended = before.end.is_some_and(|end| end < now.start);
            let strict = self.options.real_time == RealTime::Enforced;
            let in_session = self.options.session_order == SessionOrder::Enforced;
            let ordered = strict || (in_session && before.session == now.session);
            !(ended && ordered) || world.stages[other] == Stage::Done
        })
    }
}

fn reads_fit(ops: &[Op], mut rows: [Row; ROWS]) -> bool {
    ops.iter().all(|op| {
        if op.writes {
            rows[op.row].0 = op.version;
        }
        rows[op.row].0 == op.version
    })
}

fn explainable(txns: &[Txn], options: Options) -> bool {
    let mut machine = Machine { txns, options, dead_ends: BTreeSet::new() };
    let world = World { stages: vec![Stage::Waiting; txns.len()], rows: [(None, None); ROWS] };
    machine.can_finish(&world)
}

fn options() -> impl Strategy<Value = Options> {
    let real_time = prop_oneof![Just(RealTime::Ignored), Just(RealTime::Enforced)];
    let session_order = prop_oneof![Just(SessionOrder::Ignored), Just(SessionOrder::Enforced)];
    (real_time, session_order).prop_map(|(real_time, session_order)| Options {
        real_time,
        session_order,
        ..Options::default()
    })
}

/// Strategy with both levels in one history.
fn mixed() -> BoxedStrategy<Isolation> {
    prop_oneof![Just(Isolation::Serializable), Just(Isolation::Snapshot)].boxed()
}

fn only(level: Isolation) -> BoxedStrategy<Isolation> {
    Just(level).boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// The checker is right in both directions if all writes have timestamps.
    #[test]
    fn both_agree_on_serializable(
        txns in histories(only(Isolation::Serializable), false, true, 7),
        options in options(),
    ) {
        let report = check(&build(&txns), &options);
        prop_assert_eq!(report.is_clean(), explainable(&txns, options), "{}", report);
    }

    #[test]
    fn both_agree_on_snapshot_isolation(
        txns in histories(only(Isolation::Snapshot), false, true, 6),
        options in options(),
    ) {
        let report = check(&build(&txns), &options);
        prop_assert_eq!(report.is_clean(), explainable(&txns, options), "{}", report);
    }

    #[test]
    fn both_agree_on_mixed_levels(
        txns in histories(mixed(), false, true, 6),
        options in options(),
    ) {
        let report = check(&build(&txns), &options);
        prop_assert_eq!(report.is_clean(), explainable(&txns, options), "{}", report);
    }

    /// The checker may miss violations if outcomes are unknown or timestamps missing, but those
    /// that it reports exist.
    #[test]
    fn no_false_alarm_on_incomplete_histories(
        (txns, options) in any::<bool>().prop_flat_map(|timestamps| {
            (histories(mixed(), true, timestamps, 6), options())
        }),
    ) {
        let report = check(&build(&txns), &options);
        if !report.is_clean() {
            prop_assert!(!explainable(&txns, options), "{}", report);
        }
    }
}

/// The generator makes enough sound and unsound histories for agreement to mean something.
#[test]
fn about_as_many_are_sound_as_not() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let strategy = histories(mixed(), false, true, 6);
    let sound = (0..1000)
        .map(|_| strategy.new_tree(&mut runner).unwrap().current())
        .filter(|txns| explainable(txns, Options::default()))
        .count();
    assert!((200..900).contains(&sound), "{sound}");
}
