//! Nodes that are told to end in any state; and the status of nodes that ended, were started by
//! hand, or returned.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::described::{Described, MEMORY_METRICS};
use super::{get, kill, node, refusal_of, text, wait_until};
use crate::common::lotus;

/// A node that was started by hand.
struct ByHand {
    child: Child,
    log: String,
}

impl ByHand {
    fn start(described: &Described, kind: &str, index: &str, level: &str) -> Self {
        let log = described.directory.join(format!("by-hand-{kind}-{index}.log"));
        let errors = File::create(&log).expect("it is ours");
        let child = spawn(described, [kind, index], level, errors);
        Self { child, log: log.into_os_string().into_string().expect("UTF-8") }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).expect("it is ours")
    }

    fn await_line(&self, line: &str) {
        wait_until(line, || self.said().contains(line));
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let told = Command::new("kill").args([signal, &id]).status();
        assert!(told.expect("there is such a command").success());
    }

    fn tell_to_end(&mut self) {
        self.signal("-TERM");
    }

    /// Exit code, once it has ended by itself, and its log.
    fn ends_by_itself(mut self) -> (Option<i32>, String) {
        wait_until("it ends", || matches!(self.child.try_wait(), Ok(Some(_))));
        (self.child.wait().expect("it has ended").code(), self.said())
    }

    /// Tells it to end; it does so without an error, before it gives up by itself.
    fn ends_when_told(mut self) -> String {
        self.tell_to_end();
        wait_until("it ends", || matches!(self.child.try_wait(), Ok(Some(_))));
        let status = self.child.wait().expect("it has ended");
        let said = self.said();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(!said.contains("error: "), "{said}");
        said
    }
}

/// Starts a node, the one with this kind and number, with this standard error.
fn spawn(
    described: &Described,
    [kind, index]: [&str; 2],
    level: &str,
    errors: impl Into<Stdio>,
) -> Child {
    Command::new(env!("CARGO_BIN_EXE_lotus"))
        .args([kind, "--file", &described.file(), "--node", index])
        .env("RUST_LOG", level)
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .expect("the binary was built for this test")
}

