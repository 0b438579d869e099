//! Tells the program which commit of its sources it is built from, if they are a checkout of git.
//!
//! Cargo asks again when the log of `HEAD` has grown: after a commit, and after a change of the
//! branch. Sources without a checkout, or a machine without git, are no error: then no result names
//! a commit.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let Some([top, folder, commit]) = git() else { return };
    // Sources that lie within some other checkout are not its own.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    if root.and_then(|root| root.canonicalize().ok()) != Path::new(&top).canonicalize().ok() {
        return;
    }
    let logs = ["HEAD", "logs/HEAD"].map(|name| Path::new(&folder).join(name));
    for log in logs.iter().filter(|log| log.exists()) {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    println!("cargo::rustc-env=LOTUS_COMMIT={commit}");
}

/// The root of the checkout, the folder of its `HEAD`, and the commit.
fn git() -> Option<[String; 3]> {
    let asked = ["rev-parse", "--show-toplevel", "--absolute-git-dir", "HEAD"];
    let mut git = Command::new("git");
    git.current_dir(env!("CARGO_MANIFEST_DIR")).args(asked);
    let answered = git.output().ok().filter(|answer| answer.status.success())?;
    let lines: Vec<String> =
        String::from_utf8(answered.stdout).ok()?.lines().map(str::to_owned).collect();
    lines.try_into().ok()
}
