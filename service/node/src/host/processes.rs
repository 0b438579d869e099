//! The processes of a cluster on this host, and the directory with their process ids.
//!
//! # What it is
//! [`StateFolder`] is a directory with a file for each node started here: the process id and the
//! start time, which distinguishes the process from a later process with an equal id. The starting
//! command writes the file, and so does the node, which may have been started by hand. The logs of
//! a node's last lives are beside the file. A lock excludes concurrent commands for a cluster on a
//! host.
//!
//! # What it is not
//! Supervision: this module does not restart ended nodes.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lotus_files::{Disk, Existing, Files, Readers, write_whole};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::config::file::ClusterFile;
use crate::config::name::NodeName;
use crate::config::namespaces::Namespaces;

/// Number of kept logs of a node's former lives.
const FORMER_LOGS: u32 = 5;

/// The state of a cluster on this host.
pub struct StateFolder {
    directory: PathBuf,
    /// Network namespaces to start nodes in; `None` for this process's namespace.
    namespaces: Option<Namespaces>,
    /// Lock of the directory, held while a command makes changes.
    _lock: Option<File>,
}

/// State of a node's process, as known on this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessState {
    /// Never started here.
    Never,
    /// Running, with this process id.
    Running(u32),
    /// Started here, and ended by itself or killed.
    Ended(u32),
    /// Started here, and ended by `lotus cluster down`.
    Down,
}

/// A process, identified beyond reuse of its process id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub id: u32,
    /// Start time, in the kernel's ticks since boot.
    began: u64,
}

impl StateFolder {
    /// Opens the state for reading.
    pub fn look(file: &ClusterFile) -> Self {
        let namespaces = file.namespaces.clone();
        Self { directory: file.state.clone(), namespaces, _lock: None }
    }

    /// Opens the state for changes: creates a private directory, and locks the directory.
    ///
    /// # Errors
    /// A sentence: the directory cannot be created, or another command is at work.
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

    /// State of a node's process.
    pub fn seen(&self, node: NodeName) -> ProcessState {
        let text = fs::read_to_string(self.pid_file(node)).unwrap_or_default();
        match Process::parse(&text) {
            Some(process) if process.runs() => ProcessState::Running(process.id),
            Some(process) => ProcessState::Ended(process.id),
            None if self.log(node).exists() => ProcessState::Down,
            None => ProcessState::Never,
        }
    }