impl Drop for ByHand {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Regression: nodes that waited for others looked for signals only when they served: they went on
/// waiting, and ended a minute later, with an error.
#[test]
fn nodes_that_wait_end_when_they_are_told_to_and_say_what_they_wait_for() {
    let described = Described::shm("waits");
    for kind in ["mn", "cn"] {
        let waits = ByHand::start(&described, kind, "1", "");
        waits.await_line("waiting for the authority: ");
        let said = waits.ends_when_told();
        assert!(said.contains("told to end") && said.contains("ended node="), "{said}");
    }
    let authority = ByHand::start(&described, "mn", "0", "");
    authority.await_line("serving");
    let waits = ByHand::start(&described, "cn", "0", "");
    waits.await_line("waiting for memory node 1 to serve");
    waits.ends_when_told();
    let memory = ByHand::start(&described, "mn", "1", "error");
    let waits = ByHand::start(&described, "cn", "1", "");
    waits.await_line("waiting for compute node 0 to make the cluster");
    let status = described.status();
    assert_eq!(node(&status, "cn-1").1, "starting", "{status}");
    assert_eq!(node(&status, "mn-1"), (memory.child.id(), "serving".to_owned()), "{status}");
    waits.ends_when_told();
    let status = described.status();
    assert_eq!(node(&status, "cn-1").1, "ended", "{status}");
    assert_eq!(memory.ends_when_told(), "", "only errors were to be logged");
    authority.ends_when_told();
}

/// Regression: a command that gave up after two seconds waited for another twenty until nodes that
/// waited for others were killed.
#[test]
fn what_up_has_started_in_vain_ends_when_it_is_told_to() {
    let (described, _) = Described::tcp("in-vain");
    let file = fs::read_to_string(described.file()).expect("it is ours");
    // An unused address: the memory node of another host.
    let (before, after) = file.split_once(":7402\"").expect("it is described");
    let (before, _) = before.rsplit_once('"').expect("an address");
    fs::write(described.file(), format!("{before}\"192.0.2.1:7402\"{after}")).expect("it is ours");
    let refused = refusal_of(&described.cluster(&["up", "--wait", "2"]));
    assert!(refused.contains("does not serve after 2s"), "{refused}");
    for name in ["mn-0", "cn-0", "cn-1"] {
        let log = described.directory.join(format!("c.state/{name}.log"));
        let log = fs::read_to_string(log).expect("it was started");
        assert!(log.contains(&format!("ended node={name}")), "it was killed: {log}");
    }
}

/// A setting that does not fit is named before anything runs, with what there is.
#[test]
fn memory_that_does_not_fit_is_refused_with_the_name_of_the_setting() {
    let described = Described::shm("fits");
    let file = fs::read_to_string(described.file()).expect("it is ours");
    let with = |memory: &str, accounts: &str| {
        let file = file.replace("\"64M\"", memory).replace("accounts = 200", accounts);
        fs::write(described.file(), file).expect("it is ours");
        refusal_of(&described.cluster(&["up"]))
    };
    let refused = with("\"1000G\"", "accounts = 200");
    let said = "memory is 1000.0 GiB for each memory node, and this host has ";
    assert!(refused.contains(said), "{refused}");
    assert!(!described.directory.join("c.state/mn-0.log").exists(), "nothing was started");
    let refused = with("\"24M\"", "accounts = 1000000");
    // The first one loads. The second one, which waits for it, may be the first to say so.
    let named = [0, 1].map(|node| format!("compute node {node} did not start: "));
    assert!(named.iter().any(|named| refused.contains(named)), "{refused}");
    assert!(refused.contains("memory is too small for load.smallbank: "), "{refused}");
}

/// Nodes have names in the file, and listen at all addresses; applications are told the names. The
/// library of the system knows 127.1 as a host, and this program does not take it for a number.
#[test]
fn nodes_and_applications_meet_by_name() {
    // Below the ports that the system gives to connections of tests beside this one.
    let first = 10_000 + (std::process::id() % 2_000) as u16 * 8;
    let ports: [u16; 8] = std::array::from_fn(|index| first + index as u16);
    let [authority, mn_0, mn_1, cn_0, cn_1, client_0, client_1, metrics] = ports;
    let node = |kind: &str, port: u16, more: &str| {
        let address = format!("address = \"127.1:{port}\"\nbind = \"0.0.0.0:{port}\"\n");
        format!("[[{kind}_node]]\n{address}{more}")
    };
    let client =
        |port: u16| format!("client = \"127.1:{port}\"\nclient_bind = \"0.0.0.0:{port}\"\n");
    let watched = format!("{}metrics = \"localhost:{metrics}\"\n", client(client_0));
    let file = [
        "fabric = \"tcp\"\nkey_file = \"key\"\nreplicas = 2\nmemory = \"64M\"\n".to_owned(),
        "lock_table = \"1M\"\ncoroutines = 4\nlease_ms = 3000\n".to_owned(),
        format!("authority = \"127.1:{authority}\"\nauthority_bind = \"0.0.0.0:{authority}\"\n"),
        node("memory", mn_0, "") + &node("memory", mn_1, ""),
        node("compute", cn_0, &watched) + &node("compute", cn_1, &client(client_1)),
        "[load.smallbank]\naccounts = 200\n".to_owned(),
    ];
    let described = Described::new("named", &file.concat());
    described.done(&["up"]);
    let status = described.status();
    let last = &status["nodes"][3];
    assert_eq!(
        (last["client"].as_str(), last["address"].as_str()),
        (Some(format!("127.1:{client_1}").as_str()), Some(format!("127.1:{}", ports[4]).as_str()),)
    );
    let file = described.file();
    let bench = lotus(&["bench", "smallbank", "--cluster", &file, "--txns", "100", "--json", "-"]);
    assert!(bench.status.success(), "{}{}", text(&bench), described.logs());
    described.done(&["down", "--discard"]);

    let anywhere = fs::read_to_string(&file).expect("it is ours");
    let anywhere =
        anywhere.replace(&format!("\"127.1:{client_1}"), &format!("\"0.0.0.0:{client_1}"));
    fs::write(&file, anywhere).expect("it is ours");
    let refused = refusal_of(&described.cluster(&["up"]));
    assert!(refused.contains("nobody can connect to 0.0.0.0:"), "{refused}");
}

/// Status is true of a process that has ended, of one that was started by hand instead, and when
/// all have ended; and no restart removes the log that says why.
#[test]
fn status_knows_nodes_that_ended_and_nodes_that_were_started_by_hand() {
    let described = Described::shm("by-hand");
    described.done(&["up"]);
    let (crashed, _) = node(&described.status(), "cn-1");
    kill(crashed);
    wait_until("it is expelled", || node(&described.status(), "cn-1").1 == "expelled");
    let by_hand = ByHand::start(&described, "cn", "1", "info");
    wait_until("it takes part again", || described.status()["healthy"] == true);
    let status = described.status();
    assert_eq!(node(&status, "cn-1"), (by_hand.child.id(), "serving".to_owned()), "{status}");
    let said = by_hand.ends_when_told();
    assert!(said.contains("taking part again"), "{said}");
    let (process, state) = node(&described.status(), "cn-1");
    assert!(process != crashed && state != "serving", "{state}");

    // The memory of another process is not what the others use, however fast it comes.
    kill(node(&described.status(), "mn-1").0);
    let said = described.done(&["up"]);
    assert!(said.contains("4 nodes serve, 4 of them on this host, of which 2 had"), "{said}");
    let status = described.status();
    assert_eq!(status["healthy"], true, "{said}{status}");
    let log = |name: &str| fs::read_to_string(described.directory.join("c.state").join(name));
    assert!(log("mn-1.1.log").expect("it is kept").contains("serving"));
    assert!(log("cn-1.1.log").expect("it is kept").contains("serving"));
    assert!(log("cn-1.2.log").is_err(), "what was started by hand has its log elsewhere");

    described.done(&["down", "--discard"]);
    let status = described.status();
    let nodes = status["nodes"].as_array().expect("a list");
    let ended = |node: &Value| node["state"] == "ended" && node["process"].is_null();
    assert!(nodes.iter().all(ended), "{status}");
    assert!(described.left().is_empty(), "{:?}", described.left());
}

/// A compute node 1 of a running cluster, its standard error a full pipe, and that pipe.
fn unread(described: &Described) -> (Child, io::PipeReader, usize) {
    described.done(&["up"]);
    kill(node(&described.status(), "cn-1").0);
    wait_until("it is expelled", || node(&described.status(), "cn-1").1 == "expelled");
    let (reader, mut writer) = io::pipe().expect("a pipe");
    let room = rustix::pipe::fcntl_getpipe_size(&writer).expect("it is a pipe");
    writer.write_all(&vec![b'\n'; room]).expect("there is so much room");
    let child = spawn(described, ["cn", "1"], "debug", writer);
    wait_until("it takes part", || described.status()["healthy"] == true);
    assert_eq!(node(&described.status(), "cn-1"), (child.id(), "serving".to_owned()));
    (child, reader, room)
}

/// Regression: it waited for ever for its last line to be taken, and so was never started again.
#[test]
fn a_node_that_is_expelled_ends_although_its_last_line_is_not_read() {
    let described = Described::shm("unread-end");
    let (mut child, _reader, _) = unread(&described);
    let signal = |signal: &str| {
        let told = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(told.expect("there is such a command").success());
    };
    signal("-STOP");
    wait_until("it is expelled", || node(&described.status(), "cn-1").1 == "expelled");
    signal("-CONT");
    wait_until("it ends", || matches!(child.try_wait(), Ok(Some(_))));
    assert_eq!(child.wait().expect("it has ended").code(), Some(2));
}

/// Regression: a node waited with each line until there was room for it, and did not beat
/// meanwhile. A terminal that is paused, or a program that does not read, had it expelled.
#[test]
fn a_log_that_nobody_reads_holds_up_no_node() {
    let described = Described::shm("unread");
    let (mut child, mut reader, room) = unread(&described);
    described.done(&["down", "--discard"]);
    assert!(child.wait().expect("it was told to end").success());
    // The pipe was full to the end.
    let mut unread = Vec::new();
    reader.read_to_end(&mut unread).expect("a pipe");
    assert!(unread.len() == room && unread.iter().all(|byte| *byte == b'\n'));
}

/// Gives the nodes of a file their key, as `up` would.
fn make_key(described: &Described) {
    let path = described.directory.join("key");
    let file = File::options().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(&[0x5a; 32])).expect("it is ours");
}

