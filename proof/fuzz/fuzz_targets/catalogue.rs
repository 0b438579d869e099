//! The catalogue of tables, as stored by the authority.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lotus_cli::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::catalogue(bytes));