    /// Records this process as a node's process: it may have been started by hand.
    ///
    /// # Errors
    /// A sentence: the directory cannot be written.
    pub fn remember_this_process(&self, node: NodeName) -> Result<(), String> {
        make_private(&self.directory)?;
        let this = Process::this().map_err(|error| error.to_string())?;
        let path = self.pid_file(node);
        let written = remember(&Disk, &path, this);
        written.map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    /// Whether a node runs, or has ended without `lotus cluster down`.
    pub fn remembers(&self, node: NodeName) -> bool {
        matches!(self.seen(node), ProcessState::Running(_) | ProcessState::Ended(_))
    }

    /// Whether a node was killed and has not ended yet. The kernel needs a while to free memory and
    /// sockets.
    pub fn is_ending(&self, node: NodeName) -> bool {
        let text = fs::read_to_string(self.pid_file(node)).unwrap_or_default();
        Process::parse(&text).is_some_and(|process| process.runs() && process.is_killed())
    }

    /// Runs `program` as a node with these arguments, in a process group of its own, and records
    /// the process. Output goes to the node's log; the log of the node's last life is kept.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn start(&self, node: NodeName, program: &Path, arguments: &[&Path]) -> io::Result<Child> {
        self.keep_log(node)?;
        let log = File::create(self.log(node))?;
        let mut command = match &self.namespaces {
            Some(namespaces) => namespaces.enter(node, program),
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
        // An unreaped child of this process, so present in `/proc` even if ended.
        let remembered =
            Process::of(id).and_then(|process| remember(&Disk, &self.pid_file(node), process));
        match remembered {
            Ok(()) => Ok(child),
            Err(error) => {
                // No command would know of the process.
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    /// Sends a signal to a node's process. Does nothing if the process has ended.
    pub fn signal(&self, node: NodeName, signal: Signal) {
        let text = fs::read_to_string(self.pid_file(node)).unwrap_or_default();
        let Some((process, handle)) = Process::parse(&text).and_then(Process::hold) else { return };
        // The handle pins the process, so identity is checked only now.
        if process.runs() {
            let _ = pidfd_send_signal(&handle, signal);
        }
    }

    /// Forgets the process of a node that has ended.
    pub fn forget(&self, node: NodeName) {
        // A missing file is as good as a removed file.
        let _ = fs::remove_file(self.pid_file(node));
    }

    /// Path of a node's log.
    pub fn log(&self, node: NodeName) -> PathBuf {
        self.directory.join(format!("{node}.log"))
    }

    /// Path of a former life's log; number 1 is the last life.
    fn former_log(&self, node: NodeName, number: u32) -> PathBuf {
        self.directory.join(format!("{node}.{number}.log"))
    }

    /// Renames the logs of former lives, to make room for a new log.
    fn keep_log(&self, node: NodeName) -> io::Result<()> {
        let mut from = (1..FORMER_LOGS)
            .rev()
            .map(|number| (self.former_log(node, number), self.former_log(node, number + 1)));
        let last = (self.log(node), self.former_log(node, 1));
        from.by_ref().chain([last]).try_for_each(|(from, to)| match fs::rename(from, to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
    }

    /// Last line of a node's log that is an error.
    pub fn complaint(&self, node: NodeName) -> Option<String> {
        let log = fs::read_to_string(self.log(node)).ok()?;
        // `lotus` writes the word in small letters, a `main` that returns an error with a capital.
        log.lines().rev().find_map(|line| {
            let complaint = ["error: ", "Error: "].iter().find_map(|word| line.strip_prefix(word));
            complaint.map(str::to_owned)
        })
    }

    fn pid_file(&self, node: NodeName) -> PathBuf {
        self.directory.join(format!("{node}.pid"))
    }
}

/// Writes a process's file atomically: all content is new, or the old content stays.
fn remember(files: &dyn Files, path: &Path, process: Process) -> io::Result<()> {
    write_whole(files, path, Readers::Owner, Existing::Replaced, |file| {
        file.write_all(process.to_line().as_bytes())
    })
}

impl Process {
    /// Parses a line of the state directory; `None` if the line is incomplete or of another kind.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, began) = text.trim().split_once(' ')?;
        Some(Self { id: id.parse().ok()?, began: began.parse().ok()? })
    }

    /// Line for the state directory.
    pub fn to_line(self) -> String {
        let Self { id, began } = self;
        format!("{id} {began}\n")
    }

    /// This process.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub fn this() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    /// Process with this id, running or ended.
    fn of(id: u32) -> io::Result<Self> {
        let began = stat(id).and_then(|fields| fields.get(19)?.parse().ok());
        began.map(|began| Self { id, began }).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Whether the process still runs. A zombie does not.
    pub fn runs(&self) -> bool {
        stat(self.id).is_some_and(|fields| self.is_alive(&fields))
    }

    /// Whether these fields of `stat` are of this process, and a thread of the process is left.
    /// Files and sockets stay until the last thread has ended, and the first thread may end long
    /// before.
    fn is_alive(&self, fields: &[String]) -> bool {
        let number = |index: usize| fields.get(index).and_then(|field| field.parse().ok());
        let ended = matches!(fields.first().map(String::as_str), Some("Z" | "X"));
        let other_threads = number(17).is_some_and(|threads: u64| threads > 1);
        (!ended || other_threads) && number(19) == Some(self.began)
    }

    /// Whether SIGKILL is pending; it stays pending to the end of the process.
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

/// Names the scope in which process ids are unique: a boot of a kernel, and a process id namespace.
/// Empty if the kernel does not tell.
pub fn process_space() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let space = fs::read_link("/proc/self/ns/pid");
    match (boot, space) {
        (Ok(boot), Ok(space)) => format!("{} {}", boot.trim(), space.display()),
        _ => String::new(),
    }
}

/// Whether a process was stopped by a signal.
#[cfg(feature = "fault-points")]
pub fn is_stopped(process: u32) -> bool {
    stat(process).is_some_and(|fields| fields.first().is_some_and(|state| state == "T"))
}

/// Fields of `/proc/PID/stat` after the name: the state is field 0, the number of threads 17, the
/// start time 19.
fn stat(process: u32) -> Option<Vec<String>> {
    fields(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

fn fields(stat: &str) -> Option<Vec<String>> {
    let (_, after) = stat.rsplit_once(')')?;
    Some(after.split_whitespace().map(str::to_owned).collect())
}

/// Creates a directory private to this user, unless the directory exists.
///
/// # Errors
/// A sentence.
pub fn make_private(directory: &Path) -> Result<(), String> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| format!("cannot make {}: {error}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_files::faults::{Fault, Faulty};

    /// A node was killed and started again at once. Its first thread had ended, so the node passed
    /// for dead; another thread had not, and its socket was still in use: the new process found its
    /// address taken, and gave up.
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

    /// A node that had crashed was started again, and the log that said why was gone.
    #[test]
    fn the_logs_of_the_last_lives_are_kept() {
        let directory = std::env::temp_dir().join(format!("lotus-logs-{}", std::process::id()));
        make_private(&directory).unwrap();
        let state = StateFolder { directory: directory.clone(), namespaces: None, _lock: None };
        let node = NodeName::compute(1);
        assert_eq!(state.seen(node), ProcessState::Never);
        for life in 0..8 {
            state.keep_log(node).unwrap();
            fs::write(state.log(node), life.to_string()).unwrap();
        }
        let said = |path| fs::read_to_string(path).ok();
        let former: Vec<_> =
            (1..=FORMER_LOGS).filter_map(|number| said(state.former_log(node, number))).collect();
        assert_eq!(former, ["6", "5", "4", "3", "2"]);
        assert_eq!(said(state.log(node)).as_deref(), Some("7"));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 6, "no more than these");
        assert_eq!(state.seen(node), ProcessState::Down);
        state.remember_this_process(node).unwrap();
        assert_eq!(state.seen(node), ProcessState::Running(std::process::id()));
        fs::remove_dir_all(&directory).unwrap();
    }

    /// A file that was cut short named another process, or none, and the node was started twice.
    #[test]
    fn whatever_fails_a_process_is_remembered_whole_or_the_one_before_is() {
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join("cn-0.pid");
        let (before, now) = (Process { id: 7, began: 4321 }, Process { id: 1234, began: 98765 });
        let sound = Faulty::sound();
        remember(&sound, &path, now).expect("no fault");
        let steps = sound.done().len();
        assert_eq!(steps, 5, "{:?}", sound.done());
        for (at, fault) in (0..steps).flat_map(|at| Fault::ALL.map(|fault| (at, fault))) {
            remember(&Disk, &path, before).expect("no fault");
            let remembered = remember(&Faulty::at(at, fault), &path, now);
            let text = fs::read_to_string(&path).expect("one is there");
            let found = Process::parse(&text).expect("it is whole");
            assert!([before, now].contains(&found), "{fault:?} at {at}: {text}");
            assert!(remembered.is_err() || found == now, "{fault:?} at {at}: {text}");
        }
    }

    #[test]
    fn this_process_runs() {
        let this = Process::this().expect("it is in /proc");
        assert!(this.runs() && !Process { began: this.began + 1, ..this }.runs());
        assert!(!this.is_killed());
        assert_eq!(Process::parse(&this.to_line()), Some(this));
    }

    #[test]
    fn who_was_killed_is_so_until_it_has_ended() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("there is such a command");
        let id = child.id();
        let process = Process::of(id).expect("it is not waited for");
        assert!(process.runs() && !process.is_killed());
        child.kill().expect("it is ours");
        assert!(process.is_killed(), "running, ending, or not waited for");
        child.wait().expect("it ends");
        assert!(!process.is_killed() && !process.runs());
    }
}
