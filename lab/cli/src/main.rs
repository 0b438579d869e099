//! The `lotus-lab` program. Its code is in the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    lotus_lab::main()
}
