//! Shared by the tests of `lotus-lab`: running it, and a directory for its files.

use std::process::Output;

#[path = "../../../../../cli/tests/all/common/program.rs"]
pub mod program;
#[path = "../../../../../cli/tests/all/common/runs.rs"]
pub mod runs;

pub use program::Scratch;

/// Runs `lotus-lab` to its end.
pub fn lab(arguments: &[&str]) -> Output {
    program::output(env!("CARGO_BIN_EXE_lotus-lab"), arguments)
}
