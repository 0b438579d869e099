//! `lotus chaos`: processes that are killed and paused under load.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use crate::common::{host, logs, lotus, show_if_failed};

/// Three compute nodes over `shm`, and a lease for a busy machine.
const SMALL: &str = "fabric = \"shm\"\nclient_key_file = \"key\"\nreplicas = 2\nmemory = \"64M\"\n\
                     lock_table = \"1M\"\ncoroutines = 4\nlease_ms = 3000\n\
                     [[memory_node]]\n[[memory_node]]\n";

/// A cluster and a schedule, in a directory of their own.
struct Described {
    directory: PathBuf,
}

impl Described {
    fn new(name: &str, schedule: &str) -> Self {
        let host = host();
        let node = |port: u16| format!("[[compute_node]]\nclient = \"{host}:{port}\"\n");
        let nodes: String = (7500..7503).map(node).collect();
        Self::of(name, &[SMALL, &nodes].concat(), schedule)
    }

    /// A cluster with these settings and nodes.
    fn of(name: &str, nodes: &str, schedule: &str) -> Self {
        let name = format!("lotus-chaos-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).expect("a fresh directory");
        let file =
            format!("{nodes}[load.smallbank]\naccounts = 200\n[clients]\ncreate_tables = true\n");
        fs::write(directory.join("c.toml"), file).expect("it is ours");
        fs::write(directory.join("schedule"), schedule).expect("it is ours");
        Self { directory }
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).into_os_string().into_string().expect("UTF-8")
    }

    fn chaos(&self, schedule: &str, flags: &[&str]) -> Output {
        let file = self.path("c.toml");
        lotus(&[&["chaos", "--file", &file, "--schedule", schedule], flags].concat())
    }

