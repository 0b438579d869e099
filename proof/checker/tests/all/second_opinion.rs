//! The independent crate `adya`, a port of Jepsen's Elle, comes to the same verdicts.
//!
//! It judges registers too, and takes the order of commits as an input, so that both checkers know
//! the same. `brute_force.rs` tests what it lacks: attempts of different levels in one history,
//! reads from writers of unknown outcome (it leaves their writes out), snapshots' timestamps.

use crate::common::{Op, Txn, build, histories};
use adya::{History as Theirs, Opts, Valid, Workload};
use lotus_checker::{Isolation, Options, RealTime, SessionOrder, Status, check};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A model of `adya`, and the corresponding options of this checker.
const MODELS: [(&str, Isolation, SessionOrder, RealTime); 6] = {
    use Isolation::{Serializable as Sr, Snapshot as Si};
    [
        ("serializable", Sr, SessionOrder::Ignored, RealTime::Ignored),
        ("strong-session-serializable", Sr, SessionOrder::Enforced, RealTime::Ignored),
        ("strict-serializable", Sr, SessionOrder::Enforced, RealTime::Enforced),
        ("snapshot-isolation", Si, SessionOrder::Ignored, RealTime::Ignored),
        ("strong-session-snapshot-isolation", Si, SessionOrder::Enforced, RealTime::Ignored),
        ("strong-snapshot-isolation", Si, SessionOrder::Enforced, RealTime::Enforced),
    ]
};

/// The history in `adya`'s format, and the commit timestamp of each completion that wrote.
fn translate(txns: &[Txn]) -> (Theirs, Vec<(u64, i64)>) {
    let mut events: Vec<(u64, &Txn, bool)> = txns
        .iter()
        .flat_map(|txn| {
            let end = txn.attempt.end.expect("all outcomes are known");
            [(txn.attempt.start, txn, false), (end, txn, true)]
        })
        .collect();
    events.sort_by_key(|(time, ..)| *time);
    let mut lines = String::new();
    let mut commits = Vec::new();
    for (index, (time, txn, ends)) in events.into_iter().enumerate() {
        let kind = match (ends, txn.attempt.status) {
            (false, _) => "invoke",
            (true, Status::Committed) => "ok",
            (true, _) => "fail",
        };
        let ops: Vec<Value> = txn
            .ops
            .iter()
            .map(|op| {
                let known = ends || op.writes;
                json!([if op.writes { "w" } else { "r" }, op.row, op.version.filter(|_| known)])
            })
            .collect();
        if let (true, Some(commit_ts)) = (ends, txn.attempt.commit_ts) {
            commits.push((index as u64, commit_ts as i64));
        }
        let process = txn.attempt.session;
        lines += &json!({
            "index": index, "type": kind, "process": process, "time": time, "value": ops,
        })
        .to_string();
        lines.push('\n');
    }
    (Theirs::from_json(&lines).expect("it is well-formed"), commits)
}

fn their_verdict(txns: &[Txn], model: &str) -> adya::Report {
    let (history, commits) = translate(txns);
    let opts = Opts {
        models: vec![model.to_owned()],
        wfr_keys: true,
        transaction_order: Some(commits.into_iter().collect()),
        ..Opts::default()
    };
    adya::check(&history, Workload::RwRegister, &opts)
}

/// Whether a transaction read a version before writing it, which `adya` does not look for.
fn reads_own_future(txns: &[Txn]) -> bool {
    txns.iter().any(|txn| {
        txn.ops.iter().enumerate().any(|(place, op)| {
            let same =
                |later: &Op| later.writes && (later.row, later.version) == (op.row, op.version);
            !op.writes && txn.ops[place..].iter().any(same)
        })
    })
}

fn level(isolation: Isolation) -> BoxedStrategy<Isolation> {
    Just(isolation).boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn verdicts_are_the_same(
        (number, txns) in (0..MODELS.len()).prop_flat_map(|number| {
            let txns = histories(level(MODELS[number].1), false, true, 7);
            let known = |txns: &Vec<Txn>| !reads_own_future(txns);
            (Just(number), txns.prop_filter("they do not look for that", known))
        })
    ) {
        let (model, _, session_order, real_time) = MODELS[number];
        let options = Options { session_order, real_time, ..Options::default() };
        let ours = check(&build(&txns), &options);
        let theirs = their_verdict(&txns, model);
        // `adya` returns unknown for a history without a single dependency.
        let sound = theirs.valid != Valid::False;
        prop_assert_eq!(ours.is_clean(), sound, "{}\n{:?}", ours, theirs.anomaly_types);
    }
}
