//! Shared by the tests of `lotus`: running it, and its files. `program` and `runs`
//! are of `lotus-lab` too.

#[cfg(feature = "tcp")]
use std::fs;
#[cfg(feature = "tcp")]
use std::net::Ipv4Addr;
#[cfg(feature = "tcp")]
use std::path::Path;
use std::process::Output;
#[cfg(feature = "tcp")]
use std::sync::atomic::{AtomicU32, Ordering};

pub mod program;
pub mod runs;

pub use program::Scratch;
#[cfg(feature = "tcp")]
pub use runs::is_alive;

/// Exit code of a command that found no fault, and could not judge all that it was to judge.
pub const NOT_JUDGED: i32 = 3;

/// Runs `lotus` to its end.
pub fn lotus(arguments: &[&str]) -> Output {
    program::output(env!("CARGO_BIN_EXE_lotus"), arguments)
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
