//! Shared by the tests of the command: running it, and a directory for its files.

use std::fs;
#[cfg(feature = "tcp")]
use std::net::Ipv4Addr;
#[cfg(feature = "tcp")]
use std::path::Path;
use std::process::{Command, Output};
#[cfg(feature = "tcp")]
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

/// Exit code of a command that found no fault, and could not judge all that it was to judge.
pub const NOT_JUDGED: i32 = 3;

/// Runs the command to its end.
pub fn lotus(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lotus"));
    command.args(arguments).output().expect("the binary was built for this test")
}

/// An address of this machine that no other call returns, in this process or in another one that
/// runs these tests: all of 127/8 is this machine.
#[cfg(feature = "tcp")]
pub fn host() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(number < 64, "the rest of the address is the process");
    let process = std::process::id() % (1 << 16);
    Ipv4Addr::from(0x7f40_0000 | process << 6 | number)
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

/// Shows the logs of a cluster whose test has failed, among the test's output.
#[cfg(feature = "tcp")]
#[expect(clippy::print_stderr, reason = "the test runner captures it")]
pub fn show_if_failed(logs: impl FnOnce() -> String) {
    if std::thread::panicking() {
        eprintln!("{}", logs());
    }
}

/// Logs of the nodes of a cluster that is described in `c.toml` of this directory.
#[cfg(feature = "tcp")]
pub fn logs(directory: &Path) -> String {
    let folders = [directory.to_owned(), directory.join("c.state")];
    let files = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let paths = files.filter_map(|entry| Some(entry.ok()?.path()));
    let logs = paths.filter(|path| path.extension().is_some_and(|found| found == "log"));
    logs.map(|log| fs::read_to_string(log).expect("a log")).collect()
}

/// A directory for one run's files, removed when it is dropped. Tests run side by side: no two
/// share a directory, whatever their names.
pub struct Scratch(TempDir);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let directory = tempfile::Builder::new()
            .prefix(name)
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .expect("cargo has made the directory around it");
        Self(directory)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).into_os_string().into_string().expect("UTF-8")
    }
}
