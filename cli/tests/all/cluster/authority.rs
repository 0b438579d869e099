//! The loss of memory node 0 and of the authority in its process.

use std::fs;
use std::process::{Child, Command, Stdio};

use super::*;

/// A node that is started by hand, again and again until it runs, as by the unit of an init system.
/// Killed when dropped.
struct Unit {
    file: String,
    log: std::path::PathBuf,
    process: Child,
}

impl Unit {
    /// Starts memory node 0 of a cluster again.
    fn of_memory_node_0(described: &Described) -> Self {
        let log = described.directory.join("c.state/mn-0.by-hand.log");
        let process = Self::start(&described.file(), &log);
        Self { file: described.file(), log, process }
    }

    fn start(file: &str, log: &std::path::Path) -> Child {
        let output = fs::File::create(log).expect("it is ours");
        let mut again = Command::new(env!("CARGO_BIN_EXE_lotus"));
        again.args(["mn", "--file", file, "--node", "0"]).stdout(Stdio::null()).stderr(output);
        again.spawn().expect("the binary was built for this test")
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).expect("it has written")
    }

    /// Whether it hosts an authority. The system may give its ports free only a while after the
    /// process has ended that had them.
    fn hosts(&mut self) -> bool {
        let said = self.said();
        if self.has_ended() && said.contains("cannot listen") {
            self.process = Self::start(&self.file, &self.log);
        }
        said.contains("hosting the authority")
    }

    fn has_ended(&mut self) -> bool {
        self.process.try_wait().expect("it is ours").is_some()
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Kills a node, and waits until it has ended.
fn kill(status: &Value, name: &str) {
    let process = node(status, name).0;
    signal(process, "-KILL");
    wait_until("it has ended", || !is_alive(process));
}

/// Regression: memory node 0 was killed and started again by its unit. Its empty authority passed
/// for the cluster's: all nodes were shown as serving, and writes were acknowledged that were lost
/// at the next start.
#[test]
fn a_cluster_does_not_go_on_with_an_authority_that_has_lost_its_state() {
    let (described, _) = Described::serving_tcp("replaced");
    described.done(&["up"]);
    let status = described.status();
    kill(&status, "mn-0");
    let mut again = Unit::of_memory_node_0(&described);
    wait_until("memory node 0 runs again", || again.hosts());
    for name in ["cn-0", "cn-1"] {
        wait_until(&format!("{name}, of the cluster that is lost, has ended"), || {
            // It ends when the first of them calls. The other may come later, and an init system
            // has started it again by then.
            if again.has_ended() {
                again = Unit::of_memory_node_0(&described);
            }
            !is_alive(node(&status, name).0)
        });
    }
    wait_until("the new memory node 0 has ended, and said why", || {
        // Where it could not listen it is started once more.
        again.hosts();
        let why = "the authority of a running cluster was here";
        again.has_ended() && again.said().contains(why)
    });
    let logs = described.logs();
    assert!(logs.contains("another authority is in its place"), "{logs}");
    assert_eq!(described.status()["healthy"], false);
}

/// Regression: if all compute nodes had ended before the new memory node 0 listened, for whatever
/// reason, nothing told it of the cluster that was lost, and it seemed to wait for a new one.
#[test]
fn memory_that_is_left_tells_of_the_cluster_that_is_lost() {
    let (described, _) = Described::serving_tcp("left");
    described.done(&["up"]);
    let status = described.status();
    ["mn-0", "cn-0", "cn-1"].into_iter().for_each(|name| kill(&status, name));
    // The second time it is told by a node that has told its predecessor already.
    for _ in 0..2 {
        let mut again = Unit::of_memory_node_0(&described);
        wait_until("memory node 0 runs again", || again.hosts());
        wait_until("the new memory node 0 has ended", || again.has_ended());
        let said = again.said();
        assert!(said.contains("the authority of a running cluster was here"), "{said}");
    }
    assert!(is_alive(node(&status, "mn-1").0), "it has the last copies");
}

/// Regression: memory node 0 was killed, and rows without a copy there were written on without end,
/// though no node could take them in any more.
#[test]
fn nothing_is_acknowledged_without_the_authority() {
    let (described, host) = Described::serving_tcp("alone");
    let described = described.with_three_memory_nodes(Some(host));
    described.done(&["up"]);
    let put = |key: u32| {
        let mut put = Command::new(env!("CARGO_BIN_EXE_lotus"));
        put.args(["put", "savings", &key.to_string(), "seven", "--file", &described.file()]);
        put.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs")
    };
    // Of so many rows some have no copy on memory node 0.
    let acknowledged = || -> usize {
        let all: Vec<Child> = (0..12).map(put).collect();
        let is_done = |mut put: Child| put.wait().expect("it is ours").success();
        all.into_iter().map(is_done).filter(|done| *done).count()
    };
    assert_eq!(acknowledged(), 12, "{}", described.logs());
    kill(&described.status(), "mn-0");
    for node in 0..2 {
        wait_until("it takes nothing any more", || {
            get((host, METRICS + node), "/health").contains("suspended")
        });
    }
    assert_eq!(acknowledged(), 0, "{}", described.logs());
    let logs = described.logs();
    assert_eq!(logs.matches("nothing is committed until it answers").count(), 2, "{logs}");
}
