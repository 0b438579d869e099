//! Snapshot files: as they come, with checksums that hold, and as lists of blocks.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lotus_cli::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::snapshot(bytes));
