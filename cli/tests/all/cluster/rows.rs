//! `lotus tables`, `get`, `put`, `del` and `scan`: rows of a running cluster.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::described::Described;
use super::{refusal, text, wait_until};
use crate::common::lotus;

/// An ordered table, one that is not, and one of each kind with rows of the greatest length.
const TABLES: &str = "\
[[table]]
name = \"names\"
key_bytes = 100
record_bytes = 1_500
capacity = 1_000
ordered = true
[[table]]
name = \"purchases\"
record_bytes = 16
capacity = 1_000
[[table]]
name = \"blobs\"
key_bytes = 31
record_bytes = 15_360
capacity = 100
[[table]]
name = \"pages\"
key_bytes = 255
record_bytes = 7_164
capacity = 100
ordered = true
";

/// Runs a command for the data of a cluster.
fn ask(described: &Described, arguments: &[&str]) -> Output {
    lotus(&[arguments, &["--file", &described.file()]].concat())
}

/// Output of a command, which must succeed.
#[track_caller]
fn told(described: &Described, arguments: &[&str]) -> String {
    let output = ask(described, arguments);
    assert!(output.status.success(), "{arguments:?}: {}{}", text(&output), described.logs());
    assert!(output.stderr.is_empty(), "{arguments:?}: {}", text(&output));
    String::from_utf8(output.stdout).expect("text")
}

/// The sentence of a command that has failed: one line, and nothing on the standard output.
#[track_caller]
fn failure(described: &Described, arguments: &[&str]) -> String {
    let output = ask(described, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output));
    assert!(output.stdout.is_empty(), "{arguments:?}: {}", text(&output));
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(said.lines().count(), 1, "{said}");
    said.strip_prefix("error: ").expect("it says that it is an error").trim_end().to_owned()
}

fn rows_come_and_go(described: &Described) {
    let told = |arguments: &[&str]| told(described, arguments);
    assert_eq!(told(&["put", "savings", "7", "seven"]), "updated row 7 of table savings\n");
    assert_eq!(told(&["get", "savings", "7"]), "seven\n");
    assert_eq!(told(&["get", "savings", "0x0000000000000007"]), "seven\n");
    let inserted = told(&["put", "savings", "a key", "0x001b5b324a"]);
    assert_eq!(inserted, "inserted row a key of table savings\n");
    assert_eq!(told(&["get", "savings", "a key"]), "0x001b5b324a\n", "no raw control bytes");
    let json = told(&["get", "savings", "a key", "--json"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let expected = ["a key", "0x001b5b324a", "0x61206b6579", "0x001b5b324a"];
    assert_eq!(["key", "value", "key_hex", "value_hex"].map(|field| &json[field]), expected);
    told(&["put", "savings", "8", "1234", "--value", "u64le"]);
    assert_eq!(told(&["get", "savings", "8", "--value", "u64le"]), "1234\n");
    assert_eq!(told(&["get", "savings", "0000000000000008", "--hex"]), "0xd204000000000000\n");
    assert_eq!(told(&["put", "savings", "-5", "-6"]), "inserted row -5 of table savings\n");
    assert_eq!(told(&["get", "savings", "-5"]), "-6\n");
    assert_eq!(told(&["del", "savings", "-5"]), "deleted row -5 of table savings\n");
    for command in ["get", "del"] {
        assert_eq!(failure(described, &[command, "savings", "-5"]), "table savings has no row -5");
    }
    let no_such_row = failure(described, &["get", "savings", "\u{1b}[2J"]);
    assert_eq!(no_such_row, "table savings has no row \\u{1b}[2J");
    told(&["del", "savings", "a key"]);
}

fn all_rows_are_shown(described: &Described) {
    let lines = told(described, &["scan", "savings"]);
    let shown: BTreeMap<&str, &str> =
        lines.lines().map(|line| line.split_once('\t').expect("key and value")).collect();
    assert_eq!((lines.lines().count(), shown.len()), (200, 200));
    assert_eq!(shown["7"], "seven");
    assert!((0..200).all(|row: u32| shown.contains_key(&*row.to_string())), "{shown:?}");
    for limit in [0, 3, 1_000] {
        let some = told(described, &["scan", "savings", "--limit", &limit.to_string()]);
        assert_eq!(some.lines().count(), limit.min(200));
    }
    let json = told(described, &["scan", "savings", "--json", "--value", "u64le"]);
    let json = json.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let row = json.into_iter().find(|row| row["key"] == "8").expect("it is there");
    assert_eq!(row["value"], "1234");
}

/// A reader that has seen enough is no failure.
fn a_reader_may_leave(described: &Described) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lotus"));
    let command = command.args(["scan", "checking", "--json", "--file", &described.file()]);
    let mut scan = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut first = String::new();
    let mut out = BufReader::new(scan.stdout.take().expect("it is piped"));
    out.read_line(&mut first).expect("it writes");
    drop(out);
    let output = scan.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output));
    assert!(serde_json::from_str::<Value>(&first).is_ok(), "{first}");
}

