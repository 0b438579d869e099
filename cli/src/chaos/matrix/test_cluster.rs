//! Test cluster of the matrix: a small cluster in a directory of its own, with nodes and commands
//! as processes of this program.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use lotus_fabric::env::Env;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::ProcessFault;
use lotus_node::config::name::NodeName;
use lotus_node::host::fault_point::VARIABLE;
use lotus_node::host::polling::wait_until;
use lotus_node::host::processes::{is_stopped, make_private};
use lotus_node::snapshots::Digest;

/// Lease of a compute node. Longer than a process waits for a processor on a busy machine.
pub const LEASE: Duration = Duration::from_millis(2000);
/// Time limit for one step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Port of the first compute node for applications.
const CLIENT: u16 = 7500;
/// Nodes of the cluster, in the order in which they start.
const NODES: [&str; 4] = ["mn-0", "mn-1", "cn-0", "cn-1"];

/// Directory, cluster file and base snapshot of one cluster.
pub struct TestCluster {
    directory: PathBuf,
    host: Ipv4Addr,
    program: PathBuf,
    env: Env,
    /// Snapshot at the start of every run, outside the directory of snapshots.
    base: PathBuf,
    digest: Digest,
}

impl TestCluster {
    /// Creates the directory, loads a cluster in it, and takes the base snapshot. Clusters in use
    /// at the same time need different `place`s.
    ///
    /// # Errors
    /// A sentence.
    pub fn prepare(place: usize) -> Result<Self, String> {
        let name = format!("lotus-matrix-{}-{place}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        make_private(&directory)?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let base = directory.join("base");
        make_private(&base)?;
        let digest = Digest::default();
        let host = host(place);
        let mut cluster = Self { directory, host, program, env: Env::real(0), base, digest };
        fs::write(cluster.file(), description(host)).map_err(|error| error.to_string())?;
        cluster.done(&["up"])?;
        cluster.done(&["snapshot"])?;
        cluster.done(&["down", "--no-snapshot"])?;
        let kept = cluster.kept()?;
        let [first] = &kept[..] else { return Err(format!("there is one snapshot, not {kept:?}")) };
        cluster.base = cluster.base.join(first.file_name().ok_or("a snapshot has a name")?);
        fs::rename(first, &cluster.base).map_err(|error| error.to_string())?;
        cluster.digest = Digest::of(&cluster.base)?;
        Ok(cluster)
    }

    fn file(&self) -> PathBuf {
        self.directory.join("c.toml")
    }

    /// Ends the cluster, and leaves only the base snapshot for the next run.
    ///
    /// # Errors
    /// A sentence.
    pub fn reset(&self) -> Result<(), String> {
        self.done(&["down", "--no-snapshot"])?;
        for name in ["kept", "c.state"] {
            // A missing directory is as good as a removed one.
            let _ = fs::remove_dir_all(self.directory.join(name));
        }
        make_private(&self.directory.join("kept"))?;
        let name = self.base.file_name().ok_or("a snapshot has a name")?;
        let first = self.directory.join("kept").join(name);
        fs::copy(&self.base, first).map(drop).map_err(|error| error.to_string())
    }

    /// Copies the logs of a failed run; returns the directory.
    ///
    /// # Errors
    /// A sentence.
    pub fn keep_logs(&self, name: &str) -> Result<PathBuf, String> {
        let kept = self.directory.join(format!("failed-{}", name.replace('/', "-")));
        let _ = fs::remove_dir_all(&kept);
        make_private(&kept)?;
        let state = fs::read_dir(self.directory.join("c.state")).into_iter().flatten();
        for entry in state.flatten().filter(|entry| entry.path().is_file()) {
            fs::copy(entry.path(), kept.join(entry.file_name())).map_err(|e| e.to_string())?;
        }
        Ok(kept)
    }

    /// Starts a process of this program. Its output goes to a file in the state directory.
    fn spawn(&self, words: &[&str], log: &str, armed: Option<&str>) -> Result<Child, String> {
        let state = self.directory.join("c.state");
        make_private(&state)?;
        let log = state.join(format!("{log}.said"));
        let log = File::options().create(true).append(true).open(log);
        let log = log.map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.program);
        command.args(words).arg("--file").arg(self.file()).env_remove(VARIABLE);
        if let Some(armed) = armed {
            command.env(VARIABLE, armed);
        }
        let errors = log.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        command.spawn().map_err(|error| error.to_string())
    }

