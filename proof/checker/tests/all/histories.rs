//! Handmade histories, one for each anomaly, and sound ones that come close.
//!
//! A file is named after its only anomaly, or `clean`, and its special feature.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use lotus_checker::{Anomaly, History, Options, RealTime, Report, SessionOrder, check};

const STRICT: Options = Options {
    real_time: RealTime::Enforced,
    session_order: SessionOrder::Enforced,
    max_per_anomaly: 10,
};

/// Names of all files, without the common ending, and their texts.
fn files() -> BTreeMap<String, String> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/histories");
    let files =
        fs::read_dir(folder).expect("the folder is here").map(|entry| entry.expect("readable"));
    let named = files.map(|file| {
        let name = file.file_name().into_string().expect("plain names");
        let name = name.strip_suffix(".jsonl").expect("only histories here").to_owned();
        (name, fs::read_to_string(file.path()).expect("it is text"))
    });
    named.collect()
}

fn judge(text: &str) -> Report {
    check(&History::read(text.as_bytes()).expect("it is a history"), &STRICT)
}

#[test]
fn each_history_has_the_anomaly_that_it_is_named_after_and_no_other() {
    for (name, text) in files() {
        let expected = name.split('.').next().unwrap_or_default();
        let report = judge(&text);
        let found: Vec<_> = report.anomalies().map(Anomaly::name).collect();
        let expected = if expected == "clean" { vec![] } else { vec![expected] };
        assert_eq!(found, expected, "{name}:\n{report}");
    }
}

#[test]
fn there_is_a_history_for_every_anomaly() {
    let files = files();
    for anomaly in Anomaly::ALL {
        let named = |name: &String| name.split('.').next() == Some(anomaly.name());
        assert!(files.keys().any(named), "{anomaly}");
    }
}

#[test]
fn stories_and_cycles_are_spelled_out() {
    let files = files();
    for (name, expected) in [
        ("G0", "G0: T1 --ww(acct/1)--> T2 --ww(acct/2)--> T1"),
        ("G1c", "G1c: T1 --wr(acct/1)--> T2 --wr(acct/2)--> T1"),
        ("G-single", "G-single: T1 --wr(acct/1)--> T2 --rw(acct/2)--> T1"),
        ("G2.write-skew", "G2: T1 --rw(acct/1)--> T2 --rw(acct/2)--> T1"),
        ("session-order", "session-order: T1 --session--> T2 --rw(acct/1)--> T1"),
        ("real-time", "real-time: T1 --real time--> T2 --rw(acct/1)--> T1"),
        (
            "real-time.through-others",
            "real-time: T1 --real time--> T2 --rw(acct/3)--> T3 --rw(acct/2)--> T1",
        ),
        ("G1a", "G1a: T2 read version 5 of acct/17, which T1 wrote before it aborted"),
        ("recycled-read", "recycled-read: T2 read version 5 of acct/9, which T1 wrote to acct/17"),
        (
            "lost-update",
            "lost-update: T1 and T2 both read the initial state of acct/17 and replaced it",
        ),
        (
            "version-order.backwards",
            "version-order: updates show that T1 wrote acct/17 before T2 did, \
             but their commit timestamps are 20 and 10",
        ),
    ] {
        let report = judge(&files[name]);
        assert_eq!(report.violations[0].to_string(), expected);
    }
}

#[test]
fn strictness_is_asked_for() {
    let files = files();
    let history = History::read(files["real-time"].as_bytes()).unwrap();
    assert!(check(&history, &Options::default()).is_clean());
    let history = History::read(files["session-order"].as_bytes()).unwrap();
    let lenient = Options { session_order: SessionOrder::Ignored, ..Options::default() };
    assert!(check(&history, &lenient).is_clean());
}

#[test]
fn a_flood_is_counted_but_not_spelled_out() {
    let line = |id: u64, status: &str, op: &str| {
        format!(
            concat!(
                r#"{{"id":{0},"session":{0},"start":0,"end":9,"iso":"sr","status":"{1}","#,
                r#""ops":[["{2}","t",1,1]]}}"#,
                "\n"
            ),
            id, status, op
        )
    };
    let mut lines = line(0, "fail", "w");
    lines.extend((1..=50).map(|id| line(id, "ok", "r")));
    let report = judge(&lines);
    assert_eq!((report.count(Anomaly::G1a), report.violations.len()), (50, 10));
    assert!(report.to_string().ends_with("50 transactions, G1a × 50"));
}

/// Checks that a real history with one impossible read put into it is not clean.
#[test]
fn a_real_history_with_one_wrong_read_is_not_clean() {
    let text = &files()["clean.smallbank"];
    let lines: Vec<&str> = text.lines().collect();
    let (mut tried, mut caught) = (0, 0);
    for (number, line) in lines.iter().enumerate() {
        if !line.contains(r#""status":"ok""#) {
            continue;
        }
        let mut attempt: serde_json::Value = serde_json::from_str(line).unwrap();
        for op in 0..attempt["ops"].as_array().unwrap().len() {
            let [kind, version] = [0, 3].map(|field| attempt["ops"][op][field].clone());
            if kind != "r" || version.is_null() {
                continue;
            }
            attempt["ops"][op][3] = serde_json::Value::Null;
            let mut changed: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            changed[number] = attempt.to_string();
            tried += 1;
            caught += usize::from(!judge(&changed.join("\n")).is_clean());
            attempt["ops"][op][3] = version;
        }
    }
    assert!(tried > 100, "{tried}");
    // Occasionally the older version could have been read as well.
    assert!(caught * 100 >= tried * 95, "{caught} of {tried}");
}
