//! The processes of a cluster on this host, and the directory that remembers them.
//!
//! # What it is
//! [`State`] is a directory with a file for each node that was started here: its process id and
//! when that process began, by which a process that has got the same id later is told from ours. A
//! node's log is beside it. Commands of one cluster on one host exclude each other by a lock.
//!
//! # What it is not
//! Supervision: nobody starts a node again that has ended.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::file::ClusterFile;
use super::namespaces::Namespaces;
use super::node::Node;

/// How often something is looked at again.
pub const PAUSE: Duration = Duration::from_millis(20);

/// The state of one cluster on this host.
pub struct State {
    directory: PathBuf,
    /// Where nodes are started, if not in this process's network.
    namespaces: Option<Namespaces>,
    /// Held while a command changes something.
    _lock: Option<File>,
}

/// What is known of a node's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// It was not started here.
    Never,
    /// It runs.
    Running(u32),
    /// It was started here, and has ended.
    Ended(u32),
}

/// A process that cannot be mistaken for another.
struct Process {
    id: u32,
    /// In the kernel's ticks since it booted.
    began: u64,
}

impl State {
    /// For looking.
    pub fn look(file: &ClusterFile) -> Self {
        let namespaces = file.namespaces.clone();
        Self { directory: file.state.clone(), namespaces, _lock: None }
    }

