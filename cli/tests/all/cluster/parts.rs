//! `lotus cluster down` of a part: the nodes of one host, while those of other hosts serve.

use std::fs;

use super::*;

/// Hides nodes from commands, as if they ran on another host; shows them again when dropped.
struct Elsewhere<'a> {
    described: &'a Described,
    nodes: &'a [&'a str],
}

impl<'a> Elsewhere<'a> {
    fn of(described: &'a Described, nodes: &'a [&'a str]) -> Self {
        let this = Self { described, nodes };
        this.rename("pid", "hidden");
        this
    }

    fn rename(&self, from: &str, to: &str) {
        let path =
            |node: &str, end: &str| self.described.directory.join(format!("c.state/{node}.{end}"));
        for node in self.nodes {
            fs::rename(path(node, from), path(node, to)).expect("it was started");
        }
    }
}

impl Drop for Elsewhere<'_> {
    fn drop(&mut self) {
        self.rename("hidden", "pid");
    }
}

/// Regression: the end of one host's nodes took the authority from all others, or the last copies
/// of their rows, with no question.
#[test]
fn what_others_need_is_ended_by_force_only() {
    let described = Described::shm("part").with_three_memory_nodes(None);
    described.done(&["up"]);
    let refused = |elsewhere: &[&str]| {
        let _elsewhere = Elsewhere::of(&described, elsewhere);
        refusal(&described.cluster(&["down", "--discard"]))
    };
    let said = refused(&["cn-0", "cn-1", "mn-1", "mn-2"]);
    let authority = "the cluster's only authority ends with memory node 0, and all that is \
                     committed with it, while compute node 0, compute node 1 serves. Nothing was \
                     ended; --force ends them all the same";
    assert_eq!(said, authority);
    let said = refused(&["cn-1", "mn-0"]);
    let copies = "the last copies of some rows end with memory node 1, memory node 2, while \
                  compute node 1 serves. Nothing was ended; --force ends them all the same";
    assert_eq!(said, copies);
    assert_eq!(described.status()["healthy"], true);
    {
        let _elsewhere = Elsewhere::of(&described, &["cn-1", "mn-0", "mn-1"]);
        // The others have a copy of every row.
        assert!(described.done(&["down", "--discard"]).contains("2 nodes have ended"));
    }
    {
        let _elsewhere = Elsewhere::of(&described, &["mn-0", "mn-1"]);
        // No node goes on: compute nodes first, memory node 0 last.
        assert!(described.done(&["down", "--discard"]).contains("1 nodes have ended"));
    }
    assert!(described.done(&["down", "--discard"]).contains("2 nodes have ended"));
    assert!(described.left().is_empty(), "{:?}", described.left());
}

#[test]
fn whoever_says_force_ends_the_others_cluster() {
    let described = Described::shm("forced");
    described.done(&["up"]);
    {
        let _elsewhere = Elsewhere::of(&described, &["cn-0", "cn-1"]);
        let ended = described.done(&["down", "--discard", "--force"]);
        assert!(ended.contains("2 nodes have ended"), "{ended}");
    }
    let logs = described.logs();
    assert!(logs.contains("the cluster's only authority ends with memory node 0"), "{logs}");
    {
        // The authority has ended, so the cluster has.
        let _elsewhere = Elsewhere::of(&described, &["cn-1"]);
        assert!(described.done(&["down", "--discard"]).contains("1 nodes have ended"));
    }
    described.done(&["down", "--discard"]);
}
