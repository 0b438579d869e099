//! Child processes of a test: its own program, with a role.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child as Process, ChildStdout, Command, ExitStatus, Stdio};

use lotus_fabric::ids::{Epoch, NodeId};
use lotus_fabric::shm::Host;

use super::{REGION_BYTES, at, env, join, on_lane, word};
use crate::common;

/// Environment variable with the role of a process; not set in the test itself.
const ROLE: &str = "LOTUS_SHM_ROLE";

/// Task of a process until its standard input ends, or it is killed.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// Hosts its node.
    Memory,
    /// Hosts its node, and writes ever larger numbers to all of node 0's memory until it is fenced.
    Hammer,
    /// Hosts its node, and sends every message back.
    Echo,
}

const ROLES: [Role; 3] = [Role::Memory, Role::Hammer, Role::Echo];

/// A process that has begun its task. Killed when dropped.
pub struct Child {
    process: Process,
    /// No longer read, but kept open: writing to a closed pipe fails.
    _output: BufReader<ChildStdout>,
}

impl Child {
    pub fn start(role: Role, directory: &Path, node: u16, nodes: u16) -> Self {
        let mut what = String::new();
        let directory = directory.display();
        write!(what, "{role:?} {node} {nodes} {directory}").expect("strings grow");
        let mut process = Command::new(std::env::current_exe().expect("this program has a path"))
            .args(["--exact", "shm::children::child", "--nocapture", "--test-threads=1"])
            .env(ROLE, what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let mut output = BufReader::new(process.stdout.take().expect("piped"));
        let ready = |line: &io::Result<String>| line.as_ref().is_ok_and(|l| l.contains("ready"));
        let is_ready = output.by_ref().lines().any(|line| ready(&line));
        assert!(is_ready, "the child ended before it was ready");
        Self { process, _output: output }
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Stops the process, and returns when it has stopped.
    pub fn stop(&self) {
        common::stop(&self.process);
    }

    pub fn resume(&self) {
        common::resume(&self.process);
    }

    /// Kills the process, and returns when it has ended.
    pub fn kill(&mut self) -> ExitStatus {
        self.process.kill().expect("it is ours");
        self.wait()
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait().expect("it is ours")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Not a test: the program of the other processes.
#[test]
fn child() {
    let Ok(what) = std::env::var(ROLE) else { return };
    let mut parts = what.splitn(4, ' ');
    let mut next = || parts.next().expect("a role, two numbers and a path").to_owned();
    let name = next();
    let role = ROLES.into_iter().find(|role| format!("{role:?}") == name).expect("a role");
    let [node, nodes] = [next(), next()].map(|number| number.parse().expect("a number"));
    let directory = next();
    let directory = Path::new(&directory);
    match role {
        Role::Memory => {
            let _host = Host::start(directory, NodeId(node), nodes, &env()).expect("hosts");
            ready();
            let _ = io::stdin().read(&mut [0]);
        }
        Role::Hammer => hammer(directory, node, nodes),
        Role::Echo => echo(directory, node, nodes),
    }
}

fn ready() {
    writeln!(io::stdout(), "ready").expect("the parent reads it");
}

fn hammer(directory: &Path, node: u16, nodes: u16) {
    let fabric = join(directory, node, nodes);
    let refused = on_lane(&fabric, at(node), Epoch(1), async |lane| {
        for value in 1.. {
            let mut batch = lane.batch();
            (0..REGION_BYTES / 8).step_by(64).for_each(|index| {
                batch.write_word(word(0, index), value);
            });
            if let Err(error) = batch.post().await {
                return error.first().error;
            }
            if value == 1 {
                ready();
            }
        }
        unreachable!("the numbers do not end")
    });
    assert_eq!(refused.expect("a lane"), lotus_fabric::verbs::VerbError::Revoked);
}

fn echo(directory: &Path, node: u16, nodes: u16) {
    let fabric = join(directory, node, nodes);
    let run = on_lane(&fabric, at(node), Epoch(1), async |lane| {
        let back = lane.clone();
        lane.on_message(Box::new(move |from, bytes| back.send(from, bytes)));
        ready();
        loop {
            lane.executor().suspend().await;
        }
    });
    run.expect("a lane");
}
