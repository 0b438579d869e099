//! Runs a program of the project, and has a directory for its files. Shared by the tests of `lotus`
//! and `lotus-lab`.

use std::process::{Command, Output};

use tempfile::TempDir;

/// Exit code of a command that was refused.
pub const REFUSED: i32 = 2;

/// Runs a program to its end.
pub fn output(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().expect("it was built for this test")
}

/// Runs a program to this exit code; returns its standard output.
pub fn run_to(program: &str, arguments: &[&str], code: i32) -> String {
    let output = output(program, arguments);
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {out}\n{err}");
    out.into_owned()
}

/// The sentence on the standard error of a command that was refused.
pub fn refusal(program: &str, arguments: &[&str]) -> String {
    let output = output(program, arguments);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(REFUSED), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?} wrote to the standard output");
    assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
    said.strip_prefix("error: ").expect("it says that it is an error").trim_end().to_owned()
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