    /// Starts a node by hand.
    ///
    /// # Errors
    /// A sentence.
    pub fn node(&self, node: NodeName, armed: Option<&str>) -> Result<Child, String> {
        let index = node.index.to_string();
        self.spawn(&[node.command(), "--node", &index], &node.to_string(), armed)
    }

    /// Starts a command of `lotus cluster`, without waiting for it.
    ///
    /// # Errors
    /// A sentence.
    pub fn begin(&self, words: &[&str], armed: Option<&str>) -> Result<Child, String> {
        self.spawn(&[&["cluster"], words].concat(), words[0], armed)
    }

    /// Runs a command of `lotus cluster`, and waits for it.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn give(&self, words: &[&str]) -> Result<Output, String> {
        let mut command = Command::new(&self.program);
        command.arg("cluster").args(words).arg("--file").arg(self.file()).env_remove(VARIABLE);
        command.output().map_err(|error| error.to_string())
    }

    /// Runs a command that must succeed; returns its output.
    ///
    /// # Errors
    /// Standard error of the command if it fails.
    pub fn done(&self, words: &[&str]) -> Result<String, String> {
        let output = self.give(words)?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output.status.success() {
            true => Ok(said(&output.stdout)),
            false => Err(format!("lotus cluster {}: {}", words.join(" "), said(&output.stderr))),
        }
    }

    /// Status of the cluster.
    ///
    /// # Errors
    /// A sentence.
    pub fn status(&self) -> Result<Value, String> {
        let output = self.give(&["status", "--json"])?;
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
    }

    /// Snapshots in the directory, the oldest first.
    fn kept(&self) -> Result<Vec<PathBuf>, String> {
        let files = fs::read_dir(self.directory.join("kept")).map_err(|error| error.to_string())?;
        let paths = files.flatten().map(|entry| entry.path());
        let is_one = |path: &PathBuf| path.extension().is_some_and(|found| found == "snapshot");
        let mut kept: Vec<PathBuf> = paths.filter(is_one).collect();
        kept.sort();
        Ok(kept)
    }

    /// Checks that a snapshot exists, and that all initial rows are in every snapshot.
    ///
    /// # Errors
    /// A sentence.
    pub fn check_kept(&self) -> Result<(), String> {
        let kept = self.kept()?;
        for path in &kept {
            let found = Digest::of(path)?;
            if found != self.digest {
                let (rows, all) = (found.rows(), self.digest.rows());
                return Err(format!("{} has {rows} rows, not these {all}", path.display()));
            }
        }
        match kept.is_empty() {
            true => Err("no snapshot is left".to_owned()),
            false => Ok(()),
        }
    }

    /// Checks that the cluster serves the initial rows.
    ///
    /// # Errors
    /// A sentence.
    pub fn check_served(&self) -> Result<(), String> {
        self.check_kept()?;
        self.done(&["snapshot"])?;
        self.check_kept()
    }

    /// Polls until `holds` returns true.
    ///
    /// # Errors
    /// A sentence: it takes too long.
    pub fn wait_until(&self, what: &str, holds: impl FnMut() -> bool) -> Result<(), String> {
        match wait_until(&self.env, PATIENCE, holds) {
            true => Ok(()),
            false => Err(format!("not within {PATIENCE:?}: {what}")),
        }
    }

    /// Waits for `duration`.
    pub fn pause(&self, duration: Duration) {
        wait_until(&self.env, duration, || false);
    }

    /// Whether a compute node takes connections of applications.
    pub fn is_open(&self, node: NodeName) -> bool {
        TcpStream::connect((self.host, CLIENT + node.index)).is_ok()
    }

    /// Waits until the fault strikes a process. Runs `meanwhile` while the process is stopped, and
    /// resumes the process after some leases.
    ///
    /// # Errors
    /// A sentence: the process was not struck, or the error of `meanwhile`.
    pub fn await_fault(
        &self,
        child: &mut Child,
        fault: ProcessFault,
        meanwhile: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let id = child.id();
        let mut ended = None;
        self.wait_until("it is struck", || {
            ended = child.try_wait().ok().flatten();
            ended.is_some() || is_stopped(id)
        })?;
        match (fault, ended) {
            (ProcessFault::Kill, Some(status)) if was_killed(status) => Ok(()),
            (ProcessFault::Stop, None) => {
                let happened = meanwhile();
                self.pause(LEASE * 3);
                let process = i32::try_from(id).ok().and_then(Pid::from_raw);
                let process = process.ok_or("it has no number")?;
                kill_process(process, Signal::CONT).map_err(|error| error.to_string())?;
                happened
            }
            (_, ended) => Err(format!("it was never struck: {ended:?}")),
        }
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        // After a failure nothing is left running, but the logs stay.
        let _ = self.give(&["down", "--no-snapshot"]);
        let files = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let failed = files.filter(|file| file.file_name().to_string_lossy().starts_with("failed"));
        if failed.count() == 0 {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

/// Loopback address reserved for this place of this process: every address of 127/8 reaches this
/// machine.
fn host(place: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x7fc0_0000 | (std::process::id() % (1 << 14)) << 8 | place as u32 & 0xFF)
}

/// Cluster file: two nodes of each kind, and some thousand rows.
fn description(host: Ipv4Addr) -> String {
    let lease_ms = LEASE.as_millis();
    let client = |port: u16| format!("[[compute_node]]\nclient = \"{host}:{port}\"\n");
    let nodes: String = [CLIENT, CLIENT + 1].map(client).concat();
    format!(
        "fabric = \"shm\"\nclient_key_file = \"key\"\nreplicas = 2\nmemory = \"64M\"\n\
         lock_table = \"1M\"\ncoroutines = 4\nlease_ms = {lease_ms}\n\
         [[memory_node]]\n[[memory_node]]\n{nodes}\
         [load.smallbank]\naccounts = 2000\n[snapshots]\ndirectory = \"kept\"\nkeep = 2\n"
    )
}

/// Processes of nodes started by hand; dropping this value kills them.
#[derive(Default)]
pub struct Nodes(BTreeMap<NodeName, Child>);

impl Nodes {
    /// Starts the nodes; at most one node is armed.
    ///
    /// # Errors
    /// A sentence.
    pub fn start(cluster: &TestCluster, armed: Option<(NodeName, &str)>) -> Result<Self, String> {
        let mut nodes = Self::default();
        for name in NODES {
            let node: NodeName = name.parse()?;
            let armed = armed.filter(|(one, _)| *one == node).map(|(_, at)| at);
            nodes.put(node, cluster.node(node, armed)?);
        }
        Ok(nodes)
    }

    /// Replaces the process of a node that has ended.
    pub fn put(&mut self, node: NodeName, child: Child) {
        self.0.insert(node, child);
    }

    /// Process of a node.
    pub fn of(&mut self, node: NodeName) -> &mut Child {
        self.0.get_mut(&node).expect("all were started")
    }

    /// Kills a node.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn kill(&mut self, node: NodeName) -> Result<(), String> {
        let child = self.of(node);
        child.kill().and_then(|()| child.wait()).map(drop).map_err(|error| error.to_string())
    }

    /// Nodes whose processes have ended.
    pub fn ended(&mut self) -> Vec<NodeName> {
        let ended = |child: &mut Child| matches!(child.try_wait(), Ok(Some(_)));
        self.0.iter_mut().filter_map(|(node, child)| ended(child).then_some(*node)).collect()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.0.values_mut() {
            // The process may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
