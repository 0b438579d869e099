//! What tests of the command share: running it, and a place for its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs the command to its end.
pub fn lotus(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lotus"));
    command.args(arguments).output().expect("the binary was built for this test")
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