fn what_cannot_be_is_named(described: &Described) {
    let usage = |arguments: &[&str]| refusal(&ask(described, arguments));
    for (arguments, said) in [
        (&["get", "savings", "0x0"][..], "\"0x0\" is no key of table savings: it is not hex"),
        (&["get", "savings", ""], "\"\" is no key of table savings: a primary key has at least"),
        (&["get", "savings", "x", "--key", "u64"], "it is not a number"),
        (&["put", "savings", "7", "x", "--value", "u64"], "\"x\" is no value for row 7"),
        (&["put", "savings", "7"], "<VALUE>"),
        (&["get", "savings", "7", "--key", "blob"], "invalid value 'blob'"),
        (&["get", "savings", "7", "--hex", "--key", "u64"], "cannot be used with"),
        (&["scan", "savings", "--limit", "many"], "invalid value 'many'"),
    ] {
        let refused = usage(arguments);
        assert!(refused.contains(said), "{arguments:?}: {refused}");
    }
    let long = "x".repeat(100);
    for (arguments, said) in [
        (&["get", "loans", "7"][..], "the cluster has no table loans, but checking, savings"),
        (&["scan", "loans"], "the cluster has no table loans, but checking, savings"),
        (&["get", "lotus.calls", "7"], "the cluster has no table lotus.calls"),
        (&["get", "savings", "nine bytes"], "cannot read row nine bytes of table savings: "),
        (&["put", "savings", "nine bytes", "x"], "at most 8 bytes, not 10"),
        (&["put", "savings", "7", &long], "cannot write row 7 of table savings: a value"),
    ] {
        let failed = failure(described, arguments);
        assert!(failed.contains(said), "{arguments:?}: {failed}");
    }
    assert_eq!(told(described, &["get", "savings", "7"]), "seven\n", "nothing was changed");
}

fn data_is_at_hand(described: &Described) {
    let path = described.file();
    for arguments in [&["tables"][..], &["get", "savings", "7"], &["scan", "savings"]] {
        let failed = failure(described, arguments);
        assert!(failed.starts_with(&format!("no compute node of {path} serves: ")), "{failed}");
    }
    described.done(&["up"]);
    let tables = told(described, &["tables"]);
    assert_eq!(tables.lines().count(), 3, "{tables}");
    assert!(tables.contains("checking") && tables.contains("savings"), "{tables}");
    let json: Value = serde_json::from_str(&told(described, &["tables", "--json"])).expect("JSON");
    assert_eq!(json[1]["table"], "savings");
    rows_come_and_go(described);
    all_rows_are_shown(described);
    a_reader_may_leave(described);
    what_cannot_be_is_named(described);
    described.done(&["down", "--no-snapshot"]);
}

