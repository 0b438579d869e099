//! Fragments of calls, in any order and with any content.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lotus_fabric::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::datagrams(bytes));