    /// Output of a run that is refused before anything is started.
    #[track_caller]
    fn refusal(&self, schedule: &str, flags: &[&str]) -> String {
        let output = self.chaos(schedule, flags);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(!self.directory.join("c.state").exists(), "{}", text(&output));
        text(&output)
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        show_if_failed(|| logs(&self.directory));
        // A failed test leaves nothing running.
        let _ = lotus(&["cluster", "down", "--discard", "--file", &self.path("c.toml")]);
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Checks that all committed calls are in a history that was judged. A call whose outcome was asked
/// for counts there as one of unknown outcome, which is judged only if another call saw its
/// effects.
#[track_caller]
fn has_judged(findings: &Value, report: &Value) {
    let count = |of: &Value, name: &str| of[name].as_u64().expect("a count");
    let committed = count(report, "committed");
    assert_eq!(count(findings, "attempts"), committed, "{findings}");
    assert_eq!(count(findings, "unknown"), count(report, "found_committed"), "{findings}");
    let answered = count(findings, "committed");
    assert_eq!(answered, committed - count(report, "found_committed"), "{findings}");
    let judged = count(findings, "transactions");
    assert!((answered..=committed).contains(&judged) && judged > 0, "{findings}: {report}");
}

/// Checks that a table has grown meanwhile, and has all of its rows.
#[track_caller]
fn has_grown(report: &Value) {
    assert!(report["grown"].as_u64() > Some(0), "{report}");
    let checks = report["audit"]["checks"].as_array().expect("a list");
    for name in [
        "the ordered table has all rows put into it and no other",
        "no new key is refused as one that exists",
    ] {
        assert!(checks.iter().any(|check| check["name"] == name), "{name}: {report}");
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn h21_what_is_left_of_a_cluster_whose_nodes_are_paused_and_killed_is_sound() {
    let schedule = "# a pause that the lease outlasts, and one that it does not\n\
                    {\"at_ms\":300,\"node\":\"cn-1\",\"fault\":\"pause\"}\n\
                    {\"at_ms\":600,\"node\":\"cn-1\",\"fault\":\"resume\"}\n\
                    {\"at_ms\":900,\"node\":\"cn-0\",\"fault\":\"kill\"}\n\
                    {\"at_ms\":1200,\"node\":\"cn-1\",\"fault\":\"pause\"}\n\
                    {\"at_ms\":2000,\"node\":\"mn-1\",\"fault\":\"kill\"}\n\
                    {\"at_ms\":7000,\"fault\":\"wait\"}\n\
                    {\"at_ms\":7500,\"node\":\"cn-1\",\"fault\":\"resume\"}\n";
    let described = Described::new("chaos", schedule);
    let history = described.path("history");
    let flags = ["--secs", "8", "--json", "-", "--history", &history];
    let output = described.chaos(&described.path("schedule"), &flags);
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["audit"]["passed"], true, "{report}");
    assert_eq!(report["expelled"], serde_json::json!(["mn-1", "cn-0", "cn-1"]), "{report}");
    assert_eq!(report["schedule"].as_array().map(Vec::len), Some(6), "{report}");
    assert!(report["committed"].as_u64() > Some(0), "{report}");
    has_grown(&report);
    let checks = report["audit"]["checks"].as_array().expect("a list");
    let has = |name: &str| checks.iter().any(|check| check["name"] == name);
    assert!(has("expelled nodes have been recovered"), "{report}");
    assert!(has("resident memory stayed below its bound"), "{report}");
    assert!(has("no node was given more than its share"), "{report}");
    assert!(has("no node was expelled for what applications did"), "{report}");
    assert!(has("cn-2: no lock is left held") && has("cn-2: the sum of all balances"), "{report}");
    // There is an order of the applications' calls that keeps real time.
    let judged = lotus(&["check", "--strict", &history, "--json", "-"]);
    assert!(judged.status.success(), "{}", text(&judged));
    let findings: Value = serde_json::from_slice(&judged.stdout).expect("JSON");
    has_judged(&findings, &report);
    // Nothing is left running.
    let down = lotus(&["cluster", "down", "--file", &described.path("c.toml")]);
    assert!(text(&down).contains("nothing runs"), "{}", text(&down));
}

/// One is started again within its lease, then the founder and oracle, then one that is paused.
#[test]
fn h2_nodes_that_are_started_again_take_part_again() {
    let schedule = "{\"at_ms\":300,\"node\":\"cn-1\",\"fault\":\"kill\"}\n\
                    {\"at_ms\":600,\"node\":\"cn-1\",\"fault\":\"restart\"}\n\
                    {\"at_ms\":5500,\"fault\":\"wait\"}\n\
                    {\"at_ms\":6000,\"node\":\"cn-0\",\"fault\":\"restart\"}\n\
                    {\"at_ms\":10500,\"fault\":\"wait\"}\n\
                    {\"at_ms\":11000,\"node\":\"cn-1\",\"fault\":\"pause\"}\n\
                    {\"at_ms\":11500,\"node\":\"cn-1\",\"fault\":\"restart\"}\n";
    let described = Described::new("restarts", schedule);
    let output = described.chaos(&described.path("schedule"), &["--secs", "15", "--json", "-"]);
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["audit"]["passed"], true, "{report}");
    assert_eq!(report["expelled"], serde_json::json!([]), "{report}");
    // Each was expelled and taken in again: two changes for each of three nodes.
    assert_eq!(report["schedule"].as_array().map(Vec::len), Some(5), "{report}");
    assert_eq!(report["starts_struck"], 0, "{report}");
    has_grown(&report);
    assert!(report["epoch"].as_u64() >= Some(7), "{report}");
    let checks = report["audit"]["checks"].as_array().expect("a list");
    for node in ["cn-0", "cn-1", "cn-2"] {
        let name = format!("{node}: the sum of all balances");
        assert!(checks.iter().any(|check| check["name"] == name.as_str()), "{report}");
    }
}

/// One is killed as it starts, pauses as it starts again, and is killed once more; a memory node is
/// killed as it is made anew. All of them take part in the end.
#[test]
fn h2_nodes_that_are_struck_while_they_start_take_part_in_the_end() {
    let schedule = "{\"at_ms\":300,\"node\":\"cn-1\",\"fault\":\"kill\"}\n\
                    {\"at_ms\":400,\"node\":\"mn-1\",\"fault\":\"kill\"}\n\
                    {\"at_ms\":600,\"node\":\"cn-1\",\"fault\":\"restart\"}\n\
                    {\"at_ms\":700,\"node\":\"cn-1\",\"fault\":\"kill\"}\n\
                    {\"at_ms\":800,\"node\":\"mn-1\",\"fault\":\"restart\"}\n\
                    {\"at_ms\":900,\"node\":\"mn-1\",\"fault\":\"kill\"}\n\
                    {\"at_ms\":1000,\"node\":\"cn-1\",\"fault\":\"restart\"}\n\
                    {\"at_ms\":1100,\"node\":\"mn-1\",\"fault\":\"restart\"}\n\
                    {\"at_ms\":1300,\"node\":\"cn-1\",\"fault\":\"pause\"}\n\
                    {\"at_ms\":2300,\"node\":\"cn-1\",\"fault\":\"resume\"}\n\
                    {\"at_ms\":4500,\"node\":\"cn-1\",\"fault\":\"restart\"}\n";
    let described = Described::new("starts", schedule);
    let output = described.chaos(&described.path("schedule"), &["--secs", "12", "--json", "-"]);
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["audit"]["passed"], true, "{report}");
    assert_eq!(report["expelled"], serde_json::json!([]), "{report}");
    assert_eq!(report["starts_struck"], 3, "{report}");
    has_grown(&report);
}

/// H2, H4, H23: with locks on memory nodes, a node pauses and another is killed under its locks,
/// and so is a memory node that has locks; all return. No lock is left, and calls are in real-time
/// order.
#[test]
fn h4_locks_on_memory_nodes_outlast_nodes_that_are_paused_and_killed() {
    let host = host();
    let node = |port: u16| format!("[[compute_node]]\nclient = \"{host}:{port}\"\n");
    let nodes: String = (7500..7503).map(node).collect();
    let schedule = "{\"at_ms\":300,\"node\":\"cn-2\",\"fault\":\"pause\"}\n\
                    {\"at_ms\":500,\"node\":\"cn-1\",\"fault\":\"kill\"}\n\
                    {\"at_ms\":1000,\"node\":\"cn-1\",\"fault\":\"restart\"}\n\
                    {\"at_ms\":1100,\"node\":\"cn-2\",\"fault\":\"resume\"}\n\
                    {\"at_ms\":1500,\"node\":\"mn-1\",\"fault\":\"kill\"}\n\
                    {\"at_ms\":2000,\"node\":\"mn-1\",\"fault\":\"restart\"}\n";
    let declock = ["locks = \"declock\"\n", SMALL, &nodes].concat();
    let described = Described::of("locks", &declock, schedule);
    let history = described.path("history");
    let flags = ["--secs", "5", "--json", "-", "--history", &history];
    let output = described.chaos(&described.path("schedule"), &flags);
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["audit"]["passed"], true, "{report}");
    assert_eq!(report["expelled"], serde_json::json!([]), "{report}");
    assert!(report["committed"].as_u64() > Some(0), "{report}");
    has_grown(&report);
    let checks = report["audit"]["checks"].as_array().expect("a list");
    for node in ["cn-0", "cn-1", "cn-2"] {
        let name = format!("{node}: every lock object is free");
        assert!(checks.iter().any(|check| check["name"] == name.as_str()), "{name}: {report}");
    }
    let judged = lotus(&["check", "--strict", &history, "--json", "-"]);
    assert!(judged.status.success(), "{}", text(&judged));
    let findings: Value = serde_json::from_slice(&judged.stdout).expect("JSON");
    has_judged(&findings, &report);
}

