//! The catalogue of tables, as the authority may hold it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lotus_cli::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::catalogue(bytes));
