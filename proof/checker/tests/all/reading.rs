//! Malformed histories are refused, with the line, and never with a panic.

use lotus_checker::{
    Access, Attempt, History, HistoryError, Isolation, Key, Operation, Options, Problem, Status,
    check,
};
use proptest::prelude::*;

const GOOD: &str = concat!(
    r#"{"id":7,"session":3,"start":100,"end":140,"iso":"sr","status":"ok","cts":131,"#,
    r#""ops":[["r","acct",17,42],["w","acct",17,43],["r","acct",9,null]]}"#
);

/// The error of a history with `line` as its second line.
fn refused(line: &str) -> String {
    let error = History::read(format!("{GOOD}\n{line}\n").as_bytes()).expect_err("it is none");
    error.to_string()
}

#[test]
fn bad_lines_are_named() {
    let with = |what: &str, other: &str| GOOD.replace(what, other).replace("\"id\":7", "\"id\":8");
    for (line, expected) in [
        ("", "expected an object at byte 1"),
        ("garbage", "expected an object at byte 1"),
        ("{}", "expected a string at byte 2"),
        (&GOOD[..23], "expected the rest of a string at byte 24"),
        (&GOOD[..28], "expected a whole number from 0 to 2^64 - 1 at byte 29"),
        (&GOOD[..GOOD.len() - 1], "expected a comma or the end of the object at byte 143"),
        (&with("}", "} x"), "expected the end of the line at byte 145"),
        (
            &with("\"session\":3", "\"session\":-3"),
            "expected a whole number from 0 to 2^64 - 1 at byte 19",
        ),
        (&with(":100,", ":1e2,"), "expected a whole number from 0 to 2^64 - 1 at byte 29"),
        (&with(":100,", ":99999999999999999999,"), "the number at byte 29 does not fit in 64 bits"),
        (&with("iso", "level"), "there is no field \"level\""),
        (&with("\"iso\":\"sr\"", "\"id\":9"), "the field \"id\" is given twice"),
        (&with("\"iso\":\"sr\",", ""), "the field \"iso\" is missing"),
        (&with("\"sr\"", "\"rc\""), "expected \"sr\" or \"si\" at byte 49"),
        (&with("[\"w\"", "[\"x\""), "expected \"r\", \"w\" or \"d\" at byte 105"),
        (&with("140", "null"), "the field \"end\" is missing"),
        (&with("140", "99"), "the attempt ends before it starts"),
        (&with("43", "null"), "the field \"version\" is missing"),
        (GOOD, "id 7 was used on line 1"),
        (&with("", ""), "the attempt overlaps with line 1 of the same session"),
    ] {
        assert_eq!(refused(line), format!("line 2: {expected}"), "{line}");
    }
}

#[test]
fn depth_and_length_are_no_danger() {
    let deep = "[".repeat(1 << 20);
    assert!(refused(&deep).starts_with("line 2: expected an object"));
    let deep = GOOD.replace("[[", &format!("[{deep}"));
    assert!(refused(&deep).starts_with("line 2: expected a string"));
    let endless = std::io::repeat(b' ');
    let error = History::read(std::io::BufReader::new(endless)).expect_err("it is none");
    let expected = Problem::LineTooLong;
    assert!(
        matches!(&error, HistoryError::Line { line: 1, problem } if *problem == expected),
        "{error}"
    );
}

#[test]
fn an_empty_file_is_an_empty_history() {
    let history = History::read(&b""[..]).unwrap();
    assert!(history.attempts().is_empty());
    assert!(check(&history, &Options::default()).is_clean());
}

#[test]
fn what_is_read_and_what_is_built_is_the_same() {
    let attempt = Attempt {
        id: 7,
        session: 3,
        start: 100,
        end: Some(140),
        isolation: Isolation::Serializable,
        status: Status::Committed,
        commit_ts: Some(131),
        snapshot: None,
    };
    let op = |access, key, version| Operation { access, table: "acct", key, version };
    let ops = [
        op(Access::Read, Key::Number(17), Some(42)),
        op(Access::Write, Key::Number(17), Some(43)),
        op(Access::Read, Key::Number(9), None),
    ];
    let mut builder = History::builder();
    builder.push(attempt, ops).unwrap();
    let built = builder.finish().unwrap();
    let read = History::read(GOOD.as_bytes()).unwrap();
    assert_eq!(format!("{built:?}"), format!("{read:?}"));
    let mut builder = History::builder();
    let nothing = op(Access::Delete, Key::Number(1), None);
    assert!(builder.push(attempt, [nothing]).is_err());
}

proptest! {
    #[test]
    fn bytes_never_cause_a_panic(bytes: Vec<u8>) {
        let _ = History::read(&bytes[..]);
    }

    #[test]
    fn changed_lines_never_cause_a_panic(
        changes in prop::collection::vec((0..GOOD.len(), any::<u8>()), 0..4),
        cut in 0..=GOOD.len(),
    ) {
        let mut line = GOOD.as_bytes().to_owned();
        for (at, byte) in changes {
            line[at] = byte;
        }
        if let Ok(history) = History::read(&line[..cut]) {
            check(&history, &Options::default());
        }
    }
}
