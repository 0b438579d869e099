//! How a connection to a target begins, as strangers would have it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lotus_fabric::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::tcp_handshake(bytes));