/// Numbers of rows, not of nodes, and bytes of the table `names`, in all forms.
fn rows_and_memory_are_counted(described: &Described, rows: u64) {
    let told = |arguments: &[&str]| told(described, arguments);
    let find = |tables: &Value| {
        let mut tables = tables.as_array().expect("a list").iter();
        tables.find(|table| table["table"] == "names").expect("it is there").clone()
    };
    let listed = || find(&serde_json::from_str(&told(&["tables", "--json"])).expect("JSON"));
    // A count is used again for a moment.
    wait_until("all rows are counted", || listed()["rows"] == rows);
    assert_eq!(listed()["rows_estimated"], false);
    let tables = told(&["tables"]);
    let shown = tables.lines().find(|line| line.contains("names")).expect("it is shown");
    assert!(shown.contains(&format!(" {rows} ")) && shown.contains("iB"), "{tables}");

    let status = described.status();
    let names = find(&status["tables"]);
    assert_eq!(names["rows"], rows, "{status}");
    let bytes = |field: &str| names[field].as_u64().expect("a number");
    let parts = ["index_bytes", "overflow_bytes", "record_bytes"].map(bytes);
    assert!(parts.iter().sum::<u64>() == bytes("bytes") && parts[0] > 0, "{names}");
    assert!(bytes("free_bytes") < bytes("bytes"), "{names}");
    let memory = &status["nodes"][0]["memory"];
    let of = |field: &str| memory[field].as_u64().expect("a number");
    assert_eq!(of("allocated") + of("unallocated"), of("limit"), "{memory}");
    assert!(of("allocated") >= bytes("bytes"), "{memory}");
    assert_eq!(status["groups"].as_array().map(Vec::len), Some(2), "{status}");
    let text = described.done(&["status"]);
    let shown = text.lines().find(|line| line.contains("names")).expect("it is shown");
    assert!(text.contains("overflow") && shown.contains(&format!(" {rows} ")), "{text}");
}

/// Rows of an ordered table, and bounds for which others are refused.
fn rows_are_in_order(described: &Described) {
    let told = |arguments: &[&str]| told(described, arguments);
    let failure = |arguments: &[&str]| failure(described, arguments);
    let tables = told(&["tables"]);
    let line = |name: &str| {
        tables.lines().map(str::trim).find(|line| line.starts_with(name)).expect("it is there")
    };
    assert!(line("names").ends_with("ordered"), "{tables}");
    assert!(line("purchases").ends_with("in no order"), "{tables}");
    let json: Value = serde_json::from_str(&told(&["tables", "--json"])).expect("JSON");
    let tables = json.as_array().expect("a list").iter();
    let ordered = tables.filter(|table| table["ordered"] == true).map(|table| &table["table"]);
    assert!(ordered.eq(["names", "pages"]), "{json}");
    rows_and_memory_are_counted(described, 0);

    let long = "a key of more than thirty-one bytes";
    for name in ["carol", "alice", long, "bob", "alan"] {
        assert_eq!(
            told(&["put", "names", name, name]),
            format!("inserted row {name} of table names\n")
        );
    }
    assert_eq!(told(&["put", "names", "bob", "Robert"]), "updated row bob of table names\n");
    assert_eq!(told(&["get", "names", "bob"]), "Robert\n");
    assert_eq!(told(&["get", "names", long]), format!("{long}\n"));
    assert_eq!(told(&["del", "names", "alan"]), "deleted row alan of table names\n");
    for command in ["get", "del"] {
        assert_eq!(failure(&[command, "names", "alan"]), "table names has no row alan");
    }
    let keys = |flags: &[&str]| -> Vec<String> {
        let lines = told(&[&["scan", "names"], flags].concat());
        let key = |line: &str| line.split_once('\t').expect("key and value").0.to_owned();
        lines.lines().map(key).collect()
    };
    assert_eq!(keys(&[]), [long, "alice", "bob", "carol"]);
    assert_eq!(keys(&["--from", "alice", "--until", "carol"]), ["alice", "bob"]);
    assert_eq!(keys(&["--prefix", "a"]), [long, "alice"]);
    assert_eq!(keys(&["--prefix", "x"]), [""; 0]);
    assert_eq!(keys(&["--reverse", "--limit", "2"]), ["carol", "bob"]);
    assert_eq!(keys(&["--reverse", "--until", "0x62"]), ["alice", long]);
    // More than a page.
    for number in 0..100 {
        told(&["put", "names", &format!("z{number:03}"), &"x".repeat(1_500)]);
    }
    let expected: Vec<String> = (0..100).map(|number| format!("z{number:03}")).collect();
    assert_eq!(keys(&["--prefix", "z"]), expected);
    rows_and_memory_are_counted(described, 104);

    let inverted = failure(&["scan", "names", "--from", "b", "--until", "a"]);
    assert!(
        inverted.contains("a range ends at or after the key that it begins with"),
        "{inverted}"
    );
    for flags in [&["--from", "a"][..], &["--until", "a"], &["--prefix", "a"], &["--reverse"]] {
        let refused = failure(&[&["scan", "purchases"], flags].concat());
        assert!(refused.starts_with("table purchases is not ordered"), "{refused}");
    }
    let refused = failure(&["get", "purchases", long]);
    assert!(refused.contains("is no key of table purchases"), "{refused}");
    let refused = failure(&["put", "names", &"k".repeat(101), "x"]);
    assert!(refused.contains("at most 100 bytes, not 101"), "{refused}");
    let usage = |arguments: &[&str]| refusal(&ask(described, arguments));
    for (arguments, said) in [
        (&["get", "names", &"k".repeat(256)][..], "it has 256 bytes, more than 255"),
        (&["scan", "names", "--from", "0x0"], "\"0x0\" of --from is no key: it is not hex"),
        (&["scan", "names", "--prefix", "a", "--until", "b"], "cannot be used with"),
    ] {
        let refused = usage(arguments);
        assert!(refused.contains(said), "{arguments:?}: {refused}");
    }
}