/// A snapshot is taken while its node is killed; the cluster is ended while another node is, and
/// its founder is killed while it starts from there.
#[test]
fn what_is_there_after_a_snapshot_and_a_restore_that_were_struck_is_what_was_there() {
    let host = host();
    let node = |port: u16| format!("[[compute_node]]\nclient = \"{host}:{port}\"\n");
    let nodes: String = (7500..7503).map(node).collect();
    let nodes = [SMALL, &nodes, "[snapshots]\ndirectory = \"kept\"\n"].concat();
    let schedule = "{\"at_ms\":1500,\"fault\":\"snapshot\"}\n\
                    {\"at_ms\":1600,\"node\":\"cn-0\",\"fault\":\"kill\"}\n\
                    {\"at_ms\":2500,\"node\":\"cn-0\",\"fault\":\"restart\"}\n\
                    {\"at_ms\":4000,\"fault\":\"restore\",\
                     \"ending\":[{\"at_ms\":200,\"node\":\"cn-1\",\"fault\":\"kill\"},\
                     {\"at_ms\":1500,\"node\":\"cn-1\",\"fault\":\"restart\"}],\
                     \"starting\":[{\"at_ms\":300,\"node\":\"cn-0\",\"fault\":\"kill\"},\
                     {\"at_ms\":900,\"node\":\"cn-2\",\"fault\":\"pause\"},\
                     {\"at_ms\":2000,\"node\":\"cn-2\",\"fault\":\"resume\"}]}\n\
                    {\"at_ms\":5000,\"fault\":\"snapshot\"}\n";
    let described = Described::of("restore", &nodes, schedule);
    let history = described.path("history");
    let flags = ["--secs", "7", "--json", "-", "--history", &history];
    let output = described.chaos(&described.path("schedule"), &flags);
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["audit"]["passed"], true, "{report}");
    has_grown(&report);
    assert_eq!(report["snapshots_struck"], 2, "{report}");
    assert!(report["snapshots"].as_u64() >= Some(3), "{report}");
    assert_eq!((&report["restores"], &report["restores_struck"]), (&1.into(), &1.into()));
    let checks = report["audit"]["checks"].as_array().expect("a list");
    for name in [
        "every snapshot that was reported reads whole",
        "all data is there after each restore",
        "what became of calls stays so after each restore",
        "cn-0: the sum of all balances",
    ] {
        assert!(checks.iter().any(|check| check["name"] == name), "{name}: {report}");
    }
    let judged = lotus(&["check", "--strict", &history, "--json", "-"]);
    assert!(judged.status.success(), "{}", text(&judged));
    let findings: Value = serde_json::from_slice(&judged.stdout).expect("JSON");
    has_judged(&findings, &report);
    // Snapshots of a run are removed, so that the next run begins with what is loaded.
    let left = fs::read_dir(described.directory.join("kept")).expect("it was made").count();
    assert_eq!(left, 0);
}

