//! Where results go: readers that have seen enough, disks and limits that have no room, files with
//! readers of their own, and names that would forge a line.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{Scratch, lotus};

/// Runs the command with a standard output without a reader; returns the exit code and what was
/// said on the standard error.
fn unread(arguments: &[&str]) -> (Option<i32>, String) {
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_lotus"));
    command.args(arguments).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
    let output = command.output().expect("the binary was built for this test");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

/// A list piped to `true` was once an error with exit code 2, in all commands but one.
#[test]
fn a_reader_that_has_gone_is_no_error() {
    let scratch = Scratch::new("unread");
    let history = scratch.path("lost.jsonl");
    fs::write(&history, lost_update("x")).expect("there is room");
    let short = ["--secs", "0.1", "--warmup", "0"];
    let cases: [(&[&str], i32); 4] = [
        (&["--help"], 0),
        // The verdict is that of the history, also without a reader.
        (&["check", &history], 1),
        (&["check", &history, "--json", "-"], 1),
        (&[&["bench", "kvs", "--keys", "100"], &short[..]].concat(), 0),
    ];
    for (arguments, code) in cases {
        let (ended, said) = unread(arguments);
        assert_eq!(ended, Some(code), "{arguments:?}: {said}");
        assert!(!said.contains("error"), "{arguments:?}: {said}");
    }
}

/// Two transactions that read one version of a row with this key and both replace it.
fn lost_update(key: &str) -> String {
    let attempt = |id: u32, version: u32| {
        let key = serde_json::to_string(key).expect("text");
        format!(
            "{{\"id\":{id},\"session\":{id},\"start\":{id},\"end\":9,\"iso\":\"sr\",\
             \"status\":\"ok\",\"ops\":[[\"r\",\"t\",{key},null],[\"w\",\"t\",{key},{version}]]}}\n"
        )
    };
    [attempt(1, 7), attempt(2, 8)].concat()
}

/// A key with a line break once made a line of its own: `check passed`.
#[test]
fn a_key_forges_no_line() {
    let scratch = Scratch::new("forged");
    let history = scratch.path("forged.jsonl");
    fs::write(&history, lost_update("k\ncheck passed\n\u{1b}[2J")).expect("there is room");
    let output = lotus(&["check", &history]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(!text.lines().any(|line| line == "check passed"), "{text}");
    assert!(text.contains("k\\ncheck passed\\n") && !text.contains('\u{1b}'), "{text}");
    // An error is one line as well, whatever a file is called.
    let output = lotus(&["check", "no\nerror: such file"]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
}

/// A limit of the size of files once ended the command by a signal, without a word.
#[test]
fn a_file_that_may_not_grow_is_an_error_with_a_sentence() {
    let scratch = Scratch::new("limited");
    let history = scratch.path("history.jsonl");
    fs::write(&history, "what was there").expect("there is room");
    let command = format!(
        "ulimit -f 8; exec {} bench kvs --keys 100 --secs 0.5 --warmup 0 --history {history}",
        env!("CARGO_BIN_EXE_lotus")
    );
    let output = Command::new("sh").args(["-c", &command]).output().expect("a shell");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{said}");
    let sentence = format!("error: cannot write {history}: File too large");
    assert!(said.lines().any(|line| line.starts_with(&sentence)), "{said}");
    assert_eq!(fs::read_to_string(&history).expect("it is there"), "what was there");
}

#[test]
fn results_go_through_links_and_leave_readers_as_they_are() {
    let scratch = Scratch::new("links");
    let [target, link] = ["target.json", "link.json"].map(|name| scratch.path(name));
    symlink("target.json", &link).expect("there is room");
    for mode in [None, Some(0o600), Some(0o640)] {
        if let Some(mode) = mode {
            fs::set_permissions(&target, fs::Permissions::from_mode(mode)).expect("it is ours");
        }
        let flags = ["--secs", "0.1", "--warmup", "0", "--json", &link];
        let output = lotus(&[&["bench", "kvs", "--keys", "100"], &flags[..]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
        let result = fs::read(&target).expect("it was written through the link");
        serde_json::from_slice::<Value>(&result).expect("a result");
        let found = fs::metadata(&target).expect("it is there").permissions().mode() & 0o777;
        assert!(mode.is_none_or(|mode| mode == found), "{mode:?} {found:o}");
    }
}
