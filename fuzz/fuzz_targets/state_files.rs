//! Process ids, names of snapshots, and what nodes say of themselves at the authority.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lotus_cli::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::state(bytes));