    /// For changing something: makes the directory, for this user only.
    ///
    /// # Errors
    /// A sentence: the directory cannot be made, or another command is at work.
    pub fn lock(file: &ClusterFile) -> Result<Self, String> {
        let directory = file.state.clone();
        make_private(&directory)?;
        let path = directory.join("lock");
        let failed = |error| format!("cannot lock {}: {error}", path.display());
        let lock = File::create(&path).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {
                let namespaces = file.namespaces.clone();
                Ok(Self { directory, namespaces, _lock: Some(lock) })
            }
            Err(TryLockError::WouldBlock) => {
                Err("another command is starting or ending this cluster".to_owned())
            }
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// What is known of a node.
    pub fn seen(&self, node: Node) -> Seen {
        let text = fs::read_to_string(self.pid_file(node)).unwrap_or_default();
        let Some(process) = Process::parse(&text) else { return Seen::Never };
        if process.runs() { Seen::Running(process.id) } else { Seen::Ended(process.id) }
    }

    /// Whether a node was killed and has not ended yet. Its memory and its sockets go one by one,
    /// which takes a while.
    pub fn is_ending(&self, node: Node) -> bool {
        let text = fs::read_to_string(self.pid_file(node)).unwrap_or_default();
        Process::parse(&text).is_some_and(|process| process.runs() && process.is_killed())
    }

    /// Starts a node with these arguments, in a group of its own, and remembers it. What it says
    /// goes to its log, which begins anew.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn start(&self, node: Node, arguments: &[&Path]) -> io::Result<Child> {
        let log = File::create(self.log(node))?;
        let program = std::env::current_exe()?;
        let mut command = match &self.namespaces {
            Some(namespaces) => namespaces.enter(node, &program),
            None => Command::new(program),
        };
        let mut child = command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        let id = child.id();
        // It is ours and not waited for, so it is there, ended or not.
        let remembered = Process::began(id).ok_or_else(|| io::ErrorKind::NotFound.into());
        let remembered =
            remembered.and_then(|began| fs::write(self.pid_file(node), format!("{id} {began}\n")));
        match remembered {
            Ok(()) => Ok(child),
            Err(error) => {
                // Nobody would know of it.
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    /// Asks a node to end, or makes it. One that has ended is no error.
    pub fn signal(&self, node: Node, signal: Signal) {
        let text = fs::read_to_string(self.pid_file(node)).unwrap_or_default();
        let Some((process, handle)) = Process::parse(&text).and_then(Process::hold) else { return };
        // What is held cannot be mistaken for another any more, so now it is looked at.
        if process.runs() {
            let _ = pidfd_send_signal(&handle, signal);
        }
    }

    /// Forgets a node that has ended.
    pub fn forget(&self, node: Node) {
        // What is not there need not go.
        let _ = fs::remove_file(self.pid_file(node));
    }

    /// Where a node's log is.
    pub fn log(&self, node: Node) -> PathBuf {
        self.directory.join(format!("{node}.log"))
    }

    /// The last line of a node's log that is an error.
    pub fn complaint(&self, node: Node) -> Option<String> {
        let log = fs::read_to_string(self.log(node)).ok()?;
        let complaint = log.lines().rev().find_map(|line| line.strip_prefix("error: "));
        complaint.map(str::to_owned)
    }

    fn pid_file(&self, node: Node) -> PathBuf {
        self.directory.join(format!("{node}.pid"))
    }
}

impl Process {
    fn parse(text: &str) -> Option<Self> {
        let (id, began) = text.trim().split_once(' ')?;
        Some(Self { id: id.parse().ok()?, began: began.parse().ok()? })
    }

    /// When the process of that id began, whether it has ended or not.
    fn began(id: u32) -> Option<u64> {
        stat(id)?.get(19)?.parse().ok()
    }

    /// Whether it still runs. One that has ended and was not waited for does not.
    fn runs(&self) -> bool {
        stat(self.id).is_some_and(|fields| self.is_alive(&fields))
    }

    /// Whether it is the process of which the kernel says this, and any thread of it is left. Its
    /// files and sockets are until the last one has ended, and the first may end long before.
    fn is_alive(&self, fields: &[String]) -> bool {
        let number = |index: usize| fields.get(index).and_then(|field| field.parse().ok());
        let ended = matches!(fields.first().map(String::as_str), Some("Z" | "X"));
        let other_threads = number(17).is_some_and(|threads: u64| threads > 1);
        (!ended || other_threads) && number(19) == Some(self.began)
    }

    /// Whether the kernel was told to end it at once. The signal stays pending to the last.
    fn is_killed(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id)).unwrap_or_default();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        let pending = pending.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        pending.is_some_and(|set| set & (1 << (Signal::KILL.as_raw() - 1)) != 0)
    }

    fn hold(self) -> Option<(Self, OwnedFd)> {
        let id = Pid::from_raw(i32::try_from(self.id).ok()?)?;
        Some((self, pidfd_open(id, PidfdFlags::empty()).ok()?))
    }
}

/// What the kernel says of a process, after its name: the state is field 0, how many threads it
/// has 17, its beginning 19.
fn stat(process: u32) -> Option<Vec<String>> {
    fields(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

fn fields(stat: &str) -> Option<Vec<String>> {
    let (_, after) = stat.rsplit_once(')')?;
    Some(after.split_whitespace().map(str::to_owned).collect())
}

/// Makes a directory that only this user can enter, if there is none.
///
/// # Errors
/// A sentence.
pub fn make_private(directory: &Path) -> Result<(), String> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| format!("cannot make {}: {error}", directory.display()))
}

/// Looks until something is so, for at most `patience`. Whether it came to be so.
pub fn wait_until(env: &Env, patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let mut executor = Executor::new(env.clone());
    let handle = executor.handle().clone();
    executor.run(async move {
        let deadline = handle.now().after(patience);
        while !holds() {
            if handle.now() >= deadline {
                return false;
            }
            handle.sleep(PAUSE).await;
        }
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node was killed and started again at once. Its first thread had ended already, so it
    /// passed for dead; another one had not, and its socket was still in use: the new process met
    /// a node in its own place, and gave up.
    #[test]
    fn a_process_has_ended_when_its_last_thread_has() {
        let process = Process { id: 7, began: 4321 };
        let stat = |state: &str, threads: u64, began: u64| {
            let before = "1 7 7 0 -1 4228364 1 2 3 4 5 6 7 8 20 0";
            fields(&format!("7 (lo) us) {state} {before} {threads} 0 {began} 8192 0")).unwrap()
        };
        assert!(process.is_alive(&stat("S", 9, 4321)) && process.is_alive(&stat("T", 1, 4321)));
        assert!(process.is_alive(&stat("Z", 2, 4321)), "a thread is left");
        assert!(!process.is_alive(&stat("Z", 1, 4321)) && !process.is_alive(&stat("X", 0, 4321)));
        assert!(!process.is_alive(&stat("S", 9, 4322)), "another one has got its id");
    }

    #[test]
    fn this_process_runs() {
        let id = std::process::id();
        let began = Process::began(id).expect("it is in /proc");
        let this = Process { id, began };
        assert!(this.runs() && !Process { id, began: began + 1 }.runs());
        assert!(!this.is_killed());
    }

    #[test]
    fn who_was_killed_is_so_until_it_has_ended() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("there is such a command");
        let id = child.id();
        let process = Process { id, began: Process::began(id).expect("it is not waited for") };
        assert!(process.runs() && !process.is_killed());
        child.kill().expect("it is ours");
        assert!(process.is_killed(), "running, ending, or not waited for");
        child.wait().expect("it ends");
        assert!(!process.is_killed() && !process.runs());
    }
}