/// H2, H23: each node that is struck ends, or is silent for longer than the lease, and takes part
/// again; memory nodes are filled meanwhile, and in the end none is missing.
#[test]
fn h23_a_random_schedule_brings_everybody_back_whom_it_strikes() {
    let host = host();
    let node = |port: u16| format!("[[compute_node]]\nclient = \"{host}:{port}\"\n");
    let nodes: String = (7500..7503).map(node).collect();
    // All strikes of this seed come in the first half of the load.
    let nodes = [SMALL, "[[memory_node]]\n", &nodes].concat();
    let described = Described::of("random", &nodes, "");
    let history = described.path("history");
    let flags = ["--seed", "339", "--secs", "24", "--json", "-", "--history", &history];
    let output = described.chaos("random", &flags);
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["audit"]["passed"], true, "{report}");
    assert_eq!(report["expelled"], serde_json::json!([]), "{report}");
    has_grown(&report);
    let strikes = report["schedule"].as_array().expect("a list");
    let count = |kind: &str, fault: &str| {
        let is = |strike: &&Value| {
            strike["fault"] == fault && strike["node"].as_str().expect("a name").starts_with(kind)
        };
        strikes.iter().filter(is).count()
    };
    for kind in ["mn-", "cn-"] {
        let (killed, restarted) = (count(kind, "kill"), count(kind, "restart"));
        assert!(restarted > 0 && killed <= restarted, "{kind} {killed} {restarted}: {report}");
        assert_eq!(count(kind, "pause"), count(kind, "resume"), "{report}");
    }
    let judged = lotus(&["check", "--strict", &history, "--json", "-"]);
    assert!(judged.status.success(), "{}", text(&judged));
}

