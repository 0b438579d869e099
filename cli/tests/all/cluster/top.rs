//! `lotus top` on a cluster of processes.

use std::fs;

use super::described::{Described, METRICS};
use super::{get, kill, node, text, wait_until};
use crate::common::lotus;

/// A frame of the cluster, as text.
fn frame(described: &Described) -> String {
    let output = lotus(&["top", &described.file(), "--once", "--interval", "0.4"]);
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8(output.stdout).expect("text")
}

/// The words of a node's row.
fn row<'a>(frame: &'a str, node: &str) -> Vec<&'a str> {
    let row = frame.lines().find(|line| line.starts_with(node));
    let row = row.unwrap_or_else(|| panic!("no {node} in:\n{frame}"));
    row.split_whitespace().skip(1).collect()
}

/// Commits a second, as the frame has them.
fn committed(frame: &str) -> Option<f64> {
    let line = frame.lines().find_map(|line| line.strip_prefix("committed "))?;
    line.split('/').next()?.replace(',', "").parse().ok()
}

#[test]
fn a_cluster_under_load_is_shown_and_so_is_a_node_that_dies_and_returns() {
    let (described, host) = Described::serving("top");
    let described = described.with_memory_metrics(host);
    let before = frame(&described);
    assert!(before.contains("0 of 4 nodes serve; authority: unreachable"), "{before}");
    assert!(before.contains("no node tells rates"), "{before}");
    described.done(&["up"]);
    let file = described.file();
    std::thread::scope(|scope| {
        let bench = ["bench", "smallbank", "--cluster", &file, "--txns", "20000"];
        let running = scope.spawn(move || lotus(&bench));
        let mut shown = String::new();
        // In a short interval of a busy machine, one node may have committed nothing.
        let of_node = |row: &[&str]| row[2].replace(',', "").parse::<f64>().unwrap_or(0.0);
        wait_until("transactions are shown", || {
            shown = frame(&described);
            let all = committed(&shown).is_some_and(|rate| rate > 0.0);
            all && of_node(&row(&shown, "cn-0")) > 0.0
        });
        assert!(shown.contains("4 of 4 nodes serve, epoch 1, copies 2, data loaded"), "{shown}");
        let compute = row(&shown, "cn-0");
        assert_eq!((compute[0], compute[1]), ("serving", "1"), "{shown}");
        let memory = row(&shown, "mn-1");
        assert_eq!((memory[0], memory[2]), ("serving", "MiB"), "{shown}");

        kill(node(&described.status(), "cn-1").0);
        let lost = ["ended", "unreachable", "in", "expelled"];
        let shown = frame(&described);
        assert!(lost.contains(&row(&shown, "cn-1")[0]), "{shown}");
        assert!(shown.contains("3 of 4 nodes serve"), "{shown}");
        described.done(&["up"]);
        let mut shown = String::new();
        wait_until("it is back", || {
            shown = frame(&described);
            row(&shown, "cn-1")[0] == "serving"
        });
        let rate = committed(&shown);
        assert!(rate.is_some_and(|rate| (0.0..1e6).contains(&rate)), "{shown}");
        let output = running.join().expect("it does not panic");
        assert!(output.status.success(), "{}{}", text(&output), described.logs());
    });
    described.done(&["down", "--discard"]);
    assert!(!described.logs().contains("panicked"), "{}", described.logs());
}

/// Anything may listen at the address of a node that has ended.
#[test]
fn a_stranger_at_the_address_of_a_node_is_no_node() {
    let (described, host) = Described::serving("top-stranger");
    let described = described.with_memory_metrics(host);
    let stranger = std::net::TcpListener::bind((host, super::MEMORY_METRICS)).expect("it is free");
    let written = fs::read(described.file()).expect("it is ours");
    let shown = std::thread::scope(|scope| {
        scope.spawn(|| {
            for stream in stranger.incoming().take(2) {
                let mut stream = stream.expect("a stream");
                // What is closed with a request unread is reset, and the answer may be lost. The
                // asker may have gone.
                let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
                let _ = std::io::Write::write_all(&mut stream, &written);
            }
        });
        let shown = frame(&described);
        // However often it was asked, the stranger ends. What is shown is judged afterwards: a
        // failure in here would wait for it.
        let _ = std::net::TcpStream::connect((host, super::MEMORY_METRICS));
        let _ = std::net::TcpStream::connect((host, super::MEMORY_METRICS));
        shown
    });
    assert_eq!(row(&shown, "mn-0")[0], "nonsense", "{shown}");
    assert_eq!(row(&shown, "mn-1")[0], "unreachable", "{shown}");
}

/// A quotation mark in a table's name made the whole scrape unreadable, and its node "nonsense".
#[test]
fn a_table_of_any_name_is_counted_and_leaves_its_node_readable() {
    let (described, host) = Described::serving("top-names");
    let file = fs::read_to_string(described.file()).expect("it is ours");
    let (file, _) = file.split_once("[load").expect("it has one");
    let table = "[[table]]\nname = 'a\"b\\'\nrecord_bytes = 16\ncapacity = 100\n";
    fs::write(described.file(), format!("{file}{table}")).expect("it is ours");
    described.done(&["up"]);
    let put = lotus(&["put", "a\"b\\", "1", "x", "--file", &described.file()]);
    assert!(put.status.success(), "{}", text(&put));
    let scraped = get((host, METRICS), "/metrics");
    assert!(scraped.contains(r#"table="a\"b\\""#), "{scraped}");
    let shown = frame(&described);
    assert_eq!(row(&shown, "cn-0")[0], "serving", "{shown}");
    described.done(&["down", "--discard"]);
}
