//! Small random histories: a tiny, possibly faulty database, run by a random schedule.
//!
//! Transactions read and write at random points in time, without any locks, and some reads are then
//! changed to other versions of their row. About half of the histories are sound.

use lotus_checker::{Access, Attempt, History, Isolation, Key, Operation, Status};
use proptest::prelude::*;

/// Rows of a small history.
pub const ROWS: usize = 3;

/// A read or write of a row, and its version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    pub writes: bool,
    pub row: usize,
    pub version: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Txn {
    pub attempt: Attempt,
    pub ops: Vec<Op>,
}

/// A transaction before its reads are known.
#[derive(Clone, Debug)]
struct Plan {
    isolation: Isolation,
    status: Status,
    ops: Vec<(bool, usize)>,
    /// Ascending: start, snapshot, commit, end; each in sixteenths of the run.
    times: [u64; 4],
    in_session: bool,
    /// Recorded start and end, if they differ from the true ones.
    claimed: Option<[u64; 2]>,
}

/// A change of a read: index of the read, and of a version of its row.
type Change = (prop::sample::Index, prop::sample::Index);

fn plan(levels: BoxedStrategy<Isolation>, unknown: bool) -> impl Strategy<Value = Plan> {
    let status = prop_oneof![
        8 => Just(Status::Committed),
        1 => Just(Status::Aborted),
        u32::from(unknown) => Just(Status::Unknown),
    ];
    let op = (any::<bool>(), 0..ROWS);
    let times = prop::array::uniform4(0..16u64).prop_map(|mut times| {
        times.sort_unstable();
        times
    });
    let span = (0..16u64, 0..4u64).prop_map(|(start, length)| [start, start + length]);
    let claimed = prop::option::weighted(0.2, span);
    let ops = prop::collection::vec(op, 1..4);
    (levels, status, ops, times, any::<bool>(), claimed).prop_map(
        |(isolation, status, ops, times, in_session, claimed)| Plan {
            isolation,
            status,
            ops,
            times,
            in_session,
            claimed,
        },
    )
}

/// Histories of up to `most` transactions. With `timestamps`, each writer of known outcome has a
/// commit timestamp.
pub fn histories(
    levels: BoxedStrategy<Isolation>,
    unknown: bool,
    timestamps: bool,
    most: usize,
) -> impl Strategy<Value = Vec<Txn>> {
    let plans = prop::collection::vec(plan(levels, unknown), 1..=most);
    let changes = prop::collection::vec(any::<Change>(), 0..2);
    (plans, changes).prop_map(move |(plans, changes)| run(&plans, &changes, timestamps))
}

fn run(plans: &[Plan], changes: &[Change], timestamps: bool) -> Vec<Txn> {
    let spread = plans.len() as u64;
    // Unique times, in the order of the plan's sixteenths.
    let time = |number: usize, moment: usize| {
        let sixteenth = match (plans[number].claimed, moment) {
            (Some([start, _]), 0) => start,
            (Some([_, end]), 3) => end,
            _ => plans[number].times[moment],
        };
        (sixteenth * 4 + moment as u64) * spread + number as u64
    };
    let mut txns: Vec<Txn> = (0..plans.len())
        .map(|number| begin(&plans[number], number, |moment| time(number, moment), timestamps))
        .collect();
    let mut moments: Vec<(u64, usize, usize)> = (0..plans.len())
        .flat_map(|number| [1, 2].map(|moment| (time(number, moment), number, moment)))
        .collect();
    moments.sort_unstable();
    let mut state = [None; ROWS];
    for (_, number, moment) in moments {
        let snapshot = txns[number].attempt.isolation == Isolation::Snapshot;
        if snapshot == (moment == 1) {
            read(&mut txns[number], state);
        }
        if moment == 2 && txns[number].attempt.status != Status::Aborted {
            for op in txns[number].ops.iter().filter(|op| op.writes) {
                state[op.row] = op.version;
            }
        }
    }
    change(&mut txns, changes);
    keep_sessions_apart(&mut txns);
    txns
}

fn begin(plan: &Plan, number: usize, time: impl Fn(usize) -> u64, timestamps: bool) -> Txn {
    let version = |place: usize| (number * 10 + place) as u64;
    let ops: Vec<Op> = plan
        .ops
        .iter()
        .enumerate()
        .map(|(place, &(writes, row))| Op { writes, row, version: writes.then(|| version(place)) })
        .collect();
    let known = timestamps && plan.status == Status::Committed;
    let has_end = plan.status != Status::Unknown;
    let attempt = Attempt {
        id: number as u64,
        session: if plan.in_session { 100 } else { number as u64 },
        start: time(0),
        end: has_end.then(|| time(3)),
        isolation: plan.isolation,
        status: plan.status,
        commit_ts: (known && ops.iter().any(|op| op.writes)).then(|| time(2)),
        snapshot: None,
    };
    Txn { attempt, ops }
}

fn read(txn: &mut Txn, mut state: [Option<u64>; ROWS]) {
    for op in &mut txn.ops {
        if op.writes {
            state[op.row] = op.version;
        } else {
            op.version = state[op.row];
        }
    }
}

fn change(txns: &mut [Txn], changes: &[Change]) {
    let reads: Vec<(usize, usize)> = txns
        .iter()
        .enumerate()
        .flat_map(|(number, txn)| (0..txn.ops.len()).map(move |place| (number, place)))
        .filter(|(number, place)| !txns[*number].ops[*place].writes)
        .collect();
    for (which, version) in changes.iter().filter(|_| !reads.is_empty()) {
        let &(number, place) = which.get(&reads);
        let row = txns[number].ops[place].row;
        let writes = txns.iter().flat_map(|txn| &txn.ops).filter(|op| op.writes && op.row == row);
        let mut versions: Vec<Option<u64>> = writes.map(|op| op.version).collect();
        versions.push(None);
        txns[number].ops[place].version = *version.get(&versions);
    }
}

/// Moves an attempt to a session of its own if it overlaps with another one of its session.
fn keep_sessions_apart(txns: &mut [Txn]) {
    txns.sort_by_key(|txn| txn.attempt.start);
    let mut free_from = 0;
    for txn in txns.iter_mut().filter(|txn| txn.attempt.session == 100) {
        if txn.attempt.start < free_from {
            txn.attempt.session = txn.attempt.id;
        } else {
            free_from = txn.attempt.end.unwrap_or(free_from);
        }
    }
}

/// Converts transactions to a history for the checker.
pub fn build(txns: &[Txn]) -> History {
    let mut builder = History::builder();
    for txn in txns {
        let ops = txn.ops.iter().map(|op| Operation {
            access: if op.writes { Access::Write } else { Access::Read },
            table: "t",
            key: Key::Number(op.row as u64),
            version: op.version,
        });
        builder.push(txn.attempt, ops).expect("it is well-formed");
    }
    builder.finish().expect("sessions do not overlap")
}
