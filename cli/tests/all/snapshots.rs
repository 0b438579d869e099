//! Clusters of processes that are ended or killed as a whole, and begin with their last snapshot.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use ::lotus::{PrimaryKey, Secret, SnapshotError, SnapshotVisitor, TableSpec, read_snapshot};
use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use serde_json::Value;

use crate::common::{self, host, lotus, show_if_failed};

/// A small cluster, with a lease for a busy machine.
const SMALL: &str = "client_key_file = \"key\"\nreplicas = 2\nmemory = \"64M\"\n\
                     lock_table = \"1M\"\ncoroutines = 4\nlease_ms = 3000\n";
const SNAPSHOTS: &str = "[snapshots]\ndirectory = \"kept\"\n";

/// A cluster in a directory of its own. Dropping it ends what it has started.
struct Described {
    directory: PathBuf,
}

impl Described {
    /// Two nodes of each kind over `shm`.
    fn new(name: &str, tail: &str) -> Self {
        let host = host();
        let node = |port: u16| format!("[[compute_node]]\nclient = \"{host}:{port}\"\n");
        let nodes: String = (7500..7502).map(node).collect();
        let memory = "[[memory_node]]\n[[memory_node]]\n";
        Self::of(name, &format!("fabric = \"shm\"\n{SMALL}{memory}{nodes}"), tail)
    }

    /// The same, over `tcp`.
    fn over_tcp(name: &str, tail: &str) -> Self {
        let host = host();
        let memory = |port: u16| format!("[[memory_node]]\naddress = \"{host}:{port}\"\n");
        let compute = |port: u16| {
            let client = port + 100;
            format!("[[compute_node]]\naddress = \"{host}:{port}\"\nclient = \"{host}:{client}\"\n")
        };
        let nodes: String = [7401, 7402].map(memory).concat() + &[7403, 7404].map(compute).concat();
        let net = format!("key_file = \"nodes.key\"\nauthority = \"{host}:7400\"\n");
        Self::of(name, &format!("fabric = \"tcp\"\n{net}{SMALL}{nodes}"), tail)
    }

    fn of(name: &str, nodes: &str, tail: &str) -> Self {
        let name = format!("lotus-kept-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).expect("a fresh directory");
        let file = format!("{nodes}[load.smallbank]\naccounts = 200\n{tail}");
        fs::write(directory.join("c.toml"), file).expect("it is ours");
        Self { directory }
    }

    fn file(&self) -> String {
        self.directory.join("c.toml").into_os_string().into_string().expect("UTF-8")
    }

    fn cluster(&self, arguments: &[&str]) -> Output {
        lotus(&[&["cluster"], arguments, &["--file", &self.file()]].concat())
    }

    /// Output of a command, which must succeed.
    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        let output = self.cluster(arguments);
        assert!(output.status.success(), "{arguments:?}: {}{}", text(&output), self.logs());
        String::from_utf8(output.stdout).expect("text")
    }