/// H23, I133 to I138: a memory node is killed and started anew, before the others have given it up;
/// when it has been filled, the node that it was filled from is killed.
fn what_was_made_anew_is_all_that_is_left(name: &str, nodes: &str) {
    let schedule = "{\"at_ms\":500,\"node\":\"mn-1\",\"fault\":\"kill\"}\n\
                    {\"at_ms\":1000,\"node\":\"mn-1\",\"fault\":\"restart\"}\n\
                    {\"at_ms\":13500,\"node\":\"mn-2\",\"fault\":\"kill\"}\n";
    let described = Described::of(name, nodes, schedule);
    let output = described.chaos(&described.path("schedule"), &["--secs", "15", "--json", "-"]);
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["audit"]["passed"], true, "{report}");
    // Lost, joined, whole; and then mn-2 is lost.
    assert_eq!(report["epoch"], 5, "{report}");
    assert_eq!(report["expelled"], serde_json::json!(["mn-2"]), "{report}");
    assert!(report["committed"].as_u64() > Some(0), "{report}");
    has_grown(&report);
}

#[test]
fn h23_a_memory_node_that_is_made_anew_is_relied_on_over_shm() {
    let host = host();
    let nodes = format!(
        "{SMALL}[[memory_node]]\n[[compute_node]]\nclient = \"{host}:7500\"\n\
         [[compute_node]]\nclient = \"{host}:7501\"\n"
    );
    what_was_made_anew_is_all_that_is_left("anew-shm", &nodes);
}

#[test]
fn h23_a_memory_node_that_is_made_anew_is_relied_on_over_tcp() {
    let host = host();
    let memory = |port: u16| format!("[[memory_node]]\naddress = \"{host}:{port}\"\n");
    let compute = |port: u16| {
        let client = port + 100;
        format!("[[compute_node]]\naddress = \"{host}:{port}\"\nclient = \"{host}:{client}\"\n")
    };
    let settings = SMALL.replace("\"shm\"", "\"tcp\"").replace("[[memory_node]]\n", "");
    let settings = format!("{settings}key_file = \"nodes.key\"\nauthority = \"{host}:7400\"\n");
    let nodes: String =
        [7401, 7402, 7403].map(memory).concat() + &[7404, 7405].map(compute).concat();
    what_was_made_anew_is_all_that_is_left("anew-tcp", &(settings + &nodes));
}

#[test]
fn what_a_cluster_would_not_survive_is_refused_before_it_starts() {
    let schedule = "\n{\"at_ms\":300,\"node\":\"mn-0\",\"fault\":\"kill\"}\n";
    let described = Described::new("refused", schedule);
    let path = described.path("schedule");
    let refused = described.refusal(&path, &[]);
    assert!(refused.contains("schedule, line 2: mn-0 cannot be struck by kill"), "{refused}");
    let refused = described.refusal(&described.path("none"), &[]);
    assert!(refused.contains("cannot read"), "{refused}");
    let refused = described.refusal("random", &["--workload", "tpcc"]);
    assert!(refused.contains("loads smallbank, not tpcc"), "{refused}");
}
