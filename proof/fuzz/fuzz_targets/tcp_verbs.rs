//! Frames of verbs, as a target receives them from a socket.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lotus_fabric::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::tcp_verbs(bytes));
