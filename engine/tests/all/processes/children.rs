//! Child processes of one test: its own program, with a role. They carry out orders, a line at a
//! time, until their standard input ends or they are killed.

use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child as Process, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use lotus::{Cluster, TableSpec, Threads};
use lotus_fabric::env::Env;
use lotus_fabric::transport::Fabric;

use super::{ACCOUNTS, Kind, MEMORY_NODES, PATIENCE, Place, ROWS, memory, transfer};

/// Environment variable with the role of a child process; not set in the test itself.
const ROLE: &str = "LOTUS_PROCESS_ROLE";

#[derive(Clone, Copy, Debug)]
pub enum Role {
    Memory,
    Compute,
}

/// Child process that has started its role. Killed when dropped.
pub struct Child {
    process: Process,
    orders: ChildStdin,
    said: Receiver<String>,
}

impl Child {
    pub fn start(role: Role, place: &Place, node: u16) -> Self {
        let Place { fabric, directory, lease } = place;
        let lease_ms = lease.map_or(0, |lease| lease.as_millis() as u64);
        let what = format!("{role:?} {fabric:?} {node} {lease_ms} {}", directory.display());
        let mut process = Command::new(std::env::current_exe().expect("this program has a path"))
            .args(["--exact", "processes::children::child", "--nocapture", "--test-threads=1"])
            .env(ROLE, what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let orders = process.stdin.take().expect("piped");
        let output = BufReader::new(process.stdout.take().expect("piped"));
        let (says, said) = channel();
        let listen = move || {
            // Until the child ends, or the receiver is gone.
            for line in output.lines() {
                if line.is_ok_and(|line| says.send(line).is_err()) {
                    return;
                }
            }
        };
        Env::real(0).spawn("listener", listen).expect("a thread");
        let mut child = Self { process, orders, said };
        child.expect("ready");
        child
    }

    /// Sends it an order, and waits for `answer`.
    pub fn ask(&mut self, order: &str, answer: &str) {
        writeln!(self.orders, "{order}").expect("it listens");
        self.expect(answer);
    }

    fn expect(&mut self, answer: &str) {
        loop {
            let line = self.said.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("no \"{answer}\": {error}"));
            // The test harness of the child prints as well, even on the same line.
            if line.ends_with(answer) {
                return;
            }
        }
    }

    /// Kills the child, and returns when it has ended.
    pub fn kill(&mut self) {
        self.process.kill().expect("it is ours");
        self.process.wait().expect("it is ours");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Entry point of the child processes; no test in itself.
#[test]
fn child() {
    play_role();
}

/// Plays the role that the parent process has set. Returns false if there is none.
pub fn play_role() -> bool {
    let Ok(what) = std::env::var(ROLE) else { return false };
    let parts: Vec<&str> = what.splitn(5, ' ').collect();
    let &[role, fabric, node, lease_ms, directory] = &parts[..] else { panic!("{what}") };
    let place = Place {
        fabric: if fabric == "Shm" { Kind::Shm } else { Kind::Tcp },
        directory: PathBuf::from(directory),
        lease: Some(lease_ms.parse().expect("a number"))
            .filter(|ms| *ms > 0)
            .map(Duration::from_millis),
    };
    let node: u16 = node.parse().expect("a number");
    match (role, place.fabric) {
        ("Memory", _) => {
            let _memory = memory(&place, node);
            say("ready");
            io::stdin().lines().for_each(drop);
        }
        (_, Kind::Shm) => compute(&place, node, place.shm_fabric(node)),
        (_, Kind::Tcp) => compute(&place, node, place.tcp_fabric(node)),
    }
    true
}

fn say(what: &str) {
    writeln!(io::stdout(), "{what}").expect("the parent reads it");
}

fn compute<F: Fabric + Clone + 'static>(place: &Place, node: u16, fabric: F) {
    let index = usize::from(node - MEMORY_NODES);
    let machines = Threads::over(fabric, Env::real(0));
    let cluster = place.builder(index).start_on(machines).expect("joins");
    say("ready");
    for order in io::stdin().lines() {
        let order = order.expect("a line");
        match order.split(' ').collect::<Vec<_>>()[..] {
            ["transfer", count] => {
                transfers(&cluster, count.parse().expect("a number"));
                say("done");
            }
            ["spin"] => {
                transfers(&cluster, 10);
                say("spinning");
                transfers(&cluster, u64::MAX);
            }
            ["table", name] => {
                let spec = TableSpec::named(name.to_owned()).record_bytes(8).capacity(10);
                cluster.create_table(spec.clone()).expect("there is room");
                assert!(cluster.create_table(spec).is_err(), "the name is taken");
                say("done");
            }
            ["audit"] => {
                cluster.settle().expect("nobody has failed here");
                let findings = cluster.audit().expect("memory nodes answer");
                findings.iter().for_each(|finding| assert!(finding.passed, "{finding:?}"));
                say("sound");
            }
            _ => panic!("{order}"),
        }
    }
}

fn transfers(cluster: &Cluster, count: u64) {
    let table = cluster.open_table(&ACCOUNTS.name).expect("the other process has made it");
    for turn in 0..count {
        let (from, to) = (turn.wrapping_mul(5) % ROWS, (turn.wrapping_mul(5) + 3) % ROWS);
        transfer(cluster, table, from, to).expect("it ends well");
    }
}
