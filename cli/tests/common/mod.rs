//! What tests of the command share: running it, and a place for its files.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs the command to its end.
pub fn lotus(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lotus"));
    command.args(arguments).output().expect("the binary was built for this test")
}

/// An address that only this test of this process uses, which has a number below 16: all of 127/8
/// is this machine.
#[allow(dead_code, reason = "not every test has clusters")]
pub fn host(number: u32) -> Ipv4Addr {
    assert!(number < 16, "the rest of the address is the process");
    let process = std::process::id() % (1 << 18);
    Ipv4Addr::from(0x7f40_0000 | process << 4 | number)
}

/// A directory of this test's own, removed when it ends.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a scratch directory");
        Self(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).into_os_string().into_string().expect("UTF-8")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