    /// Output of a command, which must be refused.
    #[track_caller]
    fn refusal(&self, arguments: &[&str]) -> String {
        let output = self.cluster(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output));
        text(&output)
    }

    /// Calls transactions, then audits all data, that of earlier calls included.
    #[track_caller]
    fn drive(&self) {
        let file = self.file();
        let arguments = ["bench", "smallbank", "--cluster", &file, "--txns", "500", "--json"];
        let output = lotus(&[&arguments[..], &["-"]].concat());
        assert!(output.status.success(), "{}{}", text(&output), self.logs());
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(report["audit"]["passed"], true, "{report}");
        assert!(report["committed"].as_u64() > Some(0), "{report}");
    }

    /// The snapshots that are kept, the oldest first.
    fn kept(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.directory.join("kept")).into_iter().flatten();
        let mut paths: Vec<PathBuf> = files.map(|entry| entry.expect("readable").path()).collect();
        paths.sort();
        paths
    }

    fn status(&self) -> Value {
        let output = self.cluster(&["status", "--json"]);
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn logs(&self) -> String {
        common::logs(&self.directory)
    }

    /// Asserts that the secret of the names of rows is in nothing that a node writes on this host
    /// beside its snapshots, and in nothing that commands show.
    #[track_caller]
    fn assert_hides(&self, secret: Secret) {
        let bytes = secret.to_bytes();
        let mut forms = vec![bytes.to_vec(), format!("{bytes:?}").into_bytes()];
        for half in bytes.as_chunks::<8>().0 {
            let word = u64::from_le_bytes(*half);
            let shown = [format!("{word}"), format!("{word:x}"), format!("{word:X}")];
            forms.extend(shown.map(String::into_bytes));
        }
        let files = fs::read_dir(self.directory.join("c.state")).expect("it was made");
        let paths = files.map(|entry| entry.expect("readable").path());
        let contents =
            paths.filter(|path| path.is_file()).map(|path| fs::read(path).expect("ours"));
        let mut shown: Vec<Vec<u8>> = contents.collect();
        for arguments in [&["status"][..], &["status", "--json"]] {
            shown.push(text(&self.cluster(arguments)).into_bytes());
        }
        for shown in shown {
            let has = |form: &Vec<u8>| shown.windows(form.len()).any(|part| part == &form[..]);
            assert!(!forms.iter().any(has), "{}", String::from_utf8_lossy(&shown));
        }
    }

    fn kill(&self, node: &str) {
        self.signal(node, "-KILL");
    }

    fn signal(&self, node: &str, signal: &str) {
        let pid = fs::read_to_string(self.directory.join(format!("c.state/{node}.pid")));
        let pid = pid.expect("it was started");
        let process = pid.split(' ').next().expect("a process");
        let killed = Command::new("kill").args([signal, process]).status();
        assert!(killed.expect("there is such a command").success());
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        show_if_failed(|| self.logs());
        // A failed test leaves nothing running.
        let _ = self.cluster(&["down", "--no-snapshot"]);
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Secret of the names of rows in a snapshot.
fn secret(snapshot: &Path) -> Secret {
    #[derive(Default)]
    struct FoundSecret(Option<Secret>);

    impl SnapshotVisitor for FoundSecret {
        fn secret(&mut self, secret: Secret) -> Result<(), SnapshotError> {
            self.0 = Some(secret);
            Ok(())
        }

        fn table(&mut self, _: TableSpec) -> Result<(), SnapshotError> {
            Ok(())
        }

        fn row(&mut self, _: PrimaryKey, _: &[u8]) -> Result<(), SnapshotError> {
            Ok(())
        }
    }

    let mut found = FoundSecret::default();
    read_snapshot(&mut File::open(snapshot).expect("it is there"), &mut found).expect("whole");
    found.0.expect("a cluster with tables has one")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// A limit of the size of files once ended the node that took the snapshot without a word, and then
/// `down` ended the others: nothing was left.
#[test]
fn a_snapshot_that_may_not_grow_fails_and_ends_nothing() {
    let described = Described::over_tcp("limited", SNAPSHOTS);
    // Enough for logs and state, not for the rows.
    let limited = |arguments: &str| {
        let (program, file) = (env!("CARGO_BIN_EXE_lotus"), described.file());
        let command = format!("ulimit -f 16; exec {program} cluster {arguments} --file {file}");
        Command::new("sh").args(["-c", &command]).output().expect("a shell")
    };
    let up = limited("up");
    assert!(up.status.success(), "{}{}", text(&up), described.logs());
    let refused = described.refusal(&["snapshot"]);
    assert!(refused.contains("File too large"), "{refused}{}", described.logs());
    let refused = described.refusal(&["down"]);
    assert!(refused.contains("File too large"), "{refused}{}", described.logs());
    assert!(described.kept().is_empty(), "{:?}", described.kept());
    let nodes = described.status();
    let nodes = nodes["nodes"].as_array().expect("nodes").len();
    assert_eq!((nodes, described.logs().contains("panicked")), (4, false), "{}", described.logs());
}

/// All nodes were left at rest for good, which takes no calls and says nothing, when the line about
/// the snapshot could not be written.
#[test]
fn a_down_that_cannot_tell_of_its_snapshot_ends_the_nodes_all_the_same() {
    let described = Described::new("untold", SNAPSHOTS);
    described.done(&["up"]);
    let (program, file) = (env!("CARGO_BIN_EXE_lotus"), described.file());
    let command = format!("exec {program} cluster down --file {file} >/dev/full");
    let down = Command::new("sh").args(["-c", &command]).output().expect("a shell");
    assert_eq!(down.status.code(), Some(2), "{}", text(&down));
    assert!(text(&down).contains("No space left"), "{}", text(&down));
    assert_eq!(described.kept().len(), 1);
    let again = described.done(&["up"]);
    assert!(again.contains("4 nodes serve") && again.contains("snapshot"), "{again}");
}

fn begins_with_its_last_snapshot(described: &Described) {
    let first = described.done(&["up"]);
    assert!(!first.contains("snapshot"), "{first}");
    let taken = described.done(&["snapshot", "--json"]);
    let taken: Value = serde_json::from_str(&taken).expect("JSON");
    // Accounts and their balances; no call has had an id yet.
    assert_eq!((taken["rows"].as_u64(), described.kept().len()), (Some(400), 1), "{taken}");
    described.drive();
    // Commits up to the end of the nodes are in the snapshot that `down` takes.
    let down = described.done(&["down"]);
    assert!(down.contains("a snapshot of ") && down.contains("4 nodes have ended"), "{down}");
    let kept = described.kept();
    assert_eq!(kept.len(), 2, "{kept:?}");

    let newest = kept[1].display().to_string();
    let up = described.done(&["up"]);
    assert!(up.contains("begun with the snapshot of ") && up.contains(&newest), "{up}");
    described.drive();

    // All of its memory is gone.
    described.kill("mn-0");
    described.kill("mn-1");
    let refused = described.refusal(&["down"]);
    assert!(
        refused.contains("nothing was ended") && refused.contains("--no-snapshot"),
        "{refused}"
    );
    described.done(&["down", "--no-snapshot"]);
    assert_eq!(described.kept(), kept);
    let up = described.done(&["up"]);
    assert!(up.contains(&newest), "{up}");
    described.drive();
    // The oldest makes room.
    let drawn = secret(&kept[0]);
    described.done(&["snapshot"]);
    assert_eq!(described.kept()[0], kept[1]);
    assert_eq!(described.kept().len(), 2);
    // Three lives, and all have the secret that the first has drawn.
    assert!(described.kept().iter().all(|one| secret(one) == drawn));
    described.assert_hides(drawn);
    assert!(!described.logs().contains("panicked"), "{}", described.logs());
}

#[test]
fn a_cluster_that_is_ended_or_killed_begins_with_its_last_snapshot() {
    begins_with_its_last_snapshot(&Described::new("kept", SNAPSHOTS));
}

#[test]
fn a_cluster_over_tcp_that_is_ended_or_killed_begins_with_its_last_snapshot() {
    begins_with_its_last_snapshot(&Described::over_tcp("kept-tcp", SNAPSHOTS));
}

/// Regression: it began with an older one, and said so in a log only.
#[test]
fn a_cluster_begins_with_its_newest_snapshot_or_not_at_all_unless_an_older_one_will_do() {
    let described = Described::new("whole", SNAPSHOTS);
    described.done(&["up"]);
    described.done(&["snapshot"]);
    described.drive();
    described.done(&["down"]);
    let kept = described.kept();
    let [older, newer] = &kept[..] else { panic!("there are two, not {kept:?}") };
    let cut = |path: &PathBuf| {
        let bytes = fs::read(path).expect("it is there");
        fs::write(path, &bytes[..bytes.len() / 2]).expect("it is ours");
    };
    cut(newer);
    let newest = newer.display().to_string();
    let refused = described.refusal(&["up"]);
    let why = format!("{newest} is no whole snapshot (it was cut off)");
    let flag = "With --older-snapshot the cluster begins with the one of ";
    let parts = [&why, flag, &older.display().to_string()];
    assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
    // Regression: it said that `down` ends the nodes, when none was left.
    assert!(refused.trim_end().ends_with("all nodes have been ended again"), "{refused}");
    assert!(!refused.contains("cluster down"), "{refused}");
    let up = described.done(&["up", "--older-snapshot"]);
    assert!(up.contains(&older.display().to_string()), "{up}");
    assert!(up.contains(&format!("a newer snapshot was left out: {newest}: it was cut")), "{up}");
    described.drive();
    // A new snapshot is newer than the damaged one, which may stay where it is.
    described.done(&["down"]);
    let kept = described.kept();
    let [_, damaged, newer] = &kept[..] else { panic!("there are three, not {kept:?}") };
    assert_eq!(damaged.display().to_string(), newest);
    let up = described.done(&["up"]);
    assert!(up.contains(&newer.display().to_string()), "{up}");
    described.done(&["down", "--no-snapshot"]);
    kept.iter().for_each(cut);
    let refused = described.refusal(&["up"]);
    assert!(
        refused.contains("is no whole snapshot (it was cut off), and there is no"),
        "{refused}"
    );
    let refused = described.refusal(&["up", "--older-snapshot"]);
    assert!(refused.contains("no snapshot is whole"), "{refused}");
    // Regression: an empty directory passed for that of a new cluster.
    fs::remove_dir_all(described.directory.join("kept")).expect("it is ours");
    let refused = described.refusal(&["up"]);
    let newest = newer.file_name().and_then(|name| name.to_str()).expect("UTF-8");
    assert!(refused.contains(newest) && refused.contains("--fresh"), "{refused}");
    let up = described.done(&["up", "--fresh"]);
    assert!(up.contains("begun afresh, with no data of an earlier life"), "{up}");
    described.drive();
}

/// The process of a node that was started by hand. Killed when dropped.
struct ByHand(Child);

impl ByHand {
    fn start(described: &Described, kind: &str, node: &str) -> Self {
        Self::start_at(described, &described.file(), kind, node)
    }

    /// Starts a node with a file of its own, as on another host.
    fn start_at(described: &Described, file: &str, kind: &str, node: &str) -> Self {
        let log = described.directory.join(format!("by-hand-{kind}-{node}.log"));
        let log = File::options().create(true).append(true).open(log).expect("it is ours");
        let mut command = Command::new(env!("CARGO_BIN_EXE_lotus"));
        command.args([kind, "--file", file, "--node", node]);
        command.stdout(Stdio::null()).stderr(log);
        Self(command.spawn().expect("the binary was built for this test"))
    }

    fn kill(&mut self) {
        self.0.kill().expect("it is ours");
        self.0.wait().expect("it is ours");
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("it is ours").is_some()
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let mut executor = Executor::new(Env::real(0));
    let handle = executor.handle().clone();
    executor.run(async move {
        let deadline = handle.now().after(Duration::from_secs(120));
        while !holds() {
            assert!(handle.now() < deadline, "{what}");
            handle.sleep(Duration::from_millis(20)).await;
        }
    });
}

/// Regression: the founder was killed in the middle of its restore and started again: all nodes
/// served half of the rows as a healthy cluster, and the next snapshot, of half of the rows,
/// removed the good one.
#[test]
fn a_half_restored_cluster_serves_nobody_and_loses_no_snapshot() {
    let tail = "[snapshots]\ndirectory = \"kept\"\nkeep = 1\n";
    let described = Described::new("half", tail);
    let file = fs::read_to_string(described.file()).expect("it is ours");
    let file = file.replace("[load.smallbank]\naccounts = 200", "[load.kvs]\nkeys = 200000");
    let file = file.replace("memory = \"64M\"", "memory = \"128M\"");
    fs::write(described.file(), file).expect("it is ours");
    described.done(&["up"]);
    described.done(&["down"]);
    let kept = described.kept();
    assert_eq!(kept.len(), 1, "{kept:?}");

    let nodes = [("mn", "0"), ("mn", "1"), ("cn", "0"), ("cn", "1")];
    let mut nodes = nodes.map(|(kind, node)| ByHand::start(&described, kind, node));
    let status = || described.status();
    wait_until("the cluster is made", || status()["epoch"] == 1);
    assert_eq!(status()["healthy"], false, "it is not restored yet");
    nodes[2].kill();
    let mut again = ByHand::start(&described, "cn", "0");
    wait_until("nobody waits for the data", || again.has_ended() && nodes[3].has_ended());

    let status = status();
    assert_eq!((&status["healthy"], &status["data"]), (&false.into(), &"not whole".into()));
    let refused = described.refusal(&["snapshot"]);
    assert!(refused.contains("was cut short"), "{refused}");
    for log in ["by-hand-cn-0.log", "by-hand-cn-1.log"] {
        let log = fs::read_to_string(described.directory.join(log)).expect("a log");
        assert!(log.contains("cut short") && log.contains("down --no-snapshot"), "{log}");
    }
    assert_eq!(described.kept(), kept);
    drop((nodes, again));
    let up = described.done(&["up"]);
    assert!(up.contains(": 200000 rows of "), "{up}");
}

/// Regression: compute node 1 had taken the newest snapshot on its own host, and the cluster began
/// with an older one of compute node 0, healthy and in silence; the next snapshot had a number that
/// another had already.
#[test]
fn the_newest_snapshot_of_all_hosts_counts_and_numbers_never_branch() {
    let described = Described::over_tcp("hosts", SNAPSHOTS);
    // Key files are made, and an empty life is over.
    described.done(&["up"]);
    described.done(&["down", "--no-snapshot"]);
    fs::remove_dir_all(described.directory.join("c.state")).expect("it is ours");
    let other = described.directory.join("other");
    fs::create_dir(&other).expect("a fresh directory");
    for name in ["c.toml", "key", "nodes.key"] {
        fs::copy(described.directory.join(name), other.join(name)).expect("it is there");
    }
    let there = other.join("c.toml").into_os_string().into_string().expect("UTF-8");
    let start = |names: &[(&str, &str)]| -> Vec<ByHand> {
        let start = |(kind, node): &(&str, &str)| match (*kind, *node) {
            ("cn", "1") => ByHand::start_at(&described, &there, kind, node),
            (kind, node) => ByHand::start(&described, kind, node),
        };
        names.iter().map(start).collect()
    };
    let all = [("mn", "0"), ("mn", "1"), ("cn", "0"), ("cn", "1")];
    let mut nodes = start(&all);
    let healthy = || described.status()["healthy"] == true;
    wait_until("the cluster is made", healthy);
    let first = described.done(&["snapshot", "--json"]);
    let first: Value = serde_json::from_str(&first).expect("JSON");
    assert_eq!((first["sequence"].as_u64(), described.kept().len()), (Some(1), 1), "{first}");
    nodes[2].kill();
    let out = || described.status()["nodes"][2]["state"] == "expelled";
    wait_until("it is expelled", out);
    described.drive();
    let second = described.done(&["snapshot", "--json"]);
    let second: Value = serde_json::from_str(&second).expect("JSON");
    let path = second["path"].as_str().expect("a path").to_owned();
    assert_eq!(second["sequence"].as_u64(), Some(2), "{second}");
    assert!(path.starts_with(other.to_str().expect("UTF-8")), "{path}");
    drop(nodes);

    // Where it cannot be read, nothing begins, and the operator is told where it is.
    let away = described.directory.join("away");
    fs::rename(other.join("kept"), &away).expect("it is ours");
    let mut nodes = start(&all);
    wait_until("compute node 0 refuses", || nodes[2].has_ended());
    let log = || {
        let log = fs::read_to_string(described.directory.join("by-hand-cn-0.log"));
        log.expect("it has written")
    };
    let said = log();
    let parts = ["number 2", &path, "no host that was asked has it", "--older-snapshot"];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    // Nothing was founded: it is started again once the file is back.
    fs::rename(&away, other.join("kept")).expect("it is ours");
    drop(nodes);
    let nodes = start(&all);
    wait_until("the cluster is back", healthy);
    assert!(log().contains("restored the snapshot") && log().contains(&path), "{}", log());
    let third = described.done(&["snapshot", "--json"]);
    let third: Value = serde_json::from_str(&third).expect("JSON");
    assert_eq!(third["sequence"].as_u64(), Some(3), "{third}");
    // Each node has a row in the time of call records, once it takes part in it.
    let rows = |snapshot: &Value| snapshot["rows"].as_u64().expect("a number");
    assert!((rows(&second)..=rows(&second) + 2).contains(&rows(&third)), "{third}");
    drop(nodes);
}

#[test]
fn where_no_directory_is_named_there_are_no_snapshots() {
    let described = Described::new("none", "");
    let refused = described.refusal(&["snapshot"]);
    assert!(refused.contains("has no [snapshots] directory"), "{refused}");
    let refused = described.refusal(&["up", "--older-snapshot"]);
    assert!(refused.contains("has no [snapshots] directory"), "{refused}");
}

/// `lotus cluster snapshot` waited for a compute node that stood still, for as long as it was let,
/// although that had been expelled and others served; and `down` did so while all others rested.
#[test]
fn no_command_waits_for_a_node_that_stands_still_and_was_expelled() {
    let cluster = Described::over_tcp("still", SNAPSHOTS);
    cluster.done(&["up"]);
    cluster.drive();
    cluster.signal("cn-0", "-STOP");
    let said = cluster.done(&["down", "--wait", "3600"]);
    assert!(said.contains("compute node 1: a snapshot"), "{said}");
    assert_eq!(cluster.kept().len(), 1);

    let said = cluster.done(&["up"]);
    assert!(said.contains("begun with the snapshot"), "{said}");
    cluster.drive();
    cluster.signal("cn-0", "-STOP");
    let said = cluster.done(&["snapshot", "--wait", "3600"]);
    assert!(said.contains("compute node 1: a snapshot"), "{said}");
    assert_eq!(cluster.kept().len(), 2);
    cluster.done(&["down", "--no-snapshot"]);
}
