//! Benchmarks under way: shown at a socket, or on memory nodes that are processes. Shared by the
//! tests of `lotus` and `lotus-lab`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use serde_json::Value;
use tempfile::TempDir;

/// Longer than any test waits: such a run does not end by itself.
const FOR_EVER: &str = "80000";
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// A benchmark under way, which `--live` shows.
pub struct Running(Child);

impl Running {
    pub fn start(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        let command = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("the binary was built for this test"))
    }

    /// Waits for its end, which must be a good one.
    pub fn ends_well(mut self) {
        let ended = self.0.wait().expect("it was started");
        let mut said = String::new();
        let error = self.0.stderr.as_mut().expect("it is piped");
        error.read_to_string(&mut said).expect("text");
        assert!(ended.success(), "{said}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failed test leaves nothing running.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connects to a socket as soon as something listens there.
pub fn connected(path: &str) -> UnixStream {
    let mut executor = Executor::new(Env::real(0));
    let handle = executor.handle().clone();
    let mut found = None;
    executor.run(async {
        let deadline = handle.now().after(PATIENCE);
        while found.is_none() {
            assert!(handle.now() < deadline, "nothing listens at {path}");
            found = UnixStream::connect(path).ok();
            handle.sleep(Duration::from_millis(10)).await;
        }
    });
    found.expect("it is connected")
}

pub fn lines(stream: UnixStream) -> impl Iterator<Item = Value> {
    stream.set_read_timeout(Some(PATIENCE)).expect("it is not nothing");
    let lines = BufReader::new(stream).lines();
    lines.map(|line| serde_json::from_str(&line.expect("text")).expect("JSON"))
}

/// A run whose memory nodes are processes, with a directory of its own for sockets.
pub struct Apart {
    pub process: Child,
    errors: BufReader<ChildStderr>,
    temporary: TempDir,
}

impl Apart {
    /// Starts a run that goes on for ever, and waits until clients issue transactions.
    pub fn start(program: &str, what: &[&str]) -> Self {
        let temporary = tempfile::Builder::new().prefix("lotus-").tempdir().expect("a directory");
        let mut process = Command::new(program)
            .arg("bench")
            .args(what)
            .args(["--fabric", "shm", "--secs", FOR_EVER])
            .env("TMPDIR", temporary.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("the binary was built for this test");
        let mut errors = BufReader::new(process.stderr.take().expect("piped"));
        let running = errors.by_ref().lines().any(|line| line.is_ok_and(|line| line == "running"));
        assert!(running, "the run ended before it ran");
        Self { process, errors, temporary }
    }

    /// The processes that are memory nodes of this run.
    pub fn memory_nodes(&self) -> Vec<u32> {
        let parent = format!(" {} ", self.process.id());
        let is_child = |process: &u32| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            // After the name: the state, then the parent.
            stat.rsplit(')')
                .next()
                .is_some_and(|rest| rest.get(2..).is_some_and(|rest| rest.starts_with(&parent)))
        };
        let all = fs::read_dir("/proc").expect("a list of processes");
        let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        numbers.filter(is_child).collect()
    }

    /// Waits until the run, all its nodes and all their files are gone.
    pub fn expect_gone(mut self, nodes: &[u32]) -> (Option<i32>, String) {
        let status = self.process.wait().expect("it is ours");
        let mut said = String::new();
        self.errors.read_to_string(&mut said).expect("text");
        for node in nodes {
            while is_alive(*node) {
                std::thread::yield_now();
            }
        }
        let left: Vec<_> = fs::read_dir(self.temporary.path()).expect("it is there").collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        (status.code(), said)
    }
}

/// Kills a memory node of a run with so many: the run ends with a sentence that names it.
pub fn ends_with_a_memory_node(program: &str, what: &[&str], count: usize) {
    let run = Apart::start(program, what);
    let nodes = run.memory_nodes();
    assert_eq!(nodes.len(), count);
    let last = nodes[count - 1];
    signal("-KILL", last);
    let (code, said) = run.expect_gone(&nodes);
    assert_eq!(code, Some(2));
    let sentence = said.lines().last().expect("it says something");
    assert!(sentence.contains(&format!("(process {last}) has ended")), "{sentence}");
}

/// Sends a signal, such as `-KILL`.
pub fn signal(name: &str, process: u32) {
    let number = process.to_string();
    let sent =
        Command::new("kill").args([name, &number]).status().expect("there is such a command");
    assert!(sent.success(), "process {process} is not there");
}

/// Whether any thread of a process runs: the first may have ended long before the last. A process
/// that has ended and was not waited for does not run.
pub fn is_alive(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok()).any(|stat| {
        let state = stat.rsplit(") ").next();
        state.is_some_and(|state| !state.starts_with(['Z', 'X']))
    })
}