/// A memory node stood still for so long that the others gave it up. Its process went on afterwards
/// as if nothing had happened, healthy by its own word, so nothing started it again.
#[test]
fn a_memory_node_that_was_given_up_says_so_and_ends_with_a_code() {
    let (described, host) = Described::tcp("given-up");
    let described = described.with_memory_metrics(host);
    make_key(&described);
    let start = |kind: &str, index: &str| ByHand::start(&described, kind, index, "info");
    let (_mn_0, mn_1) = (start("mn", "0"), start("mn", "1"));
    let [_cn_0, cn_1] = [start("cn", "0"), start("cn", "1")];
    wait_until("all serve", || described.status()["healthy"] == true);
    let health = || get((host, MEMORY_METRICS + 1), "/health");
    assert!(health().ends_with("serving\n"), "{}", health());
    mn_1.signal("-STOP");
    wait_until("it is given up", || node(&described.status(), "mn-1").1 == "lost");
    mn_1.signal("-CONT");
    let (code, said) = mn_1.ends_by_itself();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("error: memory node 1 was given up"), "{said}");
    // Regression: a compute node that came back meanwhile waited for it, and gave up.
    kill(cn_1.child.id());
    wait_until("it is expelled", || node(&described.status(), "cn-1").1 == "expelled");
    let cn_1 = start("cn", "1");
    cn_1.await_line("taking part again");
    let again = start("mn", "1");
    wait_until("it is filled", || described.status()["healthy"] == true);
    assert!(health().ends_with("serving\n"), "{}", health());
    assert!(again.said().contains("memory node 1 takes part"), "{}", again.said());
}

