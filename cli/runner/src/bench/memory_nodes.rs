//! Memory nodes as processes of their own: the program is started once more for each node.
//!
//! # When either side ends
//! A node's standard input is a pipe held by this process, so the kernel tells the node when this
//! process ends, whatever the cause; the node then cleans up and ends as well. A node's standard
//! output is a pipe held only by the node, so this process learns of the node's end in the same
//! way. Nodes have a process group of their own: an interrupt from the terminal reaches only this
//! process, and the nodes through it.
//!
//! # What it is not
//! This module does not know what a node serves, or how: the node's arguments say that. A node
//! prints `READY` on a line of its standard output when it serves.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lotus_benchmarks::stream::StandardOutput;
use lotus_fabric::env::Env;
use lotus_fabric::ids::NodeId;
use lotus_fabric::shm::Host;

use crate::args::HostArgs;
use crate::host::usage::processor_time;

/// Line printed by a node once it serves.
const READY: &str = "ready";

/// Failure to start memory nodes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodesError {
    /// The operating system gave no process, pipe, thread or directory.
    #[error("cannot start memory node {node}: {source}")]
    System {
        /// The node's number.
        node: u16,
        /// The system's error.
        source: io::Error,
    },
    /// The node ended before serving.
    #[error("memory node {node} did not start: {why}")]
    NotReady {
        /// The node's number.
        node: u16,
        /// The node's error message.
        why: String,
    },
}

/// Processes that are memory nodes, numbered from zero. The processes end when this value is
/// dropped.
pub struct MemoryNodes {
    processes: Vec<Child>,
    /// Set before the nodes are ended on purpose, so that their ends are not reported.
    ending: Arc<AtomicBool>,
}

impl MemoryNodes {
    /// Starts `count` nodes with their `arguments`, and waits until all nodes serve. Calls `told`
    /// with a sentence for every node that ends before this value is dropped.
    ///
    /// # Errors
    /// [`NodesError`]; no node is left running.
    pub fn start(
        count: u16,
        arguments: impl Fn(u16) -> Vec<OsString>,
        env: &Env,
        told: impl Fn(String) + Clone + Send + 'static,
    ) -> Result<Self, NodesError> {
        let mut nodes = Self { processes: Vec::new(), ending: Arc::default() };
        for node in 0..count {
            let failed = |source| NodesError::System { node, source };
            let process = spawn(&arguments(node)).map_err(failed)?;
            nodes.processes.push(process);
            let process = nodes.processes.last_mut().expect("just pushed");
            let output = process.stdout.take().expect("piped");
            let (id, output) = (process.id(), until_ready(node, process, output)?);
            let (ending, told) = (Arc::clone(&nodes.ending), told.clone());
            let watch = move || {
                // The node prints nothing more, so the copy returns when the node ends.
                let _ = io::copy(&mut { output }, &mut io::sink());
                if !ending.load(Ordering::Acquire) {
                    told(format!("memory node {node} (process {id}) has ended"));
                }
            };
            env.spawn(&format!("lotus-watch{node}"), watch).map_err(failed)?;
        }
        Ok(nodes)
    }

    /// Number of nodes.
    pub fn count(&self) -> usize {
        self.processes.len()
    }

    /// Processor time used by all nodes; `None` where the kernel does not report it.
    pub fn processor_time(&self) -> Option<Duration> {
        self.processes.iter().map(|process| processor_time(process.id())).sum()
    }
}

impl Drop for MemoryNodes {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        for process in &mut self.processes {
            // Nodes leave nothing behind. An error means that the node has already ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn spawn(arguments: &[OsString]) -> io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
}

/// Waits until a node serves; returns its standard output.
fn until_ready(
    node: u16,
    process: &mut Child,
    output: ChildStdout,
) -> Result<BufReader<ChildStdout>, NodesError> {
    let mut output = BufReader::new(output);
    let mut line = String::new();
    let read = output.read_line(&mut line);
    if read.is_ok() && line.trim_end() == READY {
        return Ok(output);
    }
    let mut why = String::new();
    let said = process.stderr.take().map(|mut errors| errors.read_to_string(&mut why));
    let why = why.trim().trim_start_matches("error: ");
    let why = if why.is_empty() { format!("{read:?}, {said:?}") } else { why.to_owned() };
    Err(NodesError::NotReady { node, why })
}

/// `lotus host`: hosts a memory node until the standard input ends.
///
/// # Errors
/// A sentence that says why the node cannot be hosted.
pub fn serve(args: &HostArgs) -> Result<(), String> {
    let HostArgs { shm, node, nodes } = args;
    let host = Host::start(shm, NodeId(*node), *nodes, &Env::real(0));
    let host = host.map_err(|error| error.to_string())?;
    writeln!(StandardOutput, "{READY}").map_err(|error| error.to_string())?;
    // An error ends the node as well.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    drop(host);
    lotus_fabric::shm::remove_sockets(shm, *nodes);
    Ok(())
}