/// Rows of the greatest length of each kind of table.
fn the_longest_rows_come_and_go(described: &Described) {
    let told = |arguments: &[&str]| told(described, arguments);
    for (table, key_bytes, bytes) in [("blobs", 31, 15_360), ("pages", 255, 7_164)] {
        let key = |letter: &str| letter.repeat(key_bytes);
        let value = |letter: &str| letter.repeat(bytes);
        for letter in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"] {
            told(&["put", table, &key(letter), &value("z")]);
            told(&["put", table, &key(letter), &value(letter)]);
            assert_eq!(told(&["get", table, &key(letter)]), value(letter) + "\n");
        }
        told(&["del", table, &key("a")]);
        let scanned = told(&["scan", table]);
        let mut lines: Vec<&str> = scanned.lines().collect();
        lines.sort_unstable();
        let line = |letter| format!("{}\t{}", key(letter), value(letter));
        assert!(lines.into_iter().eq(["b", "c", "d", "e", "f", "g", "h", "i", "j"].map(line)));
        let refused = failure(described, &["put", table, "k", &(value("x") + "x")]);
        assert!(
            refused.contains(&format!("at most {bytes} bytes, not {}", bytes + 1)),
            "{refused}"
        );
    }
}

/// A cluster that serves [`TABLES`].
fn with_tables(described: &Described) {
    let file = fs::read_to_string(described.file()).expect("it is ours");
    let (nodes, _) = file.split_once("[load").expect("it has one");
    fs::write(described.file(), format!("{nodes}{TABLES}")).expect("it is ours");
    described.done(&["up"]);
}

#[test]
fn an_ordered_table_of_a_cluster_is_at_hand() {
    let (described, _) = Described::serving("rows-ordered");
    with_tables(&described);
    rows_are_in_order(&described);
    the_longest_rows_come_and_go(&described);
    described.done(&["down", "--discard"]);
}

#[test]
fn the_longest_rows_come_and_go_over_tcp() {
    let (described, _) = Described::serving_tcp("rows-longest");
    with_tables(&described);
    the_longest_rows_come_and_go(&described);
    described.done(&["down", "--discard"]);
}

#[test]
fn data_of_a_cluster_over_shm_is_at_hand() {
    data_is_at_hand(&Described::serving("rows").0);
}

#[test]
fn data_of_a_cluster_over_tcp_is_at_hand() {
    data_is_at_hand(&Described::serving_tcp("rows-tcp").0);
}

/// Applications reach a cluster by addresses that its file names, if it does.
#[test]
fn a_cluster_without_addresses_for_applications_says_so() {
    for described in [Described::tcp("rows-nowhere").0, Described::shm("rows-nowhere-shm")] {
        let failed = failure(&described, &["tables"]);
        assert!(failed.ends_with("has no compute node with an address for clients"), "{failed}");
    }
    let refused = refusal(&lotus(&["get", "savings", "7", "--file", "/nowhere/c.toml"]));
    assert!(refused.contains("cannot read /nowhere/c.toml"), "{refused}");
}