/// A start that was refused removed the sockets and locks of nodes that ran.
#[test]
fn a_refused_start_from_another_state_directory_leaves_a_running_cluster_whole() {
    let (described, _) = Described::serving("two-states");
    let file = fs::read_to_string(described.file()).expect("it is ours");
    let file = file.replacen("fabric = \"shm\"\n", "fabric = \"shm\"\ndirectory = \"s\"\n", 1);
    fs::write(described.file(), file).expect("it is ours");
    described.done(&["up"]);
    let other = described.directory.join("other");
    let other = other.to_str().expect("UTF-8");
    let refused = described.cluster(&["up", "--state", other]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    let status = described.status();
    assert_eq!(status["healthy"], true, "{status}");
    let bench = ["bench", "smallbank", "--cluster", &described.file(), "--txns", "100"];
    let bench = lotus(&bench);
    assert!(bench.status.success(), "{}{}", text(&bench), described.logs());
    assert!(described.done(&["down", "--discard"]).contains("4 nodes have ended"));
    assert!(!described.directory.join("s").exists(), "what is over leaves nothing");
}

/// Compute node 1 was never started: it was a member all the same, and all waited for it.
#[test]
fn a_compute_node_that_is_not_started_holds_nobody_up_and_may_come_later() {
    let (described, _) = Described::tcp("absent");
    make_key(&described);
    let start = |kind: &str, index: &str| ByHand::start(&described, kind, index, "info");
    let memory = [start("mn", "0"), start("mn", "1")];
    let first = start("cn", "0");
    first.await_line("serving");
    wait_until("the other one is given up", || {
        described.status()["nodes"][3]["state"] == "expelled"
    });
    kill(memory[1].child.id());
    wait_until("a memory node is given up", || {
        first.said().contains("memory node 1 is lost: copies of each row left: 1")
    });
    let late = start("cn", "1");
    late.await_line("taking part again");
    late.await_line("serving");
    assert_eq!(node(&described.status(), "cn-1").1, "serving");
}
