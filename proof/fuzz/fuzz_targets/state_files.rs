//! Process ids, snapshot names, and the values that nodes publish at the authority.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lotus_cli::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::state(bytes));
